//! What a crash kills, and the restart after it.

use std::fmt;
use std::thread;
use std::time::Duration;

use lockstep_lab::server::{PATIENCE, Server};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Result;
use crate::crash::{CrashError, PowerDisk, Process, process_of};

/// What the postmaster logs once it has ended all processes after a child's crash and starts
/// them again.
const AGAIN: &str = "reinitializing";

/// What a server logs before it replays its first record, and once it takes sessions.
const RECOVERING: [&str; 2] = ["redo starts at", "ready to accept"];

/// How long each recovery may go on before [`Victim::Recovery`] kills the server in it.
const KILLED_AFTER: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_millis(30),
    Duration::from_millis(150),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// All processes at once.
    Server,
    /// All processes at once, and again in the recovery from that, several times.
    Recovery,
    /// The postmaster alone; its children notice that and end by themselves.
    Postmaster,
    /// One process; the postmaster ends the others and starts them again, or ends too.
    Process(Process),
    /// The machine's power: data that was not synced to disk is lost.
    Power,
}

impl fmt::Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server => f.write_str("whole server"),
            Self::Recovery => f.write_str("whole server and its recoveries"),
            Self::Postmaster => f.write_str("postmaster"),
            Self::Process(process) => process.fmt(f),
            Self::Power => f.write_str("power"),
        }
    }
}

impl Victim {
    /// Kills the victim, then restarts the server until it accepts connections.
    pub fn strike(self, server: &mut Server, disk: Option<&PowerDisk>) -> Result<()> {
        match self {
            Self::Server => server.kill()?,
            Self::Recovery => kill_recoveries(server)?,
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

fn kill_recoveries(server: &mut Server) -> Result<()> {
    server.kill()?;
    for time in KILLED_AFTER {
        let seen = server.launch()?;
        server.await_event("recover", PATIENCE, |server| {
            server.check_alive()?;
            let log = server.log_since(seen).unwrap_or_default();
            Ok(RECOVERING.iter().any(|words| log.contains(words)))
        })?;
        thread::sleep(time);
        server.kill()?;
    }
    Ok(())
}

fn kill_process(server: &mut Server, process: Process) -> Result<()> {
    let pid = process_of(server, process).ok_or_else(|| CrashError::NoProcess {
        server: server.id().name.clone(),
        process,
    })?;
    let seen = server.log_length();
    if kill(Pid::from_raw(pid), Signal::SIGKILL).is_err() {
        // The process has ended by itself meanwhile.
        return Err(CrashError::NoProcess {
            server: server.id().name.clone(),
            process,
        }
        .into());
    }
    // Wait for the log line: until the postmaster has noticed the crash, the server still
    // accepts connections.
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
        // When the startup process is killed, the whole server ends.
        return Ok(server.start()?);
    }
    Ok(server.await_connection(seen)?)
}
