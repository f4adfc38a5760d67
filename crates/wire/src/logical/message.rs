//! The messages of `pgoutput`.

use super::{Old, Relation, Tuple, Xid};
use crate::Lsn;
use crate::stream::Timestamp;

/// A message. A version is named where not all versions of the protocol have the message.
///
/// Commit, Prepare and similar messages have flags for later versions of the protocol. They are
/// 0; other values are refused, as servers do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message<'a> {
    /// A transaction begins. It is committed already.
    Begin {
        /// Where the commit record starts.
        final_lsn: Lsn,
        commit_time: Timestamp,
        xid: Xid,
    },
    /// The transaction ends.
    Commit(Commit),
    /// The transaction was replicated from another server.
    Origin {
        /// Position of its commit on that server.
        lsn: Lsn,
        /// Name of the replication origin.
        name: &'a [u8],
    },
    /// Describes a table. Comes before its first change, and again after the table has changed.
    Relation(Relation<'a>),
    /// Names a type. Comes before a table that uses it, unless the type is built in.
    Type {
        id: u32,
        /// Empty for `pg_catalog`.
        namespace: &'a [u8],
        name: &'a [u8],
    },
    Insert {
        relation: u32,
        new: Tuple<'a>,
    },
    Update {
        relation: u32,
        /// The row before, if its key changed or if the whole row identifies it.
        old: Option<Old<'a>>,
        /// The row after.
        new: Tuple<'a>,
    },
    Delete {
        relation: u32,
        /// The row before.
        old: Old<'a>,
    },
    Truncate {
        options: TruncateOptions,
        relations: Vec<u32>,
    },
    /// A message of `pg_logical_emit_message`.
    Message {
        /// The message belongs to the transaction around it. If false, it stands outside of
        /// any.
        transactional: bool,
        /// Where its record ends.
        lsn: Lsn,
        prefix: &'a [u8],
        content: &'a [u8],
    },
    /// Changes of a transaction in progress follow (version 2).
    StreamStart {
        xid: Xid,
        /// These are the first changes of the transaction.
        first: bool,
    },
    /// The changes pause (version 2).
    StreamStop,
    /// A streamed transaction is committed (version 2).
    StreamCommit {
        xid: Xid,
        commit: Commit,
    },
    /// A streamed transaction, or a part of one, is rolled back (version 2).
    StreamAbort {
        xid: Xid,
        /// The subtransaction, or the transaction itself if all of it is rolled back.
        subxid: Xid,
        /// Present in version 4 with `streaming 'parallel'`.
        aborted: Option<Aborted>,
    },
    /// A prepared transaction begins (version 3).
    BeginPrepare(Prepared<'a>),
    /// A prepared transaction ends (version 3).
    Prepare(Prepared<'a>),
    /// A prepared transaction is committed (version 3). Positions and time are those of the
    /// commit.
    CommitPrepared(Prepared<'a>),
    /// A prepared transaction is rolled back (version 3).
    RollbackPrepared {
        /// Where the record of the prepare ends.
        prepare_end_lsn: Lsn,
        /// Where the record of the rollback ends.
        rollback_end_lsn: Lsn,
        prepare_time: Timestamp,
        rollback_time: Timestamp,
        xid: Xid,
        /// The name under which it was prepared.
        gid: &'a [u8],
    },
    /// A streamed transaction is prepared (version 3).
    StreamPrepare(Prepared<'a>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// Where the commit record starts.
    pub commit_lsn: Lsn,
    /// Where the commit record ends.
    pub end_lsn: Lsn,
    pub commit_time: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aborted {
    pub lsn: Lsn,
    pub time: Timestamp,
}

/// A step of two-phase commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prepared<'a> {
    /// Where the step's record starts.
    pub lsn: Lsn,
    /// Where the step's record ends.
    pub end_lsn: Lsn,
    /// When the step was made.
    pub time: Timestamp,
    pub xid: Xid,
    /// The name under which the transaction is prepared.
    pub gid: &'a [u8],
}

/// Options of TRUNCATE, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TruncateOptions(pub u8);

impl TruncateOptions {
    /// Tables that refer to these are truncated as well.
    pub fn cascade(self) -> bool {
        self.0 & 1 != 0
    }

    /// Sequences that the tables own are restarted.
    pub fn restart_identity(self) -> bool {
        self.0 & 2 != 0
    }
}

/// What a message's encoding depends on, besides the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Context {
    /// The message stands between StreamStart and StreamStop.
    pub in_stream: bool,
    /// Version 4 with `streaming 'parallel'`: StreamAbort has a position and a time.
    pub abort_details: bool,
}
