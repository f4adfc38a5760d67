//! What was called healthy, or nothing, and was not: each state is found, or not known.

use std::sync::Arc;

use super::refused_tests::{lacks_column, tables};
use super::scene::{START, Scene, lsn, node, process, sender, session, slot};
use super::{Cause, RULES, Severity};
use crate::diagnosis::checks::{Answer, CHECKS};
use crate::diagnosis::{Diagnosis, diagnose};
use crate::node::{Role, Trouble};
use crate::sample::Sample;
use crate::tables::{Refused, Why};
use crate::views::{ArchiveQueue, Sender, Session, Slot, Subscription, Unsynced};
use crate::window::Window;

/// Causes that have a case here.
pub(super) const CAUSES: [Cause; 3] = [
    Cause::InitialSyncFails,
    Cause::NoReplicaIdentity,
    Cause::TwoPrimaries,
];

type Change = fn(&mut Scene);

/// The answer of a check at a place.
fn answer(diagnosis: &Diagnosis, check: &str, at: &str) -> Answer {
    let mut checks = diagnosis.checks.iter();
    let found = checks.find(|one| one.check == check && one.at == at);
    found
        .unwrap_or_else(|| panic!("{check} at {at}: {:?}", diagnosis.checks))
        .answer
}

fn causes(diagnosis: &Diagnosis) -> Vec<Cause> {
    diagnosis.findings.iter().map(|found| found.cause).collect()
}

/// Changes what the first subscriber says of a table that is not synchronised, by the number of the sample.
fn unsynced(scene: &mut Scene, of: impl Fn(usize) -> (Option<u32>, Option<u64>, u64)) {
    for (index, sample) in scene.one.samples.iter_mut().enumerate() {
        let (pid, rows, errors) = of(index);
        let row = &mut sample.subscriptions[0];
        row.unsynced_tables = 1;
        row.sync_errors = errors;
        row.unsynced = vec![Unsynced {
            table: "public.t".to_owned(),
            state: "d".into(),
            pid,
            rows,
        }];
    }
}

/// Copies that are told, by the replica.
fn initial_copies(diagnosis: &Diagnosis) -> Vec<(String, String)> {
    let links = diagnosis.links.iter();
    let copies = links.filter_map(|link| Some((link.replica.clone(), link.initial_copy?.words())));
    copies.collect()
}

/// A copy in the sample with this number: its worker, the rows that it has copied, and errors.
type Copying = fn(usize) -> (Option<u32>, Option<u64>, u64);

#[test]
fn a_copy_that_does_not_get_on_is_found() {
    let of = |copy: Copying| {
        let mut scene = Scene::healthy();
        unsynced(&mut scene, copy);
        let diagnosis = scene.diagnose();
        (
            causes(&diagnosis),
            answer(&diagnosis, "synchronised", "one"),
            diagnosis,
        )
    };
    // It failed now, or before.
    for copy in [
        (|at| (None, None, 7 + at as u64 / 30)) as fn(usize) -> _,
        |_| (None, None, 7),
        |_| (None, None, 0),
    ] {
        let (causes, answer, diagnosis) = of(copy);
        assert_eq!(causes, [Cause::InitialSyncFails]);
        assert_eq!(answer, Answer::Wrong);
        assert!(diagnosis.has_lag() && !diagnosis.healthy);
        assert_eq!(initial_copies(&diagnosis), []);
        let says = |remedy: &str| remedy.contains("public.t");
        assert!(
            says(&diagnosis.findings[0].remedies[0]),
            "{:?}",
            diagnosis.findings
        );
    }
    // Rows come.
    let (causes, answer, diagnosis) = of(|at| (Some(40), Some(at as u64), 0));
    assert!(
        causes.is_empty() && diagnosis.healthy,
        "{:?}",
        diagnosis.unknown
    );
    assert_eq!(answer, Answer::Well);
    assert_eq!(initial_copies(&diagnosis).len(), 1);
    // A worker is there, and nothing comes.
    let (causes, answer, diagnosis) = of(|_| (Some(40), Some(5), 0));
    assert!(causes.is_empty() && !diagnosis.healthy);
    let words = "1 table is being copied, 5 rows so far".to_owned();
    assert_eq!(initial_copies(&diagnosis), [("one".to_owned(), words)]);
    assert_eq!(answer, Answer::NotKnown);
    assert_eq!(
        diagnosis.unknown,
        [
            "one: whether the copy of its tables gets on: no row of public.t has come in this window, and its \
             worker is not seen"
        ]
    );
}

/// A subscription that was just made: no worker, nothing is copied, the launcher tries each so many
/// milliseconds.
fn fresh(retry_ms: &str, change: impl Fn(&mut Subscription)) -> Diagnosis {
    let mut scene = Scene::healthy();
    unsynced(&mut scene, |_| (None, None, 0));
    let retry = (
        "wal_retrieve_retry_interval".to_owned(),
        retry_ms.to_owned(),
    );
    scene.one.facts.settings.extend([retry]);
    for sample in &mut scene.one.samples {
        sample.processes.clear();
        let row = &mut sample.subscriptions[0];
        (row.pid, row.received_lsn) = (None, None);
        row.unsynced[0].state = "i".into();
        change(row);
    }
    for sample in &mut scene.primary.samples {
        sample.senders.remove(1);
        let slot = &mut sample.slots[1];
        (slot.active, slot.active_pid, slot.confirmed_flush_lsn) = (false, None, lsn(START));
    }
    scene.diagnose()
}

#[test]
fn a_subscription_that_was_just_made_is_not_called_late() {
    let diagnosis = fresh("5000", |_| {});
    assert!(
        !diagnosis.has_lag() && !diagnosis.has_risk(),
        "{:?}",
        diagnosis.findings
    );
    assert!(!diagnosis.healthy);
    let said = diagnosis.unknown.join("; ");
    assert!(said.contains("one: it has no apply worker yet"), "{said}");
    // Within the window a worker should have come, or one has begun and is gone.
    let late = [
        fresh("1000", |_| {}),
        fresh("5000", |row| row.unsynced[0].state = "d".into()),
    ];
    for diagnosis in late {
        assert_eq!(
            diagnosis.first(),
            Some(Cause::SubscriptionRefused),
            "{:?}",
            diagnosis.findings
        );
    }
    // Its worker waits for that of the first copy, and has confirmed nothing.
    let mut scene = Scene::healthy();
    unsynced(&mut scene, |at| (Some(40), Some(at as u64), 0));
    scene.stuck_subscriber(
        1,
        ("Client", "WalSenderWaitForWAL"),
        ("IPC", "LogicalSyncStateChange"),
    );
    let diagnosis = scene.diagnose();
    assert!(
        !diagnosis.has_lag() && diagnosis.healthy,
        "{:?} {:?}",
        diagnosis.findings,
        diagnosis.unknown
    );
}

/// A slot that nobody uses, with this age of the rows that it keeps.
fn abandoned(scene: &mut Scene, xmin_age: Option<i64>) {
    for sample in &mut scene.primary.samples {
        let end = sample.wal.flush.map_or(START, u64::from);
        sample.slots.push(Slot {
            active: false,
            active_pid: None,
            xmin_age,
            ..slot("abandoned", "physical", 0, end)
        });
    }
}

/// While a worker of a subscription copies a table it does not use the slot that it has made for that.
#[test]
fn the_slot_of_a_copy_is_not_abandoned() {
    const NAME: &str = "pg_16394_sync_16385_7301234567890123456";
    for (copies, expected) in [(true, vec![]), (false, vec![Cause::UnusedSlot])] {
        let mut scene = Scene::healthy();
        abandoned(&mut scene, Some(123_000));
        for sample in &mut scene.primary.samples {
            let end = sample.wal.flush.map_or(START, u64::from);
            let slot = sample.slots.last_mut().unwrap();
            NAME.clone_into(&mut slot.slot_name);
            slot.restart_lsn = lsn(end - 100_000_000);
            sample.senders.extend(copies.then(|| Sender {
                state: Some("startup".into()),
                ..sender(77, NAME, end)
            }));
        }
        let diagnosis = scene.diagnose();
        assert_eq!(causes(&diagnosis), expected, "{copies}");
        assert_eq!(diagnosis.healthy, copies, "{:?}", diagnosis.unknown);
    }
}

#[test]
fn an_abandoned_slot_keeps_rows_too() {
    let mut scene = Scene::healthy();
    abandoned(&mut scene, Some(123_000));
    let diagnosis = scene.diagnose();
    assert_eq!(causes(&diagnosis), [Cause::UnusedSlot]);
    let words = &diagnosis.findings[0].evidence[1].words;
    assert!(words.contains("123000 transactions"), "{words}");
    // One that keeps nothing is no risk, but who should use it is not known.
    let mut scene = Scene::healthy();
    abandoned(&mut scene, None);
    let diagnosis = scene.diagnose();
    assert!(diagnosis.findings.is_empty() && !diagnosis.healthy);
    let at = "slot abandoned on primary";
    assert_eq!(answer(&diagnosis, "slot", at), Answer::NotKnown);
    assert!(
        diagnosis.unknown[0].starts_with(at),
        "{:?}",
        diagnosis.unknown
    );
}

#[test]
fn an_archiver_that_hangs_is_found() {
    for (queue, found) in [
        (Some((12, 5_000.0)), true),
        (Some((1, 90_000.0)), true),
        (Some((2, 5_000.0)), false),
        (None, false),
    ] {
        let mut scene = Scene::healthy();
        for sample in &mut scene.primary.samples {
            sample.archive = queue.map(|(ready, oldest)| ArchiveQueue {
                ready,
                oldest_ms: Some(oldest),
            });
        }
        let diagnosis = scene.diagnose();
        let expected = found.then_some(Cause::ArchiverFailing);
        assert_eq!(causes(&diagnosis), Vec::from_iter(expected), "{queue:?}");
        let answer = answer(&diagnosis, "archiving", "primary");
        assert_eq!(answer == Answer::NotKnown, queue.is_none());
        assert_eq!(diagnosis.healthy, answer == Answer::Well);
        if found {
            assert!(diagnosis.findings[0].remedies[0].contains("look on primary"));
        }
    }
}

#[test]
fn a_primary_alone_is_not_called_healthy() {
    let alone = |slots: Vec<Slot>| {
        let primary = node("primary", Role::Primary, |_, _| {
            let mut sample = Sample {
                slots: slots.clone(),
                ..Sample::default()
            };
            sample.wal.flush = lsn(START);
            sample
        });
        diagnose(&Window::new(vec![primary]))
    };
    let idle = Slot {
        active: false,
        active_pid: None,
        ..slot("abandoned", "physical", 0, START)
    };
    for slots in [vec![], vec![idle]] {
        let diagnosis = alone(slots);
        assert!(diagnosis.findings.is_empty() && !diagnosis.healthy);
        assert_eq!(
            answer(&diagnosis, "replicas", "all nodes"),
            Answer::NotKnown
        );
        assert!(
            diagnosis.unknown[0].contains("no replica is named"),
            "{:?}",
            diagnosis.unknown
        );
    }
}

/// What is found if updates of these tables are refused.
fn with_refused(refused: &[Refused]) -> Diagnosis {
    let mut scene = Scene::healthy();
    for sample in &mut scene.primary.samples {
        let mut tables = (*sample.tables).clone();
        tables.refused = refused.to_vec();
        sample.tables = Arc::new(tables);
    }
    scene.diagnose()
}

fn refused(table: &str, why: Why, columns: Option<&str>, listed: bool) -> Refused {
    Refused {
        table: table.to_owned(),
        publication: "P".to_owned(),
        why,
        columns: columns.map(str::to_owned),
        listed,
    }
}

#[test]
fn updates_that_are_refused_are_a_risk() {
    let diagnosis = with_refused(&[refused("public.log", Why::Unidentified, None, false)]);
    assert_eq!(causes(&diagnosis), [Cause::NoReplicaIdentity]);
    assert_eq!(diagnosis.findings[0].names["tables"], "public.log");
    assert!(diagnosis.has_risk() && !diagnosis.healthy);
    let remedies = &diagnosis.findings[0].remedies;
    assert!(
        remedies[0].starts_with("on primary, in database app: a primary key for public.log"),
        "{remedies:?}"
    );
    assert_eq!(remedies.len(), 2, "{remedies:?}");
}

/// Each reason has its remedy, and none has one that would be refused.
#[test]
fn why_updates_are_refused_decides_what_helps() {
    let on = "on primary, in database app:";
    for (why, columns, listed, first) in [
        (
            Why::Unidentified,
            None,
            true,
            "a primary key for public.t, of columns that",
        ),
        (
            Why::Unused,
            None,
            false,
            "ALTER TABLE public.t REPLICA IDENTITY DEFAULT; the",
        ),
        (
            Why::Deferrable,
            Some("id, \"B\""),
            false,
            "CREATE UNIQUE INDEX t_identity ON public.t (id, \"B\"); ALTER TABLE public.t REPLICA IDENTITY USING INDEX \
             t_identity; until",
        ),
        (
            Why::Filter,
            Some("v"),
            false,
            "ALTER TABLE ... REPLICA IDENTITY FULL for public.t:",
        ),
        (
            Why::Filter,
            Some("v"),
            true,
            "for public.t (v, in \"P\"), in one transaction",
        ),
        (
            Why::List,
            Some("id"),
            true,
            "for public.t (id, in \"P\"), in one transaction",
        ),
        (
            Why::FullList,
            None,
            true,
            "ALTER TABLE ... REPLICA IDENTITY DEFAULT for public.t",
        ),
        (
            Why::Generated,
            Some("g"),
            false,
            "for public.t (g, in \"P\"), ALTER PUBLICATION",
        ),
    ] {
        let diagnosis = with_refused(&[refused("public.t", why, columns, listed)]);
        assert_eq!(causes(&diagnosis), [Cause::NoReplicaIdentity], "{why:?}");
        assert!(!diagnosis.healthy, "{why:?}");
        let remedies = &diagnosis.findings[0].remedies;
        assert!(
            remedies[0].starts_with(&format!("{on} {first}")),
            "{remedies:?}"
        );
        let full = remedies
            .iter()
            .any(|it| it.contains("REPLICA IDENTITY FULL for"));
        assert_eq!(full, why == Why::Filter && !listed, "{remedies:?}");
    }
}

/// A standby's session that keeps the rows of few transactions, and these dead rows on the primary.
fn keeps(dead_rows: u64, age_ms: f64) -> impl Fn(&mut Scene) {
    move |scene: &mut Scene| {
        for sample in &mut scene.primary.samples {
            sample.senders[0].xmin_age = Some(3);
            sample.dead_rows = Some(dead_rows);
        }
        let reader = Session {
            xmin_age: Some(3),
            ..session(88, age_ms)
        };
        scene.clients(1, vec![reader]);
    }
}

#[test]
fn one_transaction_may_leave_many_dead_rows() {
    for (dead_rows, age_ms, found) in [
        (600_000, 31_000.0, true),
        (600_000, 5_000.0, false),
        (900, 31_000.0, false),
    ] {
        let mut scene = Scene::healthy();
        keeps(dead_rows, age_ms)(&mut scene);
        let diagnosis = scene.diagnose();
        let expected = found.then_some(Cause::FeedbackBloat);
        assert_eq!(
            causes(&diagnosis),
            Vec::from_iter(expected),
            "{dead_rows} {age_ms}"
        );
        // The primary's own.
        let mut scene = Scene::healthy();
        let last = scene.primary.samples.last_mut().unwrap();
        last.dead_rows = Some(dead_rows);
        last.clients.oldest = vec![session(5, age_ms)];
        let expected = found.then_some(Cause::OldTransaction);
        assert_eq!(causes(&scene.diagnose()), Vec::from_iter(expected));
    }
}

#[test]
fn a_standby_that_was_promoted_is_a_second_primary() {
    let promoted = |system: &str, timeline: u32| {
        let mut scene = Scene::healthy();
        scene.standby.facts.system = system.to_owned();
        scene.standby.troubles = vec![Trouble::WrongRole {
            reason: "it is no standby".to_owned(),
        }];
        for sample in &mut scene.standby.samples {
            sample.in_recovery = false;
            sample.wal.timeline = lockstep_wire::Timeline::new(timeline);
        }
        for sample in &mut scene.primary.samples {
            sample.wal.timeline = lockstep_wire::Timeline::new(1);
        }
        scene.diagnose()
    };
    let diagnosis = promoted("1", 2);
    assert_eq!(diagnosis.first(), Some(Cause::TwoPrimaries));
    let first = &diagnosis.findings[0];
    assert_eq!(
        (first.severity, first.at.as_str()),
        (Severity::Lag, "standby")
    );
    assert!(
        first.evidence[0].words.contains("timeline 2"),
        "{:?}",
        first.evidence
    );
    assert!(first.remedies.last().unwrap().contains("lost"));
    assert_eq!(
        answer(&diagnosis, "one_primary", "all nodes"),
        Answer::Wrong
    );
    // A server of another cluster is none of this one.
    assert!(!causes(&promoted("2", 2)).contains(&Cause::TwoPrimaries));
    // The primary itself, named as a standby.
    assert!(!causes(&promoted("1", 1)).contains(&Cause::TwoPrimaries));
}

/// A quiet primary, whose WAL ends here, and a standby that has received all of it and not replayed the rest.
fn quiet(end: u64, wait: &str) -> Diagnosis {
    let mut scene = Scene::healthy();
    for sample in &mut scene.primary.samples {
        sample.wal.flush = lsn(end);
        for sender in &mut sample.senders {
            *sender = super::scene::sender(sender.pid, &sender.application_name, end);
        }
    }
    for sample in &mut scene.standby.samples {
        sample.wal.receive = lsn(end);
        sample.wal.replay = lsn(end - 100);
        sample.receiver.as_mut().unwrap().written_lsn = lsn(end);
        sample.processes[0] = process(21, "startup", "Activity", wait);
    }
    scene.diagnose()
}

/// The WAL writer flushes whole pages: the last record may go on behind what is flushed.
#[test]
fn the_beginning_of_a_record_is_no_lag() {
    const PAGE: u64 = 8192;
    let boundary = START.next_multiple_of(PAGE);
    for (end, wait, behind) in [
        (boundary, "RecoveryWalStream", false),
        (boundary, "RecoveryPause", true),
        (boundary + 8, "RecoveryWalStream", true),
    ] {
        let diagnosis = quiet(end, wait);
        let link = diagnosis
            .links
            .iter()
            .find(|link| link.replica == "standby")
            .unwrap();
        assert_eq!(link.behind, behind, "{end} {wait}");
    }
}

#[test]
fn every_check_of_a_healthy_scene_is_done_and_well() {
    let diagnosis = Scene::healthy().diagnose();
    let done = |id: &str| diagnosis.checks.iter().any(|one| one.check == id);
    for check in CHECKS {
        // Only who watches for longer remembers.
        let is_done = done(check.id) || check.id == "remembered";
        assert!(is_done, "{} is not done", check.id);
        assert!(!check.asks.is_empty() && !check.who.is_empty() && !check.proves.is_empty());
    }
    let bad: Vec<_> = diagnosis
        .checks
        .iter()
        .filter(|one| one.answer != Answer::Well)
        .collect();
    assert!(bad.is_empty(), "{bad:?}");
    assert_eq!(diagnosis.unknown, Vec::<String>::new());
}

/// A cause that no check has would leave a node called well.
#[test]
fn every_cause_that_is_not_a_note_makes_a_check_wrong() {
    for cause in RULES.iter().map(|rule| rule.cause) {
        let is_note = matches!(
            cause,
            Cause::OtherDatabases
                | Cause::IdlePrimary
                | Cause::ReplicaCopying
                | Cause::PartlyPublished
        );
        let has = CHECKS.iter().any(|check| check.causes.contains(&cause));
        assert_eq!(has, !is_note, "{cause:?}");
    }
}

/// States that no check knows are not known, and never well.
const STRANGE: [(&str, Change); 5] = [
    ("a walreceiver's status", |s| {
        for sample in &mut s.standby.samples {
            let receiver = sample.receiver.as_mut().unwrap();
            receiver.status = Some("of a newer server".into());
        }
    }),
    ("a slot's status", |s| {
        for sample in &mut s.primary.samples {
            sample.slots[1].wal_status = Some("of a newer server".into());
        }
    }),
    ("a table's state", |s| {
        unsynced(s, |at| (Some(40), Some(at as u64), 0));
        for sample in &mut s.one.samples {
            sample.subscriptions[0].unsynced[0].state = "z".into();
        }
    }),
    ("a pause's state", |s| {
        for sample in &mut s.standby.samples {
            sample.wal.pause = Some("of a newer server".into());
        }
    }),
    ("a publication that is gone", |s| {
        for sample in &mut s.primary.samples {
            sample.tables = Arc::default();
        }
    }),
];

#[test]
fn a_state_that_no_check_knows_is_not_healthy() {
    for (name, change) in STRANGE {
        let mut scene = Scene::healthy();
        change(&mut scene);
        let diagnosis = scene.diagnose();
        assert!(!diagnosis.healthy, "{name}");
        let is_known = diagnosis.unknown.is_empty() && diagnosis.findings.is_empty();
        assert!(!is_known, "{name}: nothing is said");
    }
}

/// The copy of a table fails for ever, since the subscriber's table lacks a column.
#[test]
fn a_copy_that_fails_for_a_column_names_it() {
    let mut scene = Scene::healthy();
    unsynced(&mut scene, |at| (None, None, 7 + at as u64 / 30));
    lacks_column(&mut scene);
    let diagnosis = scene.diagnose();
    assert_eq!(causes(&diagnosis), [Cause::ColumnsMissing]);
    assert!(diagnosis.has_lag());
}

/// A subscription that nothing comes to, of a subscriber that has no other.
#[test]
fn a_subscriber_that_is_detached_is_not_healthy() {
    let mut scene = Scene::healthy();
    for sample in &mut scene.one.samples {
        let row = &mut sample.subscriptions[0];
        (row.enabled, row.slot_name, row.pid) = (false, None, None);
        sample.processes.clear();
    }
    for sample in &mut scene.primary.samples {
        sample.slots.remove(1);
        sample.senders.remove(1);
    }
    let diagnosis = scene.diagnose();
    assert_eq!(causes(&diagnosis), []);
    let words = "nothing comes to one: 1 subscription without a slot (sub_one)";
    assert_eq!(diagnosis.unknown, [words]);
}

#[test]
fn commits_that_wait_for_replicas_which_are_there_are_told() {
    for (waits_ms, expected) in [(100.0, Answer::Well), (9_000.0, Answer::NotKnown)] {
        let mut scene = Scene::healthy();
        for sample in &mut scene.primary.samples {
            sample.clients.awaiting_sync = 1;
            sample.clients.awaiting_sync_ms = Some(waits_ms);
        }
        let diagnosis = scene.diagnose();
        assert_eq!(answer(&diagnosis, "commits", "primary"), expected);
    }
}

/// Names of tables, as a server gives them.
fn names(of: &[&str]) -> std::collections::BTreeSet<String> {
    of.iter().map(|name| format!("public.{name}")).collect()
}

#[test]
fn unlogged_tables_are_told_at_both_ends() {
    let mut scene = Scene::healthy();
    tables(&mut scene.one, |it| it.unlogged = names(&["t", "other"]));
    let diagnosis = scene.diagnose();
    assert_eq!(causes(&diagnosis), [Cause::TablesUnlogged]);
    let remedy = "on one: ALTER TABLE public.t SET LOGGED;";
    assert!(diagnosis.findings[0].remedies[0].starts_with(remedy));
    assert!(diagnosis.has_risk() && !diagnosis.has_lag());

    // A publication of all tables does not have it.
    let mut scene = Scene::healthy();
    tables(&mut scene.primary, |it| {
        it.publications = [("p".to_owned(), names(&[]))].into();
        it.there = Some(names(&["t"]));
        it.unlogged = names(&["t"]);
    });
    let diagnosis = scene.diagnose();
    assert_eq!(diagnosis.first(), Some(Cause::TablesNotPublished));
    let remedies = &diagnosis.findings[0].remedies;
    assert!(remedies[0].contains("make public.t logged"), "{remedies:?}");
    assert!(!remedies.concat().contains("ADD TABLE"), "{remedies:?}");
}

#[test]
fn a_name_that_looks_like_a_gap_is_shown_as_it_is() {
    let mut scene = Scene::healthy();
    tables(&mut scene.one, |it| {
        it.subscriptions.get_mut("sub_one").unwrap().publications =
            vec!["{subscription}".to_owned()];
    });
    let diagnosis = scene.diagnose();
    let mut found = diagnosis.findings.iter();
    let found = found.find(|it| it.cause == Cause::PublicationMissing);
    assert_eq!(
        found.unwrap().title,
        "publication {subscription} is not there"
    );
}

#[test]
fn what_was_hardly_watched_is_not_healthy() {
    for (kept, is_healthy) in [(2, false), (3, true)] {
        let mut scene = Scene::healthy();
        scene.one.samples.truncate(kept);
        let diagnosis = scene.diagnose().watched_enough();
        let mut unknown = diagnosis.unknown.iter();
        let is_told = unknown.any(|words| words.contains("one has given only 2 samples"));
        assert_eq!(
            (diagnosis.healthy, is_told),
            (is_healthy, !is_healthy),
            "{:?}",
            diagnosis.unknown
        );
    }
}
