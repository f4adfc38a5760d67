//! A primary, a node and the node's agent in one thread without a clock or a socket: what a run does
//! depends on its seed alone.
//!
//! The judge is the agent's own. The primary writes or rests; the node replays, pauses, is slow, catches up
//! in leaps, crashes; answers are lost or late; either link is cut; the primary fails over, and the node
//! follows, late or never; the agent starts anew; its clock jumps ahead or back.
//!
//! | what is checked | when |
//! |---|---|
//! | the staleness that is said is never smaller than the true one | each step |
//! | a node of door `fresh` that is in has data within the bound | each step |
//! | a node that is current is told so within two intervals | after each calm |
//! | a node that answers is never out, so that a pool of late nodes is not empty | each step |
//! | a node that is silent for long is out; one that never follows a failover, too | each step |
//! | a catch-up changes the state at most twice | runs of a catch-up |
//! | a node that returns begins with a small share, and gets its whole share in time | each return |
//! | a node of `reports` stays in, however late | runs of reports |
//! | a node that is current is in within 5 s | after each calm |
//!
//! `SEED=N` runs one seed, `LOCKSTEP_SEEDS=FROM-TO` those, `LOCKSTEP_SEEDS=N` the first N.

mod primary;
mod world;

use lockstep_lab::for_tests;
use lockstep_pool::fault::Fault;

use world::{Seen, World};

/// Seeds of a usual run.
const SEEDS: u64 = 400;

#[test]
fn what_is_said_of_a_node_is_never_better_than_the_truth() {
    let mut all = Seen::default();
    let seeds = for_tests::seeds(SEEDS);
    let is_one = seeds.clone().count() == 1;
    for seed in seeds {
        let mut world = World::new(seed, None);
        if let Err(words) = world.run() {
            panic!(
                "{words}; again with: SEED={seed} scripts/cargo test -p lockstep-pool --test pool simulation"
            );
        }
        all.add(&world.seen);
    }
    eprintln!("simulation: {all:?}");
    // What is never come by is not checked.
    assert!(is_one || all.least() > 20, "{all:?}");
}

/// Each planted fault, and what is said where it is found.
const FAULTS: [(Fault, &str); 14] = [
    (Fault::CountsFromAnswer, "the truth is"),
    (Fault::TimelinesIgnored, "the truth is"),
    (Fault::ReceivedIsShown, "the truth is"),
    (Fault::ClockBelieved, "the truth is"),
    (Fault::LossIgnored, "the truth is"),
    (Fault::SilenceKeepsFigure, "the truth is"),
    (Fault::ThinsWrongly, "the truth is"),
    (Fault::OnlyNewestQuestion, "is current, and"),
    (Fault::ReturnsAtOnce, "changes of state"),
    (Fault::LateIsOut, "the pool may be empty"),
    (Fault::SwitchPointIgnored, "the pool may be empty"),
    (Fault::RisesAtOnce, "begins with"),
    (Fault::SilenceIsFine, "has been silent"),
    (Fault::BoundForReports, "is of reports"),
];

#[test]
fn faults_are_found() {
    for (fault, expected) in FAULTS {
        let found = (1..=SEEDS).find_map(|seed| {
            let words = World::new(seed, Some(fault)).run().err()?;
            words.contains(expected).then_some((seed, words))
        });
        let Some((seed, words)) = found else {
            panic!("{fault:?} is not found in {SEEDS} seeds by: {expected}");
        };
        eprintln!("{fault:?}: seed {seed}: {words}");
    }
}

#[test]
fn a_seed_repeats_its_run() {
    let run = || {
        let mut world = World::new(7, None);
        world.run().unwrap();
        format!("{:?}", world.seen)
    };
    assert_eq!(run(), run());
}
