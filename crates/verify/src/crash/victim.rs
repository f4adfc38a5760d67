//! What a crash takes down, and how the server comes back from it.

use std::fmt;

use lockstep_lab::server::{PATIENCE, Server};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Result;
use crate::crash::{CrashError, PowerDisk, Process, process_of};

/// What the postmaster logs once it has ended everything after a child's crash, and
/// begins again.
const AGAIN: &str = "reinitializing";

/// What ends in a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// All processes at once.
    Server,
    /// The postmaster; its children notice and end by themselves.
    Postmaster,
    /// One process; the postmaster ends the others and begins again, or ends.
    Process(Process),
    /// The power of the machine: what was not synced to disk is lost.
    Power,
}

impl fmt::Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server => f.write_str("whole server"),
            Self::Postmaster => f.write_str("postmaster"),
            Self::Process(process) => process.fmt(f),
            Self::Power => f.write_str("power"),
        }
    }
}

impl Victim {
    /// Strikes, then brings the server back to where it accepts connections.
    pub fn strike(self, server: &mut Server, disk: Option<&PowerDisk>) -> Result<()> {
        match self {
            Self::Server => server.kill()?,
            Self::Postmaster => server.kill_postmaster()?,
            Self::Power => {
                let disk = disk.ok_or_else(|| CrashError::NoDisk(server.id().name.clone()))?;
                disk.cut()?;
                server.kill()?;
                disk.mount_again()?;
            }
            Self::Process(process) => return kill_process(server, process),
        }
        Ok(server.start()?)
    }
}

fn kill_process(server: &mut Server, process: Process) -> Result<()> {
    let pid = process_of(server, process).ok_or_else(|| CrashError::NoProcess {
        server: server.id().name.clone(),
        process,
    })?;
    let seen = server.log_length();
    if kill(Pid::from_raw(pid), Signal::SIGKILL).is_err() {
        // It has ended by itself in between.
        return Err(CrashError::NoProcess {
            server: server.id().name.clone(),
            process,
        }
        .into());
    }
    // Connections of before may be accepted until the postmaster has noticed.
    server.await_event(
        &format!("notice the end of its {process}"),
        PATIENCE,
        |server| {
            let began_again = server
                .log_since(seen)
                .is_some_and(|log| log.contains(AGAIN));
            Ok(server.has_ended() || began_again)
        },
    )?;
    if server.has_ended() {
        // A startup process that is killed takes the server with it.
        return Ok(server.start()?);
    }
    Ok(server.await_connection(seen)?)
}
