//! Replication slots, and histories of timelines.

use lockstep_wire::{Lsn, Timeline};

use crate::connection::{Connection, Rows, parsed};
use crate::error::Step;
use crate::quote::{identifier, sql_literal};
use crate::{ClientError, MOST_SWITCHES, Purpose, Result};

/// How much of the WAL that a slot needs still exists (`pg_replication_slots.wal_status`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalStatus {
    /// The server has all WAL that the slot needs, within `max_wal_size`.
    Reserved,
    /// The server has all WAL that the slot needs, beyond `max_wal_size`.
    Extended,
    /// The server has all WAL that the slot needs, but the next checkpoint may remove some.
    Unreserved,
    /// WAL that the slot needs is gone: the slot can no longer be used.
    Lost,
}

/// A slot as the server describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotState {
    /// None for a physical slot.
    pub plugin: Option<String>,
    /// None for a physical slot.
    pub database: Option<String>,
    /// The server drops the slot with the session that created it.
    pub temporary: bool,
    /// The process that streams from the slot.
    pub active_pid: Option<u32>,
    /// `confirmed_flush_lsn`, up to which the consumer has confirmed; `0/0` if it has not.
    pub confirmed: Lsn,
    /// `restart_lsn`, the oldest WAL that the slot needs; `0/0` if it needs none.
    pub restart: Lsn,
    /// How much of that WAL still exists; None if the slot needs none yet.
    pub wal_status: Option<WalStatus>,
    /// Why the slot can no longer be used, in the server's words. `wal_removed` for a lost slot if
    /// the server gives no reason. None while the slot can be used.
    pub invalidation: Option<String>,
    /// Prepared transactions are decoded when they are prepared.
    pub two_phase: bool,
    /// Standbys may keep a copy of the slot (17 and later).
    pub failover: bool,
    /// The slot is a standby's copy of the primary's slot (17 and later).
    pub synced: bool,
}

/// The end of one timeline, where the next one began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    pub timeline: Timeline,
    pub at: Lsn,
}

impl Connection {
    /// Creates a slot and returns its consistent point: transactions that commit after it are
    /// streamed. The server waits for the end of all transactions that are open at the call.
    /// `failover` needs a server of 17 or later. Needs [`crate::Purpose::Replication`].
    pub fn create_slot(
        &mut self,
        name: &str,
        plugin: &str,
        two_phase: bool,
        failover: bool,
    ) -> Result<Lsn> {
        let mut options = "SNAPSHOT 'nothing'".to_owned();
        if two_phase {
            options.push_str(", TWO_PHASE");
        }
        if failover {
            options.push_str(", FAILOVER");
        }
        let sql = format!(
            "CREATE_REPLICATION_SLOT {} LOGICAL {} ({options})",
            identifier("slot", name)?,
            identifier("plugin", plugin)?
        );
        let what = format!("create slot \"{name}\" with plugin \"{plugin}\"");
        let rows = self.command(Step::CreateSlot, &what, &sql)?;
        parsed("position", field(rows, 1))
    }

    /// Creates a slot and exports a snapshot: what it sees has committed before the consistent
    /// point, and what commits after that is streamed. Other sessions can use the snapshot until
    /// this one runs its next command or ends. The server drops a `temporary` slot with the session.
    /// Needs [`crate::Purpose::Replication`].
    pub fn create_slot_with_snapshot(
        &mut self,
        name: &str,
        plugin: &str,
        temporary: bool,
        failover: bool,
    ) -> Result<(Lsn, String)> {
        let sql = format!(
            "CREATE_REPLICATION_SLOT {}{} LOGICAL {} (SNAPSHOT 'export'{})",
            identifier("slot", name)?,
            if temporary { " TEMPORARY" } else { "" },
            identifier("plugin", plugin)?,
            if failover { ", FAILOVER" } else { "" },
        );
        let what = format!("create slot \"{name}\" with plugin \"{plugin}\"");
        let rows = self.command(Step::CreateSlot, &what, &sql)?;
        let row = rows.into_iter().next().unwrap_or_default();
        let mut fields = row.into_iter().skip(1);
        let lsn = parsed("position", fields.next().flatten())?;
        Ok((lsn, parsed("snapshot", fields.next().flatten())?))
    }

    /// Drops a slot. An error if it is in use.
    pub fn drop_slot(&mut self, name: &str) -> Result<()> {
        let sql = match self.purpose() {
            Purpose::Replication => format!("DROP_REPLICATION_SLOT {}", identifier("slot", name)?),
            Purpose::Sql => format!(
                "SELECT pg_catalog.pg_drop_replication_slot({})",
                sql_literal("slot", name)?
            ),
        };
        let what = format!("drop slot \"{name}\"");
        self.command(Step::DropSlot, &what, &sql).map(drop)
    }

    /// Makes a slot a failover slot, which standbys can keep a copy of. Needs a server of 17
    /// or later and [`crate::Purpose::Replication`]; a slot that is in use is refused.
    pub fn make_failover_slot(&mut self, name: &str) -> Result<()> {
        let sql = format!(
            "ALTER_REPLICATION_SLOT {} (FAILOVER true)",
            identifier("slot", name)?
        );
        let what = format!("make \"{name}\" a failover slot");
        self.command(Step::AlterSlot, &what, &sql).map(drop)
    }

    /// Creates slot `to` as a copy of slot `from`, with `plugin`, and returns the new slot's
    /// confirmed position.
    pub fn copy_slot(&mut self, from: &str, to: &str, plugin: &str) -> Result<Lsn> {
        for (what, name) in [("slot", from), ("slot", to), ("plugin", plugin)] {
            identifier(what, name)?;
        }
        let sql = format!(
            "SELECT lsn FROM pg_catalog.pg_copy_logical_replication_slot({}, {}, false, {})",
            sql_literal("slot", from)?,
            sql_literal("slot", to)?,
            sql_literal("plugin", plugin)?
        );
        let what = format!("copy slot \"{from}\" to \"{to}\" with plugin \"{plugin}\"");
        let rows = self.command(Step::CopySlot, &what, &sql)?;
        parsed("position", field(rows, 0))
    }

    /// Moves a logical slot that is not in use forward: what commits before `to` is not streamed
    /// any more.
    pub fn advance_slot(&mut self, name: &str, to: Lsn) -> Result<()> {
        let sql = format!(
            "SELECT pg_catalog.pg_replication_slot_advance({}, '{to}')",
            sql_literal("slot", name)?
        );
        let what = format!("advance slot \"{name}\" to {to}");
        self.command(Step::Query, &what, &sql).map(drop)
    }

    /// The state of a slot; None if no slot has that name.
    pub fn slot(&mut self, name: &str) -> Result<Option<SlotState>> {
        let name = sql_literal("slot", name)?;
        let version = self.server_version();
        let reason = match version {
            170_000.. => "invalidation_reason",
            160_000.. => "CASE WHEN conflicting THEN 'conflict' END",
            _ => "NULL",
        };
        let (failover, synced) = match version {
            170_000.. => ("failover", "synced"),
            _ => ("false", "false"),
        };
        let sql = format!(
            "SELECT plugin, database, temporary, active_pid, \
                    coalesce(confirmed_flush_lsn, '0/0'), coalesce(restart_lsn, '0/0'), \
                    wal_status, coalesce({reason}, CASE WHEN wal_status OPERATOR(pg_catalog.=) 'lost' \
                       THEN 'wal_removed' END), \
                    two_phase, {failover}, {synced} \
             FROM pg_catalog.pg_replication_slots \
             WHERE slot_name OPERATOR(pg_catalog.=) {name}"
        );
        let rows = self.command(Step::Query, "list its slots", &sql)?;
        rows.into_iter().next().map(slot_state).transpose()
    }

    /// The history of a timeline: its ancestors and where each of them ended, oldest first. Empty
    /// for the first timeline. Needs [`crate::Purpose::Replication`].
    pub fn timeline_history(&mut self, timeline: Timeline) -> Result<Vec<Switch>> {
        if timeline == Timeline::FIRST {
            return Ok(Vec::new());
        }
        let what = format!("tell the history of timeline {timeline}");
        let rows = self.command(
            Step::History,
            &what,
            &format!("TIMELINE_HISTORY {timeline}"),
        )?;
        history(&field(rows, 1).unwrap_or_default())
    }
}

fn field(rows: Rows, place: usize) -> Option<String> {
    rows.into_iter().next()?.into_iter().nth(place)?
}

fn slot_state(row: Vec<Option<String>>) -> Result<SlotState> {
    let mut row = row.into_iter();
    let mut next = || row.next().flatten();
    let flag = |field: Option<String>| field.as_deref() == Some("t");
    Ok(SlotState {
        plugin: next(),
        database: next(),
        temporary: flag(next()),
        active_pid: next().map(|pid| parsed("process", Some(pid))).transpose()?,
        confirmed: parsed("position", next())?,
        restart: parsed("position", next())?,
        wal_status: match next().as_deref() {
            None => None,
            Some("reserved") => Some(WalStatus::Reserved),
            Some("extended") => Some(WalStatus::Extended),
            Some("unreserved") => Some(WalStatus::Unreserved),
            Some("lost") => Some(WalStatus::Lost),
            Some(other) => {
                return Err(ClientError::Protocol(format!(
                    "a slot's WAL is \"{other}\""
                )));
            }
        },
        invalidation: next(),
        two_phase: flag(next()),
        failover: flag(next()),
        synced: flag(next()),
    })
}

/// Parses a history file. It has a line `timeline position reason` for each switch; `#` begins
/// a comment.
fn history(text: &str) -> Result<Vec<Switch>> {
    let mut switches: Vec<Switch> = Vec::new();
    let lines = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines {
        let mut words = line.split_whitespace().map(str::to_owned);
        let switch = Switch {
            timeline: parsed("timeline", words.next())?,
            at: parsed("position", words.next())?,
        };
        let later = switches
            .last()
            .is_none_or(|last| last.timeline < switch.timeline && last.at <= switch.at);
        if !later || switches.len() >= MOST_SWITCHES {
            return Err(ClientError::Protocol(
                "a timeline's history file is malformed".to_owned(),
            ));
        }
        switches.push(switch);
    }
    Ok(switches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histories_are_read() {
        let text = "1\t0/3000148\tno recovery target specified\n\n# a comment\n 3\t1/0\tbefore 2000-01-01 00:00:00+00\n";
        let read: Vec<_> = history(text)
            .unwrap()
            .into_iter()
            .map(|switch| (switch.timeline.get(), switch.at.to_string()))
            .collect();
        assert_eq!(read, [(1, "0/3000148".to_owned()), (3, "1/0".to_owned())]);
        assert_eq!(history("").unwrap(), []);
        for bad in [
            "1",
            "x 0/1",
            "0 0/1",
            "1 01",
            "2 0/1\n1 0/2",
            "1 0/2\n2 0/1",
            "1 0/1\n1 0/1",
        ] {
            assert!(history(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn slots_are_read() {
        let row = |status: &str, reason: Option<&str>| {
            let texts = [
                Some("pgoutput"),
                Some("db"),
                Some("f"),
                Some("12"),
                Some("0/2"),
                Some("0/1"),
            ];
            let rest = [Some(status), reason, Some("t"), Some("f"), Some("f")];
            texts
                .into_iter()
                .chain(rest)
                .map(|text| text.map(str::to_owned))
                .collect::<Vec<_>>()
        };
        let slot = slot_state(row("extended", None)).unwrap();
        assert_eq!(slot.plugin.as_deref(), Some("pgoutput"));
        assert_eq!(slot.active_pid, Some(12));
        assert_eq!((slot.confirmed, slot.restart), (2.into(), 1.into()));
        assert_eq!(slot.wal_status, Some(WalStatus::Extended));
        assert!(slot.two_phase && !slot.failover && !slot.temporary);
        let lost = slot_state(row("lost", Some("wal_removed"))).unwrap();
        assert_eq!(lost.invalidation.as_deref(), Some("wal_removed"));
        assert!(slot_state(row("else", None)).is_err());
        assert!(slot_state(Vec::new()).is_err());
    }
}
