//! `lockstep-lab bench replay`: how fast fixed WAL is replayed, stock and Lockstep alternating.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, value_parser};
use lockstep_lab::usage::Usage;
use lockstep_player::Pace;
use lockstep_service::words::figures::{count, hundredths, thousandths};
use serde::{Deserialize, Serialize};

use crate::args::{RunArgs, SecondsArgs, joined, rounds, seconds, set_options, setting, writes};
use crate::audience::{Ahead, Audience};
use crate::benchmark::{Benchmark, Order, Plot, Site, TurnOf};
use crate::plot::bars::{self, Series};
use crate::plot::trials::color;
use crate::replay::case::{CRASH_RECOVERY, MOST_BUSY, ReplayCase, ReplayVariant};
use crate::replay::crash::{self, Crashed};
use crate::replay::helpers::HelperCounts;
use crate::replay::local::{self, StagedWal};
use crate::replay::placement::Placement;
use crate::replay::round::{self, RoundSpec, StandbySpec, Until};
use crate::replay::shelf::{self, Facts, MadeFor, Shelf};
use crate::replay::slow_reads::{Library, ReadCounts};
use crate::replay::sysbench;
use crate::replay::temperature::Temperature;
use crate::replay::wal_contents::{self, Contents, Simulated};
use crate::replay::work::{Amount, Recorded, Work, WorkSize};
use crate::results::{Headline, ResultRow, Results, megabytes, ratio, rounded};
use crate::table::{Column, Group, Named, column};
use crate::trial::Variant;
use crate::{BenchError, Result};

/// The case that the headline is about, if it has been measured.
const HEADLINE_CASE: &str = "update-cached-one-core";

/// Stock's second result divided by its first lies between these, or the machine was too uneven
/// for any ratio to be believed.
const EVEN: std::ops::RangeInclusive<f64> = 0.97..=1.03;

/// Seconds of stock's replay over all rounds below which a case says little.
const LEAST_STOCK_SECONDS: f64 = 30.0;

/// Share of images in WAL that looks like production's.
const IMAGES: std::ops::RangeInclusive<f64> = 0.6..=0.85;

/// How far a simulated speedup may be from the measured one, as a share of that.
const MOST_OFF: f64 = 0.15;

/// The one of Lockstep's settings with which replay is still simulated.
const HELPERS: &str = "lockstep.replay_workers";

/// Rounds that a case takes with the default amounts of WAL; for the estimate of the time left.
const USUAL_ROUNDS: u32 = 4;

/// Where reads are slow, the usual amounts of WAL are divided by this: a round of all of TPC-C's
/// without prefetch would take minutes.
const SLOW_DIVISOR: u64 = 3;

/// Megabytes that a run may need beside WAL: the source, its backup, and a standby.
const SPACE_MB_BASE: u64 = 8_000;

/// Copies of the WAL that there are at a time: recorded, staged, and streamed to a standby.
const COPIES_OF_WAL: u64 = 3;

/// How fast fixed WAL of eleven kinds of writes is replayed, and recovery from a crash
///
/// Records the WAL of each kind on a private primary, then lets fresh standbys replay it, which get
/// it from their pg_wal or from a player. Without --writes, --memory, --placement and
/// --crash-recovery it runs a choice of cases that takes some 60 minutes, and 20 more if nothing
/// is recorded yet. Case sysbench is left out where sysbench is not installed. Writes replay.json and a
/// plot into the results folder. Standbys have fsync, full_page_writes and synchronous_commit on; the
/// recorded primary has fsync off, which does not change its WAL.
#[derive(Debug, Args)]
#[command(
    mut_arg("rounds", rounds("Rounds of each case, at most", "12")),
    mut_arg(
        "seconds",
        seconds("Seconds for which each kind of writes is recorded, at most", "240", 1)
    ),
    mut_arg("results", writes("replay.json and the plot"))
)]
pub struct ReplayArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Seconds of stock replay, summed over rounds, after which a case has enough rounds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = value_parser!(u32).range(1..=3600))]
    pub stock_seconds: u32,
    #[command(flatten)]
    pub time: SecondsArgs,
    /// Megabytes of WAL after which recording stops sooner [default: 750 to 2400, by the kind]
    #[arg(long, value_name = "MB", value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub megabytes: Option<u64>,
    /// Least megabytes of WAL since its checkpoint with which a primary is killed
    #[arg(long, value_name = "MB", default_value_t = 2_000, value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub crash_megabytes: u64,
    /// Folder in which recordings are kept for later runs; without it they are removed
    #[arg(
        long,
        value_name = "FOLDER",
        env = "BENCH_RECORDINGS",
        hide_env_values = true
    )]
    pub recordings: Option<PathBuf>,
    /// Kinds of writes, separated by commas; all if only --memory or --placement is given
    #[arg(long, value_enum, value_name = "KINDS", value_delimiter = ',')]
    pub writes: Vec<Work>,
    /// What of the standby's data is in memory, separated by commas; else cached
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',')]
    pub memory: Vec<Temperature>,
    /// Where WAL comes from, and the standby's cores, separated by commas; else all three
    #[arg(long, value_enum, value_name = "PLACES", value_delimiter = ',')]
    pub placement: Vec<Placement>,
    /// Cases beside so many processes that use all the CPU that they get, separated by commas, for --writes
    /// or all kinds; data is cached, and WAL in pg_wal
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', value_parser = value_parser!(u32).range(1..=i64::from(MOST_BUSY)))]
    pub busy_others: Vec<u32>,
    /// Recovery of a primary that was killed, beside what --writes, --memory and --placement choose
    #[arg(long)]
    pub crash_recovery: bool,
    /// Variants to run, separated by commas; else the first three, and in cases of 30pct-1ms all
    #[arg(long, value_enum, value_name = "VARIANTS", value_delimiter = ',')]
    pub variants: Vec<ReplayVariant>,
    #[command(flatten)]
    pub size: WorkSize,
    /// A setting for the Lockstep server, beside lockstep.replay_workers=1 (4 in cases of 30pct-1ms)
    /// and lockstep.replay_hot_standby=on, or in place of one of them; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub set: Vec<(String, String)>,
}

/// One replay of one recording.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReplayFigures {
    /// Time until the last record was replayed: from the first byte sent, from the last segment's
    /// appearance in pg_wal, or from the start of redo.
    pub seconds: f64,
    /// Time from the server's start until it accepted connections, in crash recovery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_seconds: Option<f64>,
    /// CPU seconds of the server.
    pub cpu_s: f64,
    /// CPU seconds of the server's startup process, which replays.
    pub startup_cpu_s: f64,
    pub records: u64,
    pub records_per_s: f64,
    pub wal_mb: f64,
    pub mb_per_s: f64,
    pub data_mb: f64,
    /// Memory of the server.
    pub rss_mb: f64,
    /// Reads of the server, in cases with slow reads.
    #[serde(flatten)]
    pub reads: Option<ReadCounts>,
    /// What helpers did, with Lockstep.
    #[serde(flatten)]
    pub helpers: Option<HelperCounts>,
    /// What the WAL is made of, in the first round of a case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contents: Option<Contents>,
    /// How many times as fast as stock `lockstep wal analyze` takes Lockstep to be, in cases that it
    /// simulates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated_speedup: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<String>,
}

/// What is replayed in the present case.
#[derive(Default)]
pub struct ReplayScene {
    recorded: Option<Known>,
    /// Segments of the recording, while cases of [`Placement::Local`] run.
    staged: Option<StagedWal>,
    crashed: Option<Crashed>,
}

/// A recording, and what is in it.
struct Known {
    /// The name under which it is kept.
    name: String,
    recorded: Recorded,
    contents: Contents,
    simulated: Simulated,
}

impl Benchmark for ReplayArgs {
    const NAME: &'static str = "replay";
    const ORDER: Order = Order::TurnAbout;

    type Case = ReplayCase;
    type Variant = ReplayVariant;
    type Figures = ReplayFigures;
    type Scene = ReplayScene;

    fn options(&self) -> String {
        let list = |option: &str, names: String| match names.is_empty() {
            true => String::new(),
            false => format!(" --{option} {names}"),
        };
        let crash = match self.crash_recovery {
            true => " --crash-recovery",
            false => "",
        };
        format!(
            "{} --stock-seconds {} --seconds {}{} --crash-megabytes {}{}{}{}{}{crash}{} \
             --scale {} --warehouses {} --rows {}{}{}",
            self.run,
            self.stock_seconds,
            self.time.seconds,
            list("megabytes", joined(self.megabytes)),
            self.crash_megabytes,
            list("writes", joined(self.writes.iter().map(|work| work.name()))),
            list("memory", joined(self.memory.iter().map(|t| t.name()))),
            list("placement", joined(self.placement.iter().map(|p| p.name()))),
            list("busy-others", joined(&self.busy_others)),
            list("variants", joined(self.variants.iter().map(Named::name))),
            self.size.scale,
            self.size.warehouses,
            self.size.rows,
            list("writers", joined(self.size.clients)),
            set_options(&self.set),
        )
    }

    fn space_mb(&self) -> u64 {
        let wal = |case: ReplayCase| match case {
            ReplayCase::Standby(work, memory, _) => self.wal_megabytes(work, memory),
            ReplayCase::Beside(work, _) => self.wal_megabytes(work, case.memory()),
            ReplayCase::CrashRecovery => self.crash_megabytes,
        };
        let most = self.cases().into_iter().map(wal).max().unwrap_or(0);
        SPACE_MB_BASE + COPIES_OF_WAL * most
    }

    fn needs_extension(&self) -> bool {
        self.variants.is_empty() || self.variants.contains(&ReplayVariant::Lockstep)
    }

    fn cases(&self) -> Vec<ReplayCase> {
        let mut cases = self.chosen();
        cases.retain(ReplayCase::is_there);
        cases
    }

    fn conditions(&self) -> Option<String> {
        let is_left_out = |case: &ReplayCase| !case.is_there();
        let is_left_out = self.chosen().iter().any(is_left_out);
        is_left_out.then(sysbench::left_out)
    }

    fn case_name(&self, case: &ReplayCase) -> String {
        case.name()
    }

    fn variants(&self, case: &ReplayCase) -> Vec<ReplayVariant> {
        given_or(&self.variants, ReplayVariant::usual(case)).to_vec()
    }

    /// One round shows what prefetch gives, and without it a round is long.
    fn takes_part(&self, variant: ReplayVariant, round: u32) -> bool {
        variant != ReplayVariant::StockNoPrefetch || round == 1
    }

    fn ahead(&self, plan: &[TurnOf<Self>]) -> Ahead {
        let usual = plan.iter().filter(|turn| turn.round <= USUAL_ROUNDS);
        Ahead::Steps(usual.count())
    }

    fn open(&self, _site: Site<'_>, _audience: &mut dyn Audience) -> Result<ReplayScene> {
        Ok(ReplayScene::default())
    }

    fn enter(
        &self,
        site: Site<'_>,
        scene: &mut ReplayScene,
        case: &ReplayCase,
        audience: &mut dyn Audience,
    ) -> Result<()> {
        match case.standby() {
            Some((work, memory, placement, _)) => {
                let name = self.recording_name(work, memory);
                if scene.recorded.as_ref().is_none_or(|its| its.name != name) {
                    self.leave_recording(scene)?;
                    scene.recorded = Some(self.known(site, name, work, memory, audience)?);
                }
                let known = scene.known()?;
                match placement {
                    Placement::Local if scene.staged.is_none() => {
                        let recording = &known.recorded.recording;
                        scene.staged = Some(StagedWal::copy(site.lab, recording)?);
                    }
                    Placement::Local => {}
                    Placement::Streamed | Placement::OneCore => scene.staged = None,
                }
            }
            None => {
                self.leave_recording(scene)?;
                scene.crashed = Some(self.crashed(site, audience)?);
            }
        }
        Ok(())
    }

    fn measure(
        &self,
        site: Site<'_>,
        scene: &mut ReplayScene,
        turn: &TurnOf<Self>,
        _audience: &mut dyn Audience,
    ) -> Result<ReplayFigures> {
        let Some((_, temperature, placement, busy)) = turn.case.standby() else {
            return self.recovered(site, scene, turn.variant);
        };
        let figures = self.replayed(site, scene, turn.variant, temperature, placement, busy)?;
        let known = scene.known()?;
        let is_ours = turn.variant == ReplayVariant::Lockstep;
        let simulated = self.simulated(&turn.case, &known.simulated);
        Ok(ReplayFigures {
            contents: (turn.round == 1).then(|| known.contents.clone()),
            simulated_speedup: simulated.filter(|_| is_ours).map(rounded),
            ..figures
        })
    }

    fn is_enough(&self, rows: &[&ResultRow<ReplayFigures>]) -> bool {
        let stock = rows.iter().filter(|row| row.variant == STOCK);
        let seconds: f64 = stock.map(|row| row.figures.seconds).sum();
        seconds >= f64::from(self.stock_seconds)
    }

    fn line(&self, figures: &ReplayFigures) -> String {
        format!(
            "{:.1} s, {:.1} MB/s, {} records/s",
            figures.seconds,
            figures.mb_per_s,
            count(figures.records_per_s)
        )
    }

    fn headline(&self, results: &Results<ReplayFigures>) -> Option<Headline> {
        let usual = ReplayCase::all().into_iter().map(|case| case.name());
        let mut cases = [HEADLINE_CASE.to_owned()].into_iter().chain(usual);
        let has = |case: &str, variant: &str| rate(results, case, variant).is_some();
        let case = cases.find(|case| has(case, OURS) && has(case, STOCK))?;
        let (ours, stock) = (rate(results, &case, OURS)?, rate(results, &case, STOCK)?);
        Some(Headline {
            metric: format!("{case}: WAL replayed, over all rounds, MB/s"),
            ours: rounded(ours),
            stock: rounded(stock),
            ratio: ratio(ours, stock, 3),
        })
    }

    /// One plot of all cases.
    fn plot(
        &self,
        _scene: &ReplayScene,
        _case: &str,
        results: &Results<ReplayFigures>,
    ) -> Option<Plot> {
        let groups = self.groups(results);
        let series = |variant: Variant| {
            let value = |group: &Group<'_, ReplayFigures>| {
                group.median_of(variant.name(), |row| row.mb_per_s)
            };
            Series {
                name: variant.title().to_owned(),
                color: color(variant),
                values: groups.iter().map(value).collect(),
            }
        };
        let title = format!(
            "WAL replayed by one server, MB/s, PostgreSQL {}",
            self.run.server.pg
        );
        let cases: Vec<String> = groups.iter().map(|g| g.first().case.clone()).collect();
        let series = [Variant::Stock, Variant::Lockstep].map(series);
        Some(Plot {
            file: format!("{}.svg", Self::NAME),
            svg: bars::svg(&title, &cases, &series),
        })
    }

    fn columns(&self) -> Vec<Column<ReplayFigures>> {
        vec![
            column("sums over rounds", |case| Some(case.first().case.clone())),
            column("WAL MB", |case| Some(count(case.first().figures.wal_mb))),
            column("images", |case| {
                let share = contents(case)?.image_share;
                Some(format!("{:.0} %", share * 100.0))
            }),
            column("rounds", |case| {
                let rows = case.results().rows_of(&case.first().case, STOCK);
                Some(rows.count().to_string())
            }),
            column("stock s", |case| sum(case, STOCK).map(hundredths)),
            column("stock-again s", |case| sum(case, AGAIN).map(hundredths)),
            column("lockstep s", |case| sum(case, OURS).map(hundredths)),
            column("A/A", |case| against_stock(case, AGAIN).map(thousandths)),
            column("speedup", |case| speedup(case).map(thousandths)),
            column("simulated", |case| simulated_speedup(case).map(thousandths)),
            column("prefetch", |case| {
                let without = case.median_of(NO_PREFETCH, |row| row.seconds)?;
                let stock = case.median_of(STOCK, |row| row.seconds)?;
                (stock > 0.0).then(|| thousandths(without / stock))
            }),
            column("stock ready s", |case| ready(case, STOCK).map(hundredths)),
            column("lockstep ready s", |case| ready(case, OURS).map(hundredths)),
            column("speedup", |case| {
                let ratio = ready(case, STOCK)? / ready(case, OURS)?;
                as_often(case, OURS).then(|| thousandths(ratio))
            }),
        ]
    }

    /// All cases that have rows, in order, whether they ran now or earlier.
    fn groups<'r>(&self, results: &'r Results<ReplayFigures>) -> Vec<Group<'r, ReplayFigures>> {
        results.each_case(ReplayCase::all().iter().map(ReplayCase::name))
    }

    fn remarks(&self, results: &Results<ReplayFigures>) -> Vec<String> {
        let groups = self.groups(results);
        groups.iter().flat_map(doubts).collect()
    }
}

impl ReplayScene {
    fn known(&self) -> Result<&Known> {
        self.recorded.as_ref().ok_or_else(BenchError::not_readied)
    }
}

impl ReplayArgs {
    /// The cases to run, as far as this machine has what they need.
    fn chosen(&self) -> Vec<ReplayCase> {
        let quiet = self.memory.is_empty() && self.placement.is_empty();
        let none = quiet && self.writes.is_empty() && self.busy_others.is_empty();
        if none && !self.crash_recovery {
            let mut cases = ReplayCase::usual();
            cases.retain(|case| !case.memory().is_slow() || Library::missing().is_none());
            return cases;
        }
        let mut cases = Vec::new();
        let works = given_or(&self.writes, &Work::ALL);
        let only_busy = quiet && !self.busy_others.is_empty();
        if !(none || only_busy) {
            let memory = given_or(&self.memory, &[Temperature::Cached]);
            let places = given_or(&self.placement, &Placement::ALL);
            cases = ReplayCase::combinations(works, memory, places);
        }
        for &work in works {
            let beside = |&others: &u32| ReplayCase::Beside(work, others);
            cases.extend(self.busy_others.iter().map(beside));
        }
        if self.crash_recovery {
            cases.push(ReplayCase::CrashRecovery);
        }
        cases
    }

    /// Helpers of the Lockstep server whose data is all in memory; None: it finds that out itself.
    fn helpers(&self) -> Option<usize> {
        let settings = ReplayVariant::Lockstep.settings(Temperature::Cached, &self.set);
        settings.get(HELPERS)?.parse().ok()
    }

    /// How many times as fast as stock Lockstep is in the simulation; None if it has not all that matters in
    /// this case.
    fn simulated(&self, case: &ReplayCase, simulated: &Simulated) -> Option<f64> {
        self.helpers()?;
        if self.set.iter().any(|(name, _)| name != HELPERS) {
            return None;
        }
        match case {
            ReplayCase::Standby(_, Temperature::Cached, Placement::Local) => {
                Some(simulated.with_helpers)
            }
            // Helpers rest on one core.
            ReplayCase::Standby(_, Temperature::Cached, Placement::OneCore) => {
                Some(simulated.look_ahead)
            }
            _ => None,
        }
    }

    fn wal_megabytes(&self, work: Work, memory: Temperature) -> u64 {
        let usual = match memory.is_slow() {
            true => work.usual_megabytes() / SLOW_DIVISOR,
            false => work.usual_megabytes(),
        };
        self.megabytes.unwrap_or(usual)
    }

    /// The name under which a recording is kept.
    fn recording_name(&self, work: Work, memory: Temperature) -> String {
        match memory.is_slow() && self.megabytes.is_none() {
            true => self.kept_name(&format!("{}-short", work.name())),
            false => self.kept_name(work.name()),
        }
    }

    /// Drops the recording of earlier cases, and removes it unless it is kept.
    fn leave_recording(&self, scene: &mut ReplayScene) -> Result<()> {
        scene.staged = None;
        match scene.recorded.take() {
            Some(known) if self.recordings.is_none() => known.recorded.remove(),
            _ => Ok(()),
        }
    }

    /// The name under which something is kept.
    fn kept_name(&self, what: &str) -> String {
        format!("pg{}-{what}", self.run.server.pg)
    }

    /// A recording that was kept, or a new one.
    fn known(
        &self,
        site: Site<'_>,
        name: String,
        work: Work,
        memory: Temperature,
        audience: &mut dyn Audience,
    ) -> Result<Known> {
        let amount = Amount {
            lead_in: None,
            bytes: self.wal_megabytes(work, memory) * 1_000_000,
            longest: self.time.length(),
        };
        let folder = self.recordings.as_deref();
        let recorded =
            shelf::recording(site.lab, folder, &name, work, self.size, amount, audience)?;
        let helpers = self.helpers().unwrap_or_default();
        let (contents, simulated) = wal_contents::read(&recorded.recording, helpers)?;
        audience.say(&format!("{}: {}", work.name(), contents.line()));
        Ok(Known {
            name,
            recorded,
            contents,
            simulated,
        })
    }

    /// The data folder of a killed primary that was kept, or a new one.
    fn crashed(&self, site: Site<'_>, audience: &mut dyn Audience) -> Result<Crashed> {
        let (name, megabytes) = (self.kept_name(CRASH_RECOVERY), self.crash_megabytes);
        let shelf = self.recordings.as_deref().map(Shelf::open).transpose()?;
        let amount = Amount {
            lead_in: None,
            bytes: megabytes * 1_000_000,
            longest: Duration::ZERO,
        };
        let made_for = MadeFor::new(site.lab, crash::WORK, self.size, amount)?;
        let found = shelf
            .as_ref()
            .and_then(|shelf| shelf.find(&name, &made_for));
        if let Some((data, facts)) = found {
            return Ok(Crashed { data, facts });
        }
        audience.say("writing the WAL of crash recovery");
        if let Some(shelf) = &shelf {
            shelf.clear(&name)?;
        }
        let crashed = crash::crash(site.lab, self.size, amount.bytes)?;
        match shelf {
            Some(shelf) => Ok(Crashed {
                data: shelf.keep(&name, made_for, crashed.facts, &crashed.data)?,
                ..crashed
            }),
            None => Ok(crashed),
        }
    }

    /// One replay by a fresh standby.
    fn replayed(
        &self,
        site: Site<'_>,
        scene: &ReplayScene,
        variant: ReplayVariant,
        temperature: Temperature,
        placement: Placement,
        busy: u32,
    ) -> Result<ReplayFigures> {
        let recorded = &scene.known()?.recorded;
        let standby = StandbySpec {
            recording: &recorded.recording,
            data_bytes: recorded.data_bytes,
            temperature,
            settings: variant.settings(temperature, &self.set),
        };
        let (seconds, usage, bytes, reads, helpers) = match placement {
            Placement::Local => {
                let staged = scene.staged.as_ref().ok_or_else(BenchError::not_readied)?;
                let its = local::run(site.lab, variant.name(), &standby, staged, busy)?;
                let bytes = recorded.recording.bytes();
                (its.seconds, its.usage, bytes, its.reads, its.helpers)
            }
            Placement::Streamed | Placement::OneCore => {
                let spec = RoundSpec {
                    standby,
                    apart: placement == Placement::OneCore,
                    pace: Pace::Unlimited,
                    lead_in: None,
                    readers: None,
                    until: Until::Replayed,
                };
                let its = round::run(site.lab, variant.name(), &spec)?;
                let bytes = its.replayed_bytes;
                (its.seconds, its.usage, bytes, its.reads, its.helpers)
            }
        };
        Ok(ReplayFigures {
            reads,
            helpers,
            settings: variant.settings_text(temperature, &self.set),
            ..figures(seconds, usage, bytes, recorded.facts())
        })
    }

    /// One recovery of a copy of the killed primary.
    fn recovered(
        &self,
        site: Site<'_>,
        scene: &ReplayScene,
        variant: ReplayVariant,
    ) -> Result<ReplayFigures> {
        let crashed = scene.crashed.as_ref().ok_or_else(BenchError::not_readied)?;
        let memory = ReplayCase::CrashRecovery.memory();
        let settings = variant.settings(memory, &self.set);
        let outcome = crash::recover(site.lab, variant.name(), crashed, settings)?;
        let usage = Usage {
            // The startup process has ended.
            startup_cpu_s: outcome.redo.cpu_s,
            ..outcome.usage
        };
        let (seconds, bytes) = (outcome.redo.seconds, outcome.redo.bytes);
        Ok(ReplayFigures {
            ready_seconds: Some(rounded(outcome.ready_seconds)),
            helpers: outcome.helpers,
            settings: variant.settings_text(memory, &self.set),
            ..figures(seconds, usage, bytes, crashed.facts)
        })
    }
}

/// What every replay has.
fn figures(seconds: f64, usage: Usage, bytes: u64, facts: Facts) -> ReplayFigures {
    let at_least = seconds.max(0.001);
    ReplayFigures {
        seconds: rounded(seconds),
        ready_seconds: None,
        cpu_s: rounded(usage.cpu_s),
        startup_cpu_s: rounded(usage.startup_cpu_s),
        records: facts.records,
        records_per_s: rounded(facts.records as f64 / at_least),
        wal_mb: megabytes(bytes as f64),
        mb_per_s: megabytes(bytes as f64 / at_least),
        data_mb: megabytes(facts.data_bytes as f64),
        rss_mb: rounded(usage.rss_mb),
        reads: None,
        helpers: None,
        contents: None,
        simulated_speedup: None,
        settings: None,
    }
}

/// Variants in results.
const STOCK: &str = "stock";
const AGAIN: &str = "stock-again";
const NO_PREFETCH: &str = "stock-no-prefetch";
const OURS: &str = "lockstep";

fn given_or<'a, T>(given: &'a [T], otherwise: &'a [T]) -> &'a [T] {
    match given {
        [] => otherwise,
        given => given,
    }
}

/// Seconds of replay over all rounds.
fn sum(case: &Group<'_, ReplayFigures>, variant: &str) -> Option<f64> {
    case.results()
        .sum(&case.first().case, variant, |row| row.seconds)
}

/// Seconds until the server was ready, over all rounds.
fn ready(case: &Group<'_, ReplayFigures>, variant: &str) -> Option<f64> {
    case.first().figures.ready_seconds?;
    let seconds = |row: &ReplayFigures| row.ready_seconds.unwrap_or(0.0);
    case.results().sum(&case.first().case, variant, seconds)
}

/// A variant has as many rounds as stock, so that their sums can be compared.
fn as_often(case: &Group<'_, ReplayFigures>, variant: &str) -> bool {
    let rounds = |variant: &str| case.results().rows_of(&case.first().case, variant).count();
    rounds(variant) == rounds(STOCK)
}

/// A variant's seconds divided by stock's, if that can be said.
fn against_stock(case: &Group<'_, ReplayFigures>, variant: &str) -> Option<f64> {
    let ratio = sum(case, variant)? / sum(case, STOCK).filter(|&stock| stock > 0.0)?;
    as_often(case, variant).then_some(ratio)
}

/// How many times as fast as stock, measured.
fn speedup(case: &Group<'_, ReplayFigures>) -> Option<f64> {
    against_stock(case, OURS).map(|ratio| 1.0 / ratio)
}

fn simulated_speedup(case: &Group<'_, ReplayFigures>) -> Option<f64> {
    let mut rows = case.results().rows_of(&case.first().case, OURS);
    rows.find_map(|row| row.figures.simulated_speedup)
}

fn contents<'r>(case: &Group<'r, ReplayFigures>) -> Option<&'r Contents> {
    let name = &case.first().case;
    let mut rows = case.results().rows.iter().filter(|row| row.case == *name);
    rows.find_map(|row| row.figures.contents.as_ref())
}

/// Why the figures of a case are not to be believed, in words.
fn doubts(case: &Group<'_, ReplayFigures>) -> Vec<String> {
    let name = &case.first().case;
    let mut lines = Vec::new();
    match against_stock(case, AGAIN) {
        Some(ratio) if EVEN.contains(&ratio) => {}
        Some(ratio) => lines.push(format!(
            "{name}: the same stock server took {ratio:.3} times as long (A/A), which is outside \
             {} to {}: no ratio of this case is to be believed",
            EVEN.start(),
            EVEN.end()
        )),
        None => lines.push(format!(
            "{name}: stock was not measured twice in as many rounds, so nothing says how far a \
             ratio is to be believed"
        )),
    }
    if let Some(stock) = sum(case, STOCK).filter(|&stock| stock < LEAST_STOCK_SECONDS) {
        lines.push(format!(
            "{name}: stock replayed for {stock:.1} s in all, less than {LEAST_STOCK_SECONDS:.0} s: \
             raise --rounds or --megabytes"
        ));
    }
    lines.extend(not_as_simulated(case));
    lines.extend(not_as_in_production(case));
    lines
}

/// The simulation is too far from what was measured.
fn not_as_simulated(case: &Group<'_, ReplayFigures>) -> Option<String> {
    let (measured, simulated) = (speedup(case)?, simulated_speedup(case)?);
    let off = simulated / measured - 1.0;
    (off.abs() > MOST_OFF).then(|| {
        format!(
            "{}: {measured:.2} times as fast as stock, and wal analyze simulates {simulated:.2} ({:+.0} %), \
             which is more than {:.0} % off",
            case.first().case,
            off * 100.0,
            MOST_OFF * 100.0
        )
    })
}

/// A recording that is to look like production's has another share of images.
fn not_as_in_production(case: &Group<'_, ReplayFigures>) -> Option<String> {
    let name = &case.first().case;
    let of_production = [Work::Production];
    let all = ReplayCase::combinations(&of_production, &Temperature::ALL, &Placement::ALL);
    let share = contents(case)?.image_share;
    let is_other = all.iter().any(|case| case.name() == *name) && !IMAGES.contains(&share);
    is_other.then(|| {
        format!(
            "{name}: {:.0} % of the bytes are images of pages, outside {:.0} to {:.0} %: \
             choose another number of --warehouses, more for more images",
            share * 100.0,
            IMAGES.start() * 100.0,
            IMAGES.end() * 100.0
        )
    })
}

/// WAL replayed over all rounds, MB/s.
fn rate(results: &Results<ReplayFigures>, case: &str, variant: &str) -> Option<f64> {
    let seconds = results.sum(case, variant, |row| row.seconds)?;
    let megabytes = results.sum(case, variant, |row| row.wal_mb)?;
    (seconds > 0.0).then_some(megabytes / seconds)
}

#[cfg(test)]
mod tests;
