//! Connections to the primary or a relay.

use lockstep_client::{ClientError, Connection, Conninfo, Purpose};

use super::{ConsumerError, Endpoint};
use crate::{BenchError, Result};

/// The `application_name` of consumers.
const APPLICATION: &str = "lockstep lab";

impl Endpoint {
    /// Opens a connection for replication commands.
    pub fn connect(&self) -> Result<Connection> {
        let connected = Conninfo::parse(&self.conninfo())
            .and_then(|conninfo| Connection::connect(&conninfo, Purpose::Replication, APPLICATION));
        connected.map_err(|source| self.failed(source))
    }

    /// Creates a slot of plugin pgoutput.
    pub fn create_slot(&self, slot: &str) -> Result<()> {
        self.connect()?
            .create_slot(slot, "pgoutput", false, false)
            .map(drop)
            .map_err(|source| self.failed(source))
    }

    pub fn drop_slot(&self, slot: &str) -> Result<()> {
        self.connect()?
            .drop_slot(slot)
            .map_err(|source| self.failed(source))
    }

    fn failed(&self, source: ClientError) -> BenchError {
        ConsumerError::Upstream {
            whom: self.clone(),
            source,
        }
        .into()
    }
}
