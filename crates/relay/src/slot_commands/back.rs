//! Slots that go back to the primary: the copy that is made there, and how the slot becomes it or
//! is dropped with it.
//!
//! - No slot with two-phase commit is the relay's. One of the relay's that is asked for it goes back,
//!   and gets it on the primary from exactly the position where the primary takes over.
//! - While the primary has a copy that stands further on, the relay keeps the slot: what comes before
//!   the copy is sent first, or the copy is dropped first.

use std::sync::Arc;
use std::time::Duration;

use lockstep_client::{ClientError, Connection, SlotState};
use lockstep_wire::backend::Report;
use lockstep_wire::{Lsn, publication_names};
use tracing::info;

use super::{Refusal, Sessions, adopting, in_use};
use crate::adoption::{self, Drop};
use crate::group::GroupKey;
use crate::relay::Relay;
use crate::routes;
use crate::session::Facts;
use crate::slots::{Route, Slot};
use crate::upstream_slot;

/// How long the primary may take to end the stream that makes a slot one with two-phase commit.
const LONGEST_MARKING: Duration = Duration::from_secs(30);

impl Sessions {
    /// Drops a slot and the copy that it was to go back to. False if it is none such any more:
    /// look again.
    pub(super) async fn drop_both(&self, facts: &Facts, slot: &Arc<Slot>) -> Result<bool, Report> {
        let (relay, slot) = (self.0.clone(), slot.clone());
        let (session, pid) = (facts.id, facts.pid);
        // A task of its own: a client that leaves must not leave it half done. libpq blocks.
        let done = tokio::spawn(async move {
            // Nobody gives it back meanwhile.
            let making = relay.making_slot(&slot.name).await;
            let drop_both = move || relay.drop_both(&slot, session, pid);
            let done = tokio::task::spawn_blocking(drop_both).await;
            drop(making);
            done
        });
        let failed = |failed: tokio::task::JoinError| Report::error("XX000", failed.to_string());
        done.await
            .and_then(std::convert::identity)
            .map_err(failed)?
    }
}

impl Relay {
    /// Has the primary make the copy that a slot goes back to.
    pub(super) fn copy_to_primary(&self, slot: &Slot, group: &str) -> Result<(), Refusal> {
        let group = self.group_of(slot, group)?;
        if slot.is_adopting() {
            // What an unfinished try left, or what it was before it was the relay's.
            self.finish_adoption(slot)?;
        }
        if slot.is_adopting() {
            return Err(adopting(&slot.name).into());
        }
        let mut upstream = self.primary().connect_for_sql(&slot.database)?;
        if upstream.slot(&slot.name)?.is_some() {
            // It would be dropped as what an unfinished try left.
            return Err(not_ours(slot).into());
        }
        let from = group.upstream_slot();
        upstream_slot::check_database(&mut upstream, from, &slot.database)?;
        if !self.slots().copying(slot)? {
            let gone = format!("replication slot \"{}\" does not exist", slot.name);
            return Err(Report::error("42704", gone)
                .hint("It was dropped when the spool was full.")
                .into());
        }
        let at = self.in_need(|| Ok(upstream.copy_slot(from, &slot.name, "pgoutput")?))?;
        let route = routes::back_at(group.name().to_owned(), at);
        self.slots().copied(slot, route)?;
        info!(slot = slot.name, %at, "goes back to the primary");
        Ok(())
    }

    /// Ends what the relay has to do with a slot: its copy on the primary is the subscriber's,
    /// which asks to begin at `start`.
    pub(super) fn hand_back(&self, slot: &Slot, start: Lsn) -> Result<(), Refusal> {
        let group = self.group_of(slot, &slot.route().group)?;
        let mut upstream = self.in_need(|| Ok(self.primary().connect(&slot.database)?))?;
        let Some(copy) = upstream.slot(&slot.name)? else {
            // Nobody has used it: another one, further on, does as well.
            let route = Route {
                next: None,
                ..slot.route()
            };
            self.slots().reroute(slot, route, || true)?;
            let report = Report::error(
                "55000",
                format!(
                    "replication slot \"{}\" was to go back to the primary, which has lost its copy",
                    slot.name
                ),
            );
            return Err(report
                .hint("Connect again: the relay makes another copy.")
                .into());
        };
        if let Some(pid) = copy.active_pid {
            return Err(in_use(&slot.name, pid).into());
        }
        if !is_copy(&copy, &slot.database) || copy.confirmed > slot.confirmed() {
            return Err(not_ours(slot).into());
        }
        if copy.confirmed < slot.confirmed() {
            // The subscriber may begin where its slot is, and has what comes before that.
            upstream.advance_slot(&slot.name, slot.confirmed())?;
        }
        if slot.is_two_phase() && !copy.two_phase {
            make_two_phase(upstream, &slot.name, start, group.key())?;
        }
        self.slots().remove(&slot.name)?;
        Ok(())
    }

    /// First the copy: without its slot in the relay a subscriber would be served from the copy,
    /// which stands further on. Without its copy the slot is still all that it was.
    fn drop_both(&self, slot: &Arc<Slot>, session: u64, pid: u32) -> Result<bool, Report> {
        let Ok(_in_use) = slot.acquire(session, pid) else {
            return Ok(false);
        };
        let there = self.slots().get(&slot.name);
        let is_there = there.is_some_and(|there| Arc::ptr_eq(&there, slot));
        let now = adoption::drop_slot(None, &slot.route(), slot.is_adopting());
        if !is_there || now != Drop::RemoveBoth {
            return Ok(false);
        }
        let failed = |error: ClientError| {
            let sqlstate = error.report().map_or("08006", |report| &report.sqlstate);
            let what = format!(
                "the primary did not drop its copy of replication slot \"{}\": {error}",
                slot.name
            );
            Report::error(sqlstate, what)
        };
        let mut upstream = self
            .primary()
            .connect_for_sql(&slot.database)
            .map_err(failed)?;
        if let Some(copy) = upstream.slot(&slot.name).map_err(failed)? {
            if let Some(pid) = copy.active_pid {
                return Err(in_use(&slot.name, pid));
            }
            if !is_copy(&copy, &slot.database) {
                return Err(not_ours(slot));
            }
            upstream.drop_slot(&slot.name).map_err(failed)?;
        }
        let removed = self.slots().remove(&slot.name);
        removed.map_err(|failed| Report::error("58030", failed.to_string()))
    }
}

/// Whether a slot of the primary may be the copy that one of the relay goes back to.
fn is_copy(found: &SlotState, database: &str) -> bool {
    found.plugin.as_deref() == Some("pgoutput")
        && found.database.as_deref() == Some(database)
        && found.active_pid.is_none()
}

fn not_ours(slot: &Slot) -> Report {
    let report = Report::error(
        "55006",
        format!(
            "replication slot \"{}\" cannot go back to the primary, which has another slot of that name",
            slot.name
        ),
    );
    report.hint("Drop the slot on the primary if nobody needs it.")
}

/// Has a slot decode transactions when they are prepared, for good, from where its subscriber's
/// stream begins: what is prepared before that and committed after is sent whole with its commit.
/// Earlier, and such a transaction would never be sent; later, and it would be sent twice. Only a
/// stream that asks for it does that on every version.
fn make_two_phase(
    upstream: Connection,
    slot: &str,
    start: Lsn,
    key: &GroupKey,
) -> Result<(), ClientError> {
    let options = [
        ("proto_version", "3".to_owned()),
        (
            "publication_names",
            publication_names::write(&key.publications),
        ),
        ("two_phase", "on".to_owned()),
    ];
    let stream = upstream.start(slot, start, &options)?;
    info!(slot, "made it a slot with two-phase commit");
    // Nothing was confirmed. Until the walsender has ended nobody else can use the slot.
    stream.finish(LONGEST_MARKING)
}
