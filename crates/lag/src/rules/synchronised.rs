//! The signal of tables that a subscription does not get copied. Positions do not show it: the apply worker
//! follows all other tables.

use std::time::Duration;

use lockstep_service::words::figures::{counted, verb};
use serde::Serialize;

use super::published::{lacking_tables, some};
use super::{Evidence, View, denied, suspects, unfilled};
use crate::link::Link;
use crate::sample::Sample;
use crate::states::SyncPhase;
use crate::views::{Subscription, Unsynced};
use crate::window::NodeWindow;

/// Share of samples from which a worker copies.
const MOSTLY: f64 = 0.5;

/// How the copying of a subscription's tables gets on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copying {
    /// All tables are synchronised.
    Done,
    /// Tables or rows were copied in this window, or are copied and wait for the apply worker.
    GetsOn,
    /// A worker has failed.
    Fails,
    /// No worker copies.
    Waits,
    /// A worker is there, and no row has come in this window; or a state is not known.
    Open,
}

fn is_copied(table: &Unsynced) -> bool {
    matches!(
        table.state,
        SyncPhase::Synchronized | SyncPhase::FinishedCopy
    )
}

/// Tables of a link's subscription that are not copied yet; the first of them, if they are many.
pub(super) fn uncopied(link: &Link<'_>) -> Vec<String> {
    let row = link.replica.and_then(|node| link.subscribed(node.last()?));
    let tables = row.into_iter().flat_map(|row| &row.unsynced);
    let tables = tables.filter(|table| !is_copied(table));
    tables.map(|table| table.table.clone()).collect()
}

/// Why it is not known whether a copy gets on: what its workers do.
pub(crate) fn open_words(link: &Link<'_>) -> String {
    let last = link.replica.and_then(NodeWindow::last);
    let works = last.and_then(|last| {
        let mut tables = link.subscribed(last)?.unsynced.iter();
        tables.find_map(|table| {
            let process = last.process_of(table.pid?)?;
            Some(match (&process.wait_type, &process.wait) {
                (Some(kind), Some(event)) => format!("its worker waits for {kind} {event}"),
                _ => "its worker waits for nothing".to_owned(),
            })
        })
    });
    let triggers = last.and_then(|last| {
        let name = link.subscription.as_deref()?;
        let triggers = &last.tables.subscriptions.get(name)?.triggers;
        let first = triggers.first()?;
        Some(format!(
            "; trigger {} on {} fires in it",
            first.name, first.table
        ))
    });
    format!(
        "whether the copy of its tables gets on: no row of {} has come in this window, and {}{}",
        some(&uncopied(link)),
        works.unwrap_or_else(|| "its worker is not seen".to_owned()),
        triggers.unwrap_or_default()
    )
}

fn rows(row: &Subscription) -> u64 {
    let rows = row.unsynced.iter().filter_map(|table| table.rows);
    rows.fold(0, u64::saturating_add)
}

/// How the tables of a link's subscription get on; None if the subscriber was not asked.
pub(crate) fn copying(link: &Link<'_>) -> Option<Copying> {
    let replica = link.replica?;
    let first = link.subscribed(replica.samples.first()?)?;
    let last = link.subscribed(replica.last()?)?;
    if last.unsynced_tables == 0 {
        return Some(Copying::Done);
    }
    let errors = replica.growth(|sample| Some(link.subscribed(sample)?.sync_errors as f64));
    let works = |sample: &Sample| {
        link.subscribed(sample)
            .is_some_and(|row| row.unsynced.iter().any(|table| table.pid.is_some()))
    };
    let works = replica.share(works) >= MOSTLY || replica.last().is_some_and(works);
    let comes = last.unsynced_tables < first.unsynced_tables || rows(last) > rows(first);
    let is_known = |table: &Unsynced| SyncPhase::KNOWN.contains(&table.state);
    let waits_to_apply = !last.unsynced.is_empty() && last.unsynced.iter().all(is_copied);
    Some(match () {
        () if !last.unsynced.iter().all(is_known) => Copying::Open,
        () if errors > 0.0 => Copying::Fails,
        () if comes || waits_to_apply => Copying::GetsOn,
        () if works => Copying::Open,
        // A worker that has failed comes again only after wal_retrieve_retry_interval.
        () if last.sync_errors > 0 => Copying::Fails,
        () if is_fresh(link) => Copying::Open,
        () => Copying::Waits,
    })
}

/// A copy of a subscription's tables that is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct InitialCopy {
    /// Tables that are not synchronised yet.
    pub tables: u64,
    /// Rows that workers have copied of those that they copy now.
    pub rows: u64,
}

impl InitialCopy {
    pub fn words(self) -> String {
        let is = verb(self.tables, "is", "are");
        let mut words = format!("{} {is} being copied", counted(self.tables, "table"));
        if self.rows > 0 {
            words += &format!(", {} so far", counted(self.rows, "row"));
        }
        words
    }
}

/// The copy of the tables of a link's subscription, unless it fails or nobody works on it, which are causes.
pub(crate) fn initial_copy(link: &Link<'_>) -> Option<InitialCopy> {
    copying(link).filter(|it| matches!(it, Copying::GetsOn | Copying::Open))?;
    let last = link.subscribed(link.replica?.last()?)?;
    Some(InitialCopy {
        tables: last.unsynced_tables,
        rows: rows(last),
    })
}

/// A subscription that was just made, of which no worker has begun: its launcher starts workers at this
/// interval, so a shorter window does not tell whether one comes.
pub(crate) fn is_fresh(link: &Link<'_>) -> bool {
    let Some(node) = link.replica.filter(|_| link.is_first_copy()) else {
        return false;
    };
    let row = node.last().and_then(|last| link.subscribed(last));
    let begun = |table: &Unsynced| table.state != SyncPhase::Initialize || table.pid.is_some();
    let has_begun = row.is_none_or(|row| row.unsynced.iter().any(begun));
    !has_begun && node.length() <= retry(node)
}

/// How long a launcher waits between two tries of a worker, unless the server says it.
const RETRY: Duration = Duration::from_secs(5);

/// Most workers that copy tables of one subscription at once.
const SYNC_WORKERS: &str = "max_sync_workers_per_subscription";

/// Interval at which the launcher of a server tries to start a worker again.
pub(super) fn retry(node: &NodeWindow) -> Duration {
    let retry = node.facts.number("wal_retrieve_retry_interval");
    retry.map_or(RETRY, |ms| {
        Duration::from_secs_f64(ms.clamp(0.0, 1e9) / 1000.0)
    })
}

pub(super) fn fails(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for link in &view.links {
        let state = copying(link).filter(|it| matches!(it, Copying::Fails | Copying::Waits));
        let last = link
            .replica
            .and_then(|replica| Some((replica, link.subscribed(replica.last()?)?)));
        let (Some(state), Some((replica, last))) = (state, last) else {
            continue;
        };
        // Another rule says why a subscription without apply worker copies nothing.
        if !last.enabled || last.pid.is_none() {
            continue;
        }
        let tables = uncopied(link);
        // Other rules say which columns they lack, which get no value, or that they may not be written.
        let mut lacking = lacking_tables(view, link);
        lacking.extend(unfilled::tables(view, link));
        lacking.extend(denied::tables(view, link));
        if state == Copying::Fails && tables.iter().all(|table| lacking.contains(table)) {
            continue;
        }
        let (name, words) = match state {
            Copying::Fails => {
                let words = format!("copying has failed {}", counted(last.sync_errors, "time"));
                ("failing_node", words)
            }
            _ if replica.facts.number(SYNC_WORKERS) == Some(0.0) => (
                "idle_node",
                format!("no worker copies them: {SYNC_WORKERS} is 0"),
            ),
            _ => ("waiting_node", "no worker copies them".to_owned()),
        };
        let evidence = Evidence::of(link, 1.0)
            .fact(
                "unsynced_tables",
                last.unsynced_tables as f64,
                format!("tables that are not copied: {}", some(&tables)),
            )
            .fact("sync_errors", last.sync_errors as f64, words)
            .name("tables", some(&tables))
            .name(name, &replica.name)
            .setting(replica, "max_logical_replication_workers")
            .setting(replica, "max_worker_processes");
        let among = tables.into_iter().collect();
        found.push(match state {
            Copying::Fails => suspects::of_tables(evidence, view, link, &among),
            _ => evidence,
        });
    }
    found
}
