//! What follows the rows: sequences, materialized views, statistics.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::thread;

use lockstep_client::quote::sql_literal;
use lockstep_client::{ClientError, Connection, Conninfo, ToText, field};

use crate::copy::workers::target_session;
use crate::error::{ReplicaError, Result};
use crate::lifecycle::made::{is_of_the_object, lacks_a_name, said};
use crate::names::Excluded;
use crate::names::TableName;
use crate::state::{ANALYZE, Unmade, VIEW};

/// SQLSTATE of a materialized view that reads another one that is not filled yet.
const NOT_FILLED: &str = "55000";

/// Most sequences that are asked for at once.
const MOST_SEQUENCES: usize = 500;

const SEQUENCES: &str = "
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'S' AND c.relpersistence <> 't' AND n.nspname NOT LIKE 'pg\\_%'
    AND n.nspname <> 'lockstep'
ORDER BY 1, 2";

/// Sequences that fill columns which the publication's lists leave out. Partitions may use one of a
/// table above them.
const FILLING: &str = "
SELECT DISTINCT n.nspname, s.relname
FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
    CROSS JOIN LATERAL (SELECT r.prrelid AS oid UNION
        SELECT relid FROM pg_partition_ancestors(r.prrelid)) t
    JOIN pg_attribute a ON a.attrelid = t.oid AND a.attname NOT IN (SELECT l.attname
        FROM pg_attribute l WHERE l.attrelid = r.prrelid AND l.attnum = ANY (r.prattrs))
    LEFT JOIN pg_attrdef e ON e.adrelid = a.attrelid AND e.adnum = a.attnum
    JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.refclassid = d.classid
            AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum AND d.deptype = 'i'
        OR d.classid = 'pg_attrdef'::regclass AND d.objid = e.oid
            AND d.refclassid = 'pg_class'::regclass
    JOIN pg_class s ON s.relkind = 'S'
        AND s.oid = CASE d.deptype WHEN 'i' THEN d.objid ELSE d.refobjid END
    JOIN pg_namespace n ON n.oid = s.relnamespace
WHERE p.pubname = $1 AND r.prattrs IS NOT NULL";

const VIEWS: &str = "
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'm' AND c.relispopulated
ORDER BY c.oid";

const MISSING_VIEWS: &str = "
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'm' AND NOT c.relispopulated";

/// Largest first, so that no session is left with one at the end.
const ANALYZED: &str = "
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'm') AND c.relpersistence <> 't' AND n.nspname NOT LIKE 'pg\\_%'
    AND n.nspname NOT IN ('information_schema', 'lockstep')
ORDER BY c.relpages DESC";

fn names(connection: &mut Connection, sql: &str) -> Result<Vec<TableName>, ClientError> {
    names_with(connection, sql, &[])
}

fn names_with(
    connection: &mut Connection,
    sql: &str,
    parameters: &[&dyn ToText],
) -> Result<Vec<TableName>, ClientError> {
    let rows = connection.query_with(sql, parameters)?;
    rows.iter()
        .map(|row| {
            Ok(TableName {
                schema: field(row, 0)?,
                table: field(row, 1)?,
            })
        })
        .collect()
}

/// Brings the target's sequences to where the source's are now: at or beyond every value that the
/// copied rows have. Those that fill columns which are not replicated stay: the target has used them
/// for values of its own.
pub fn sequences(
    source: &mut Connection,
    target: &mut Connection,
    excluded: &Excluded,
    publication: &str,
) -> Result<()> {
    let there = names(target, SEQUENCES).map_err(ReplicaError::Target)?;
    let here = names(source, SEQUENCES).map_err(ReplicaError::Source)?;
    let filling = names_with(source, FILLING, &[&publication]).map_err(ReplicaError::Source)?;
    let is_wanted = |name: &&TableName| {
        !excluded.names(name) && there.contains(name) && !filling.contains(name)
    };
    let wanted: Vec<_> = here.iter().filter(is_wanted).collect();
    for part in wanted.chunks(MOST_SEQUENCES) {
        let mut read = || -> Result<Vec<String>, ClientError> {
            let selects: Result<Vec<_>, ClientError> = part
                .iter()
                .map(|name| {
                    let name = name.sql();
                    let literal = sql_literal("sequence", &name)?;
                    Ok(format!(
                        "SELECT {literal}, last_value, is_called FROM {name}"
                    ))
                })
                .collect();
            let rows = source.query(&selects?.join(" UNION ALL "))?;
            rows.iter()
                .map(|row| {
                    let name = sql_literal("sequence", &field::<String>(row, 0)?)?;
                    let (last, called): (i64, bool) = (field(row, 1)?, field(row, 2)?);
                    Ok(format!("setval({name}, {last}, {called})"))
                })
                .collect()
        };
        let calls = read().map_err(ReplicaError::Source)?;
        let set = target.execute(&format!("SELECT {}", calls.join(", ")));
        set.map_err(ReplicaError::Target)?;
    }
    Ok(())
}

/// The search path of those who connect to the source and set none.
const SEARCH_PATH: &str = "SELECT reset_val FROM pg_settings WHERE name = 'search_path'";

/// From this version on REFRESH finds no names by the session's search path.
const REFRESH_WITHOUT_PATH: u32 = 170_000;

/// Fills the materialized views that are filled on the source. One that reads another is tried
/// again after that one. Returns those that cannot be filled.
pub fn views(source: &mut Connection, target: &mut Connection) -> Result<Vec<Unmade>> {
    let filled = names(source, VIEWS).map_err(ReplicaError::Source)?;
    let path = source.query_one(SEARCH_PATH).and_then(|row| field(&row, 0));
    let path: String = path.map_err(ReplicaError::Source)?;
    let missing = names(target, MISSING_VIEWS).map_err(ReplicaError::Target)?;
    let mut unmade = Vec::new();
    let mut left: Vec<_> = filled
        .into_iter()
        .filter(|name| missing.contains(name))
        .collect();
    while !left.is_empty() {
        let before = left.len();
        let mut again = Vec::new();
        for view in left {
            match target.execute(&format!("REFRESH MATERIALIZED VIEW {}", view.sql())) {
                Ok(()) => {}
                Err(error) if error.refusal().is_some_and(|it| it.sqlstate == NOT_FILLED) => {
                    again.push((view, error));
                }
                Err(error) if is_of_the_object(&error) => {
                    unmade.push(unfilled(&view, &error, &path, target.server_version()));
                }
                Err(error) => return Err(ReplicaError::Target(error)),
            }
        }
        if again.len() == before {
            let refused = again.drain(..);
            unmade.extend(refused.map(|(view, error)| unfilled(&view, &error, &path, 0)));
        }
        left = again.into_iter().map(|(view, _)| view).collect();
    }
    Ok(unmade)
}

fn unfilled(view: &TableName, error: &ClientError, path: &str, version: u32) -> Unmade {
    let mut unmade = Unmade {
        kind: VIEW.to_owned(),
        schema: view.schema.clone(),
        object: view.table.clone(),
        command: format!("REFRESH MATERIALIZED VIEW {};", view.sql()),
        error: said(error),
    };
    if lacks_a_name(error) && version >= REFRESH_WITHOUT_PATH {
        unmade.error.push_str(
            "; from PostgreSQL 17 on REFRESH finds no names by search_path: qualify them in the view and its \
             functions",
        );
    } else if lacks_a_name(error) {
        unmade.command = format!("SET search_path = {path}; {}", unmade.command);
    }
    unmade
}

/// Gathers statistics of all tables, with so many sessions. Returns those of which there are none.
pub fn analyze(target: &Conninfo, jobs: usize) -> Result<Vec<Unmade>> {
    let mut first = target_session(target)?;
    let tables = names(&mut first, ANALYZED).map_err(ReplicaError::Target)?;
    let tables = Mutex::new(VecDeque::from(tables));
    let work = |mut session: Connection| -> Result<Vec<Unmade>> {
        let mut unmade = Vec::new();
        loop {
            let next = {
                let mut tables = tables.lock().unwrap_or_else(PoisonError::into_inner);
                tables.pop_front()
            };
            let Some(table) = next else {
                return Ok(unmade);
            };
            let command = format!("ANALYZE {}", table.sql());
            match session.execute(&command) {
                Ok(()) => {}
                Err(error) if is_of_the_object(&error) => unmade.push(Unmade {
                    kind: ANALYZE.to_owned(),
                    schema: table.schema,
                    object: table.table,
                    command: format!("{command};"),
                    error: said(&error),
                }),
                Err(error) => return Err(ReplicaError::Target(error)),
            }
        }
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..jobs)
            .map(|_| scope.spawn(|| work(target_session(target)?)))
            .collect();
        let mut result = work(first);
        for other in others {
            // A worker that panicked has printed why; its tables are left without statistics.
            let done = other.join().unwrap_or_else(|_| {
                Err(ReplicaError::State(
                    "a thread that analyzed tables has ended".to_owned(),
                ))
            });
            result = match (result, done) {
                (Ok(mut unmade), Ok(more)) => {
                    unmade.extend(more);
                    Ok(unmade)
                }
                (Err(error), _) | (_, Err(error)) => Err(error),
            };
        }
        result
    })
}
