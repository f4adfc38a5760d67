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

#[derive(Debug)]
pub struct Heartbeat {
    primary: Connection,
    standby: Connection,
}

impl Heartbeat {
    pub fn connect(primary: &Node, standby: &Node, application_name: &str) -> Result<Self> {
        let connect =
            |node: &Node| Connection::connect(&node.conninfo, Purpose::Sql, application_name);
        Ok(Self {
            primary: connect(primary)?,
            standby: connect(standby)?,
        })
    }

    /// The time from the commit's return, which does not wait for replicas, until a new query
    /// on the standby sees the transaction. None if that takes longer than [`PATIENCE`].
    pub fn beat(&mut self) -> Result<Option<Duration>> {
        self.primary.query(&format!(
            "BEGIN; SET LOCAL synchronous_commit = local; \
             SELECT pg_logical_emit_message(true, '{PREFIX}', 'beat'); COMMIT"
        ))?;
        let committed = Instant::now();
        let end = position(self.primary.query("SELECT pg_current_wal_flush_lsn()")?)?;
        while committed.elapsed() < PATIENCE {
            let replayed = position(self.standby.query("SELECT pg_last_wal_replay_lsn()")?)?;
            if replayed >= end {
                return Ok(Some(committed.elapsed()));
            }
            thread::sleep(pause(committed.elapsed()));
        }
        Ok(None)
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
