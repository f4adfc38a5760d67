//! Encodes messages.

use super::{Commit, Message, Prepared, TRANSACTIONAL, Tuple, Xid, has_xid, tag};
use crate::cursor::{put_c_bytes, put_counted_bytes};
use crate::stream::Timestamp;
use crate::{Lsn, Result, WireError};

/// Value of flags that only later versions of the protocol define.
const NO_FLAGS: u8 = 0;

impl Message<'_> {
    /// Appends the message. `xid` is the transaction or subtransaction of a change inside a
    /// stream, and None elsewhere. Fails if the message has too many columns or bytes; `out`
    /// then holds a part of it.
    pub fn encode(&self, xid: Option<Xid>, out: &mut Vec<u8>) -> Result<()> {
        out.push(self.tag());
        if let Some(Xid(xid)) = xid.filter(|_| has_xid(self.tag())) {
            out.extend_from_slice(&xid.to_be_bytes());
        }
        match self {
            Self::Begin {
                final_lsn,
                commit_time,
                xid,
            } => {
                lsn(out, *final_lsn);
                time(out, *commit_time);
                number(out, xid.0);
            }
            Self::Commit(commit) => put_commit(out, commit),
            Self::Origin { lsn: there, name } => {
                lsn(out, *there);
                put_c_bytes(out, name);
            }
            Self::Relation(relation) => relation.put(out)?,
            Self::Type {
                id,
                namespace,
                name,
            } => {
                number(out, *id);
                put_c_bytes(out, namespace);
                put_c_bytes(out, name);
            }
            Self::Insert { relation, new } => {
                number(out, *relation);
                put_new(out, new);
            }
            Self::Update { relation, old, new } => {
                number(out, *relation);
                if let Some(old) = old {
                    old.put(out);
                }
                put_new(out, new);
            }
            Self::Delete { relation, old } => {
                number(out, *relation);
                old.put(out);
            }
            Self::Truncate { options, relations } => {
                let tables = u32::try_from(relations.len())
                    .map_err(|_| WireError::Malformed("an impossible number of tables"))?;
                number(out, tables);
                out.push(options.0);
                relations.iter().for_each(|&relation| number(out, relation));
            }
            Self::Message {
                transactional,
                lsn: end,
                prefix,
                content,
            } => {
                out.push(if *transactional { TRANSACTIONAL } else { 0 });
                lsn(out, *end);
                put_c_bytes(out, prefix);
                put_counted_bytes(out, content)?;
            }
            _ => self.put_prepared_or_streamed(out),
        }
        Ok(())
    }

    fn put_prepared_or_streamed(&self, out: &mut Vec<u8>) {
        match self {
            Self::BeginPrepare(prepared) => put_prepared(out, prepared),
            Self::Prepare(prepared)
            | Self::CommitPrepared(prepared)
            | Self::StreamPrepare(prepared) => {
                out.push(NO_FLAGS);
                put_prepared(out, prepared);
            }
            Self::RollbackPrepared {
                prepare_end_lsn,
                rollback_end_lsn,
                prepare_time,
                rollback_time,
                xid,
                gid,
            } => {
                out.push(NO_FLAGS);
                lsn(out, *prepare_end_lsn);
                lsn(out, *rollback_end_lsn);
                time(out, *prepare_time);
                time(out, *rollback_time);
                number(out, xid.0);
                put_c_bytes(out, gid);
            }
            Self::StreamStart { xid, first } => {
                number(out, xid.0);
                out.push(u8::from(*first));
            }
            Self::StreamCommit { xid, commit } => {
                number(out, xid.0);
                put_commit(out, commit);
            }
            Self::StreamAbort {
                xid,
                subxid,
                aborted,
            } => {
                number(out, xid.0);
                number(out, subxid.0);
                if let Some(aborted) = aborted {
                    lsn(out, aborted.lsn);
                    time(out, aborted.time);
                }
            }
            // StreamStop has no content, and the caller writes the other messages.
            _ => {}
        }
    }

    fn tag(&self) -> u8 {
        match self {
            Self::Begin { .. } => tag::BEGIN,
            Self::Commit(_) => tag::COMMIT,
            Self::Origin { .. } => tag::ORIGIN,
            Self::Relation(_) => tag::RELATION,
            Self::Type { .. } => tag::TYPE,
            Self::Insert { .. } => tag::INSERT,
            Self::Update { .. } => tag::UPDATE,
            Self::Delete { .. } => tag::DELETE,
            Self::Truncate { .. } => tag::TRUNCATE,
            Self::Message { .. } => tag::MESSAGE,
            Self::StreamStart { .. } => tag::STREAM_START,
            Self::StreamStop => tag::STREAM_STOP,
            Self::StreamCommit { .. } => tag::STREAM_COMMIT,
            Self::StreamAbort { .. } => tag::STREAM_ABORT,
            Self::BeginPrepare(_) => tag::BEGIN_PREPARE,
            Self::Prepare(_) => tag::PREPARE,
            Self::CommitPrepared(_) => tag::COMMIT_PREPARED,
            Self::RollbackPrepared { .. } => tag::ROLLBACK_PREPARED,
            Self::StreamPrepare(_) => tag::STREAM_PREPARE,
        }
    }
}

fn number(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_be_bytes());
}

fn lsn(out: &mut Vec<u8>, lsn: Lsn) {
    out.extend_from_slice(&u64::from(lsn).to_be_bytes());
}

fn time(out: &mut Vec<u8>, time: Timestamp) {
    out.extend_from_slice(&time.0.to_be_bytes());
}

fn put_commit(out: &mut Vec<u8>, commit: &Commit) {
    out.push(NO_FLAGS);
    lsn(out, commit.commit_lsn);
    lsn(out, commit.end_lsn);
    time(out, commit.commit_time);
}

fn put_prepared(out: &mut Vec<u8>, prepared: &Prepared<'_>) {
    lsn(out, prepared.lsn);
    lsn(out, prepared.end_lsn);
    time(out, prepared.time);
    number(out, prepared.xid.0);
    put_c_bytes(out, prepared.gid);
}

fn put_new(out: &mut Vec<u8>, new: &Tuple<'_>) {
    out.push(b'N');
    new.put(out);
}
