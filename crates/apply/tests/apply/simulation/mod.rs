//! Apply over a source and a target in memory.
//!
//! The real session, merger, order, turn, work and positions are driven one step at a time, in an
//! order that a seed decides; source, target and its locks, catalog and clock are the simulation's.
//! Processes and the target die at any step (commits that are not on disk may be lost), rows and
//! tables stand in the way of changes, somebody holds the replica or pauses it.
//!
//! | what is checked | when |
//! |---|---|
//! | the target is what the source was after one of its commits: nothing left out, nothing twice | each commit |
//! | commits go in the source's order | each commit |
//! | nothing is told flushed that is not on disk, or applied that is not committed; none goes back | each message to the source |
//! | the target stands at or beyond what the source was told | each start |
//! | no row is missing, and no change is refused while nothing is in the way | always |
//! | a replica that is blocked has all before its transaction | each block |
//! | a hold that is acknowledged is one | each hold |
//! | jobs and memory stay within their limits | each job, each message |
//! | with a frequency: each commit is the next cycle, none begins too early or takes what came after its beginning, and each request for one is answered | each commit, each beginning, at the end |
//! | a command is made while nobody else has a transaction open, and each change has the shape that its tables have by then | each command, each change |
//! | everything arrives | at the end |
//!
//! `SEED=N` runs one seed, `LOCKSTEP_SEEDS=FROM-TO` those, `LOCKSTEP_SEEDS=N` the first N; `SHOW=1` says
//! what happens.

mod cycles;
mod seen;
mod silence;
mod source;
mod target;
mod world;
mod writers;

use std::time::Duration;

use lockstep_apply::fault::Fault;
use lockstep_lab::seeds;

use seen::Seen;
use world::{Long, Plant, World};

/// Seeds of a usual run.
const SEEDS: u64 = 1_000;

#[test]
fn the_target_is_always_what_the_source_was() {
    let mut all = Seen::default();
    let seeds = seeds::all_hold(SEEDS, "lockstep-apply simulation", |seed| {
        let mut world = World::new(seed, None);
        let wrong = world.run().err();
        all.add(&world.seen);
        wrong
    });
    eprintln!("simulation: {all:?}");
    // What is never come by is not checked.
    assert!(seeds.count() == 1 || all.least() > 20, "{all:?}");
}

/// A cycle each minute, with all that goes wrong elsewhere.
#[test]
fn a_day_of_cycles_with_faults_ends_equal() {
    const HOURS: u32 = 24;
    let long = Long {
        frequency: Duration::from_secs(60),
        lasts: Duration::from_secs(3600) * HOURS,
        transactions: 60 * HOURS as usize,
    };
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(1);
    let mut world = World::long(seed, long);
    assert_eq!(world.run().err(), None, "seed {seed}");
    let all = world.seen;
    eprintln!("simulation: {HOURS} hours of cycles, seed {seed}: {all:?}");
    let minutes = 60 * u64::from(HOURS);
    assert!(all.cycles > minutes, "{all:?}");
    assert!(
        all.crashes > minutes / 10 && all.cycles_again > minutes / 10,
        "{all:?}"
    );
}

/// A hold is let go while a cycle has a transaction held back, and another comes before the cycle ends.
#[test]
fn what_is_held_back_in_a_cycle_is_the_next_ones() {
    for seed in [5_420, 5_708] {
        assert_eq!(World::new(seed, None).run().err(), None, "seed {seed}");
    }
}

/// Each planted fault, seeds within which it is found, and what is said then.
const PLANTS: [(Plant, u64, &str); 16] = [
    (Plant::In(Fault::CommitsOutOfTurn), 100, "after a commit"),
    (
        Plant::In(Fault::FlushedIsApplied),
        20,
        "flushed, durable is",
    ),
    (
        Plant::In(Fault::AgainWithoutRollback),
        50,
        "nothing is in the way",
    ),
    (Plant::In(Fault::BoundDoesNotWait), 100, "after a commit"),
    (Plant::In(Fault::HoldIgnored), 100, "held at"),
    (Plant::In(Fault::CaughtUpTooSoon), 500, "held at"),
    (Plant::In(Fault::BlocksTooSoon), 1_000, "blocked at"),
    (
        Plant::In(Fault::HandedIsApplied),
        20,
        "applied, committed is",
    ),
    (
        Plant::In(Fault::CoveredInside),
        200,
        "applied, committed is",
    ),
    (
        Plant::In(Fault::NeverCrowded),
        20,
        "over the limit of memory",
    ),
    (Plant::In(Fault::CycleHasNoEnd), 100, "begun for"),
    (
        Plant::In(Fault::CycleCommitsParts),
        100,
        "outside of a cycle",
    ),
    (
        Plant::In(Fault::ReadsOnAtCommand),
        200,
        "nothing is in the way",
    ),
    (Plant::ForgetsCycles, 100, "is committed as"),
    (Plant::OriginAlone, 200, "flushed, durable is"),
    (Plant::OpensUnflushed, 50, "flushed, durable is"),
];

#[test]
fn faults_are_found() {
    for (plant, seeds, expected) in PLANTS {
        seeds::find(&plant, seeds, expected, |seed| {
            World::new(seed, Some(plant)).run().err()
        });
    }
}
