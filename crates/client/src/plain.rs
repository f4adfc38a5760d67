//! Tables that others own: whether reading them runs code of theirs.

/// What is wrong with a table, in SQL, for a row `c` of `pg_class`; null if reading it runs no code of
/// whoever owns it. The planner computes expressions of indexes, checks and statistics; types can have
/// casts of their own. It says how the table is now: its owner can change it at any time.
pub const NOT_PLAIN: &str = "CASE
    WHEN c.relkind <> 'r' THEN 'is no plain table'
    WHEN c.relrowsecurity THEN 'has row security'
    WHEN EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid OR i.inhrelid = c.oid)
        THEN 'is inherited from, or inherits'
    WHEN EXISTS (SELECT FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
            AND t.typnamespace <> 'pg_catalog'::regnamespace)
        THEN 'has a column of a type that PostgreSQL does not bring'
    WHEN EXISTS (SELECT FROM pg_attribute a
        WHERE a.attrelid = c.oid AND NOT a.attisdropped AND a.attgenerated <> '')
        THEN 'has a generated column'
    WHEN EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype IN ('c', 'x'))
        THEN 'has a check'
    WHEN EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid
            AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL))
        OR EXISTS (SELECT FROM pg_statistic_ext s WHERE s.stxrelid = c.oid)
        THEN 'has an index of an expression, or extended statistics' END";
