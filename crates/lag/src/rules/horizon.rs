//! Signals about old transactions on a primary: while they last, its dead rows stay, and its
//! logical slots keep the WAL since their beginning, however fast their consumers are.

use lockstep_service::words::figures::{bytes, counted, seconds, verb};

use super::logical::to_end;
use super::standing::{MANY_DEAD, MUCH_WAL, OLD_XACT_MS, OLD_XMIN, kept};
use super::{Evidence, Severity, View, identifier};
use crate::node::Role;
use crate::sample::Sample;
use crate::states::SlotType;
use crate::views::{Prepared, Session};
use crate::window::NodeWindow;

/// A prepared transaction this old is forgotten: those that prepare also commit, at once.
const FORGOTTEN_MS: f64 = 300_000.0;

/// Least age of a prepared transaction that is blamed for what it holds, milliseconds.
const PREPARED_MS: f64 = 5_000.0;

/// A transaction is the reason for an old horizon if it has at least this part of its age.
const SAME_AGE: f64 = 0.9;

/// Primaries that answer, with their newest samples.
fn primaries<'v>(view: &'v View<'_>) -> impl Iterator<Item = (&'v NodeWindow, &'v Sample)> {
    let nodes = view.window.usable();
    let nodes = nodes.filter(|node| node.role == Role::Primary);
    nodes.filter_map(|node| Some((node, node.last()?)))
}

/// WAL that a logical slot keeps although its consumer has confirmed it.
struct HeldWal {
    slot: String,
    bytes: f64,
}

/// The slot that keeps most of such WAL.
fn held_wal(sample: &Sample) -> Option<HeldWal> {
    let slots = sample.slots.iter();
    let logical = slots.filter(|slot| slot.slot_type == SlotType::Logical && slot.active);
    let held = logical.filter_map(|slot| {
        let confirmed = sample.end()?.bytes_since(slot.confirmed_flush_lsn?) as f64;
        Some(HeldWal {
            slot: slot.slot_name.clone(),
            bytes: kept(sample, slot) - confirmed,
        })
    });
    held.filter(|held| held.bytes >= MUCH_WAL)
        .max_by(|a, b| a.bytes.total_cmp(&b.bytes))
}

/// Adds what the transaction holds on to.
fn holding(
    mut evidence: Evidence,
    node: &NodeWindow,
    wal: Option<&HeldWal>,
    rows: Option<i64>,
) -> Evidence {
    if let Some(HeldWal { slot, bytes: held }) = wal {
        evidence = evidence
            .fact(
                "held_wal_bytes",
                *held,
                format!(
                    "slot {slot} keeps {} of WAL that its consumer has confirmed",
                    bytes(*held)
                ),
            )
            .name("slot", slot);
    }
    if let Some(age) = rows {
        evidence = evidence.fact(
            "held_rows_age_transactions",
            age as f64,
            format!(
                "rows deleted in the last {age} transactions stay on {} and its standbys",
                node.name
            ),
        );
    }
    evidence
}

pub(super) fn prepared(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for (node, sample) in primaries(view) {
        let oldest = sample.prepared.iter();
        let oldest = oldest.max_by(|a, b| a.age().total_cmp(&b.age()));
        let Some(oldest) = oldest.filter(|oldest| oldest.age() >= PREPARED_MS) else {
            continue;
        };
        let wal = held_wal(sample);
        let rows = oldest.xid_age.filter(|age| *age >= OLD_XMIN);
        if wal.is_none() && rows.is_none() && oldest.age() < FORGOTTEN_MS {
            continue;
        }
        let count = sample.prepared.len();
        let database = oldest
            .database
            .as_deref()
            .map_or("?".to_owned(), identifier);
        let owner = oldest.owner.as_deref().unwrap_or("?");
        let evidence = Evidence::on(node, Severity::Risk)
            .fact(
                "prepared_age_ms",
                oldest.age(),
                format!(
                    "{} of user {owner} was prepared {} ago, and neither committed nor rolled back",
                    oldest.gid,
                    seconds(oldest.age())
                ),
            )
            .fact(
                "prepared_transactions",
                count as f64,
                format!(
                    "{} {} prepared; each keeps its locks",
                    counted(count as u64, "transaction"),
                    verb(count as u64, "is", "are")
                ),
            )
            .name("database", database);
        let evidence = to_end(evidence, &oldest.gid);
        found.push(holding(evidence, node, wal.as_ref(), rows));
    }
    found
}

impl Prepared {
    fn age(&self) -> f64 {
        self.age_ms.unwrap_or(0.0)
    }
}

pub(super) fn old_transaction(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for (node, sample) in primaries(view) {
        let sessions = sample.clients.oldest.iter();
        let old: Vec<&Session> = sessions
            .filter(|session| session.xact_age_ms >= Some(OLD_XACT_MS))
            .collect();
        let many = sample.dead_rows >= Some(MANY_DEAD);
        let rows = |session: &Session| session.holds().filter(|age| *age >= OLD_XMIN || many);
        let prepared = sample.prepared.iter().filter_map(|one| one.xid_age).max();
        // A transaction that is older holds all of it.
        let wal = held_wal(sample).filter(|_| prepared.is_none());
        let writer = old.iter().find(|session| session.has_xid());
        let holder = match wal {
            Some(_) => writer.or_else(|| old.iter().find(|session| rows(session).is_some())),
            None => old.iter().find(|session| rows(session).is_some()),
        };
        let Some(session) = holder else { continue };
        let wal = wal.as_ref().filter(|_| session.has_xid());
        let evidence = Evidence::on(node, Severity::Risk).session(session);
        found.push(holding(evidence, node, wal, rows(session)));
    }
    found
}

/// The primary has a transaction of its own that keeps nearly all the rows which a replica seems
/// to keep. A standby's snapshots include what is open or prepared on the primary.
pub(super) fn keeps_as_much(sample: &Sample, age: i64) -> bool {
    let sessions = sample.clients.oldest.iter().filter_map(Session::holds);
    let prepared = sample.prepared.iter().filter_map(|one| one.xid_age);
    let oldest = sessions.chain(prepared).max();
    oldest.is_some_and(|oldest| oldest as f64 >= SAME_AGE * age as f64)
}
