//! Replication slots, and how timelines came to be.

use lockstep_wire::{Lsn, Timeline};

use crate::connection::{Connection, Rows, parsed};
use crate::error::Step;
use crate::quote::{identifier, sql_literal};
use crate::{ClientError, MOST_SWITCHES, Result};

/// How much of the WAL that a slot needs is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalStatus {
    /// All, within `max_wal_size`.
    Reserved,
    /// All, beyond `max_wal_size`.
    Extended,
    /// The next checkpoint may remove some.
    Unreserved,
    /// Some is gone: the slot is of no use any more.
    Lost,
}

/// A slot as the server describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotState {
    /// Its output plugin; None for a slot of physical replication.
    pub plugin: Option<String>,
    /// Its database; None for a slot of physical replication.
    pub database: Option<String>,
    /// It goes away with the session that made it.
    pub temporary: bool,
    /// The process that streams from it.
    pub active_pid: Option<u32>,
    /// What its consumer has confirmed; `0/0` if nothing.
    pub confirmed: Lsn,
    /// The oldest WAL that it needs; `0/0` if none.
    pub restart: Lsn,
    /// How much of that is there; None if it needs none yet.
    pub wal_status: Option<WalStatus>,
    /// Why it cannot be used any more, as the server puts it; `wal_removed` for a lost slot
    /// of a server that does not say. None while it can be used.
    pub invalidation: Option<String>,
    /// Prepared transactions are decoded when they are prepared.
    pub two_phase: bool,
    /// It is kept on standbys too (17 on).
    pub failover: bool,
    /// It is a standby's copy of the primary's (17 on).
    pub synced: bool,
}

/// Where a timeline was left for the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    /// The timeline that was left.
    pub timeline: Timeline,
    /// Its end.
    pub at: Lsn,
}

impl Connection {
    /// Creates a slot, which waits for the end of all transactions that are open now, and
    /// returns its consistent point: transactions that commit after it are streamed.
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

    /// Drops a slot. One that is in use is refused. Needs [`crate::Purpose::Replication`].
    pub fn drop_slot(&mut self, name: &str) -> Result<()> {
        let sql = format!("DROP_REPLICATION_SLOT {}", identifier("slot", name)?);
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

    /// Creates slot `to` that begins where `from` stands, with another plugin if it is to be,
    /// and returns what it has confirmed.
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

    /// Looks at a slot; None if there is none of that name.
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
                    wal_status, coalesce({reason}, CASE wal_status WHEN 'lost' THEN 'wal_removed' END), \
                    two_phase, {failover}, {synced} \
             FROM pg_catalog.pg_replication_slots WHERE slot_name = {name}"
        );
        let rows = self.command(Step::Query, "list its slots", &sql)?;
        rows.into_iter().next().map(slot_state).transpose()
    }

    /// How a timeline came to be: which others were left for it where, oldest first. Empty
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

/// A history file: a line for each switch, `timeline position reason`; `#` begins a comment.
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
                "a timeline's history makes no sense".to_owned(),
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
