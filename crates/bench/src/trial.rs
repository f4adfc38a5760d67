//! One trial: fresh data, a fresh standby, load on both ends, and what is measured.

use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use lockstep_client::{Connection, field};
use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::Side;
use lockstep_lab::progress::{self, Micros, Progress};
use lockstep_lab::server::{SUPERUSER, Server, Settings};
use lockstep_lab::usage::Usage;
use lockstep_lab::workload::{ACCOUNTS_PER_SCALE, Load, MB_PER_SCALE, Workload};
use lockstep_lab::{LabError, Role};
use lockstep_service::words::figures::{count, ms, slope};
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::audience::{Audience, Stage, Tick};
use crate::lookups::{LookupTimes, Lookups};
use crate::replay_lag::{self, LagPoint, LagSlice, LagSummary};
use crate::results::rounded;
use crate::sampler::LagWatch;

/// Interval at which the audience hears of a trial under load.
const TICK: Duration = Duration::from_millis(500);

/// How long load may take to report for the first time: 128 sessions must connect to a
/// standby that is busy already.
const LOAD_PATIENCE: Duration = Duration::from_secs(120);

/// How long to wait for a sample after the end.
const SAMPLE_PATIENCE: Duration = Duration::from_secs(10);

/// Slices of the lag series kept for plots.
const SLICES: usize = 400;

/// Sessions beside the load's: measurement, autovacuum, administration.
const SPARE_CONNECTIONS: u32 = 40;

/// Which standby a trial runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Variant {
    /// PostgreSQL as it is.
    Stock,
    /// PostgreSQL with the extension.
    Lockstep,
}

impl Variant {
    /// The variant's name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::Lockstep => "lockstep",
        }
    }

    /// The variant's standby, as people call it.
    pub fn title(self) -> &'static str {
        match self {
            Self::Stock => "stock standby",
            Self::Lockstep => "Lockstep standby",
        }
    }

    /// Settings of its standby: those in `extra` are for Lockstep only.
    pub fn standby_settings(self, extra: &[(String, String)]) -> Settings {
        let mut settings = Settings::new();
        if self == Self::Lockstep {
            settings.insert("shared_preload_libraries".to_owned(), "lockstep".to_owned());
            settings.extend(extra.iter().cloned());
        }
        settings
    }
}

/// What every trial of one run has in common.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// pgbench scale: 100,000 accounts each.
    pub scale: u32,
    /// Clients that write to the primary; 0: nothing is written.
    pub writers: u32,
    /// Clients that read from the standby.
    pub readers: u32,
}

impl Size {
    /// Settings of the primary, which its standbys share: everything durable, all data
    /// cached twice over, and checkpoints by time (every five minutes) rather than by the
    /// volume of WAL, which would differ between variants.
    pub fn settings(&self) -> Settings {
        let megabytes = (u64::from(self.scale) * MB_PER_SCALE * 2).max(128);
        let connections = self.writers.max(self.readers) + SPARE_CONNECTIONS;
        [
            ("shared_buffers", format!("{megabytes}MB")),
            ("max_connections", connections.to_string()),
            ("fsync", "on".to_owned()),
            ("full_page_writes", "on".to_owned()),
            ("synchronous_commit", "on".to_owned()),
            ("hot_standby_feedback", "on".to_owned()),
            ("max_wal_size", "8GB".to_owned()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }
}

#[derive(Debug, Clone)]
pub struct TrialSpec {
    pub variant: Variant,
    pub size: Size,
    /// What the readers do.
    pub read: Workload,
    /// Whether another user looks rows up beside the readers; [`crate::lookups::create_user`] made it.
    pub lookups: bool,
    /// The cores of the standby and its readers.
    pub side: Side,
    /// Busy processes of others on these cores.
    pub busy_others: u32,
    /// Settings of the standby beside the primary's.
    pub standby_settings: Settings,
    /// Load runs this long before the measurement begins.
    pub warmup: Duration,
    /// Length of the measurement.
    pub measured: Duration,
    /// Distance of the points in [`Outcome::series`].
    pub series_every: Duration,
}

/// Dead rows and size of the load's tables on the primary.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bloat {
    /// Rows that are dead and not yet removed.
    pub dead_rows: i64,
    /// Bytes of tables and indexes.
    pub relation_bytes: i64,
}

/// One point of a trial's series.
#[derive(Debug, Clone, Copy)]
pub struct SeriesPoint {
    /// Seconds since the measurement began.
    pub second: f64,
    /// Median lag since the point before, ms.
    pub lag_ms: Option<f64>,
    /// Transactions a second on the primary since the point before.
    pub primary_tps: Option<f64>,
    /// Reads a second on the standby since the point before.
    pub read_tps: Option<f64>,
    /// Bloat at this point.
    pub bloat: Bloat,
}

/// What a trial measured.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Length of the measurement as it was, seconds.
    pub seconds: f64,
    pub lag: LagSummary,
    /// Lag over time.
    pub lag_slices: Vec<LagSlice>,
    /// Distance of neighbouring samples of the primary, 99th percentile, ms.
    pub primary_gap_p99_ms: f64,
    /// Distance of neighbouring samples of the standby, 99th percentile, ms.
    pub standby_gap_p99_ms: f64,
    /// Transactions a second on the primary.
    pub primary_tps: f64,
    /// Reads a second on the standby.
    pub read_tps: f64,
    /// How long look-ups of another user took, if there were any.
    pub lookups: Option<LookupTimes>,
    /// Seconds since the measurement began, and transactions a second.
    pub primary_tps_line: Vec<(f64, f64)>,
    /// Seconds since the measurement began, and reads a second.
    pub read_tps_line: Vec<(f64, f64)>,
    /// CPU and memory of the standby.
    pub standby_usage: Usage,
    /// Seconds in which the standby's cores did nothing.
    pub standby_idle_s: f64,
    /// CPU and memory of the primary.
    pub primary_usage: Usage,
    /// Bloat when the measurement began.
    pub bloat_start: Bloat,
    /// Bloat when it ended.
    pub bloat_end: Bloat,
    /// The measurement, point by point.
    pub series: Vec<SeriesPoint>,
}

/// What is collected while load runs, until it is made into an [`Outcome`].
struct Measured {
    from: Micros,
    to: Micros,
    bloat: Vec<(Micros, Bloat)>,
    standby_usage: Usage,
    standby_idle_s: f64,
    primary_usage: Usage,
}

impl Outcome {
    /// What rows and the demo show.
    pub fn figures(&self) -> TrialFigures {
        TrialFigures {
            lag_p50_ms: self.lag.p50_ms,
            lag_p99_ms: self.lag.p99_ms,
            lag_max_ms: self.lag.max_ms,
            lag_end_ms: self.lag.end_ms,
            lag_slope_ms_per_s: self.lag.slope_ms_per_s,
            primary_tps: self.primary_tps,
            read_tps: self.read_tps,
            seconds: self.seconds,
            cpu_s: self.standby_usage.cpu_s,
            startup_cpu_s: self.standby_usage.startup_cpu_s,
            account: Some(Account {
                walreceiver_cpu_s: self.standby_usage.walreceiver_cpu_s,
                lockstep_cpu_s: self.standby_usage.lockstep_cpu_s,
                readers_cpu_s: self.standby_usage.load_cpu_s,
                idle_s: self.standby_idle_s,
                read_cpu_ms: self.standby_usage.load_cpu_s * 1000.0
                    / (self.read_tps * self.seconds).max(1.0),
            }),
        }
    }
}

/// The figures of an outcome that rows and the demo show; the keys carry their units.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TrialFigures {
    pub lag_p50_ms: f64,
    pub lag_p99_ms: f64,
    pub lag_max_ms: f64,
    pub lag_end_ms: f64,
    pub lag_slope_ms_per_s: f64,
    pub primary_tps: f64,
    pub read_tps: f64,
    pub seconds: f64,
    /// CPU seconds of the standby.
    pub cpu_s: f64,
    /// CPU seconds of the standby's startup process, which replays.
    pub startup_cpu_s: f64,
    /// Where the standby's time went; rows of before 2026-11-22 lack it.
    #[serde(flatten)]
    pub account: Option<Account>,
}

/// Where the time of the standby's cores went, beside replay.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Account {
    pub walreceiver_cpu_s: f64,
    /// CPU seconds of the extension's background workers.
    pub lockstep_cpu_s: f64,
    pub readers_cpu_s: f64,
    /// Seconds in which the cores did nothing.
    pub idle_s: f64,
    /// CPU of one read in its session, ms.
    pub read_cpu_ms: f64,
}

impl TrialFigures {
    /// These figures with the precision of results.
    pub fn rounded(self) -> Self {
        Self {
            lag_p50_ms: rounded(self.lag_p50_ms),
            lag_p99_ms: rounded(self.lag_p99_ms),
            lag_max_ms: rounded(self.lag_max_ms),
            lag_end_ms: rounded(self.lag_end_ms),
            lag_slope_ms_per_s: rounded(self.lag_slope_ms_per_s),
            primary_tps: rounded(self.primary_tps),
            read_tps: rounded(self.read_tps),
            seconds: rounded(self.seconds),
            cpu_s: rounded(self.cpu_s),
            startup_cpu_s: rounded(self.startup_cpu_s),
            account: self.account.map(|account| Account {
                walreceiver_cpu_s: rounded(account.walreceiver_cpu_s),
                lockstep_cpu_s: rounded(account.lockstep_cpu_s),
                readers_cpu_s: rounded(account.readers_cpu_s),
                idle_s: rounded(account.idle_s),
                read_cpu_ms: rounded(account.read_cpu_ms),
            }),
        }
    }

    pub fn line(&self) -> String {
        format!(
            "lag p50 {}, p99 {}, at end {} ({}), primary {} tps, reads {}/s",
            ms(self.lag_p50_ms),
            ms(self.lag_p99_ms),
            ms(self.lag_end_ms),
            slope(self.lag_slope_ms_per_s),
            count(self.primary_tps),
            count(self.read_tps)
        )
    }
}

/// A primary that is ready for trials: with the load's role, pg_prewarm to fill caches, and
/// the extension's views, which reach the standbys with replication.
pub fn open_primary(lab: &Lab, size: &Size, with_extension: bool) -> Result<Server> {
    let primary = lab.primary("primary", None, &size.settings())?;
    lab.create_app_role(&primary)?;
    primary.execute("CREATE EXTENSION pg_prewarm")?;
    if with_extension {
        primary.execute("CREATE EXTENSION lockstep")?;
    }
    Ok(primary)
}

/// Runs one trial. The standby, named `name`, is returned running without load; the
/// caller discards or keeps it.
pub fn run(
    lab: &Lab,
    primary: &mut Server,
    name: &str,
    spec: &TrialSpec,
    audience: &mut dyn Audience,
) -> Result<(Outcome, Server)> {
    audience.stage(Stage::LoadData);
    lab.load_data(primary, spec.size.scale)?;
    primary.execute("CHECKPOINT")?;

    audience.stage(Stage::MakeStandby);
    let mut standby = lab.server(Role::Standby, name, None)?;
    if spec.side == Side::Both {
        standby.unpin();
    }
    let mut standby = lab.start_standby(standby, primary, &spec.standby_settings)?;
    for server in [&*primary, &standby] {
        // A base backup leaves caches cold, which would slow reads and replay at first.
        server.execute(
            "SELECT pg_prewarm(oid) FROM pg_class WHERE relname LIKE 'pgbench%' AND relkind IN ('r', 'i')",
        )?;
    }
    standby.catch_up(primary)?;
    for server in [&*primary, &standby] {
        server.execute("CHECKPOINT")?;
    }

    let outcome = under_load(lab, primary, &mut standby, spec, audience)?;
    Ok((outcome, standby))
}

fn under_load(
    lab: &Lab,
    primary: &mut Server,
    standby: &mut Server,
    spec: &TrialSpec,
    audience: &mut dyn Audience,
) -> Result<Outcome> {
    let Size {
        scale,
        writers,
        readers,
    } = spec.size;
    let watch = LagWatch::start(primary, standby, lab.pinning())?;
    let bloat = primary.connect(SUPERUSER, "lockstep lab")?;
    let write = (writers > 0)
        .then(|| lab.start_load(primary, Side::Primary, Workload::TpcB, writers, scale))
        .transpose()?;
    let read = lab.start_load(standby, spec.side, spec.read, readers, scale)?;
    let accounts = scale * ACCOUNTS_PER_SCALE;
    let lookups = (spec.lookups)
        .then(|| Lookups::start(standby, accounts, lab.pinning()))
        .transpose()?;
    let _others = lab.start_busy_processes(spec.busy_others, spec.side)?;
    let mut running = Running {
        watch,
        write,
        read,
        lookups,
        primary,
        standby,
    };

    running.go_on(Stage::WarmUp, spec.warmup, audience, |_, _| Ok(()))?;
    running.await_reports()?;
    let measured = running.measure(lab, spec, bloat, audience)?;
    let (from, to) = (measured.from, measured.to);
    running.watch.await_sample_after(to, SAMPLE_PATIENCE);
    let Running {
        watch,
        write,
        read,
        lookups,
        ..
    } = running;
    let lookups = lookups.and_then(|lookups| lookups.between(from, to));
    let outcome = evaluate(measured, watch, write, read)?;
    Ok(Outcome { lookups, ..outcome })
}

/// Everything that must stay alive under load.
struct Running<'a> {
    watch: LagWatch,
    write: Option<Load>,
    read: Load,
    lookups: Option<Lookups>,
    primary: &'a mut Server,
    standby: &'a mut Server,
}

impl Running<'_> {
    fn check(&mut self) -> Result<()> {
        self.primary.check_alive()?;
        self.standby.check_alive()?;
        self.watch.check()?;
        if let Some(write) = &mut self.write {
            write.check()?;
        }
        if let Some(lookups) = &self.lookups {
            lookups.check()?;
        }
        Ok(self.read.check()?)
    }

    /// Lets load run for as long as is measured. `bloat` asks the primary for its dead rows.
    fn measure(
        &mut self,
        lab: &Lab,
        spec: &TrialSpec,
        mut bloat: Connection,
        audience: &mut dyn Audience,
    ) -> Result<Measured> {
        let idle = || lab.pinning().idle_s(spec.side).unwrap_or_default();
        let before = (self.primary.usage(), self.standby.usage());
        let idle_before = idle();
        let from = Micros::now();
        let mut points = vec![(from, read_bloat(&mut bloat, self.primary)?)];
        let mut next = spec.series_every;
        let mut also = |primary: &Server, elapsed: Duration| {
            if elapsed >= next {
                next += spec.series_every;
                points.push((Micros::now(), read_bloat(&mut bloat, primary)?));
            }
            Ok(())
        };
        self.go_on(Stage::Measure, spec.measured, audience, &mut also)?;
        let to = Micros::now();
        points.push((to, read_bloat(&mut bloat, self.primary)?));
        Ok(Measured {
            from,
            to,
            bloat: points,
            primary_usage: self.primary.usage().since(before.0),
            standby_usage: self.standby.usage().since(before.1),
            standby_idle_s: idle() - idle_before,
        })
    }

    /// Lets load run for `length`, and calls `also` at every tick.
    fn go_on(
        &mut self,
        stage: Stage,
        length: Duration,
        audience: &mut dyn Audience,
        mut also: impl FnMut(&Server, Duration) -> Result<()>,
    ) -> Result<()> {
        audience.stage(stage);
        let started = Instant::now();
        while started.elapsed() < length {
            thread::sleep(TICK.min(length.saturating_sub(started.elapsed())));
            self.check()?;
            also(self.primary, started.elapsed())?;
            audience.tick(&Tick {
                stage,
                elapsed: started.elapsed().min(length),
                lag_ms: self.watch.newest().map(|point| point.ms),
                primary_tps: self.write.as_ref().and_then(Load::newest_tps),
                read_tps: self.read.newest_tps(),
            });
        }
        Ok(())
    }

    /// Waits until both loads have reported, so all their clients are connected.
    fn await_reports(&mut self) -> Result<()> {
        let started = Instant::now();
        let waits = |write: &Option<Load>, read: &Load| {
            write
                .as_ref()
                .is_some_and(|write| write.newest_tps().is_none())
                || read.newest_tps().is_none()
        };
        while waits(&self.write, &self.read) {
            self.check()?;
            if started.elapsed() > LOAD_PATIENCE {
                return Err(LabError::Measurement(format!(
                    "load did not get going within {} s",
                    LOAD_PATIENCE.as_secs()
                ))
                .into());
            }
            thread::sleep(TICK / 10);
        }
        Ok(())
    }
}

fn read_bloat(client: &mut Connection, primary: &Server) -> Result<Bloat> {
    let sql = "SELECT coalesce(sum(n_dead_tup), 0)::bigint, \
                      coalesce(sum(pg_total_relation_size(relid)), 0)::bigint \
               FROM pg_stat_user_tables WHERE relname LIKE 'pgbench%'";
    let row = client
        .query_one(sql)
        .map_err(|error| primary.refused("refused a query", &error))?;
    let column = |index: usize| {
        field(&row, index).map_err(|error| primary.refused("answered unexpectedly", &error))
    };
    Ok(Bloat {
        dead_rows: column(0)?,
        relation_bytes: column(1)?,
    })
}

fn evaluate(
    measured: Measured,
    watch: LagWatch,
    write: Option<Load>,
    read: Load,
) -> Result<Outcome> {
    let Measured { from, to, .. } = measured;
    let tps = |load: &Load| load.tps_between(from, to);
    let primary_tps = write.as_ref().map(tps).transpose()?.unwrap_or(0.0);
    let read_tps = tps(&read)?;
    let write = write.map(|write| write.progress()).unwrap_or_default();
    let read = read.progress();
    let (primary_samples, standby_samples) = watch.finish()?;
    let points = replay_lag::on_grid(&primary_samples, &standby_samples, from, to);
    let unusable = || LabError::Measurement("there are too few samples of lag".to_owned());
    let gap = |samples| replay_lag::gap_ms(samples, from, to, 99.0).ok_or_else(unusable);
    let bloat_at = |which: Option<&(Micros, Bloat)>| which.map(|(_, bloat)| *bloat);
    Ok(Outcome {
        seconds: to.seconds_since(from),
        lag: replay_lag::summarize(&points).ok_or_else(unusable)?,
        lag_slices: replay_lag::slices(&points, from, SLICES),
        primary_gap_p99_ms: gap(&primary_samples)?,
        standby_gap_p99_ms: gap(&standby_samples)?,
        primary_tps,
        read_tps,
        lookups: None,
        primary_tps_line: line(&write, from, to),
        read_tps_line: line(&read, from, to),
        standby_usage: measured.standby_usage,
        standby_idle_s: measured.standby_idle_s,
        primary_usage: measured.primary_usage,
        bloat_start: bloat_at(measured.bloat.first()).ok_or_else(unusable)?,
        bloat_end: bloat_at(measured.bloat.last()).ok_or_else(unusable)?,
        series: series(&measured, &points, &write, &read),
    })
}

fn line(lines: &[Progress], from: Micros, to: Micros) -> Vec<(f64, f64)> {
    lines
        .iter()
        .filter(|line| line.at >= from && line.at <= to)
        .map(|line| (line.at.seconds_since(from), line.tps))
        .collect()
}

fn series(
    measured: &Measured,
    points: &[LagPoint],
    write: &[Progress],
    read: &[Progress],
) -> Vec<SeriesPoint> {
    let between = |start: Micros, end: Micros| {
        let low = points.partition_point(|point| point.at < start);
        let high = points.partition_point(|point| point.at <= end);
        let part = points.get(low..high).unwrap_or_default();
        replay_lag::median(part.iter().map(|point| point.ms))
    };
    measured
        .bloat
        .windows(2)
        .filter_map(|pair| match pair {
            [(start, _), (end, bloat)] => Some(SeriesPoint {
                second: end.seconds_since(measured.from),
                lag_ms: between(*start, *end),
                primary_tps: progress::tps_between(write, *start, *end),
                read_tps: progress::tps_between(read, *start, *end),
                bloat: *bloat,
            }),
            _ => None,
        })
        .collect()
}
