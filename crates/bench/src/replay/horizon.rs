//! Keeps the dead rows that readers of a standby may still see, while WAL is recorded.
//!
//! A standby may have readers when a recording is played, which the recorded primary has not. If
//! that primary pruned dead rows at once, snapshots on the standby would miss them, and replay of
//! every pruning would wait for a recovery conflict. On a primary with `hot_standby_feedback = on` the
//! standby's oldest snapshot holds pruning back; here sessions on the primary do, whose snapshots are one
//! to two seconds old.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lockstep_client::{ClientError, Connection};
use lockstep_lab::server::{SUPERUSER, Server};

use crate::Result;

/// How long a session keeps its snapshot. Two sessions take turns, so that there always is one.
const KEPT: Duration = Duration::from_secs(2);

/// Interval at which a session looks whether it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Holds pruning back until dropped.
#[derive(Debug)]
pub(crate) struct Horizon {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Horizon {
    /// Two sessions on `primary`, half a turn apart.
    pub fn hold(primary: &Server) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for first in [KEPT, KEPT / 2] {
            let mut client = primary.connect(SUPERUSER, "lockstep lab horizon")?;
            // Both hold a snapshot before anything is written.
            begin(&mut client).map_err(|error| primary.refused("refused a snapshot", &error))?;
            let theirs = Arc::clone(&stop);
            threads.push(thread::spawn(move || {
                wait(first, &theirs);
                // An error ends the turns: the server is gone, which others report.
                while !theirs.load(Ordering::Relaxed)
                    && client.execute("COMMIT").is_ok()
                    && begin(&mut client).is_ok()
                {
                    wait(KEPT, &theirs);
                }
            }));
        }
        Ok(Self { stop, threads })
    }
}

fn begin(client: &mut Connection) -> std::result::Result<(), ClientError> {
    client.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
}

fn wait(length: Duration, stop: &AtomicBool) {
    let started = Instant::now();
    while started.elapsed() < length && !stop.load(Ordering::Relaxed) {
        thread::sleep(LOOK_EVERY);
    }
}

impl Drop for Horizon {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
