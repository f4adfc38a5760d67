//! Replication commands as clients write them.

mod parse;
pub(crate) mod tokens;
mod write;

use crate::{Lsn, Timeline};

/// Longest replication command that is parsed, in bytes. It is as long as a client's message
/// may be. SQL is not parsed, and may be longer.
pub const LIMIT: usize = crate::frame::FRONTEND_LIMIT;

/// Longest name, in bytes. Servers cut longer names here, and so does this crate.
pub const MOST_NAME: usize = 63;

/// A name as a server has it that is given a longer one: in a command, and as a value of type `name`. It is
/// never cut inside a character.
pub fn cut_name(name: &str) -> &str {
    let mut end = name.len().min(MOST_NAME);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.get(..end).unwrap_or(name)
}

/// A replication command.
///
/// [`Command::parse`] reads it as a server with encoding UTF8 does, and `Display` writes it as a client
/// of version 15 or later does. Whatever names and values hold, they are written so that they are read as
/// one name or value. Zero bytes, which no command can hold, are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Asks for the cluster's identifier, the timeline and the end of WAL.
    IdentifySystem,
    /// Asks for the value of a setting.
    Show {
        /// The option's name in lower case.
        name: String,
    },
    ReadReplicationSlot {
        slot: String,
    },
    CreatePhysicalSlot {
        slot: String,
        /// The slot is dropped with the session.
        temporary: bool,
        /// The slot keeps WAL from now on, rather than from its first use.
        reserve_wal: bool,
    },
    CreateLogicalSlot {
        slot: String,
        /// The slot is dropped with the session.
        temporary: bool,
        /// The output plugin.
        plugin: String,
        /// What becomes of the snapshot that the slot begins with.
        snapshot: SnapshotAction,
        /// Prepared transactions are decoded when they are prepared.
        two_phase: bool,
        /// Standbys keep a copy of the slot (17 and later).
        failover: bool,
    },
    /// Changes properties of a logical slot (17 and later).
    AlterReplicationSlot {
        slot: String,
        /// Names, in lower case unless they were quoted, and values: FAILOVER, and from 18 on
        /// TWO_PHASE. [`boolean`] reads them.
        options: Vec<(String, Option<String>)>,
    },
    DropReplicationSlot {
        slot: String,
        /// Wait until the slot is not in use.
        wait: bool,
    },
    /// Asks for the history file of a timeline.
    TimelineHistory {
        timeline: Timeline,
    },
    /// Starts physical streaming.
    StartReplication {
        slot: Option<String>,
        /// The first byte to send.
        start: Lsn,
        /// None is the server's own.
        timeline: Option<Timeline>,
    },
    /// Starts logical streaming.
    StartLogical {
        slot: String,
        /// Transactions that end before this position are left out. `0/0`, or a position before
        /// the slot's own, stands for the slot's own.
        start: Lsn,
        /// Options for the output plugin: names, in lower case unless they were quoted, and
        /// values. An option that is given twice is here twice.
        options: Vec<(String, Option<String>)>,
    },
    /// A replication command that is recognised but not parsed, by its first word.
    Other(&'static str),
    /// No replication command, so probably SQL.
    Sql,
}

/// What becomes of the snapshot that a logical slot begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SnapshotAction {
    /// Other sessions may use the snapshot until the next command. This is the default.
    #[default]
    Export,
    /// The transaction of the session uses it.
    Use,
    /// There is no snapshot.
    Nothing,
}

impl SnapshotAction {
    const ALL: [Self; 3] = [Self::Export, Self::Use, Self::Nothing];

    /// The value of option SNAPSHOT that asks for this.
    pub fn name(self) -> &'static str {
        match self {
            Self::Export => "export",
            Self::Use => "use",
            Self::Nothing => "nothing",
        }
    }
}

/// The value of a boolean option as servers read it; an option without a value is true. None if
/// the text is no boolean.
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
