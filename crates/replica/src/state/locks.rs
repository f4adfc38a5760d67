//! Locks on a replica. They are advisory locks, which live as long as the session and which any role that
//! may connect to the database can take: so whoever refuses because of one says who holds it.

use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::quote::sql_literal;
use lockstep_client::{ClientError, Connection, field};

use super::{APPLICATION, ReplicaState};
use crate::error::{ReplicaError, Result};
use lockstep_apply::{origins, sessions};

/// Longest wait for another lockstep's lock.
pub(super) const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// Time in which a process that applies has written its state, if it lives: it writes every second.
const WRITES_WITHIN: Duration = Duration::from_millis(1_500);

/// Longest wait for a process that is at the replica's origins without its lock: its server was restarted,
/// and it takes the lock again, or it was killed, and the server notices that.
const COMES_BACK: Duration = Duration::from_secs(5);

/// Interval of looks whether it does.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// SQLSTATE of a lock that was not free in time.
pub const LOCKED: &str = "55P03";

/// Who holds a replica's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    Nobody,
    /// The session that has written [`Applied`].
    Apply,
    /// Another: `replica create` or `drop`.
    Other,
}

/// Advisory locks of a replica.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lock {
    /// Whoever changes it: `create`, `run`, `drop`.
    Replica,
    /// Whoever holds it still: `verify`.
    Hold,
}

/// The key of a lock, in SQL.
fn lock_key(what: Lock, name: &str) -> Result<String, ClientError> {
    key(
        match what {
            Lock::Replica => "lockstep replica ",
            Lock::Hold => "lockstep hold ",
        },
        name,
    )
}

fn key(prefix: &str, name: &str) -> Result<String, ClientError> {
    let name = sql_literal("name", name)?;
    Ok(format!("hashtextextended('{prefix}' || {name}, 0)"))
}

/// The processes that these wait for, directly or not, and that are none of them; and whether each waits
/// itself. ALTER TABLE, for example, lets nobody pass while it waits.
const BLOCKERS: &str = "
WITH RECURSIVE asked AS (SELECT json_array_elements_text($1::json)::int AS pid),
    edge(pid, other) AS (
        SELECT asked.pid, b.pid FROM asked, unnest(pg_blocking_pids(asked.pid)) AS b(pid)
        UNION
        SELECT edge.other, b.pid FROM edge, unnest(pg_blocking_pids(edge.other)) AS b(pid))
SELECT DISTINCT other, other IN (SELECT pid FROM edge) FROM edge
WHERE other NOT IN (SELECT pid FROM asked)
ORDER BY 1";

/// The sessions that hold a lock, in SQL: rows `l` with their `pid`.
pub(super) fn lock_holders(what: Lock, name: &str) -> Result<String, ClientError> {
    Ok(holders(&lock_key(what, name)?))
}

fn holders(key: &str) -> String {
    format!(
        "(SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 \
              AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
              AND (classid::bigint << 32 | objid::bigint) = {key}) AS l"
    )
}

/// Interval of looks whether a session of an earlier command has ended, and the longest wait for that.
const ALONE_EVERY: Duration = Duration::from_millis(10);
const ALONE_WITHIN: Duration = Duration::from_secs(60);

/// Lets a session alone change its server for a switchover or a promotion. Another one that has the lock is
/// told to end, and is waited for; `waits` hears of that at each look, and says whether to go on. `end` and
/// `failed` are the server, in words and as an error.
///
/// The other session is one of a command that is gone, or one that this command has lost: a statement that it
/// still executes would take effect behind what comes next.
pub(crate) fn alone(
    session: &mut Connection,
    slot: &str,
    (end, failed): (&str, fn(ClientError) -> ReplicaError),
    waits: &mut dyn FnMut(&str) -> bool,
) -> Result<()> {
    let began = Instant::now();
    let words = format!("on the {end} a session of an earlier command has not ended");
    while !is_alone(session, slot).map_err(failed)? {
        if began.elapsed() > ALONE_WITHIN {
            return Err(ReplicaError::State(format!(
                "{words} (pg_stat_activity shows it as application \"{APPLICATION}\"): end its process there, \
                 and repeat"
            )));
        }
        if !waits(&words) {
            return Err(ReplicaError::State(format!(
                "{words}, and this one was asked to end"
            )));
        }
        thread::sleep(ALONE_EVERY);
    }
    Ok(())
}

fn is_alone(session: &mut Connection, slot: &str) -> Result<bool, ClientError> {
    let key = key("lockstep switchover ", slot)?;
    let lock = session.query_one(&format!("SELECT pg_try_advisory_lock({key})"))?;
    let is_alone: bool = field(&lock, 0)?;
    if !is_alone {
        let others = holders(&key);
        session.query(&format!("SELECT pg_terminate_backend(l.pid) FROM {others}"))?;
    }
    Ok(is_alone)
}

impl ReplicaState {
    /// Takes the replica's lock, which the session holds until it ends. False if another session
    /// keeps it: another lockstep works on this replica. The server needs a moment to notice that a
    /// killed one is gone. A process that applies without the lock is given time to take it.
    pub fn lock(&mut self, name: &str) -> Result<bool> {
        let deadline = Instant::now() + COMES_BACK;
        loop {
            if !self.lock_once(name)? {
                return Ok(false);
            }
            if Instant::now() >= deadline || !self.is_applied_to(name)? {
                return Ok(true);
            }
            self.unlock(Lock::Replica, name)?;
            thread::sleep(LOOK_EVERY);
        }
    }

    fn lock_once(&mut self, name: &str) -> Result<bool> {
        // Somebody who lives does not give it up. A process that was killed can have sent one write that
        // comes after; a second one is sent by a process that lives.
        for _ in 0..2 {
            let before = self.written(name)?;
            if self.lock_for(Lock::Replica, name, WRITES_WITHIN)? {
                return Ok(true);
            }
            if self.holder(name)? != Holder::Apply || self.written(name)? == before {
                return self.lock_for(Lock::Replica, name, LOCK_PATIENCE);
            }
        }
        Ok(false)
    }

    /// Whether a session applies to the replica, with its lock or without.
    fn is_applied_to(&mut self, name: &str) -> Result<bool> {
        let of = || -> Result<String, ClientError> {
            let name = sql_literal("replica", name)?;
            Ok(format!(
                "(SELECT origin FROM lockstep.replica WHERE name = {name})"
            ))
        };
        let in_use = of().and_then(|of| origins::is_in_use(&mut self.connection, &of));
        in_use.map_err(ReplicaError::Target)
    }

    /// An error if a session applies to the replica, whose lock this session has.
    pub fn check_not_applied_to(&mut self, name: &str) -> Result<()> {
        match self.is_applied_to(name)? {
            true => Err(ReplicaError::State(format!(
                "a session on the target still applies to replica \"{name}\", although no process has the \
                 replica's lock (pg_stat_activity shows it as application \"{name}\"). Nothing is changed. It \
                 ends once the server notices that its process is gone: repeat then"
            ))),
            false => Ok(()),
        }
    }

    /// Takes the replica's lock once whoever has it ends, or says who still has it after `patience`.
    pub fn lock_within(&mut self, name: &str, patience: Duration) -> Result<()> {
        let is_ours = self.lock_for(Lock::Replica, name, patience)?;
        self.ours_or_say(name, is_ours)
    }

    /// When apply has written its state last.
    pub(super) fn written(&mut self, name: &str) -> Result<Option<String>> {
        let sql = "SELECT applied_at FROM lockstep.replica WHERE name = $1";
        let rows = self.connection.query_with(sql, &[&name]);
        let written = rows.and_then(|rows| rows.first().map(|row| field(row, 0)).transpose());
        written.map(Option::flatten).map_err(ReplicaError::Target)
    }

    pub(super) fn lock_for(&mut self, what: Lock, name: &str, patience: Duration) -> Result<bool> {
        let mut lock = || -> Result<bool, ClientError> {
            let (key, patience) = (lock_key(what, name)?, patience.as_millis());
            // Together, so that a lock that is not had takes the setting back.
            let locked = self.connection.execute(&format!(
                "SET lock_timeout = {patience}; SELECT pg_advisory_lock({key}); SET lock_timeout = 0"
            ));
            match locked {
                Ok(()) => Ok(true),
                Err(error) if error.refusal().is_some_and(|it| it.sqlstate == LOCKED) => Ok(false),
                Err(error) => Err(error),
            }
        };
        lock().map_err(ReplicaError::Target)
    }

    /// Gives up a lock, however often this session has taken it.
    pub(super) fn unlock(&mut self, what: Lock, name: &str) -> Result<()> {
        let mut unlock = || -> Result<(), ClientError> {
            let sql = format!("SELECT pg_advisory_unlock({})", lock_key(what, name)?);
            while field(&self.connection.query_one(&sql)?, 0)? {}
            Ok(())
        };
        unlock().map_err(ReplicaError::Target)
    }

    /// Takes the replica's lock, or says who has it.
    pub fn lock_or_say(&mut self, name: &str) -> Result<()> {
        let is_ours = self.lock(name)?;
        self.ours_or_say(name, is_ours)
    }

    /// Like [`Self::lock_or_say`], for a process that applies and has lost its session with the lock.
    pub(crate) fn lock_again_or_say(&mut self, name: &str) -> Result<()> {
        let is_ours = self.lock_once(name)?;
        self.ours_or_say(name, is_ours)
    }

    fn ours_or_say(&mut self, name: &str, is_ours: bool) -> Result<()> {
        match is_ours {
            true => Ok(()),
            false => Err(ReplicaError::State(self.lock_words(name)?)),
        }
    }

    /// Who holds the replica's lock, and what to do about it.
    pub fn lock_words(&mut self, name: &str) -> Result<String> {
        self.held_words(Lock::Replica, name)
    }

    /// Who has the replica's lock, if that does not look like a lockstep.
    pub fn stranger_words(&mut self, name: &str) -> Result<Option<String>> {
        let holders = self.holders(Lock::Replica, name);
        match holders.map_err(ReplicaError::Target)? {
            (_, true) => Ok(None),
            (_, false) => self.lock_words(name).map(Some),
        }
    }

    /// Whom these processes of this server wait for, in words: those who wait for nobody come first, since
    /// they alone can end it. None if that is nobody but each other.
    pub fn waits(&mut self, pids: &[u32]) -> Result<Option<String>> {
        let mut words = || -> Result<Option<String>, ClientError> {
            let asked = serde_json::json!(pids).to_string();
            let (mut roots, mut queue): (Vec<u32>, Vec<u32>) = Default::default();
            for row in self.connection.query_with(BLOCKERS, &[&asked])? {
                match field(&row, 1)? {
                    true => queue.push(field(&row, 0)?),
                    false => roots.push(field(&row, 0)?),
                }
            }
            // They wait for these processes in turn.
            if roots.is_empty() {
                roots = std::mem::take(&mut queue);
            }
            if roots.is_empty() {
                return Ok(None);
            }
            let who = sessions::words(&mut self.connection, &roots)?;
            let behind = match queue.is_empty() {
                true => String::new(),
                false => {
                    let queue = sessions::words(&mut self.connection, &queue)?;
                    format!(", in a queue behind {queue}")
                }
            };
            Ok(Some(format!(
                "on the target it waits for a lock of {who}{behind}"
            )))
        };
        words().map_err(ReplicaError::Target)
    }

    /// The processes that hold a lock, and whether all look like a lockstep.
    fn holders(&mut self, what: Lock, name: &str) -> Result<(Vec<u32>, bool), ClientError> {
        let holders = lock_holders(what, name)?;
        let rows = self.connection.query(&format!(
            "SELECT l.pid, a.pid IS NULL OR coalesce(a.application_name = {}, false) FROM {holders} \
             LEFT JOIN pg_stat_activity a ON a.pid = l.pid ORDER BY l.pid",
            sql_literal("application", APPLICATION)?
        ))?;
        let mut pids = Vec::new();
        let mut is_ours = true;
        for row in &rows {
            pids.push(field(row, 0)?);
            is_ours &= field::<bool>(row, 1)?;
        }
        Ok((pids, is_ours))
    }

    pub(super) fn held_words(&mut self, what: Lock, name: &str) -> Result<String> {
        let mut words = || -> Result<String, ClientError> {
            let (pids, is_ours) = self.holders(what, name)?;
            let who = sessions::words(&mut self.connection, &pids)?;
            let (lock, other, todo) = match what {
                Lock::Replica => ("lock", "another lockstep works on", "end it first"),
                Lock::Hold => (
                    "hold",
                    "another lockstep replica verify, promote or switchover holds",
                    "repeat once it is done",
                ),
            };
            Ok(match (pids.first(), is_ours) {
                (None, _) => format!("{other} replica \"{name}\"; {todo}"),
                (Some(_), true) => {
                    format!("{other} replica \"{name}\": {who}; {todo}")
                }
                (Some(pid), false) => format!(
                    "the {lock} of replica \"{name}\", an advisory lock of the target's database, is held \
                     by {who}, which does not look like a lockstep: end it with SELECT \
                     pg_terminate_backend({pid})"
                ),
            })
        };
        words().map_err(ReplicaError::Target)
    }

    /// Who holds the replica's lock now.
    pub fn holder(&mut self, name: &str) -> Result<Holder> {
        let mut held = || -> Result<Holder, ClientError> {
            let row = self.connection.query_one(&format!(
                "SELECT count(l.pid), coalesce(bool_or(l.pid = r.apply_pid), false) \
                 FROM {} LEFT JOIN lockstep.replica r ON r.name = {}",
                lock_holders(Lock::Replica, name)?,
                sql_literal("replica", name)?
            ))?;
            Ok(match (field::<u64>(&row, 0)?, field(&row, 1)?) {
                (0, _) => Holder::Nobody,
                (_, true) => Holder::Apply,
                (_, false) => Holder::Other,
            })
        };
        held().map_err(ReplicaError::Target)
    }
}
