//! Followed tables that the worker of their subscription may not write.

use serde::Deserialize;

/// A followed table that a worker may not write, and what it lacks. Names are quoted where SQL needs it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Denied {
    /// `schema.table`
    pub table: String,
    /// The table's owner.
    pub owner: String,
    /// The role as which the worker writes it; the subscription's owner if that may not become the table's.
    pub role: String,
    /// The role is to become the table's owner, and may not (from 16 on).
    pub refused_role: bool,
    /// Rights on the table that the role lacks, such as `INSERT`.
    pub lacks: Vec<String>,
    /// Policies of the table (row-level security) hold for the role, so that a worker writes nothing.
    pub has_policies: bool,
}

/// An expression for the list of [`Denied`] of the subscription `s`. Its worker writes as the subscription's
/// owner up to 15 and with `run_as_owner`, otherwise as the table's.
pub(super) fn expression(name: &str, tables: &str, most: usize) -> String {
    format!(
        "(SELECT coalesce(json_agg(d), '[]') FROM (SELECT * FROM (\
           SELECT {name} AS \"table\", quote_ident(w.rolname) AS owner, \
             NOT by_owner AND NOT pg_has_role(s.subowner, c.relowner, 'SET') AS refused_role, \
             quote_ident(CASE WHEN NOT by_owner AND NOT pg_has_role(s.subowner, c.relowner, 'SET') \
               THEN b.rolname ELSE a.rolname END) AS role, \
             array_to_json(array_remove(ARRAY[\
               CASE WHEN NOT has_table_privilege(a.oid, c.oid, 'INSERT') THEN 'INSERT' END, \
               CASE WHEN NOT has_table_privilege(a.oid, c.oid, 'UPDATE') THEN 'UPDATE' END, \
               CASE WHEN NOT has_table_privilege(a.oid, c.oid, 'DELETE') THEN 'DELETE' END], NULL)) AS lacks, \
             c.relrowsecurity AND NOT a.rolsuper AND NOT a.rolbypassrls \
               AND (c.relforcerowsecurity OR NOT pg_has_role(a.oid, c.relowner, 'USAGE')) AS has_policies \
           FROM {tables} \
             CROSS JOIN (SELECT by_owner FROM (SELECT true AS subrunasowner) x CROSS JOIN LATERAL (\
               SELECT subrunasowner AS by_owner FROM pg_subscription y WHERE y.oid = s.oid) o) o \
             JOIN pg_roles w ON w.oid = c.relowner JOIN pg_roles b ON b.oid = s.subowner \
             JOIN pg_roles a ON a.oid = CASE WHEN by_owner THEN s.subowner ELSE c.relowner END \
           ORDER BY c.oid) t \
         WHERE refused_role OR has_policies OR json_array_length(lacks) > 0 LIMIT {most}) d)"
    )
}
