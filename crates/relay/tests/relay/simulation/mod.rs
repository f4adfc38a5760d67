//! Primary, relay and subscribers in one thread without a clock or a socket: what a run
//! does depends on its seed alone.
//!
//! What decides is the relay's own: its log, receiver, senders, slots and adoptions, over
//! disks in memory. What drives them in a relay, threads and tasks, is a step of the world
//! here. Whatever stops, is lost or is refused: subscribers get each transaction in order,
//! byte for byte, once but for what they had not made durable; the primary is told of
//! nothing that a crash of the machine could take back; no slot is forgotten.
//!
//! `SEED=N` runs one seed, `LOCKSTEP_SEEDS=FROM-TO` those, `LOCKSTEP_SEEDS=N` the first N;
//! `SHOW=1` says each step.

mod counts;
mod feed;
mod house;
mod relay;
mod sessions;
mod slots;
mod subscriber;
mod world;

use counts::Counts;
use lockstep_intake::fault::IntakeFault;
use lockstep_lab::seeds;
use lockstep_relay::fault::Fault;
use lockstep_simulation::panic_words;
use world::World;

/// Seeds of an ordinary run.
const SEEDS: u64 = 120;

/// Seeds with which everything happens that can.
const ENOUGH: u64 = 120;

#[test]
fn nothing_is_lost_and_nothing_comes_twice() {
    let mut counts = Counts::default();
    let test = "lockstep-relay --test relay simulation::";
    let seeds = seeds::all_hold(SEEDS, test, |seed| {
        panic_words(|| counts.add(&World::new(seed, None).run()))
    });
    println!("simulation: seeds {seeds:?} hold: {counts}");
    if seeds.count() as u64 >= ENOUGH {
        assert_eq!(counts.missing(), Vec::<&str>::new(), "never happened");
    }
}

/// Each planted fault, and what is said where it is found.
const FAULTS: [(Fault, &str); 9] = [
    (Fault::HeadersNotCounted, "the spool has"),
    (
        Fault::Intake(IntakeFault::ConfirmsReceived),
        "was confirmed to the primary",
    ),
    (Fault::ErrorWithinMessage, "an error within a message"),
    (Fault::DropsBeforeAdding, "nobody has slot"),
    (
        Fault::FinishesWithinMessage,
        "the copy ends within a message",
    ),
    (Fault::SwitchesLate, "another message comes"),
    (Fault::GivesBackUnconfirmed, "was confirmed"),
    (
        Fault::Intake(IntakeFault::AppliedIsFlushed),
        "was said to be applied",
    ),
    (Fault::Intake(IntakeFault::ComparesNothing), "other WAL"),
];

/// A planted fault is found within this many seeds.
const FOUND_WITHIN: u64 = SEEDS;

#[test]
fn planted_faults_are_found() {
    for (fault, words) in FAULTS {
        seeds::find(&fault, FOUND_WITHIN, words, |seed| {
            panic_words(|| World::new(seed, Some(fault)).run())
        });
    }
}

#[test]
fn a_seed_repeats_its_run() {
    let run = || World::new(7, None).run().to_string();
    assert_eq!(run(), run());
}
