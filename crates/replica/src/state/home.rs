//! The database that a state belongs to. A copy of the database (`CREATE DATABASE ... TEMPLATE`, a dump)
//! has a copy of the state, which names the slot and the origins of the original.
//!
//! The state knows its database by OID, which a renaming leaves as it is, and its server by the system
//! identifier. A physical copy of the whole server has both.

use lockstep_client::{ClientError, Connection, field};

use super::ReplicaState;
use crate::error::{ReplicaError, Result};

/// The system identifier of a server that does not tell it to this role.
fn known(system_id: String) -> Option<String> {
    (!system_id.starts_with("unknown")).then_some(system_id)
}

impl ReplicaState {
    /// Enters the version, and this database as the state's.
    pub(super) fn settle(&mut self, version: usize) -> Result<(), ClientError> {
        let system = known(system_id(&mut self.connection)?);
        let oid = self.connection.database_oid()?;
        let sql = "UPDATE lockstep.state_version SET version = $1, system_id = $2, \
                       database_oid = $3";
        let set = self.connection.query_with(sql, &[&version, &system, &oid]);
        set.map(drop)
    }

    /// An error if the state is that of another database.
    pub(super) fn check_home(&mut self) -> Result<()> {
        match self.stranger().map_err(ReplicaError::Target)? {
            None => Ok(()),
            Some(words) => Err(ReplicaError::State(words)),
        }
    }

    /// What is wrong with the state's database, in words.
    fn stranger(&mut self) -> Result<Option<String>, ClientError> {
        let sql = format!(
            "SELECT v.system_id, v.database_oid, current_database(), d.datname, here.oid, {SYSTEM_ID} \
             FROM lockstep.state_version v LEFT JOIN pg_database d ON d.oid = v.database_oid \
                 JOIN pg_database here ON here.datname = current_database()"
        );
        let row = self.connection.query_one(&sql)?;
        let (system, oid): (Option<String>, Option<u32>) = (field(&row, 0)?, field(&row, 1)?);
        let here: String = field(&row, 2)?;
        let now = known(field(&row, 5)?);
        let is_elsewhere = matches!((&system, &now), (Some(system), Some(now)) if system != now);
        let whose = match (field::<Option<String>>(&row, 3)?, oid) {
            _ if is_elsewhere => format!(
                "a database of another server (system identifier {})",
                system.unwrap_or_default()
            ),
            _ if oid.is_none() || oid == Some(field(&row, 4)?) => return Ok(None),
            (Some(name), _) => format!("database \"{name}\""),
            (None, _) => format!(
                "a database of this server that is gone (OID {})",
                oid.unwrap_or_default()
            ),
        };
        Ok(Some(format!(
            "database \"{here}\" has lockstep's state of {whose}: it is a copy of that database, and slot \
             and origins belong to the original, so nothing is done here. To forget the copied state, run \
             DROP SCHEMA lockstep CASCADE in \"{here}\"; for a replica of its own create one in an empty \
             database"
        )))
    }
}

/// The cluster's identifier, in SQL. A server that does not tell it to this role has one of its own.
const SYSTEM_ID: &str = "CASE WHEN has_function_privilege('pg_control_system()', 'EXECUTE') \
    THEN (SELECT system_identifier::text FROM pg_control_system()) \
    ELSE 'unknown ' || pg_backend_pid() END";

/// The cluster's identifier.
pub fn system_id(session: &mut Connection) -> Result<String, ClientError> {
    field(&session.query_one(&format!("SELECT {SYSTEM_ID}"))?, 0)
}
