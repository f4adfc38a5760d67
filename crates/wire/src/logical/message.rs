//! The messages of `pgoutput`.

use super::{Old, Relation, Tuple, Xid};
use crate::Lsn;
use crate::stream::Timestamp;

/// A message. Which versions of the protocol know it is said where it is not all of them.
///
/// Commit, Prepare and their like have flags for later versions of the protocol: they are
/// 0, and others are refused, as servers do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message<'a> {
    /// A transaction begins. It is complete: its commit is known.
    Begin {
        /// Where its commit record starts.
        final_lsn: Lsn,
        /// When it was committed.
        commit_time: Timestamp,
        /// The transaction.
        xid: Xid,
    },
    /// It ends.
    Commit(Commit),
    /// The transaction was replicated from elsewhere.
    Origin {
        /// Where it was committed there.
        lsn: Lsn,
        /// The origin's name.
        name: &'a [u8],
    },
    /// What a table looks like. Comes before its first change, and anew after it changed.
    Relation(Relation<'a>),
    /// What a type is called. Comes before a table that has it, unless it is built in.
    Type {
        /// Object identifier.
        id: u32,
        /// Its schema; empty for `pg_catalog`.
        namespace: &'a [u8],
        /// Its name.
        name: &'a [u8],
    },
    /// A new row.
    Insert {
        /// The table.
        relation: u32,
        /// The row.
        new: Tuple<'a>,
    },
    /// A changed row.
    Update {
        /// The table.
        relation: u32,
        /// What it was, if the key changed or the whole row identifies it.
        old: Option<Old<'a>>,
        /// What it is.
        new: Tuple<'a>,
    },
    /// A row is gone.
    Delete {
        /// The table.
        relation: u32,
        /// What it was.
        old: Old<'a>,
    },
    /// All rows are gone.
    Truncate {
        /// How.
        options: TruncateOptions,
        /// The tables.
        relations: Vec<u32>,
    },
    /// From `pg_logical_emit_message`.
    Message {
        /// It belongs to the transaction around it; if not, it stands outside of any.
        transactional: bool,
        /// Where its record ends.
        lsn: Lsn,
        /// Whose message it is.
        prefix: &'a [u8],
        /// What it says.
        content: &'a [u8],
    },
    /// Changes of a transaction in progress follow (version 2).
    StreamStart {
        /// The transaction.
        xid: Xid,
        /// They are its first ones.
        first: bool,
    },
    /// They pause (version 2).
    StreamStop,
    /// A transaction that was streamed is committed (version 2).
    StreamCommit {
        /// The transaction.
        xid: Xid,
        /// Where and when.
        commit: Commit,
    },
    /// A transaction that was streamed, or a part of one, is rolled back (version 2).
    StreamAbort {
        /// The transaction.
        xid: Xid,
        /// Its part; the transaction itself if all of it is rolled back.
        subxid: Xid,
        /// Where and when (version 4, with `streaming 'parallel'`).
        aborted: Option<Aborted>,
    },
    /// A transaction begins that was prepared (version 3).
    BeginPrepare(Prepared<'a>),
    /// It ends (version 3).
    Prepare(Prepared<'a>),
    /// A prepared transaction is committed (version 3). Positions and time are those of the
    /// commit.
    CommitPrepared(Prepared<'a>),
    /// A prepared transaction is rolled back (version 3).
    RollbackPrepared {
        /// Where the record that prepared it ends.
        prepare_end_lsn: Lsn,
        /// Where the record that rolled it back ends.
        rollback_end_lsn: Lsn,
        /// When it was prepared.
        prepare_time: Timestamp,
        /// When it was rolled back.
        rollback_time: Timestamp,
        /// The transaction.
        xid: Xid,
        /// The name it was prepared by.
        gid: &'a [u8],
    },
    /// A transaction that was streamed is prepared (version 3).
    StreamPrepare(Prepared<'a>),
}

/// Where and when a transaction was committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// Where the commit's record starts.
    pub commit_lsn: Lsn,
    /// Where it ends.
    pub end_lsn: Lsn,
    /// When.
    pub commit_time: Timestamp,
}

/// Where and when a transaction was rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aborted {
    /// Where.
    pub lsn: Lsn,
    /// When.
    pub time: Timestamp,
}

/// A step of two-phase commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prepared<'a> {
    /// Where the step's record starts.
    pub lsn: Lsn,
    /// Where it ends.
    pub end_lsn: Lsn,
    /// When.
    pub time: Timestamp,
    /// The transaction.
    pub xid: Xid,
    /// The name it is prepared by.
    pub gid: &'a [u8],
}

/// Options of a truncation, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TruncateOptions(pub u8);

impl TruncateOptions {
    /// Tables that refer to these are truncated as well.
    pub fn cascade(self) -> bool {
        self.0 & 1 != 0
    }

    /// Sequences that the tables own begin anew.
    pub fn restart_identity(self) -> bool {
        self.0 & 2 != 0
    }
}

/// What a message's encoding depends on, besides itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Context {
    /// It stands between StreamStart and StreamStop.
    pub in_stream: bool,
    /// Version 4 with `streaming 'parallel'`: StreamAbort says where and when.
    pub abort_details: bool,
}
