//! Sessions that change the tables on the primary and keep the invariants.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fastrand::Rng;
use lockstep_client::{ClientError, Connection};
use lockstep_lab::LabError;
use lockstep_lab::server::{SUPERUSER, Server};

use crate::Result;
use crate::invariants::locked;
use crate::invariants::tables::{KEYS, ROWS, SCHEMA, TABLES};

/// How many rows a transaction on `recycled` deletes or inserts.
const DOZEN: u32 = 24;

/// Pause between two rounds of vacuum.
const VACUUM_PAUSE: Duration = Duration::from_millis(30);

/// SQLSTATE of a deadlock.
pub(super) const DEADLOCK: &str = "40P01";

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    transactions: AtomicU64,
    vacuums: AtomicU64,
    failure: Mutex<Option<LabError>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Transactions committed.
    pub transactions: u64,
    /// Tables vacuumed.
    pub vacuums: u64,
}

/// Running writers. Dropping the value ends them.
#[derive(Debug)]
pub struct Writers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Writers {
    /// Starts `sessions` writers, and one session that vacuums, on a primary that has the
    /// tables.
    pub fn start(primary: &Server, seed: u64, sessions: u32) -> Result<Self> {
        let mut writers = Self {
            shared: Arc::new(Shared::default()),
            threads: Vec::new(),
        };
        for number in 0..sessions {
            let mut rng = Rng::with_seed(seed.wrapping_add(u64::from(number)));
            writers.spawn(primary, move |client, shared| {
                while !shared.stop.load(Ordering::SeqCst) {
                    write(client, &mut rng)?;
                    shared.transactions.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            })?;
        }
        writers.spawn(primary, |client, shared| {
            while !shared.stop.load(Ordering::SeqCst) {
                for table in TABLES {
                    client.execute(&format!(
                        "VACUUM (INDEX_CLEANUP on, TRUNCATE off) {SCHEMA}.{}",
                        table.name
                    ))?;
                    shared.vacuums.fetch_add(1, Ordering::Relaxed);
                }
                thread::sleep(VACUUM_PAUSE);
            }
            Ok(())
        })?;
        Ok(writers)
    }

    fn spawn(
        &mut self,
        primary: &Server,
        mut work: impl FnMut(&mut Connection, &Shared) -> std::result::Result<(), ClientError>
        + Send
        + 'static,
    ) -> Result<()> {
        let mut client = primary.connect(SUPERUSER, "lockstep lab writers")?;
        let (shared, id) = (Arc::clone(&self.shared), primary.id().clone());
        self.threads.push(thread::spawn(move || {
            if let Err(error) = work(&mut client, &shared) {
                locked(&shared.failure).get_or_insert(LabError::Refused {
                    server: id,
                    what: "failed a writer".to_owned(),
                    reason: error.words(),
                });
            }
        }));
        Ok(())
    }

    /// Ends the writers. An error if one of them failed before.
    pub fn finish(mut self) -> Result<Written> {
        self.end();
        if let Some(error) = locked(&self.shared.failure).take() {
            return Err(error.into());
        }
        Ok(Written {
            transactions: self.shared.transactions.load(Ordering::Relaxed),
            vacuums: self.shared.vacuums.load(Ordering::Relaxed),
        })
    }

    fn end(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs one transaction. If it fails in a deadlock with another session, it is rolled back.
fn write(client: &mut Connection, rng: &mut Rng) -> std::result::Result<(), ClientError> {
    let key = rng.u32(..KEYS);
    let sql = match rng.u32(..4) {
        0 => {
            let (from, to) = (rng.u32(..ROWS), rng.u32(..ROWS));
            let amount = rng.u32(1..100);
            format!(
                "BEGIN; UPDATE {SCHEMA}.account SET v = v - {amount} WHERE k = {from}; \
                 UPDATE {SCHEMA}.account SET v = v + {amount} WHERE k = {to}; COMMIT"
            )
        }
        // SKIP LOCKED leaves rows that another session has locked to that session. So one row
        // is removed for each that is added.
        1 => format!(
            "WITH gone AS (DELETE FROM {SCHEMA}.queue WHERE id = \
             (SELECT id FROM {SCHEMA}.queue ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING v) \
             INSERT INTO {SCHEMA}.queue (k, v, copy, pad) SELECT {key}, v, {key}, repeat('q', {}) FROM gone",
            key % 60
        ),
        2 => format!(
            "UPDATE {SCHEMA}.versioned SET k = {key}, copy = {key}, v = v + 1 WHERE id = {}",
            rng.u32(1..=ROWS)
        ),
        _ => recycle(rng, key),
    };
    let done = client.execute(&sql);
    match done {
        Err(error)
            if error
                .refusal()
                .is_some_and(|refusal| refusal.sqlstate == DEADLOCK) =>
        {
            client.execute("ROLLBACK")
        }
        done => done,
    }
}

/// Deletes neighboring rows, or inserts rows with other keys; one insertion in ten is rolled
/// back. Vacuum may free line pointers between the transactions.
fn recycle(rng: &mut Rng, key: u32) -> String {
    let first = rng.u32(..KEYS);
    if rng.bool() {
        return format!(
            "DELETE FROM {SCHEMA}.recycled WHERE id IN (SELECT id FROM {SCHEMA}.recycled \
             WHERE k >= {first} ORDER BY ctid LIMIT {DOZEN} FOR UPDATE SKIP LOCKED)"
        );
    }
    let end = if rng.u32(..10) == 0 {
        "ROLLBACK"
    } else {
        "COMMIT"
    };
    format!(
        "BEGIN; INSERT INTO {SCHEMA}.recycled (k, v, copy) SELECT (i * 7 + {key}) % {KEYS}, i, (i * 7 + {key}) % {KEYS} \
         FROM generate_series(1, {DOZEN}) i; {end}"
    )
}
