//! Which replay a standby under test has: PostgreSQL's own, or one in which helpers execute
//! records ahead while sessions read.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fastrand::Rng;
use lockstep_client::{ClientError, Connection, field};
use lockstep_lab::address::ServerAddress;
use lockstep_lab::server::{PATIENCE, SUPERUSER, Server, Settings};
use lockstep_wire::Lsn;

/// Longest time that replay is held up, and from then to the next time, in milliseconds.
const LONGEST_MS: u64 = 300;

const RESUME: &str = "SELECT pg_wal_replay_resume()";

/// How long to wait before connecting again.
const AGAIN: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replay {
    Stock,
    Helpers,
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stock => "stock",
            Self::Helpers => "with helpers",
        })
    }
}

impl Replay {
    /// A standby's settings, on top of its primary's.
    pub fn settings(self) -> Settings {
        let ours: &[(&str, &str)] = match self {
            Self::Stock => &[],
            Self::Helpers => &[
                ("shared_preload_libraries", "lockstep"),
                ("lockstep.replay_workers", "3"),
                ("lockstep.replay_hot_standby", "on"),
                // Pages are written and read again while records run ahead.
                ("shared_buffers", "2MB"),
            ],
        };
        ours.iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }
}

/// What helpers have done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Records that could run ahead.
    pub dispatched: u64,
    /// Records that helpers executed.
    pub executed: u64,
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} records dispatched, {} executed by helpers",
            self.dispatched, self.executed
        )
    }
}

impl Work {
    pub fn add(&mut self, more: Self) {
        self.dispatched += more.dispatched;
        self.executed += more.executed;
    }
}

/// Work for the helpers of a standby, while its primary writes: again and again replay is
/// held up, so that records pile up and run ahead of it. It is paused, or a session holds
/// a snapshot that what is removed has to wait for. Goes on after crashes.
///
/// A standby without helpers is left alone.
pub struct Backlogs {
    /// Set once they are to end: the end of the primary's WAL.
    stop: Arc<OnceLock<Lsn>>,
    /// Helpers never rest, so they must do something.
    at_any_cost: bool,
    /// Set once they have done something.
    worked: Arc<AtomicBool>,
    thread: Option<JoinHandle<Option<(Work, String)>>>,
}

impl Backlogs {
    /// The primary must have the extension. Helpers of odd seeds work however little WAL waits, those
    /// of even ones as in production, but for less WAL: on a busy machine perhaps not at all. Those
    /// of seeds that leave 0 or 1 when divided by 4 also read WAL for the startup process.
    pub fn start(replay: Replay, standby: &Server, seed: u64) -> Self {
        let stop = Arc::new(OnceLock::new());
        let at_any_cost = seed % 2 == 1;
        let worked = Arc::new(AtomicBool::new(false));
        let thread = (replay == Replay::Helpers).then(|| {
            let least = if at_any_cost { "0" } else { "64kB" };
            let read = if seed % 4 < 2 { "on" } else { "off" };
            for (name, value) in [("replay_min_backlog", least), ("replay_read_helpers", read)] {
                standby.run(&format!("ALTER SYSTEM SET lockstep.{name} = '{value}'"));
            }
            standby.run("SELECT pg_reload_conf()");
            let (stop, worked) = (Arc::clone(&stop), Arc::clone(&worked));
            let address = standby.config(SUPERUSER, "lockstep lab backlogs");
            thread::spawn(move || hold_up(&address, seed, &stop, &worked))
        });
        Self {
            stop,
            at_any_cost,
            worked,
            thread,
        }
    }

    /// Whether helpers have done what they must do at least.
    pub fn have_worked(&self) -> bool {
        self.thread.is_none() || !self.at_any_cost || self.worked.load(Ordering::Relaxed)
    }

    /// Ends them, on a standby that runs, and waits until it has replayed all. Helpers have done at
    /// least what is returned: what they did just before a crash is not counted.
    pub fn finish(mut self, primary: &Server) -> Work {
        let _ = self.stop.set(primary.flush_lsn().unwrap());
        let Some(thread) = self.thread.take() else {
            return Work::default();
        };
        let work = thread.join().unwrap();
        let (work, why) = work.expect("the standby answers");
        println!("  {work}");
        assert!(
            work.executed > 0 || !self.at_any_cost,
            "helpers have done nothing: {work}, parallel: {why}"
        );
        work
    }
}

impl Drop for Backlogs {
    fn drop(&mut self) {
        let _ = self.stop.set(Lsn::from(0));
    }
}

/// What helpers have done, and in the view's words whether they work at the end. None if the
/// standby cannot be asked then.
fn hold_up(
    address: &ServerAddress,
    seed: u64,
    stop: &OnceLock<Lsn>,
    worked: &AtomicBool,
) -> Option<(Work, String)> {
    let mut rng = Rng::with_seed(seed);
    let mut counted = Counted::default();
    let mut stopped: Option<Instant> = None;
    while stopped.is_none_or(|since| since.elapsed() < PATIENCE) {
        if stop.get().is_some() {
            stopped.get_or_insert_with(Instant::now);
        }
        let Ok(mut client) = address.connect() else {
            thread::sleep(AGAIN);
            continue;
        };
        // An error is a crash, or a conflict with replay.
        while stop.get().is_none()
            && once(&mut client, &mut rng).is_ok()
            && counted.count(&mut client).is_ok()
        {
            worked.store(counted.sum.executed > 0, Ordering::Relaxed);
            some_time(&mut rng);
        }
        let Some(&end) = stop.get() else { continue };
        while stopped.is_none_or(|since| since.elapsed() < PATIENCE)
            && client.execute(RESUME).is_ok()
        {
            match counted.count(&mut client) {
                Ok(replayed) if replayed >= end => return Some((counted.sum, counted.why)),
                Ok(_) => thread::sleep(AGAIN),
                Err(_) => break,
            }
        }
    }
    None
}

fn once(client: &mut Connection, rng: &mut Rng) -> Result<(), ClientError> {
    let (begin, end) = if rng.bool() {
        ("SELECT pg_wal_replay_pause()", RESUME)
    } else {
        ("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1", "COMMIT")
    };
    client.execute(begin)?;
    some_time(rng);
    client.execute(end)
}

fn some_time(rng: &mut Rng) {
    thread::sleep(Duration::from_millis(rng.u64(..=LONGEST_MS)));
}

/// Sums over crashes, after which a server counts from zero.
#[derive(Debug, Default)]
struct Counted {
    sum: Work,
    last: Work,
    /// The view's column parallel.
    why: String,
}

impl Counted {
    /// Returns what was replayed before.
    fn count(&mut self, client: &mut Connection) -> Result<Lsn, ClientError> {
        let row = client.query_one(
            "SELECT dispatched, (SELECT coalesce(sum(records), 0)::bigint FROM lockstep_stat_replay_workers), \
             coalesce(parallel, ''), \
             coalesce(pg_last_wal_replay_lsn(), '0/0') \
             FROM lockstep_stat_replay_pipeline",
        )?;
        let now = Work {
            dispatched: field(&row, 0)?,
            executed: field(&row, 1)?,
        };
        let since = |now: u64, last: u64| now.checked_sub(last).unwrap_or(now);
        self.sum.add(Work {
            dispatched: since(now.dispatched, self.last.dispatched),
            executed: since(now.executed, self.last.executed),
        });
        self.last = now;
        self.why = field(&row, 2)?;
        field(&row, 3)
    }
}
