//! `lockstep bench replay`: how fast fixed WAL is replayed, stock and Lockstep alternating.

use std::time::Duration;

use clap::{Args, value_parser};
use lockstep_player::Pace;
use serde::{Deserialize, Serialize};

use crate::args::{PlaceArgs, joined, set_options, setting, settings_text, writes};
use crate::audience::{Ahead, Audience};
use crate::benchmark::{Benchmark, Plot, Site, TurnOf};
use crate::plot::bars::{self, Series};
use crate::plot::trials::color;
use crate::replay::round::{self, RoundSpec, Until};
use crate::replay::temperature::Temperature;
use crate::replay::work::{self, Amount, Recorded, Work, WorkSize};
use crate::results::{Headline, Results, megabytes, ratio, rounded};
use crate::table::{Column, Group, column};
use crate::text::{count, hundredths, tenths};
use crate::trial::Variant;
use crate::{BenchError, Result};

/// The case that the headline is about.
const HEADLINE_CASE: &str = "tpcb-cached";

/// Megabytes that a run may need: the source, its backup, and a standby.
const SPACE_MB_BASE: u64 = 8_000;

/// How fast a standby replays fixed WAL of five kinds of writes, from cached to cold data
///
/// Records the WAL of each kind on a private primary, then plays it to fresh standbys as fast as
/// they take it. Writes replay.json and a plot into the results folder. Standbys have fsync,
/// full_page_writes and synchronous_commit on; the recorded primary has fsync off, which does not
/// change its WAL.
#[derive(Debug, Args)]
#[command(mut_arg("results", writes("replay.json and the plot")))]
pub struct ReplayArgs {
    /// Rounds of each case
    #[arg(long, value_name = "N", env = "BENCH_ROUNDS", hide_env_values = true, default_value_t = 3, value_parser = value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Seconds for which each kind of writes is recorded, at most
    #[arg(long, value_name = "SECONDS", env = "BENCH_SECONDS", hide_env_values = true, default_value_t = 24, value_parser = value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// Megabytes of WAL after which recording stops sooner
    #[arg(long, value_name = "MB", default_value_t = 512, value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub megabytes: u64,
    /// Kinds of writes, separated by commas
    #[arg(long, value_enum, value_name = "KINDS", value_delimiter = ',', default_values_t = Work::ALL)]
    pub writes: Vec<Work>,
    /// What of the standby's data is in memory, separated by commas
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',', default_values_t = Temperature::ALL)]
    pub memory: Vec<Temperature>,
    /// Variants to run, separated by commas
    #[arg(long, value_enum, value_name = "VARIANTS", value_delimiter = ',', default_values_t = [Variant::Stock, Variant::Lockstep])]
    pub variants: Vec<Variant>,
    #[command(flatten)]
    pub size: WorkSize,
    /// A setting for the Lockstep standby, for experiments; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub set: Vec<(String, String)>,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// One replay of one recording.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReplayFigures {
    /// From the first byte sent until the last record was replayed.
    pub seconds: f64,
    /// Of the standby.
    pub cpu_s: f64,
    /// Of its startup process, which replays.
    pub startup_cpu_s: f64,
    pub records: u64,
    pub records_per_s: f64,
    pub wal_mb: f64,
    pub mb_per_s: f64,
    pub data_mb: f64,
    /// Of the standby.
    pub rss_mb: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<String>,
}

/// The recording that is played.
#[derive(Default)]
pub struct ReplayScene(Option<(Work, Recorded)>);

impl Benchmark for ReplayArgs {
    const NAME: &'static str = "replay";

    type Case = (Work, Temperature);
    type Variant = Variant;
    type Figures = ReplayFigures;
    type Scene = ReplayScene;

    fn place(&self) -> &PlaceArgs {
        &self.place
    }

    fn options(&self) -> String {
        format!(
            "--pg {} --rounds {} --seconds {} --megabytes {} --writes {} --memory {} \
             --variants {} --scale {} --warehouses {} --rows {} --writers {}{}",
            self.place.server.pg,
            self.rounds,
            self.seconds,
            self.megabytes,
            joined(self.writes.iter().map(|work| work.name())),
            joined(self.memory.iter().map(|temperature| temperature.name())),
            joined(self.variants.iter().map(|variant| variant.name())),
            self.size.scale,
            self.size.warehouses,
            self.size.rows,
            self.size.clients,
            set_options(&self.set),
        )
    }

    fn space_mb(&self) -> u64 {
        SPACE_MB_BASE + 3 * self.megabytes
    }

    fn needs_extension(&self) -> bool {
        self.variants.contains(&Variant::Lockstep)
    }

    fn rounds(&self) -> u32 {
        self.rounds
    }

    fn cases(&self) -> Vec<Self::Case> {
        pairs(&self.writes, &self.memory)
    }

    fn case_name(&self, case: &Self::Case) -> String {
        name(case)
    }

    fn variants(&self, _case: &Self::Case) -> Vec<Variant> {
        self.variants.clone()
    }

    fn ahead(&self, plan: &[TurnOf<Self>]) -> Ahead {
        Ahead::Steps(plan.len() + self.writes.len())
    }

    fn open(&self, _site: Site<'_>, _audience: &mut dyn Audience) -> Result<ReplayScene> {
        Ok(ReplayScene::default())
    }

    /// Records another kind of writes when it comes to that.
    fn enter(
        &self,
        site: Site<'_>,
        scene: &mut ReplayScene,
        &(work, _): &Self::Case,
        audience: &mut dyn Audience,
    ) -> Result<()> {
        match scene.0.take() {
            Some(recorded) if recorded.0 == work => {
                scene.0 = Some(recorded);
                return Ok(());
            }
            Some((_, other)) => other.remove()?,
            None => {}
        }
        audience.begin(&format!("{}: recording", work.name()));
        let amount = Amount {
            lead_in: None,
            bytes: self.megabytes * 1_000_000,
            longest: Duration::from_secs(u64::from(self.seconds)),
        };
        let recorded = work::record(site.lab, work, self.size, amount)?;
        audience.end(&format!(
            "{} MB of WAL, {} records",
            count(recorded.recording.bytes() as f64 / 1e6),
            count(recorded.records as f64)
        ));
        scene.0 = Some((work, recorded));
        Ok(())
    }

    fn measure(
        &self,
        site: Site<'_>,
        scene: &mut ReplayScene,
        turn: &TurnOf<Self>,
        _audience: &mut dyn Audience,
    ) -> Result<ReplayFigures> {
        let (_, recorded) = scene.0.as_ref().ok_or_else(BenchError::not_readied)?;
        let spec = RoundSpec {
            recording: &recorded.recording,
            data_bytes: recorded.data_bytes,
            temperature: turn.case.1,
            settings: turn.variant.standby_settings(&self.set),
            pace: Pace::Unlimited,
            lead_in: None,
            readers: None,
            until: Until::Replayed,
        };
        let outcome = round::run(site.lab, turn.variant.name(), &spec)?;
        let seconds = outcome.seconds.max(0.001);
        Ok(ReplayFigures {
            seconds: rounded(outcome.seconds),
            cpu_s: rounded(outcome.usage.cpu_s),
            startup_cpu_s: rounded(outcome.usage.startup_cpu_s),
            records: recorded.records,
            records_per_s: rounded(recorded.records as f64 / seconds),
            wal_mb: megabytes(outcome.replayed_bytes as f64),
            mb_per_s: megabytes(outcome.replayed_bytes as f64 / seconds),
            data_mb: megabytes(recorded.data_bytes as f64),
            rss_mb: rounded(outcome.usage.rss_mb),
            settings: settings_text(turn.variant, &self.set),
        })
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
        let (ours, stock) = results.ours_and_stock(HEADLINE_CASE, |row| row.mb_per_s)?;
        Some(Headline {
            metric: format!("{HEADLINE_CASE}: WAL replayed, median over rounds, MB/s"),
            ours,
            stock,
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
            "WAL replayed by one standby, MB/s, PostgreSQL {}",
            self.place.server.pg
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
            column("median over rounds", |case| Some(case.first().case.clone())),
            column("WAL MB", |case| Some(count(case.first().figures.wal_mb))),
            column("stock s", |case| seconds(case, "stock")),
            column("lockstep s", |case| seconds(case, "lockstep")),
            column("stock MB/s", |case| rate(case, "stock").map(tenths)),
            column("lockstep MB/s", |case| rate(case, "lockstep").map(tenths)),
            column("lockstep/stock", |case| {
                let stock = rate(case, "stock").filter(|&stock| stock > 0.0)?;
                Some(format!("{:.3}", rate(case, "lockstep")? / stock))
            }),
            column("stock startup CPU s", |case| startup_cpu(case, "stock")),
            column("lockstep", |case| startup_cpu(case, "lockstep")),
        ]
    }

    /// All cases that have rows, in order, whether they ran now or earlier.
    fn groups<'r>(&self, results: &'r Results<ReplayFigures>) -> Vec<Group<'r, ReplayFigures>> {
        results.each_case(pairs(&Work::ALL, &Temperature::ALL).iter().map(name))
    }
}

fn pairs(writes: &[Work], memory: &[Temperature]) -> Vec<(Work, Temperature)> {
    let with_all = |&work: &Work| memory.iter().map(move |&temperature| (work, temperature));
    writes.iter().flat_map(with_all).collect()
}

fn name((work, temperature): &(Work, Temperature)) -> String {
    format!("{}-{}", work.name(), temperature.name())
}

fn seconds(case: &Group<'_, ReplayFigures>, variant: &str) -> Option<String> {
    case.median_of(variant, |row| row.seconds).map(hundredths)
}

fn rate(case: &Group<'_, ReplayFigures>, variant: &str) -> Option<f64> {
    case.median_of(variant, |row| row.mb_per_s)
}

fn startup_cpu(case: &Group<'_, ReplayFigures>, variant: &str) -> Option<String> {
    case.median_of(variant, |row| row.startup_cpu_s)
        .map(hundredths)
}
