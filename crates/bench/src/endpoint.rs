//! Where consumers of logical replication connect.

use std::fmt;

use lockstep_lab::server::{DATABASE, SUPERUSER};

/// The primary or a relay, on a port of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The server's name in messages.
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
}
