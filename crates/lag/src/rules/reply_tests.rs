//! Consumers that nobody has named, that read all they are sent, and that reply less often than doctor looks.

use std::time::Duration;

use crate::diagnosis::{Diagnosis, diagnose};
use crate::rules::Cause;
use crate::rules::scene::{SAMPLES, START, STEP, Scene, lsn};
use crate::window::Window;

/// What a consumer does in a window.
struct Consumer {
    name: &'static str,
    /// Samples between two replies; none if it does not reply in this window.
    every: Option<u64>,
    /// Samples after which it does not reply any more.
    stops: u64,
    /// The part of what it was sent that it has stored when it replies.
    stores: f64,
    /// Samples between two flushes; none if it flushes what it stores at once.
    flushes: Option<u64>,
    /// Milliseconds between two samples.
    step_ms: u64,
}

const CONSUMER: Consumer = Consumer {
    name: "Debezium Streaming",
    every: Some(20),
    stops: SAMPLES,
    stores: 1.0,
    flushes: None,
    step_ms: 100,
};

fn diagnosed(consumer: &Consumer) -> Diagnosis {
    let mut scene = Scene::healthy();
    for sample in [&mut scene.primary, &mut scene.standby, &mut scene.one]
        .into_iter()
        .flat_map(|node| &mut node.samples)
    {
        sample.at = Duration::from_millis(sample.at.as_millis() as u64 / 100 * consumer.step_ms);
    }
    for (index, sample) in (0..).zip(&mut scene.primary.samples) {
        let replied = consumer
            .every
            .map(|every| index.min(consumer.stops) / every * every);
        let stored = |at: u64| START - 1 + ((at * STEP) as f64 * consumer.stores) as u64;
        let told = replied.map_or(START - 1, stored);
        let flushed = consumer.flushes.zip(replied);
        let flushed = flushed.map_or(told, |(every, at)| {
            stored(at.saturating_sub(1) / every * every)
        });
        let sender = &mut sample.senders[2];
        consumer.name.clone_into(&mut sender.application_name);
        (sender.write_lsn, sender.flush_lsn, sender.replay_lsn) = (lsn(told), lsn(flushed), None);
        sender.replied_us = Some(replied.map_or(7, |at| 1_000_000 + at as i64));
        sample.slots[2].confirmed_flush_lsn = lsn(flushed);
    }
    diagnose(&Window::new(vec![scene.primary, scene.standby, scene.one]))
}

fn first(diagnosis: &Diagnosis) -> Option<Cause> {
    diagnosis.findings.first().map(|found| found.cause)
}

fn assert_slow(consumer: &Consumer) {
    let found = diagnosed(consumer);
    let cause = first(&found);
    assert_eq!(cause, Some(Cause::SlowConsumer), "{:?}", found.links);
}

#[test]
fn a_consumer_that_confirms_all_with_each_reply_does_not_lag() {
    for every in [10, 20] {
        let found = diagnosed(&Consumer {
            every: Some(every),
            ..CONSUMER
        });
        assert!(!found.has_lag(), "{every}: {:?}", found.links);
        assert_eq!(first(&found), None, "{:?}", found.findings);
    }
}

/// A relay replies as soon as it has stored something, so one that does not is behind.
#[test]
fn a_relay_that_does_not_reply_in_the_window_lags() {
    let found = diagnosed(&Consumer {
        name: crate::relay::APPLICATION,
        every: None,
        ..CONSUMER
    });
    assert!(found.has_lag(), "{:?}", found.links);
}

#[test]
fn a_consumer_that_does_not_reply_in_the_window_is_not_known() {
    let found = diagnosed(&Consumer {
        every: None,
        ..CONSUMER
    });
    assert_eq!(first(&found), None, "{:?}", found.findings);
    assert!(!found.has_lag() && !found.healthy, "{:?}", found.links);
    let unknown = &found.unknown;
    assert!(
        unknown
            .iter()
            .any(|it| it.starts_with("slot_two has not replied in this window")),
        "{unknown:?}"
    );
}

#[test]
fn a_consumer_that_is_late_when_it_replies_is_slow() {
    assert_slow(&Consumer {
        stores: 0.2,
        every: Some(10),
        ..CONSUMER
    });
}

#[test]
fn a_consumer_that_has_ceased_to_reply_is_slow() {
    assert_slow(&Consumer {
        every: Some(5),
        stops: 15,
        ..CONSUMER
    });
    // The primary has asked for a reply after half of wal_sender_timeout, which is 60 s.
    assert_slow(&Consumer {
        every: None,
        step_ms: 1_000,
        ..CONSUMER
    });
}

/// The worker of a subscription replies when it has applied all that has come.
#[test]
fn a_worker_that_does_not_reply_is_slow() {
    assert_slow(&Consumer {
        name: "slot_two",
        every: None,
        ..CONSUMER
    });
}

/// pg_recvlogical flushes its file every 10 s (`--fsync-interval`) and replies on another timer.
#[test]
fn a_consumer_that_flushes_on_a_timer_is_not_slow_while_it_writes_all() {
    const TIMED: Consumer = Consumer {
        name: "pg_recvlogical",
        every: Some(8),
        flushes: Some(10),
        step_ms: 1_000,
        ..CONSUMER
    };
    let found = diagnosed(&TIMED);
    assert!(!found.has_lag(), "{:?}", found.links);
    assert_eq!(first(&found), None, "{:?}", found.findings);
    // Of another consumer nobody knows what it waits for; and this one is slow if it does not even write.
    let other = Consumer {
        name: "Debezium Streaming",
        ..TIMED
    };
    let late = Consumer {
        stores: 0.2,
        ..TIMED
    };
    for consumer in [other, late] {
        let found = diagnosed(&consumer);
        let cause = Some(Cause::SlowConsumer);
        assert_eq!(first(&found), cause, "{}: {:?}", consumer.name, found.links);
    }
}

/// A primary to which pg_receivewal is connected, whose flush is at the beginning of a segment. Its replies,
/// by the sample of each, tell what it has written.
fn receiving(replies: &[u64], stores: f64) -> Diagnosis {
    let mut scene = Scene::healthy();
    for (index, sample) in (0..).zip(&mut scene.primary.samples) {
        let replied = replies.iter().copied().rfind(|at| *at <= index);
        let told = replied.map_or(START - 1, |at| {
            START - 1 + ((at * STEP) as f64 * stores) as u64
        });
        let mut receiver = crate::rules::scene::sender(13, "pg_receivewal", START + index * STEP);
        (receiver.write_lsn, receiver.flush_lsn) = (lsn(told), lsn(START / 2));
        receiver.replay_lsn = None;
        receiver.replied_us = Some(replied.map_or(7, |at| 1_000_000 + at as i64));
        sample.senders.push(receiver);
        let mut slot = crate::rules::scene::slot("recv", "physical", 13, START / 2);
        slot.database = None;
        sample.slots.push(slot);
    }
    diagnose(&Window::new(vec![
        scene.primary,
        scene.standby,
        scene.one,
        scene.two,
    ]))
}

#[test]
fn what_only_receives_wal_is_judged_by_what_it_has_written_when_it_replies() {
    let found = receiving(&[10, 30], 1.0);
    assert!(
        found.healthy,
        "{:?} {:?} {:?}",
        found.unknown, found.links, found.findings
    );
    let found = receiving(&[10, 20, 30, 40], 0.2);
    assert!(found.has_lag(), "{:?}", found.links);
    let found = receiving(&[], 1.0);
    assert!(!found.has_lag() && !found.healthy, "{:?}", found.links);
    let has_none = |it: &String| it.starts_with("recv has not replied in this window");
    assert!(found.unknown.iter().any(has_none), "{:?}", found.unknown);
}
