//! The signal of commits that wait for a replica which is connected: it does not confirm what they need, or
//! does not count.

use std::time::Duration;

use lockstep_service::words::figures::{bytes, percent, seconds};
use lockstep_wire::Lsn;
use lockstep_wire::standby_names::StandbyNames;

use super::published::some;
use super::synchronous::{MISSING_SHARE, absent, lacks, sees_senders, waited_for};
use super::{Cause, Evidence, Rule, Severity, View};
use crate::node::Role;
use crate::sample::Sample;
use crate::states::{SenderState, SyncState, SynchronousCommit};
use crate::views::Sender;
use crate::window::NodeWindow;

/// The rule.
pub(super) const RULE: Rule = Rule {
    cause: Cause::CommitsHeld,
    title: "commits {wait} for {holder}, which is connected",
    signal,
    remedies: &[
        "start {unflushing} anew with --synchronous: without that it tells what it has flushed only when a segment \
         is full, or not at all",
        "on {node}: ALTER SYSTEM SET synchronous_standby_names = '{rest}'; SELECT pg_reload_conf(); commits wait for \
         these then, and those that wait return as soon as these have them",
        "let no commit ask for remote_apply while commits wait for {receiver}, which replays nothing \
         (synchronous_commit is {synchronous_commit} on {node}; roles, databases and sessions may have another)",
        "let {late} get on: what is said of it by name says why it does not",
        "on {node}: ALTER SYSTEM SET synchronous_standby_names = '{nobody}'; SELECT pg_reload_conf(); all commits \
         that wait return at once, and are lost if {node} is lost before a replica has them",
    ],
};

/// Time since the oldest statement that waits began, from which that is no usual wait, in milliseconds.
pub(crate) const LONG_COMMIT_MS: f64 = 5_000.0;

/// Time for which commits have waited without a break, while the replica has not come to where they began.
const HELD: Duration = Duration::from_secs(2);

/// Why commits do not return that wait for a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// The replica tells nothing that it has flushed, so that it counts as asynchronous.
    TellsNoFlush,
    /// The replica does not count before it streams.
    CatchesUp,
    /// The replica has not flushed what they need.
    Unflushed,
    /// The replica has flushed it, so they wait until it is replayed.
    Unreplayed,
}

struct Holder<'s> {
    sender: &'s Sender,
    why: Why,
}

impl Holder<'_> {
    /// True of what has never replayed anything: pg_receivewal, or a consumer that tells no such position.
    fn replays_nothing(&self) -> bool {
        self.sender.replay_lsn.is_none()
    }

    /// True if commits wait for it to replay, which it never does.
    fn is_asked_in_vain(&self) -> bool {
        self.replays_nothing() && self.why == Why::Unreplayed
    }

    fn words(&self, end: Lsn) -> String {
        let told = match self.why {
            Why::TellsNoFlush => {
                return "it tells no position that it has flushed, so it does not count".to_owned();
            }
            Why::CatchesUp => {
                return "it does not count before it streams, and catches up".to_owned();
            }
            Why::Unreplayed if self.is_asked_in_vain() => {
                return "it replays nothing, and commits wait until it has (remote_apply)"
                    .to_owned();
            }
            Why::Unreplayed => ("replayed", self.sender.replay_lsn),
            Why::Unflushed => ("flushed", self.sender.flush_lsn),
        };
        let (does, position) = told;
        let position = position.unwrap_or(Lsn::INVALID);
        format!(
            "it has told that it has {does} up to {position}, {} less than they need",
            bytes(end.bytes_since(position) as f64)
        )
    }
}

fn is_counted(sender: &&Sender) -> bool {
    let state = sender.sync_state.as_ref();
    state.is_some_and(SyncState::is_waited_for)
}

/// Replicas that commits are to wait for, and that are connected and do not count.
fn uncounted<'s>(sample: &'s Sample, names: &StandbyNames) -> Vec<Holder<'s>> {
    let meant = sample.senders.iter().filter(|sender| {
        // Slot and name of a replica that has just connected may not be known.
        let is_replica = matches!(
            sender.state,
            Some(SenderState::Streaming | SenderState::Catchup)
        );
        is_replica && names.mean(&sender.application_name) && !is_counted(sender)
    });
    let holders = meant.filter_map(|sender| {
        let why = match (sender.flush_lsn, &sender.state) {
            (None, _) => Why::TellsNoFlush,
            (Some(_), Some(SenderState::Catchup)) => Why::CatchesUp,
            (Some(_), _) => return None,
        };
        Some(Holder { sender, why })
    });
    holders.collect()
}

/// True if commits lack no other replica than such as are connected and do not count.
pub(super) fn are_uncounted(sample: &Sample, names: &StandbyNames) -> bool {
    absent(sample, names).is_empty() && !uncounted(sample, names).is_empty()
}

/// Replicas that have not confirmed a position for which commits wait. Those that wait for a flush do not
/// return before enough have flushed it; if enough have, they wait until it is replayed.
fn unconfirmed<'s>(sample: &'s Sample, names: &StandbyNames, end: Lsn) -> Vec<Holder<'s>> {
    let counted: Vec<&Sender> = sample.senders.iter().filter(is_counted).collect();
    let lacking = |of: fn(&Sender) -> Option<Lsn>, why| -> Option<Vec<Holder<'s>>> {
        let behind = counted.iter().filter(|sender| of(sender) < Some(end));
        let holders: Vec<_> = behind.map(|sender| Holder { sender, why }).collect();
        (counted.len() - holders.len() < names.needed as usize).then_some(holders)
    };
    lacking(|sender| sender.flush_lsn, Why::Unflushed)
        .or_else(|| lacking(|sender| sender.replay_lsn, Why::Unreplayed))
        .unwrap_or_default()
}

/// What holds commits of a primary: the holders, and the position that they have not confirmed.
fn held<'s>(
    node: &'s NodeWindow,
    sample: &'s Sample,
    names: &StandbyNames,
) -> Option<(Vec<Holder<'s>>, Lsn)> {
    let newest = node.samples.iter().rev();
    let began = newest
        .take_while(|sample| sample.clients.awaiting_sync > 0)
        .last()?;
    let waits_ms = sample.clients.awaiting_sync_ms.unwrap_or(0.0);
    let is_long = sample.at.saturating_sub(began.at) >= HELD && waits_ms >= LONG_COMMIT_MS;
    // Commits that waited then have been flushed here.
    let end = began.wal.flush.filter(|_| is_long)?;
    let holders = unconfirmed(sample, names, end);
    (!holders.is_empty()).then_some((holders, end))
}

/// Replicas of which it is known before a commit waits that it will not return: one that replays nothing
/// while commits ask for that, and one that writes without telling what it has flushed.
fn will_hold<'s>(node: &NodeWindow, sample: &'s Sample, names: &StandbyNames) -> Vec<Holder<'s>> {
    let asked = node
        .facts
        .setting("synchronous_commit")
        .map(SynchronousCommit::from);
    let asks_for_replay = asked == Some(SynchronousCommit::RemoteApply);
    let asks_for_flush = asks_for_replay || asked == Some(SynchronousCommit::On);
    let flushes_late = |sender: &Sender| {
        let is_late = |sample: &Sample| {
            let now = sample.sender(sender.pid);
            now.is_some_and(|now| now.flush_lsn < now.write_lsn)
        };
        asks_for_flush && node.samples.iter().all(is_late)
    };
    let counted: Vec<&Sender> = sample.senders.iter().filter(is_counted).collect();
    let receivers = counted.iter().filter(|sender| sender.replay_lsn.is_none());
    let holders = receivers.filter_map(|sender| {
        let why = match (flushes_late(sender), asks_for_replay) {
            (true, _) => Why::Unflushed,
            (false, true) => Why::Unreplayed,
            (false, false) => return None,
        };
        Some(Holder { sender, why })
    });
    let mut holders: Vec<_> = holders.collect();
    // The others of a quorum may be enough.
    if counted.len() - holders.len() >= names.needed as usize {
        holders.clear();
    }
    holders
}

/// The value of `synchronous_standby_names` without the holders, of replicas that are connected and confirm;
/// within single quotes.
fn without(sample: &Sample, names: &StandbyNames, holders: &[Holder<'_>]) -> Option<String> {
    let holds = |name: &str| {
        let mut holders = holders.iter();
        holders.any(|it| it.sender.application_name.eq_ignore_ascii_case(name))
    };
    let replays = holders.iter().any(|it| it.why == Why::Unreplayed);
    let confirm = sample.senders.iter().filter(|sender| {
        let is_replica = sender.state == Some(SenderState::Streaming);
        let confirms = sender.flush_lsn.is_some() && (sender.replay_lsn.is_some() || !replays);
        is_replica && confirms && names.mean(&sender.application_name)
    });
    let mut others: Vec<&str> = confirm.map(|it| it.application_name.as_str()).collect();
    others.retain(|name| !holds(name));
    // The first ones of a list come first.
    let place = |name: &str| {
        names
            .names
            .iter()
            .position(|it| it.eq_ignore_ascii_case(name))
    };
    others.sort_by_key(|name| (place(name).unwrap_or(usize::MAX), *name));
    others.dedup();
    let needed = others.len().min(names.needed as usize);
    let setting = sample
        .wal
        .synchronous_standby_names
        .as_deref()
        .unwrap_or_default();
    let method = match setting.trim_start().get(..3) {
        Some(word) if word.eq_ignore_ascii_case("any") => "ANY",
        _ => "FIRST",
    };
    let quoted: Vec<String> = others
        .iter()
        .map(|name| format!("\"{}\"", name.replace('"', "\"\"")))
        .collect();
    let list = quoted.join(", ").replace('\'', "''");
    (needed > 0).then(|| format!("{method} {needed} ({list})"))
}

fn signal(view: &View<'_>) -> Vec<Evidence> {
    let primaries = view.window.usable().filter(|it| it.role == Role::Primary);
    primaries
        .filter_map(|node| of_primary(view, node))
        .collect()
}

fn of_primary(view: &View<'_>, node: &NodeWindow) -> Option<Evidence> {
    let sample = node.last().filter(|sample| sees_senders(node, sample))?;
    let names = waited_for(sample)?;
    let end = sample.wal.flush.unwrap_or(Lsn::INVALID);
    let waits = sample.clients.awaiting_sync;
    let (holders, end, severity) = if lacks(sample) {
        let is_it = are_uncounted(sample, &names) && node.share(lacks) >= MISSING_SHARE;
        let severity = if waits > 0 {
            Severity::Lag
        } else {
            Severity::Risk
        };
        (
            uncounted(sample, &names)
                .into_iter()
                .filter(|_| is_it)
                .collect(),
            end,
            severity,
        )
    } else if let Some((holders, end)) = held(node, sample, &names) {
        (holders, end, Severity::Lag)
    } else {
        (will_hold(node, sample, &names), end, Severity::Risk)
    };
    (!holders.is_empty())
        .then(|| evidence(view, node, sample, &names, &holders, end).severity(severity))
}

fn evidence(
    view: &View<'_>,
    node: &NodeWindow,
    sample: &Sample,
    names: &StandbyNames,
    holders: &[Holder<'_>],
    end: Lsn,
) -> Evidence {
    let waits = sample.clients.awaiting_sync;
    let waits_ms = sample
        .clients
        .awaiting_sync_ms
        .filter(|_| waits > 0)
        .unwrap_or(0.0);
    let share = node.share(|sample| sample.clients.awaiting_sync > 0);
    let mut evidence = Evidence::on(node, Severity::Lag).fact(
        "waiting_commits",
        waits as f64,
        format!(
            "{waits} commits wait, in {} of the samples some did",
            percent(share)
        ),
    );
    if waits > 0 {
        let words = format!(
            "the oldest of their statements began {} ago",
            seconds(waits_ms)
        );
        evidence = evidence.fact("oldest_wait_ms", waits_ms, words);
    }
    for holder in holders {
        let words = format!("{}: {}", holder.sender.application_name, holder.words(end));
        let told = match holder.why {
            Why::Unreplayed => holder.sender.replay_lsn,
            _ => holder.sender.flush_lsn,
        };
        let lacks = end.bytes_since(told.unwrap_or(end)) as f64;
        evidence = evidence.fact("unconfirmed_bytes", lacks, words);
    }
    // What is known of a replica that was asked says more.
    let is_asked = |holder: &Holder<'_>| {
        let mut links = view.links.iter();
        links.any(|link| {
            let is_its = link.upstream.name == node.name && link.replica.is_some();
            is_its
                && link
                    .sender(sample)
                    .is_some_and(|it| it.pid == holder.sender.pid)
        })
    };
    evidence.explains = if holders.iter().all(is_asked) {
        0.5
    } else {
        1.0
    };
    evidence.lag_ms = waits_ms;
    let all = |such: &dyn Fn(&Holder<'_>) -> bool| {
        let names = holders.iter().filter(|it| such(it));
        let names: Vec<String> = names.map(|it| it.sender.application_name.clone()).collect();
        (!names.is_empty()).then(|| some(&names))
    };
    let is_receiver = |it: &Holder<'_>| {
        let has_slot = sample
            .slots
            .iter()
            .any(|slot| slot.active_pid == Some(it.sender.pid) && slot.database.is_some());
        it.replays_nothing() && !has_slot
    };
    for (name, value) in [
        ("holder", all(&|_| true)),
        (
            "unflushing",
            all(&|it| is_receiver(it) && it.why != Why::Unreplayed),
        ),
        ("receiver", all(&|it| it.is_asked_in_vain())),
        (
            "late",
            all(&|it| !is_receiver(it) && !it.is_asked_in_vain()),
        ),
        ("rest", without(sample, names, holders)),
    ] {
        if let Some(value) = value {
            evidence = evidence.name(name, value);
        }
    }
    if !evidence.names.contains_key("rest") {
        evidence = evidence.name("nobody", "");
    }
    evidence = evidence.name("wait", if waits > 0 { "wait" } else { "will wait" });
    evidence.setting(node, "synchronous_commit")
}

#[cfg(test)]
mod tests {
    use super::super::scene::{START, lsn, node};
    use super::*;
    use crate::diagnosis::{Diagnosis, Finding, diagnose};
    use crate::window::Window;

    const LIST: &str = "FIRST 1 (receiver, s1)";

    fn sender(name: &str, state: &str, flush: Option<u64>, replay: Option<u64>) -> Sender {
        Sender {
            pid: name.len() as u32,
            application_name: name.to_owned(),
            state: Some("streaming".into()),
            sync_state: Some(state.into()),
            write_lsn: lsn(START),
            flush_lsn: flush.and_then(lsn),
            replay_lsn: replay.and_then(lsn),
            ..Sender::default()
        }
    }

    /// A commit has waited for ten seconds, or none does.
    fn diagnosed(setting: &str, senders: &[Sender], waits: bool, level: &str) -> Diagnosis {
        let mut node = node("primary", Role::Primary, |_, _| {
            let mut sample = Sample::default();
            sample.wal.flush = lsn(START);
            sample.wal.synchronous_standby_names = Some(setting.to_owned());
            sample.senders = senders.to_vec();
            sample.clients.awaiting_sync = u64::from(waits);
            sample.clients.awaiting_sync_ms = waits.then_some(10_000.0);
            sample
        });
        let level = ("synchronous_commit".to_owned(), level.to_owned());
        node.facts.settings.extend([level]);
        diagnose(&Window::new(vec![node]))
    }

    fn found(diagnosis: Diagnosis) -> Option<Finding> {
        let mut found = diagnosis.findings.into_iter();
        found.find(|it| it.cause == Cause::CommitsHeld)
    }

    #[test]
    fn a_replica_that_lets_no_commit_return_is_named() {
        let has = Some(START);
        let behind = Some(START - 100);
        let s1 = || sender("s1", "potential", has, has);
        let late = || sender("receiver", "sync", behind, None);
        let flushes = || sender("receiver", "sync", has, None);
        let silent = || sender("receiver", "async", None, None);
        for (senders, waits, level, severity, fact, remedy) in [
            (
                vec![late(), s1()],
                true,
                "on",
                Severity::Lag,
                "flushed up to 0/3B9AC99C, 100 bytes less",
                "start receiver anew with --synchronous",
            ),
            (
                vec![flushes(), s1()],
                true,
                "on",
                Severity::Lag,
                "it replays nothing",
                "on primary: ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (\"s1\")'; SELECT",
            ),
            (
                vec![late(), s1()],
                false,
                "on",
                Severity::Risk,
                "flushed up to",
                "start receiver anew",
            ),
            (
                vec![flushes()],
                false,
                "remote_apply",
                Severity::Risk,
                "it replays nothing",
                "let no commit ask for remote_apply",
            ),
            (
                vec![silent(), sender("s1", "async", None, None)],
                true,
                "on",
                Severity::Lag,
                "it tells no position that it has flushed",
                "start receiver, s1 anew",
            ),
            (
                vec![sender("receiver", "sync", behind, behind)],
                true,
                "on",
                Severity::Lag,
                "flushed up to",
                "let receiver get on",
            ),
        ] {
            let found = found(diagnosed(LIST, &senders, waits, level)).unwrap();
            assert_eq!(found.severity, severity, "{senders:?}");
            let words: Vec<&str> = found.evidence.iter().map(|it| it.words.as_str()).collect();
            assert!(words.join("; ").contains(fact), "{words:?}");
            assert!(
                found.remedies[0].starts_with(remedy),
                "{:?}",
                found.remedies
            );
            let last = found.remedies.last().unwrap();
            let is_alone = !senders
                .iter()
                .any(|it| it.application_name == "s1" && it.flush_lsn.is_some());
            assert_eq!(
                last.contains("all commits that wait return at once"),
                is_alone,
                "{last}"
            );
        }
    }

    #[test]
    fn commits_that_return_are_held_by_nobody() {
        let has = Some(START);
        let behind = Some(START - 100);
        for (senders, waits, level) in [
            (vec![sender("receiver", "sync", has, has)], true, "on"),
            (
                vec![sender("receiver", "sync", has, behind)],
                false,
                "remote_apply",
            ),
            (vec![sender("receiver", "sync", has, None)], false, "on"),
            // Of a quorum one is enough, and one that is absent has another cause.
            (vec![], true, "on"),
        ] {
            let diagnosis = diagnosed(LIST, &senders, waits, level);
            assert!(found(diagnosis).is_none(), "{senders:?}");
        }
    }

    #[test]
    fn the_list_has_who_is_left() {
        let has = Some(START);
        let behind = Some(START - 100);
        let list = |setting: &str, senders: &[Sender]| {
            let found = found(diagnosed(setting, senders, true, "on"));
            found.and_then(|it| it.names.get("rest").cloned())
        };
        let quorum = [
            sender("a'b", "quorum", has, has),
            sender("receiver", "quorum", behind, None),
        ];
        let rest = |text: &str| Some(text.to_owned());
        assert_eq!(
            list("ANY 2 (\"a'b\", receiver, gone)", &quorum),
            rest("ANY 1 (\"a''b\")")
        );
        assert_eq!(list("any 2(*)", &quorum), rest("ANY 1 (\"a''b\")"));
        assert_eq!(list("ANY 1 (\"a'b\", receiver)", &quorum), None);
        let ordered = [
            sender("x", "potential", has, has),
            sender("receiver", "sync", behind, None),
            sender("second", "sync", has, has),
        ];
        assert_eq!(
            list("2 (receiver, second, x)", &ordered),
            rest("FIRST 2 (\"second\", \"x\")")
        );
    }
}
