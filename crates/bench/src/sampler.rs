//! Threads that sample a server's WAL position every few milliseconds, or as often as it
//! answers.
//!
//! A sampling session that waits for a busy core makes lag look longer than it is. So
//! both the thread and its session run under SCHED_FIFO where that is allowed (root); they
//! need some 50 microseconds for a sample.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lockstep_client::{ClientError, Connection, field};
use lockstep_lab::pinning::{Pinning, Side};
use lockstep_lab::progress::{Micros, Sample};
use lockstep_lab::server::{PATIENCE, SUPERUSER, Server};
use lockstep_lab::{LabError, Role};
use nix::unistd::{Pid, gettid};

use crate::Result;
use crate::replay_lag::{self, LagPoint, STEP_US};

/// Most samples kept of one server: over an hour at full rate.
const MOST_SAMPLES: usize = 2_000_000;

/// Distance of the primary's samples. It limits how exactly the start of a lag is known.
const PRIMARY_STEP: Duration = Duration::from_micros(STEP_US.unsigned_abs());

/// Distance of the standby's samples: each takes time of the readers' core.
const STANDBY_STEP: Duration = Duration::from_millis(5);

/// Clock before position: see [`crate::replay_lag`].
const PRIMARY_SQL: &str =
    "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, pg_current_wal_flush_lsn()";

/// Position before clock: see [`crate::replay_lag`].
const STANDBY_SQL: &str =
    "SELECT pg_last_wal_replay_lsn(), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// The prepared statement of a sampling session.
const SAMPLE: &str = "sample";

#[derive(Debug, Default)]
struct Shared {
    samples: Mutex<Vec<Sample>>,
    failure: Mutex<Option<LabError>>,
    stop: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Samples one server until dropped.
#[derive(Debug)]
struct Sampler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    /// The thread runs on the primary's core, so that it takes nothing from the standby.
    fn start(server: &Server, pinning: &Pinning) -> Result<Self> {
        let mut client = server.connect(SUPERUSER, "lockstep lab sampler")?;
        let shared = Arc::new(Shared::default());
        let (theirs, pinning, id) = (Arc::clone(&shared), pinning.clone(), server.id().clone());
        let thread = thread::spawn(move || {
            pinning.pin_current_thread(Side::Primary);
            lockstep_lab::pinning::run_promptly(gettid());
            if let Err(error) = sample_until_stopped(&mut client, id.role, &theirs) {
                *locked(&theirs.failure) = Some(LabError::Refused {
                    server: id,
                    what: "stopped answering while it was measured".to_owned(),
                    reason: error.words(),
                });
            }
        });
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    fn check(&self) -> lockstep_lab::Result<()> {
        locked(&self.shared.failure).take().map_or(Ok(()), Err)
    }

    fn newest(&self) -> Option<Sample> {
        locked(&self.shared.samples).last().copied()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn sample_until_stopped(
    client: &mut Connection,
    role: Role,
    shared: &Shared,
) -> std::result::Result<(), ClientError> {
    let (sql, lsn_column, clock_column, step) = match role {
        Role::Primary => (PRIMARY_SQL, 1, 0, PRIMARY_STEP),
        Role::Standby => (STANDBY_SQL, 0, 1, STANDBY_STEP),
    };
    if let Ok(session) = i32::try_from(client.backend_pid()) {
        lockstep_lab::pinning::run_promptly(Pid::from_raw(session));
    }
    client.prepare(SAMPLE, sql)?;
    let mut next = Instant::now();
    while !shared.stop.load(Ordering::Relaxed) {
        let rows = client.query_prepared(SAMPLE, &[])?;
        let row = rows.first().map_or(&[][..], Vec::as_slice);
        let (clock, lsn) = (field(row, clock_column)?, field(row, lsn_column)?);
        {
            let mut samples = locked(&shared.samples);
            if samples.len() < MOST_SAMPLES {
                samples.push(Sample {
                    at: Micros(clock),
                    lsn,
                });
            }
        }
        // After a late answer go on at the usual pace rather than catch up in a burst.
        next = (next + step).max(Instant::now());
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

fn await_sample_after(samplers: &[&Sampler], at: Micros, patience: Duration) {
    let after = |sampler: &&Sampler| sampler.newest().is_some_and(|sample| sample.at > at);
    let started = Instant::now();
    while !samplers.iter().all(after) && started.elapsed() < patience {
        thread::sleep(Duration::from_millis(2));
    }
}

/// Samples the replay position of a standby whose WAL does not come from a server.
#[derive(Debug)]
pub struct StandbyWatch(Sampler);

impl StandbyWatch {
    pub fn start(standby: &Server, pinning: &Pinning) -> Result<Self> {
        Sampler::start(standby, pinning).map(Self)
    }

    /// An error if the standby stopped answering.
    pub fn check(&self) -> lockstep_lab::Result<()> {
        self.0.check()
    }

    /// The newest sample, if there is one yet.
    pub fn newest(&self) -> Option<Sample> {
        self.0.newest()
    }

    /// Waits until there is a sample after `at`, at most `patience`.
    pub fn await_sample_after(&self, at: Micros, patience: Duration) {
        await_sample_after(&[&self.0], at, patience);
    }

    /// All samples so far.
    pub fn samples(&self) -> Vec<Sample> {
        locked(&self.0.shared.samples).clone()
    }
}

/// Samples both ends of replication.
#[derive(Debug)]
pub struct LagWatch {
    primary: Sampler,
    standby: Sampler,
}

impl LagWatch {
    /// Starts sampling. Returns once the standby has replayed what the primary's first
    /// sample shows, so that from then on the samples can tell any lag. Start it before
    /// there is load.
    pub fn start(primary: &Server, standby: &mut Server, pinning: &Pinning) -> Result<Self> {
        let watch = Self {
            primary: Sampler::start(primary, pinning)?,
            standby: Sampler::start(standby, pinning)?,
        };
        standby.await_event("catch up", PATIENCE, |_| {
            watch.check()?;
            Ok(watch.newest().is_some())
        })?;
        Ok(watch)
    }

    /// An error if one of the servers stopped answering.
    pub fn check(&self) -> lockstep_lab::Result<()> {
        self.primary.check()?;
        self.standby.check()
    }

    /// Lag now, if the samples can tell.
    pub fn newest(&self) -> Option<LagPoint> {
        let standby = self.standby.newest()?;
        replay_lag::newest(&locked(&self.primary.shared.samples), &[standby])
    }

    /// Waits until both ends have been sampled after `at`, at most `patience`; on a
    /// starved standby the newest sample then has to do.
    pub fn await_sample_after(&self, at: Micros, patience: Duration) {
        await_sample_after(&[&self.primary, &self.standby], at, patience);
    }

    /// Ends sampling and returns the samples of primary and standby.
    pub fn finish(self) -> Result<(Vec<Sample>, Vec<Sample>)> {
        self.check()?;
        let take = |sampler: Sampler| std::mem::take(&mut *locked(&sampler.shared.samples));
        Ok((take(self.primary), take(self.standby)))
    }
}
