//! Many threads at once on a real file system: one appends, one makes durable, one removes,
//! several read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use bytes::Bytes;
use lockstep_spool::{FileStorage, Limits, Log, LogError, Read};
use lockstep_wire::Lsn;
use tokio::sync::watch;

use super::stream::{Unit, transaction};

const UNITS: u64 = 3_000;
const READERS: u64 = 4;
const FIRST: u64 = 1_000;
const STEP: u64 = 10;

/// What the unit with this key holds; readers know it as well.
fn unit_of(key: u64) -> Unit {
    let bytes = match key / STEP % 211 {
        0 => 600_000,
        _ => usize::try_from(key * 7919 % 3_000).unwrap(),
    };
    let change = [b"I".as_slice(), &key.to_le_bytes(), &vec![1; bytes]].concat();
    transaction(key, key + STEP, &[change])
}

struct Shared {
    log: Arc<Log<FileStorage>>,
    /// End of what each reader has.
    have: Vec<AtomicU64>,
    done: AtomicBool,
    /// A thread has failed: the others end as well.
    failed: watch::Sender<bool>,
}

/// Tells the others if its thread fails.
struct Alarm<'a>(&'a Shared);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.failed.send_replace(true);
        }
    }
}

impl Shared {
    fn slowest(&self) -> u64 {
        let have = self.have.iter().map(|have| have.load(Ordering::SeqCst));
        have.min().unwrap()
    }
}

fn append(shared: &Shared, mut random: fastrand::Rng) {
    let _alarm = Alarm(shared);
    let mut key = FIRST;
    while key < FIRST + UNITS * STEP {
        let unit = unit_of(key);
        let part = random.usize(0..3);
        let (first, rest) = (unit.frames[..part].concat(), unit.frames[part..].concat());
        let append = |bytes: Vec<u8>| {
            // A full spool: the readers are behind.
            loop {
                match shared.log.append(Bytes::from(bytes.clone())) {
                    Ok(()) => return,
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
                assert!(!*shared.failed.borrow());
                thread::yield_now();
            }
        };
        append(first);
        if random.u8(..40) == 0 {
            shared.log.cut().unwrap();
            continue;
        }
        append(rest);
        key += STEP;
    }
}

fn read(shared: &Shared, number: usize, mut random: fastrand::Rng) {
    let _alarm = Alarm(shared);
    let mut ends = shared.log.watch();
    let mut failed = shared.failed.subscribe();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    let mut key = FIRST;
    while key < FIRST + UNITS * STEP {
        let mut reader = shared.log.reader(Lsn::from(key)).unwrap();
        let mut got = Vec::new();
        loop {
            ends.borrow_and_update();
            match reader.read(random.usize(1..400_000)) {
                Ok(Read::Frames { pieces, .. }) => got.extend(pieces.concat()),
                Ok(Read::Nothing { .. }) => runtime.block_on(async {
                    tokio::select! {
                        changed = ends.changed() => changed.unwrap(),
                        _ = failed.wait_for(|failed| *failed) => panic!("another thread failed"),
                    }
                }),
                // What was got of the open unit is void.
                Ok(Read::Cut) => break,
                Ok(Read::Limit) => panic!("there is no limit"),
                Err(error) => panic!("{error}"),
            }
            let mut whole = 0;
            while key < u64::from(reader.sent()) {
                let expected = unit_of(key).bytes();
                assert_eq!(got[whole..whole + expected.len()], expected);
                whole += expected.len();
                key += STEP;
            }
            got.drain(..whole);
            shared.have[number].store(key, Ordering::SeqCst);
            if key == FIRST + UNITS * STEP {
                assert!(got.is_empty());
                return;
            }
        }
    }
}

#[test]
fn threads_do_not_disturb_each_other() {
    for (seed, cache_bytes) in [(1, 0), (2, 100_000), (3, 4 << 20)] {
        let folder = tempfile::tempdir().unwrap();
        let limits = Limits {
            cache_bytes,
            segment_bytes: 1 << 20,
            spool_bytes: Some(8 << 20),
        };
        let storage = FileStorage::new(folder.path()).unwrap();
        let log = Arc::new(Log::create(storage, limits, Lsn::from(FIRST)).unwrap());
        let mut random = fastrand::Rng::with_seed(seed);
        let shared = Shared {
            log,
            have: (0..READERS).map(|_| AtomicU64::new(FIRST)).collect(),
            done: AtomicBool::new(false),
            failed: watch::Sender::new(false),
        };
        thread::scope(|scope| {
            let shared = &shared;
            let (for_writer, for_readers) = (random.fork(), random.fork());
            let mut for_keeper = random.fork();
            let keeper = scope.spawn(move || {
                let _alarm = Alarm(shared);
                while !shared.done.load(Ordering::SeqCst) {
                    let durable = shared.log.sync().unwrap();
                    assert!(durable <= shared.log.received());
                    match shared.log.retain(Lsn::from(shared.slowest())) {
                        Ok(_) => {}
                        Err(LogError::Gone { .. }) => unreachable!(),
                        Err(error) => panic!("{error}"),
                    }
                    // The operator changes the cache, in the middle of anything.
                    let cache = for_keeper.choice([0, 60_000, cache_bytes]).unwrap();
                    shared.log.set_limits(Limits {
                        cache_bytes: cache.min(cache_bytes),
                        ..limits
                    });
                    thread::yield_now();
                }
            });
            let mut others = vec![scope.spawn(move || append(shared, for_writer))];
            for number in 0..shared.have.len() {
                let mut random = for_readers.clone();
                random.seed(seed * 100 + number as u64);
                others.push(scope.spawn(move || read(shared, number, random)));
            }
            let results: Vec<_> = others.into_iter().map(|other| other.join()).collect();
            shared.done.store(true, Ordering::SeqCst);
            keeper.join().unwrap();
            results.into_iter().for_each(|result| result.unwrap());
        });
        let end = Lsn::from(FIRST + UNITS * STEP);
        assert_eq!(shared.log.sync().unwrap(), end);
        assert!(shared.log.cache_bytes() <= cache_bytes);
        drop(shared);
        let storage = FileStorage::new(folder.path()).unwrap();
        let (log, recovered) = Log::open(storage, limits).unwrap();
        assert_eq!((log.durable(), recovered.holes), (end, vec![]));
    }
}
