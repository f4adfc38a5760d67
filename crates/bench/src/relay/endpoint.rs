//! Where consumers connect.

use std::fmt;

use lockstep_client::{ClientError, Connection, Conninfo, Purpose};
use lockstep_lab::server::{DATABASE, SUPERUSER};

use super::ConsumerError;
use crate::{BenchError, Result};

/// The `application_name` of consumers.
const APPLICATION: &str = "lockstep lab";

/// The primary or a relay, on a port of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Its name in messages.
    pub name: &'static str,
    /// Port on 127.0.0.1.
    pub port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} on port {}", self.name, self.port)
    }
}

impl Endpoint {
    /// A conninfo for libpq, without quotation marks.
    pub fn conninfo(&self) -> String {
        format!(
            "host=127.0.0.1 port={} user={SUPERUSER} dbname={DATABASE}",
            self.port
        )
    }

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

    /// Drops a slot.
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
