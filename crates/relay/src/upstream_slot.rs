//! A group's slot on the primary: how it is made, and whose the slots there are.
//!
//! No slot is dropped that this spool did not make: the names of those end in its identity.

use lockstep_client::{Connection, SlotState};
use lockstep_wire::Lsn;
use tracing::warn;

use crate::config::{Plugin, SLOT_PREFIX};
use crate::error::{RelayError, Result};
use crate::identity::Identity;

/// Servers from this version on have failover slots.
pub const FAILOVER_SLOTS: u32 = 170_000;

/// Plugins by name.
pub const LOCKSTEP: &str = "lockstep";
const PGOUTPUT: &str = "pgoutput";

/// The position where a new group begins.
#[derive(Debug, Clone, Copy)]
pub enum Origin<'a> {
    /// The group begins now.
    Now,
    /// Where this slot on the primary has confirmed.
    Slot(&'a str),
}

/// What a group's slot is to be.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    pub group: &'a str,
    pub database: &'a str,
    pub plugin: Plugin,
    pub origin: Origin<'a>,
    /// A failover slot, where the primary has them.
    pub failover: bool,
}

/// A slot that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    pub name: String,
    pub plugin: String,
    /// Where it begins.
    pub start: Lsn,
}

/// A slot on the primary that has the name of a relay's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotFound {
    pub name: String,
    /// A process of the primary uses it.
    pub active: bool,
}

/// The slots on the primary that have names of relays' slots.
pub fn list(upstream: &mut Connection) -> Result<Vec<SlotFound>> {
    let rows = upstream.query(&format!(
        "SELECT slot_name, active FROM pg_catalog.pg_replication_slots \
         WHERE pg_catalog.starts_with(slot_name::text, '{SLOT_PREFIX}') ORDER BY slot_name"
    ))?;
    let found = rows.into_iter().map(|row| {
        let mut row = row.into_iter().flatten();
        SlotFound {
            name: row.next().unwrap_or_default(),
            active: row.next().as_deref() == Some("t"),
        }
    });
    Ok(found.collect())
}

/// Makes a group's slot, in place of what an unfinished try of this spool left.
pub fn make(upstream: &mut Connection, identity: &Identity, wanted: Wanted<'_>) -> Result<Made> {
    let there = list(upstream)?;
    if let Some(other) = another_spools(&there, identity, wanted.group) {
        return Err(RelayError::Gap(format!(
            "replication slot \"{other}\" is that of group \"{}\" in another spool, and nobody \
             uses it: if that is this relay's spool, stop the relay and mount it; if it is \
             another relay's, start that one first or give this group another name; if it is \
             gone for good, drop the slot with SELECT pg_drop_replication_slot('{other}')",
            wanted.group
        )));
    }
    let name = identity.slot(wanted.group);
    if let Some(left) = upstream.slot(&name)? {
        drop_left(upstream, &name, &left, wanted.database)?;
    }
    if let Origin::Slot(from) = wanted.origin {
        check_database(upstream, from, wanted.database)?;
    }
    let failover = wanted.failover && upstream.server_version() >= FAILOVER_SLOTS;
    let mut make = |plugin: &str| match wanted.origin {
        Origin::Now => upstream.create_slot(&name, plugin, false, failover),
        // A copy becomes one before it is first used.
        Origin::Slot(from) => upstream.copy_slot(from, &name, plugin),
    };
    let (plugin, start) = match wanted.plugin {
        Plugin::Pgoutput => (PGOUTPUT, make(PGOUTPUT)?),
        Plugin::Lockstep => (LOCKSTEP, make(LOCKSTEP)?),
        Plugin::Auto => match make(LOCKSTEP) {
            Ok(start) => (LOCKSTEP, start),
            Err(error) if error.is_missing_library() || error.is_library_not_allowed() => {
                warn!(
                    %error,
                    "using pgoutput: decoding costs the primary about twice as much without \
                     output plugin lockstep"
                );
                (PGOUTPUT, make(PGOUTPUT)?)
            }
            Err(error) => return Err(error.into()),
        },
    };
    Ok(Made {
        plugin: plugin.to_owned(),
        name,
        start,
    })
}

/// Refuses a slot of another database than the one that has this name now. A server copies it
/// all the same, and the copy's position says nothing about the database that it is in. A
/// session in the database keeps it from being renamed meanwhile.
pub fn check_database(upstream: &mut Connection, slot: &str, database: &str) -> Result<()> {
    let found = upstream.slot(slot)?;
    let other = match found.map(|found| found.database) {
        Some(Some(other)) if other != database => other,
        _ => return Ok(()),
    };
    Err(RelayError::Gap(format!(
        "replication slot \"{slot}\" is of database \"{other}\", which was \"{database}\" before: \
         give the databases their old names, or drop the subscription and create it again"
    )))
}

/// A slot that another spool has for a group of this name and that nobody uses. One that is in
/// use belongs to a relay that runs beside this one.
fn another_spools<'a>(there: &'a [SlotFound], identity: &Identity, group: &str) -> Option<&'a str> {
    let mut others = there
        .iter()
        .filter(|slot| !slot.active && identity.is_anothers(&slot.name, group));
    others.next().map(|slot| slot.name.as_str())
}

/// Drops a slot that was left, wherever it stands: a new one begins where it should.
fn drop_left(
    upstream: &mut Connection,
    name: &str,
    left: &SlotState,
    database: &str,
) -> Result<()> {
    if left.database.as_deref() != Some(database) || left.active_pid.is_some() {
        return Err(RelayError::Gap(format!(
            "replication slot \"{name}\" of this spool is there already, in use or of database \
             {}: does another relay run with a copy of this spool?",
            left.database.as_deref().unwrap_or("none")
        )));
    }
    Ok(upstream.drop_slot(name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slot_of_another_spool_stops_a_new_group_unless_a_relay_uses_it() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, _) = Identity::of(folder.path()).unwrap();
        let found = |name: &str, active| SlotFound {
            name: name.to_owned(),
            active,
        };
        for (slot, active, stops) in [
            ("lockstep_orders", false, true),
            ("lockstep_orders_0123456789ab", false, true),
            ("lockstep_orders_0123456789ab", true, false),
            ("lockstep_orders_2_0123456789ab", false, false),
            ("lockstep_other", false, false),
            (&ours.slot("orders"), false, false),
        ] {
            let there = [found("lockstep_x", false), found(slot, active)];
            let stopped = another_spools(&there, &ours, "orders");
            assert_eq!(stopped.is_some(), stops, "{slot} {active}");
        }
    }
}
