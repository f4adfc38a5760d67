//! Crashes of a whole server or of one of its processes, and loss of power, at a random or a
//! chosen moment; and the restart after each.
//!
//! The caller checks what a crash has damaged: let the standby catch up, then compare it with
//! one that never crashed ([`crate::oracle`]).

mod disk;
mod moment;
mod plan;
mod process;
mod victim;

use std::io;
use std::path::PathBuf;

pub use disk::{PowerDisk, standby_on_disk};
pub use moment::{Moment, QUIET};
pub use plan::Plan;
pub use process::{Process, process_of};
pub use victim::Victim;

use crate::Result;
use lockstep_lab::server::Server;
use lockstep_wire::Lsn;

/// Why a crash could not be caused.
#[derive(Debug, thiserror::Error)]
pub enum CrashError {
    /// Power loss cannot be emulated on this machine.
    #[error("power loss cannot be emulated: {0}")]
    Unavailable(String),
    /// The server has no such process now.
    #[error("server \"{server}\" has no {process}")]
    NoProcess {
        server: String,
        /// The process that was to be killed.
        process: Process,
    },
    /// A power cut was asked for, but the server's data is not on a [`PowerDisk`].
    #[error("server \"{0}\" is not on a disk that can lose power")]
    NoDisk(String),
    /// A disk could not be created, cut off or mounted again.
    #[error("cannot {what} {path}: {source}")]
    Disk {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crash {
    /// What is killed.
    pub victim: Victim,
    pub moment: Moment,
}

impl Crash {
    /// Waits for the moment, kills the victim, and restarts the server until it accepts
    /// connections. Returns the replay position shortly before the crash, if it could be read.
    ///
    /// `primary` is the standby's primary, which some moments need.
    pub fn run(
        &self,
        primary: &Server,
        standby: &mut Server,
        disk: Option<&PowerDisk>,
    ) -> Result<Option<Lsn>> {
        self.moment.wait(primary, standby)?;
        let replayed = standby.replay_lsn().ok();
        self.victim.strike(standby, disk)?;
        Ok(replayed)
    }
}
