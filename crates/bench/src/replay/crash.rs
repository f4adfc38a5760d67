//! Crash recovery: a primary is killed with much WAL since its last checkpoint, and copies of its
//! data folder are started.
//!
//! Every copy is on disk and in the kernel's cache before its start, so that the disk's speed is
//! no part of the difference between variants. fsync is on: the server syncs its data directory
//! before redo, and writes and syncs all changed pages in the checkpoint after it.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{Server, Settings};
use lockstep_lab::usage::Usage;
use lockstep_lab::{LabError, Role};
use lockstep_wire::Lsn;

use crate::replay::cache::settle_files;
use crate::replay::helpers::{self, HelperCounts};
use crate::replay::shelf::Facts;
use crate::replay::temperature::Temperature;
use crate::replay::work::{self, Amount, Work, WorkSize};
use crate::{BenchError, Result};

/// What the primary writes.
pub const WORK: Work = Work::Update;

/// How long a start may take.
const LONGEST_RECOVERY: Duration = Duration::from_secs(1_800);

/// The server's message when it accepts connections. Attempts to connect before would take CPU
/// from recovery.
const READY: &str = "database system is ready to accept connections";

/// The data folder of a killed primary.
#[derive(Debug)]
pub struct Crashed {
    pub data: PathBuf,
    pub facts: Facts,
}

/// Writes at least `bytes` of WAL after a checkpoint, and kills the primary.
pub fn crash(lab: &Lab, size: WorkSize, bytes: u64) -> Result<Crashed> {
    let mut primary = work::primary_with_data(lab, WORK, size)?;
    primary.execute("CHECKPOINT")?;
    let redo = primary.query_text("SELECT redo_lsn::text FROM pg_control_checkpoint()")?;
    let redo: Lsn = redo
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| LabError::Measurement("the checkpoint has no redo position".to_owned()))?;
    let amount = Amount {
        lead_in: None,
        bytes,
        longest: Duration::MAX,
    };
    work::write_on(lab, WORK, &primary, size, redo, amount)?;
    let data_bytes = work::data_bytes(&primary)?;
    let flushed = primary.flush_lsn()?;
    primary.kill()?;
    let data = primary.data().to_path_buf();
    // It names a process that is gone, whose number another one may have by the next start.
    let pid_file = data.join("postmaster.pid");
    fs::remove_file(&pid_file).map_err(BenchError::io("remove", &pid_file))?;
    let records = work::count_records(lab, &data.join("pg_wal"), redo, flushed)?;
    fs::remove_file(primary.log()).map_err(BenchError::io("remove", primary.log()))?;
    // A later primary of that name needs its folder.
    let crashed = lab.folder().join("crashed");
    fs::rename(&data, &crashed).map_err(BenchError::io("rename to", &crashed))?;
    Ok(Crashed {
        data: crashed,
        facts: Facts {
            data_bytes,
            records,
            lead_in: None,
        },
    })
}

/// What a start measured.
#[derive(Debug, Clone, Copy)]
pub struct Recovered {
    pub redo: Redo,
    /// Time from the start of the postmaster until it accepted connections.
    pub ready_seconds: f64,
    /// CPU and memory of the server until then.
    pub usage: Usage,
    /// What helpers did, if there were any.
    pub helpers: Option<HelperCounts>,
}

/// Starts a copy of the crashed primary as server `name`, which is removed afterwards.
pub fn recover(lab: &Lab, name: &str, crashed: &Crashed, extra: Settings) -> Result<Recovered> {
    let mut server = lab.server(Role::Primary, name, None)?;
    server.unpin();
    lab.launcher().copy_folder(&crashed.data, server.data())?;
    server.set([
        ("fsync", "on".to_owned()),
        (
            "shared_buffers",
            Temperature::Cached.shared_buffers(crashed.facts.data_bytes),
        ),
    ])?;
    server.set(extra.clone())?;
    settle_files(server.data())?;
    let began = Instant::now();
    let seen = server.launch()?;
    server.await_event("recover from the crash", LONGEST_RECOVERY, |server| {
        server.check_alive()?;
        Ok(said(server, seen).contains(READY))
    })?;
    let ready_seconds = began.elapsed().as_secs_f64();
    let usage = server.usage();
    let redo = redo_of(&said(&server, seen)).ok_or_else(|| {
        LabError::Measurement("the server's log does not say how long redo took".to_owned())
    })?;
    let helpers = helpers::counts(&mut server, &extra)?;
    server.remove()?;
    Ok(Recovered {
        redo,
        ready_seconds,
        usage,
        helpers,
    })
}

fn said(server: &Server, seen: u64) -> String {
    server.log_since(seen).unwrap_or_default()
}

/// What the server's log says about redo.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Redo {
    pub bytes: u64,
    pub seconds: f64,
    /// CPU of the startup process meanwhile.
    pub cpu_s: f64,
}

/// Reads the lines `redo starts at LSN` and `redo done at LSN system usage: CPU: user: N s,
/// system: N s, elapsed: N s`.
fn redo_of(log: &str) -> Option<Redo> {
    let (_, starts) = log.split_once("redo starts at ")?;
    let (_, done) = starts.split_once("redo done at ")?;
    let lsn = |text: &str| -> Option<Lsn> { text.split_whitespace().next()?.parse().ok() };
    let after = |label: &str| -> Option<f64> {
        let (_, rest) = done.lines().next()?.split_once(label)?;
        rest.split_whitespace().next()?.parse().ok()
    };
    Some(Redo {
        bytes: u64::from(lsn(done)?).checked_sub(u64::from(lsn(starts)?))?,
        seconds: after("elapsed: ")?,
        cpu_s: after("user: ")? + after("system: ")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_says_how_long_redo_took() {
        let log = "2026-01-01 00:00:00.000 UTC [7] startup LOG:  redo starts at 0/2000028\n\
            2026-01-01 00:00:05.000 UTC [7] startup LOG:  invalid record length at 0/3000128: \
            wanted 24, got 0\n\
            2026-01-01 00:00:05.000 UTC [7] startup LOG:  redo done at 0/3000028 system usage: \
            CPU: user: 4.12 s, system: 0.50 s, elapsed: 5.02 s\n";
        let redo = redo_of(log).unwrap();
        assert_eq!(redo.bytes, 0x100_0000);
        assert_eq!(redo.seconds, 5.02);
        assert!((redo.cpu_s - 4.62).abs() < 1e-9);
        assert_eq!(redo_of("redo starts at 0/2000028\n"), None);
        assert_eq!(redo_of("redo is not required\n"), None);
    }
}
