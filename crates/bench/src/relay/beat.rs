//! Rows that carry the time: the lag of real subscriptions without asking them meanwhile.
//!
//! A session inserts a row every few milliseconds with the primary's clock; a trigger of
//! the subscriber adds its own, the same machine's, when the row is applied.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lockstep_client::{ClientError, field};
use lockstep_lab::LabError;
use lockstep_lab::error::one_line;
use lockstep_lab::pinning::{Pinning, Side};
use lockstep_lab::progress::Micros;
use lockstep_lab::server::{SUPERUSER, Server};

use super::delays::Delays;
use crate::Result;

/// Pause between two rows.
const EVERY: Duration = Duration::from_millis(10);

/// What a subscriber needs beside the table.
pub(super) const TRIGGER: &str = "CREATE FUNCTION received() RETURNS trigger LANGUAGE plpgsql AS \
     'BEGIN NEW.received := clock_timestamp(); RETURN NEW; END'; \
     CREATE TRIGGER received BEFORE INSERT ON beat FOR EACH ROW EXECUTE FUNCTION received(); \
     ALTER TABLE beat ENABLE REPLICA TRIGGER received";

/// A session that writes such rows until dropped.
#[derive(Debug)]
pub struct Beat {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<std::result::Result<(), String>>>,
    primary: lockstep_lab::ServerId,
}

impl Beat {
    /// Starts to write, on the primary's cores.
    pub fn start(primary: &Server, pinning: &Pinning) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&stop);
        let config = primary.config(SUPERUSER, "lockstep beat");
        let pinning = pinning.clone();
        let thread = thread::spawn(move || {
            pinning.pin_current_thread(Side::Primary);
            let said = |error: ClientError| one_line(&error.words());
            let mut client = config.connect().map_err(said)?;
            let sql =
                "INSERT INTO beat SELECT coalesce(max(id), 0) + 1, clock_timestamp() FROM beat";
            client.prepare("beat", sql).map_err(said)?;
            while !theirs.load(Ordering::Relaxed) {
                client.query_prepared("beat", &[]).map_err(said)?;
                thread::sleep(EVERY);
            }
            Ok(())
        });
        Self {
            stop,
            thread: Some(thread),
            primary: primary.id().clone(),
        }
    }

    /// Ends the session. An error if it had ended before.
    pub fn stop(mut self) -> Result<()> {
        match self.end() {
            Some(Err(reason)) => Err(LabError::Refused {
                server: self.primary.clone(),
                what: "refused a beat".to_owned(),
                reason,
            }
            .into()),
            _ => Ok(()),
        }
    }

    fn end(&mut self) -> Option<std::result::Result<(), String>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take()?.join().ok()
    }
}

impl Drop for Beat {
    fn drop(&mut self) {
        self.end();
    }
}

/// Rows sent in a window: number, and when in microseconds since 1970.
pub(super) fn sent(primary: &Server, from: Micros, to: Micros) -> Result<Vec<(i64, i64)>> {
    let sql = "SELECT id, (extract(epoch FROM sent) * 1000000)::bigint FROM beat \
               WHERE sent BETWEEN to_timestamp($1) AND to_timestamp($2) ORDER BY id";
    let mut client = primary.connect(SUPERUSER, "lockstep lab")?;
    let rows = client
        .query_with(sql, &[&seconds(from), &seconds(to)])
        .map_err(|error| primary.refused("refused a query", &error))?;
    Ok(rows
        .iter()
        .map(|row| Ok((field(row, 0)?, field(row, 1)?)))
        .collect::<std::result::Result<_, ClientError>>()
        .map_err(|error| primary.refused("answered unexpectedly", &error))?)
}

fn seconds(at: Micros) -> String {
    format!("{}.{:06}", at.0 / 1_000_000, at.0 % 1_000_000)
}

/// Lag of each row, from when it was sent and received. A row that has not been received by `now`
/// counts with its age.
pub(super) fn delays(
    sent: &[(i64, i64)],
    received: &std::collections::BTreeMap<i64, i64>,
    now: Micros,
) -> Delays {
    let mut delays = Delays::default();
    for (id, at) in sent {
        delays.add(received.get(id).copied().unwrap_or(now.0) - at);
    }
    delays
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_counts_as_late() {
        let sent = [(1, 1_000), (2, 2_000), (3, 3_000)];
        let received = [(1, 1_010), (2, 2_020)].into();
        let delays = delays(&sent, &received, Micros(13_000));
        assert_eq!(delays.len(), 3);
        assert_eq!(delays.percentile_ms(100.0), Some(10.0));
        assert_eq!(delays.percentile_ms(1.0), Some(0.01));
    }

    #[test]
    fn times_are_written_whole() {
        assert_eq!(seconds(Micros(1_000_000_000_000_042)), "1000000000.000042");
    }
}
