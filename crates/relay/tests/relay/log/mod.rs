//! The relay's log against a model: what readers get, what survives a crash, what damage
//! does. `SEED=N` runs one seed, `LOCKSTEP_SEEDS=N` more of them than usual.

mod cases;
mod damage;
mod full_disk;
mod harness;
mod stream;
mod threads;

use self::harness::Harness;
use self::stream::Sizes;
use lockstep_lab::for_tests;
use lockstep_spool::Limits;

/// Runs `test` for some seeds, or for the one that the environment names.
fn seeds(usual: u64, test: impl Fn(fastrand::Rng)) {
    for seed in for_tests::seeds(usual) {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            test(fastrand::Rng::with_seed(seed));
        }));
        if let Err(panic) = caught {
            eprintln!("failed with SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

fn some_limits(random: &mut fastrand::Rng) -> Limits {
    Limits {
        cache_bytes: random.choice([0, 3_000, 20_000, 1 << 20]).unwrap(),
        segment_bytes: random.u64(1_000..20_000),
        spool_bytes: random.choice([None, Some(100_000)]).unwrap(),
    }
}

const SIZES: Sizes = Sizes {
    most_changes: 12,
    most_bytes: 120,
    long_bytes: 5_000,
};

/// Everything but crashes.
fn live(harness: &mut Harness) {
    match harness.random.u8(..42) {
        0..14 => harness.append(),
        14..17 => harness.cover(),
        17 => harness.cut(),
        18..20 => harness.sync(),
        20..22 => harness.retain(),
        22..26 => harness.follow(),
        26 => harness.fill(),
        27 => harness.limit(),
        _ => harness.read(),
    }
    harness.check();
}

#[test]
fn readers_get_what_the_model_says() {
    seeds(100, |mut random| {
        let limits = some_limits(&mut random);
        let mut harness = Harness::new(random, limits, SIZES);
        for _ in 0..200 {
            live(&mut harness);
            if harness.random.u8(..60) == 0 {
                harness.restart(false);
            }
        }
        harness.read_everything(10);
    });
}

#[test]
fn crashes_lose_nothing_that_was_durable() {
    seeds(300, |mut random| {
        let limits = some_limits(&mut random);
        let mut harness = Harness::new(random, limits, SIZES);
        for _ in 0..harness.random.usize(1..6) {
            for _ in 0..harness.random.usize(1..40) {
                live(&mut harness);
            }
            match harness.random.u8(..7) {
                0 => harness.fail_sync(),
                1..4 => harness.stop(),
                4 => {
                    // What a process that was killed has left is not yet on the disk.
                    harness.restart(false);
                    harness.restart(true);
                }
                _ => drop(harness.restart(true)),
            }
            harness.read_everything(2);
        }
    });
}

#[test]
fn frames_of_any_length_pass_through() {
    // Longer than a chunk, a segment, the cache.
    let sizes = Sizes {
        most_changes: 8,
        most_bytes: 40_000,
        long_bytes: 900_000,
    };
    seeds(25, |mut random| {
        let limits = Limits {
            cache_bytes: random.choice([0, 300_000, 2_000_000]).unwrap(),
            segment_bytes: random.u64(100_000..2_000_000),
            spool_bytes: None,
        };
        let mut harness = Harness::new(random, limits, sizes);
        for _ in 0..80 {
            live(&mut harness);
        }
        harness.read_everything(5);
        harness.restart(true);
        harness.read_everything(5);
    });
}
