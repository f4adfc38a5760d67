//! Crashes of a whole server or of one of its processes, and loss of power, at a random or a
//! chosen moment; and the restart after each.
//!
//! The caller checks what a crash has damaged: let the standby catch up, then compare it with
//! one that never crashed ([`crate::oracle`]).

mod disk;
mod moment;
mod plan;
mod victim;

pub use crate::error::CrashError;
pub use crate::process::{Process, process_of};
pub use disk::{PowerDisk, standby_on_disk};
pub use moment::{Moment, QUIET};
pub use plan::Plan;
pub use victim::Victim;

use crate::Result;
use lockstep_lab::server::Server;
use lockstep_wire::Lsn;

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
