//! Which servers, in which role, and what is wrong with them.

use std::fmt;

use lockstep_client::Conninfo;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Takes the writes.
    Primary,
    /// Replays the primary's WAL, directly or through another standby.
    Standby,
    /// Decodes the primary's WAL once for many subscribers.
    Relay,
    /// Has subscriptions to the primary, directly or through a relay, or is a replica's target.
    Subscriber,
}

impl Role {
    /// All, in the order in which nodes are shown.
    pub const ALL: [Self; 4] = [Self::Primary, Self::Standby, Self::Relay, Self::Subscriber];
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

/// Longest name of a node, in characters, as for PostgreSQL's own names.
pub const MOST_NAME: usize = 63;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The node's name in all output; unique.
    pub name: String,
    pub role: Role,
    pub conninfo: Conninfo,
}

impl Node {
    /// Host and port.
    pub fn place(&self) -> String {
        let part = |option| self.conninfo.effective(option).unwrap_or_default();
        let host = match self.conninfo.get("hostaddr") {
            Some(address) if self.conninfo.get("host").is_none() => address.to_owned(),
            _ => part("host"),
        };
        format!("{host}:{}", part("port"))
    }

    /// The node as [`crate::window::NodeWindow::target`] has it.
    pub fn target(&self) -> String {
        let words = ["host", "port", "dbname"].map(|option| {
            let value = self.conninfo.effective(option);
            value.map_or_else(String::new, |value| format!("{option}={value}"))
        });
        let words: Vec<String> = words.into_iter().filter(|it| !it.is_empty()).collect();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "=/._:,-@".contains(c);
        match words.iter().all(|word| word.chars().all(is_plain)) {
            true => words.join(" "),
            false => "...".to_owned(),
        }
    }

    /// Host, port and database, without anything secret: `host:port/database`.
    pub fn address(&self) -> String {
        let part = |option| self.conninfo.effective(option).unwrap_or_default();
        let (host, port, database) = (part("host"), part("port"), part("dbname"));
        match database.is_empty() {
            true => format!("{host}:{port}"),
            false => format!("{host}:{port}/{database}"),
        }
    }
}

/// What is wrong with one node. The other nodes are examined all the same.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "trouble", rename_all = "snake_case")]
pub enum Trouble {
    /// There was no connection at the end of the window.
    Unreachable {
        /// The words of libpq.
        reason: String,
    },
    /// The connection was lost, and there is a new one.
    Interrupted {
        /// Why it was lost most recently.
        reason: String,
        /// The server was started anew meanwhile.
        restarted: bool,
    },
    /// The node is something else than it was said to be.
    WrongRole {
        /// What it is, and what to do.
        reason: String,
    },
    /// A standby of another cluster.
    OtherSystem {
        /// System identifier of the standby.
        found: String,
        /// System identifier of the primary.
        expected: String,
    },
    Version {
        major: u32,
    },
    /// The node's clock differs from the primary's.
    ClockSkew {
        /// Milliseconds that its clock is ahead; negative if it is behind.
        ahead_ms: f64,
        /// Largest error of `ahead_ms`, in milliseconds.
        uncertain_ms: f64,
    },
    /// A part of the node's state that cannot be read.
    Gap {
        /// The part.
        what: String,
        /// Why, and what to do.
        reason: String,
        /// Without it nobody can know whether the node's replicas, or the node itself, keep up.
        decides: bool,
    },
}

impl Trouble {
    /// What cannot be seen, so that no lag does not mean health.
    pub fn hides(&self) -> Option<&str> {
        match self {
            Self::Gap { what, decides, .. } => decides.then_some(what),
            _ => None,
        }
    }

    /// The trouble is such that nothing can be said about the node.
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
            Self::Interrupted { reason, restarted } => {
                let anew = ["", "; the server was started anew"];
                let anew = anew.get(usize::from(*restarted)).unwrap_or(&"");
                write!(f, "the connection was lost: {reason}{anew}")
            }
            Self::WrongRole { reason } => f.write_str(reason),
            Self::OtherSystem { found, expected } => write!(
                f,
                "it belongs to another cluster: system identifier {found}, the primary's is {expected}"
            ),
            Self::Version { major } => {
                write!(f, "PostgreSQL {major} is not supported; 15 to 19 are")
            }
            Self::ClockSkew {
                ahead_ms,
                uncertain_ms,
            } => write!(
                f,
                "its clock is {:.0} ms {} the primary's (± {uncertain_ms:.0} ms); times below \
                 do not depend on it",
                ahead_ms.abs(),
                if *ahead_ms < 0.0 {
                    "behind"
                } else {
                    "ahead of"
                }
            ),
            Self::Gap { what, reason, .. } => write!(f, "cannot see {what}: {reason}"),
        }
    }
}
