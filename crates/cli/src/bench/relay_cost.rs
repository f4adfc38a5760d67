//! What the benchmarks of the relay have in common: how consumers reach the primary by
//! variant, and what a round cost.

use anyhow::{Context, Result};
use lockstep_bench::relay::process::RelayOptions;
use lockstep_bench::relay::scene::{Spent, Way};
use lockstep_bench::trial::Variant;
use serde::{Deserialize, Serialize};

use super::results::rounded;

/// Megabytes (10^6 bytes).
fn megabytes(bytes: u64) -> f64 {
    rounded(bytes as f64 / 1e6)
}

/// Keys of a row that say what it cost.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Cost {
    pub seconds: f64,
    /// Of all its processes.
    pub primary_cpu_s: f64,
    pub walsender_cpu_s: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay_cpu_s: Option<f64>,
    /// The most that the relay had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay_rss_mb: Option<f64>,
    /// Read by walsenders: WAL, catalogs, what they had spilled; from the page cache too.
    pub primary_read_mb: f64,
    /// What of it storage had to deliver.
    pub primary_storage_read_mb: f64,
}

impl Cost {
    pub fn new(spent: &Spent, relay_rss_mb: Option<f64>) -> Self {
        Self {
            seconds: rounded(spent.seconds),
            primary_cpu_s: rounded(spent.primary_cpu_s),
            walsender_cpu_s: rounded(spent.walsenders.cpu_s),
            relay_cpu_s: spent.relay_cpu_s.map(rounded),
            relay_rss_mb: relay_rss_mb.map(rounded),
            primary_read_mb: megabytes(spent.walsenders.read_calls_bytes),
            primary_storage_read_mb: megabytes(spent.walsenders.read_storage_bytes),
        }
    }
}

/// How consumers of a variant reach the primary.
pub fn way(variant: Variant, cache: &str) -> Result<Way> {
    Ok(match variant {
        Variant::Stock => Way::Direct,
        Variant::Lockstep => Way::Relay(RelayOptions {
            program: std::env::current_exe().context("cannot find the program that runs")?,
            cache: cache.to_owned(),
        }),
    })
}

/// Ours against stock's, for a headline; None where ours is 0.
pub fn ratio(better: f64, worse: f64) -> Option<f64> {
    (worse > 0.0).then(|| (better / worse * 100.0).round() / 100.0)
}
