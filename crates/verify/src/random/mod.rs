//! Random SQL workloads, each determined by a seed.
//!
//! A workload consists of set-up statements, one sequence of statements for each session, and
//! closing statements. The same seed and size give the same text, byte by byte: the generator
//! knows nothing of the server. The server decides how the sessions interleave, so statements
//! may fail (a lock is not granted in time, another session has dropped an object). [`outcome`]
//! lists the failures that are expected.
//!
//! A workload changes objects in the schema [`SCHEMA`] of the session's database, and databases,
//! tablespaces, prepared transactions and origins whose names begin with [`PREFIX`]. Beyond
//! these it only does what concerns the whole server: checkpoints, WAL switches, and vacuum of
//! catalogs.

mod feature;
mod generator;
mod indexes;
mod outcome;
mod rows;
mod runner;
mod script;
mod server_wide;
mod setup;
mod tables;
mod transactions;

#[cfg(test)]
mod tests;

pub use crate::error::RandomError;
pub use crate::names::{PREFIX, SCHEMA};
pub use feature::Feature;
pub use outcome::{Summary, Unexpected};
pub use runner::{run, run_on, settings};
pub use script::{Action, Statement};

use generator::Session;

pub const MOST_SESSIONS: u32 = 64;

pub const MOST_STATEMENTS: u32 = 1_000_000;

/// How large a workload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Number of sessions, which all run at the same time.
    pub sessions: u32,
    /// Statements of each session. The last episode may exceed this number.
    pub statements: u32,
}

impl Default for Size {
    fn default() -> Self {
        Self {
            sessions: 4,
            statements: 150,
        }
    }
}

/// A workload, generated in full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RandomWorkload {
    seed: u64,
    setup: String,
    sessions: Vec<Vec<Statement>>,
}

impl RandomWorkload {
    /// Generates the workload of a seed.
    pub fn new(seed: u64, size: Size) -> Self {
        let sessions = (0..size.sessions.min(MOST_SESSIONS))
            .map(|number| Session::new(seed, number).generate(size.statements.min(MOST_STATEMENTS)))
            .collect();
        Self {
            seed,
            setup: setup::setup(seed),
            sessions,
        }
    }

    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Statements of each session.
    pub fn sessions(&self) -> &[Vec<Statement>] {
        &self.sessions
    }

    /// The set-up, which runs before the sessions, as input of psql.
    pub fn setup(&self) -> &str {
        &self.setup
    }

    /// The closing statements, which run after the sessions, as input of psql.
    pub fn closing(&self) -> &'static str {
        setup::CLOSING
    }

    /// The whole workload as input of psql. To repeat a run, give each session's part to a psql
    /// of its own.
    pub fn text(&self) -> String {
        let mut text = format!("-- random workload, seed {}\n-- set-up\n", self.seed);
        text.push_str(&self.setup);
        for (number, statements) in self.sessions.iter().enumerate() {
            text.push_str(&format!("-- session {number}\n"));
            text.push_str(&script::session(statements, SCHEMA));
        }
        text.push_str("-- closing\n");
        text.push_str(setup::CLOSING);
        text
    }
}
