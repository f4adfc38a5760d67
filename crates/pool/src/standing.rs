//! A node at one of the pool's doors: its state there, and since when. No I/O, no clock.
//!
//! A node that has been wrong is in again after a while in which nothing was wrong.

use std::time::Duration;

use crate::fault::Fault;
use crate::staleness::Moment;
use crate::state::{Door, NodeState, Reason};

#[derive(Debug)]
pub struct Standing {
    pub door: Door,
    pub state: NodeState,
    /// Since when nothing has been wrong.
    well_since: Option<Moment>,
    /// When the node came in, and whether its share is whole from then on.
    entered: (Moment, bool),
    /// Whether the node was ever in.
    was_in: bool,
    fault: Option<Fault>,
}

/// How long things take.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// How long nothing must be wrong before the node is in.
    pub settle: Duration,
    /// Time in which its share becomes whole.
    pub rise: Duration,
    /// How long the server has been running.
    pub up_for: Duration,
}

impl Standing {
    /// A node of which nothing is known.
    pub fn new(door: Door, fault: Option<Fault>) -> Self {
        Self {
            door,
            state: Reason::NotAsked.state(),
            well_since: None,
            entered: (Moment::ZERO, false),
            was_in: false,
            fault,
        }
    }

    /// Moves the state on: `wrong` is what is wrong now.
    pub fn judge(&mut self, now: Moment, wrong: Option<Reason>, times: &Times) {
        let Some(reason) = wrong else {
            let since = *self.well_since.get_or_insert(now);
            let settle = match self.fault {
                Some(Fault::ReturnsAtOnce) => Duration::ZERO,
                _ => times.settle,
            };
            if self.state == NodeState::In {
                return;
            }
            if now.saturating_sub(since) < settle {
                self.state = Reason::Settling.state();
                return;
            }
            // An agent that starts beside a warm node finds no newcomer.
            let is_warm = !self.was_in && times.up_for >= times.rise;
            self.entered = (now, is_warm || self.fault == Some(Fault::RisesAtOnce));
            self.was_in = true;
            self.state = NodeState::In;
            return;
        };
        self.well_since = None;
        self.state = match (self.fault, reason.state()) {
            (Some(Fault::LateIsOut), NodeState::Late(reason)) => NodeState::Out(reason),
            (_, state) => state,
        };
    }

    /// Time for which the share of a node that is in has risen, `rise` at most.
    pub fn risen_for(&self, now: Moment, rise: Duration) -> Duration {
        match self.entered {
            (_, true) => rise,
            (entered, false) => now.saturating_sub(entered).min(rise),
        }
    }
}
