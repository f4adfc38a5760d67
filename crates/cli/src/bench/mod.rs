//! Benchmarks: one module for each, and the file that their results go to.

pub mod decode;
pub mod overhead;
pub mod priority;
mod priority_rows;
mod results;
mod steps;
pub mod tpcc;
