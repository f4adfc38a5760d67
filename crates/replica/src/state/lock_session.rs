//! The session of a process that has a replica's lock, as the process's other sessions know it.
//!
//! A server that is restarted ends all of them, and each comes back by itself: one that applies must not go
//! on before the lock is had again, since somebody else may have it by then.

use std::sync::{Mutex, MutexGuard, PoisonError};

use lockstep_apply::settings::Taken;
use lockstep_client::{ClientError, Connection, field};

use super::ReplicaState;
use crate::error::{ReplicaError, Result};

/// Process ID of a server's backend, and when that began, in seconds: IDs are given again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Backend {
    pid: u32,
    began: String,
}

/// `$1` is a process ID, `$2` when that backend began, in seconds.
const IS_THERE: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_stat_activity \
    WHERE pid OPERATOR(pg_catalog.=) $1::pg_catalog.int4 \
      AND pg_catalog.extract('epoch', backend_start) OPERATOR(pg_catalog.=) $2::pg_catalog.numeric)";

/// Which session has the lock.
#[derive(Debug, Default)]
pub(crate) struct LockSession(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    backend: Option<Backend>,
    /// Why the lock was not had when it was tried last.
    refusal: Option<String>,
    /// Another session has found the lock's session gone since the lock was tried last.
    is_missed: bool,
}

impl LockSession {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock is taken, by this session.
    pub(crate) fn taken(&self, backend: Backend) {
        *self.known() = Known {
            backend: Some(backend),
            ..Known::default()
        };
    }

    /// The lock is not had, for this reason. False if that was so before.
    pub(crate) fn refused(&self, words: String) -> bool {
        let mut known = self.known();
        let is_news = known.refusal.as_ref() != Some(&words);
        (known.refusal, known.is_missed) = (Some(words), false);
        is_news
    }

    /// Whether somebody waits for the lock to be taken again.
    pub(crate) fn is_missed(&self) -> bool {
        self.known().is_missed
    }
}

impl Taken for LockSession {
    fn lost(&self, target: &mut Connection) -> Result<Option<String>, ClientError> {
        let backend = self.known().backend.clone();
        let is_there = match &backend {
            Some(Backend { pid, began }) => {
                let rows = target.query_with(IS_THERE, &[pid, began])?;
                field(rows.first().map_or(&[][..], Vec::as_slice), 0)?
            }
            None => false,
        };
        if is_there {
            return Ok(None);
        }
        let mut known = self.known();
        if known.backend != backend {
            // It was taken meanwhile: the next attempt asks for that one.
            return Ok(Some(LOST.to_owned()));
        }
        known.is_missed = true;
        Ok(Some(match &known.refusal {
            Some(words) => format!("{LOST}: {words}"),
            None => LOST.to_owned(),
        }))
    }
}

/// What an error says of a lock that is lost.
const LOST: &str = "the target has ended the session with the replica's lock, and nothing is applied until \
    this process has the lock again";

impl ReplicaState {
    /// This session, which has a replica's lock.
    pub(crate) fn backend(&mut self) -> Result<Backend> {
        let sql = "SELECT pid, pg_catalog.extract('epoch', backend_start) FROM pg_catalog.pg_stat_activity \
                   WHERE pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid()";
        let mut backend = || -> Result<Backend, ClientError> {
            let row = self.connection.query_one(sql)?;
            Ok(Backend {
                pid: field(&row, 0)?,
                began: field(&row, 1)?,
            })
        };
        backend().map_err(ReplicaError::Target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_told_once_and_goes_when_the_lock_is_taken() {
        let lock = LockSession::default();
        assert!(lock.refused("a".to_owned()));
        assert!(!lock.refused("a".to_owned()));
        assert!(lock.refused("b".to_owned()));
        lock.taken(Backend {
            pid: 7,
            began: "then".to_owned(),
        });
        assert!(lock.refused("b".to_owned()));
        assert!(!lock.is_missed());
    }
}
