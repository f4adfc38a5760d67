//! `lockstep-lab bench priority`: replay lag under readers, stock and Lockstep alternating.

use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use lockstep_lab::pinning::Side;
use lockstep_lab::server::Server;
use lockstep_lab::workload::Workload;
use lockstep_service::words;
use lockstep_service::words::figures::{count, ms, of_hundred, slope};
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::args::{
    RunArgs, SecondsArgs, VariantsArgs, joined, rounds, seconds, set_options, setting,
    settings_text, writes,
};
use crate::audience::{Ahead, Audience, Phase, Trials};
use crate::benchmark::{Benchmark, Plot, Site, Turn, TurnOf};
use crate::lookups;
use crate::plot::{lines, trials};
use crate::results::{Headline, Results, SeriesRow, megabytes, ratio, rounded};
use crate::table::{Column, Group, column, median, table};
use crate::trial::{self, Account, Outcome, Size, TrialFigures, TrialSpec, Variant};

/// The case that the headline is about.
const HEADLINE_CASE: PriorityCase = PriorityCase::Aggregate;

/// Distance of the points of a long round, in seconds.
const SERIES_SECONDS: u64 = 5;

/// The long case is this many times as long as the others.
const LONG_FACTOR: u32 = 10;

/// Writers beside busy processes of others: few, so that the primary's core is not the bound.
const FOREIGN_WRITERS: u32 = 16;

/// Megabytes that a run may need: primary, standby, and the WAL of both.
const SPACE_MB_BASE: u64 = 2_000;
/// Megabytes that a run may need for each second measured, as a lagging standby keeps all WAL.
const SPACE_MB_PER_SECOND: u64 = 10;

/// Cases that read alike and so share their stock rounds, in one round after the other.
const SHARING: [PriorityCase; 2] = [PriorityCase::Aggregate, PriorityCase::ThrottleOnly];

/// Replay lag under readers, stock and Lockstep alternating, from fresh data each time
///
/// Writes priority.json and one plot for each case into the results folder, after every case.
/// Cases not run keep their rows. fsync, full_page_writes, synchronous_commit and
/// hot_standby_feedback are on; clients use the simple query protocol.
#[derive(Debug, Args)]
#[command(
    mut_arg(
        "rounds",
        rounds("Rounds of each case but aggregate-10min, which has one", "3")
    ),
    mut_arg("seconds", seconds("Seconds measured in each round", "60", 1)),
    mut_arg("results", writes("priority.json and the plots"))
)]
pub struct PriorityArgs {
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub time: SecondsArgs,
    /// Seconds under full load before the measurement begins
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = value_parser!(u32).range(0..=600))]
    pub warmup: u32,
    /// Seconds measured in aggregate-10min [default: ten times --seconds]
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u32).range(1..=36000))]
    pub long_seconds: Option<u32>,
    /// Cases to run, separated by commas
    #[arg(long, value_enum, value_name = "CASES", value_delimiter = ',', default_values_t = PriorityCase::ALL)]
    pub cases: Vec<PriorityCase>,
    #[command(flatten)]
    pub compared: VariantsArgs,
    /// Clients that write to the primary
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = value_parser!(u32).range(1..=900))]
    pub writers: u32,
    /// Clients that read from the standby
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = value_parser!(u32).range(1..=900))]
    pub readers: u32,
    /// pgbench scale
    #[arg(long, value_name = "N", default_value_t = 150, value_parser = value_parser!(u32).range(1..=1000))]
    pub scale: u32,
    /// A setting for the Lockstep standby, for experiments; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub set: Vec<(String, String)>,
}

/// What readers do, and what of Lockstep is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PriorityCase {
    /// Sums over 3,000 rows.
    Aggregate,
    /// One row by key.
    Select,
    /// Like aggregate, without replay priority.
    ThrottleOnly,
    /// Like aggregate, one long round, with bloat over time.
    #[value(name = "aggregate-10min")]
    Aggregate10min,
    /// Like aggregate, while nothing is written: what a read costs on data that stands still.
    AggregateStill,
    /// Like aggregate; the standby has both cores, and shares one of them with the primary.
    AggregateTwoCores,
    /// Aggregates beside 16 writers and a busy process of others on the standby's core.
    #[value(name = "foreign-1")]
    Foreign1,
    /// Like foreign-1, with 12 busy processes of others.
    #[value(name = "foreign-12")]
    Foreign12,
    /// Like foreign-1, while nothing is written.
    #[value(name = "foreign-1-still")]
    Foreign1Still,
    /// Like foreign-12, while nothing is written.
    #[value(name = "foreign-12-still")]
    Foreign12Still,
    /// Look-ups of one user beside 20 sessions with reports of another, while nothing is written.
    #[value(name = "users-20")]
    Users20,
    /// Like users-20, with 128 sessions.
    #[value(name = "users-128")]
    Users128,
    /// Like users-20, with 300 sessions.
    #[value(name = "users-300")]
    Users300,
}

impl PriorityCase {
    /// All, in the order in which they run.
    pub const ALL: [Self; 13] = [
        Self::Aggregate,
        Self::Select,
        Self::ThrottleOnly,
        Self::Aggregate10min,
        Self::AggregateStill,
        Self::AggregateTwoCores,
        Self::Foreign1,
        Self::Foreign12,
        Self::Foreign1Still,
        Self::Foreign12Still,
        Self::Users20,
        Self::Users128,
        Self::Users300,
    ];

    /// The case's name in arguments and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aggregate => "aggregate",
            Self::Select => "select",
            Self::ThrottleOnly => "throttle-only",
            Self::Aggregate10min => "aggregate-10min",
            Self::AggregateStill => "aggregate-still",
            Self::AggregateTwoCores => "aggregate-two-cores",
            Self::Foreign1 => "foreign-1",
            Self::Foreign12 => "foreign-12",
            Self::Foreign1Still => "foreign-1-still",
            Self::Foreign12Still => "foreign-12-still",
            Self::Users20 => "users-20",
            Self::Users128 => "users-128",
            Self::Users300 => "users-300",
        }
    }

    /// Busy processes of others on the standby's cores.
    fn busy_others(self) -> u32 {
        match self {
            Self::Foreign1 | Self::Foreign1Still => 1,
            Self::Foreign12 | Self::Foreign12Still => 12,
            _ => 0,
        }
    }

    /// Clients that write to the primary, of as many as were asked for.
    fn writers(self, asked: u32) -> u32 {
        match self {
            _ if self.reports().is_some() => 0,
            Self::AggregateStill | Self::Foreign1Still | Self::Foreign12Still => 0,
            Self::Foreign1 | Self::Foreign12 => asked.min(FOREIGN_WRITERS),
            _ => asked,
        }
    }

    /// Clients that read from the standby, of as many as were asked for.
    fn readers(self, asked: u32) -> u32 {
        self.reports().unwrap_or(asked)
    }

    /// Sessions with reports beside another user's look-ups.
    fn reports(self) -> Option<u32> {
        match self {
            Self::Users20 => Some(20),
            Self::Users128 => Some(128),
            Self::Users300 => Some(300),
            _ => None,
        }
    }
}

/// One trial.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PriorityFigures {
    #[serde(flatten)]
    pub trial: TrialFigures,
    pub primary_cpu_s: f64,
    /// Memory of the standby.
    pub rss_mb: f64,
    /// How sharp the measurement was: distance of neighbouring samples.
    pub primary_sample_gap_p99_ms: f64,
    pub standby_sample_gap_p99_ms: f64,
    pub dead_rows_start: i64,
    pub dead_rows_end: i64,
    pub relation_mb_start: f64,
    pub relation_mb_end: f64,
    /// Look-ups of another user, in cases users-20, users-128 and users-300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lookup_p50_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lookup_p99_ms: Option<f64>,
    /// Settings of the standby beside the usual ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<String>,
}

impl PriorityFigures {
    fn new(outcome: &Outcome, settings: Option<String>) -> Self {
        let relation_mb = |bloat: trial::Bloat| megabytes(bloat.relation_bytes as f64);
        Self {
            trial: outcome.figures().rounded(),
            primary_cpu_s: rounded(outcome.primary_usage.cpu_s),
            rss_mb: rounded(outcome.standby_usage.rss_mb),
            primary_sample_gap_p99_ms: rounded(outcome.primary_gap_p99_ms),
            standby_sample_gap_p99_ms: rounded(outcome.standby_gap_p99_ms),
            dead_rows_start: outcome.bloat_start.dead_rows,
            dead_rows_end: outcome.bloat_end.dead_rows,
            relation_mb_start: relation_mb(outcome.bloat_start),
            relation_mb_end: relation_mb(outcome.bloat_end),
            lookup_p50_ms: outcome.lookups.map(|times| rounded(times.p50_ms)),
            lookup_p99_ms: outcome.lookups.map(|times| rounded(times.p99_ms)),
            settings,
        }
    }
}

/// The primary, and what came of all trials so far.
pub struct PriorityScene {
    primary: Server,
    outcomes: Vec<(TurnOf<PriorityArgs>, Outcome)>,
}

impl Benchmark for PriorityArgs {
    const NAME: &'static str = "priority";

    type Case = PriorityCase;
    type Variant = Variant;
    type Figures = PriorityFigures;
    type Scene = PriorityScene;

    fn options(&self) -> String {
        format!(
            "{} --seconds {} --warmup {} --long-seconds {} \
             --cases {} --variants {} --writers {} --readers {} --scale {}{}",
            self.run,
            self.time.seconds,
            self.warmup,
            self.measured(PriorityCase::Aggregate10min),
            joined(self.cases.iter().map(|case| case.name())),
            self.compared,
            self.writers,
            self.readers,
            self.scale,
            set_options(&self.set)
        )
    }

    fn space_mb(&self) -> u64 {
        let longest = self.cases.iter().map(|&case| self.measured(case)).max();
        SPACE_MB_BASE
            + u64::from(self.scale) * 80
            + u64::from(longest.unwrap_or(0)) * SPACE_MB_PER_SECOND
    }

    fn needs_extension(&self) -> bool {
        self.compared.has(Variant::Lockstep)
    }

    fn cases(&self) -> Vec<PriorityCase> {
        self.cases.clone()
    }

    fn case_name(&self, case: &PriorityCase) -> String {
        case.name().to_owned()
    }

    fn variants(&self, _case: &PriorityCase) -> Vec<Variant> {
        self.compared.variants.clone()
    }

    /// Cases that share their stock rounds go together.
    fn plan(&self) -> Vec<TurnOf<Self>> {
        let mut plan = Vec::new();
        for group in self.case_groups() {
            let rounds = match group.as_slice() {
                [PriorityCase::Aggregate10min] => 1,
                _ => self.run.rounds,
            };
            for round in 1..=rounds {
                for &variant in &self.compared.variants {
                    let cases = match variant {
                        Variant::Stock => group.get(..1).unwrap_or_default(),
                        Variant::Lockstep => &group,
                    };
                    plan.extend(cases.iter().map(|&case| Turn {
                        case,
                        variant,
                        round,
                    }));
                }
            }
        }
        plan
    }

    fn counts_for(&self, turn: &TurnOf<Self>) -> Vec<String> {
        let cases = match turn.variant {
            Variant::Stock => self.group_of(turn.case),
            Variant::Lockstep => vec![turn.case],
        };
        cases.iter().map(|case| case.name().to_owned()).collect()
    }

    fn ahead(&self, plan: &[TurnOf<Self>]) -> Ahead {
        let seconds = |n: u32| Duration::from_secs(u64::from(n));
        let phase = |turn: &TurnOf<Self>| Phase {
            name: self.name_of(turn),
            load: seconds(self.warmup + self.measured(turn.case)),
        };
        Ahead::Trials(Trials {
            phases: plan.iter().map(phase).collect(),
            preparation: seconds(5 + self.scale / 3),
            warmup: seconds(self.warmup),
        })
    }

    fn conditions(&self) -> Option<String> {
        Some(format!(
            "Each trial: fresh pgbench data (scale {}), a fresh standby caught up, checkpoint on both; then {} s \
             of full load that are not measured. fsync, full_page_writes, synchronous_commit and \
             hot_standby_feedback are on; simple query protocol.",
            self.scale, self.warmup
        ))
    }

    fn open(&self, site: Site<'_>, _audience: &mut dyn Audience) -> Result<PriorityScene> {
        let mut size = self.size();
        for case in &self.cases {
            size.readers = size.readers.max(case.readers(self.readers));
        }
        let primary = trial::open_primary(site.lab, &size, self.needs_extension())?;
        lookups::create_user(&primary)?;
        Ok(PriorityScene {
            primary,
            outcomes: vec![],
        })
    }

    fn label(&self, _scene: &PriorityScene, turn: &TurnOf<Self>) -> String {
        self.name_of(turn)
    }

    fn measure(
        &self,
        site: Site<'_>,
        scene: &mut PriorityScene,
        turn: &TurnOf<Self>,
        audience: &mut dyn Audience,
    ) -> Result<PriorityFigures> {
        let settings = self.settings(turn);
        let spec = TrialSpec {
            variant: turn.variant,
            size: Size {
                writers: turn.case.writers(self.writers),
                readers: turn.case.readers(self.readers),
                ..self.size()
            },
            read: match turn.case {
                PriorityCase::Select => Workload::Select,
                case if case.reports().is_some() => Workload::Report,
                _ => Workload::Aggregate,
            },
            lookups: turn.case.reports().is_some(),
            side: match turn.case {
                PriorityCase::AggregateTwoCores => Side::Both,
                _ => Side::Standby,
            },
            busy_others: turn.case.busy_others(),
            standby_settings: turn.variant.standby_settings(&settings),
            warmup: Duration::from_secs(u64::from(self.warmup)),
            measured: Duration::from_secs(u64::from(self.measured(turn.case))),
            series_every: Duration::from_secs(SERIES_SECONDS),
        };
        let name = turn.variant.name();
        let (outcome, standby) = trial::run(site.lab, &mut scene.primary, name, &spec, audience)?;
        standby.discard(&scene.primary)?;
        let figures = PriorityFigures::new(&outcome, settings_text(turn.variant, &settings));
        scene.outcomes.push((turn.clone(), outcome));
        Ok(figures)
    }

    fn line(&self, figures: &PriorityFigures) -> String {
        let lookups = match (figures.lookup_p50_ms, figures.lookup_p99_ms) {
            (Some(p50), Some(p99)) => format!(", look-ups p50 {}, p99 {}", ms(p50), ms(p99)),
            _ => String::new(),
        };
        figures.trial.line() + &lookups
    }

    fn series(&self, scene: &PriorityScene, case: &str) -> Vec<SeriesRow> {
        if case != PriorityCase::Aggregate10min.name() {
            return vec![];
        }
        let of_case = self.outcomes(scene, case);
        let rows = of_case.iter().flat_map(|(turn, outcome)| {
            outcome.series.iter().map(|point| SeriesRow {
                case: case.to_owned(),
                variant: turn.variant.name().to_owned(),
                round: turn.round,
                second: rounded(point.second),
                lag_ms: point.lag_ms.map(rounded),
                dead_rows: point.bloat.dead_rows,
                relation_mb: megabytes(point.bloat.relation_bytes as f64),
                primary_tps: point.primary_tps.map(rounded),
                read_tps: point.read_tps.map(rounded),
            })
        });
        rows.collect()
    }

    fn plot(
        &self,
        scene: &PriorityScene,
        case: &str,
        _results: &Results<PriorityFigures>,
    ) -> Option<Plot> {
        let outcomes = self.outcomes(scene, case);
        let named = || {
            outcomes.iter().map(|(turn, outcome)| {
                let variant = turn.variant;
                (variant.title(), trials::color(variant), outcome)
            })
        };
        let mut panels = trials::panels(named());
        if case == PriorityCase::Aggregate10min.name() {
            panels.push(trials::series_panel(
                "Dead rows on the primary",
                named(),
                |point| point.bloat.dead_rows as f64,
            ));
            panels.push(trials::series_panel(
                "Size of the tables and their indexes, MB",
                named(),
                |point| megabytes(point.bloat.relation_bytes as f64),
            ));
        }
        let title = format!(
            "{case}: {} writers, {} readers, PostgreSQL {}",
            self.writers, self.readers, self.run.server.pg
        );
        Some(Plot {
            file: format!("{}-{case}.svg", Self::NAME),
            svg: lines::svg(&title, &panels),
        })
    }

    /// Lag at the end of a round, where stock's grows without bound.
    fn headline(&self, results: &Results<PriorityFigures>) -> Option<Headline> {
        let case = HEADLINE_CASE.name();
        let (ours, stock) = results.ours_and_stock(case, |row| row.trial.lag_end_ms)?;
        Some(Headline {
            metric: format!("{case}: replay lag at the end of a round, median over rounds, ms"),
            ours: rounded(ours),
            stock: rounded(stock),
            ratio: ratio(stock, ours, 1),
        })
    }

    fn columns(&self) -> Vec<Column<PriorityFigures>> {
        vec![
            column("case", |row| Some(row.first().case.clone())),
            column("round", |row| Some(row.first().round.to_string())),
            column("variant", |row| Some(row.first().variant.clone())),
            median("lag p50", |f| Some(f.trial.lag_p50_ms), ms),
            median("p99", |f| Some(f.trial.lag_p99_ms), ms),
            median("max", |f| Some(f.trial.lag_max_ms), ms),
            median("at end", |f| Some(f.trial.lag_end_ms), ms),
            median("slope", |f| Some(f.trial.lag_slope_ms_per_s), slope),
            median("primary tps", |f| Some(f.trial.primary_tps), count),
            median("reads/s", |f| Some(f.trial.read_tps), count),
            median("look-ups p99", |f| f.lookup_p99_ms, ms),
            median(
                "startup CPU",
                |f| Some(100.0 * f.trial.startup_cpu_s / f.trial.seconds.max(0.001)),
                of_hundred,
            ),
            median(
                "walreceiver",
                |f| share(f, |account| account.walreceiver_cpu_s),
                of_hundred,
            ),
            median(
                "Lockstep's workers",
                |f| share(f, |account| account.lockstep_cpu_s),
                of_hundred,
            ),
            median(
                "readers",
                |f| share(f, |account| account.readers_cpu_s),
                of_hundred,
            ),
            median("idle", |f| share(f, |account| account.idle_s), of_hundred),
            median(
                "CPU of a read",
                |f| f.trial.account.map(|account| account.read_cpu_ms),
                ms,
            ),
        ]
    }

    fn groups<'r>(&self, results: &'r Results<PriorityFigures>) -> Vec<Group<'r, PriorityFigures>> {
        results.each_row()
    }

    /// Every row, then medians over rounds with their ratios.
    fn report(&self, results: &Results<PriorityFigures>) -> Vec<String> {
        let mut lines = vec![String::new()];
        lines.extend(words::lines::table(&table(
            &self.columns(),
            &self.groups(results),
        )));
        lines.push(String::new());
        lines.extend(words::lines::table(&median_table(results)));
        lines.push(String::new());
        lines.extend(results.headline.iter().map(|headline| {
            let ratio = headline.ratio.map(|ratio| format!(", {ratio} times"));
            format!(
                "{}: stock {}, lockstep {}{}",
                headline.metric,
                headline.stock,
                headline.ours,
                ratio.unwrap_or_default()
            )
        }));
        lines
    }
}

impl PriorityArgs {
    fn size(&self) -> Size {
        Size {
            scale: self.scale,
            writers: self.writers,
            readers: self.readers,
        }
    }

    /// Seconds that are measured in each round of a case.
    fn measured(&self, case: PriorityCase) -> u32 {
        match case {
            PriorityCase::Aggregate10min => {
                self.long_seconds.unwrap_or(self.time.seconds * LONG_FACTOR)
            }
            _ => self.time.seconds,
        }
    }

    /// The cases asked for, with those that share stock rounds together.
    fn case_groups(&self) -> Vec<Vec<PriorityCase>> {
        let mut groups: Vec<Vec<PriorityCase>> = Vec::new();
        for &case in &self.cases {
            let shared = groups.iter_mut().find(|group| {
                SHARING.contains(&case) && group.iter().any(|other| SHARING.contains(other))
            });
            match shared {
                Some(group) => group.push(case),
                None => groups.push(vec![case]),
            }
        }
        groups
    }

    fn group_of(&self, case: PriorityCase) -> Vec<PriorityCase> {
        let mut groups = self.case_groups().into_iter();
        let found = groups.find(|group| group.contains(&case));
        found.unwrap_or_else(|| vec![case])
    }

    fn name_of(&self, turn: &TurnOf<Self>) -> String {
        let cases = self.counts_for(turn).join("+");
        format!("{cases} {} {}", turn.round, turn.variant.name())
    }

    /// Settings of a trial's standby beside loading the extension.
    fn settings(&self, turn: &TurnOf<Self>) -> Vec<(String, String)> {
        let mut settings = Vec::new();
        if turn.variant == Variant::Lockstep {
            if turn.case == PriorityCase::ThrottleOnly {
                settings.push(("lockstep.replay_priority".to_owned(), "off".to_owned()));
            }
            settings.extend(self.set.iter().cloned());
        }
        settings
    }

    /// Trials of a case so far.
    fn outcomes<'s>(
        &self,
        scene: &'s PriorityScene,
        case: &str,
    ) -> Vec<&'s (TurnOf<Self>, Outcome)> {
        let is_of_case = |turn: &TurnOf<Self>| self.counts_for(turn).iter().any(|c| c == case);
        let outcomes = scene.outcomes.iter();
        outcomes.filter(|(turn, _)| is_of_case(turn)).collect()
    }
}

/// A part of the standby's time, in hundredths of one core.
fn share(figures: &PriorityFigures, of: fn(Account) -> f64) -> Option<f64> {
    let seconds = figures.trial.seconds.max(0.001);
    Some(100.0 * of(figures.trial.account?) / seconds)
}

/// How a figure of a row is read and written.
type Figure = (&'static str, fn(&TrialFigures) -> f64, fn(f64) -> String);

fn median_table(results: &Results<PriorityFigures>) -> Vec<Vec<String>> {
    let figures: [Figure; 6] = [
        ("lag p50", |row| row.lag_p50_ms, ms),
        ("lag p99", |row| row.lag_p99_ms, ms),
        ("lag at end", |row| row.lag_end_ms, ms),
        ("lag slope", |row| row.lag_slope_ms_per_s, slope),
        ("primary tps", |row| row.primary_tps, count),
        ("reads/s", |row| row.read_tps, count),
    ];
    let head = [
        "median over rounds",
        "",
        "stock",
        "lockstep",
        "lockstep/stock",
    ];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    for case in results.each_case(PriorityCase::ALL.map(|case| case.name().to_owned())) {
        for (name, read, write) in figures {
            let of = |variant| case.median_of(variant, |row| read(&row.trial));
            let (stock, ours) = (of("stock"), of("lockstep"));
            let cell = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), write);
            let ratio = match (stock, ours) {
                (Some(stock), Some(ours)) if stock > 0.0 && name != "lag slope" => {
                    format!("{:.4}", ours / stock)
                }
                _ => "-".to_owned(),
            };
            table.push(vec![
                case.first().case.clone(),
                name.to_owned(),
                cell(stock),
                cell(ours),
                ratio,
            ]);
        }
    }
    table
}
