//! Whose the state is. Anybody with rights in the target's database could have made a schema `lockstep`
//! beforehand, and code that they have put into it would run as whoever reads or writes there.
//!
//! Before the state is written, and before a superuser reads it, the schema and its tables must belong to the
//! session's role or to a superuser: others could put code into them at any time, also right after we have
//! looked. So a role without superuser reads what others own with the rights that it dares to lend them.
//! Whatever is done with the state, its tables must be such as lockstep makes them. What reading can run is
//! looked for always (a view, expressions of indexes and constraints, which the planner computes, and types
//! with casts of their own), what only writing can run only before that.

use lockstep_client::plain::NOT_PLAIN;
use lockstep_client::{ClientError, field};

use super::ReplicaState;
use crate::error::{ReplicaError, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    Read,
    Write,
}

/// The schema and the tables: what each is, its owner, this session's role, whether the owner can be
/// trusted, what is wrong with it for a reader and for a writer, and whether the role is a superuser.
fn objects() -> String {
    format!(
        "
WITH found AS (
    SELECT 'schema lockstep' AS what, nspowner AS owner, NULL AS reading, NULL AS writing
    FROM pg_namespace WHERE nspname = 'lockstep'
    UNION ALL
    SELECT 'table lockstep.' || c.relname, c.relowner, {NOT_PLAIN}, CASE
        WHEN EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal)
            THEN 'has a trigger'
        WHEN EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid) THEN 'has a rule'
        WHEN EXISTS (SELECT FROM pg_attrdef d WHERE d.adrelid = c.oid
            AND pg_get_expr(d.adbin, d.adrelid) NOT IN ('false', '0', 'now()'))
            THEN 'has a default' END
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'lockstep'
        AND c.relname IN ('state_version', 'replica', 'table_copy', 'hold', 'subset', 'apply_position',
            'publication', 'unmade', 'cycle', 'attached', 'ddl')
)
SELECT f.what, r.rolname, current_user, r.rolsuper OR r.rolname = current_user, f.reading, f.writing,
    (SELECT me.rolsuper FROM pg_roles me WHERE me.rolname = current_user)
FROM found f JOIN pg_roles r ON r.oid = f.owner
ORDER BY f.what"
    )
}

impl ReplicaState {
    /// Why what the state says is not to be believed; None if it is this role's or a superuser's.
    pub fn distrust(&mut self) -> Result<Option<String>> {
        let rows = self.connection.query(&objects());
        for row in rows.map_err(ReplicaError::Target)? {
            let of = || -> Result<_, ClientError> {
                Ok((
                    field::<String>(&row, 0)?,
                    field::<String>(&row, 1)?,
                    field::<bool>(&row, 3)?,
                ))
            };
            let (object, owner, is_trusted) = of().map_err(ReplicaError::Target)?;
            if !is_trusted {
                return Ok(Some(format!("{object} belongs to role \"{owner}\"")));
            }
        }
        Ok(None)
    }

    /// An error unless the state can be used so. A state that is not there can be.
    pub(super) fn check_trust(&mut self, what: Use) -> Result<()> {
        let rows = self
            .connection
            .query(&objects())
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
    let is_superuser: bool = field(row, 6)?;
    if (what == Use::Write || is_superuser) && !is_trusted {
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
