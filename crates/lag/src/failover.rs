//! What it would mean to promote a standby now: which is the first choice, what it lacks, and what would be
//! missing on it afterwards. It is said of the last samples; nobody knows what is committed after them.

use lockstep_service::words::figures::bytes;
use lockstep_wire::{Lsn, Timeline};
use serde::Serialize;

use crate::node::Role;
use crate::rules::{Cause, View, pause, shown, target, timeline};
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

/// The setting of a standby that is late on purpose.
const DELAY: &str = "recovery_min_apply_delay";

/// Settings that it should have as its primary.
const WORDS: [&str; 2] = ["wal_level", "archive_mode"];

/// A standby that could be promoted.
#[derive(Debug, Clone, Serialize)]
pub struct Candidate {
    pub standby: String,
    /// What speaks against it.
    pub against: Vec<String>,
    /// SQL that ends all that speaks against it, in this order; empty if no such SQL is known.
    pub ready_by: Vec<String>,
    /// Age of the last commit that it has replayed, while no primary answers.
    pub last_commit_age_ms: Option<f64>,
    /// WAL that the primary had flushed and that the standby has not received: it would be lost. None if no
    /// primary answers.
    pub missing_bytes: Option<u64>,
    /// Most transactions that wrote on the primary and are not visible on the standby. Those whose WAL it has
    /// received would be replayed before it is promoted.
    pub most_transactions: Option<u64>,
    /// WAL that it has received and would replay first.
    pub unreplayed_bytes: u64,
    /// The standby that has most of those on the newest timeline, if it has more than this one.
    pub lacks: Option<Lacks>,
    /// The standby that it streams from.
    pub follows: Option<String>,
    /// `sync_state` on the primary; None if it does not stream from there.
    pub sync_state: Option<SyncState>,
    pub timeline: Option<u32>,
    /// Slots of the primary that are not there, and whether they are logical.
    pub missing_slots: Vec<MissingSlot>,
    /// Settings that would be other ones than the primary's.
    pub settings: Vec<String>,
}

/// WAL that another standby has and this one has not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Lacks {
    pub standby: String,
    pub bytes: u64,
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

/// What is wrong at a place, by its name: causes and their titles.
pub type Wrong<'f> = &'f dyn Fn(&str) -> Vec<(Cause, String)>;

/// A candidate, and what decides its place.
struct Ranked {
    end: Lsn,
    /// Patroni never promotes it.
    is_barred: bool,
    candidate: Candidate,
}

impl Ranked {
    /// The place of a candidate among all, the largest first. While the primary answers, a standby that its
    /// commits wait for has all that was acknowledged. Then what has most comes first. One that streams
    /// from another standby has no more than that, however much later it was asked, and comes after it. Those
    /// that Patroni never promotes are the last.
    fn place(&self, all: &[Self]) -> (bool, bool, bool, Lsn, bool) {
        let Candidate {
            against,
            missing_bytes,
            sync_state,
            follows,
            ..
        } = &self.candidate;
        let waited_for = sync_state.as_ref().is_some_and(SyncState::is_waited_for);
        let mut others = all.iter();
        let upstream = others.find(|it| Some(&it.candidate.standby) == follows.as_ref());
        let end = upstream.map_or(self.end, |upstream| self.end.min(upstream.end));
        (
            !self.is_barred,
            against.is_empty(),
            waited_for && missing_bytes.is_some(),
            end,
            follows.is_none(),
        )
    }
}

/// Every standby that answers, the first choice first.
pub fn candidates(view: &View<'_>, wrong: Wrong<'_>) -> Vec<Candidate> {
    let nodes = view.window.usable();
    let standbys = nodes.filter(|node| node.role == Role::Standby);
    let newest = newest_timeline(view.window);
    let all = standbys.filter_map(|node| {
        let end = node.last()?.end()?;
        let candidate = candidate(view, node, wrong, newest)?;
        Some(Ranked {
            end,
            is_barred: is_barred(view.window, node),
            candidate,
        })
    });
    let all: Vec<Ranked> = all.collect();
    let number = newest.map(|(timeline, _)| timeline.get());
    let is_newest = |it: &&Ranked| it.candidate.timeline.is_none_or(|own| Some(own) >= number);
    let most = all.iter().filter(is_newest).max_by_key(|it| it.end);
    let mut places: Vec<_> = all.iter().map(|it| (it.place(&all), it)).collect();
    places.sort_by(|(one, _), (other, _)| other.cmp(one));
    let lacks = |it: &Ranked| {
        let most = most.filter(|most| most.end > it.end)?;
        Some(Lacks {
            standby: most.candidate.standby.clone(),
            bytes: most.end.bytes_since(it.end),
        })
    };
    let candidates = places.into_iter().map(|(_, it)| Candidate {
        lacks: lacks(it),
        ..it.candidate.clone()
    });
    candidates.collect()
}

fn is_barred(window: &Window, node: &NodeWindow) -> bool {
    let membership = window.membership.as_ref();
    membership.is_some_and(|it| it.not_promoted.contains(&node.name))
}

/// What Patroni would not do.
fn refused(window: &Window, node: &NodeWindow) -> Vec<String> {
    let mut words = Vec::new();
    if is_barred(window, node) {
        let tag = "it has the tag nofailover, or failover_priority 0";
        words.push(format!("Patroni does not promote it: {tag}"));
    }
    if window.membership.as_ref().is_some_and(|it| it.is_paused) {
        let pause = "Patroni is paused, and promotes nobody by itself: patronictl resume";
        words.push(pause.to_owned());
    }
    words
}

/// Whether one is ready, in words.
pub fn verdict(candidates: &[Candidate]) -> String {
    match candidates.first() {
        None => "Not ready to fail over: no standby was asked.".to_owned(),
        Some(first) => {
            let is_against = !first.against.is_empty();
            let lead = match () {
                () if first.is_ready() => format!(
                    "Ready to fail over: {} is the first choice. What is committed from now on counts, \
                        too: this \
                     is of the last moment of the watch.",
                    first.standby
                ),
                () if is_against => {
                    "Not ready to fail over: something speaks against each standby.".to_owned()
                }
                () => "No primary answers, so what would be lost is not known.".to_owned(),
            };
            let most = has_most(candidates, first).map_or(String::new(), |most| format!(" {most}"));
            format!("{lead}{most}")
        }
    }
}

/// Who has most WAL, what it costs to promote the first choice instead, and what ends that.
fn has_most(candidates: &[Candidate], first: &Candidate) -> Option<String> {
    let lacks = first.lacks.as_ref();
    let is_most = |it: &&Candidate| lacks.is_some_and(|lacks| lacks.standby == it.standby);
    let most = candidates.iter().find(is_most).unwrap_or(first);
    // Standbys are not asked at the same instant: what another is said to have more may be just that.
    if first.is_ready() && (first.missing_bytes == Some(0) || most.against.is_empty()) {
        return None;
    }
    let all = match most.missing_bytes {
        Some(0) => "has received all WAL",
        _ => "has received most",
    };
    let lost = lacks.map_or(String::new(), |lacks| {
        let (lost, most) = (bytes(lacks.bytes as f64), &lacks.standby);
        format!(
            ": promoting {} would lose {lost} of WAL that {most} has",
            first.standby
        )
    });
    let ready = match most.ready_by.as_slice() {
        [] => String::new(),
        by => format!(" To make it ready: on {}: {}", most.standby, by.join(" ")),
    };
    Some(format!("{} {all}{lost}.{ready}", most.standby))
}

/// The newest timeline of all, and whose it is: the primary's, if it answers.
fn newest_timeline(window: &Window) -> Option<(Timeline, &NodeWindow)> {
    let of = |node| Some((timeline(node)?, node));
    let primary = window.primary().and_then(of);
    let standbys = window.usable().filter(|node| node.role == Role::Standby);
    primary.or_else(|| {
        standbys
            .filter_map(of)
            .max_by_key(|(timeline, _)| *timeline)
    })
}

fn candidate(
    view: &View<'_>,
    node: &NodeWindow,
    wrong: Wrong<'_>,
    newest: Option<(Timeline, &NodeWindow)>,
) -> Option<Candidate> {
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
    let Against { words, ready_by } = against(view.window, node, newest, wrong);
    let age = last.wal.replayed_commit_age_ms;
    Some(Candidate {
        standby: node.name.clone(),
        against: words,
        ready_by,
        last_commit_age_ms: age.filter(|_| above.is_none()),
        missing_bytes: end.map(|end| end.bytes_since(own)),
        most_transactions: xids.map(|(theirs, ours)| theirs.saturating_sub(ours)),
        unreplayed_bytes: own.bytes_since(replayed),
        lacks: None,
        follows: link
            .filter(|link| link.upstream.role == Role::Standby)
            .map(|link| link.upstream.name.clone()),
        sync_state: sender.and_then(|sender| sender.sync_state.clone()),
        timeline: timeline(node).map(Timeline::get),
        missing_slots: missing_slots(view.window, node, direct.and_then(|it| it.slot.as_deref())),
        settings: primary.map_or_else(Vec::new, |primary| settings(node, primary)),
    })
}

/// What speaks against a standby, and the SQL that ends it all.
struct Against {
    words: Vec<String>,
    ready_by: Vec<String>,
}

/// What speaks against a standby: what is wrong with it, another history, a recovery target, a delay. A
/// pause, a delay and an upstream elsewhere are looked for here as well: nobody finds them where no upstream
/// answers.
fn against(
    window: &Window,
    node: &NodeWindow,
    newest: Option<(Timeline, &NodeWindow)>,
    wrong: Wrong<'_>,
) -> Against {
    let found = wrong(&node.name);
    let is_paused = pause(node).is_some();
    let is_pause = |cause: &Cause| {
        let pauses = [
            Cause::ReplayPaused,
            Cause::RecoveryTarget,
            Cause::StandbySettingsTooLow,
        ];
        pauses.contains(cause)
    };
    let is_told = found.iter().any(|(cause, _)| is_pause(cause));
    let (pauses, others): (Vec<_>, Vec<_>) = found
        .into_iter()
        .filter(|(cause, _)| *cause != Cause::ReplayDelayed)
        .partition(|(cause, _)| *cause == Cause::ReplayPaused);
    let titles = |all: Vec<(Cause, String)>| all.into_iter().map(|(_, title)| title);
    let mut ends: Vec<String> = titles(pauses).collect();
    ends.extend((is_paused && !is_told).then(|| "replay is paused".to_owned()));
    let mut ready_by = Vec::new();
    ready_by.extend((!ends.is_empty()).then(|| "SELECT pg_wal_replay_resume();".to_owned()));
    if let Some(delay @ 1.0..) = node.facts.number(DELAY) {
        let delay = shown(DELAY, &format!("{delay:.0}"));
        ends.push(format!(
            "{DELAY} is {delay}: it is late on purpose, and a promotion ends that"
        ));
        ready_by.push(format!(
            "ALTER SYSTEM SET {DELAY} = 0; SELECT pg_reload_conf();"
        ));
    }
    let mut words: Vec<String> = titles(others).collect();
    if let Some((ours, (theirs, other))) = timeline(node).zip(newest) {
        if ours != theirs {
            words.push(format!(
                "it is on timeline {ours}, and {} on timeline {theirs}",
                other.name
            ));
        }
    }
    words.extend(
        target(node).map(|(name, value)| format!("{name} is '{value}': recovery may end there")),
    );
    words.extend(sent_elsewhere(window, node));
    words.extend(refused(window, node));
    // What ends a pause at a recovery target, or one of settings that are too low, promotes it or stops it.
    if !words.is_empty() {
        ready_by.clear();
    }
    words.splice(0..0, ends);
    Against { words, ready_by }
}

/// A standby that does not stream while no primary answers, and whose `primary_conninfo` leads elsewhere than
/// that of the others: to a server that is not known here, while another's is, or where fewer are sent.
fn sent_elsewhere(window: &Window, node: &NodeWindow) -> Option<String> {
    let address = |node: &NodeWindow| node.last()?.source.as_ref()?.address.clone();
    let streams = node.last().is_none_or(|last| last.receiver.is_some());
    if streams || window.primary().is_some_and(NodeWindow::is_usable) {
        return None;
    }
    let own = address(node)?;
    let leads = |to: &(String, String)| window.server_at(node, to);
    if leads(&own).is_some_and(|other| other.name != node.name) {
        return None;
    }
    let standbys = window.usable().filter(|it| it.role == Role::Standby);
    let sent: Vec<_> = standbys.filter_map(address).collect();
    let count = |to: &(String, String)| sent.iter().filter(|it| *it == to).count();
    let others = sent.iter().filter(|it| **it != own);
    let (_, (host, port)) = others
        .map(|it| ((leads(it).is_some(), count(it)), it))
        .filter(|((is_known, number), _)| *is_known || *number > count(&own))
        .max_by_key(|(weight, _)| *weight)?;
    Some(format!(
        "primary_conninfo leads to {}:{}, and that of others to {host}:{port}",
        own.0, own.1
    ))
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
    use crate::rules::scene::{START, Scene, lsn, process, sender};
    use lockstep_wire::Lsn;

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

    /// Another standby of the scene's primary.
    fn another(name: &str, pid: u32) -> NodeWindow {
        let mut other = Scene::healthy().standby;
        name.clone_into(&mut other.name);
        for sample in &mut other.samples {
            let receiver = sample.receiver.as_mut().unwrap();
            (receiver.pid, receiver.slot_name) = (pid, None);
            receiver.application_name = Some(name.to_owned());
        }
        other
    }

    /// Moves all that a standby has of WAL.
    fn ahead(node: &mut NodeWindow, bytes: u64) {
        for sample in &mut node.samples {
            for position in [&mut sample.wal.receive, &mut sample.wal.replay] {
                *position = position.map(|it| Lsn::from(u64::from(it) + bytes));
            }
        }
    }

    fn ranked(nodes: Vec<NodeWindow>) -> Vec<Candidate> {
        diagnose(&Window::new(nodes)).failover
    }

    fn names(all: &[Candidate]) -> Vec<&str> {
        all.iter().map(|it| it.standby.as_str()).collect()
    }

    #[test]
    fn of_two_the_one_that_has_more_is_the_first_choice() {
        let healthy = Scene::healthy();
        let mut late = another("late", 40);
        for sample in &mut late.samples {
            (sample.wal.receive, sample.wal.replay) = (lsn(START), lsn(START));
        }
        let all = ranked(vec![healthy.primary, late, healthy.standby]);
        assert_eq!(names(&all), ["standby", "late"]);
    }

    #[test]
    fn what_patroni_would_not_do_speaks_against_a_standby() {
        use crate::patroni::Membership;
        let of = |not_promoted: &[&str], is_paused: bool| {
            let healthy = Scene::healthy();
            let mut tagged = another("tagged", 40);
            ahead(&mut tagged, 50);
            let mut window = Window::new(vec![healthy.primary, tagged, healthy.standby]);
            window.membership = Some(Membership {
                not_promoted: not_promoted.iter().map(|it| (*it).to_owned()).collect(),
                is_paused,
                ..Membership::default()
            });
            diagnose(&window).failover
        };
        assert_eq!(names(&of(&[], false))[0], "tagged");
        let all = of(&["tagged"], false);
        assert_eq!(names(&all), ["standby", "tagged"]);
        let words =
            "Patroni does not promote it: it has the tag nofailover, or failover_priority 0";
        assert!(all[1].against.contains(&words.to_owned()), "{all:?}");
        assert!(all[0].against.is_empty() && all[1].ready_by.is_empty());
        // It comes after those against which something else speaks, too.
        let all = of(&["tagged"], true);
        assert_eq!(names(&all), ["standby", "tagged"]);
        assert!(all[0].against[0].starts_with("Patroni is paused"));
        assert!(verdict(&all).starts_with("Not ready to fail over"));
    }

    #[test]
    fn the_synchronous_one_is_the_first_choice_while_the_primary_answers() {
        let trio = |state: &'static str| {
            let mut scene = Scene::healthy();
            let mut other = another("other", 40);
            ahead(&mut other, 50);
            for sample in &mut scene.primary.samples {
                sample.senders[0].sync_state = Some(state.into());
                let end = sample.wal.flush.map_or(0, u64::from);
                sample.senders.push(sender(13, "other", end));
                sample
                    .processes
                    .push(process(13, "walsender", "Activity", "WalSenderMain"));
            }
            vec![scene.primary, other, scene.standby]
        };
        for state in ["sync", "quorum"] {
            assert_eq!(names(&ranked(trio(state))), ["standby", "other"], "{state}");
        }
        for state in ["async", "potential"] {
            assert_eq!(names(&ranked(trio(state))), ["other", "standby"], "{state}");
        }
        // Nobody commits any more: what is there decides.
        let mut without = trio("sync");
        without[0].samples.clear();
        assert_eq!(names(&ranked(without)), ["other", "standby"]);
    }

    #[test]
    fn what_speaks_against_a_standby_is_told_without_a_primary() {
        let lost = |change: &dyn Fn(&mut NodeWindow)| {
            of(|scene| {
                scene.primary.samples.clear();
                change(&mut scene.standby);
            })
        };
        assert!(lost(&|_| {})[0].against.is_empty());
        let paused = lost(&|standby| {
            for sample in &mut standby.samples {
                sample.wal.pause = Some("paused".into());
            }
        });
        assert_eq!(paused[0].against, ["replay is paused"]);
        let delayed = lost(&|standby| {
            let setting = ("recovery_min_apply_delay".to_owned(), "3600000".to_owned());
            standby.facts.settings.extend([setting]);
        });
        assert_eq!(
            delayed[0].against,
            ["recovery_min_apply_delay is 1h: it is late on purpose, and a promotion ends that"]
        );
    }

    #[test]
    fn an_old_timeline_is_no_choice_without_a_primary_either() {
        let mut standby = Scene::healthy().standby;
        let mut old = another("old", 40);
        ahead(&mut old, 1_000);
        for (node, number) in [(&mut standby, 2), (&mut old, 1)] {
            for sample in &mut node.samples {
                let timeline = lockstep_wire::Timeline::new(number);
                std::sync::Arc::make_mut(&mut sample.background).timeline = timeline;
            }
        }
        let all = ranked(vec![old, standby]);
        assert_eq!(names(&all), ["standby", "old"]);
        assert_eq!(
            all[1].against,
            ["it is on timeline 1, and standby on timeline 2"]
        );
    }

    #[test]
    fn a_cascaded_one_comes_after_the_one_that_feeds_it() {
        let mut scene = Scene::healthy();
        for sample in &mut scene.standby.samples {
            let end = sample.wal.receive.map_or(0, u64::from);
            sample.senders.push(sender(50, "cascaded", end));
        }
        let mut cascaded = another("cascaded", 60);
        // It was asked a moment later.
        ahead(&mut cascaded, 50);
        for with_primary in [true, false] {
            let mut nodes = vec![cascaded.clone(), scene.standby.clone()];
            nodes.extend(with_primary.then(|| scene.primary.clone()));
            let all = ranked(nodes);
            assert_eq!(names(&all), ["standby", "cascaded"], "{with_primary}");
            assert_eq!(all[1].follows.as_deref(), Some("standby"));
            assert_eq!(all[0].follows, None);
        }
    }

    #[test]
    fn what_was_restored_counts_as_what_was_received() {
        let healthy = Scene::healthy();
        let (streams, mut restores) = (healthy.standby, another("restores", 40));
        for sample in &mut restores.samples {
            sample.wal.replay = sample.wal.receive.map(|it| Lsn::from(u64::from(it) + 50));
            sample.wal.receive = lsn(START);
        }
        let all = ranked(vec![streams, restores]);
        assert_eq!(names(&all), ["restores", "standby"]);
        assert_eq!(all[0].unreplayed_bytes, 0);
        let lacks = all[1]
            .lacks
            .as_ref()
            .map(|it| (it.standby.as_str(), it.bytes));
        assert_eq!(lacks, Some(("restores", 50)));
    }

    #[test]
    fn what_another_has_is_told_of_the_first_choice() {
        let mut paused = another("paused", 40);
        ahead(&mut paused, 5_000);
        for sample in &mut paused.samples {
            sample.wal.pause = Some("paused".into());
        }
        let all = ranked(vec![paused, Scene::healthy().standby]);
        assert_eq!(names(&all), ["standby", "paused"]);
        let lacks = all[0]
            .lacks
            .as_ref()
            .map(|it| (it.standby.as_str(), it.bytes));
        assert_eq!(lacks, Some(("paused", 5_000)));
    }

    fn set(node: &mut NodeWindow, name: &str, value: &str) {
        let setting = (name.to_owned(), value.to_owned());
        node.facts.settings.extend([setting]);
    }

    const RESUME: &str = "on late: SELECT pg_wal_replay_resume();";
    const NO_DELAY: &str =
        "ALTER SYSTEM SET recovery_min_apply_delay = 0; SELECT pg_reload_conf();";

    /// Another standby that has more WAL, and is paused or late on purpose.
    fn late(bytes: u64, paused: bool, delayed: bool) -> NodeWindow {
        let mut late = another("late", 40);
        ahead(&mut late, bytes);
        for sample in &mut late.samples {
            sample.wal.pause = paused.then(|| "paused".into());
        }
        if delayed {
            set(&mut late, "recovery_min_apply_delay", "3600000");
        }
        late
    }

    #[test]
    fn the_one_that_has_most_is_named_and_how_it_becomes_ready() {
        for (paused, delayed) in [(true, false), (false, true), (true, true)] {
            let all = ranked(vec![late(5_000, paused, delayed), Scene::healthy().standby]);
            assert_eq!(names(&all), ["standby", "late"]);
            let said = verdict(&all);
            let lost =
                "late has received most: promoting standby would lose 4.9 kB of WAL that late has.";
            assert!(said.contains(lost), "{said}");
            assert_eq!(said.contains(RESUME), paused, "{said}");
            assert_eq!(said.contains(NO_DELAY), delayed, "{said}");
            assert!(!said.contains("standby has received most"), "{said}");
        }
        let plain = verdict(&ranked(vec![Scene::healthy().standby]));
        assert!(plain.contains("standby has received most."), "{plain}");
        // To resume one at its recovery target promotes it there.
        let mut target = late(5_000, true, false);
        set(&mut target, "recovery_target_xid", "7");
        let said = verdict(&ranked(vec![target, Scene::healthy().standby]));
        assert!(
            said.contains("late has received most") && !said.contains("resume"),
            "{said}"
        );
    }

    #[test]
    fn the_one_that_has_most_is_named_while_the_primary_answers() {
        let behind = |scene: &mut Scene| {
            for sample in &mut scene.standby.samples {
                sample.wal.receive = lsn(START);
                sample.wal.replay = lsn(START);
            }
        };
        let mut scene = Scene::healthy();
        let ready = verdict(&ranked(vec![
            scene.primary.clone(),
            late(0, true, false),
            scene.standby.clone(),
        ]));
        assert!(
            ready.starts_with("Ready to fail over: standby") && !ready.contains("late"),
            "{ready}"
        );
        behind(&mut scene);
        set(&mut scene.standby, "recovery_target_xid", "7");
        let said = verdict(&ranked(vec![
            scene.primary,
            late(0, true, false),
            scene.standby,
        ]));
        let words =
            "speaks against each standby. late has received all WAL. To make it ready: on late: ";
        assert!(said.contains(words) && said.contains(RESUME), "{said}");
    }

    #[test]
    fn a_standby_that_is_sent_elsewhere_is_told_without_a_primary() {
        use crate::source::Source;
        let sent = |node: &mut NodeWindow, port: &str| {
            for sample in &mut node.samples {
                sample.receiver = None;
                sample.source = Some(std::sync::Arc::new(Source {
                    streams: Some(true),
                    address: Some(("db1".to_owned(), port.to_owned())),
                    ..Source::default()
                }));
            }
        };
        let against = |ports: [&str; 3], named: bool| {
            let mut scene = Scene::healthy();
            scene.primary.samples.clear();
            scene.primary.address = "db1:5432/app".to_owned();
            let mut standbys = [scene.standby, another("second", 40), another("third", 50)];
            for (node, port) in standbys.iter_mut().zip(ports) {
                sent(node, port);
            }
            let mut nodes = standbys.to_vec();
            nodes.extend(named.then_some(scene.primary));
            let all = ranked(nodes);
            let all = all.iter().filter(|it| !it.against.is_empty());
            all.map(|it| format!("{}: {}", it.standby, it.against.join("; ")))
                .collect::<Vec<_>>()
        };
        let wrong = "third: primary_conninfo leads to db1:1, and that of others to db1:5432";
        for named in [true, false] {
            assert_eq!(against(["5432", "5432", "1"], named), [wrong], "{named}");
            assert!(
                against(["5432", "5432", "5432"], named).is_empty(),
                "{named}"
            );
            // All may know the primary by another address than the one that was named here.
            assert!(against(["1", "1", "1"], named).is_empty(), "{named}");
        }
        assert_eq!(against(["5432", "1", "1"], true).len(), 2);
        // Nobody knows who of the two is right.
        assert!(against(["5432", "1", "2"], false).is_empty());
    }
}
