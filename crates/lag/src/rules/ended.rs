//! The signal of walsenders that something ends again and again.

use std::collections::BTreeMap;
use std::time::Duration;

use lockstep_service::words::figures::percent;

use super::{Cause, Evidence, Rule, Severity, View};
use crate::link::Link;
use crate::point::{LinkKind, Point};
use crate::states::SenderState;
use crate::window::NodeWindow;

/// The rule.
pub(super) const RULE: Rule = Rule {
    cause: Cause::WalsendersEnded,
    title: "something ends the walsenders of {upstream} again and again",
    signal: walsenders,
    remedies: &[
        "look at the log of {upstream} for what ends them: pg_terminate_backend, wal_sender_timeout \
         (now {wal_sender_timeout}), a crash, too little memory",
        "if it says nothing: look for what cuts connections between the servers: a proxy, a firewall, \
         an idle limit (tcp_keepalives_idle)",
    ],
};

/// Number of walsenders, one after the other, from which those of a replica are ended again and
/// again, if it is the only replica that loses them.
const MANY_SENDERS: usize = 3;

/// Endings that are closer than this have one reason: a restart, or a crash, ends all walsenders of a server.
const AT_ONCE: Duration = Duration::from_millis(500);

/// When each walsender of a link that another one has followed was seen for the last time. One that has not
/// begun to send does not count: a replica whose request is refused, for want of a slot, say, comes back for
/// another.
fn endings(link: &Link<'_>) -> Vec<Duration> {
    let mut seen: BTreeMap<u32, (Duration, Duration)> = BTreeMap::new();
    for sample in &link.upstream.samples {
        let sender = link.sender(sample);
        let sender = sender.filter(|sender| sender.state != Some(SenderState::Startup));
        if let Some(sender) = sender {
            let (_, last) = seen.entry(sender.pid).or_insert((sample.at, sample.at));
            *last = sample.at;
        }
    }
    let newest = seen.values().map(|(first, _)| *first).max();
    let last = seen.values().map(|(_, last)| *last);
    last.filter(|last| Some(*last) < newest).collect()
}

/// The apply worker of a subscriber that was asked fails at one place, and ends its walsender each time.
fn fails(link: &Link<'_>) -> bool {
    let errors = link.replica.map_or(0.0, |node| {
        node.growth(|sample| Some(link.subscribed(sample)?.apply_errors as f64))
    });
    errors > 0.0 && !moves(link)
}

/// Links of a server whose walsenders have been replaced. An apply worker that fails at a
/// transaction also comes back with a new walsender, but it makes no progress, and if nobody asked its
/// subscriber it is alone.
fn replaced<'v, 'a>(
    view: &'v View<'a>,
    upstream: &NodeWindow,
) -> Vec<(&'v Link<'a>, Vec<Duration>)> {
    // A replica that has stopped comes back from time to time to try again.
    let stopped = |link: &Link<'_>| link.replica_state().is_some_and(|it| it.error.is_some());
    let links = view
        .links
        .iter()
        .filter(|link| !stopped(link) && !fails(link));
    let links = links.filter(|link| link.upstream.name == upstream.name && !link.is_relayed());
    let endings = links.map(|link| (link, endings(link)));
    endings.filter(|(_, endings)| !endings.is_empty()).collect()
}

/// Parts of a window that are compared, to see whether a replica gets on.
const PARTS: usize = 4;

/// The replica gets on from one part of the window to the next, more than once. One that fails at a
/// transaction comes as far as that, and no farther; while its walsender is away less is known of it.
pub(super) fn moves(link: &Link<'_>) -> bool {
    let points = &link.points;
    let size = points.len().div_ceil(PARTS).max(1);
    let told = |points: &[Point]| points.iter().map(|point| point.told).max();
    let mut farthest = None;
    let mut steps = 0;
    for part in points.chunks(size) {
        let reached = told(part).max(farthest);
        steps += usize::from(farthest.is_some() && farthest < reached);
        farthest = reached;
    }
    steps > 1
}

/// Something ends the server's walsenders again and again: those of several replicas, and not all at once, or
/// those of one that gets on.
pub(super) fn ended(view: &View<'_>, upstream: &NodeWindow) -> bool {
    let replaced = replaced(view, upstream);
    let all = || replaced.iter().flat_map(|(_, endings)| endings);
    let span = all().min().zip(all().max());
    let is_again = span.is_some_and(|(first, last)| last.saturating_sub(*first) >= AT_ONCE);
    let is_one = |(link, endings): &(&Link<'_>, Vec<Duration>)| {
        let gets_on = link.kind == LinkKind::Physical || moves(link);
        endings.len() + 1 >= MANY_SENDERS && gets_on
    };
    replaced.len() > 1 && is_again || replaced.iter().any(is_one)
}

fn walsenders(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for node in view.window.usable().filter(|node| ended(view, node)) {
        let replaced = replaced(view, node);
        let number: usize = replaced.iter().map(|(_, endings)| endings.len()).sum();
        for (link, _) in replaced {
            let away = 1.0 - link.connected_share();
            let severity = match link.is_behind() {
                true => Severity::Lag,
                false => Severity::Risk,
            };
            let evidence = Evidence::of(link, 1.0)
                .severity(severity)
                .fact(
                    "ended_walsenders",
                    number as f64,
                    format!("{number} walsenders of {} were replaced", node.name),
                )
                .fact(
                    "away_share",
                    away,
                    format!("this replica had none in {} of the samples", percent(away)),
                )
                .setting(node, "wal_sender_timeout");
            found.push(evidence);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::scene::{START, Scene, lsn};
    use super::*;

    /// Both workers fail at one transaction, with a new walsender in every fifth sample. In the last ones the
    /// walsender knows more than the slot.
    #[test]
    fn workers_that_fail_get_on_no_farther_while_more_is_known_of_them() {
        let mut scene = Scene::healthy();
        for (index, sample) in scene.primary.samples.iter_mut().enumerate() {
            for place in [1, 2] {
                let known = START + 5_000;
                let (slot, sender) = (&mut sample.slots[place], &mut sample.senders[place]);
                slot.confirmed_flush_lsn = lsn(START);
                sender.pid = 100 * place as u32 + (index / 5) as u32;
                slot.active_pid = Some(sender.pid);
                let is_told = index % 5 == 4;
                let told = if is_told { lsn(known) } else { None };
                (sender.write_lsn, sender.flush_lsn, sender.replay_lsn) = (told, told, told);
            }
        }
        for node in [&mut scene.one, &mut scene.two] {
            for (index, sample) in (0..).zip(&mut node.samples) {
                let row = &mut sample.subscriptions[0];
                (row.pid, row.received_lsn, row.apply_errors) = (None, None, 1 + index / 5);
            }
        }
        let found = scene.diagnose().findings;
        let causes: Vec<Cause> = found.iter().map(|it| it.cause).collect();
        assert!(!causes.contains(&Cause::WalsendersEnded), "{causes:?}");
        assert!(causes.contains(&Cause::ApplyStopped), "{causes:?}");
    }

    /// The walsenders of the standby and of a subscriber are replaced after the samples of these numbers.
    fn replaced_after(standby: usize, subscriber: usize) -> bool {
        let mut scene = Scene::healthy();
        for (index, sample) in scene.primary.samples.iter_mut().enumerate() {
            for (place, after) in [(0, standby), (1, subscriber)] {
                let pid = 100 + 2 * place as u32 + u32::from(index > after);
                sample.senders[place].pid = pid;
                sample.slots[place].active_pid = Some(pid);
                sample.processes[place].pid = pid;
            }
        }
        let found = scene.diagnose().findings;
        found.iter().any(|it| it.cause == Cause::WalsendersEnded)
    }

    #[test]
    fn one_restart_is_not_again_and_again() {
        assert!(!replaced_after(20, 20));
        // Not all walsenders are seen in the last answer before a crash.
        assert!(!replaced_after(20, 21));
        assert!(replaced_after(10, 30));
    }
}
