//! Benchmarks: one module for each, and the file that their results go to.

pub mod priority;
mod results;
