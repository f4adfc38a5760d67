//! One round of catching up: a consumer that was stopped during a long backlog.

use std::time::{Duration, Instant};

use lockstep_lab::LabError;
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::Server;
use lockstep_wire::Lsn;

use super::fanout::SubscriberKind;
use super::publisher;
use super::scene::{Scene, Spent, Way};
use super::sink::Sink;
use super::subscriber::{Cores, Subscriber};
use crate::Result;

/// How long catching up may take.
const LONGEST: Duration = Duration::from_secs(3_600);

/// The slot of a sink.
const SLOT: &str = "catch_up";

/// Three updates and an insert.
const ROWS_OF_TPC_B: u64 = 4;

/// One round.
#[derive(Debug, Clone)]
pub struct CatchUpSpec {
    pub kind: SubscriberKind,
    /// How it reaches the primary.
    pub way: Way,
    /// pgbench scale.
    pub scale: u32,
    /// Clients that write the backlog.
    pub clients: u32,
    /// Transactions of the backlog, TPC-B-like.
    pub transactions: u32,
}

/// What a round measured.
#[derive(Debug, Clone)]
pub struct CatchUpOutcome {
    /// Time from the consumer's start until it had everything.
    pub spent: Spent,
    /// While the backlog was written, up to that start.
    pub backlog: Spent,
    /// How long after the backlog's end the relay had all of it, in seconds; not part of the
    /// catching up.
    pub relay_behind_s: Option<f64>,
    /// The most memory of the relay, in megabytes.
    pub relay_rss_mb: Option<f64>,
    /// Bytes of messages; 0 for a subscription.
    pub bytes: u64,
    /// Rows changed.
    pub rows: u64,
    /// CPU of the apply worker meanwhile, of a subscription.
    pub apply_cpu_s: Option<f64>,
}

/// The consumer, stopped or not.
enum Consumer {
    Null,
    Real(Box<Subscriber>),
}

/// Runs a round on a primary that [`publisher::prepare`] has readied.
pub fn run(lab: &Lab, primary: &mut Server, spec: &CatchUpSpec) -> Result<CatchUpOutcome> {
    publisher::refresh(lab, primary, spec.scale)?;
    let mut scene = Scene::open(lab, primary, &spec.way)?;
    let consumer = begin_and_stop(lab, primary, &scene, spec)?;
    let before = scene.meter(primary);
    let transactions = publisher::run_transactions(lab, primary, spec.clients, spec.transactions)?;
    let goal = publisher::mark(primary)?;
    let ended = Instant::now();
    let relay_behind_s = match scene.is_relay() {
        true => {
            publisher::await_relay(primary, goal)?;
            Some(ended.elapsed().as_secs_f64())
        }
        false => None,
    };
    scene.check()?;
    let start = scene.meter(primary);
    let caught_up = catch_up(lab, primary, &scene, &consumer, goal)?;
    check_rows(&caught_up, transactions)?;
    let spent = Spent {
        seconds: caught_up.seconds,
        ..caught_up.meter.since(&start)
    };
    let outcome = CatchUpOutcome {
        spent,
        backlog: start.since(&before),
        relay_behind_s,
        relay_rss_mb: scene.relay_rss_mb(),
        bytes: caught_up.bytes,
        rows: transactions * ROWS_OF_TPC_B,
        apply_cpu_s: caught_up.apply_cpu_s,
    };
    drop(caught_up.sink);
    if let Consumer::Real(subscriber) = consumer {
        subscriber.remove()?;
    }
    scene.close(primary)?;
    Ok(outcome)
}

/// The consumer streams once, so that the relay or primary knows its slot, and stops.
fn begin_and_stop(
    lab: &Lab,
    primary: &Server,
    scene: &Scene,
    spec: &CatchUpSpec,
) -> Result<Consumer> {
    match spec.kind {
        SubscriberKind::Null => {
            scene.endpoint().create_slot(SLOT)?;
            let sink = scene.sink(lab, SLOT, None)?;
            sink.set_goal(publisher::mark(primary)?);
            sink.await_goal(LONGEST)?;
            sink.stop()?;
            Ok(Consumer::Null)
        }
        SubscriberKind::Real => {
            let subscriber = Subscriber::start(lab, 1, spec.scale, Cores::Every)?;
            subscriber.subscribe(scene.endpoint())?;
            publisher::mark(primary)?;
            subscriber.await_mark(primary)?;
            subscriber.disable()?;
            Ok(Consumer::Real(Box::new(subscriber)))
        }
    }
}

/// A figure is void if the consumer lacks a transaction. It may have more than were written, since
/// transactions that it had not confirmed are sent again.
fn check_rows(caught_up: &CaughtUp, transactions: u64) -> Result<()> {
    match caught_up.transactions >= transactions {
        true => Ok(()),
        false => Err(LabError::Measurement(format!(
            "the consumer has {} of {transactions} transactions",
            caught_up.transactions
        ))
        .into()),
    }
}

struct CaughtUp {
    seconds: f64,
    meter: super::scene::Meter,
    bytes: u64,
    /// Complete transactions that the consumer has.
    transactions: u64,
    apply_cpu_s: Option<f64>,
    /// Still connected, since the CPU of a walsender that has ended cannot be read.
    sink: Option<Sink>,
}

fn catch_up(
    lab: &Lab,
    primary: &Server,
    scene: &Scene,
    consumer: &Consumer,
    goal: Lsn,
) -> Result<CaughtUp> {
    let started = Instant::now();
    match consumer {
        Consumer::Null => {
            let sink = scene.sink(lab, SLOT, Some(goal))?;
            let reached = sink.await_goal(LONGEST)?;
            Ok(CaughtUp {
                seconds: (reached - started).as_secs_f64(),
                meter: scene.meter(primary),
                bytes: sink.counts().bytes,
                transactions: sink.counts().rows / ROWS_OF_TPC_B,
                apply_cpu_s: None,
                sink: Some(sink),
            })
        }
        Consumer::Real(subscriber) => {
            subscriber.enable()?;
            subscriber.await_mark(primary)?;
            let seconds = started.elapsed().as_secs_f64();
            Ok(CaughtUp {
                seconds,
                meter: scene.meter(primary),
                bytes: 0,
                transactions: subscriber.rows("pgbench_history")?,
                apply_cpu_s: Some(subscriber.apply_cpu_s()?),
                sink: None,
            })
        }
    }
}
