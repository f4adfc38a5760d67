//! The lag of subscribers of which only a bound is known, mostly as they were not named: the
//! publisher knows what it was told, and what it has sent.

use lockstep_wire::Lsn;

use super::cause::Cause;
use super::scene::{EXACT, START, STEP, Scene, lsn, process, received};
use crate::diagnosis::{Diagnosis, diagnose};
use crate::point::Bound;
use crate::window::Window;

/// A position of a sample, by the sample's index.
type Position = fn(u64) -> u64;

fn end(index: u64) -> u64 {
    START + index * STEP
}

fn before(_: u64) -> u64 {
    START - 1
}

/// What is found where the publisher was told this of its first subscriber, and has sent that.
fn diagnosis(told: Position, sent: Position, reported_ms: Option<f64>, named: bool) -> Diagnosis {
    let mut scene = Scene::healthy();
    for (index, sample) in (0..).zip(&mut scene.primary.samples) {
        let (told, sender) = (lsn(told(index)), &mut sample.senders[1]);
        sender.sent_lsn = lsn(sent(index));
        (sender.write_lsn, sender.flush_lsn, sender.replay_lsn) = (told, told, told);
        sender.replay_lag_ms = reported_ms;
        sample.slots[1].confirmed_flush_lsn = told;
        if named {
            // Its worker has ended.
            sample.senders.remove(1);
            (sample.slots[1].active, sample.slots[1].active_pid) = (false, None);
        }
    }
    for sample in &mut scene.one.samples {
        (
            sample.subscriptions[0].pid,
            sample.subscriptions[0].received_lsn,
        ) = (None, None::<Lsn>);
        sample.processes.clear();
    }
    let mut nodes = vec![scene.primary, scene.standby, scene.two];
    nodes.extend(named.then_some(scene.one));
    diagnose(&Window::new(nodes))
}

#[test]
fn the_lag_of_a_subscriber_that_was_not_asked_is_bounded_by_what_it_told_and_was_sent() {
    // Both positions, the lag in ms, and what it is to the true one.
    let cases: [(&str, Position, Position, _, _); 7] = [
        ("has all", end, end, 0.0..=0.0, EXACT),
        (
            "told once, at sample 30",
            |at| end(at / 30 * 30),
            end,
            1e3..=1.5e3,
            Bound::MOST,
        ),
        (
            "told nothing since before the watch",
            before,
            end,
            0.0..=0.0,
            Bound::LEAST,
        ),
        (
            "takes nothing since before the watch",
            before,
            before,
            2e3..=3e3,
            Bound::LEAST,
        ),
        (
            "took some since",
            before,
            |at| end(at.saturating_sub(10)),
            0.8e3..=1e3,
            Bound::LEAST,
        ),
        ("was sent nothing", |_| START, |_| START, 2e3..=3e3, EXACT),
        (
            "was sent little",
            |_| START,
            |_| START + STEP,
            2e3..=3e3,
            EXACT,
        ),
    ];
    for (name, told, sent, lag_ms, bound) in cases {
        let diagnosis = diagnosis(told, sent, None, false);
        let links = &diagnosis.links;
        let link = links
            .iter()
            .find(|link| link.replica == "slot_one")
            .unwrap();
        assert!(lag_ms.contains(&link.lag_ms), "{name}: {link:?}");
        assert!(link.lag_max_ms >= link.lag_ms, "{name}: {link:?}");
        assert_eq!(link.bound, bound, "{name}: {link:?}");
        let is_healthy = name == "has all";
        assert_eq!(
            (diagnosis.healthy, link.behind),
            (is_healthy, !is_healthy),
            "{name}"
        );
        // A lag of at least nothing is said to be unknown.
        let unknown = diagnosis.unknown.concat();
        let is_open = bound == Bound::LEAST && link.lag_ms == 0.0;
        let says = unknown.contains("primary does not show for how long slot_one");
        assert_eq!(says, is_open, "{name}: {unknown}");
    }
}

#[test]
fn while_nothing_is_connected_nothing_more_is_applied() {
    let diagnosis = diagnosis(before, end, None, true);
    let links = &diagnosis.links;
    let link = links.iter().find(|link| link.replica == "one").unwrap();
    assert!((2e3..=3e3).contains(&link.lag_ms), "{link:?}");
    assert_eq!(link.bound, Bound::LEAST);
}

#[test]
fn the_lag_that_a_subscriber_reported_of_before_is_not_the_one_of_now() {
    let diagnosis = diagnosis(|at| end(at.saturating_sub(1)), end, Some(30_000.0), false);
    assert!(diagnosis.healthy, "{:?}", diagnosis.links);
}

/// A worker that is busy is within the change that begins at what it received, or commits the
/// transaction that ends there: nothing tells which.
#[test]
fn a_pause_before_what_a_named_worker_is_busy_with_is_doubted() {
    let mut scene = Scene::healthy();
    let written = |index: u64| START + STEP * (index.min(1) + index / 30);
    for (index, sample) in (0..).zip(&mut scene.primary.samples) {
        sample.wal.flush = lsn(written(index));
        let sender = &mut sample.senders[1];
        sender.sent_lsn = sample.wal.flush;
        (sender.write_lsn, sender.flush_lsn, sender.replay_lsn) =
            (lsn(START), lsn(START), lsn(START));
        sample.slots[1].confirmed_flush_lsn = lsn(START);
    }
    received(&mut scene.one, |_| lsn(START + STEP));
    for sample in &mut scene.one.samples {
        sample.processes[0] = process(31, "logical replication worker", "Lock", "relation");
    }
    let diagnosis = scene.diagnose();
    let link = diagnosis
        .links
        .iter()
        .find(|link| link.replica == "one")
        .unwrap();
    assert!((2e3..=3e3).contains(&link.lag_ms), "{link:?}");
    assert_eq!(link.bound, Bound::MOST);
}

/// A worker that fails at a transaction receives it again each time, now more of it, now less. It
/// tells nothing new, so nothing else ends its walsenders.
#[test]
fn what_a_failing_worker_receives_again_is_no_progress() {
    let mut scene = Scene::healthy();
    for (at, sample) in (0..).zip(&mut scene.primary.samples) {
        let pid = 100 + at / 10;
        sample.slots[1].active_pid = Some(pid);
        sample.slots[1].confirmed_flush_lsn = lsn(START);
        sample.processes[1].pid = pid;
        let sender = &mut sample.senders[1];
        sender.pid = pid;
        (sender.flush_lsn, sender.replay_lsn) = (lsn(START), lsn(START));
    }
    received(&mut scene.one, |end| lsn(START.max(end - 2 * STEP)));
    for (at, sample) in (0..).zip(&mut scene.one.samples) {
        sample.subscriptions[0].apply_errors = at / 10;
    }
    let diagnosis = scene.diagnose();
    assert_eq!(
        diagnosis.first(),
        Some(Cause::ApplyStopped),
        "{:?}",
        diagnosis.findings
    );
}
