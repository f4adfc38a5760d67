//! Benchmarks and the demo: they measure in a library of their own, which is told here what
//! program it is a part of and how to show itself.

pub mod tpcc;

use anyhow::{Context, Result};
use lockstep_bench::demo::{self, DemoArgs};
use lockstep_bench::host::Host;
use lockstep_bench::measurements;

use crate::args::{Bench, Output};
use crate::exit;
use crate::terminal::Terminal;

/// Exit codes of a process that was ended by a signal start here.
pub const SIGNAL_BASE: i32 = 128;

/// Runs one benchmark.
pub fn run(benchmark: &Bench) -> Result<()> {
    match benchmark {
        Bench::Measure(command) => Ok(command.run(&host()?, &mut Terminal::new(Output::Text))?),
        Bench::Tpcc { command } => tpcc::run(command),
        Bench::Measurements { tree } => {
            for path in measurements::write(tree)? {
                println!("written: {}", path.display());
            }
            Ok(())
        }
    }
}

/// Runs the demo.
pub fn run_demo(args: &DemoArgs) -> Result<()> {
    Ok(demo::run(args, &host()?, &mut Terminal::new(args.output))?)
}

fn host() -> Result<Host> {
    Ok(Host {
        program: std::env::current_exe().context("cannot find the program that runs")?,
        interrupted: |signal| {
            exit::complain("interrupted; all servers are stopped and their files removed");
            std::process::exit(SIGNAL_BASE + signal);
        },
    })
}
