//! Commit-to-visible latency of a physical standby.
//!
//! A transaction that holds nothing but a small logical message commits on the primary, and the
//! standby is asked until it has replayed it. Nothing is created, so nothing is left to clean
//! up. Clocks of servers do not matter: both times are taken here.

use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::{Connection, Purpose};
use lockstep_wire::Lsn;

use crate::node::Node;
use crate::{LagError, Result};

/// Prefix of the logical message.
pub const PREFIX: &str = "lockstep_probe";

/// How long one beat may take.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Commits on the primary.
#[derive(Debug)]
pub struct Heart {
    primary: Connection,
}

/// A commit that standbys are to show.
#[derive(Debug, Clone, Copy)]
pub struct Beat {
    /// When the commit returned, which does not wait for replicas.
    committed: Instant,
    /// A position behind the commit.
    end: Lsn,
}

#[cfg(test)]
impl Beat {
    pub(crate) fn now() -> Self {
        Self {
            committed: Instant::now(),
            end: Lsn::INVALID,
        }
    }
}

impl Heart {
    pub fn connect(primary: &Node, application_name: &str) -> Result<Self> {
        let primary = Connection::connect(&primary.conninfo, Purpose::Sql, application_name)?;
        Ok(Self { primary })
    }

    pub fn beat(&mut self) -> Result<Beat> {
        self.primary.query(&format!(
            "BEGIN; SET LOCAL synchronous_commit = local; \
             SELECT pg_logical_emit_message(true, '{PREFIX}', 'beat'); COMMIT"
        ))?;
        let committed = Instant::now();
        let end = position(self.primary.query("SELECT pg_current_wal_flush_lsn()")?)?;
        Ok(Beat { committed, end })
    }
}

/// Looks for beats on a standby.
#[derive(Debug)]
pub struct Pulse {
    standby: Connection,
}

impl Pulse {
    pub fn connect(standby: &Node, application_name: &str) -> Result<Self> {
        let standby = Connection::connect(&standby.conninfo, Purpose::Sql, application_name)?;
        Ok(Self { standby })
    }

    /// The time from the commit until a new query on the standby sees it. None if it does not when
    /// the commit is `patience` old; it is asked once at least.
    pub fn feel(&mut self, beat: Beat, patience: Duration) -> Result<Option<Duration>> {
        loop {
            let replayed = position(self.standby.query("SELECT pg_last_wal_replay_lsn()")?)?;
            let waited = beat.committed.elapsed();
            if replayed >= beat.end {
                return Ok(Some(waited));
            }
            if waited >= patience {
                return Ok(None);
            }
            thread::sleep(pause(waited));
        }
    }
}

/// Pause before the standby is asked again, when the commit was `waited` ago. It makes the
/// latency 5 % too long at most, and a standby that is paused is not asked all the time.
fn pause(waited: Duration) -> Duration {
    waited / 20
}

pub(crate) fn position(rows: Vec<Vec<Option<String>>>) -> Result<Lsn> {
    let text = rows
        .into_iter()
        .next_back()
        .and_then(|row| row.into_iter().next().flatten());
    text.as_deref()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| LagError::Answer {
            what: "a position".to_owned(),
            reason: format!("{text:?} is none"),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paused_standby_is_asked_seldom() {
        let answer = Duration::from_micros(100);
        let mut waited = answer;
        let mut questions = 1;
        while waited < PATIENCE {
            waited += pause(waited) + answer;
            questions += 1;
        }
        assert!(questions < 200, "{questions} in {PATIENCE:?}");
    }
}
