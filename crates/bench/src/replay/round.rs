//! One round: a fresh standby of a recording, WAL streamed to it, and what is measured.

use std::thread;
use std::time::{Duration, Instant};

use lockstep_lab::LabError;
use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::Side;
use lockstep_lab::progress::{Micros, Sample};
use lockstep_lab::server::{PATIENCE, Server, Settings};
use lockstep_lab::usage::{self, Usage};
use lockstep_lab::workload::{Load, Workload};
use lockstep_player::{Address, Pace, Player, PlayerOptions, Recording};
use lockstep_wire::Lsn;

use crate::Result;
use crate::replay::helpers::{self, HelperCounts};
use crate::replay::slow_reads::{LATENCY, ReadCounts, SlowReads};
use crate::replay::temperature::Temperature;
use crate::replay_lag::{self, LagSummary};
use crate::sampler::StandbyWatch;

/// Interval at which a round looks at its standby.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long replay of a whole recording may take.
const LONGEST_REPLAY: Duration = Duration::from_secs(1_800);

/// How long readers may take to report for the first time.
const READERS_PATIENCE: Duration = Duration::from_secs(120);

/// Start of a measurement that is not measured: the first records hit cold code and caches.
const SETTLING: Duration = Duration::from_secs(1);

/// How long to wait for a sample after the end.
const SAMPLE_PATIENCE: Duration = Duration::from_secs(10);

/// Connections beside those of readers: measurement and administration.
const SPARE_CONNECTIONS: u32 = 40;

/// Readers on the standby.
#[derive(Debug, Clone, Copy)]
pub struct Readers {
    /// What each reader does, on the tables of pgbench.
    pub workload: Workload,
    pub clients: u32,
    /// pgbench scale of the recording.
    pub scale: u32,
}

/// How long a round lasts.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// Until everything is replayed.
    Replayed,
    /// This long, or until the recording ends if that is sooner.
    Over(Duration),
}

#[derive(Debug, Clone)]
pub struct StandbySpec<'a> {
    pub recording: &'a Recording,
    /// Size of its data, for shared buffers.
    pub data_bytes: u64,
    /// Which part of the data is in memory.
    pub temperature: Temperature,
    /// Settings of the standby on top, e.g. the extension's.
    pub settings: Settings,
}

#[derive(Debug, Clone)]
pub struct RoundSpec<'a> {
    pub standby: StandbySpec<'a>,
    /// The standby has one core and the player the other; else both may use both.
    pub apart: bool,
    /// How fast WAL is offered.
    pub pace: Pace,
    /// WAL up to here is replayed before readers start and anything is measured.
    pub lead_in: Option<Lsn>,
    pub readers: Option<Readers>,
    pub until: Until,
}

/// What a round measured.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Length of the measurement.
    pub seconds: f64,
    /// WAL that the player published meanwhile, bytes.
    pub offered_bytes: u64,
    /// WAL replayed meanwhile, bytes.
    pub replayed_bytes: u64,
    /// Lag from publication to replay; None when the samples cannot tell.
    pub lag: Option<LagSummary>,
    /// CPU and memory of the standby.
    pub usage: Usage,
    /// CPU seconds of this process: of the player, and of what measures.
    pub player_cpu_s: f64,
    /// Reads a second.
    pub read_tps: Option<f64>,
    /// Distance of neighbouring samples of the standby, 99th percentile, ms.
    pub gap_p99_ms: f64,
    /// Counts of block reads, if reads were slow.
    pub reads: Option<ReadCounts>,
    /// What helpers did, if there were any.
    pub helpers: Option<HelperCounts>,
}

/// Runs a round on a fresh standby named `name`, which is removed afterwards.
pub fn run(lab: &Lab, name: &str, spec: &RoundSpec<'_>) -> Result<Outcome> {
    let address = Address::free_socket(lab.folder())?;
    let conninfo = address.conninfo();
    let StandbySpec {
        recording,
        temperature,
        ..
    } = spec.standby;
    let readers = spec.readers.map_or(0, |readers| readers.clients);
    let settings = spec.standby.all_settings(readers);
    let mut standby =
        lockstep_player::prepare_standby_of(lab, recording, name, &conninfo, &settings)?;
    if !spec.apart {
        standby.unpin();
    }
    let slow_reads = temperature.prepare(lab, &mut standby)?;
    standby.start()?;
    let evictor = temperature.settle(&standby, lab.pinning())?;
    let watch = StandbyWatch::start(&standby, lab.pinning())?;
    let player = Player::start(
        recording,
        PlayerOptions {
            listen: vec![address],
            pace: spec.pace,
            standbys: 1,
            lead_in: spec.lead_in,
            pin: spec.apart.then(|| (lab.pinning().clone(), Side::Primary)),
        },
    )?;
    if spec.lead_in.is_some() {
        let published = player.status().published;
        standby.await_event("replay what comes first", LONGEST_REPLAY, |standby| {
            standby.check_alive()?;
            watch.check()?;
            Ok(watch.newest().is_some_and(|sample| sample.lsn >= published))
        })?;
    }
    let readers = spec
        .readers
        .map(|readers| start_readers(lab, &mut standby, spec.side(), readers))
        .transpose()?;
    if let Some(slow_reads) = &slow_reads {
        slow_reads.begin(LATENCY)?;
    }
    player.release();
    let mut round = Round {
        spec,
        slow_reads,
        standby: &mut standby,
        player,
        watch,
        readers,
    };
    let outcome = round
        .measure()
        .and_then(|measured| round.evaluate(&measured));
    drop(round);
    drop(evictor);
    let outcome = outcome.and_then(|outcome| {
        let helpers = helpers::counts(&mut standby, &settings)?;
        Ok(Outcome { helpers, ..outcome })
    });
    standby.remove()?;
    outcome
}

impl StandbySpec<'_> {
    /// Settings of the standby, with those of the spec on top.
    pub(super) fn all_settings(&self, readers: u32) -> Settings {
        // A standby may have more connections than its primary had, not fewer.
        let recorded = self.recording.standby_settings();
        let connections = recorded.get("max_connections");
        let connections = connections.and_then(|text| text.parse().ok()).unwrap_or(0);
        let fixed = [
            (
                "max_connections",
                connections.max(readers + SPARE_CONNECTIONS).to_string(),
            ),
            (
                "shared_buffers",
                self.temperature.shared_buffers(self.data_bytes),
            ),
            ("fsync", "on".to_owned()),
            ("synchronous_commit", "on".to_owned()),
            ("hot_standby_feedback", "on".to_owned()),
            // The standby starts before the player, so that its caches can be filled first.
            ("wal_retrieve_retry_interval", "100ms".to_owned()),
            ("max_standby_streaming_delay", "-1".to_owned()),
        ];
        let mut settings = Settings::from(fixed.map(|(name, value)| (name.to_owned(), value)));
        settings.extend(self.settings.clone());
        settings
    }
}

impl RoundSpec<'_> {
    /// The cores of the standby and its readers.
    fn side(&self) -> Side {
        match self.apart {
            true => Side::Standby,
            false => Side::Both,
        }
    }
}

fn start_readers(lab: &Lab, standby: &mut Server, side: Side, readers: Readers) -> Result<Load> {
    let mut load = lab.start_load(
        standby,
        side,
        readers.workload,
        readers.clients,
        readers.scale,
    )?;
    standby.await_event("serve its readers", READERS_PATIENCE, |standby| {
        standby.check_alive()?;
        load.check()?;
        Ok(load.newest_tps().is_some())
    })?;
    Ok(load)
}

struct Round<'a> {
    spec: &'a RoundSpec<'a>,
    slow_reads: Option<SlowReads>,
    standby: &'a mut Server,
    player: Player,
    watch: StandbyWatch,
    readers: Option<Load>,
}

/// The window of a measurement.
struct Measured {
    from: Micros,
    to: Micros,
    usage: Usage,
    player_cpu_s: f64,
}

/// CPU seconds of the standby, and of this process.
#[derive(Clone, Copy)]
struct Cpu {
    standby: Usage,
    own_s: f64,
}

impl Cpu {
    fn now(standby: &Server) -> Self {
        let own = i32::try_from(std::process::id()).ok();
        Self {
            standby: standby.usage(),
            own_s: own.and_then(usage::cpu_s).unwrap_or_default(),
        }
    }
}

impl Round<'_> {
    fn check(&mut self) -> Result<()> {
        self.standby.check_alive()?;
        self.watch.check()?;
        if let Some(readers) = &mut self.readers {
            readers.check()?;
        }
        Ok(())
    }

    fn measure(&mut self) -> Result<Measured> {
        let began = Instant::now();
        while self.player.status().began.is_none() {
            self.check()?;
            if began.elapsed() > PATIENCE {
                return Err(LabError::Measurement(
                    "the standby did not connect to the player".to_owned(),
                )
                .into());
            }
            thread::sleep(LOOK_EVERY);
        }
        match self.spec.until {
            Until::Replayed => self.until_replayed(),
            Until::Over(length) => self.for_length(length),
        }
    }

    fn until_replayed(&mut self) -> Result<Measured> {
        let before = Cpu::now(self.standby);
        let end = self.spec.standby.recording.end();
        let reached = await_replayed(end, || {
            self.check()?;
            Ok(self.watch.newest())
        })?;
        let from = self.player.status().began.unwrap_or(reached.at);
        Ok(self.measured(from, reached.at, before))
    }

    fn for_length(&mut self, length: Duration) -> Result<Measured> {
        let began = Instant::now();
        while began.elapsed() < SETTLING {
            self.check()?;
            thread::sleep(LOOK_EVERY);
        }
        let before = Cpu::now(self.standby);
        let from = Micros::now();
        let began = Instant::now();
        let end = self.spec.standby.recording.end();
        while began.elapsed() < length && self.player.status().published < end {
            self.check()?;
            thread::sleep(LOOK_EVERY);
        }
        let to = Micros::now();
        let measured = self.measured(from, to, before);
        self.watch.await_sample_after(to, SAMPLE_PATIENCE);
        Ok(measured)
    }

    fn measured(&self, from: Micros, to: Micros, before: Cpu) -> Measured {
        let now = Cpu::now(self.standby);
        Measured {
            from,
            to,
            usage: now.standby.since(before.standby),
            player_cpu_s: now.own_s - before.own_s,
        }
    }

    /// WAL from where the play began to the end of the recording.
    fn played_bytes(&self) -> u64 {
        let end = u64::from(self.spec.standby.recording.end());
        let origin = self.player.status().origin.map_or(end, u64::from);
        end - origin
    }

    fn evaluate(&mut self, measured: &Measured) -> Result<Outcome> {
        let Measured { from, to, .. } = *measured;
        let published: Vec<Sample> = self.player.published_line();
        let replayed = self.watch.samples();
        let points = replay_lag::on_grid(&published, &replayed, from, to);
        let seconds = to.seconds_since(from);
        let bytes =
            |samples: &[Sample]| position(samples, to).saturating_sub(position(samples, from));
        Ok(Outcome {
            seconds,
            offered_bytes: bytes(&published),
            replayed_bytes: match self.spec.until {
                Until::Replayed => self.played_bytes(),
                Until::Over(_) => bytes(&replayed),
            },
            lag: replay_lag::summarize(&points),
            usage: measured.usage,
            player_cpu_s: measured.player_cpu_s,
            read_tps: self
                .readers
                .as_ref()
                .map(|load| load.tps_between(from, to))
                .transpose()?,
            gap_p99_ms: replay_lag::gap_ms(&replayed, from, to, 99.0).unwrap_or(0.0),
            reads: self
                .slow_reads
                .as_ref()
                .map(SlowReads::counts)
                .transpose()?,
            helpers: None,
        })
    }
}

/// Waits until the newest sample, which `newest` returns, shows that `end` is replayed.
pub(super) fn await_replayed(
    end: Lsn,
    mut newest: impl FnMut() -> Result<Option<Sample>>,
) -> Result<Sample> {
    let began = Instant::now();
    loop {
        if let Some(sample) = newest()?.filter(|sample| sample.lsn >= end) {
            return Ok(sample);
        }
        if began.elapsed() > LONGEST_REPLAY {
            return Err(LabError::Measurement(format!(
                "the recording was not replayed within {} s",
                LONGEST_REPLAY.as_secs()
            ))
            .into());
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// The last position sampled by `at`.
fn position(samples: &[Sample], at: Micros) -> u64 {
    let after = samples.partition_point(|sample| sample.at <= at);
    let last = after.checked_sub(1).and_then(|index| samples.get(index));
    last.map_or(Lsn::from(0), |sample| sample.lsn).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_the_last_known() {
        let samples: Vec<Sample> = [(10, 100), (20, 300)]
            .into_iter()
            .map(|(at, lsn)| Sample {
                at: Micros(at),
                lsn: Lsn::from(lsn),
            })
            .collect();
        let found: Vec<u64> = [5, 10, 15, 20, 99]
            .into_iter()
            .map(|at| position(&samples, Micros(at)))
            .collect();
        assert_eq!(found, [0, 100, 100, 300, 300]);
    }
}
