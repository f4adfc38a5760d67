//! What the benchmarks of the relay have in common: how consumers reach the primary by
//! variant, and what a round cost.

use lockstep_lab::server::Server;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::benchmark::Site;
use crate::relay::process::RelayOptions;
use crate::relay::publisher;
use crate::relay::scene::{Spent, Way};
use crate::results::{megabytes, rounded};
use crate::trial::Variant;

/// Keys of a row that say what it cost.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Cost {
    pub seconds: f64,
    /// CPU seconds of all processes of the primary.
    pub primary_cpu_s: f64,
    pub walsender_cpu_s: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay_cpu_s: Option<f64>,
    /// Most memory that the relay had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay_rss_mb: Option<f64>,
    /// What walsenders read: WAL, catalogs, spilled changes; from the page cache too.
    pub primary_read_mb: f64,
    /// The part of `primary_read_mb` that storage had to deliver.
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
            primary_read_mb: megabytes(spent.walsenders.read_calls_bytes as f64),
            primary_storage_read_mb: megabytes(spent.walsenders.read_storage_bytes as f64),
        }
    }
}

/// How consumers of a variant reach the primary.
pub fn way(site: Site<'_>, variant: Variant, cache: &str) -> Way {
    match variant {
        Variant::Stock => Way::Direct,
        Variant::Lockstep => Way::Relay(RelayOptions {
            program: site.product.to_path_buf(),
            cache: cache.to_owned(),
            failover: false,
        }),
    }
}

/// A primary for consumers of logical replication.
pub fn open_primary(site: Site<'_>, subscribers: u32) -> Result<Server> {
    let settings = publisher::settings(subscribers);
    let mut primary = site.lab.primary("primary", None, &settings)?;
    publisher::prepare(site.lab, &mut primary)?;
    Ok(primary)
}
