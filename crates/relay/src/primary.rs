//! Where the primary is: found through libpq, which knows the conninfo's several hosts,
//! and remembered for sessions that are passed through.

use std::sync::{Mutex, PoisonError};

use lockstep_client::{ClientError, Connection, Conninfo, Purpose, Server};

use crate::synchronous::APPLICATION_NAME;

/// What subscribers set, so that values do not depend on the server's settings. A stream is
/// shared only with sessions whose reported settings are the same.
const AS_SUBSCRIBERS: &str = "-c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=3";

#[derive(Debug)]
pub struct Primary {
    conninfo: Conninfo,
    /// Used where a connection names no database.
    database: String,
    /// `logical_decoding_work_mem` of streams, at least; kB, 0 for the server's own.
    work_mem_kb: u64,
    server: Mutex<Option<Server>>,
}

impl Primary {
    /// The primary of a conninfo. `work_mem` is the least `logical_decoding_work_mem` of
    /// streams, in bytes.
    pub fn new(conninfo: Conninfo, database: String, work_mem: u64) -> Self {
        Self {
            conninfo,
            database,
            work_mem_kb: work_mem / 1024,
            server: Mutex::new(None),
        }
    }

    /// A new connection to a database, for SQL and replication commands.
    pub fn connect(&self, database: &str) -> Result<Connection, ClientError> {
        let conninfo = self.conninfo.clone().with_database(database)?;
        self.open(conninfo, APPLICATION_NAME)
    }

    /// A new connection for a stream: values come as a subscriber's own connection would
    /// get them. The primary knows the stream by its `application_name`.
    pub fn connect_to_stream(
        &self,
        database: &str,
        encoding: &str,
        application_name: &str,
    ) -> Result<Connection, ClientError> {
        let conninfo = self.conninfo.clone().with_database(database)?;
        let options = match conninfo.get("options") {
            Some(given) => format!("{given} {AS_SUBSCRIBERS}"),
            None => AS_SUBSCRIBERS.to_owned(),
        };
        let conninfo = conninfo.with("options", &options)?;
        let conninfo = conninfo.with("client_encoding", encoding)?;
        let mut upstream = self.open(conninfo, application_name)?;
        let kb = self.work_mem_kb;
        if kb > 0 {
            // A server that is given more keeps it.
            upstream.query(&format!(
                "SELECT pg_catalog.set_config(name, '{kb}', false) FROM pg_catalog.pg_settings \
                 WHERE name = 'logical_decoding_work_mem' AND setting::bigint < {kb}"
            ))?;
        }
        Ok(upstream)
    }

    fn open(&self, conninfo: Conninfo, application_name: &str) -> Result<Connection, ClientError> {
        let upstream = Connection::connect(&conninfo, Purpose::Replication, application_name)
            .inspect_err(|_| self.forget())?;
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(upstream.server()?);
        Ok(upstream)
    }

    /// A new connection where no database matters. It finds out where the primary is.
    pub fn connect_anywhere(&self) -> Result<Connection, ClientError> {
        self.connect(&self.database)
    }

    /// Where the primary is, as last connected to; None while that is not known.
    pub fn known(&self) -> Option<Server> {
        let known = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        known.clone()
    }

    /// Its host and port, as last connected to.
    pub fn name(&self) -> String {
        let known = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().map_or_else(String::new, |server| {
            format!("{}:{}", server.host, server.port)
        })
    }

    /// It was not found where it was: look again next time.
    pub fn forget(&self) {
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
