//! Tests of subscriptions beside others: of the same subscriber, or with a slot of the same name.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Cause;
use super::refused_tests::tables;
use super::scene::{START, STEP, Scene, lsn, sender};
use crate::diagnosis::{Diagnosis, diagnose};
use crate::source::Publisher;
use crate::views::{Background, Subscription};
use crate::window::Window;

/// The first subscriber has one more subscription of the same tables, which has this slot.
fn with_second(slot: Option<&str>) -> Scene {
    let mut scene = Scene::healthy();
    for sample in &mut scene.one.samples {
        let first = sample.subscriptions[0].clone();
        let mut worker = sample.processes[0].clone();
        worker.pid = 33;
        sample.processes.push(worker);
        sample.subscriptions.push(Subscription {
            name: "shard_b".to_owned(),
            slot_name: slot.map(str::to_owned),
            pid: Some(33),
            ..first
        });
    }
    tables(&mut scene.one, |it| {
        let own = it.subscriptions["sub_one"].clone();
        it.subscriptions.insert("shard_b".to_owned(), own);
    });
    scene
}

fn replicas(of: &Diagnosis) -> Vec<&str> {
    let names = of.links.iter().map(|link| link.replica.as_str());
    names.filter(|name| name.starts_with("one")).collect()
}

#[test]
fn a_detached_subscription_beside_one_that_works_is_not_healthy() {
    let mut scene = with_second(None);
    for sample in &mut scene.one.samples {
        let row = &mut sample.subscriptions[1];
        (row.enabled, row.pid, row.received_lsn) = (false, None, None);
    }
    let diagnosis = scene.diagnose();
    assert_eq!(replicas(&diagnosis), ["one (sub_one)"]);
    let words = "nothing comes to one: 1 subscription without a slot (shard_b)";
    assert_eq!(diagnosis.unknown, [words]);
    assert!(!diagnosis.healthy);
}

fn is_open(diagnosis: &Diagnosis, name: &str) -> bool {
    let words = format!("nothing that answers here is the upstream of one ({name}) for certain");
    let mut unknown = diagnosis.unknown.iter();
    !diagnosis.healthy && unknown.any(|it| it.starts_with(&words))
}

/// Two publishers have a slot of the same name, and only one of them is named.
#[test]
fn a_slot_with_the_name_of_another_publishers_is_not_taken_for_it() {
    let diagnosis = with_second(Some("slot_one")).diagnose();
    // The slot's walsender has the name of the first.
    assert_eq!(replicas(&diagnosis), ["one (sub_one)"]);
    assert!(is_open(&diagnosis, "shard_b") && !is_open(&diagnosis, "sub_one"));
    // No remedy takes a table from the other one's publications.
    assert_eq!(diagnosis.first(), None);

    // Its walsender has the name of neither, or is not there: either may be its.
    for is_there in [true, false] {
        let mut scene = with_second(Some("slot_one"));
        for sample in &mut scene.primary.samples {
            sample.senders[1].application_name = "given".to_owned();
            let slot = &mut sample.slots[1];
            slot.active = is_there;
            slot.active_pid = slot.active_pid.filter(|_| is_there);
        }
        let diagnosis = scene.diagnose();
        let both = ["sub_one", "shard_b"];
        assert!(both.iter().all(|name| is_open(&diagnosis, name)));
        assert!(
            diagnosis
                .findings
                .iter()
                .all(|it| it.at == "slot slot_one on primary")
        );
    }
}

/// Subscriptions of the first subscriber connect to these hosts.
fn connect(scene: &mut Scene, to: &[(&str, &str)]) {
    let publisher = |host: &str| Publisher {
        address: (host.to_owned(), "5432".to_owned()),
        database: Some("app".to_owned()),
        ..Publisher::default()
    };
    let publishers = to.iter();
    let publishers: BTreeMap<_, _> = publishers
        .map(|(name, host)| ((*name).to_owned(), publisher(host)))
        .collect();
    for sample in &mut scene.one.samples {
        sample.background = Arc::new(Background {
            publishers: publishers.clone(),
            ..Background::default()
        });
    }
}

/// Where the subscriptions connect to tells them apart, if it may be seen.
#[test]
fn a_connection_string_says_whose_a_slot_is() {
    let mut scene = with_second(Some("slot_one"));
    scene.primary.address = "db1:5432/app".to_owned();
    connect(&mut scene, &[("sub_one", "db2"), ("shard_b", "db1")]);
    for sample in &mut scene.primary.samples {
        sample.senders[1].application_name = "given".to_owned();
    }
    let diagnosis = scene.diagnose();
    assert_eq!(replicas(&diagnosis), ["one (shard_b)"]);
    assert!(is_open(&diagnosis, "sub_one"));
}

/// Another publisher's slot may be the only one of its name that a subscriber has here.
#[test]
fn positions_say_that_a_slot_is_another_ones() {
    let at = |offset: i64, index: u64| lsn((START + index * STEP).saturating_add_signed(offset));
    for (offset, is_its) in [(0, true), (1_000_000_000, false), (-900_000_000, false)] {
        let mut scene = Scene::healthy();
        for (index, sample) in (0..).zip(&mut scene.one.samples) {
            sample.subscriptions[0].received_lsn = at(offset, index);
        }
        let diagnosis = scene.diagnose();
        assert_eq!(replicas(&diagnosis).contains(&"one"), is_its, "{offset}");
        assert_eq!(diagnosis.healthy, is_its, "{offset}");
    }
    // A walsender that has got another name is its own as far as positions say.
    let mut scene = Scene::healthy();
    for sample in &mut scene.primary.samples {
        sample.senders[1].application_name = "given".to_owned();
    }
    assert!(scene.diagnose().healthy);
}

/// A slot that was left on its first publisher: the worker gets its changes from another one.
#[test]
fn a_slot_that_nobody_uses_is_not_that_of_a_worker_that_works() {
    let left = |received: fn(u64) -> u64, silent_ms: Option<f64>| {
        let mut scene = Scene::healthy();
        for sample in &mut scene.primary.samples {
            let slot = &mut sample.slots[1];
            (slot.active, slot.active_pid) = (false, None);
            sample.senders.remove(1);
        }
        for (index, sample) in (0..).zip(&mut scene.one.samples) {
            let row = &mut sample.subscriptions[0];
            row.received_lsn = lsn(received(index));
            row.message_age_ms = silent_ms;
        }
        scene
    };
    type Received = fn(u64) -> u64;
    let still: Received = |_| START;
    let cases: [(Received, Option<f64>); 4] = [
        (still, Some(100.0)),
        (|index| START / 2 + index, None),
        (|_| 9 * START, Some(20_000.0)),
        // Its publisher may have been silent.
        (still, Some(20_000.0)),
    ];
    for (received, silent_ms) in cases {
        let mut scene = left(received, silent_ms);
        // What its publisher has is not compared.
        tables(&mut scene.primary, |it| it.publications.clear());
        let diagnosis = scene.diagnose();
        assert!(
            is_open(&diagnosis, "sub_one"),
            "{silent_ms:?}: {diagnosis:?}"
        );
        let of_one = diagnosis.findings.iter().filter(|it| it.at == "one");
        assert_eq!(of_one.count(), 0, "{:?}", diagnosis.findings);
    }
    // Who may read where it connects to needs no right to do so.
    let mut scene = left(still, Some(100.0));
    scene.primary.address = "db1:5432/app".to_owned();
    connect(&mut scene, &[("sub_one", "db2")]);
    let unknown = scene.diagnose().unknown.concat();
    let words = "its subconninfo names db2:5432: name that server, too";
    assert!(
        unknown.contains(words) && !unknown.contains("superuser"),
        "{unknown}"
    );
    // One that fails is none of this server's either.
    let mut scene = left(still, None);
    for sample in &mut scene.one.samples {
        let row = &mut sample.subscriptions[0];
        (row.pid, row.received_lsn) = (None, None);
    }
    scene.primary.address = "db1:5432/app".to_owned();
    for (host, is_its) in [("db1", true), ("db2", false)] {
        connect(&mut scene, &[("sub_one", host)]);
        let window = [&scene.primary, &scene.standby, &scene.one, &scene.two].map(Clone::clone);
        let diagnosis = diagnose(&Window::new(window.into()));
        assert_eq!(is_open(&diagnosis, "sub_one"), !is_its, "{host}");
    }
    // It has lost its connection, and waits for what does not come.
    let diagnosis = left(still, Some(90_000.0)).diagnose();
    assert_eq!(replicas(&diagnosis), ["one"]);
}

/// A slot that one of the subscriptions may need is not proposed to be dropped.
#[test]
fn a_slot_that_may_be_needed_is_not_dropped() {
    for works_elsewhere in [true, false] {
        let mut scene = with_second(Some("slot_one"));
        for sample in &mut scene.primary.samples {
            let slot = &mut sample.slots[1];
            (slot.active, slot.active_pid) = (false, None);
            slot.restart_lsn = lsn(START - 900_000_000);
            sample.senders.remove(1);
        }
        for row in scene
            .one
            .samples
            .iter_mut()
            .flat_map(|it| &mut it.subscriptions)
        {
            if !works_elsewhere {
                (row.pid, row.received_lsn) = (None, None);
            }
        }
        let diagnosis = scene.diagnose();
        let mut found = diagnosis.findings.iter();
        let unused = found.find(|it| it.cause == Cause::UnusedSlot).unwrap();
        let drops = unused
            .remedies
            .iter()
            .any(|it| it.contains("pg_drop_replication_slot"));
        assert_eq!(drops, works_elsewhere, "{:?}", unused.remedies);
    }
}

/// Standbys that nobody has named connect under one name, as by default.
#[test]
fn each_walsender_of_one_name_is_looked_at() {
    let diagnosed = |from: usize| {
        let mut scene = Scene::healthy();
        for (index, sample) in (0..).zip(&mut scene.primary.samples) {
            let end = START + index * STEP;
            sample.senders.push(sender(40, "walreceiver", end));
            if index as usize >= from {
                sample.senders.push(sender(41, "walreceiver", START));
            }
        }
        scene.diagnose()
    };
    let behind = |of: &Diagnosis| -> Vec<(String, bool)> {
        let links = of
            .links
            .iter()
            .filter(|it| it.replica.starts_with("walreceiver"));
        links.map(|it| (it.replica.clone(), it.behind)).collect()
    };
    let first = ("walreceiver".to_owned(), false);
    let second = ("walreceiver (process 41)".to_owned(), true);
    assert_eq!(behind(&diagnosed(0)), [first.clone(), second]);
    // A connection that was just made anew.
    assert_eq!(behind(&diagnosed(40)), [first]);
}

/// A standby streams from a server that was not asked, and another one uses a slot of that name here.
#[test]
fn a_standbys_slot_may_be_one_of_another_server() {
    for (name, from) in [("other", Some("db9:6000")), ("standby", None)] {
        let mut scene = Scene::healthy();
        for sample in &mut scene.standby.samples {
            let receiver = sample.receiver.as_mut().unwrap();
            receiver.application_name = Some("standby".to_owned());
            receiver.sender_host = Some("db9".to_owned());
            receiver.sender_port = Some(6000);
        }
        for sample in &mut scene.primary.samples {
            sample.senders[0].application_name = name.to_owned();
        }
        let diagnosis = scene.diagnose();
        let mut links = diagnosis.links.iter();
        let link = links.find(|it| it.replica == "standby").unwrap();
        assert_eq!(link.streams_from.as_deref(), from, "{name}");
    }
}

/// The subscriber has a table of the name that a publisher's has: nothing was renamed.
#[test]
fn a_table_is_not_renamed_to_one_that_is_there() {
    let names = |of: &[&str]| of.iter().map(|it| format!("public.{it}")).collect();
    for (there, cause) in [
        (&["t"][..], Cause::TableRenamed),
        (&["t", "u"], Cause::TablesNotFollowed),
    ] {
        let mut scene = Scene::healthy();
        let columns = [("id".to_owned(), "integer".to_owned())];
        tables(&mut scene.primary, |it| {
            it.publications = [("p".to_owned(), names(&["u"]))].into();
            let own = [("public.u".to_owned(), columns.clone().into())].into();
            it.columns = [("p".to_owned(), own)].into();
            it.there = Some(names(&["u"]));
        });
        tables(&mut scene.one, |it| {
            let own = [("id".to_owned(), "integer".to_owned())];
            it.held = [("public.t".to_owned(), own.into())].into();
            it.there = Some(names(there));
        });
        let diagnosis = scene.diagnose();
        let found: Vec<Cause> = diagnosis
            .findings
            .iter()
            .filter(|it| it.at == "one")
            .map(|it| it.cause)
            .collect();
        assert!(found.contains(&cause), "{there:?}: {found:?}");
        assert_eq!(
            found.contains(&Cause::TableRenamed),
            cause == Cause::TableRenamed
        );
    }
}
