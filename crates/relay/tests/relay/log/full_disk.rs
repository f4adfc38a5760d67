//! A disk that is full before the spool's limit is reached.

use bytes::Bytes;
use lockstep_simulation::disk::Disk;
use lockstep_spool::{Limits, Log};
use lockstep_wire::Lsn;

use super::cases::{append, log, plain};

const LIMITS: Limits = Limits {
    cache_bytes: 0,
    segment_bytes: 1 << 20,
    spool_bytes: Some(1 << 30),
};

/// A disk that is full before the limit is reached, and long before a segment is.
#[test]
fn a_disk_with_room_for_less_than_a_segment_is_a_limit() {
    let (disk, log) = log(LIMITS);
    disk.set_room(Some(disk.used() + 10_000));
    let mut refused = 0;
    for number in 0..100 {
        let unit = Bytes::from(plain(100 + number * 10, 900).bytes());
        if let Err(error) = log.append(unit.clone()) {
            assert!(error.is_retryable(), "{error}");
            assert!(error.to_string().contains("disk is full"), "{error}");
            refused += 1;
            // All is confirmed, so the segment that has filled the disk goes.
            log.sync().unwrap();
            log.retain(log.received()).unwrap();
            log.append(unit).unwrap();
        }
    }
    assert!((5..20).contains(&refused), "{refused}");
    // Nothing is lost once there is room: what came last is read.
    disk.set_room(None);
    append(&log, &plain(2_000, 900));
    assert!(log.spool_bytes() < 11_000, "{}", log.spool_bytes());
}

/// However much is left behind the last write that fits, another segment can follow.
#[test]
fn a_disk_that_is_full_to_the_last_byte_has_room_again() {
    let unit = |number: u64| Bytes::from(plain(100 + number * 10, 900).bytes());
    for left in (0..1_500).step_by(7) {
        let (disk, log) = log(LIMITS);
        disk.set_room(Some(disk.used() + 5_000 + left));
        let full = (0..)
            .find(|number| log.append(unit(*number)).is_err())
            .unwrap();
        log.sync().unwrap();
        assert!(log.retain(log.received()).unwrap() > 900, "{left}");
        log.append(unit(full)).unwrap();
    }
}

/// Each write ends in the middle of a unit: what follows the cut comes in the next segment.
#[test]
fn a_full_disk_has_room_again_once_a_begun_unit_is_cut() {
    let (disk, log) = log(LIMITS);
    disk.set_room(Some(disk.used() + 10_000));
    let units: Vec<_> = (0..100).map(|n| plain(100 + n * 10, 900)).collect();
    let frames: Vec<_> = units.iter().flat_map(|unit| unit.frames.clone()).collect();
    let make_room = |log: &Log<Disk>| {
        log.sync().unwrap();
        log.retain(log.received()).unwrap()
    };
    let (mut next, mut cuts) = (0, 0);
    while let Some(frame) = frames.get(next) {
        next += 1;
        let Err(error) = log.append(Bytes::from(frame.clone())) else {
            assert!(!log.standing().cut_makes_room);
            continue;
        };
        assert!(error.is_retryable(), "{error}");
        next -= 1;
        if make_room(&log) > 0 {
            continue;
        }
        assert!(log.standing().cut_makes_room, "{next} of {}", frames.len());
        log.cut().unwrap();
        cuts += 1;
        assert!(make_room(&log) > 0);
        log.begin_session().unwrap();
        // The unit comes again, from its beginning.
        let whole = units
            .iter()
            .filter(|unit| Lsn::from(unit.end) <= log.received())
            .count();
        next = units.iter().take(whole).map(|unit| unit.frames.len()).sum();
    }
    assert!(cuts > 3, "{cuts}");
    assert_eq!(log.received(), Lsn::from(units.last().unwrap().end));
}
