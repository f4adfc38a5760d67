//! One round of steady load: what a number of subscribers cost, and how far behind they are.

use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use lockstep_lab::LabError;
use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::Side;
use lockstep_lab::progress::Micros;
use lockstep_lab::server::Server;
use lockstep_lab::workload::{Load, Workload};

use super::beat::Beat;
use super::delays::Delays;
use super::publisher;
use super::scene::{Scene, Spent, Way};
use super::sink::Sink;
use super::subscriber::{Cores, Subscriber};
use crate::{BenchError, Result};

/// Interval at which a round looks whether all servers and consumers still run.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long pgbench may take to report for the first time.
const LOAD_PATIENCE: Duration = Duration::from_secs(60);

/// What subscribers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SubscriberKind {
    /// Sinks, which count what they receive and throw it away.
    Null,
    /// Subscriptions, each in a database of its own.
    Real,
}

impl SubscriberKind {
    /// The kind's name in arguments.
    pub fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Real => "real",
        }
    }
}

/// One round.
#[derive(Debug, Clone)]
pub struct FanoutSpec {
    /// How many subscribers; 0 for the primary alone.
    pub subscribers: u32,
    pub kind: SubscriberKind,
    /// How they reach the primary.
    pub way: Way,
    /// pgbench scale.
    pub scale: u32,
    /// Clients that write, as fast as they can.
    pub clients: u32,
    /// Load runs this long before the measurement begins.
    pub warmup: Duration,
    /// Length of the measurement.
    pub measured: Duration,
}

/// What a round measured.
#[derive(Debug, Clone)]
pub struct FanoutOutcome {
    pub spent: Spent,
    /// The most memory of the relay, in megabytes.
    pub relay_rss_mb: Option<f64>,
    /// Transactions a second on the primary.
    pub primary_tps: f64,
    /// Delays from commit to arrival (sinks) or to applied (subscriptions), of all subscribers.
    pub delays: Delays,
    /// Rows that arrived, all sinks together; 0 for subscriptions.
    pub rows: u64,
    /// Bytes of messages that arrived, all sinks together; 0 for subscriptions.
    pub bytes: u64,
}

enum Consumers {
    Sinks(Vec<Sink>),
    Subscriber(Box<Subscriber>),
}

impl Consumers {
    fn check(&mut self) -> Result<()> {
        match self {
            Self::Sinks(sinks) => sinks.iter().try_for_each(Sink::check),
            Self::Subscriber(subscriber) => subscriber.check(),
        }
    }

    fn total(&self) -> (u64, u64) {
        match self {
            Self::Subscriber(_) => (0, 0),
            Self::Sinks(sinks) => sinks
                .iter()
                .map(Sink::counts)
                .fold((0, 0), |(rows, bytes), counts| {
                    (rows + counts.rows, bytes + counts.bytes)
                }),
        }
    }
}

/// Runs a round on a primary that [`publisher::prepare`] has readied.
pub fn run(lab: &Lab, primary: &mut Server, spec: &FanoutSpec) -> Result<FanoutOutcome> {
    publisher::refresh(lab, primary, spec.scale)?;
    let mut scene = Scene::open(lab, primary, &spec.way)?;
    let mut consumers = match spec.kind {
        SubscriberKind::Null => Consumers::Sinks(scene.sinks(lab, spec.subscribers)?),
        SubscriberKind::Real => {
            let subscriber = Subscriber::start(lab, spec.subscribers, spec.scale, Cores::Standbys)?;
            subscriber.subscribe(scene.endpoint())?;
            Consumers::Subscriber(Box::new(subscriber))
        }
    };
    let beat = (spec.kind == SubscriberKind::Real).then(|| Beat::start(primary, lab.pinning()));
    let mut load = lab.start_load(
        primary,
        Side::Primary,
        Workload::TpcB,
        spec.clients,
        spec.scale,
    )?;
    await_report(&mut load)?;
    let outcome = measure(primary, &mut scene, &mut consumers, &mut load, spec)?;
    drop(load);
    beat.map_or(Ok(()), Beat::stop)?;
    match consumers {
        Consumers::Sinks(sinks) => drop(sinks),
        Consumers::Subscriber(subscriber) => subscriber.remove()?,
    }
    scene.close(primary)?;
    Ok(outcome)
}

fn await_report(load: &mut Load) -> Result<()> {
    let began = Instant::now();
    while load.newest_tps().is_none() {
        load.check()?;
        if began.elapsed() > LOAD_PATIENCE {
            return Err(LabError::Measurement("pgbench reports nothing".to_owned()).into());
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

fn measure(
    primary: &mut Server,
    scene: &mut Scene,
    consumers: &mut Consumers,
    load: &mut Load,
    spec: &FanoutSpec,
) -> Result<FanoutOutcome> {
    let mut pass = |time: Duration, scene: &mut Scene, consumers: &mut Consumers| {
        let began = Instant::now();
        while began.elapsed() < time {
            thread::sleep(LOOK_EVERY.min(time.saturating_sub(began.elapsed())));
            load.check()?;
            scene.check()?;
            consumers.check()?;
        }
        Ok::<(), BenchError>(())
    };
    pass(spec.warmup, scene, consumers)?;
    if let Consumers::Sinks(sinks) = consumers {
        sinks.iter().for_each(Sink::forget_delays);
    }
    let (from, before) = (Micros::now(), scene.meter(primary));
    let (rows, bytes) = consumers.total();
    pass(spec.measured, scene, consumers)?;
    let (to, after) = (Micros::now(), scene.meter(primary));
    let (rows_then, bytes_then) = consumers.total();
    let delays = match consumers {
        Consumers::Sinks(sinks) => {
            let mut all = Delays::default();
            sinks.iter().for_each(|sink| all.merge(&sink.delays()));
            all
        }
        Consumers::Subscriber(subscriber) => subscriber.delays(primary, from, to)?,
    };
    Ok(FanoutOutcome {
        spent: after.since(&before),
        relay_rss_mb: scene.relay_rss_mb(),
        primary_tps: load.tps_between(from, to)?,
        delays,
        rows: rows_then - rows,
        bytes: bytes_then - bytes,
    })
}
