//! `lockstep bench overhead`: what the read throttle costs while it has nothing to do.
//!
//! One standby, as many select-only clients as fit its core, and nothing to replay. The
//! throttle is turned on and off again and again while they read: neighbouring pieces of a
//! few seconds see the same machine, so a difference of one per cent can be told.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, value_parser};
use lockstep_bench::replay_lag;
use lockstep_bench::trial::{Size, Variant};
use lockstep_lab::machine;
use lockstep_lab::pinning::Side;
use lockstep_lab::progress::Micros;
use lockstep_lab::server::Server;
use lockstep_lab::workload::{Load, Workload};
use serde::{Deserialize, Serialize};

use super::results::{Headline, Measured, Results, rounded};
use super::steps::Steps;
use crate::args::ServerArgs;
use crate::scene;

/// Name of the benchmark and of its file.
const NAME: &str = "overhead";

/// Its only case.
const CASE: &str = "select-idle-throttle";

/// Variants: the throttle off and on.
const OFF: &str = "throttle-off";
const ON: &str = "throttle-on";

/// After each change, before reads count: a session takes new settings between queries.
const SETTLING: Duration = Duration::from_secs(1);

/// Megabytes that a run may need.
const SPACE_MB: u64 = 3_000;

/// `lockstep bench overhead`
#[derive(Debug, Args)]
pub struct OverheadArgs {
    /// Pairs of pieces, one with the throttle off and one with it on
    #[arg(long, value_name = "N", env = "BENCH_ROUNDS", hide_env_values = true, default_value_t = 40, value_parser = value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Seconds of each piece
    #[arg(long, value_name = "SECONDS", env = "BENCH_SECONDS", hide_env_values = true, default_value_t = 3, value_parser = value_parser!(u32).range(2..=3600))]
    pub seconds: u32,
    /// Clients that read; no more than what fits one core, or the throttle has something to do
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=900))]
    pub readers: u32,
    /// pgbench scale
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u32).range(1..=1000))]
    pub scale: u32,
    /// Folder for overhead.json
    #[arg(long, value_name = "FOLDER", default_value = "bench/results")]
    pub results: PathBuf,
    /// Which servers to use.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// One piece.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    pub case: String,
    pub variant: String,
    pub round: u32,
    pub read_tps: f64,
    /// Queries that the throttle made wait meanwhile.
    pub waits: i64,
    pub seconds: f64,
    pub date: String,
    pub commit: String,
}

impl Measured for Row {
    fn case(&self) -> &str {
        &self.case
    }

    fn variant(&self) -> &str {
        &self.variant
    }
}

/// Runs the benchmark.
pub fn run(args: &OverheadArgs) -> Result<()> {
    let path = Results::<Row>::place(&args.results, NAME)?;
    let lab = scene::open_lab(&args.server, true, SPACE_MB)?;
    let command = format!(
        "lockstep bench overhead --pg {} --rounds {} --seconds {} --readers {} --scale {}",
        args.server.pg, args.rounds, args.seconds, args.readers, args.scale
    );
    let machine = machine::describe(lab.folder(), lab.pinning());
    let mut results = Results::begin(&path, NAME, command, machine)?;
    let mut steps = Steps::new(2 * args.rounds as usize);
    steps.say(&format!("{} ({})", results.command, results.machine));

    let size = Size {
        scale: args.scale,
        writers: 1,
        readers: args.readers,
    };
    let primary = scene::open_primary(&lab, &size, true)?;
    lab.load_data(&primary, args.scale)?;
    let settings = scene::standby_settings(Variant::Lockstep, &[]);
    let mut standby = lab.standby(&primary, "standby", &settings)?;
    standby.catch_up(&primary)?;
    let mut load = lab.start_load(
        &standby,
        Side::Standby,
        Workload::Select,
        args.readers,
        args.scale,
    )?;
    let mut rows = Vec::new();
    for round in 1..=args.rounds {
        // Whichever comes first in a pair must not win by it.
        let order = if round % 2 == 1 { [OFF, ON] } else { [ON, OFF] };
        for variant in order {
            steps.begin(&format!("{round} {variant}"));
            let row = piece(
                args,
                &mut standby,
                &mut load,
                round,
                variant,
                &results.commit,
            )?;
            steps.end(&format!("{:.0} reads/s", row.read_tps));
            rows.push(row);
        }
    }
    drop(load);
    results.replace(CASE, rows, vec![]);
    results.date = machine::date();
    results.headline = headline(&results);
    results.save(&path)?;
    report(&results, &steps);
    steps.say(&format!("written to {}", scene::absolute(&path).display()));
    Ok(())
}

fn piece(
    args: &OverheadArgs,
    standby: &mut Server,
    load: &mut Load,
    round: u32,
    variant: &str,
    commit: &str,
) -> Result<Row> {
    let value = if variant == ON { "on" } else { "off" };
    standby.set([("lockstep.read_throttle", value)])?;
    standby.reload()?;
    thread::sleep(SETTLING);
    let before = waits(standby)?;
    let from = Micros::now();
    thread::sleep(Duration::from_secs(u64::from(args.seconds)));
    let to = Micros::now();
    // pgbench reports the piece's end with its next line.
    thread::sleep(SETTLING);
    load.check()?;
    Ok(Row {
        case: CASE.to_owned(),
        variant: variant.to_owned(),
        round,
        read_tps: rounded(load.tps_between(from, to)?),
        waits: waits(standby)? - before,
        seconds: rounded(to.seconds_since(from)),
        date: machine::date(),
        commit: commit.to_owned(),
    })
}

fn waits(standby: &Server) -> Result<i64> {
    let text = standby.query_text("SELECT waits::text FROM lockstep_stat_throttle")?;
    text.and_then(|text| text.parse().ok())
        .context("lockstep_stat_throttle has no waits")
}

/// On divided by off, pair by pair: percentiles of what is left of throughput.
fn ratios(results: &Results<Row>) -> Vec<f64> {
    let rounds = results.rows.iter().map(|row| row.round).max().unwrap_or(0);
    let mut ratios: Vec<f64> = (1..=rounds)
        .filter_map(|round| {
            let of = |variant: &str| {
                let mut rows = results.rows.iter();
                rows.find(|row| row.round == round && row.variant == variant)
                    .map(|row| row.read_tps)
            };
            Some(of(ON)? / of(OFF).filter(|&tps| tps > 0.0)?)
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    ratios
}

fn headline(results: &Results<Row>) -> Option<Headline> {
    let median = |variant| results.median(CASE, variant, |row| row.read_tps);
    Some(Headline {
        metric: "reads/s of select-only clients, throttle on against off, median; ratio is the median over pairs"
            .to_owned(),
        ours: median(ON)?,
        stock: median(OFF)?,
        ratio: replay_lag::median(ratios(results)).map(|ratio| (ratio * 10_000.0).round() / 10_000.0),
    })
}

fn report(results: &Results<Row>, steps: &Steps) {
    let ratios = ratios(results);
    let Some(headline) = &results.headline else {
        return;
    };
    let at = |part: usize| ratios.get(ratios.len() * part / 4).copied().unwrap_or(0.0);
    steps.say(&format!(
        "throttle off {:.0} reads/s, on {:.0}: on/off median {:.4}, quartiles {:.4} to {:.4} of {} pairs; {} queries waited",
        headline.stock,
        headline.ours,
        headline.ratio.unwrap_or(0.0),
        at(1),
        at(3),
        ratios.len(),
        results.rows.iter().map(|row| row.waits).sum::<i64>(),
    ));
}
