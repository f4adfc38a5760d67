//! What it would mean to promote a standby now: which is the first choice, what it lacks, and what would be
//! missing on it afterwards. It is said of the last samples; nobody knows what is committed after them.

use serde::Serialize;

use crate::node::Role;
use crate::rules::View;
use crate::states::{SlotType, SyncState, WalStatus};
use crate::views::Slot;
use crate::window::{NodeWindow, Window};

/// Settings that a promoted standby should not have lower than its primary.
const NUMBERS: [&str; 4] = [
    "max_connections",
    "max_wal_senders",
    "max_replication_slots",
    "max_prepared_transactions",
];

/// Settings that it should have as its primary.
const WORDS: [&str; 2] = ["wal_level", "archive_mode"];

/// Settings with which recovery may end before all WAL is replayed.
const TARGETS: [&str; 5] = [
    "recovery_target",
    "recovery_target_lsn",
    "recovery_target_name",
    "recovery_target_time",
    "recovery_target_xid",
];

/// A standby that could be promoted.
#[derive(Debug, Clone, Serialize)]
pub struct Candidate {
    pub standby: String,
    /// What speaks against it.
    pub against: Vec<String>,
    /// WAL that the primary had flushed and that the standby has not received: it would be lost. None if no
    /// primary answers.
    pub missing_bytes: Option<u64>,
    /// Most transactions that wrote on the primary and are not visible on the standby. Those whose WAL it has
    /// received would be replayed before it is promoted.
    pub most_transactions: Option<u64>,
    /// WAL that it has received and would replay first.
    pub unreplayed_bytes: u64,
    /// `sync_state` on the primary; None if it does not stream from there.
    pub sync_state: Option<SyncState>,
    pub timeline: Option<u32>,
    /// Slots of the primary that are not there, and whether they are logical.
    pub missing_slots: Vec<MissingSlot>,
    /// Settings that would be other ones than the primary's.
    pub settings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MissingSlot {
    pub slot: String,
    pub logical: bool,
}

impl Candidate {
    /// Nothing speaks against it, and what it lacks is known.
    pub fn is_ready(&self) -> bool {
        self.against.is_empty() && self.missing_bytes.is_some()
    }
}

/// What is wrong at a place, by its name.
pub type Wrong<'f> = &'f dyn Fn(&str) -> Vec<String>;

/// Every standby that answers, the first choice first.
pub fn candidates(view: &View<'_>, wrong: Wrong<'_>) -> Vec<Candidate> {
    let nodes = view.window.usable();
    let standbys = nodes.filter(|node| node.role == Role::Standby);
    let mut all: Vec<(u64, Candidate)> = standbys
        .filter_map(|node| {
            let end = node.last()?.end().map_or(0, u64::from);
            Some((end, candidate(view, node, wrong)?))
        })
        .collect();
    // What has received most is the first choice, if nothing speaks against it.
    all.sort_by(|(a, one), (b, other)| {
        let against = one.against.is_empty().cmp(&other.against.is_empty());
        against.reverse().then(b.cmp(a))
    });
    all.into_iter().map(|(_, candidate)| candidate).collect()
}

fn candidate(view: &View<'_>, node: &NodeWindow, wrong: Wrong<'_>) -> Option<Candidate> {
    let last = node.last()?;
    let own = last.end()?;
    let primary = view.window.primary();
    let above = primary.and_then(|primary| primary.sample_at(last.at));
    let end = primary.and_then(|primary| primary.end_at(None, last.at));
    let xids = above
        .and_then(|above| above.wal.next_xid)
        .zip(last.wal.next_xid);
    let mut links = view.links.iter();
    let link = links.find(|link| link.replica.is_some_and(|it| it.name == node.name));
    let direct = link.filter(|link| primary.is_some_and(|it| it.name == link.upstream.name));
    let sender = direct.and_then(|link| link.sender(link.upstream.last()?));
    let replayed = last.wal.replay.unwrap_or(own);
    Some(Candidate {
        standby: node.name.clone(),
        against: against(node, primary, wrong),
        missing_bytes: end.map(|end| end.bytes_since(own)),
        most_transactions: xids.map(|(theirs, ours)| theirs.saturating_sub(ours)),
        unreplayed_bytes: own.bytes_since(replayed),
        sync_state: sender.and_then(|sender| sender.sync_state.clone()),
        timeline: last.background.timeline.map(lockstep_wire::Timeline::get),
        missing_slots: missing_slots(view.window, node, direct.and_then(|it| it.slot.as_deref())),
        settings: primary.map_or_else(Vec::new, |primary| settings(node, primary)),
    })
}

/// What speaks against a standby: what is wrong with it, another history, a recovery target.
fn against(node: &NodeWindow, primary: Option<&NodeWindow>, wrong: Wrong<'_>) -> Vec<String> {
    let mut against = wrong(&node.name);
    let ours = node.last().and_then(|last| last.background.timeline);
    let theirs = primary.and_then(|primary| primary.last()?.wal.timeline);
    if let (Some(ours), Some(theirs)) = (ours, theirs) {
        if ours != theirs {
            against.push(format!(
                "it is on timeline {ours}, and the primary on {theirs}"
            ));
        }
    }
    let set = TARGETS
        .iter()
        .filter_map(|name| Some((name, node.facts.setting(name)?)));
    let set = set.filter(|(_, value)| !value.is_empty());
    against.extend(set.map(|(name, value)| format!("{name} is '{value}': recovery may end there")));
    against
}

/// Slots that consumers of the primary use and that the standby does not have. Its own is not needed there.
fn missing_slots(window: &Window, node: &NodeWindow, own: Option<&str>) -> Vec<MissingSlot> {
    let primary = window.primary().and_then(NodeWindow::last);
    // One that is synchronised for the first time is temporary, and goes with a promotion.
    let is_good = |slot: &Slot| !slot.temporary && slot.wal_status != Some(WalStatus::Lost);
    let there = |name: &str| {
        let slot = node.last().and_then(|last| last.slot(name));
        slot.is_some_and(is_good)
    };
    let slots = primary.map_or(&[][..], |last| &last.slots);
    slots
        .iter()
        .filter(|slot| !slot.temporary && own != Some(&slot.slot_name) && !there(&slot.slot_name))
        .map(|slot| MissingSlot {
            slot: slot.slot_name.clone(),
            logical: slot.slot_type == SlotType::Logical,
        })
        .collect()
}

fn settings(node: &NodeWindow, primary: &NodeWindow) -> Vec<String> {
    let said = |name: &str, ours: &str, theirs: &str| {
        format!("{name} is {ours}, and {theirs} on {}", primary.name)
    };
    let lower = NUMBERS.iter().filter_map(|name| {
        let (ours, theirs) = (node.facts.number(name)?, primary.facts.number(name)?);
        (ours < theirs).then(|| said(name, &ours.to_string(), &theirs.to_string()))
    });
    let other = WORDS.iter().filter_map(|name| {
        let (ours, theirs) = (node.facts.setting(name)?, primary.facts.setting(name)?);
        (ours != theirs).then(|| said(name, ours, theirs))
    });
    lower.chain(other).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::diagnose;
    use crate::rules::scene::{START, Scene, lsn};

    fn of(change: impl Fn(&mut Scene)) -> Vec<Candidate> {
        let mut scene = Scene::healthy();
        for (node, xid) in [(&mut scene.primary, 107), (&mut scene.standby, 100)] {
            for sample in &mut node.samples {
                sample.wal.next_xid = Some(xid);
            }
        }
        change(&mut scene);
        scene.diagnose().failover
    }

    #[test]
    fn what_a_failover_would_lose_is_told() {
        let all = of(|_| {});
        let first = &all[0];
        assert!(
            first.is_ready() && first.missing_bytes == Some(0),
            "{first:?}"
        );
        assert_eq!(first.most_transactions, Some(7));
        assert_eq!(first.sync_state, Some(SyncState::Async));
        let slots: Vec<&str> = first
            .missing_slots
            .iter()
            .map(|it| it.slot.as_str())
            .collect();
        assert_eq!(slots, ["slot_one", "slot_two"]);

        let late = of(|scene| scene.stuck_receive("Activity", "WalReceiverMain"));
        assert!(late[0].missing_bytes > Some(0), "{late:?}");
        let unreplayed = of(|scene| scene.stuck_replay("IPC", "RecoveryPause"));
        assert_eq!(unreplayed[0].missing_bytes, Some(0));
        assert!(unreplayed[0].unreplayed_bytes > 0);

        let lost = of(|scene| scene.primary.samples.clear());
        assert!(!lost[0].is_ready() && lost[0].missing_bytes.is_none());
    }

    #[test]
    fn what_speaks_against_a_standby_is_told() {
        let paused = of(|scene| {
            for sample in &mut scene.standby.samples {
                sample.wal.pause = Some("paused".into());
            }
        });
        assert_eq!(paused[0].against, ["replay is paused"]);
        let set = |name: &str, value: &str| {
            of(|scene| {
                for (node, value) in [(&mut scene.standby, value), (&mut scene.primary, "200")] {
                    let setting = (name.to_owned(), value.to_owned());
                    node.facts.settings.extend([setting]);
                }
            })
        };
        let target = set("recovery_target_xid", "7");
        assert!(
            target[0].against[0].contains("recovery_target_xid is '7'"),
            "{target:?}"
        );
        let lower = set("max_replication_slots", "100");
        assert_eq!(
            lower[0].settings,
            ["max_replication_slots is 100, and 200 on primary"]
        );
    }

    #[test]
    fn of_two_the_one_that_has_more_is_the_first_choice() {
        let healthy = Scene::healthy();
        let mut late = Scene::healthy().standby;
        "late".clone_into(&mut late.name);
        for sample in &mut late.samples {
            (sample.wal.receive, sample.wal.replay) = (lsn(START), lsn(START));
        }
        let nodes = vec![healthy.primary, late, healthy.standby];
        let all = diagnose(&Window::new(nodes)).failover;
        let names: Vec<&str> = all.iter().map(|it| it.standby.as_str()).collect();
        assert_eq!(names, ["standby", "late"]);
    }
}
