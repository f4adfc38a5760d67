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
//! | everything arrives | at the end |
//!
//! `SEED=N` runs one seed, `LOCKSTEP_SEEDS=FROM-TO` those, `LOCKSTEP_SEEDS=N` the first N.

mod source;
mod target;
mod world;

use lockstep_apply::fault::Fault;
use lockstep_lab::for_tests;

use world::{Plant, Seen, World};

/// Seeds of a usual run.
const SEEDS: u64 = 1_000;

#[test]
fn the_target_is_always_what_the_source_was() {
    let mut all = Seen::default();
    let seeds = for_tests::seeds(SEEDS);
    let is_one = seeds.clone().count() == 1;
    for seed in seeds {
        let mut world = World::new(seed, None);
        if let Err(words) = world.run() {
            panic!(
                "{words}; again with: SEED={seed} scripts/cargo test -p lockstep-apply simulation"
            );
        }
        all.add(&world.seen);
    }
    eprintln!("simulation: {all:?}");
    // What is never come by is not checked.
    assert!(is_one || all.least() > 20, "{all:?}");
}

/// Each fault is found, and within how many seeds.
#[test]
fn faults_are_found() {
    let plants = [
        Plant::In(Fault::CommitsOutOfTurn),
        Plant::In(Fault::FlushedIsApplied),
        Plant::In(Fault::AgainWithoutRollback),
        Plant::In(Fault::BoundDoesNotWait),
        Plant::In(Fault::HoldIgnored),
        Plant::In(Fault::CoveredInside),
        Plant::In(Fault::NeverCrowded),
        Plant::OriginAlone,
    ];
    for plant in plants {
        let found = (1..=SEEDS).find_map(|seed| {
            let words = World::new(seed, Some(plant)).run().err()?;
            Some((seed, words))
        });
        let (seed, words) = found.unwrap_or_else(|| panic!("{plant:?} is not found"));
        eprintln!("{plant:?}: seed {seed}: {words}");
    }
}
