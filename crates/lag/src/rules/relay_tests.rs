//! A relay between a primary and two subscribers: what is found, what is not, and where.

use super::scene::{
    EXACT, START, STEP, lsn, node, process, received, sender, session, slot, subscriber,
};
use super::{Cause, Severity};
use crate::diagnosis::{Diagnosis, LinkReport, diagnose};
use crate::node::{Role, Trouble};
use crate::point::Bound;
use crate::relay::{Group, Relay, RelaySlot};
use crate::sample::Sample;
use crate::views::Decoding;
use crate::window::{NodeWindow, Window};
use lockstep_wire::Lsn;

/// Causes that have a case here.
pub(super) const CAUSES: [Cause; 4] = [
    Cause::RelayHalted,
    Cause::RelayNotStreaming,
    Cause::RelaySpoolNearLimit,
    Cause::RelayReadsFromDisk,
];

const MB: u64 = 1024 * 1024;

/// A primary, a relay and two subscribers that keep up.
struct Scene {
    primary: NodeWindow,
    relay: NodeWindow,
    one: NodeWindow,
    two: NodeWindow,
}

fn relay_slot(name: &str, pid: u32, end: u64) -> RelaySlot {
    RelaySlot {
        name: name.to_owned(),
        database: "app".to_owned(),
        group: "orders".to_owned(),
        active_pid: Some(pid),
        sent: lsn(end),
        written: lsn(end),
        applied: lsn(end),
        confirmed: lsn(end),
        behind_bytes: 0,
        cache_hit: (end - START) / STEP,
        cache_miss: 0,
    }
}

impl Scene {
    fn healthy() -> Self {
        let primary = node("primary", Role::Primary, |index, end| {
            let mut sample = Sample {
                senders: vec![sender(10, "lockstep relay", end)],
                slots: vec![slot("lockstep_orders", "logical", 10, end)],
                processes: vec![process(10, "walsender", "Client", "WalSenderWaitForWAL")],
                decoding: vec![Decoding {
                    slot_name: "lockstep_orders".to_owned(),
                    total_txns: index,
                    total_bytes: index * 1000,
                    ..Decoding::default()
                }],
                ..Sample::default()
            };
            sample.wal.flush = lsn(end);
            sample
        });
        let relay = node("relay", Role::Relay, |index, end| Sample {
            relay: Some(Relay {
                groups: vec![Group {
                    name: "orders".to_owned(),
                    upstream_slot: "lockstep_orders".to_owned(),
                    database: "app".to_owned(),
                    state: "streaming".into(),
                    primary: Some("db1:5432".to_owned()),
                    received: lsn(end),
                    durable: lsn(end),
                    committed: lsn(end),
                    transactions: index,
                    cache_bytes: 16 * MB,
                    cache_limit_bytes: 16 * MB,
                    spool_bytes: 16 * MB,
                    spool_limit_bytes: 100 * MB,
                    ..Group::default()
                }],
                slots: vec![
                    relay_slot("slot_one", 91, end),
                    relay_slot("slot_two", 92, end),
                ],
            }),
            ..Sample::default()
        });
        Self {
            primary,
            relay,
            one: subscriber("one", 31),
            two: subscriber("two", 32),
        }
    }

    fn groups(&mut self, change: impl Fn(&mut Group)) {
        for sample in &mut self.relay.samples {
            sample
                .relay
                .iter_mut()
                .flat_map(|relay| &mut relay.groups)
                .for_each(&change);
        }
    }

    /// Changes the first subscriber's slot. The change gets the sample's index as well.
    fn slot(&mut self, change: impl Fn(u64, &mut RelaySlot)) {
        for (index, sample) in (0..).zip(&mut self.relay.samples) {
            change(index, &mut sample.relay.as_mut().unwrap().slots[0]);
        }
    }

    /// The first subscriber makes no progress, and its worker waits for this.
    fn stuck(&mut self, wait_type: &str, wait: &str) {
        self.slot(|index, slot| {
            (slot.written, slot.applied, slot.confirmed) = (lsn(START), lsn(START), lsn(START));
            slot.sent = lsn(START + STEP);
            slot.behind_bytes = index * STEP;
        });
        received(&mut self.one, |_| lsn(START));
        for sample in &mut self.one.samples {
            sample.processes[0] = process(31, "logical replication worker", wait_type, wait);
        }
    }

    /// The first subscriber is served from disk.
    fn misses(&mut self) {
        self.slot(|index, slot| (slot.cache_hit, slot.cache_miss) = (7, index * 10));
    }

    /// The group is in this state and receives nothing more.
    fn stopped(&mut self, state: &str, reason: &str) {
        self.groups(|group| {
            group.state = state.into();
            group.reason = Some(reason.to_owned());
            (group.received, group.durable, group.committed) = (lsn(START), lsn(START), lsn(START));
        });
        for sample in &mut self.relay.samples {
            for slot in &mut sample.relay.as_mut().unwrap().slots {
                *slot = relay_slot(&slot.name, slot.active_pid.unwrap(), START);
            }
        }
        for sample in &mut self.primary.samples {
            sample.senders[0] = sender(10, "lockstep relay", START);
            sample.slots[0].confirmed_flush_lsn = lsn(START);
        }
    }

    fn diagnose(mut self) -> Diagnosis {
        for sample in &mut self.relay.samples {
            let relay = sample.relay.clone().unwrap();
            sample.add_relay(relay);
        }
        diagnose(&Window::new(vec![
            self.primary,
            self.relay,
            self.one,
            self.two,
        ]))
    }
}

fn link<'d>(diagnosis: &'d Diagnosis, replica: &str) -> &'d LinkReport {
    let mut links = diagnosis.links.iter();
    let found = links.find(|link| link.replica == replica);
    found.unwrap_or_else(|| panic!("no {replica}: {:?}", diagnosis.links))
}

#[test]
fn the_way_through_a_relay_is_one_link_after_the_other() {
    let diagnosis = Scene::healthy().diagnose();
    assert!(diagnosis.healthy, "{:?}", diagnosis.findings);
    assert!(diagnosis.findings.is_empty(), "{:?}", diagnosis.findings);
    let way: Vec<(&str, &str)> = diagnosis
        .links
        .iter()
        .map(|link| (link.upstream.as_str(), link.replica.as_str()))
        .collect();
    assert_eq!(
        way,
        [
            ("primary", "relay (orders)"),
            ("relay", "one"),
            ("relay", "two")
        ]
    );
    assert!(diagnosis.links.iter().all(|link| link.lag_bytes == 0.0));
}

/// The end of the WAL some samples before, or a position before all of them.
fn earlier(end: u64, samples: u64) -> Option<Lsn> {
    lsn(end.saturating_sub(samples * STEP).max(START - 1))
}

#[test]
fn each_leg_has_its_own_lag() {
    let mut scene = Scene::healthy();
    // The relay is 2 samples behind the primary, the first subscriber 5 behind the relay.
    let behind = |end: Option<Lsn>, samples| earlier(end.unwrap().into(), samples);
    received(&mut scene.one, |end| earlier(end, 7));
    received(&mut scene.two, |end| earlier(end, 2));
    scene.groups(|group| {
        let end = behind(group.committed, 2);
        (group.received, group.durable, group.committed) = (end, end, end);
    });
    for sample in &mut scene.primary.samples {
        let sender = &mut sample.senders[0];
        let end = behind(sender.replay_lsn, 2);
        (sender.write_lsn, sender.flush_lsn, sender.replay_lsn) = (end, end, end);
    }
    for sample in &mut scene.relay.samples {
        for (slot, by) in sample.relay.as_mut().unwrap().slots.iter_mut().zip([7, 2]) {
            let end = behind(slot.confirmed, by);
            (slot.sent, slot.written) = (behind(slot.sent, 2), end);
            (slot.applied, slot.confirmed) = (end, end);
        }
    }
    let diagnosis = scene.diagnose();
    for (replica, samples) in [("relay (orders)", 2.0), ("one", 5.0), ("two", 0.0)] {
        let link = link(&diagnosis, replica);
        assert_eq!(link.lag_bytes, samples * STEP as f64, "{replica}");
        let ms = (samples - 1.0_f64).max(0.0) * 100.0;
        assert!((ms..=ms + 100.0).contains(&link.lag_ms), "{link:?}");
    }
    assert!(link(&diagnosis, "one").behind && !link(&diagnosis, "two").behind);
}

/// A subscriber lags by what it has not applied, although it tells its upstream late: the samples
/// that it is behind by what it told, and by what it received last; what its worker waits for; then
/// the milliseconds that are found, and what these are to the true lag.
#[test]
fn a_lag_is_no_longer_than_what_a_busy_worker_has_left_to_apply() {
    const LONG: u64 = 1_000;
    const BUSY: Option<&str> = Some("PgSleep");
    const WAITS: Option<&str> = Some("LogicalApplyMain");
    let cases = [
        ("tells late", LONG, Some(3), BUSY, 200.0..=400.0, EXACT),
        ("tells at once", 3, Some(3), BUSY, 200.0..=400.0, EXACT),
        ("stuck", LONG, Some(LONG), BUSY, 2e3..=3e3, Bound::LEAST),
        ("has all", LONG, Some(0), WAITS, 0.0..=0.0, EXACT),
        ("commits", LONG, Some(0), BUSY, 0.0..=100.0, EXACT),
        ("has ended", 5, None, None, 400.0..=500.0, Bound::MOST),
        ("is not seen", 5, Some(0), None, 400.0..=500.0, Bound::MOST),
    ];
    for (name, told, got, worker, lag_ms, bound) in cases {
        let mut scene = Scene::healthy();
        scene.slot(|index, slot| {
            let told = earlier(START + index * STEP, told);
            (slot.written, slot.applied, slot.confirmed) = (told, told, told);
        });
        received(&mut scene.one, |end| earlier(end, got?));
        for sample in &mut scene.one.samples {
            let worker = worker.map(|wait| process(31, "logical replication worker", "", wait));
            sample.processes = worker.into_iter().collect();
        }
        let diagnosis = scene.diagnose();
        let link = link(&diagnosis, "one");
        assert!(lag_ms.contains(&link.lag_ms), "{name}: {link:?}");
        assert_eq!(link.bound, bound, "{name}: {link:?}");
    }
}

#[test]
fn a_subscriber_of_a_relay_that_was_not_named_lags_at_most_by_what_it_told() {
    let mut scene = Scene::healthy();
    scene.slot(|index, slot| slot.applied = earlier(START + index * STEP, 5));
    scene.one.samples.clear();
    let diagnosis = scene.diagnose();
    let link = link(&diagnosis, "slot_one");
    assert!((300.0..=500.0).contains(&link.lag_ms), "{link:?}");
    assert_eq!(link.bound, Bound::MOST);
}

type Change = fn(&mut Scene);

/// A case: its name, the change to a healthy scene, the cause to be found first, where, and a
/// name that its evidence must have.
type Case = (
    &'static str,
    Change,
    Cause,
    &'static str,
    Option<(&'static str, &'static str)>,
);

const CASES: &[Case] = &[
    (
        "connecting",
        |s| s.stopped("connecting", "connection refused"),
        Cause::RelayNotStreaming,
        "relay (orders)",
        Some(("reason", "connection refused")),
    ),
    (
        "failed, and its slot is gone",
        |s| {
            s.stopped("failed", "the slot does not exist on the primary");
            for sample in &mut s.primary.samples {
                sample.slots.clear();
                sample.senders.clear();
            }
        },
        Cause::RelayNotStreaming,
        "relay (orders)",
        Some(("failed", "orders")),
    ),
    (
        "no room on the disk",
        |s| s.stopped("waiting", "No space left on device"),
        Cause::RelayNotStreaming,
        "relay (orders)",
        Some(("waiting", "orders")),
    ),
    (
        "spool full",
        |s| {
            s.stopped("waiting", "the spool is at its limit");
            s.groups(|group| group.spool_bytes = 99 * MB);
        },
        Cause::RelaySpoolNearLimit,
        "relay (orders)",
        Some(("slot", "slot_one")),
    ),
    (
        "spool nearly full, by a slot that nobody uses",
        |s| {
            s.groups(|group| group.spool_bytes = 85 * MB);
            for sample in &mut s.relay.samples {
                let slot = &mut sample.relay.as_mut().unwrap().slots[1];
                *slot = RelaySlot {
                    active_pid: None,
                    ..relay_slot("slot_two", 0, START)
                };
            }
            s.two.samples.clear();
        },
        Cause::RelaySpoolNearLimit,
        "relay (orders)",
        Some(("slot", "slot_two")),
    ),
    (
        "slow apply with a small backlog, all of which is sent",
        |s| {
            s.stuck("Timeout", "PgSleep");
            s.slot(|index, slot| {
                slot.sent = lsn(START + index * STEP);
                slot.behind_bytes = 0;
            });
        },
        Cause::SlowConsumer,
        "one",
        Some(("slot", "slot_one")),
    ),
    (
        "from disk",
        |s| {
            s.stuck("Activity", "LogicalApplyMain");
            s.slot(|index, slot| slot.behind_bytes = (index % 2) * STEP);
            s.misses();
        },
        Cause::RelayReadsFromDisk,
        "one",
        Some(("cache_limit", "16 MB")),
    ),
    (
        "from disk, the cache is off",
        |s| {
            s.stuck("Activity", "LogicalApplyMain");
            s.slot(|index, slot| slot.behind_bytes = (index % 3) * STEP);
            s.misses();
            s.groups(|group| (group.cache_bytes, group.cache_limit_bytes) = (0, 0));
        },
        Cause::RelayReadsFromDisk,
        "one",
        Some(("relay", "relay")),
    ),
    (
        "from disk, because its worker is blocked",
        |s| {
            s.stuck("Lock", "relation");
            s.misses();
            for sample in &mut s.one.samples {
                sample.processes[0].blocked_by = vec![55];
                sample.clients.oldest = vec![session(55, 9.0)];
            }
        },
        Cause::ApplyBlocked,
        "one",
        Some(("pid", "55")),
    ),
    (
        "from disk, because its worker is busy",
        |s| {
            s.stuck("", "");
            s.misses();
        },
        Cause::SlowConsumer,
        "one",
        Some(("upstream", "relay")),
    ),
    (
        "network",
        |s| s.stuck("Activity", "LogicalApplyMain"),
        Cause::SlowNetwork,
        "one",
        Some(("upstream", "relay")),
    ),
    (
        "disabled",
        |s| {
            s.stuck("", "");
            s.slot(|_, slot| slot.active_pid = None);
            for sample in &mut s.one.samples {
                sample.subscriptions[0].pid = None;
                sample.subscriptions[0].enabled = false;
            }
        },
        Cause::ApplyStopped,
        "one",
        Some(("slot", "slot_one")),
    ),
    (
        "decoding is slow for the relay too",
        |s| {
            for sample in &mut s.primary.samples {
                sample.senders[0] = sender(10, "lockstep relay", START);
                sample.processes[0] = process(10, "walsender", "", "");
            }
            s.groups(|group| {
                (group.received, group.durable, group.committed) =
                    (lsn(START), lsn(START), lsn(START));
            });
        },
        Cause::SlowDecoding,
        "relay (orders)",
        None,
    ),
    (
        "halted",
        |s| {
            s.relay.samples.clear();
            s.relay.troubles = vec![Trouble::Unreachable {
                reason: "timeout expired".to_owned(),
            }];
            for sample in &mut s.primary.samples {
                sample.senders[0] = sender(10, "lockstep relay", START);
            }
        },
        Cause::RelayHalted,
        "lockstep_orders",
        Some(("relay", "relay")),
    ),
    (
        "unused",
        |s| {
            for sample in &mut s.relay.samples {
                sample.relay.as_mut().unwrap().slots.push(RelaySlot {
                    active_pid: None,
                    ..relay_slot("forgotten", 0, START)
                });
                let slot = sample.relay.as_mut().unwrap().slots.last_mut().unwrap();
                slot.confirmed = lsn(START - 500 * MB);
            }
        },
        Cause::UnusedSlot,
        "slot forgotten on relay",
        Some(("relay", "relay")),
    ),
];

#[test]
fn each_cause_is_found_first() {
    for (name, change, cause, at, named) in CASES {
        let mut scene = Scene::healthy();
        change(&mut scene);
        let diagnosis = scene.diagnose();
        let first = diagnosis
            .findings
            .first()
            .unwrap_or_else(|| panic!("{name}: nothing found"));
        assert_eq!(first.cause, *cause, "{name}: {:?}", diagnosis.findings);
        assert_eq!(first.at, *at, "{name}");
        assert!(diagnosis.has_lag() || diagnosis.has_risk(), "{name}");
        assert!(!diagnosis.healthy, "{name}");
        assert!(!first.evidence.is_empty() && !first.remedies.is_empty());
        if let Some((key, value)) = named {
            let found = first.names.get(key).map(String::as_str);
            assert_eq!(found, Some(*value), "{name}");
        }
        for text in first.remedies.iter().chain([&first.title]) {
            assert!(!text.contains('{'), "{name}: {text}");
        }
    }
    let first = CASES.iter().map(|case| case.2);
    let first: std::collections::BTreeSet<Cause> = first.collect();
    assert!(CAUSES.iter().all(|cause| first.contains(cause)));
}

#[test]
fn what_a_relay_says_of_a_late_flush_is_a_note() {
    let mut scene = Scene::healthy();
    scene.slot(|index, slot| slot.confirmed = lsn(START + index / 4 * 4 * STEP));
    let diagnosis = scene.diagnose();
    assert!(diagnosis.healthy, "{:?}", diagnosis.findings);
    let first = &diagnosis.findings[0];
    assert_eq!(first.cause, Cause::AsynchronousApplyCommit);
    assert_eq!((first.at.as_str(), first.severity), ("one", Severity::Note));
    let words: Vec<&str> = first.evidence.iter().map(|f| f.words.as_str()).collect();
    assert!(words[2].contains("relay answers the primary"), "{words:?}");
}

#[test]
fn positions_without_transactions_are_no_lag() {
    let mut scene = Scene::healthy();
    // The primary writes for others. The relay hears of it at once, the subscriber later.
    scene.groups(|group| group.committed = lsn(START));
    scene.slot(|index, slot| {
        let told = lsn(START + index / 10 * 10 * STEP);
        (slot.written, slot.applied, slot.confirmed) = (told, told, told);
    });
    let diagnosis = scene.diagnose();
    assert!(diagnosis.healthy, "{:?}", diagnosis.links);
    assert_eq!(link(&diagnosis, "one").lag_max_ms, 0.0);
}

#[test]
fn a_relay_that_is_away_hides_no_other() {
    let mut scene = Scene::healthy();
    scene.relay.troubles = vec![Trouble::Unreachable {
        reason: "no".to_owned(),
    }];
    let diagnosis = scene.diagnose();
    assert!(!diagnosis.healthy && !diagnosis.nodes[1].usable);
    // The primary still knows its slot.
    assert_eq!(diagnosis.links.len(), 1);
    assert_eq!(diagnosis.links[0].replica, "lockstep_orders");
    assert!(!diagnosis.has_lag(), "{:?}", diagnosis.findings);
}

#[test]
fn names_in_remedies_are_quoted_where_sql_needs_it() {
    let mut scene = Scene::healthy();
    scene.stuck("", "");
    scene.slot(|_, slot| slot.active_pid = None);
    for sample in &mut scene.one.samples {
        let row = &mut sample.subscriptions[0];
        (row.pid, row.name) = (None, "My \"s\"".to_owned());
        row.enabled = false;
    }
    let diagnosis = scene.diagnose();
    let remedies = diagnosis.findings[0].remedies.join("\n");
    let quoted = r#"ALTER SUBSCRIPTION "My ""s""" ENABLE"#;
    assert!(remedies.contains(quoted), "{remedies}");
}

/// Another primary may have a slot of the name that a group's slot has.
#[test]
fn a_group_is_fed_by_the_primary_that_it_is_connected_to() {
    let cases: [fn(&mut Scene); 2] = [
        |scene| {
            for sample in &mut scene.primary.samples {
                let slot = &mut sample.slots[0];
                (slot.active, slot.active_pid) = (false, None);
                sample.senders.clear();
            }
        },
        |scene| scene.groups(|group| group.sent = lsn(9 * START)),
    ];
    for change in cases {
        let mut scene = Scene::healthy();
        change(&mut scene);
        let diagnosis = scene.diagnose();
        let links: Vec<&str> = diagnosis
            .links
            .iter()
            .map(|it| it.replica.as_str())
            .collect();
        assert!(!links.contains(&"relay (orders)"), "{links:?}");
        let words = "nothing that answers here is the upstream of relay (orders)";
        assert!(
            diagnosis.unknown.iter().any(|it| it == words),
            "{:?}",
            diagnosis.unknown
        );
        assert!(!diagnosis.healthy);
    }
    // One that does not stream may have lost its connection.
    let mut scene = Scene::healthy();
    scene.stopped("connecting", "refused");
    cases[0](&mut scene);
    let diagnosis = scene.diagnose();
    assert_eq!(link(&diagnosis, "relay (orders)").upstream, "primary");
}

/// A subscription that works while nobody uses the relay's slot of that name gets its changes elsewhere.
#[test]
fn a_relays_slot_that_nobody_uses_is_not_that_of_a_worker_that_works() {
    let mut scene = Scene::healthy();
    scene.slot(|_, slot| slot.active_pid = None);
    let diagnosis = scene.diagnose();
    assert!(diagnosis.links.iter().all(|link| link.replica != "one"));
    let words = "nothing that answers here is the upstream of one (sub_one) for certain";
    let mut unknown = diagnosis.unknown.iter();
    assert!(
        unknown.any(|it| it.starts_with(words)),
        "{:?}",
        diagnosis.unknown
    );
}
