//! Which servers, in which role, and what is wrong with them.

use std::fmt;

use lockstep_client::Conninfo;
use serde::Serialize;

/// What a server is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Takes the writes.
    Primary,
    /// Replays the primary's WAL, directly or through another standby.
    Standby,
    /// Decodes the primary's WAL once for many subscribers.
    Relay,
    /// Has subscriptions to the primary, directly or through a relay.
    Subscriber,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Primary => "primary",
            Self::Standby => "standby",
            Self::Relay => "relay",
            Self::Subscriber => "subscriber",
        })
    }
}

/// A server to ask.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its name in everything that is said about it; unique.
    pub name: String,
    /// What it is to be.
    pub role: Role,
    /// How to connect.
    pub conninfo: Conninfo,
}

impl Node {
    /// Where it is, without anything secret: `host:port/database`.
    pub fn address(&self) -> String {
        let part = |option| self.conninfo.effective(option).unwrap_or_default();
        let (host, port, database) = (part("host"), part("port"), part("dbname"));
        match database.is_empty() {
            true => format!("{host}:{port}"),
            false => format!("{host}:{port}/{database}"),
        }
    }
}

/// What is wrong with a node itself. The others are looked at all the same.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "trouble", rename_all = "snake_case")]
pub enum Trouble {
    /// No connection at the end of the window.
    Unreachable {
        /// libpq's words.
        reason: String,
    },
    /// A connection was lost, and is there again.
    Interrupted {
        /// The last reason.
        reason: String,
    },
    /// It is not what it was said to be.
    WrongRole {
        /// What it is, and what to do.
        reason: String,
    },
    /// A standby of another cluster, by its system identifier.
    OtherSystem {
        /// Its system identifier.
        found: String,
        /// The primary's.
        expected: String,
    },
    /// A major that is not supported.
    Version {
        /// The major.
        major: u32,
    },
    /// Its clock differs from the primary's.
    ClockSkew {
        /// Milliseconds that its clock is ahead; negative if behind.
        ahead_ms: f64,
        /// How far this may be off, in milliseconds.
        uncertain_ms: f64,
    },
    /// Something that cannot be seen.
    Gap {
        /// What.
        what: String,
        /// Why, and what to do.
        reason: String,
    },
}

impl Trouble {
    /// Nothing can be said about the node.
    pub fn is_blind(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::WrongRole { .. }
                | Self::OtherSystem { .. }
                | Self::Version { .. }
        )
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { reason } => write!(f, "unreachable: {reason}"),
            Self::Interrupted { reason } => write!(f, "the connection was lost: {reason}"),
            Self::WrongRole { reason } => f.write_str(reason),
            Self::OtherSystem { found, expected } => write!(
                f,
                "it belongs to another cluster: system identifier {found}, the primary's is {expected}"
            ),
            Self::Version { major } => {
                write!(f, "PostgreSQL {major} is not supported; 15 to 18 are")
            }
            Self::ClockSkew {
                ahead_ms,
                uncertain_ms,
            } => write!(
                f,
                "its clock is {:.0} ms {} the primary's (± {uncertain_ms:.0} ms); times below do not depend on it",
                ahead_ms.abs(),
                if *ahead_ms < 0.0 {
                    "behind"
                } else {
                    "ahead of"
                }
            ),
            Self::Gap { what, reason } => write!(f, "cannot see {what}: {reason}"),
        }
    }
}
