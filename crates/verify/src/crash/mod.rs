//! Crashes: of a whole server, of one of its processes, or of the power, at a random or a
//! named moment, and the way back.
//!
//! What a crash may cost is up to the caller to judge: let the standby catch up and compare
//! it with one that never crashed ([`crate::oracle`]).

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

/// Why a crash could not be brought about.
#[derive(Debug, thiserror::Error)]
pub enum CrashError {
    /// Power loss cannot be emulated here.
    #[error("power loss cannot be emulated: {0}")]
    Unavailable(String),
    /// The server has no such process now.
    #[error("server \"{server}\" has no {process}")]
    NoProcess {
        /// The server's name.
        server: String,
        /// The process that was to be killed.
        process: Process,
    },
    /// A power cut needs the disk that the server's data is on.
    #[error("server \"{0}\" is not on a disk that can lose power")]
    NoDisk(String),
    /// A disk could not be made, cut off or mounted again.
    #[error("cannot {what} {path}: {source}")]
    Disk {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's own words.
        source: io::Error,
    },
}

/// One crash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crash {
    /// What ends.
    pub victim: Victim,
    /// When.
    pub moment: Moment,
}

impl Crash {
    /// Waits for the moment, strikes, and brings the server back to where it accepts
    /// connections. Returns where replay was shortly before, if that could be seen.
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
