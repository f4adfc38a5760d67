//! Replicas that are refused, and what is missing at both ends of a subscription: each is found by what the
//! servers say, with a remedy that names what to paste.

use std::sync::Arc;

use super::scene::{START, STEP, Scene, lsn, process};
use super::{Cause, Severity};
use crate::diagnosis::{Diagnosis, Finding};
use crate::source::{Publisher, Source};
use crate::tables::{Followed, Reference, Tables, Trigger};
use crate::views::{Background, Collation, Sender};
use crate::window::NodeWindow;

/// Causes that have a case here.
pub(super) const CAUSES: [Cause; 15] = [
    Cause::TimelineDiverged,
    Cause::RoleRefused,
    Cause::NoFreeWalsender,
    Cause::RestoreSlow,
    Cause::SubscriptionSlotMissing,
    Cause::PublicationMissing,
    Cause::ColumnsMissing,
    Cause::NoFreeWorker,
    Cause::SubscriptionRefused,
    Cause::OwnerRefused,
    Cause::NoUpstream,
    Cause::ApplyStopped,
    Cause::ConfirmsNothing,
    Cause::ChecksumFailures,
    Cause::CollationVersion,
];

pub(super) type Change = fn(&mut Scene);

fn set(node: &mut NodeWindow, name: &str, value: &str) {
    let setting = (name.to_owned(), value.to_owned());
    node.facts.settings.extend([setting]);
}

/// The standby has no walreceiver, and these settings.
fn unfed(scene: &mut Scene, source: Source) {
    let source = Arc::new(source);
    for sample in &mut scene.standby.samples {
        (sample.wal.receive, sample.wal.replay) = (lsn(START), lsn(START));
        sample.receiver = None;
        sample.processes = vec![process(21, "startup", "Activity", "RecoveryWalStream")];
        sample.source = Some(Arc::clone(&source));
    }
    for sample in &mut scene.primary.samples {
        sample.senders.remove(0);
        sample.slots[0].active = false;
        sample.slots[0].active_pid = None;
    }
}

fn streaming(user: &str) -> Source {
    Source {
        streams: Some(true),
        user: Some(user.to_owned()),
        ..Source::default()
    }
}

fn role(scene: &mut Scene, user: &str) {
    unfed(scene, streaming(user));
    let roles = [
        ("a b".to_owned(), Some("REPLICATION".to_owned())),
        ("good".to_owned(), None),
    ];
    let background = Arc::new(Background {
        roles: Some(roles.into()),
        ..Background::default()
    });
    for sample in &mut scene.primary.samples {
        sample.background = Arc::clone(&background);
    }
}

/// The first subscription has no worker, and nobody uses its slot.
pub(super) fn workless(scene: &mut Scene, errors: u64) {
    for sample in &mut scene.one.samples {
        sample.processes.clear();
        let row = &mut sample.subscriptions[0];
        (row.pid, row.received_lsn, row.apply_errors) = (None, None, errors);
    }
    for sample in &mut scene.primary.samples {
        sample.senders.remove(1);
        let slot = &mut sample.slots[1];
        (slot.active, slot.active_pid, slot.confirmed_flush_lsn) = (false, None, lsn(START));
    }
}

/// The worker of the first subscription fails again and again.
pub(super) fn failing(scene: &mut Scene) {
    workless(scene, 1);
    for (index, sample) in scene.one.samples.iter_mut().enumerate() {
        sample.subscriptions[0].apply_errors = 1 + index as u64 / 10;
    }
}

/// The slot of the first subscription is gone.
pub(super) fn slotless(scene: &mut Scene) {
    workless(scene, 0);
    for sample in &mut scene.primary.samples {
        sample.slots.remove(1);
    }
}

fn background(node: &mut NodeWindow, change: impl Fn(&mut Background)) {
    for sample in &mut node.samples {
        let mut background = (*sample.background).clone();
        change(&mut background);
        sample.background = Arc::new(background);
    }
}

/// The first subscription connects to this host, where the primary is db1.
pub(super) fn connects(scene: &mut Scene, host: &str) {
    scene.primary.address = "db1:5432/app".to_owned();
    background(&mut scene.one, |it| {
        let publisher = Publisher {
            address: (host.to_owned(), "5432".to_owned()),
            database: Some("app".to_owned()),
            user: Some("feeder".to_owned()),
            ..Publisher::default()
        };
        it.publishers = [("sub_one".to_owned(), publisher)].into();
    });
}

/// The first subscriber's server has this many enabled subscriptions, and two workers.
pub(super) fn short(scene: &mut Scene, enabled: u64) {
    set(&mut scene.one, "max_logical_replication_workers", "2");
    background(&mut scene.one, |it| {
        it.enabled_subscriptions = Some(enabled)
    });
}

pub(crate) fn tables(node: &mut NodeWindow, change: impl Fn(&mut Tables)) {
    for sample in &mut node.samples {
        let mut tables = (*sample.tables).clone();
        change(&mut tables);
        sample.tables = Arc::new(tables);
    }
}

pub(super) fn followed(tables: &mut Tables) -> &mut Followed {
    tables.subscriptions.get_mut("sub_one").unwrap()
}

pub(super) fn collations(node: &mut NodeWindow, actual: &str) {
    background(node, |it| {
        it.collations = vec![Collation {
            database: "app".to_owned(),
            recorded: "2.31".to_owned(),
            actual: actual.to_owned(),
        }];
    });
}

/// A consumer that nobody has named takes what comes, and replies this often in the window. It has confirmed
/// nothing for so many milliseconds, or confirms all.
pub(super) fn unconfirmed(scene: &mut Scene, replies: i64, silent_ms: Option<f64>) {
    let confirms = silent_ms.is_none();
    for (index, sample) in (0..).zip(&mut scene.primary.samples) {
        let end = lsn(START + index * STEP);
        let every = 50 / replies.max(1);
        let slot = &mut sample.slots[2];
        slot.slot_name = "consumer".to_owned();
        slot.confirmed_flush_lsn = lsn(START - 1 + if confirms { index * STEP } else { 0 });
        sample.decoding[1].slot_name = "consumer".to_owned();
        let sender = &mut sample.senders[2];
        *sender = Sender {
            application_name: "etl".to_owned(),
            sent_lsn: end,
            ..sender.clone()
        };
        (sender.write_lsn, sender.flush_lsn, sender.replay_lsn) = (None, None, None);
        sender.replied_us = Some(index as i64 / every);
        sender.connected_ms = silent_ms;
    }
    scene.two.samples.clear();
}

/// A case: its name, a change to a healthy scene, the cause, where it is found, and a piece of a remedy.
const CASES: [(&str, Change, Cause, &str, &str); 26] = [
    (
        "role",
        |s| role(s, "a b"),
        Cause::RoleRefused,
        "standby",
        "on primary: ALTER ROLE \"a b\" REPLICATION;",
    ),
    (
        "no role",
        |s| role(s, "c"),
        Cause::RoleRefused,
        "standby",
        "create role c on primary",
    ),
    (
        "walsenders",
        |s| {
            set(&mut s.primary, "max_wal_senders", "2");
            unfed(s, streaming("good"));
        },
        Cause::NoFreeWalsender,
        "standby",
        "on primary: ALTER SYSTEM SET max_wal_senders = 10; and restart it",
    ),
    (
        "walsenders of a subscription",
        |s| {
            set(&mut s.primary, "max_wal_senders", "2");
            workless(s, 0);
        },
        Cause::NoFreeWalsender,
        "one",
        "on primary: ALTER SYSTEM SET max_wal_senders = 10; and restart it",
    ),
    (
        "newer timeline",
        |s| {
            unfed(s, streaming("good"));
            lines(s, 2, 3);
        },
        Cause::TimelineDiverged,
        "standby",
        "pg_rewind",
    ),
    (
        "older timeline",
        |s| {
            unfed(s, streaming("good"));
            lines(s, 3, 2);
        },
        Cause::TimelineDiverged,
        "standby",
        "pg_rewind",
    ),
    (
        "slow restore",
        |s| {
            unfed(
                s,
                Source {
                    restores: true,
                    ..streaming("good")
                },
            );
            for (index, sample) in (0..).zip(&mut s.standby.samples) {
                sample.wal.replay = lsn(START + index);
                sample.processes = vec![process(21, "startup", "IPC", "RestoreCommand")];
            }
        },
        Cause::RestoreSlow,
        "standby",
        "several segments ahead",
    ),
    (
        "slot of a subscription",
        |s| {
            slotless(s);
            connects(s, "db1");
        },
        Cause::SubscriptionSlotMissing,
        "one",
        "on primary, in database app: SELECT pg_create_logical_replication_slot('slot_one', 'pgoutput');",
    ),
    (
        "slot of a subscription that connects who knows where",
        slotless,
        Cause::SubscriptionSlotMissing,
        "one",
        "if primary is its publisher, create slot slot_one there",
    ),
    (
        "slot and publication",
        |s| {
            slotless(s);
            connects(s, "db1");
            tables(&mut s.one, |it| {
                followed(it).publications = vec!["gone".to_owned()]
            });
        },
        Cause::SubscriptionSlotMissing,
        "one",
        "on primary, in database app: create its publications first (gone)",
    ),
    (
        "slot and publication of who knows where",
        |s| {
            slotless(s);
            connects(s, "elsewhere");
            tables(&mut s.one, |it| {
                followed(it).publications = vec!["gone".to_owned()]
            });
        },
        Cause::SubscriptionSlotMissing,
        "one",
        "name that one, too: it connects to elsewhere:5432",
    ),
    (
        "publication",
        |s| {
            failing(s);
            tables(&mut s.one, |it| {
                followed(it).publications = vec!["gone".to_owned()]
            });
        },
        Cause::PublicationMissing,
        "one",
        "on one: ALTER SUBSCRIPTION sub_one SET PUBLICATION p;",
    ),
    (
        "columns",
        |s| {
            failing(s);
            lacks_column(s);
        },
        Cause::ColumnsMissing,
        "one",
        "on one: ALTER TABLE public.t ADD COLUMN \"W\" integer; the worker",
    ),
    (
        "columns that are generated",
        |s| {
            failing(s);
            lacks_column(s);
            tables(&mut s.one, |it| generates(it, "s"));
        },
        Cause::ColumnsMissing,
        "one",
        "on one: ALTER TABLE public.t ALTER COLUMN \"W\" DROP EXPRESSION; the worker",
    ),
    (
        "columns that are computed when they are read",
        |s| {
            failing(s);
            lacks_column(s);
            tables(&mut s.one, |it| generates(it, "v"));
        },
        Cause::ColumnsMissing,
        "one",
        "on one: ALTER TABLE public.t DROP COLUMN \"W\", ADD COLUMN \"W\" integer; the worker",
    ),
    (
        "lost slot of a subscription",
        |s| {
            workless(s, 0);
            for sample in &mut s.primary.samples {
                sample.slots[1].wal_status = Some("lost".into());
            }
        },
        Cause::SlotLost,
        "one",
        "what follows empties public.t: rows that did not come from this publisher",
    ),
    (
        "whole rows are compared",
        |s| {
            tables(&mut s.primary, |it| {
                it.full = ["public.t".to_owned()].into()
            });
            tables(&mut s.one, |it| {
                it.unindexed = [("public.t".to_owned(), 10_000.0)].into()
            });
        },
        Cause::MissingIndex,
        "one",
        "on one: give public.t the primary key",
    ),
    (
        "workers",
        |s| {
            workless(s, 0);
            set(&mut s.one, "max_logical_replication_workers", "0");
        },
        Cause::NoFreeWorker,
        "one",
        "on one: ALTER SYSTEM SET max_logical_replication_workers = 4; and restart it",
    ),
    (
        "refused",
        |s| workless(s, 0),
        Cause::SubscriptionRefused,
        "one",
        "pg_hba.conf",
    ),
    (
        "owner",
        |s| {
            workless(s, 0);
            let rows = s.one.samples.iter_mut();
            rows.for_each(|it| {
                it.subscriptions[0].owner_without_login = Some("Shop".to_owned());
            });
        },
        Cause::OwnerRefused,
        "one",
        "on one: ALTER ROLE \"Shop\" LOGIN;",
    ),
    (
        "no upstream",
        |s| {
            let nowhere = Source {
                streams: Some(false),
                ..Source::default()
            };
            unfed(s, nowhere);
        },
        Cause::NoUpstream,
        "standby",
        "on standby: ALTER SYSTEM SET primary_conninfo = '...';",
    ),
    (
        "refused before",
        |s| {
            set(&mut s.one, "wal_retrieve_retry_interval", "1000");
            workless(s, 7);
        },
        Cause::SubscriptionRefused,
        "one",
        "pg_hba.conf",
    ),
    (
        "confirms nothing",
        |s| unconfirmed(s, 5, Some(80_000.0)),
        Cause::ConfirmsNothing,
        "consumer",
        "flush position",
    ),
    (
        "checksums",
        |s| {
            s.standby.samples.iter_mut().for_each(|it| {
                it.totals.checksum_failures = Some(3);
                it.totals.damaged = vec![String::new(), "\"A\"".to_owned()];
            })
        },
        Cause::ChecksumFailures,
        "standby",
        "on standby, in database \"A\": SELECT pg_stat_reset();",
    ),
    (
        "collations",
        |s| collations(&mut s.primary, "2.36"),
        Cause::CollationVersion,
        "primary",
        "on primary, in database app: REINDEX DATABASE app; ALTER DATABASE app REFRESH COLLATION VERSION;",
    ),
    (
        "collations of a standby",
        |s| collations(&mut s.standby, "2.36"),
        Cause::CollationVersion,
        "standby",
        "give standby the version",
    ),
];

fn lines(scene: &mut Scene, primary: u32, standby: u32) {
    let line = lockstep_wire::Timeline::new;
    let background = Arc::new(Background {
        timeline: line(standby),
        ..Background::default()
    });
    for sample in &mut scene.primary.samples {
        sample.wal.timeline = line(primary);
    }
    for sample in &mut scene.standby.samples {
        sample.background = Arc::clone(&background);
    }
}

/// The subscriber generates the column that it lacks otherwise.
fn generates(tables: &mut Tables, how: &str) {
    let column = [("\"W\"".to_owned(), how.to_owned())];
    tables.generated = [("public.t".to_owned(), column.into())].into();
}

pub(super) fn lacks_column(scene: &mut Scene) {
    let column = |name: &str, kind: &str| (name.to_owned(), kind.to_owned());
    let published = [column("id", "integer"), column("\"W\"", "integer")];
    tables(&mut scene.primary, |it| {
        let of_table = [("public.t".to_owned(), published.clone().into())];
        it.columns = [("p".to_owned(), of_table.into())].into();
    });
    tables(&mut scene.one, |it| {
        let own = [("id".to_owned(), "integer".to_owned())];
        it.held = [("public.t".to_owned(), own.into())].into();
    });
}

fn first(diagnosis: &Diagnosis) -> &Finding {
    diagnosis.findings.first().unwrap()
}

#[test]
fn what_refuses_a_replica_is_found_first_and_alone() {
    let implied = [
        Cause::ApplyStopped,
        Cause::NotStreaming,
        Cause::SlowConsumer,
        Cause::SubscriptionRefused,
    ];
    for (name, change, cause, at, remedy) in CASES {
        let mut scene = Scene::healthy();
        change(&mut scene);
        let diagnosis = scene.diagnose();
        let found = first(&diagnosis);
        assert_eq!(
            (found.cause, found.at.as_str()),
            (cause, at),
            "{name}: {:?}",
            diagnosis.findings
        );
        assert!(
            found.remedies.iter().any(|it| it.contains(remedy)),
            "{name}: {:?}",
            found.remedies
        );
        let others = diagnosis.findings.iter().skip(1).filter(|it| it.at == at);
        let others: Vec<Cause> = others
            .map(|it| it.cause)
            .filter(|it| implied.contains(it))
            .collect();
        assert_eq!(others, [], "{name}");
        let is_wrong = |one: &&crate::diagnosis::checks::CheckReport| {
            one.answer == crate::diagnosis::checks::Answer::Wrong && one.at == at
        };
        assert!(diagnosis.checks.iter().any(|one| is_wrong(&one)), "{name}");
        assert!(!diagnosis.healthy, "{name}");
    }
}

/// Changes that look like one of the cases, and are not that.
const OTHERS: [(&str, Change, Cause); 9] = [
    (
        "a small table of which whole rows are compared",
        |s| {
            tables(&mut s.primary, |it| {
                it.full = ["public.t".to_owned()].into()
            });
            tables(&mut s.one, |it| {
                it.unindexed = [("public.t".to_owned(), 9_000.0)].into()
            });
        },
        Cause::MissingIndex,
    ),
    (
        "a large table whose changes have a key",
        |s| {
            tables(&mut s.one, |it| {
                it.unindexed = [("public.t".to_owned(), 1e9)].into()
            });
        },
        Cause::MissingIndex,
    ),
    ("a good role", |s| role(s, "good"), Cause::RoleRefused),
    (
        "a server that does not answer may have the slot",
        |s| {
            workless(s, 0);
            s.primary.samples.iter_mut().for_each(|it| {
                it.slots.remove(1);
            });
            s.standby.samples.clear();
        },
        Cause::SubscriptionSlotMissing,
    ),
    (
        "errors before, and the turn of others comes first",
        |s| {
            set(&mut s.one, "wal_retrieve_retry_interval", "1000");
            workless(s, 7);
            background(&mut s.one, |it| it.enabled_subscriptions = Some(16));
        },
        Cause::SubscriptionRefused,
    ),
    (
        "errors of applying",
        |s| failing(s),
        Cause::SubscriptionRefused,
    ),
    (
        "it confirms",
        |s| unconfirmed(s, 5, None),
        Cause::ConfirmsNothing,
    ),
    (
        "it is silent",
        |s| unconfirmed(s, 0, Some(80_000.0)),
        Cause::ConfirmsNothing,
    ),
    (
        "one timeline",
        |s| {
            unfed(s, streaming("good"));
            lines(s, 2, 2);
        },
        Cause::TimelineDiverged,
    ),
];

#[test]
fn what_only_looks_like_it_is_not_found() {
    for (name, change, cause) in OTHERS {
        let mut scene = Scene::healthy();
        change(&mut scene);
        let diagnosis = scene.diagnose();
        assert!(
            diagnosis.findings.iter().all(|it| it.cause != cause),
            "{name}: {:?}",
            diagnosis.findings
        );
    }
    // While its worker runs, a column that is missing is a risk.
    let mut scene = Scene::healthy();
    lacks_column(&mut scene);
    let diagnosis = scene.diagnose();
    assert_eq!(diagnosis.first(), Some(Cause::ColumnsMissing));
    assert!(diagnosis.has_risk() && !diagnosis.has_lag());
}

#[test]
fn what_may_make_a_worker_fail_is_named() {
    let mut scene = Scene::healthy();
    failing(&mut scene);
    tables(&mut scene.primary, |it| {
        it.truncating = ["p".to_owned()].into()
    });
    tables(&mut scene.one, |it| {
        let followed = followed(it);
        followed.triggers = vec![Trigger {
            name: "boom".to_owned(),
            table: "public.t".to_owned(),
        }];
        followed.references = vec![Reference {
            name: "child_fkey".to_owned(),
            table: "public.child".to_owned(),
            to: "public.t".to_owned(),
        }];
    });
    let diagnosis = scene.diagnose();
    let found = first(&diagnosis);
    assert_eq!(found.cause, Cause::ApplyStopped);
    for remedy in [
        "on one: ALTER TABLE public.t ENABLE TRIGGER boom;",
        "on one: ALTER TABLE public.child DROP CONSTRAINT child_fkey;",
    ] {
        assert!(
            found.remedies.iter().any(|it| it.starts_with(remedy)),
            "{:?}",
            found.remedies
        );
    }
    let words: Vec<&str> = found
        .evidence
        .iter()
        .map(|fact| fact.words.as_str())
        .collect();
    assert!(
        words.iter().any(|it| it.contains("boom on public.t")),
        "{words:?}"
    );
    assert!(
        words
            .iter()
            .any(|it| it.contains("child_fkey of public.child")),
        "{words:?}"
    );
}

/// All subscribers fail at the same change, as after a column was added, and come back with new walsenders.
#[test]
fn subscriptions_that_all_fail_are_ended_by_nobody() {
    let mut scene = Scene::healthy();
    for node in [&mut scene.one, &mut scene.two] {
        for (index, sample) in (0..).zip(&mut node.samples) {
            let row = &mut sample.subscriptions[0];
            row.apply_errors = 1 + index / 10;
            row.received_lsn = None;
            if index % 10 != 0 {
                row.pid = None;
                sample.processes.clear();
            }
        }
    }
    for (index, sample) in (0..).zip(&mut scene.primary.samples) {
        for place in [1, 2] {
            let pid = 100 * place as u32 + index / 10;
            let sender = &mut sample.senders[place];
            (sender.pid, sender.flush_lsn, sender.replay_lsn) = (pid, lsn(START), lsn(START));
            let slot = &mut sample.slots[place];
            (slot.active_pid, slot.confirmed_flush_lsn) = (Some(pid), lsn(START));
            sample.processes[place].pid = pid;
        }
    }
    let diagnosis = scene.diagnose();
    let causes: Vec<Cause> = diagnosis.findings.iter().map(|found| found.cause).collect();
    assert_eq!(first(&diagnosis).cause, Cause::ApplyStopped, "{causes:?}");
    assert!(!causes.contains(&Cause::WalsendersEnded), "{causes:?}");
}

/// A standby that was not asked, and the end of WAL at the end of a page, within a record or not.
#[test]
fn the_lag_of_an_unnamed_standby_within_a_record_is_not_known() {
    for (inserted, is_behind) in [(100, false), (0, true)] {
        let mut scene = Scene::healthy();
        scene.standby.samples.clear();
        let end = (START / 8192 + 1) * 8192;
        for sample in &mut scene.primary.samples {
            sample.wal.flush = lsn(end);
            sample.wal.insert = lsn(end + inserted);
            let sender = &mut sample.senders[0];
            (sender.sent_lsn, sender.write_lsn, sender.flush_lsn) = (lsn(end), lsn(end), lsn(end));
            sender.replay_lsn = lsn(START);
        }
        let diagnosis = scene.diagnose();
        let link = diagnosis
            .links
            .iter()
            .find(|link| link.upstream == "primary" && link.replica == "standby");
        assert_eq!(
            link.is_some_and(|link| link.behind),
            is_behind,
            "{:?}",
            diagnosis.links
        );
        assert_eq!(
            diagnosis.unknown.is_empty(),
            is_behind,
            "{:?}",
            diagnosis.unknown
        );
    }
}

/// Walsenders of a worker that fails before it receives anything come and go.
#[test]
fn walsenders_that_follow_each_other_take_no_slot() {
    let mut scene = Scene::healthy();
    let older = scene.primary.samples.len() / 4;
    for (index, sample) in scene.primary.samples.iter_mut().enumerate() {
        let pid = if index < older { 99 } else { 11 };
        (sample.senders[1].pid, sample.slots[1].active_pid) = (pid, Some(pid));
        sample.senders[1].replied_us = Some(i64::from(pid));
    }
    for sample in &mut scene.one.samples {
        sample.subscriptions[0].pid = None;
        sample.processes.clear();
    }
    let found = scene.diagnose().findings;
    let is_taken = found.iter().any(|it| it.cause == Cause::SlotTaken);
    assert!(!is_taken, "{found:?}");
}

/// Another consumer has the slot of a subscription: its subscriber loses what that one confirms.
#[test]
fn who_uses_the_slot_of_a_subscription_is_told() {
    let found = |replies: bool, works: bool| {
        let mut scene = Scene::healthy();
        for (index, sample) in (0..).zip(&mut scene.primary.samples) {
            let sender = &mut sample.senders[1];
            sender.application_name = "pg_recvlogical".to_owned();
            sender.client = Some("10.0.0.9".to_owned());
            sender.replied_us = Some(if replies { index } else { 0 });
        }
        for sample in scene.one.samples.iter_mut().filter(|_| !works) {
            sample.subscriptions[0].pid = None;
            sample.processes.clear();
        }
        let findings = scene.diagnose().findings.into_iter();
        let at_one = findings.filter(|it| it.at == "one" && it.severity != Severity::Note);
        at_one
            .map(|it| (it.cause, it.severity, it.title, it.remedies.len()))
            .collect::<Vec<_>>()
    };
    let title = "the subscription's slot is in use by pg_recvlogical from 10.0.0.9 (process 11 on primary): it may be \
                 a clone";
    let expected = (Cause::SlotTaken, Severity::Lag, title.to_owned(), 6);
    assert_eq!(found(true, false), [expected]);
    for (replies, works) in [(false, false), (true, true)] {
        let others = found(replies, works);
        assert!(
            others.iter().all(|it| it.0 != Cause::SlotTaken),
            "{others:?}"
        );
    }
}
