//! What can go wrong with the log.

use std::io;
use std::sync::Arc;

use lockstep_wire::Lsn;

use super::position::LogPosition;

/// Result of everything in this module.
pub type Result<T> = std::result::Result<T, LogError>;

/// What can go wrong with the log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A reader asked for what was removed.
    #[error("changes from {from} on are no longer kept: the oldest that is kept is {oldest}")]
    Gone {
        /// What was asked for.
        from: Lsn,
        /// What there is.
        oldest: Lsn,
    },
    /// The spool is damaged where it was read.
    #[error(
        "spool segment {segment} is damaged at byte {position} of the stream ({what}): changes \
         after {from}{} cannot be read", until(*.to)
    )]
    Corrupt {
        segment: u64,
        /// Where in the stream.
        position: LogPosition,
        /// End of the last unit before the damage, as far as it is known.
        from: Lsn,
        /// Units that begin here or later can be read again; None if nothing follows.
        to: Option<Lsn>,
        what: &'static str,
    },
    /// The spool is as large as it may be. Nothing was stored; try again once a slot has
    /// confirmed more.
    #[error("the spool holds {used} bytes; its limit is {limit}")]
    SpoolFull {
        used: u64,
        /// Most bytes.
        limit: u64,
    },
    /// The disk is full. Nothing was stored; try again once there is space.
    #[error("the spool's disk is full ({0})")]
    NoSpace(#[source] io::Error),
    /// The disk refused something earlier, and what it holds is not known: the log must be
    /// opened anew. Holds the text of that first error.
    #[error("the spool must be opened again after an earlier error: {0}")]
    Poisoned(Arc<str>),
    /// The disk refused something.
    #[error("cannot {what} spool file {name}: {source}")]
    Io {
        what: &'static str,
        /// The file; empty for the folder.
        name: String,
        source: io::Error,
    },
    /// What was appended is no sequence of whole frames of whole units in order.
    #[error("the upstream sent a malformed stream: {0}")]
    Frames(&'static str),
    /// A unit came that lies before what was said to be covered: a reader may have been told
    /// that it has everything.
    #[error("a transaction at {key} arrived after everything up to {received} had been received")]
    Order {
        /// Where the unit begins.
        key: Lsn,
        /// End of what was received before.
        received: Lsn,
    },
    /// More schema is in force than a log carries along.
    #[error("the descriptions of tables take {bytes} bytes; the limit is {limit}")]
    SchemaTooLarge {
        /// What they take.
        bytes: usize,
        /// Most that is allowed.
        limit: usize,
    },
    /// Something that only makes sense between units.
    #[error("a transaction is still arriving")]
    UnitOpen,
    /// A log is to be created where one is.
    #[error("the spool folder already holds a log")]
    Exists,
    /// The log was written by another version of this program.
    #[error("spool file {name} has format {version}, which this version cannot read")]
    Version { name: String, version: u32 },
    /// A log is to be opened where none is.
    #[error("the spool folder holds no log")]
    NoLog,
}

impl LogError {
    /// True if the same call may succeed later, and nothing has changed meanwhile.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::SpoolFull { .. } | Self::NoSpace(_))
    }

    pub(super) fn io(what: &'static str, name: &str, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace(source),
            _ => Self::Io {
                what,
                name: name.to_owned(),
                source,
            },
        }
    }
}

fn until(to: Option<Lsn>) -> String {
    to.map_or_else(String::new, |to| format!(" and before {to}"))
}
