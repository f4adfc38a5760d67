//! Replication commands as clients write them.

mod parse;
pub(crate) mod tokens;
mod write;

use crate::{Lsn, Timeline};

/// Longest replication command that is parsed, in bytes: as long as a client's message may
/// be. SQL is not parsed, and may be longer.
pub const LIMIT: usize = crate::frame::FRONTEND_LIMIT;

/// Longest name, in bytes. Servers cut off the rest, and so is it here.
pub const MOST_NAME: usize = 63;

/// A replication command.
///
/// Parsed as a server does ([`Command::parse`]), and written as a client of version 15 or
/// later does (`Display`): whatever names and values hold, they are written so that they
/// are read as one name or value. A zero byte, which no command can hold, is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Who are you, on which timeline, and where does your WAL end?
    IdentifySystem,
    /// A setting's value.
    Show {
        /// The setting, in lower case.
        name: String,
    },
    /// What is known about a slot.
    ReadReplicationSlot {
        /// The slot.
        slot: String,
    },
    /// A slot for physical replication.
    CreatePhysicalSlot {
        /// The slot.
        slot: String,
        /// It goes away with the session.
        temporary: bool,
        /// It keeps WAL from now on, rather than from its first use.
        reserve_wal: bool,
    },
    /// A slot for logical replication.
    CreateLogicalSlot {
        /// The slot.
        slot: String,
        /// It goes away with the session.
        temporary: bool,
        /// The output plugin.
        plugin: String,
        /// What becomes of the snapshot that the slot begins with.
        snapshot: SnapshotAction,
        /// Prepared transactions are decoded when they are prepared.
        two_phase: bool,
        /// Standbys keep a copy of it (17 and later).
        failover: bool,
    },
    /// Properties of a slot for logical replication change (17 and later).
    AlterReplicationSlot {
        /// The slot.
        slot: String,
        /// Names in lower case unless they were quoted, and values: FAILOVER, from 18 on
        /// TWO_PHASE. [`boolean`] reads them.
        options: Vec<(String, Option<String>)>,
    },
    /// A slot goes away.
    DropReplicationSlot {
        /// The slot.
        slot: String,
        /// Wait until nobody uses it.
        wait: bool,
    },
    /// The file that says how a timeline came to be.
    TimelineHistory {
        /// The timeline.
        timeline: Timeline,
    },
    /// Physical streaming.
    StartReplication {
        /// The slot to use.
        slot: Option<String>,
        /// The first byte to send.
        start: Lsn,
        /// On which timeline; None is the server's own.
        timeline: Option<Timeline>,
    },
    /// Logical streaming.
    StartLogical {
        /// The slot to use.
        slot: String,
        /// Transactions that end before it are left out; `0/0` and positions before the
        /// slot's own stand for the slot's own.
        start: Lsn,
        /// Options for the output plugin: names in lower case unless they were quoted, and
        /// values. One that is given twice is here twice.
        options: Vec<(String, Option<String>)>,
    },
    /// A replication command that is known but not spelled out here; its first word.
    Other(&'static str),
    /// No replication command, so SQL perhaps.
    Sql,
}

/// What becomes of the snapshot that a slot for logical replication begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SnapshotAction {
    /// Other sessions may use it until the next command. What a command means that says
    /// nothing about it.
    #[default]
    Export,
    /// The session's transaction uses it.
    Use,
    /// Nothing.
    Nothing,
}

impl SnapshotAction {
    const ALL: [Self; 3] = [Self::Export, Self::Use, Self::Nothing];

    /// As option SNAPSHOT says it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Export => "export",
            Self::Use => "use",
            Self::Nothing => "nothing",
        }
    }
}

/// The value of a boolean option as servers read it, None being true; None if it is not
/// one of theirs.
pub fn boolean(value: Option<&str>) -> Option<bool> {
    let is = |known: &str| value.is_some_and(|value| value.eq_ignore_ascii_case(known));
    match value {
        None | Some("1") => Some(true),
        Some("0") => Some(false),
        Some(_) if is("true") || is("on") => Some(true),
        Some(_) if is("false") || is("off") => Some(false),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests;
