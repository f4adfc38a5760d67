//! Whether sessions of others begin read-only on the target.
//!
//! That is a setting of the target's database, not of the state: a session may turn it off for itself, as
//! those of a replica do, and one that is open stays as it is. A promotion takes the setting back.

use lockstep_client::field;
use lockstep_client::quote::identifier;

use super::ReplicaState;
use crate::error::{ReplicaError, Result};

impl ReplicaState {
    /// Lets sessions in the target's database begin read-only from now on, or no more. False if there is no
    /// such replica.
    pub fn set_read_only(&mut self, name: &str, is_read_only: bool) -> Result<bool> {
        let Some(replica) = self.replica(name)? else {
            return Ok(false);
        };
        replica.check_not_promoted()?;
        let mut set = || {
            let row = self.connection.query_one("SELECT current_database()")?;
            let database = identifier("database", &field::<String>(&row, 0)?)?;
            let how = match is_read_only {
                true => "SET default_transaction_read_only = on",
                false => "RESET default_transaction_read_only",
            };
            self.connection
                .execute(&format!("ALTER DATABASE {database} {how}"))
        };
        set().map_err(ReplicaError::Target)?;
        Ok(true)
    }
}
