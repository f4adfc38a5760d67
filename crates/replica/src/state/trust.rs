//! Whose the state is. Anybody with rights in the target's database could have made a schema `lockstep`
//! beforehand, and code that they have put into it would run as whoever reads or writes there.
//!
//! Before the state is written, the schema and its tables must belong to the session's role or to a
//! superuser: others could put code into them at any time. Whatever is done with the state, its tables must
//! be such as lockstep makes them. What reading can run is looked for always (a view, expressions of
//! indexes and constraints, which the planner computes, and types with casts of their own), what
//! only writing can run only before that.

use lockstep_client::{ClientError, field};

use super::State;
use crate::error::{ReplicaError, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    Read,
    Write,
}

/// The schema and the tables: what each is, its owner, this session's role, whether the owner can be
/// trusted, and what is wrong with it for a reader and for a writer.
const OBJECTS: &str = "
WITH ours AS (
    SELECT c.oid, 'table lockstep.' || c.relname AS what, c.relowner AS owner, c.relkind,
        c.relrowsecurity
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'lockstep'
        AND c.relname IN ('state_version', 'replica', 'table_copy', 'hold', 'subset')
), found AS (
    SELECT 'schema lockstep' AS what, nspowner AS owner, NULL AS reading, NULL AS writing
    FROM pg_namespace WHERE nspname = 'lockstep'
    UNION ALL
    SELECT what, owner, CASE
        WHEN relkind <> 'r' THEN 'is no plain table'
        WHEN relrowsecurity THEN 'has row security'
        WHEN EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = o.oid OR i.inhrelid = o.oid)
            THEN 'is inherited from, or inherits'
        WHEN EXISTS (SELECT FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
            WHERE a.attrelid = o.oid AND a.attnum > 0 AND NOT a.attisdropped
                AND t.typnamespace <> 'pg_catalog'::regnamespace)
            THEN 'has a column of a type that PostgreSQL does not bring'
        WHEN EXISTS (SELECT FROM pg_attribute a
            WHERE a.attrelid = o.oid AND NOT a.attisdropped AND a.attgenerated <> '')
            THEN 'has a generated column'
        WHEN EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = o.oid AND k.contype IN ('c', 'x'))
            THEN 'has a check'
        WHEN EXISTS (SELECT FROM pg_index i WHERE i.indrelid = o.oid
                AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL))
            OR EXISTS (SELECT FROM pg_statistic_ext s WHERE s.stxrelid = o.oid)
            THEN 'has an index of an expression, or extended statistics' END,
        CASE
        WHEN EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = o.oid AND NOT t.tgisinternal)
            THEN 'has a trigger'
        WHEN EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = o.oid) THEN 'has a rule'
        WHEN EXISTS (SELECT FROM pg_attrdef d WHERE d.adrelid = o.oid
            AND pg_get_expr(d.adbin, d.adrelid) NOT IN ('false', '0', 'now()'))
            THEN 'has a default' END
    FROM ours o
)
SELECT f.what, r.rolname, current_user, r.rolsuper OR r.rolname = current_user, f.reading, f.writing
FROM found f JOIN pg_roles r ON r.oid = f.owner
ORDER BY f.what";

impl State {
    /// An error unless the state can be used so. A state that is not there can be.
    pub(super) fn check_trust(&mut self, what: Use) -> Result<()> {
        let rows = self
            .connection
            .query(OBJECTS)
            .map_err(ReplicaError::Target)?;
        for row in rows {
            let words = wrong(&row, what).map_err(ReplicaError::Target)?;
            if let Some(words) = words {
                return Err(ReplicaError::State(words));
            }
        }
        Ok(())
    }
}

/// Why an object cannot be trusted.
fn wrong(row: &[Option<String>], what: Use) -> Result<Option<String>, ClientError> {
    let (object, owner): (String, String) = (field(row, 0)?, field(row, 1)?);
    let (role, is_trusted): (String, bool) = (field(row, 2)?, field(row, 3)?);
    let (reading, writing): (Option<String>, Option<String>) = (field(row, 4)?, field(row, 5)?);
    if what == Use::Write && !is_trusted {
        return Ok(Some(format!(
            "the target's {object} belongs to role \"{owner}\", which is neither a superuser nor this \
             session's role \"{role}\": what \"{owner}\" has put there could run with the rights of \
             \"{role}\". If it is the state of a replica, connect as \"{owner}\"; if it is not, have it \
             dropped (DROP SCHEMA lockstep CASCADE)"
        )));
    }
    let fault = match what {
        Use::Read => reading,
        Use::Write => reading.or(writing),
    };
    Ok(fault.map(|fault| {
        format!(
            "the target's {object}, of role \"{owner}\", {fault}, which lockstep did not make: it could \
             run code of others with the rights of \"{role}\". Take it away; or drop the schema with all \
             that lockstep knows (DROP SCHEMA lockstep CASCADE)"
        )
    }))
}
