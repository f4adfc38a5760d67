//! Who is told how a run goes: the library says what happens, whoever starts a run shows it.

use std::time::Duration;

use crate::trial::{Stage, Tick};

/// Hears of a run while it goes on.
pub trait Audience {
    /// What is ahead, before anything else is said.
    fn expect(&mut self, ahead: Ahead);
    /// One line about the run.
    fn say(&mut self, line: &str);
    /// A step or trial begins.
    fn begin(&mut self, name: &str);
    /// It is over, with one line about what came of it.
    fn end(&mut self, result: &str);
    /// A stage of a trial begins.
    fn stage(&mut self, stage: Stage);
    /// A moment of a trial; twice a second under load.
    fn tick(&mut self, tick: &Tick);
    /// The run is over; only its result is still to come.
    fn finish(&mut self);
    /// One line of the result.
    fn result(&mut self, line: &str);
}

/// What a run is made of.
#[derive(Debug, Clone)]
pub enum Ahead {
    /// As many steps, each of which takes about as long as the others.
    Steps(usize),
    /// Trials, whose load has a known length.
    Trials(Trials),
}

/// Trials one after the other.
#[derive(Debug, Clone)]
pub struct Trials {
    /// Each trial, in order.
    pub phases: Vec<Phase>,
    /// A first guess of what each takes before its load.
    pub preparation: Duration,
    /// The part of each load that is not measured.
    pub warmup: Duration,
}

/// A trial with its preparation.
#[derive(Debug, Clone)]
pub struct Phase {
    pub name: String,
    /// How long its load runs, measured or not.
    pub load: Duration,
}
