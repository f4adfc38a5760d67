//! How consumers reach the primary in a round, and what that costs.

use std::time::Instant;

use lockstep_lab::cluster::Lab;
use lockstep_lab::server::Server;
use lockstep_wire::Lsn;

use super::process::{Relay, RelayOptions};
use super::publisher;
use super::walsenders::{Cost, Walsenders};
use super::{Endpoint, Sink};
use crate::Result;

/// How consumers reach the primary.
#[derive(Debug, Clone)]
pub enum Way {
    /// Each consumer has a slot and a walsender of its own.
    Direct,
    /// All consumers are behind one relay.
    Relay(RelayOptions),
}

/// An open way to the primary. Dropping it leaves slots behind.
#[derive(Debug)]
pub(super) struct Scene {
    relay: Option<Relay>,
    endpoint: Endpoint,
}

/// What had been used at one time.
#[derive(Debug, Clone)]
pub(super) struct Meter {
    at: Instant,
    primary_cpu_s: f64,
    walsenders: Walsenders,
    relay_cpu_s: Option<f64>,
}

/// What was used between two times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spent {
    pub seconds: f64,
    /// CPU of the primary's processes, walsenders included, in seconds.
    pub primary_cpu_s: f64,
    /// Cost of the primary's walsenders alone.
    pub walsenders: Cost,
    pub relay_cpu_s: Option<f64>,
}

impl Scene {
    pub fn open(lab: &Lab, primary: &Server, way: &Way) -> Result<Self> {
        let direct = publisher::endpoint(primary);
        let relay = match way {
            Way::Direct => None,
            Way::Relay(options) => Some(Relay::start(lab, &direct, options)?),
        };
        Ok(Self {
            endpoint: relay.as_ref().map_or(direct, Relay::endpoint),
            relay,
        })
    }

    /// Where consumers connect.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub fn is_relay(&self) -> bool {
        self.relay.is_some()
    }

    /// Creates slots and starts sinks.
    pub fn sinks(&self, lab: &Lab, number: u32) -> Result<Vec<Sink>> {
        (1..=number)
            .map(|number| {
                let slot = format!("sink_{number}");
                self.endpoint.create_slot(&slot)?;
                self.sink(lab, &slot, None)
            })
            .collect()
    }

    /// Starts a sink on a slot that exists.
    pub fn sink(&self, lab: &Lab, slot: &str, goal: Option<Lsn>) -> Result<Sink> {
        Sink::start(
            &self.endpoint,
            slot,
            publisher::PUBLICATION,
            goal,
            lab.pinning(),
        )
    }

    /// An error if something has ended that should not.
    pub fn check(&mut self) -> Result<()> {
        self.relay.as_mut().map_or(Ok(()), Relay::check)
    }

    pub fn meter(&self, primary: &Server) -> Meter {
        Meter {
            at: Instant::now(),
            primary_cpu_s: primary.usage().cpu_s,
            walsenders: Walsenders::of(primary),
            relay_cpu_s: self.relay.as_ref().map(Relay::cpu_s),
        }
    }

    /// The most memory that the relay has had, in megabytes.
    pub fn relay_rss_mb(&self) -> Option<f64> {
        self.relay.as_ref().map(Relay::most_rss_mb)
    }

    /// Ends the relay, and drops all slots of the primary.
    pub fn close(self, primary: &Server) -> Result<()> {
        if let Some(relay) = self.relay {
            relay.stop()?;
        }
        publisher::drop_slots(primary)
    }
}

impl Meter {
    pub fn since(&self, before: &Self) -> Spent {
        Spent {
            seconds: (self.at - before.at).as_secs_f64(),
            primary_cpu_s: (self.primary_cpu_s - before.primary_cpu_s).max(0.0),
            walsenders: self.walsenders.since(&before.walsenders),
            relay_cpu_s: self
                .relay_cpu_s
                .zip(before.relay_cpu_s)
                .map(|(after, before)| after - before),
        }
    }
}
