//! Benchmarks: one module for each, and the file that their results go to.

pub mod decode;
pub mod overhead;
pub mod priority;
mod priority_rows;
mod results;
mod steps;
pub mod tpcc;

use anyhow::Result;

use crate::args::Bench;

/// Runs one benchmark.
pub fn run(benchmark: &Bench) -> Result<()> {
    match benchmark {
        Bench::Priority(args) => priority::run(args),
        Bench::Overhead(args) => overhead::run(args),
        Bench::Decode(args) => decode::run(args),
        Bench::Tpcc { command } => tpcc::run(command),
    }
}
