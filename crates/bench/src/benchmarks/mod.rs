//! All benchmarks. A new one is a file here that implements [`Benchmark`], and a line in the
//! list: its command, rounds, results file, table and plots come from there.

pub mod apply;
pub mod commit;
pub mod commit_levels;
pub mod copy;
pub mod decode;
pub mod delete;
pub mod load_curve;
pub mod overhead;
pub mod pool;
pub mod priority;
pub mod relay_catchup;
mod relay_cost;
pub mod relay_fanout;
pub mod relay_mixed;
pub mod replay;
pub mod replicas;
pub mod switchover;
pub mod tables;
pub mod wal_player;
pub mod watching;

use clap::Subcommand;

use crate::Result;
use crate::args::RunArgs;
use crate::audience::Audience;
use crate::benchmark::Benchmark;
use crate::host::Host;
use crate::runner;

macro_rules! benchmarks {
    ($($name:ident($arguments:ty),)*) => {
        /// A benchmark with its arguments; help is that of the arguments.
        #[derive(Debug, Subcommand)]
        pub enum BenchCommand {
            $($name($arguments),)*
        }

        $(impl AsRef<RunArgs> for $arguments {
            fn as_ref(&self) -> &RunArgs {
                &self.run
            }
        })*

        impl BenchCommand {
            /// Runs the benchmark.
            pub fn run(&self, host: &Host, audience: &mut dyn Audience) -> Result<()> {
                match self {
                    $(Self::$name(arguments) => runner::run(arguments, host, audience),)*
                }
            }
        }

        /// Names of the benchmarks, in order.
        pub const NAMES: &[&str] = &[$(<$arguments as Benchmark>::NAME),*];

        /// What comes of reading a results file and writing it again, for each benchmark that
        /// has one in `folder`.
        #[cfg(test)]
        fn written_again(folder: &std::path::Path) -> Vec<(std::path::PathBuf, String)> {
            let mut files = Vec::new();
            $({
                let name = <$arguments as Benchmark>::NAME;
                let path = folder.join(format!("{name}.json"));
                type Results = crate::results::Results<<$arguments as Benchmark>::Figures>;
                if let Some(results) = Results::load(&path, name).unwrap() {
                    assert!(!results.rows.is_empty(), "{name}");
                    files.push((path, results.text().unwrap()));
                }
            })*
            files
        }
    };
}

benchmarks! {
    Priority(priority::PriorityArgs),
    Overhead(overhead::OverheadArgs),
    Replay(replay::ReplayArgs),
    LoadCurve(load_curve::LoadCurveArgs),
    Decode(decode::DecodeArgs),
    CommitLevels(commit_levels::CommitLevelsArgs),
    Commit(commit::CommitArgs),
    RelayFanout(relay_fanout::RelayFanoutArgs),
    RelayCatchup(relay_catchup::RelayCatchupArgs),
    RelayMixed(relay_mixed::RelayMixedArgs),
    Copy(copy::CopyArgs),
    Apply(apply::ApplyArgs),
    Tables(tables::TablesArgs),
    Switchover(switchover::SwitchoverArgs),
    Delete(delete::DeleteArgs),
    Replicas(replicas::ReplicasArgs),
    WalPlayer(wal_player::WalPlayerArgs),
    Watching(watching::WatchingArgs),
    Pool(pool::PoolArgs),
}

/// A benchmark with these options.
#[cfg(test)]
pub(crate) fn parsed<B: Benchmark>(options: &str) -> B {
    let command = B::augment_args(clap::Command::new("bench").no_binary_name(true));
    let matches = command.get_matches_from(options.split_whitespace());
    B::from_arg_matches(&matches).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark::TurnOf;
    use crate::results::Results;
    use crate::table::Named;
    use std::path::Path;

    /// Turns as `case variant round`.
    fn turns<B: Benchmark>(options: &str) -> Vec<String> {
        let benchmark: B = parsed(options);
        let line = |turn: &TurnOf<B>| {
            let case = benchmark.counts_for(turn).join("+");
            format!("{case} {} {}", turn.variant.name(), turn.round)
        };
        benchmark.plan().iter().map(line).collect()
    }

    #[test]
    fn variants_alternate_case_by_case() {
        let options = "--rounds 2 --writes tpcb --memory cached,cold --placement local";
        assert_eq!(
            turns::<replay::ReplayArgs>(options)[..7],
            [
                "tpcb-cached-local stock 1",
                "tpcb-cached-local stock-again 1",
                "tpcb-cached-local lockstep 1",
                "tpcb-cached-local lockstep 2",
                "tpcb-cached-local stock-again 2",
                "tpcb-cached-local stock 2",
                "tpcb-cold-local stock 1",
            ]
        );
    }

    #[test]
    fn the_first_of_a_pair_changes_from_round_to_round() {
        assert_eq!(
            turns::<overhead::OverheadArgs>("--rounds 2 --cases select-idle-throttle"),
            [
                "select-idle-throttle throttle-off 1",
                "select-idle-throttle throttle-on 1",
                "select-idle-throttle throttle-on 2",
                "select-idle-throttle throttle-off 2",
            ]
        );
    }

    #[test]
    fn cases_side_by_side_are_all_in_each_round() {
        assert_eq!(
            turns::<relay_catchup::RelayCatchupArgs>("--rounds 2 --cases null,null-0"),
            [
                "null stock 1",
                "null-0 lockstep 1",
                "null stock 2",
                "null-0 lockstep 2",
            ]
        );
    }

    #[test]
    fn cases_that_read_alike_share_their_stock_rounds() {
        let cases = "--rounds 2 --cases throttle-only,aggregate-10min,aggregate";
        assert_eq!(
            turns::<priority::PriorityArgs>(cases),
            [
                "throttle-only+aggregate stock 1",
                "throttle-only lockstep 1",
                "aggregate lockstep 1",
                "throttle-only+aggregate stock 2",
                "throttle-only lockstep 2",
                "aggregate lockstep 2",
                "aggregate-10min stock 1",
                "aggregate-10min lockstep 1",
            ]
        );
    }

    #[test]
    fn commands_have_the_names_of_their_files() {
        let command = BenchCommand::augment_subcommands(clap::Command::new("bench"));
        let names: Vec<_> = command
            .get_subcommands()
            .map(clap::Command::get_name)
            .collect();
        assert_eq!(names, NAMES);
        command.debug_assert();
    }

    #[test]
    fn the_recorded_plot_is_that_of_the_recorded_results() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/results");
        let results = Results::load(&folder.join("replay.json"), "replay").unwrap();
        let results = results.unwrap();
        let mut words = results.command.split(' ');
        let pg = words.by_ref().skip_while(|word| *word != "--pg").nth(1);
        let replay: replay::ReplayArgs = parsed(&format!("--pg {}", pg.unwrap()));
        let plot = replay.plot(&replay::ReplayScene::default(), "", &results);
        let plot = plot.unwrap();
        let recorded = std::fs::read_to_string(folder.join(plot.file)).unwrap();
        assert_eq!(plot.svg, recorded);
    }

    #[test]
    fn recorded_results_stay_as_they_are_when_read_and_written() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/results");
        let files = written_again(&folder);
        // Every file of results is a benchmark's, but the demo's, doctor's two, which a test writes, and one
        // of a run in a cgroup.
        let others = [
            "demo-aa.json",
            "doctor-matrix.json",
            "doctor-matrix-17.json",
            "priority-in-cgroup.json",
        ];
        let there = std::fs::read_dir(&folder).unwrap();
        let there = there.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let there =
            there.filter(|name| name.ends_with(".json") && !others.contains(&name.as_str()));
        assert_eq!(files.len(), there.count());
        for (path, text) in files {
            let recorded = std::fs::read_to_string(&path).unwrap();
            let same = text.lines().zip(recorded.lines()).find(|(a, b)| a != b);
            assert_eq!(same, None, "{}", path.display());
            assert_eq!(text.len(), recorded.len(), "{}", path.display());
        }
    }
}
