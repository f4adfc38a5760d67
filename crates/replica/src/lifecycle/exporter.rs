//! The snapshot that is copied, the slot that goes on from it, and the locks that keep tables from being
//! rewritten meanwhile.
//!
//! The locks come first, and the slot then waits for the end of all transactions that are open on the
//! source. One of these may want to TRUNCATE or ALTER a table: it waits for the locks, and the locks
//! for it, without an end and where the source sees no deadlock, since a slot's wait is none of its
//! owner's locks. Everybody else's statements on the table queue behind it. So the making gives way:
//! another session looks each second whether anybody waits for the locks, and if so the slot is given up,
//! the locks end, and both are tried again after a pause. For the same reason the locks themselves
//! are waited for only shortly.
//!
//! A process that is killed meanwhile leaves no slot: the server looks each second whether it is still
//! there, and a slot that is not made yet goes with its session.

use std::collections::HashSet;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use lockstep_client::{ClientError, Connection, Conninfo, Purpose, field};
use lockstep_wire::{Lsn, Timeline};

use crate::error::{ReplicaError, Result};
use crate::lifecycle::{Watcher, session};
use crate::names::TableName;
use crate::state::APPLICATION;
use lockstep_apply::sessions;

/// The plugin that every server has.
pub const PLUGIN: &str = "pgoutput";

/// Longest time to create a slot, which waits for the end of all open transactions.
const SLOT_PATIENCE: Duration = Duration::from_secs(3600);

/// Interval of looks whether anybody waits, and whom the slot waits for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The slot's wait is told of if it waits for the same sessions at so many looks.
const LOOKS_UNTIL_TOLD: usize = 3;

/// Longest wait for a table's lock, in milliseconds: less than servers wait before they look for
/// deadlocks.
const LOCK_MS: u32 = 500;

/// Longest wait for a publication's locks, in milliseconds: an autovacuum that has one ends for
/// whoever has waited a second.
const PUBLICATION_MS: u32 = 5_000;

/// The pause before the next attempt.
const PAUSE: Duration = Duration::from_secs(5);

/// Lets the server notice that this process is gone while it waits, where it can; the second statement
/// starts its clock.
const NOTICE_END: &str = "SET client_connection_check_interval = '1s'; SELECT 1";

/// SQLSTATEs of a lock that was not free in time, and of a cancelled statement.
pub const LOCKED: &str = "55P03";
const CANCELLED: &str = "57014";

/// Longest time of a look, and how many may fail in a row.
const LOOK_PATIENCE: Duration = Duration::from_secs(10);
const MOST_FAILED: usize = 5;

/// Whoever waits for a session's locks.
const WAITING: &str = "SELECT DISTINCT l.pid FROM pg_locks l \
     WHERE NOT l.granted AND l.pid IS NOT NULL AND $1::int = ANY (pg_blocking_pids(l.pid)) ORDER BY 1";

/// Whom a session waits for.
const WAITED_FOR: &str = "SELECT DISTINCT unnest(pg_blocking_pids($1::int)) ORDER BY 1";

/// A snapshot, and the sessions that keep it and what it sees.
pub struct Exporter {
    /// The snapshot ends with the session.
    _session: Connection,
    /// Keeps the tables from being rewritten: an older snapshot sees a rewritten table as empty.
    _locks: Connection,
    pub snapshot: String,
    /// What the snapshot sees has committed before.
    pub start: Lsn,
    pub timeline: Timeline,
}

/// A session for replication that may idle and wait.
pub fn replication(source: &Conninfo) -> Result<Connection> {
    let connected = sessions::open(source, Purpose::Replication, APPLICATION);
    let mut connection = connected.map_err(ReplicaError::Source)?;
    connection.set_patience(SLOT_PATIENCE);
    Ok(connection)
}

/// Locks the tables and makes the slot with its snapshot. None if it gave way to others: a pause has
/// passed, and it is to be tried again.
pub fn export(
    source: &Conninfo,
    slot: &str,
    is_temporary: bool,
    tables: &HashSet<TableName>,
    watcher: &mut dyn Watcher,
) -> Result<Option<Exporter>> {
    // Before there are locks, for which others could wait.
    let asking = looking(source).map_err(ReplicaError::Source)?;
    let Some(locks) = lock(source, tables, watcher)? else {
        return Ok(None);
    };
    let mut maker = replication(source)?;
    let failover = !is_temporary && maker.server_version() >= 170_000;
    let timeline = maker.identify().map_err(ReplicaError::Source)?.timeline;
    let canceller = maker.canceller().map_err(ReplicaError::Source)?;
    let mut looker = Looker {
        source,
        session: Some(asking),
        failed: 0,
        locks: locks.backend_pid(),
        maker: maker.backend_pid(),
        waited_for: Vec::new(),
        looks: 0,
    };
    // Not every platform has it.
    let _ = maker.execute(NOTICE_END);
    let made = thread::scope(|scope| {
        let (ended, end) = mpsc::channel::<()>();
        let making = scope.spawn(|| {
            let _ended = ended;
            maker.create_slot_with_snapshot(slot, PLUGIN, is_temporary, failover)
        });
        let mut gives_way = false;
        while end.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
            gives_way = gives_way || looker.look(watcher);
            if gives_way {
                // Before the statement begins there is nothing to cancel, so it may take two.
                let _ = canceller.cancel();
            }
        }
        let made = making
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match made {
            Err(error) if gives_way && has_code(&error, CANCELLED) => Ok(None),
            made => made.map(Some),
        }
    });
    let Some((start, snapshot)) = made.map_err(ReplicaError::Source)? else {
        drop((maker, locks));
        thread::sleep(PAUSE);
        return Ok(None);
    };
    Ok(Some(Exporter {
        _session: maker,
        _locks: locks,
        snapshot,
        start,
        timeline,
    }))
}

pub fn has_code(error: &ClientError, code: &str) -> bool {
    (error.refusal()).is_some_and(|refusal| refusal.sqlstate == code)
}

/// Locks tables as readers do, before there is a snapshot. The session has no snapshot and no
/// transaction ID, so neither vacuum nor the slot's start waits for it. None if a table is not free.
fn lock(
    source: &Conninfo,
    tables: &HashSet<TableName>,
    watcher: &mut dyn Watcher,
) -> Result<Option<Connection>> {
    let mut locks = session(source).map_err(ReplicaError::Source)?;
    let mut sql = String::from("BEGIN");
    if !tables.is_empty() {
        let listed: Vec<_> = tables.iter().map(TableName::sql).collect();
        let listed = listed.join(", ONLY ");
        sql.push_str(&format!(
            "; SET LOCAL lock_timeout = {LOCK_MS}; LOCK TABLE ONLY {listed} IN ACCESS SHARE MODE; \
             SET LOCAL lock_timeout = 0"
        ));
    }
    let is_free = unless_locked(locks.execute(&sql), watcher)?;
    Ok(is_free.map(|()| locks))
}

/// Bounds the wait of a publication for tables that others have locked; see [`unless_locked`].
pub fn bound_wait(session: &mut Connection) -> Result<()> {
    let set = session.execute(&format!("SET lock_timeout = {PUBLICATION_MS}"));
    set.map_err(ReplicaError::Source)
}

/// What a statement that locks tables gave. None if one was not free: that is told, and a pause has passed.
pub fn unless_locked<T>(
    done: Result<T, ClientError>,
    watcher: &mut dyn Watcher,
) -> Result<Option<T>> {
    match done {
        Err(error) if has_code(&error, LOCKED) => {
            watcher.waits(&format!(
                "others have locked a table of the source; it is tried again in {} s",
                PAUSE.as_secs()
            ));
            thread::sleep(PAUSE);
            Ok(None)
        }
        done => done.map(Some).map_err(ReplicaError::Source),
    }
}

/// Looks who waits while the slot is made.
struct Looker<'a> {
    source: &'a Conninfo,
    /// None after a look that failed.
    session: Option<Connection>,
    /// Number of looks that have failed in a row.
    failed: usize,
    /// The processes of the sessions that have the locks and that make the slot.
    locks: u32,
    maker: u32,
    /// Whom the slot waited for at the last look, and at how many looks.
    waited_for: Vec<u32>,
    looks: usize,
}

/// A session for looks.
fn looking(source: &Conninfo) -> Result<Connection, ClientError> {
    let mut asking = session(source)?;
    asking.set_patience(LOOK_PATIENCE);
    Ok(asking)
}

impl Looker<'_> {
    /// True if the making has to give way: also if looks fail again and again, since others may wait.
    fn look(&mut self, watcher: &mut dyn Watcher) -> bool {
        let error = match self.asked(watcher) {
            Ok(gives_way) => {
                self.failed = 0;
                return gives_way;
            }
            Err(error) => error,
        };
        self.session = None;
        self.failed += 1;
        if self.failed < MOST_FAILED {
            return false;
        }
        watcher.waits(&format!(
            "the source does not say whether others wait for the locks of this creation ({error}). Locks \
             and slot are given up, and tried again in {} s",
            PAUSE.as_secs()
        ));
        true
    }

    fn asked(&mut self, watcher: &mut dyn Watcher) -> Result<bool, ClientError> {
        let asking = match &mut self.session {
            Some(asking) => asking,
            none => none.insert(looking(self.source)?),
        };
        let waited_for = pids(asking, WAITED_FOR, self.maker)?;
        let waiting = pids(asking, WAITING, self.locks)?;
        if !waiting.is_empty() {
            let who = sessions::words(asking, &waiting)?;
            let whom = match waited_for.is_empty() {
                true => String::new(),
                false => format!(
                    "; the slot waits for {}",
                    sessions::words(asking, &waited_for)?
                ),
            };
            watcher.waits(&format!(
                "others wait for the locks of this creation on the source: {who}{whom}. Locks and slot \
                 are given up, and tried again in {} s",
                PAUSE.as_secs()
            ));
            return Ok(true);
        }
        self.looks = match waited_for == self.waited_for {
            true => self.looks + 1,
            false => 1,
        };
        self.waited_for = waited_for;
        if self.looks == LOOKS_UNTIL_TOLD && !self.waited_for.is_empty() {
            let whom = sessions::words(asking, &self.waited_for)?;
            watcher.waits(&format!(
                "the slot waits for the end of transactions that are open on the source: {whom}"
            ));
        }
        Ok(false)
    }
}

fn pids(asking: &mut Connection, sql: &str, of: u32) -> Result<Vec<u32>, ClientError> {
    let rows = asking.query_with(sql, &[&of])?;
    rows.iter().map(|row| field(row, 0)).collect()
}
