//! Benchmarks: one module for each, and the file that their results go to.

pub mod commit_levels;
pub mod decode;
pub mod lag_sampling;
pub mod load_curve;
pub mod overhead;
pub mod priority;
mod priority_rows;
pub mod relay_catchup;
mod relay_cost;
pub mod relay_fanout;
pub mod relay_mixed;
pub mod replay;
mod results;
mod steps;
pub mod tpcc;
pub mod wal_player;

use anyhow::Result;
use lockstep_bench::trial::Variant;

use crate::args::Bench;

/// Runs one benchmark.
pub fn run(benchmark: &Bench) -> Result<()> {
    match benchmark {
        Bench::Priority(args) => priority::run(args),
        Bench::Overhead(args) => overhead::run(args),
        Bench::Replay(args) => replay::run(args),
        Bench::LoadCurve(args) => load_curve::run(args),
        Bench::Decode(args) => decode::run(args),
        Bench::CommitLevels(args) => commit_levels::run(args),
        Bench::LagSampling(args) => lag_sampling::run(args),
        Bench::RelayFanout(args) => relay_fanout::run(args),
        Bench::RelayCatchup(args) => relay_catchup::run(args),
        Bench::RelayMixed(args) => relay_mixed::run(args),
        Bench::Tpcc { command } => tpcc::run(command),
        Bench::WalPlayer(args) => wal_player::run(args),
    }
}

/// What a row says of settings given on the command line, which only Lockstep's standby has.
fn settings_text(variant: Variant, set: &[(String, String)]) -> Option<String> {
    if variant == Variant::Stock || set.is_empty() {
        return None;
    }
    let settings: Vec<_> = set.iter().map(|(n, v)| format!("{n}={v}")).collect();
    Some(settings.join(" "))
}

/// The same as options of a command.
fn set_options(set: &[(String, String)]) -> String {
    set.iter().map(|(n, v)| format!(" --set {n}={v}")).collect()
}
