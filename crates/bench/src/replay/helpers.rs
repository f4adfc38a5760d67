//! What replay helpers did in a round, from the extension's views.

use lockstep_lab::LabError;
use lockstep_lab::server::{Server, Settings};
use serde::{Deserialize, Serialize};

use crate::Result;

/// What helpers did, and how the startup process waited for them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HelperCounts {
    /// Records that a helper had executed when their turn came.
    pub done_by_helpers: u64,
    /// Records that helpers took and left to the startup process.
    pub given_back: u64,
    /// Sleeps of the startup process until a helper finished a record.
    pub waits: u64,
    /// Time of these, by what the helper did: it ran or waited for a core, for storage, for a lock.
    pub wait_cpu_ms: f64,
    pub wait_io_ms: f64,
    pub wait_lock_ms: f64,
}

const COUNTS: &str = "SELECT row_to_json(c)::text FROM (SELECT done_by_helpers, \
    (SELECT coalesce(sum(given_back), 0)::bigint FROM lockstep_stat_replay_workers) AS given_back, \
    waits, wait_cpu_ms, wait_io_ms, wait_lock_ms FROM lockstep_stat_replay_pipeline) c";

/// Asks a server with these settings that has replayed all, and that nobody needs afterwards; None if it
/// is stock. Its data has no extension, and a standby cannot get one: so it is promoted.
pub fn counts(server: &mut Server, settings: &Settings) -> Result<Option<HelperCounts>> {
    if !settings.contains_key("shared_preload_libraries") {
        return Ok(None);
    }
    let recovers = server.query_text("SELECT pg_is_in_recovery()::text")?;
    if recovers.as_deref() == Some("true") {
        server.promote()?;
    }
    server.execute("CREATE EXTENSION lockstep")?;
    let text = server.query_text(COUNTS)?.unwrap_or_default();
    let counts = serde_json::from_str(&text).map_err(|error| {
        LabError::Measurement(format!("the extension's counters cannot be read: {error}"))
    })?;
    Ok(Some(counts))
}
