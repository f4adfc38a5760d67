//! Look-ups of one user beside the load of another: one row by primary key, at a steady pace.
//!
//! The session is the user's only one, and prepares its statement. The thread that times it runs on the
//! primary's core, so that it takes nothing from the standby.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lockstep_client::{ClientError, Connection};
use lockstep_lab::LabError;
use lockstep_lab::pinning::{Pinning, Side};
use lockstep_lab::progress::Micros;
use lockstep_lab::server::Server;

use crate::Result;
use crate::replay_lag;

/// The user, whom nothing else in the benchmark is.
const USER: &str = "lookups";

/// Distance of the look-ups, if each is answered in time.
const STEP: Duration = Duration::from_millis(20);

/// Most look-ups that are kept: over five hours.
const MOST: usize = 1_000_000;

/// The prepared statement of the session.
const LOOKUP: &str = "lookup";

/// One look-up.
#[derive(Debug, Clone, Copy)]
struct Took {
    /// When it began.
    at: Micros,
    ms: f64,
}

/// How long look-ups took, ms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LookupTimes {
    pub p50_ms: f64,
    pub p99_ms: f64,
}

#[derive(Debug, Default)]
struct Shared {
    took: Mutex<Vec<Took>>,
    failure: Mutex<Option<LabError>>,
    stop: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks rows up until dropped.
#[derive(Debug)]
pub struct Lookups {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Creates the user, who may read every present and future table.
pub fn create_user(primary: &Server) -> Result<()> {
    Ok(primary.execute(&format!(
        "CREATE ROLE {USER} LOGIN; GRANT pg_read_all_data TO {USER}"
    ))?)
}

impl Lookups {
    /// Starts to look up accounts 1 to `accounts` of pgbench's tables.
    pub fn start(server: &Server, accounts: u32, pinning: &Pinning) -> Result<Self> {
        let mut session = server.connect(USER, "lockstep lab look-ups")?;
        let shared = Arc::new(Shared::default());
        let (theirs, pinning, id) = (Arc::clone(&shared), pinning.clone(), server.id().clone());
        let thread = thread::spawn(move || {
            pinning.pin_current_thread(Side::Primary);
            if let Err(error) = look_up_until_stopped(&mut session, accounts, &theirs) {
                *locked(&theirs.failure) = Some(LabError::Refused {
                    server: id,
                    what: "did not answer a look-up".to_owned(),
                    reason: error.words(),
                });
            }
        });
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// An error if a look-up failed.
    pub fn check(&self) -> lockstep_lab::Result<()> {
        locked(&self.shared.failure).take().map_or(Ok(()), Err)
    }

    /// How long those took that began in between; None if none did.
    pub fn between(&self, from: Micros, to: Micros) -> Option<LookupTimes> {
        let took = locked(&self.shared.took);
        let within = took.iter().filter(|one| one.at >= from && one.at <= to);
        let mut ms: Vec<f64> = within.map(|one| one.ms).collect();
        ms.sort_by(f64::total_cmp);
        Some(LookupTimes {
            p50_ms: replay_lag::percentile(&ms, 50.0)?,
            p99_ms: replay_lag::percentile(&ms, 99.0)?,
        })
    }
}

impl Drop for Lookups {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn look_up_until_stopped(
    session: &mut Connection,
    accounts: u32,
    shared: &Shared,
) -> std::result::Result<(), ClientError> {
    session.prepare(
        LOOKUP,
        "SELECT abalance FROM pgbench_accounts WHERE aid = $1::int",
    )?;
    let mut account = 0;
    let mut next = Instant::now();
    while !shared.stop.load(Ordering::Relaxed) {
        // A prime, so that each row has its turn wherever the step leads.
        account = (account + 7_919) % accounts.max(1);
        let (at, began) = (Micros::now(), Instant::now());
        session.query_prepared(LOOKUP, &[&(account + 1)])?;
        let ms = began.elapsed().as_secs_f64() * 1e3;
        {
            let mut took = locked(&shared.took);
            if took.len() < MOST {
                took.push(Took { at, ms });
            }
        }
        next = (next + STEP).max(Instant::now());
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(())
}
