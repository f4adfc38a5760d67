//! One round without streaming: all WAL of a recording appears in the `pg_wal` of a fresh standby,
//! and nothing else runs while the standby replays it.
//!
//! The standby starts with the base backup's own WAL, is brought to its temperature, and waits for
//! the next segment. The segments are moved into `pg_wal` by rename, that one last: so replay
//! begins with the last rename and never waits for WAL again.
//!
//! The segments are copied into the lab's folder once for all rounds of a case; each round gets
//! hard links to the copies. `wal_recycle = off` makes sure that no standby writes into a link.

use std::fs;
use std::path::PathBuf;

use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::Side;
use lockstep_lab::progress::Micros;
use lockstep_lab::server::Server;
use lockstep_lab::usage::Usage;
use lockstep_player::Recording;

use crate::replay::cache::settle_files;
use crate::replay::helpers::{self, HelperCounts};
use crate::replay::round::{StandbySpec, await_replayed};
use crate::replay::slow_reads::{LATENCY, ReadCounts, SlowReads};
use crate::sampler::StandbyWatch;
use crate::{BenchError, Result};

/// Interval at which the standby looks for a segment that is not there yet.
const RETRY: &str = "1ms";

/// Copies of a recording's segments, which belong to the servers' account. Dropping them removes
/// them.
#[derive(Debug)]
pub struct StagedWal {
    folder: PathBuf,
}

impl StagedWal {
    pub fn copy(lab: &Lab, recording: &Recording) -> Result<Self> {
        let folder = lab.folder().join("staged-wal");
        let staged = Self { folder };
        lab.launcher()
            .copy_folder(&recording.wal(), &staged.folder)?;
        Ok(staged)
    }

    /// Moves the segments that the standby lacks into its pg_wal. Returns the time just before
    /// the last rename, with which replay begins.
    fn hand_over(&self, lab: &Lab, recording: &Recording, standby: &Server) -> Result<Micros> {
        let incoming = lab.folder().join("incoming-wal");
        fs::create_dir(&incoming).map_err(BenchError::io("create", &incoming))?;
        let (size, timeline) = (recording.segment_size(), recording.timeline());
        let names: Vec<String> = size
            .starts(recording.played_from(), recording.end())
            .map(|start| size.file_name(timeline, start))
            .collect();
        for name in &names {
            let link = incoming.join(name);
            fs::hard_link(self.folder.join(name), &link).map_err(BenchError::io("link", &link))?;
        }
        let mut began = Micros::now();
        for name in names.iter().rev() {
            let path = standby.data().join("pg_wal").join(name);
            began = Micros::now();
            fs::rename(incoming.join(name), &path).map_err(BenchError::io("rename to", &path))?;
        }
        fs::remove_dir(&incoming).map_err(BenchError::io("remove", &incoming))?;
        Ok(began)
    }
}

impl Drop for StagedWal {
    fn drop(&mut self) {
        // What is left goes with the lab's folder.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// What a round measured.
#[derive(Debug, Clone, Copy)]
pub struct Replayed {
    /// Time from the last rename until the recording's end was replayed.
    pub seconds: f64,
    /// CPU and memory of the standby.
    pub usage: Usage,
    /// Counts of block reads, if reads were slow.
    pub reads: Option<ReadCounts>,
    /// What helpers did, if there were any.
    pub helpers: Option<HelperCounts>,
}

/// Runs a round on a fresh standby named `name`, beside `busy` processes that use all the CPU that they get.
/// The standby is removed afterwards.
pub fn run(
    lab: &Lab,
    name: &str,
    spec: &StandbySpec<'_>,
    staged: &StagedWal,
    busy: u32,
) -> Result<Replayed> {
    let recording = spec.recording;
    let mut settings = spec.all_settings(0);
    for (setting, value) in [
        ("wal_retrieve_retry_interval", RETRY),
        ("wal_recycle", "off"),
    ] {
        settings.insert(setting.to_owned(), value.to_owned());
    }
    // Without a conninfo the standby has no walreceiver.
    let mut standby = lockstep_player::prepare_standby_of(lab, recording, name, "", &settings)?;
    standby.unpin();
    let slow_reads = spec.temperature.prepare(lab, &mut standby)?;
    standby.start()?;
    let evictor = spec.temperature.settle(&standby, lab.pinning())?;
    settle_files(&staged.folder)?;
    let watch = StandbyWatch::start(&standby, lab.pinning())?;
    if let Some(slow_reads) = &slow_reads {
        slow_reads.begin(LATENCY)?;
    }
    let others = lab.start_busy_processes(busy, Side::Both)?;
    let before = standby.usage();
    let began = staged.hand_over(lab, recording, &standby)?;
    let reached = await_replayed(recording.end(), || {
        standby.check_alive()?;
        watch.check()?;
        Ok(watch.newest())
    })?;
    let usage = standby.usage().since(before);
    let reads = slow_reads.as_ref().map(SlowReads::counts).transpose()?;
    drop(others);
    drop(watch);
    drop(evictor);
    let helpers = helpers::counts(&mut standby, &settings)?;
    standby.remove()?;
    Ok(Replayed {
        seconds: reached.at.seconds_since(began),
        usage,
        reads,
        helpers,
    })
}
