//! The fence of a database that a switchover leaves: no ordinary session commits a write there any more.
//!
//! Three things hold it, all of which outlive a crash. `default_transaction_read_only` is on for the
//! database, so new sessions begin read-only; sessions from before are ended; and each table has a trigger
//! that refuses writes, for those that set it off, superusers too. The triggers do not fire for sessions with
//! `session_replication_role = replica`, which a replica in the other direction needs.
//!
//! [`plant`] makes the triggers, whose function lets everything pass, one table after the other: nobody waits
//! for thousands of them. [`raise`] lets the function refuse, which is one commit. A transaction that has
//! locked a table for writing before that may not see it. So [`raise`] waits until each of these has ended,
//! prepared ones, too: whatever was committed in these tables lies before the position that it returns.
//! [`gaps`] says afterwards whether somebody has taken triggers away.
//!
//! Function `lockstep.fence()` is there before anything else of the fence, and the last to go, so it says
//! whether a switchover has left something; its comment keeps what the setting was. [`pass`] lets it pass
//! everything again, which waits for no lock; [`remove`] takes the rest away.
//!
//! [`close`] keeps the target from being written until it opens, in the same way with names of its own: the
//! target may have the fence of the switchover that has left it, which stays if this one is taken back.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lockstep_apply::sessions::SILENT;
use lockstep_client::ClientError;
use lockstep_service::words::figures::counted;
use lockstep_wire::Lsn;

use crate::error::{ReplicaError, Result};
use crate::names::named;

mod server;

pub use server::FenceFacts;
pub(crate) use server::{look, tables};

/// Why a database takes no writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// A switchover has left it.
    Left,
    /// A switchover comes to it.
    Comes,
}

impl Fence {
    /// The name of the function; those of the triggers end with it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Left => "fence",
            Self::Comes => "closed",
        }
    }
}

/// Transactions that have locked a table for writing, by their names, and their processes: 0 for a prepared
/// one.
pub type Writers = BTreeMap<String, u32>;

/// A database that can be fenced: a session of it, or that of a simulation. What a method changes is one
/// commit.
pub trait Fenced {
    /// Settings of the session alone.
    fn set(&mut self, settings: &str) -> Result<(), ClientError>;

    /// The words of the function's comment, empty if it has none; None if there is no function.
    fn comment(&mut self, fence: Fence) -> Result<Option<String>, ClientError>;

    /// The database's own setting of `default_transaction_read_only`.
    fn setting(&mut self) -> Result<Option<String>, ClientError>;

    /// Makes the function, and the schema for it. It lets everything pass.
    fn make_function(&mut self, fence: Fence) -> Result<(), ClientError>;

    /// Lets the function pass everything.
    fn let_pass(&mut self, fence: Fence) -> Result<(), ClientError>;

    /// Lets the function refuse writes, and sessions begin read-only. If there is a `comment`, it is kept.
    fn refuse(&mut self, fence: Fence, comment: Option<&str>) -> Result<(), ClientError>;

    /// Sets `default_transaction_read_only` of the database, or unsets it, and takes the comment away.
    fn restore(&mut self, fence: Fence, setting: Option<&str>) -> Result<(), ClientError>;

    fn drop_function(&mut self, fence: Fence) -> Result<(), ClientError>;

    /// Tables that lack its trigger, or whose trigger does not fire.
    fn unfenced(&mut self, fence: Fence) -> Result<Vec<String>, ClientError>;

    /// Tables that have its trigger.
    fn fenced(&mut self, fence: Fence) -> Result<Vec<String>, ClientError>;

    /// Makes the trigger of a table. False if that is locked for so long.
    fn make_trigger(
        &mut self,
        fence: Fence,
        table: &str,
        patience: Duration,
    ) -> Result<bool, ClientError>;

    /// Drops it. False if the table is locked.
    fn drop_trigger(&mut self, fence: Fence, table: &str) -> Result<bool, ClientError>;

    /// The server's time.
    fn clock(&mut self) -> Result<String, ClientError>;

    /// Ends sessions that began at a time of the server's or before and are not `spared`, all or those that
    /// are idle. Returns how many there were.
    fn end_sessions(
        &mut self,
        begun: &str,
        spared: &[u32],
        is_idle: bool,
    ) -> Result<u64, ClientError>;

    /// Transactions of others that have locked a table for writing.
    fn writers(&mut self) -> Result<Writers, ClientError>;

    /// Names of the transactions that are prepared in the database.
    fn prepared(&mut self) -> Result<Vec<String>, ClientError>;

    /// The processes in words, with what they do.
    fn words(&mut self, processes: &[u32]) -> Result<String, ClientError>;

    /// The end of the WAL once a commit, with all before it, is on disk.
    fn mark(&mut self) -> Result<Lsn, ClientError>;

    fn now(&self) -> Instant;

    fn rest(&mut self, time: Duration);
}

/// What the comment of a fence's function says of the setting begins with this.
const BEFORE: &str = "default_transaction_read_only before: ";

/// What it says if there was none.
const UNSET: &str = "unset";

/// Whether something of a fence is there.
pub(crate) fn is_there(session: &mut impl Fenced, fence: Fence) -> Result<bool, ClientError> {
    Ok(session.comment(fence)?.is_some())
}

/// Whether a fence refuses writes.
pub(crate) fn is_up(session: &mut impl Fenced, fence: Fence) -> Result<bool, ClientError> {
    let comment = session.comment(fence)?;
    Ok(comment.is_some_and(|it| it.starts_with(BEFORE)))
}

/// A commit waits for no standby: the replica, which may be one, is held.
const LOCAL: &str = "SET synchronous_commit = local";

/// How long the removal of one table's trigger waits for its readers.
const REMOVED_WITHIN: &str = "SET lock_timeout = '300ms'";

/// Longest waits for a table, at first and at last: all who want to write into it wait meanwhile.
const LOCKED_WITHIN: Duration = Duration::from_millis(20);
const LOCKED_AT_MOST: Duration = Duration::from_secs(1);

/// Makes the triggers of a fence that are missing. Its function is made if there is none, and lets everything
/// pass. Tables that are locked come last, with more time; returns one that is locked for `patience`, or
/// [`LOCKED_AT_MOST`].
pub(crate) fn plant(
    session: &mut impl Fenced,
    fence: Fence,
    patience: Duration,
) -> Result<Option<String>, ClientError> {
    session.set(SILENT)?;
    // What commits later, and is flushed, flushes all of this.
    session.set("SET synchronous_commit = off")?;
    if !is_there(session, fence)? {
        session.make_function(fence)?;
    }
    let patience = patience.min(LOCKED_AT_MOST);
    let mut most = LOCKED_WITHIN.min(patience);
    loop {
        let mut locked = None;
        // Each by itself: no session that locks several tables waits for one while this waits for another.
        for table in session.unfenced(fence)? {
            if session.make_trigger(fence, &table, most)? {
                continue;
            }
            locked = Some(table);
            if most >= patience {
                break;
            }
        }
        if locked.is_none() || most >= patience {
            return Ok(locked);
        }
        most = (most * 2).min(patience);
    }
}

/// Lets the function of a fence refuse writes, and sessions begin read-only. The comment keeps what the
/// setting was.
fn begin(session: &mut impl Fenced, fence: Fence) -> Result<(), ClientError> {
    session.set(SILENT)?;
    session.set(LOCAL)?;
    let comment = match session.comment(fence)?.is_none_or(|it| it.is_empty()) {
        true => {
            let before = session.setting()?;
            Some(format!("{BEFORE}{}", before.as_deref().unwrap_or(UNSET)))
        }
        false => None,
    };
    session.refuse(fence, comment.as_deref())
}

/// Fences the database of a session, whose triggers are there, and returns the end of its WAL: everything
/// that ordinary sessions have committed there lies before. Ends all sessions but its own and those that are
/// `spared`, idle ones at once and others when no transaction is open any more that has written. An error
/// after `patience` if a session or a transaction that has written does not end, a prepared one within
/// [`PREPARED_WITHIN`]. Another call does the same again.
pub(crate) fn raise(session: &mut impl Fenced, spared: &[u32], patience: Duration) -> Result<Lsn> {
    let began = session.now();
    let source = ReplicaError::Source;
    begin(session, Fence::Left).map_err(source)?;
    // Sessions that are connected now would not notice the setting, and no trigger holds what they write
    // elsewhere.
    let connected = session.clock().map_err(source)?;
    let mut writers = session.writers().map_err(source)?;
    loop {
        let mut open = Open {
            sessions: 0,
            writers: still(session, &mut writers).map_err(source)?,
            prepared: session.prepared().map_err(source)?,
        };
        let ended = session.end_sessions(&connected, spared, !open.is_none());
        open.sessions = ended.map_err(source)?;
        if open.is_none() {
            return session.mark().map_err(source);
        }
        if session.now().duration_since(began) >= open.patience(patience) {
            let who = session.words(&open.writers).map_err(source)?;
            return Err(ReplicaError::State(open.words(&who)));
        }
        session.rest(LOOK_EVERY);
    }
}

/// Longest wait for prepared transactions behind the fence: who would end them may be a client that waits.
pub(crate) const PREPARED_WITHIN: Duration = Duration::from_millis(500);

/// Interval of looks whether sessions and transactions have ended.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// What has not ended yet behind a fence.
#[derive(Debug, Default)]
struct Open {
    sessions: u64,
    /// Processes of transactions that have locked a table for writing: 0 for prepared ones.
    writers: Vec<u32>,
    prepared: Vec<String>,
}

impl Open {
    fn is_none(&self) -> bool {
        self.sessions == 0 && self.writers.is_empty() && self.prepared.is_empty()
    }

    /// How long it may take.
    fn patience(&self, most: Duration) -> Duration {
        let is_prepared = !self.prepared.is_empty();
        match is_prepared && self.writers.iter().all(|pid| *pid == 0) {
            true => most.min(PREPARED_WITHIN),
            false => most,
        }
    }

    fn words(&self, who: &str) -> String {
        if !self.prepared.is_empty() {
            return format!(
                "the source has prepared transactions that did not end in time: {} (end each with COMMIT \
                 PREPARED or ROLLBACK PREPARED)",
                self.prepared.join(", ")
            );
        }
        match self.writers.is_empty() {
            true => format!(
                "{} that were connected to the source have not ended in time",
                counted(self.sessions, "session")
            ),
            false => format!(
                "transactions that have locked a table for writing have not ended in time: {who}"
            ),
        }
    }
}

/// Leaves only those writers that have not ended, and adds prepared ones: one of them may have been prepared
/// since, which gives it another name. Returns their processes.
fn still(session: &mut impl Fenced, before: &mut Writers) -> Result<Vec<u32>, ClientError> {
    if !before.is_empty() {
        let mut now = session.writers()?;
        now.retain(|transaction, pid| *pid == 0 || before.contains_key(transaction));
        *before = now;
    }
    Ok(before.values().copied().collect())
}

/// Keeps the database of a session, whose triggers are there, from being written, but for sessions with
/// `session_replication_role = replica`. No session is ended. An error after `patience` if a transaction that
/// has written into a table does not end. Another call does the same again.
pub(crate) fn close(session: &mut impl Fenced, patience: Duration) -> Result<()> {
    let began = session.now();
    let target = ReplicaError::Target;
    begin(session, Fence::Comes).map_err(target)?;
    let mut writers = session.writers().map_err(target)?;
    loop {
        let pids = still(session, &mut writers).map_err(target)?;
        if pids.is_empty() {
            return Ok(());
        }
        if session.now().duration_since(began) >= patience {
            let who = session.words(&pids).map_err(target)?;
            return Err(ReplicaError::State(format!(
                "transactions on the target that have locked a table for writing have not ended in time: {who}"
            )));
        }
        session.rest(LOOK_EVERY);
    }
}

/// Tables that a fence no longer holds, and whether sessions begin read-only, in words; None if it is whole.
pub(crate) fn gaps(session: &mut impl Fenced, fence: Fence) -> Result<Option<String>, ClientError> {
    let mut words = Vec::new();
    let unfenced = session.unfenced(fence)?;
    if !unfenced.is_empty() {
        words.push(format!(
            "trigger lockstep_{} is disabled or missing on {}",
            fence.name(),
            named(&unfenced)
        ));
    }
    let setting = session.setting()?;
    if setting.as_deref() != Some("on") {
        words.push("default_transaction_read_only is not on for the database".to_owned());
    }
    Ok((!words.is_empty()).then(|| words.join(", and ")))
}

/// Lets a fence, if there is one, pass everything, and restores the setting. Waits for no lock of a table.
pub fn pass(session: &mut impl Fenced, fence: Fence) -> Result<(), ClientError> {
    let Some(comment) = session.comment(fence)? else {
        return Ok(());
    };
    session.set(SILENT)?;
    session.set(LOCAL)?;
    session.let_pass(fence)?;
    match comment.strip_prefix(BEFORE) {
        None => Ok(()),
        Some(before) => session.restore(fence, Some(before).filter(|it| *it != UNSET)),
    }
}

/// Removes triggers that let everything pass, and the function with the last of them. Returns tables that are
/// in use, whose triggers stay.
pub fn remove(session: &mut impl Fenced, fence: Fence) -> Result<Vec<String>, ClientError> {
    let mut left = Vec::new();
    if !is_there(session, fence)? {
        return Ok(left);
    }
    session.set(SILENT)?;
    session.set(REMOVED_WITHIN)?;
    for table in session.fenced(fence)? {
        if !session.drop_trigger(fence, &table)? {
            left.push(table);
        }
    }
    session.set("SET lock_timeout = 0")?;
    if left.is_empty() {
        session.drop_function(fence)?;
    }
    Ok(left)
}

/// Words for triggers of a fence that stay.
pub(crate) fn left(fence: Fence, tables: &[String]) -> Option<String> {
    (!tables.is_empty()).then(|| {
        format!(
            "triggers lockstep_{}, which let everything pass now, stay on tables that are in use: {}",
            fence.name(),
            tables.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_end_behind_a_fence_is_named_and_prepared_transactions_are_given_less_time() {
        let second = Duration::from_secs(1);
        let gid = || vec!["order 7".to_owned()];
        let open = |sessions, writers: &[u32], prepared| Open {
            sessions,
            writers: writers.to_vec(),
            prepared,
        };
        for (open, patience, words) in [
            (open(1, &[0], gid()), PREPARED_WITHIN, "order 7"),
            (open(0, &[0], gid()), PREPARED_WITHIN, "COMMIT PREPARED"),
            (open(0, &[], gid()), PREPARED_WITHIN, "order 7"),
            (open(0, &[7, 0], gid()), second, "order 7"),
            (
                open(0, &[7], Vec::new()),
                second,
                "writing have not ended in time: who",
            ),
            (open(2, &[], Vec::new()), second, "2 sessions"),
        ] {
            assert!(!open.is_none());
            assert_eq!(open.patience(second), patience, "{open:?}");
            assert!(open.words("who").contains(words), "{open:?}");
        }
        assert!(Open::default().is_none());
        let short = Duration::from_millis(9);
        assert_eq!(open(0, &[0], gid()).patience(short), short);
    }
}
