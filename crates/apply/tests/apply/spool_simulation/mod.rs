//! A replica's spool in one thread without a clock, a socket or a file: what a run does depends on its
//! seed alone.
//!
//! The host, its driver and receiver, the log and what reads it are the replica's own, over a disk in memory.
//! The source streams, breaks off at any step, sends again, is restarted, changes its timeline. The
//! process and its machine stop at any step, in the middle of a write too; the disk runs full and fails. The
//! target commits, and may lose what it has not on disk.
//!
//! | what is checked | when |
//! |---|---|
//! | what is confirmed would survive a crash of the machine; nothing is said to be applied that the target has not committed; neither goes back | each confirmation |
//! | transactions come whole, in order, byte for byte, none twice, described as they are | each message to the target |
//! | nothing is covered that has not come | each time that something is covered |
//! | the target never has a timeline of which the spool does not know | each message to the target |
//! | the spool stays within its limit | each step |
//! | nothing is refused, and no error comes that was not arranged | always |
//! | everything arrives once nothing goes wrong any more, and is confirmed | at the end |
//! | a source that does not go on is refused, now and by the next process: one that was restored from older files, with or without having written past the log's end, that parted from the log, is another cluster, or whose slot was moved or is lost. Nothing of it is taken in, nothing is confirmed to it | after the end |
//!
//! `SEED=N` runs one seed, `LOCKSTEP_SEEDS=FROM-TO` those, `LOCKSTEP_SEEDS=N` the first N; `SHOW=1` says
//! each step.

mod counts;
mod source;
mod target;
mod world;

use counts::Counts;
use lockstep_apply::fault::Fault;
use lockstep_intake::fault::IntakeFault;
use lockstep_lab::seeds;
use lockstep_simulation::panic_words;
use world::{Plant, World};

/// Seeds of a usual run.
const SEEDS: u64 = 200;

#[test]
fn nothing_is_lost_nothing_comes_twice_and_a_source_that_was_set_back_is_noticed() {
    let mut counts = Counts::default();
    let seeds = seeds::all_hold(SEEDS, "lockstep-apply spool_simulation", |seed| {
        panic_words(|| counts.add_all(&World::new(seed, None).run()))
    });
    println!("simulation of the spool: seeds {seeds:?} hold: {counts}");
    if seeds.count() as u64 >= SEEDS {
        assert_eq!(counts.missing(), Vec::<&str>::new(), "never happened");
    }
}

const fn intake(fault: IntakeFault) -> Plant {
    Plant::In(Fault::Intake(fault))
}

/// Each planted fault, seeds within which it is found, and what is said then.
const PLANTS: [(Plant, u64, &str); 12] = [
    (
        intake(IntakeFault::ConfirmsReceived),
        200,
        "a crash would leave",
    ),
    (
        intake(IntakeFault::AppliedIsFlushed),
        20,
        "was said to be applied",
    ),
    (intake(IntakeFault::ComparesNothing), 50, "other WAL"),
    (intake(IntakeFault::CoversInside), 50, "still arriving"),
    // What is dropped is the first message of a transaction or its last.
    (intake(IntakeFault::FullIsDropped), 50, "transaction"),
    (intake(IntakeFault::UnitIsNotCut), 20, "still arriving"),
    (Plant::In(Fault::SpoolTakesAny), 50, "other WAL"),
    (Plant::In(Fault::SpoolForgetsCommitted), 200, "begins at"),
    (Plant::In(Fault::SpoolTimelineNotKept), 20, "timeline"),
    (Plant::In(Fault::SpoolTimelineKnownFirst), 200, "timeline"),
    (Plant::In(Fault::SpoolHandsOutParts), 20, "a transaction"),
    (Plant::HeadersNotCounted, 200, "the spool has"),
];

#[test]
fn planted_faults_are_found() {
    for (plant, seeds, words) in PLANTS {
        seeds::find(&plant, seeds, words, |seed| {
            panic_words(|| World::new(seed, Some(plant)).run())
        });
    }
}

#[test]
fn a_seed_repeats_its_run() {
    let run = || World::new(7, None).run();
    assert_eq!(run(), run());
}
