//! One case each, for what chance would hide.

use std::sync::Arc;

use bytes::Bytes;
use lockstep_spool::{
    CHUNK_BYTES, CHUNK_OVERHEAD, Limits, Log, LogError, Read, Reader, SCHEMA_LIMIT,
};
use lockstep_wire::Lsn;

use super::stream::{Sizes, Unit, relation, transaction, truncate, unit};
use lockstep_simulation::disk::Disk;

const LIMITS: Limits = Limits {
    cache_bytes: 20_000,
    segment_bytes: 10_000,
    spool_bytes: None,
};

pub(super) fn log(limits: Limits) -> (Disk, Arc<Log<Disk>>) {
    let disk = Disk::default();
    let log = Log::create(disk.clone(), limits, Lsn::from(100)).unwrap();
    (disk, Arc::new(log))
}

/// A transaction with one change of this number of bytes.
pub(super) fn plain(key: u64, bytes: usize) -> Unit {
    transaction(
        key,
        key + 10,
        &[[b"I".as_slice(), &vec![7; bytes]].concat()],
    )
}

pub(super) fn append(log: &Log<Disk>, unit: &Unit) {
    log.append(Bytes::from(unit.bytes())).unwrap();
}

/// All that there is now: its bytes, those from memory, those from the spool.
fn drain(reader: &mut Reader<Disk>) -> (Vec<u8>, u64, u64) {
    let (mut bytes, mut hits, mut misses) = (Vec::new(), 0, 0);
    loop {
        match reader.read(usize::MAX).unwrap() {
            Read::Frames {
                pieces,
                hit_bytes,
                miss_bytes,
            } => {
                bytes.extend(pieces.concat());
                hits += hit_bytes;
                misses += miss_bytes;
            }
            Read::Nothing { .. } => return (bytes, hits, misses),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_laggard_returns_to_memory() {
    let (_, log) = log(LIMITS);
    let mut reader = log.reader(Lsn::from(100)).unwrap();
    let first: Vec<_> = (0..60).map(|n| plain(100 + n * 10, 900)).collect();
    first.iter().for_each(|unit| append(&log, unit));
    let all: u64 = first.iter().map(|unit| unit.bytes().len() as u64).sum();
    let (bytes, hits, misses) = drain(&mut reader);
    assert_eq!(bytes.len() as u64, all);
    assert_eq!(hits + misses, all);
    // What is in memory comes from there, and no more is.
    assert!(
        (LIMITS.cache_bytes / 2..=LIMITS.cache_bytes).contains(&hits),
        "{hits}"
    );
    let next = plain(700, 900);
    append(&log, &next);
    let (bytes, hits, misses) = drain(&mut reader);
    assert_eq!(bytes, next.bytes());
    assert_eq!((hits, misses), (bytes.len() as u64, 0));
    assert!(log.oldest_cached() > Lsn::from(300) && log.oldest_cached() <= Lsn::from(700));
}

#[test]
fn without_a_cache_all_comes_from_the_spool() {
    let (_, log) = log(Limits {
        cache_bytes: 0,
        ..LIMITS
    });
    let mut reader = log.reader(Lsn::from(100)).unwrap();
    for n in 0..5 {
        let unit = plain(100 + n * 10, 900);
        append(&log, &unit);
        let length = unit.bytes().len() as u64;
        assert_eq!(drain(&mut reader), (unit.bytes(), 0, length));
        assert_eq!(log.cache_bytes(), 0);
        assert_eq!(log.oldest_cached(), Lsn::INVALID);
    }
}

#[test]
fn other_limits_hold_from_then_on() {
    let (_, log) = log(LIMITS);
    let mut reader = log.reader(Lsn::from(100)).unwrap();
    let units: Vec<_> = (0..20).map(|n| plain(100 + n * 10, 900)).collect();
    units.iter().for_each(|unit| append(&log, unit));
    assert!(log.cache_bytes() > 5_000);
    // At once, with nothing appended.
    let limits = Limits {
        cache_bytes: 5_000,
        spool_bytes: Some(log.spool_bytes()),
        ..LIMITS
    };
    log.set_limits(limits);
    assert!((1..=5_000).contains(&log.cache_bytes()));
    let next = plain(300, 900);
    let full = log.append(Bytes::from(next.bytes()));
    assert!(matches!(full, Err(LogError::SpoolFull { .. })), "{full:?}");
    assert_eq!(drain(&mut reader).0.len(), units[0].bytes().len() * 20);
    log.set_limits(LIMITS);
    append(&log, &next);
    let length = next.bytes().len() as u64;
    assert_eq!(drain(&mut reader), (next.bytes(), length, 0));
}

#[test]
fn memory_stays_within_its_limit() {
    let limits = Limits {
        cache_bytes: 1 << 20,
        segment_bytes: 1 << 20,
        spool_bytes: None,
    };
    let (_, log) = log(limits);
    // Tiny ones are joined: overhead is not what fills the cache.
    let mut key = 100;
    for _ in 0..4_000 {
        append(&log, &plain(key, 300));
        key += 10;
        assert!(log.cache_bytes() <= limits.cache_bytes);
    }
    let mut reader = log.reader(log.oldest_cached()).unwrap();
    let Read::Frames { pieces, .. } = reader.read(usize::MAX).unwrap() else {
        panic!("nothing is in memory");
    };
    let bytes: usize = pieces.iter().map(Bytes::len).sum();
    assert!(bytes as u64 > limits.cache_bytes * 9 / 10, "{bytes}");
    let overhead = pieces.len() as u64 * CHUNK_OVERHEAD;
    assert!(
        overhead < limits.cache_bytes / 10,
        "{} pieces",
        pieces.len()
    );
    // A frame that does not fit comes from the spool, whole.
    let long = plain(key, 3 << 20);
    append(&log, &long);
    assert!(log.cache_bytes() <= limits.cache_bytes);
    let mut reader = log.reader(Lsn::from(key)).unwrap();
    let mut got = Vec::new();
    while got.len() < long.bytes().len() {
        let Read::Frames { pieces, .. } = reader.read(1).unwrap() else {
            panic!("it ends too early");
        };
        let read: usize = pieces.iter().map(Bytes::len).sum();
        assert!(read <= CHUNK_BYTES, "no more than a chunk at once");
        got.extend(pieces.concat());
        let borders = [30 + 21, long.bytes().len() - 56, long.bytes().len()];
        assert_eq!(
            reader.within_frame(),
            !borders.contains(&got.len()),
            "{}",
            got.len()
        );
    }
    assert_eq!(got, long.bytes());
}

#[test]
fn a_full_spool_takes_more_once_some_is_confirmed() {
    let limits = Limits {
        cache_bytes: 0,
        segment_bytes: 1 << 20,
        spool_bytes: Some(10_000),
    };
    let (_, log) = log(limits);
    let mut key = 100;
    let full = (0..20).find_map(|_| {
        let result = log.append(plain(key, 900).bytes());
        key += if result.is_ok() { 10 } else { 0 };
        result.err()
    });
    let full = full.unwrap();
    assert!(matches!(full, LogError::SpoolFull { limit: 10_000, .. }) && full.is_retryable());
    assert_eq!(log.received(), Lsn::from(key));
    log.sync().unwrap();
    assert!(log.retain(Lsn::from(key)).unwrap() > 0);
    append(&log, &plain(key, 900));
    // One that needs almost all of it, when everything before is confirmed.
    log.sync().unwrap();
    log.retain(log.received()).unwrap();
    let long = Bytes::from(plain(key + 10, 6_000).bytes());
    log.append(long).unwrap();
    log.sync().unwrap();
    log.retain(log.received()).unwrap();
    let long = Bytes::from(plain(key + 20, 6_000).bytes());
    // The first attempt ends the full segment, so that it can go.
    assert!(log.append(long.clone()).unwrap_err().is_retryable());
    assert!(log.retain(log.received()).unwrap() > 6_000);
    log.append(long).unwrap();
}

/// Tries again once what is confirmed has gone, as often as a full segment needs.
fn append_at_last(log: &Log<Disk>, unit: &Unit) {
    for _ in 0..3 {
        if log.append(Bytes::from(unit.bytes())).is_ok() {
            return;
        }
        log.sync().unwrap();
        log.retain(log.received()).unwrap();
    }
    panic!(
        "there is no room, with {} bytes in the spool",
        log.spool_bytes()
    );
}

#[test]
fn a_segment_that_fills_the_spool_can_be_removed() {
    let limits = Limits {
        cache_bytes: 0,
        segment_bytes: 1 << 20,
        spool_bytes: Some(10_000),
    };
    let mut taken = 0;
    for length in (8_000..10_000).step_by(10) {
        let (_, log) = log(limits);
        if log.append(Bytes::from(plain(100, length).bytes())).is_ok() {
            taken += 1;
            append_at_last(&log, &plain(110, 900));
        }
        // What does not fit behind a little that is confirmed.
        let (_, log) = self::log(limits);
        append(&log, &plain(100, 900));
        append_at_last(&log, &plain(110, 8_000.max(length.min(9_500))));
    }
    assert!(taken > 150, "{taken}");
}

#[test]
fn a_lower_limit_is_reached_at_last() {
    let (_, log) = log(Limits {
        segment_bytes: 1 << 20,
        ..LIMITS
    });
    for n in 0..20 {
        append(&log, &plain(100 + n * 10, 900));
    }
    log.set_limits(Limits {
        spool_bytes: Some(5_000),
        ..LIMITS
    });
    append_at_last(&log, &plain(400, 900));
    assert!(log.spool_bytes() <= 5_000);
}

#[test]
fn readers_that_slept_through_many_cuts_go_on() {
    let (_, log) = log(LIMITS);
    append(&log, &plain(100, 10));
    let mut between = log.reader(Lsn::from(100)).unwrap();
    drain(&mut between);
    let open = plain(110, 10);
    let half = Bytes::from(open.frames[..2].concat());
    log.append(half.clone()).unwrap();
    let mut within = log.reader(Lsn::from(100)).unwrap();
    drain(&mut within);
    assert!(within.within_unit());
    // Seeks what is still to come.
    let mut ahead = log.reader(Lsn::from(120)).unwrap();
    assert_eq!(
        ahead.read(1).unwrap(),
        Read::Nothing {
            covered: Lsn::from(120)
        }
    );
    for _ in 0..200 {
        log.cut().unwrap();
        assert!(!log.open_unit());
        log.append(half.clone()).unwrap();
    }
    log.append(Bytes::from(open.frames[2..].concat())).unwrap();
    assert_eq!(drain(&mut between).0, open.bytes());
    assert_eq!(within.read(1).unwrap(), Read::Cut);
    assert_eq!(within.read(1).unwrap(), Read::Cut);
    let next = plain(120, 10);
    append(&log, &next);
    assert_eq!(drain(&mut ahead).0, next.bytes());
}

#[test]
fn what_is_cut_while_it_is_read_is_not_served() {
    let (disk, log) = log(Limits {
        cache_bytes: 0,
        ..LIMITS
    });
    append(&log, &plain(100, 10));
    let mut reader = log.reader(Lsn::from(100)).unwrap();
    drain(&mut reader);
    let old = plain(110, 500);
    log.append(old.frames[..2].concat()).unwrap();
    let new = transaction(110, 120, &[[b"U".as_slice(), &[9; 500]].concat()]);
    let other = (Arc::clone(&log), new.clone());
    disk.after_read(move || {
        let (log, new) = other;
        log.cut().unwrap();
        append(&log, &new);
    });
    assert!(drain(&mut reader).0 == new.bytes());
}

#[test]
fn what_is_cut_before_it_is_handed_out_is_replaced() {
    // A reader that has been told what is in force, and one that has not.
    for whole in [true, false] {
        let (_, log) = log(LIMITS);
        let tables: Vec<_> = (0..3).map(|id| relation(id, 0, 2_000)).collect();
        append(&log, &transaction(100, 110, &tables));
        let mut reader = log.reader(Lsn::from(110)).unwrap();
        let first = transaction(110, 120, &[truncate(&[0, 1, 2])]);
        let mut got = Vec::new();
        if whole {
            append(&log, &first);
        }
        let open = plain(120, 10);
        log.append(open.frames[..2].concat()).unwrap();
        if whole {
            // The descriptions do not fit: all but the start of it waits.
            let mut most = 3_000;
            while got.is_empty() || reader.within_unit() {
                let Read::Frames { pieces, .. } = reader.read(most).unwrap() else {
                    panic!("nothing was read");
                };
                got.extend(pieces.concat());
                most = 1;
            }
            assert_eq!(reader.sent(), Lsn::from(120));
        }
        log.cut().unwrap();
        let next = transaction(120, 130, &[truncate(&[2, 1, 0])]);
        append(&log, &next);
        got.extend(drain(&mut reader).0);
        let told: usize = tables.iter().map(|table| table.len() + 30).sum();
        let units = match whole {
            true => vec![first, next],
            false => vec![next],
        };
        let bytes: usize = units.iter().map(|unit| unit.bytes().len()).sum();
        // The session after the cut describes tables again.
        assert_eq!(got.len(), bytes + if whole { told } else { 0 });
        assert!(got.ends_with(&units[units.len() - 1].bytes()[60..]));
    }
}

#[test]
fn a_cut_over_many_segments_survives_a_machine_that_stops() {
    let limits = Limits {
        cache_bytes: 0,
        segment_bytes: 200,
        spool_bytes: None,
    };
    let changes: Vec<_> = (0..6)
        .map(|n| [b"I".as_slice(), &[n; 300]].concat())
        .collect();
    let long = transaction(110, 120, &changes);
    for (changes, seed) in (0..40).flat_map(|changes| (0..10).map(move |seed| (changes, seed))) {
        let (disk, log) = log(limits);
        append(&log, &plain(100, 10));
        for frame in &long.frames[..6] {
            log.append(frame).unwrap();
        }
        if seed % 2 == 0 {
            log.sync().unwrap();
        }
        assert!(disk.segments().len() > 4);
        disk.stop_after(changes);
        let cut = log.cut();
        assert!(cut.is_ok() || disk.has_stopped());
        // Another transaction in its place.
        let units: Vec<_> = (11..16).map(|n| plain(n * 10, 300)).collect();
        let stored = units
            .iter()
            .take_while(|unit| log.append(unit.bytes()).is_ok());
        let stored = stored.count();
        let durable = log.sync();
        let mut random = fastrand::Rng::with_seed(seed);
        let (opened, recovered) = Log::open(disk.after_crash(&mut random), limits).unwrap();
        assert_eq!(recovered.holes, []);
        assert!(durable.is_err() || durable.unwrap() <= recovered.durable);
        let opened = Arc::new(opened);
        let (bytes, ..) = drain(&mut opened.reader(opened.oldest()).unwrap());
        let mut all = plain(100, 10).bytes();
        units[..stored]
            .iter()
            .for_each(|unit| all.extend(unit.bytes()));
        assert!(all.starts_with(&bytes));
    }
}

#[test]
fn what_replaces_a_first_unit_that_was_cut_may_not_be_wanted() {
    let (_, log) = log(LIMITS);
    append(&log, &plain(100, 10));
    log.append(&plain(150, 10).frames[0]).unwrap();
    let mut reader = log.reader(Lsn::from(150)).unwrap();
    log.cut().unwrap();
    append(&log, &plain(120, 10));
    let wanted = plain(150, 20);
    append(&log, &wanted);
    assert!(drain(&mut reader).0 == wanted.bytes());
}

#[test]
fn what_is_passed_by_may_be_removed() {
    let (_, log) = log(Limits {
        cache_bytes: 0,
        segment_bytes: 500,
        ..LIMITS
    });
    // It waits for what is still to come.
    let mut reader = log.reader(Lsn::from(150)).unwrap();
    let units: Vec<_> = (0..6).map(|n| plain(100 + n * 10, 500)).collect();
    units.iter().for_each(|unit| append(&log, unit));
    assert!(log.retain(Lsn::from(150)).unwrap() > 0);
    assert!(drain(&mut reader).0 == units[5].bytes());
}

#[test]
fn what_comes_during_a_sync_needs_another() {
    // The second time a segment is full and another one begins meanwhile.
    for segment_bytes in [10_000, 200] {
        let (disk, log) = log(Limits {
            segment_bytes,
            ..LIMITS
        });
        append(&log, &plain(100, 200));
        let other = Arc::clone(&log);
        disk.after_sync(move || append(&other, &plain(110, 200)));
        assert_eq!(log.sync().unwrap(), Lsn::from(110));
        assert_eq!(
            (log.durable(), log.received()),
            (Lsn::from(110), Lsn::from(120))
        );
        assert_eq!(log.sync().unwrap(), Lsn::from(120));
        let mut random = fastrand::Rng::with_seed(1);
        let (opened, _) = Log::open(disk.after_crash(&mut random), LIMITS).unwrap();
        assert_eq!(opened.durable(), Lsn::from(120));
    }
}

#[test]
fn what_is_removed_while_it_is_read_is_gone() {
    let (disk, log) = log(Limits {
        cache_bytes: 0,
        segment_bytes: 1_000,
        ..LIMITS
    });
    let units: Vec<_> = (0..4).map(|n| plain(100 + n * 10, 900)).collect();
    units.iter().for_each(|unit| append(&log, unit));
    log.sync().unwrap();
    let mut reader = log.reader(Lsn::from(100)).unwrap();
    let other = Arc::clone(&log);
    // What it has open it still gets: the first was read when it was made.
    disk.after_read(move || drop(other.retain(Lsn::from(130))));
    for unit in &units[..2] {
        let Read::Frames { pieces, .. } = reader.read(1).unwrap() else {
            panic!("nothing was read");
        };
        assert!(pieces.concat() == unit.bytes());
    }
    assert!(matches!(reader.read(1), Err(LogError::Gone { .. })));
    let (again, other) = (Arc::clone(&log), Arc::clone(&log));
    disk.after_read(move || drop(other.retain(Lsn::from(140))));
    assert_eq!(
        drain(&mut again.reader(Lsn::from(130)).unwrap()).0,
        units[3].bytes()
    );
}

#[test]
fn a_segment_that_lost_whole_records_is_noticed() {
    let (disk, log) = log(Limits {
        cache_bytes: 0,
        segment_bytes: 1_500,
        ..LIMITS
    });
    let units: Vec<_> = (0..4).map(|n| plain(100 + n * 10, 900)).collect();
    units.iter().for_each(|unit| append(&log, unit));
    log.sync().unwrap();
    let first = disk.segments()[0].clone();
    disk.damage(&first, |bytes| {
        // The second of two, with its header.
        bytes.truncate(bytes.len() - units[1].bytes().len() - 48);
        true
    });
    let (opened, recovered) = Log::open(disk.after_kill(), LIMITS).unwrap();
    let hole = &recovered.holes[0];
    assert_eq!((hole.from, hole.to), (Lsn::from(100), Some(Lsn::from(120))));
    let opened = Arc::new(opened);
    let mut reader = opened.reader(Lsn::from(100)).unwrap();
    let Read::Frames { pieces, .. } = reader.read(1).unwrap() else {
        panic!("nothing was read");
    };
    assert!(pieces.concat() == units[0].bytes());
    match reader.read(1).unwrap_err() {
        LogError::Corrupt {
            segment: 1,
            from,
            to: Some(to),
            ..
        } => assert_eq!((from, to), (Lsn::from(110), Lsn::from(120))),
        error => panic!("{error}"),
    }
    let rest = drain(&mut opened.reader(Lsn::from(120)).unwrap()).0;
    assert!(rest == [units[2].bytes(), units[3].bytes()].concat());
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let (disk, log) = log(LIMITS);
    append(&log, &plain(100, 10));
    let (end, used) = (log.end(), disk.used());
    let unit = plain(110, 10);
    let frames = &unit.frames;
    let refused: [(&str, Vec<u8>); 7] = [
        ("no frame", b"dddddddddddddddd".to_vec()),
        ("half a frame", frames[0][..40].to_vec()),
        ("a change outside", frames[1].clone()),
        ("an end without a beginning", frames[2].clone()),
        (
            "two beginnings",
            [frames[0].clone(), frames[0].clone()].concat(),
        ),
        (
            "another end",
            [frames[0].clone(), plain(120, 1).frames[2].clone()].concat(),
        ),
        (
            "a part of a transaction in progress",
            super::stream::frame(0, b"S\0\0\0\x01\x01"),
        ),
    ];
    for (what, bytes) in refused {
        let error = log.append(Bytes::from(bytes)).unwrap_err();
        assert!(matches!(error, LogError::Frames(_)), "{what}: {error}");
        assert!(!error.is_retryable());
    }
    let early = log.append(Bytes::from(plain(105, 10).bytes())).unwrap_err();
    assert!(matches!(early, LogError::Order { .. }), "{early}");
    assert_eq!((log.end(), disk.used()), (end, used));
    append(&log, &unit);
}

#[test]
fn descriptions_are_bounded_and_forgotten_with_their_session() {
    let (_, log) = log(Limits {
        segment_bytes: 64 << 20,
        ..LIMITS
    });
    let many = |first: u32, tables: u32| -> Vec<Vec<u8>> {
        (first..first + tables)
            .map(|id| relation(id, 0, 200_000))
            .collect()
    };
    let half = u32::try_from(SCHEMA_LIMIT / 200_000 / 2).unwrap();
    append(&log, &transaction(100, 110, &many(0, half)));
    append(&log, &transaction(110, 120, &many(half, half - 2)));
    let one_more = Bytes::from(transaction(120, 130, &many(2 * half, 4)).bytes());
    let error = log.append(one_more.clone()).unwrap_err();
    assert!(
        matches!(
            error,
            LogError::SchemaTooLarge {
                limit: SCHEMA_LIMIT,
                ..
            }
        ),
        "{error}"
    );
    // A reader that begins here is told those that it needs, in portions.
    append(&log, &plain(120, 10));
    let mut reader = log.reader(Lsn::from(120)).unwrap();
    assert_eq!(drain(&mut reader).0, plain(120, 10).bytes());
    let tables: Vec<u32> = (0..2 * half - 2).collect();
    append(&log, &transaction(130, 140, &[truncate(&tables)]));
    let mut reader = log.reader(Lsn::from(120)).unwrap();
    let mut got = 0;
    while let Read::Frames { pieces, .. } = reader.read(1 << 20).unwrap() {
        let read: usize = pieces.iter().map(Bytes::len).sum();
        assert!(read <= 1 << 20);
        got += read;
    }
    assert!(got > SCHEMA_LIMIT - 5 * 200_000);
    log.begin_session().unwrap();
    log.append(Bytes::from(transaction(140, 150, &many(0, 4)).bytes()))
        .unwrap();
    append(&log, &transaction(150, 160, &[truncate(&tables)]));
    let mut reader = log.reader(Lsn::from(150)).unwrap();
    let (bytes, ..) = drain(&mut reader);
    assert!(bytes.len() < 5 * 200_100, "{}", bytes.len());
}

#[test]
fn a_log_is_created_once_and_opened_where_one_is() {
    let disk = Disk::default();
    let refused = Log::open(disk.clone(), LIMITS).unwrap_err();
    assert!(matches!(refused, LogError::NoLog));
    let created = Log::create(disk.clone(), LIMITS, Lsn::from(77)).unwrap();
    assert_eq!(created.durable(), Lsn::from(77));
    let refused = Log::create(disk.clone(), LIMITS, Lsn::from(77)).unwrap_err();
    assert!(matches!(refused, LogError::Exists));
    let (opened, recovered) = Log::open(disk.after_kill(), LIMITS).unwrap();
    assert_eq!(
        (opened.start(), recovered.durable),
        (Lsn::from(77), Lsn::from(77))
    );
    assert_eq!((recovered.dropped_bytes, recovered.holes), (0, vec![]));
    let opened = Arc::new(opened);
    let gone = opened.reader(Lsn::from(76)).unwrap_err();
    assert!(matches!(gone, LogError::Gone { oldest, .. } if oldest == Lsn::from(77)));
}

#[test]
fn another_version_is_left_alone() {
    let (disk, _) = log(LIMITS);
    let name = disk.segments()[0].clone();
    disk.damage(&name, |bytes| {
        bytes[8] = 9;
        let crc = crc32c::crc32c(&bytes[..64]);
        bytes[64..68].copy_from_slice(&crc.to_le_bytes());
        true
    });
    let error = Log::open(disk.clone(), LIMITS).unwrap_err();
    assert!(
        matches!(error, LogError::Version { version: 9, .. }),
        "{error}"
    );
    assert_eq!(disk.segments(), [name]);
}

#[test]
fn the_end_is_told() {
    let (_, log) = log(LIMITS);
    let mut ends = log.watch();
    let now = *ends.borrow_and_update();
    assert_eq!((u64::from(now.position), now.received), (0, Lsn::from(100)));
    let unit = plain(100, 10);
    append(&log, &unit);
    assert!(ends.has_changed().unwrap());
    let now = *ends.borrow_and_update();
    assert_eq!(now.position, log.end());
    assert_eq!((now.received, now.generation), (Lsn::from(110), 0));
    log.cover(Lsn::from(150)).unwrap();
    assert_eq!(ends.borrow_and_update().received, Lsn::from(150));
    assert_eq!(log.durable(), Lsn::from(100));
    assert_eq!(log.sync().unwrap(), Lsn::from(150));
    // Said before.
    log.cover(Lsn::from(150)).unwrap();
    assert!(!ends.has_changed().unwrap());
    log.append(Bytes::from(plain(150, 10).frames[0].clone()))
        .unwrap();
    assert!(matches!(log.cover(Lsn::from(200)), Err(LogError::UnitOpen)));
    assert!(matches!(log.begin_session(), Err(LogError::UnitOpen)));
    assert_eq!(log.sync().unwrap(), Lsn::from(150));
    log.cut().unwrap();
    assert_eq!(ends.borrow_and_update().generation, 1);
}

#[test]
fn an_idle_log_that_is_covered_again_and_again_stays_small() {
    let (disk, log) = log(Limits {
        segment_bytes: 1_000,
        ..LIMITS
    });
    for lsn in 101..1_000 {
        log.cover(Lsn::from(lsn)).unwrap();
        log.sync().unwrap();
        log.retain(Lsn::from(lsn)).unwrap();
        assert!(disk.used() < 2_500);
    }
    let (opened, _) = Log::open(disk.after_kill(), LIMITS).unwrap();
    assert_eq!(opened.durable(), Lsn::from(999));
}

#[test]
fn units_of_every_kind_are_found_by_their_key() {
    let mut random = fastrand::Rng::with_seed(3);
    let sizes = Sizes {
        most_changes: 0,
        most_bytes: 10,
        long_bytes: 10,
    };
    for _ in 0..200 {
        let (_, log) = log(LIMITS);
        let unit = unit(100, sizes, &mut random);
        append(&log, &unit);
        for (from, comes) in [(unit.key, true), (unit.key + 1, false), (unit.end, false)] {
            let mut reader = log.reader(Lsn::from(from)).unwrap();
            let bytes = drain(&mut reader).0;
            assert_eq!(bytes.is_empty(), !comes, "{from} {unit:?}");
        }
    }
}
