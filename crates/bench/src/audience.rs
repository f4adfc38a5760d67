//! What a run tells while it goes on. This crate only tells; the program that starts a run
//! decides how to show it.

use std::time::Duration;

/// The listener that a run tells how it goes.
pub trait Audience {
    /// Says what the run is made of. This call comes first.
    fn expect(&mut self, ahead: Ahead);
    /// One line about the run.
    fn say(&mut self, line: &str);
    /// A step or trial begins.
    fn begin(&mut self, name: &str);
    /// The step or trial is over. `result` is one line.
    fn end(&mut self, result: &str);
    /// A stage of a trial begins.
    fn stage(&mut self, stage: Stage);
    /// Figures of a trial, twice a second under load.
    fn tick(&mut self, tick: &Tick);
    /// The run is over; only its result follows.
    fn finish(&mut self);
    fn result(&mut self, line: &str);
}

/// What a run is made of.
#[derive(Debug, Clone)]
pub enum Ahead {
    /// This many steps of about the same length.
    Steps(usize),
    /// Trials, whose load has a known length.
    Trials(Trials),
}

/// Trials one after the other.
#[derive(Debug, Clone)]
pub struct Trials {
    pub phases: Vec<Phase>,
    /// A first guess of how long each trial takes before its load.
    pub preparation: Duration,
    /// The part of each load that is not measured.
    pub warmup: Duration,
}

/// A trial with its preparation.
#[derive(Debug, Clone)]
pub struct Phase {
    pub name: String,
    /// How long its load runs, warm-up included.
    pub load: Duration,
}

/// A part of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Loading fresh data into the primary.
    LoadData,
    /// Copying the primary and letting the copy catch up.
    MakeStandby,
    /// Load that is not measured.
    WarmUp,
    /// The measurement.
    Measure,
}

/// A moment of a trial under load.
#[derive(Debug, Clone, Copy)]
pub struct Tick {
    /// Warm-up or measurement.
    pub stage: Stage,
    /// Time in this stage.
    pub elapsed: Duration,
    /// Lag now, ms, if known.
    pub lag_ms: Option<f64>,
    /// Transactions a second on the primary, as last reported.
    pub primary_tps: Option<f64>,
    /// Reads a second on the standby, as last reported.
    pub read_tps: Option<f64>,
}
