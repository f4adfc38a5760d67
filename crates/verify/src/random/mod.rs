//! Random SQL workloads that a seed determines.
//!
//! A workload is set-up statements, one sequence of statements for each session, and
//! closing statements. The same seed and size give the same text, byte by byte: the
//! generator knows nothing of the server. How the sessions interleave is left to the
//! server, so statements may fail (a lock not granted in time, an object another session
//! dropped); [`outcome`] says which failures are part of the game.
//!
//! Everything is kept in the schema [`SCHEMA`] of the session's database, and in
//! databases, tablespaces, prepared transactions and origins whose names begin with
//! [`PREFIX`]. Nothing else is changed, but for what is done to the whole server:
//! checkpoints, WAL switches, and vacuum of catalogs.

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

pub use feature::Feature;
pub use outcome::{Summary, Unexpected};
pub use runner::{RandomError, run, run_on, settings};
pub use script::{Action, Statement};

use generator::Session;

/// The schema that a workload replaces and works in.
pub const SCHEMA: &str = "lockstep_random";

/// How the names of everything outside the schema begin, and the names of databases that
/// [`run_on`] takes without being told that any will do.
pub const PREFIX: &str = "lockstep_random";

/// Most sessions of a workload.
pub const MOST_SESSIONS: u32 = 64;

/// Most statements of a session.
pub const MOST_STATEMENTS: u32 = 1_000_000;

/// How large a workload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Sessions at the same time.
    pub sessions: u32,
    /// Statements of each session; its last group of statements may exceed it.
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
    /// The workload of a seed.
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

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Statements of each session.
    pub fn sessions(&self) -> &[Vec<Statement>] {
        &self.sessions
    }

    /// What has to run before the sessions, as psql's input.
    pub fn setup(&self) -> &str {
        &self.setup
    }

    /// What has to run after the sessions, as psql's input.
    pub fn closing(&self) -> &'static str {
        setup::CLOSING
    }

    /// All of it as text that psql takes: to run it as it was run, give each session's
    /// part to a psql of its own.
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
