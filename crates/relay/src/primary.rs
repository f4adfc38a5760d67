//! Where the primary is: found through libpq, which knows the conninfo's several hosts,
//! and remembered for sessions that are passed through.

use std::sync::{Mutex, PoisonError};

use lockstep_upstream::{Conninfo, Purpose, Server, Upstream, UpstreamError};

use crate::ingest::feeder::APPLICATION_NAME;

/// The primary.
#[derive(Debug)]
pub struct Primary {
    conninfo: Conninfo,
    /// Used where a connection names no database.
    database: String,
    server: Mutex<Option<Server>>,
}

impl Primary {
    /// The primary of a conninfo.
    pub fn new(conninfo: Conninfo, database: String) -> Self {
        Self {
            conninfo,
            database,
            server: Mutex::new(None),
        }
    }

    /// A new connection to a database, for SQL and replication commands.
    pub fn connect(&self, database: &str) -> Result<Upstream, UpstreamError> {
        let conninfo = self.conninfo.clone().with_database(database)?;
        let upstream = Upstream::connect(&conninfo, Purpose::Replication, APPLICATION_NAME)
            .inspect_err(|_| self.forget())?;
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(upstream.server()?);
        Ok(upstream)
    }

    /// Where it is: as last connected to, else found by connecting.
    pub fn server(&self) -> Result<Server, UpstreamError> {
        let known = self.server.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match known {
            Some(server) => Ok(server),
            None => self.connect(&self.database)?.server(),
        }
    }

    /// Its host and port, as last connected to.
    pub fn name(&self) -> String {
        let known = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .as_ref()
            .map_or_else(String::new, |server| format!("{}:{}", server.host, server.port))
    }

    /// It was not found where it was: look again next time.
    pub fn forget(&self) {
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
