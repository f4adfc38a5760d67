use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use lockstep_lab::for_tests;
use lockstep_lag::monitor::Moment;
use lockstep_lag::point::Bound;
use tempfile::TempDir;

use super::*;
use crate::history::incidents::Matter;

const LIMITS: Limits = Limits {
    kept_ms: 7 * DAY_MS,
    bytes: 64 << 20,
};

/// 2026-11-22.
const NOW: i64 = 1_795_305_600_000;

fn moment(at_ms: i64, lag_ms: f64) -> Moment {
    Moment {
        at_ms,
        lag_ms,
        lag_bytes: 1,
        stage_bytes: [1, 2, 3, 4],
        visible_ms: None,
    }
}

/// A batch of one moment of each of these links.
fn batch(at_ms: i64, lag_ms: f64, links: usize) -> Batch {
    let links = (0..links).map(|link| (format!("primary/standby{link}"), moment(at_ms, lag_ms)));
    let step_ms = at_ms.div_euclid(FINE_MS) * FINE_MS;
    Batch {
        steps: BTreeMap::from([(step_ms, links.collect())]),
        incidents: BTreeMap::new(),
    }
}

/// Times and lags of the first link.
fn read(store: &Store, since_ms: i64, step_ms: i64) -> Vec<(i64, f64)> {
    let mut found = Vec::new();
    let each = |id: String, moment: Moment| {
        if id == "primary/standby0" {
            found.push((moment.at_ms, moment.lag_ms));
        }
    };
    store.read(since_ms, NOW + DAY_MS, step_ms, each).unwrap();
    found
}

fn incident(id: u64) -> Incident {
    Incident {
        id,
        matter: Matter::Lag,
        at: "standby".to_owned(),
        upstream: None,
        begin_ms: NOW,
        seen_ms: NOW,
        causes: vec!["replay is paused".to_owned()],
        most_lag_ms: Some(1.5),
        bound: Bound::LEAST,
        most_lag_bytes: 7,
        over: false,
    }
}

#[test]
fn what_was_written_is_read_after_it_was_opened_again() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("history.redb");
    let mut store = Store::open(&path, LIMITS).unwrap();
    for second in 0..40 {
        let lag_ms = if second == 13 { 900.0 } else { 5.0 };
        let mut batch = batch(NOW + second * 1000, lag_ms, 2);
        batch.incidents.insert(3, incident(3));
        store.write(&batch, NOW + second * 1000).unwrap();
    }
    let expected = [(0, 5.0), (13, 900.0), (20, 5.0), (30, 5.0)];
    let expected = expected.map(|(second, lag_ms)| (NOW + second * 1000, lag_ms));
    assert_eq!(read(&store, 0, 0), expected);
    drop(store);
    let store = Store::open(&path, LIMITS).unwrap();
    assert_eq!(read(&store, 0, 0), expected);
    assert_eq!(read(&store, NOW + 13_000, 0), expected[2..]);
    // Longer steps come from the other table.
    assert_eq!(read(&store, 0, COARSE_MS), [(NOW + 13_000, 900.0)]);
    assert_eq!(store.incidents().unwrap(), [incident(3)]);
    assert_eq!(
        store.oldest_ms().unwrap(),
        Some(NOW / COARSE_MS * COARSE_MS)
    );
}

#[test]
fn old_steps_and_incidents_go() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("history.redb");
    let mut store = Store::open(&path, LIMITS).unwrap();
    let mut first = batch(NOW - 8 * DAY_MS, 1.0, 1);
    first.incidents.insert(
        0,
        Incident {
            seen_ms: NOW - 8 * DAY_MS,
            ..incident(0)
        },
    );
    store.write(&first, NOW - 8 * DAY_MS).unwrap();
    store
        .write(&batch(NOW - 2 * DAY_MS, 2.0, 1), NOW - 2 * DAY_MS)
        .unwrap();
    let mut last = batch(NOW, 3.0, 1);
    last.incidents.insert(1, incident(1));
    store.write(&last, NOW).unwrap();
    // Two days ago there are only the longer steps.
    let expected = [(NOW - 2 * DAY_MS, 2.0), (NOW, 3.0)];
    assert_eq!(read(&store, 0, 0), expected);
    assert_eq!(store.incidents().unwrap(), [incident(1)]);
}

#[test]
fn a_clock_that_jumps_costs_little() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("history.redb");
    let mut store = Store::open(&path, LIMITS).unwrap();
    for step in 0..300 {
        let at_ms = NOW + step * FINE_MS;
        store.write(&batch(at_ms, 1.0, 1), at_ms).unwrap();
    }
    let all = read(&store, 0, 0).len();
    // An hour back: the same steps again, and the worst stays.
    store.write(&batch(NOW, 7.0, 1), NOW).unwrap();
    store.write(&batch(NOW + 1, 3.0, 1), NOW + 1).unwrap();
    let found = read(&store, 0, 0);
    assert_eq!((found.len(), found[0]), (all, (NOW, 7.0)));
    // Ten years ahead, twice: what was there stays but for a few steps.
    let later = NOW + 3650 * DAY_MS;
    store.write(&batch(later, 1.0, 1), later).unwrap();
    store.write(&batch(later + 1, 1.0, 1), later + 1).unwrap();
    assert!(read(&store, 0, 0).len() >= all - 2 * MOST_REMOVED);
    // Back again: the future goes.
    let now = NOW + 300 * FINE_MS;
    store.write(&batch(now, 1.0, 1), now).unwrap();
    let mut last = 0;
    store
        .read(0, i64::MAX, 0, |_, moment| last = last.max(moment.at_ms))
        .unwrap();
    assert_eq!(last, now);
}

/// Never larger than its limit, and never without its newest.
#[test]
fn the_file_stays_below_its_limit() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("history.redb");
    let limits = Limits {
        bytes: 16 << 20,
        ..LIMITS
    };
    let mut store = Store::open(&path, limits).unwrap();
    // One record of this has 3 kB.
    let mut at_ms = NOW;
    let mut most = 0;
    for _ in 0..150 {
        let mut all = Batch::default();
        for _ in 0..30 {
            at_ms += FINE_MS;
            all.steps.extend(batch(at_ms, 1.0, 64).steps);
        }
        // As long as 30 commits of one step each.
        store.commits += COUNTED_EVERY - 1;
        store.write(&all, at_ms).unwrap();
        most = most.max(store.bytes().unwrap());
    }
    assert!(most <= limits.bytes, "{most}");
    assert_eq!(read(&store, 0, 0).last().unwrap().0, at_ms);
    assert!(store.oldest_ms().unwrap().unwrap() > NOW);
    // A smaller limit than before holds from the start.
    drop(store);
    let smaller = Limits {
        bytes: 4 << 20,
        ..LIMITS
    };
    let store = Store::open(&path, smaller).unwrap();
    assert!(
        store.bytes().unwrap() <= smaller.bytes,
        "{}",
        store.bytes().unwrap()
    );
    assert_eq!(read(&store, 0, 0).last().unwrap().0, at_ms);
}

/// A moment of a replica that keeps up with some load.
fn busy_moment(at_ms: i64, random: &mut fastrand::Rng) -> Moment {
    Moment {
        lag_bytes: random.u64(..1_000_000),
        stage_bytes: [(); 4].map(|()| random.u64(..250_000)),
        visible_ms: Some(random.f64() * 50.0),
        ..moment(at_ms, random.f64() * 50.0)
    }
}

/// The size that docs/serve.md states.
#[test]
fn a_week_of_20_replicas_has_22_mb() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("history.redb");
    let limits = Limits {
        bytes: 256 << 20,
        ..LIMITS
    };
    let mut store = Store::open(&path, limits).unwrap();
    let mut random = fastrand::Rng::with_seed(15);
    let mut at_ms = NOW;
    while at_ms < NOW + 8 * DAY_MS {
        let mut all = Batch::default();
        for _ in 0..30 {
            let moment = |link| {
                let id = format!("primary/standby{link}");
                (id, busy_moment(at_ms, &mut random))
            };
            all.steps.insert(at_ms, (0..20).map(moment).collect());
            // Of the days before the last only the longer steps are left.
            at_ms += match at_ms < NOW + 7 * DAY_MS {
                true => COARSE_MS,
                false => FINE_MS,
            };
        }
        store.write(&all, at_ms).unwrap();
    }
    let count = |tier: Tier| {
        let txn = store.database.begin_read().unwrap();
        txn.open_table(tier.table).unwrap().len().unwrap() as i64
    };
    assert!(
        (count(FINE) - DAY_MS / FINE_MS).abs() < 40,
        "{}",
        count(FINE)
    );
    assert!(
        (count(COARSE) - 7 * DAY_MS / COARSE_MS).abs() < 40,
        "{}",
        count(COARSE)
    );
    let megabytes = store.bytes().unwrap() as f64 / 1e6;
    assert!((14.0..23.0).contains(&megabytes), "{megabytes} MB");
}

/// However the file is damaged, it is either read as it was written or called damaged. Where the
/// database itself panics, whoever holds this catches it.
#[test]
fn a_damaged_file_is_never_believed() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("history.redb");
    let mut store = Store::open(&path, LIMITS).unwrap();
    for step in 0..50 {
        let at_ms = NOW + step * FINE_MS;
        let mut batch = batch(at_ms, 1.0, 4);
        batch.incidents.insert(3, incident(3));
        store.write(&batch, at_ms).unwrap();
    }
    let expected = read(&store, 0, 0);
    drop(store);
    let whole = fs::read(&path).unwrap();
    let seed = for_tests::number("SEED").unwrap_or(15);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut damaged = 0;
    for round in 0..60 {
        let mut bytes = whole.clone();
        match round % 3 {
            0 => (0..200).for_each(|_| bytes[random.usize(..whole.len())] ^= 1 << random.u8(..8)),
            1 => bytes.truncate(random.usize(..whole.len())),
            _ => bytes[..random.usize(1..4096)].fill(random.u8(..)),
        }
        let copy = folder.path().join("copy.redb");
        fs::write(&copy, &bytes).unwrap();
        let found = catch_unwind(AssertUnwindSafe(|| -> Result<_> {
            let store = Store::open(&copy, LIMITS)?;
            let mut found = Vec::new();
            store.read(0, i64::MAX, 0, |id, moment| {
                if id == "primary/standby0" {
                    found.push((moment.at_ms, moment.lag_ms));
                }
            })?;
            Ok((found, store.incidents()?))
        }));
        match found {
            Ok(Ok((found, incidents))) => {
                // A page may be lost with the last commits, but what is there is true.
                assert!(
                    found.iter().all(|one| expected.contains(one)),
                    "seed {seed}, {round}"
                );
                assert!(incidents.iter().all(|one| *one == incident(3)));
            }
            Ok(Err(error)) => {
                assert!(
                    matches!(error, StoreError::Damaged(_)),
                    "{error} seed {seed}, {round}"
                );
                damaged += 1;
            }
            Err(_) => damaged += 1,
        }
    }
    assert!(damaged > 20, "{damaged}");
}
