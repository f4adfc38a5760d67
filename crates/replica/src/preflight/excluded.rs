//! What needs something that is left out: pg_dump writes it, and pg_restore cannot create it.

use lockstep_client::{ClientError, Connection, field};

use crate::names::Excluded;
use crate::state::json_array;

/// Objects that are left out are those in an excluded schema, excluded tables, and whatever is a part
/// of such an object. Casts are in no schema, so pg_dump writes them whatever is left out. It does not
/// write publications here.
const NEEDS: &str = "
WITH RECURSIVE schemas AS (
    SELECT oid FROM pg_namespace
    WHERE nspname = ANY (ARRAY(SELECT json_array_elements_text($1::json)))
), gone (classid, objid) AS (
    SELECT 'pg_namespace'::regclass::oid, oid FROM schemas
    UNION SELECT 'pg_class'::regclass, c.oid
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.oid IN (SELECT oid FROM schemas) OR n.nspname || '.' || c.relname = ANY
            (ARRAY(SELECT json_array_elements_text($2::json)))
    UNION SELECT 'pg_type'::regclass, oid FROM pg_type
        WHERE typnamespace IN (SELECT oid FROM schemas)
    UNION SELECT 'pg_proc'::regclass, oid FROM pg_proc
        WHERE pronamespace IN (SELECT oid FROM schemas)
    UNION SELECT 'pg_operator'::regclass, oid FROM pg_operator
        WHERE oprnamespace IN (SELECT oid FROM schemas)
    UNION SELECT 'pg_opclass'::regclass, oid FROM pg_opclass
        WHERE opcnamespace IN (SELECT oid FROM schemas)
    UNION SELECT 'pg_opfamily'::regclass, oid FROM pg_opfamily
        WHERE opfnamespace IN (SELECT oid FROM schemas)
    UNION SELECT 'pg_collation'::regclass, oid FROM pg_collation
        WHERE collnamespace IN (SELECT oid FROM schemas)
    UNION SELECT 'pg_conversion'::regclass, oid FROM pg_conversion
        WHERE connamespace IN (SELECT oid FROM schemas)
    UNION SELECT 'pg_statistic_ext'::regclass, oid FROM pg_statistic_ext
        WHERE stxnamespace IN (SELECT oid FROM schemas)
    UNION SELECT 'pg_ts_config'::regclass, oid FROM pg_ts_config
        WHERE cfgnamespace IN (SELECT oid FROM schemas)
    UNION SELECT 'pg_ts_dict'::regclass, oid FROM pg_ts_dict
        WHERE dictnamespace IN (SELECT oid FROM schemas)
    UNION SELECT 'pg_ts_parser'::regclass, oid FROM pg_ts_parser
        WHERE prsnamespace IN (SELECT oid FROM schemas)
    UNION SELECT 'pg_ts_template'::regclass, oid FROM pg_ts_template
        WHERE tmplnamespace IN (SELECT oid FROM schemas)
    UNION SELECT d.classid, d.objid
        FROM gone g JOIN pg_depend d ON (d.refclassid, d.refobjid) = (g.classid, g.objid)
        WHERE d.deptype IN ('a', 'i', 'P', 'S')
)
SELECT DISTINCT
    coalesce((SELECT pg_describe_object('pg_class'::regclass, r.ev_class, 0) FROM pg_rewrite r
            WHERE r.oid = d.objid AND r.rulename = '_RETURN'
                AND d.classid = 'pg_rewrite'::regclass),
        pg_describe_object(d.classid, d.objid, d.objsubid)),
    pg_describe_object(d.refclassid, d.refobjid, 0)
FROM gone g JOIN pg_depend d ON (d.refclassid, d.refobjid) = (g.classid, g.objid)
WHERE d.deptype = 'n' AND (d.classid, d.objid) NOT IN (SELECT classid, objid FROM gone)
    AND d.classid NOT IN ('pg_publication'::regclass, 'pg_publication_rel'::regclass,
        'pg_publication_namespace'::regclass)
    AND NOT EXISTS (SELECT FROM pg_depend e WHERE (e.classid, e.objid) = (d.classid, d.objid)
        AND e.deptype = 'e')
ORDER BY 2, 1";

/// Objects that are not left out and need one that is, each with that.
pub fn needs(
    source: &mut Connection,
    excluded: &Excluded,
) -> Result<Vec<(String, String)>, ClientError> {
    if *excluded == Excluded::default() {
        return Ok(Vec::new());
    }
    let (schemas, tables) = (json_array(&excluded.schemas), json_array(&excluded.tables));
    let rows = source.query_with(NEEDS, &[&schemas, &tables])?;
    rows.iter()
        .map(|row| Ok((field(row, 0)?, field(row, 1)?)))
        .collect()
}
