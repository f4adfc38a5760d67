//! Brings the target's sequences beyond the values that their columns have, if the source does not tell their
//! values any more: what `run` has set last may be behind the newest rows.

use lockstep_client::{ClientError, Connection, field};

use super::made::said;
use crate::error::{ReplicaError, Result};
use crate::state::{SEQUENCE, Unmade};

/// For each sequence and column that takes its values from it: schema and name of the sequence, and the
/// statement that brings it beyond the column's values in its own direction. It never goes back.
const RAISES: &str = "
SELECT sn.nspname, s.relname, format('SELECT pg_catalog.setval(%L, x.v) FROM (SELECT pg_catalog.%s(%I)::bigint '
        'AS v FROM %I.%I) x, %I.%I q WHERE x.v BETWEEN %s AND %s AND (x.v %s q.last_value '
        'OR x.v = q.last_value AND NOT q.is_called)',
    format('%I.%I', sn.nspname, s.relname), CASE WHEN q.seqincrement > 0 THEN 'max' ELSE 'min' END, a.attname,
    tn.nspname, t.relname, sn.nspname, s.relname, q.seqmin, q.seqmax,
    CASE WHEN q.seqincrement > 0 THEN '>' ELSE '<' END)
FROM pg_class s JOIN pg_namespace sn ON sn.oid = s.relnamespace JOIN pg_sequence q ON q.seqrelid = s.oid
    CROSS JOIN LATERAL (
        SELECT d.refobjid AS table_oid, d.refobjsubid AS number FROM pg_depend d
        WHERE d.classid = 'pg_class'::regclass AND d.objid = s.oid AND d.refclassid = d.classid
            AND d.refobjsubid > 0 AND d.deptype IN ('a', 'i')
        UNION
        SELECT e.adrelid, e.adnum FROM pg_depend d JOIN pg_attrdef e ON e.oid = d.objid
        WHERE d.classid = 'pg_attrdef'::regclass AND d.refclassid = 'pg_class'::regclass
            AND d.refobjid = s.oid) c
    JOIN pg_class t ON t.oid = c.table_oid AND t.relkind IN ('r', 'p')
    JOIN pg_namespace tn ON tn.oid = t.relnamespace
    JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = c.number
        AND a.atttypid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype)
WHERE s.relpersistence <> 't' AND sn.nspname NOT LIKE 'pg\\_%' AND sn.nspname <> 'lockstep'
ORDER BY 1, 2, 3";

/// Raises all sequences that give columns their values. Returns those that cannot be raised.
pub(super) fn raise(target: &mut Connection) -> Result<Vec<Unmade>> {
    let rows = target.query(RAISES).map_err(ReplicaError::Target)?;
    let mut unset = Vec::new();
    for row in rows {
        let read = || -> Result<(String, String, String), ClientError> {
            Ok((field(&row, 0)?, field(&row, 1)?, field(&row, 2)?))
        };
        let (schema, object, command) = read().map_err(ReplicaError::Target)?;
        match target.execute(&command) {
            Ok(()) => {}
            Err(error) if error.refusal().is_some() => unset.push(Unmade {
                kind: SEQUENCE.to_owned(),
                schema,
                object,
                error: format!("{}; on the target", said(&error)),
                command: format!("{command};"),
            }),
            Err(error) => return Err(ReplicaError::Target(error)),
        }
    }
    Ok(unset)
}
