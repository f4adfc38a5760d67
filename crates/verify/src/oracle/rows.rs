//! Compares hashes of the rows that SQL sees on two running servers, table by table, without
//! regard to their order.
//!
//! It does not depend on the comparison of pages. It uses the servers' own visibility rules and
//! output functions, so it shows whether a difference between pages is visible to queries.

use std::collections::BTreeMap;

use crate::error::oracle::{OracleError, Result};
use crate::oracle::Node;
use crate::oracle::psql::Session;

/// Settings that make both servers print the same text, and show all rows to a superuser.
const SETTINGS: &str =
    "SET extra_float_digits = 3; SET datestyle = 'ISO'; SET intervalstyle = 'postgres';
SET timezone = 'UTC'; SET bytea_output = 'hex'; SET lc_monetary = 'C'; SET statement_timeout = 0;
SET row_security = off; SET search_path = pg_catalog;
";

/// Two hashes of each row with different seeds, one added up, the other combined by XOR. The
/// order of rows does not matter, but the number of equal rows does.
const TABLES: &str = r"SELECT format('SELECT %L, count(*),
    coalesce(sum(hashtextextended(ROW(lockstep_row.*)::text, 0)::numeric), 0),
    coalesce(bit_xor(hashtextextended(ROW(lockstep_row.*)::text, 1)), 0)
  FROM ONLY %s AS lockstep_row', c.oid::regclass, c.oid::regclass)
FROM pg_class c
WHERE c.relkind IN ('r', 'm') AND c.relpersistence = 'p' AND c.relispopulated
ORDER BY c.oid \gexec
";

/// Result of a comparison of rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowComparison {
    /// Tables and materialized views compared.
    pub tables: u64,
    /// Rows in these tables, on A.
    pub rows: u64,
    /// Tables with different rows, or on one side only, as `database: schema.table`.
    pub differing: Vec<String>,
}

/// Compares the rows of all databases.
pub fn compare_rows(a: &Node, b: &Node) -> std::result::Result<RowComparison, OracleError> {
    let option = "--rows";
    let (a, b) = (running(option, a)?, running(option, b)?);
    let mut result = RowComparison::default();
    for database in databases(a)? {
        let (of_a, of_b) = (tables(a, &database)?, tables(b, &database)?);
        for (name, hash) in &of_a {
            result.tables += 1;
            let count = hash.first().and_then(|count| count.parse::<u64>().ok());
            result.rows += count.unwrap_or(0);
            if of_b.get(name) != Some(hash) {
                result.differing.push(format!("{database}: {name}"));
            }
        }
        let only_b = of_b.keys().filter(|name| !of_a.contains_key(*name));
        result
            .differing
            .extend(only_b.map(|name| format!("{database}: {name}")));
    }
    Ok(result)
}

/// The session of a side; an error if its server does not run, which `option` needs.
pub(crate) fn running<'a>(option: &'static str, node: &'a Node) -> Result<&'a Session> {
    node.session().ok_or_else(|| OracleError::NeedsServer {
        option,
        path: node.folder().to_path_buf(),
    })
}

/// Databases that accept connections.
pub(crate) fn databases(session: &Session) -> Result<Vec<String>> {
    let rows = session.rows("SELECT datname FROM pg_database WHERE datallowconn ORDER BY 1;")?;
    Ok(rows.into_iter().flatten().collect())
}

fn tables(session: &Session, database: &str) -> Result<BTreeMap<String, Vec<String>>> {
    let rows = session
        .in_database(database)
        .rows(&format!("{SETTINGS}{TABLES}"))?;
    Ok(rows
        .into_iter()
        .filter_map(|row| {
            let (name, hash) = row.split_first()?;
            Some((name.clone(), hash.to_vec()))
        })
        .collect())
}
