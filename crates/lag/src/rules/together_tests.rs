//! Two faults at once, and what looks like one: neither hides the other, and no remedy harms a server that is
//! well.

use super::Cause;
use super::refused_tests::{
    Change, collations, connects, failing, followed, lacks_column, short, slotless, tables,
    unconfirmed, workless,
};
use super::scene::{START, Scene, lsn};
use crate::diagnosis::{Diagnosis, diagnose};
use crate::window::Window;

/// What a diagnosis says of a cause at a place: its remedies in one text.
fn remedies_at(diagnosis: &Diagnosis, cause: Cause, at: &str) -> Option<String> {
    let mut findings = diagnosis.findings.iter();
    let found = findings.find(|it| it.cause == cause && it.at == at)?;
    Some(found.remedies.join("\n"))
}

/// Where a worker fails and comes again, its place is free most of the time, and another subscription gets
/// none all the same.
#[test]
fn fewer_workers_than_subscriptions_are_told_beside_what_else_may_be_wrong() {
    for (enabled, expected) in [(2, false), (3, true)] {
        let mut scene = Scene::healthy();
        workless(&mut scene, 0);
        short(&mut scene, enabled);
        let diagnosis = scene.diagnose();
        let found = remedies_at(&diagnosis, Cause::NoFreeWorker, "one");
        let raise = "on one: ALTER SYSTEM SET max_logical_replication_workers = 5; ALTER SYSTEM SET \
                     max_worker_processes = 13; and restart it";
        assert_eq!(
            found.as_deref().is_some_and(|it| it.contains(raise)),
            expected,
            "{found:?}"
        );
        assert_eq!(diagnosis.first() == Some(Cause::NoFreeWorker), expected);
        // Which of them gets none is not seen: its connection may be refused as well, which the remedies say.
        let log = "look at the log of one for what primary answers";
        let refused = remedies_at(&diagnosis, Cause::SubscriptionRefused, "one");
        assert_eq!(refused.is_none(), expected, "{refused:?}");
        let said = found.or(refused).unwrap();
        assert!(said.contains(log), "{said}");
    }
    // One that fails has a worker.
    let mut scene = Scene::healthy();
    failing(&mut scene);
    short(&mut scene, 3);
    let diagnosis = scene.diagnose();
    assert_eq!(diagnosis.first(), Some(Cause::ApplyStopped));
    assert_eq!(remedies_at(&diagnosis, Cause::NoFreeWorker, "one"), None);
}

/// A slot that is made on another server than the publisher keeps WAL there for nobody.
#[test]
fn a_slot_is_only_to_be_pasted_on_the_publisher() {
    let of = |change: Change| {
        let mut scene = Scene::healthy();
        slotless(&mut scene);
        change(&mut scene);
        remedies_at(&scene.diagnose(), Cause::SubscriptionSlotMissing, "one").unwrap()
    };
    let pasted = "SELECT pg_create_logical_replication_slot";
    let recreate = "AND datname = current_database()); ALTER SUBSCRIPTION sub_one SET (slot_name = NONE); TRUNCATE public.t; \
                    DROP SUBSCRIPTION sub_one; CREATE SUBSCRIPTION sub_one";
    for (change, expected) in [
        ((|s| connects(s, "db1")) as Change, true),
        (|s| connects(s, "elsewhere"), false),
        (|_| {}, false),
        (
            |s| {
                connects(s, "db1");
                tables(&mut s.one, |it| {
                    followed(it).publications = vec!["gone".to_owned()]
                });
            },
            false,
        ),
    ] {
        let said = of(change);
        assert_eq!(said.contains(pasted), expected, "{said}");
        assert!(said.contains(recreate), "{said}");
    }
    // A server that was named and is the publisher, but does not answer.
    let mut scene = Scene::healthy();
    slotless(&mut scene);
    scene.two.address = "db9:5432/app".to_owned();
    scene.two.samples.clear();
    connects(&mut scene, "db9");
    let diagnosis = scene.diagnose();
    assert_eq!(
        remedies_at(&diagnosis, Cause::SubscriptionSlotMissing, "one"),
        None
    );
}

/// A publication that is gone has to be there before the slot, so it is told as well.
#[test]
fn a_slot_and_a_publication_that_are_gone_are_both_told() {
    let mut scene = Scene::healthy();
    slotless(&mut scene);
    connects(&mut scene, "db1");
    tables(&mut scene.one, |it| {
        followed(it).publications = vec!["gone".to_owned()]
    });
    tables(&mut scene.primary, |it| it.publications.clear());
    let diagnosis = scene.diagnose();
    assert_eq!(diagnosis.first(), Some(Cause::SubscriptionSlotMissing));
    let said = remedies_at(&diagnosis, Cause::PublicationMissing, "one").unwrap();
    let create = "on primary, in database app: CREATE PUBLICATION gone FOR TABLE public.t;";
    assert!(said.contains(create), "{said}");
}

#[test]
fn indexes_are_made_anew_on_the_primary_alone() {
    for (of_primary, piece, other) in [
        (
            "2.36",
            "on primary, in database app: REINDEX DATABASE app;",
            "give standby",
        ),
        ("2.32", "give standby the version", "on primary"),
    ] {
        let mut scene = Scene::healthy();
        collations(&mut scene.primary, of_primary);
        collations(&mut scene.standby, "2.36");
        let said = remedies_at(&scene.diagnose(), Cause::CollationVersion, "standby").unwrap();
        assert!(said.contains(piece) && !said.contains(other), "{said}");
        assert!(!said.contains("on standby"), "{said}");
    }
}

#[test]
fn a_type_that_is_missing_comes_before_its_column() {
    let of = |kind: &str, held: bool| {
        let mut scene = Scene::healthy();
        failing(&mut scene);
        lacks_column(&mut scene);
        let enums = || [("public.mood".to_owned(), "'sad', 'ok'".to_owned())].into();
        tables(&mut scene.primary, |it| {
            let columns = it
                .columns
                .get_mut("p")
                .unwrap()
                .get_mut("public.t")
                .unwrap();
            columns.insert("\"W\"".to_owned(), kind.to_owned());
            it.enums = enums();
        });
        if held {
            tables(&mut scene.one, |it| it.enums = enums());
        }
        remedies_at(&scene.diagnose(), Cause::ColumnsMissing, "one").unwrap()
    };
    let create = "on one: CREATE TYPE public.mood AS ENUM ('sad', 'ok'); ALTER TABLE public.t ADD COLUMN \"W\" \
                  public.mood";
    for kind in ["public.mood", "public.mood[]"] {
        assert!(of(kind, false).starts_with(create), "{}", of(kind, false));
        assert!(!of(kind, true).contains("CREATE TYPE"));
    }
    assert!(
        of("public.point3", false)
            .starts_with("types that one needs before that, if they are not there: public.point3")
    );
    assert!(!of("numeric(10,2)", false).contains("types that"));
}

/// A consumer that has confirmed something in this connection, or has just connected, may do so each minute.
#[test]
fn how_far_a_consumer_is_that_confirms_seldom_is_not_known() {
    let confirmed: Change = |s| {
        unconfirmed(s, 5, Some(80_000.0));
        for sample in &mut s.primary.samples {
            let sender = &mut sample.senders[2];
            (sender.write_lsn, sender.flush_lsn, sender.replay_lsn) =
                (lsn(START - 1), lsn(START - 1), lsn(START - 1));
        }
    };
    let recent: Change = |s| unconfirmed(s, 5, Some(8_000.0));
    for change in [confirmed, recent] {
        let mut scene = Scene::healthy();
        change(&mut scene);
        let (standby, one) = (scene.standby, scene.one);
        let nodes = vec![scene.primary, standby, one];
        let diagnosis = diagnose(&Window::new(nodes));
        let causes: Vec<Cause> = diagnosis.findings.iter().map(|it| it.cause).collect();
        assert!(!diagnosis.has_lag() && !diagnosis.healthy, "{causes:?}");
        assert!(
            diagnosis
                .unknown
                .iter()
                .any(|it| it.starts_with("consumer: how much it has stored")),
            "{:?}",
            diagnosis.unknown
        );
    }
}
