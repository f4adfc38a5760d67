//! What damaged files do: units are served as they were written or not at all, and whoever
//! misses some is told.

use std::sync::Arc;

use bytes::Bytes;
use lockstep_spool::{Limits, Log, LogError, Read};
use lockstep_wire::Lsn;

use super::harness::{Harness, START};
use super::stream::{Model, Sizes, unit};
use lockstep_simulation::disk::Disk;

const SIZES: Sizes = Sizes {
    most_changes: 5,
    most_bytes: 60,
    long_bytes: 1_500,
};

/// How a reader's reading ended.
#[derive(Debug)]
enum Ended {
    AtTheEnd,
    Corrupt { from: Lsn, to: Option<Lsn> },
}

/// Reads from `from` on. What it gets must be what was written.
fn read(log: &Arc<Log<Disk>>, model: &Model, from: u64) -> Ended {
    let corrupt = |error| match error {
        LogError::Corrupt { from, to, .. } => Ended::Corrupt { from, to },
        // The oldest segment was removed: that looks like retention.
        LogError::Gone { from, oldest } => Ended::Corrupt {
            from,
            to: Some(oldest),
        },
        error => panic!("{error}"),
    };
    let mut reader = match log.reader(Lsn::from(from)) {
        Ok(reader) => reader,
        Err(error) => return corrupt(error),
    };
    let expected = model.expected(from);
    let mut got = Vec::new();
    loop {
        match reader.read(10_000) {
            Ok(Read::Frames { pieces, .. }) => {
                got.extend(pieces.concat());
                assert_eq!(
                    got,
                    expected.bytes[..got.len()],
                    "served what was not written"
                );
            }
            Ok(Read::Nothing { .. }) => {
                assert_eq!(got.len(), expected.bytes.len(), "silently left out");
                return Ended::AtTheEnd;
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                let ended = expected.ends.iter().rev().find(|end| end.0 <= got.len());
                assert_eq!(
                    u64::from(reader.sent()),
                    ended.map_or(from, |end| end.1.max(from))
                );
                return corrupt(error);
            }
        }
    }
}

/// A log of several segments, all of it durable.
fn written(mut random: fastrand::Rng) -> Harness {
    let limits = Limits {
        cache_bytes: 0,
        segment_bytes: random.u64(500..4_000),
        spool_bytes: None,
    };
    let mut harness = Harness::new(random, limits, SIZES);
    for _ in 0..harness.random.usize(2..25) {
        harness.append();
        harness.cover();
    }
    harness.sync();
    harness.restart(false);
    harness
}

/// Damages one file; says which and how.
fn damage(harness: &mut Harness) -> String {
    let names = harness.disk.segments();
    let random = &mut harness.random;
    let number = random.usize(..names.len());
    let name = &names[number];
    let length = harness.disk.length(name);
    let offset = random.usize(..length);
    let how = match random.u8(..8) {
        0 => {
            harness.disk.damage(name, |_| false);
            "removed".to_owned()
        }
        1 => {
            harness.disk.damage(name, |bytes| {
                bytes.truncate(offset);
                true
            });
            format!("cut to {offset} of {length}")
        }
        2 => {
            let more = random.usize(1..200);
            harness.disk.damage(name, |bytes| {
                bytes.extend(std::iter::repeat_n(random.u8(..), more));
                true
            });
            format!("{more} bytes longer")
        }
        3 => {
            let zeros = random.usize(1..600);
            harness.disk.damage(name, |bytes| {
                bytes
                    .iter_mut()
                    .skip(offset)
                    .take(zeros)
                    .for_each(|byte| *byte = 0);
                true
            });
            format!("{zeros} zeros at {offset}")
        }
        _ => {
            harness.disk.flip(name, offset, 1 << random.u8(..8));
            format!("changed at {offset}")
        }
    };
    format!("{name} {how}")
}

#[test]
fn damage_is_told_and_never_served() {
    super::seeds(300, |random| {
        let mut harness = written(random);
        let received = harness.received();
        let oldest = u64::from(harness.log.oldest());
        let segments = harness.disk.segments().len();
        let how = damage(&mut harness);
        let opened = Log::open(harness.disk.clone(), harness.limits);
        let (log, recovered) = match opened {
            Ok((log, recovered)) => (Arc::new(log), recovered),
            Err(LogError::Corrupt { .. } | LogError::NoLog) => {
                assert_eq!(segments, 1, "{how}: something could be read");
                return;
            }
            Err(error) => panic!("{how}: {error}"),
        };
        let durable = u64::from(recovered.durable);
        assert_eq!(
            durable, received,
            "{how}: what was durable is taken for lost"
        );
        harness.model.session = true;
        // The log goes on.
        let mut at = durable;
        for _ in 0..5 {
            let mut next = unit(at, SIZES, &mut harness.random);
            next.session = std::mem::take(&mut harness.model.session);
            at = next.end;
            log.append(Bytes::from(next.bytes())).unwrap();
            harness.model.units.push(next);
        }
        let mut places = vec![oldest, START];
        places.extend((0..10).map(|_| harness.random_position()));
        for from in places.into_iter().filter(|from| *from >= oldest) {
            match read(&log, &harness.model, from) {
                Ended::AtTheEnd => {}
                Ended::Corrupt { from: sent, to } => {
                    assert!(u64::from(sent) >= from);
                    // There is only one damage.
                    let to = u64::from(to.unwrap());
                    assert!(to > from);
                    assert!(
                        matches!(read(&log, &harness.model, to), Ended::AtTheEnd),
                        "{how}"
                    );
                }
            }
        }
    });
}

#[test]
fn a_changed_byte_anywhere_is_noticed() {
    // Every byte of a small log, one after the other.
    let mut random = fastrand::Rng::with_seed(1);
    let limits = Limits {
        cache_bytes: 0,
        segment_bytes: 600,
        spool_bytes: None,
    };
    let mut harness = Harness::new(random.fork(), limits, SIZES);
    while harness.disk.segments().len() < 3 {
        harness.append();
        harness.sync();
    }
    harness.restart(false);
    for (number, name) in harness.disk.segments().into_iter().enumerate() {
        for offset in 0..harness.disk.length(&name) {
            let disk = harness.disk.copy();
            disk.flip(&name, offset, 1 << random.u8(..8));
            let (log, recovered) = Log::open(disk, limits).unwrap();
            let log = Arc::new(log);
            let cut = recovered.dropped_bytes > 0;
            let mut model = harness.model.clone();
            model
                .units
                .retain(|unit| unit.end <= u64::from(recovered.durable));
            let ended = read(&log, &model, START);
            let noticed = cut || matches!(ended, Ended::Corrupt { .. });
            assert!(noticed, "byte {offset} of segment {number}");
        }
    }
}
