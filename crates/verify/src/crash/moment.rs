//! When a crash happens.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::{Connection, field};
use lockstep_lab::Result;
use lockstep_lab::server::{PATIENCE, SUPERUSER, Server};
use lockstep_wire::Lsn;
/// How long replay must stand still before [`Moment::Further`] stops waiting for more WAL.
pub const QUIET: Duration = Duration::from_secs(3);

/// When a crash happens. Each moment is waited for at most [`PATIENCE`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moment {
    Now,
    After(Duration),
    /// When the standby has replayed up to here.
    Replayed(Lsn),
    /// When the standby has replayed this many more bytes, or has replayed nothing for
    /// [`QUIET`].
    Further(u64),
    /// When these words appear in the standby's log.
    Logged(String),
    /// When a restartpoint begins. One is requested by CHECKPOINT. Needs `log_checkpoints`.
    Restartpoint,
    /// Halfway through the replay of the WAL that this statement writes on the primary, e.g. a
    /// CREATE INDEX. Replay is paused until the statement is done.
    Replaying(String),
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now => f.write_str("at once"),
            Self::After(time) => write!(f, "after {} ms", time.as_millis()),
            Self::Replayed(lsn) => write!(f, "at {lsn}"),
            Self::Further(bytes) => write!(f, "after {bytes} more bytes"),
            Self::Logged(words) => write!(f, "at the log line \"{words}\""),
            Self::Restartpoint => f.write_str("in a restartpoint"),
            Self::Replaying(sql) => write!(f, "in the replay of {sql}"),
        }
    }
}

impl Moment {
    pub(super) fn wait(&self, primary: &Server, standby: &mut Server) -> Result<()> {
        match self {
            Self::Now => Ok(()),
            Self::After(time) => {
                thread::sleep(*time);
                Ok(())
            }
            Self::Replayed(lsn) => await_replayed(standby, *lsn),
            Self::Further(bytes) => await_further(standby, *bytes),
            Self::Logged(words) => {
                let seen = standby.log_length();
                await_logged(standby, seen, words)
            }
            Self::Restartpoint => await_restartpoint(primary, standby),
            Self::Replaying(sql) => await_replaying(primary, standby, sql),
        }
    }
}

fn await_replayed(standby: &mut Server, lsn: Lsn) -> Result<()> {
    let mut client = standby.connect(SUPERUSER, "lockstep lab moment")?;
    standby.await_event(&format!("replay {lsn}"), PATIENCE, |standby| {
        standby.check_alive()?;
        Ok(replayed(&mut client, standby)? >= lsn)
    })
}

fn await_further(standby: &mut Server, bytes: u64) -> Result<()> {
    let mut client = standby.connect(SUPERUSER, "lockstep lab moment")?;
    let mut last = replayed(&mut client, standby)?;
    let wanted = Lsn::from(u64::from(last) + bytes);
    let mut moved = Instant::now();
    standby.await_event(&format!("replay {wanted}"), PATIENCE, |standby| {
        standby.check_alive()?;
        let now = replayed(&mut client, standby)?;
        if now > last {
            last = now;
            moved = Instant::now();
        }
        Ok(now >= wanted || moved.elapsed() > QUIET)
    })
}

/// The replay position. All reads use one session: connecting for each would take longer than
/// the moment that is waited for.
fn replayed(client: &mut Connection, standby: &Server) -> Result<Lsn> {
    client
        .query_one("SELECT coalesce(pg_last_wal_replay_lsn(), '0/0')")
        .and_then(|row| field(&row, 0))
        .map_err(|error| standby.refused("refused a query", &error))
}

fn await_logged(standby: &mut Server, seen: u64, words: &str) -> Result<()> {
    standby.await_event(&format!("log \"{words}\""), PATIENCE, |standby| {
        Ok(standby
            .log_since(seen)
            .is_some_and(|log| log.contains(words)))
    })
}

/// Waits until a restartpoint begins. It needs a checkpoint record that was replayed since the
/// last restartpoint, so the primary makes a checkpoint first.
fn await_restartpoint(primary: &Server, standby: &mut Server) -> Result<()> {
    primary.execute("CHECKPOINT")?;
    standby.catch_up(primary)?;
    let mut client = standby.connect(SUPERUSER, "lockstep lab moment")?;
    let seen = standby.log_length();
    // The statement fails when the server crashes, which is expected.
    thread::spawn(move || client.execute("CHECKPOINT"));
    await_logged(standby, seen, "restartpoint starting")
}

fn await_replaying(primary: &Server, standby: &mut Server, sql: &str) -> Result<()> {
    standby.execute("SELECT pg_wal_replay_pause()")?;
    let before = primary.flush_lsn()?;
    let done = primary.execute(sql).and_then(|()| primary.flush_lsn());
    standby.execute("SELECT pg_wal_replay_resume()")?;
    let (before, after) = (u64::from(before), u64::from(done?));
    await_replayed(
        standby,
        Lsn::from(before + after.saturating_sub(before) / 2),
    )
}
