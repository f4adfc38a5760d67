//! One round of small and very large transactions: rows a second at the consumers, from the
//! first write until they have the last.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::ClientError;
use lockstep_lab::LabError;
use lockstep_lab::cluster::Lab;
use lockstep_lab::error::one_line;
use lockstep_lab::pinning::{Pinning, Side};
use lockstep_lab::server::{SUPERUSER, Server};
use lockstep_lab::workload::Workload;

use super::delays::Delays;
use super::publisher;
use super::scene::{Scene, Spent, Way};
use super::sink::Sink;
use crate::Result;

/// How long consumers may take after the last write.
const LONGEST: Duration = Duration::from_secs(3_600);

/// Interval at which a round looks whether all servers and consumers still run.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// One round.
#[derive(Debug, Clone)]
pub struct MixedSpec {
    /// Sinks.
    pub subscribers: u32,
    /// How they reach the primary.
    pub way: Way,
    /// pgbench scale.
    pub scale: u32,
    /// Clients that write small transactions, as fast as they can.
    pub clients: u32,
    /// Rows of a large transaction.
    pub large_rows: u32,
    /// Pause from the end of one large transaction to the next.
    pub large_every: Duration,
    /// How long writers write.
    pub written: Duration,
}

/// What a round measured.
#[derive(Debug, Clone)]
pub struct MixedOutcome {
    /// Time from the first write until all sinks had the last.
    pub spent: Spent,
    /// How long they took after the last write, in seconds.
    pub behind_s: f64,
    /// Rows that each sink got a second, over the whole time.
    pub rows_per_s: f64,
    /// Rows that each sink got.
    pub rows: u64,
    /// Number of large transactions.
    pub large: u32,
    /// Transactions a second on the primary while it was written.
    pub primary_tps: f64,
    /// Delays from commit to arrival.
    pub delays: Delays,
    /// The most memory of the relay, in megabytes.
    pub relay_rss_mb: Option<f64>,
}

/// Runs a round on a primary that [`publisher::prepare`] has readied.
pub fn run(lab: &Lab, primary: &mut Server, spec: &MixedSpec) -> Result<MixedOutcome> {
    publisher::refresh(lab, primary, spec.scale)?;
    let mut scene = Scene::open(lab, primary, &spec.way)?;
    let sinks = scene.sinks(lab, spec.subscribers)?;
    let before = scene.meter(primary);
    let started = Instant::now();
    let (large, primary_tps) = write(lab, primary, &mut scene, &sinks, spec)?;
    let goal = publisher::mark(primary)?;
    let ended = Instant::now();
    sinks.iter().for_each(|sink| sink.set_goal(goal));
    let mut last = ended;
    for sink in &sinks {
        last = last.max(sink.await_goal(LONGEST)?);
    }
    let after = scene.meter(primary);
    let seconds = (last - started).as_secs_f64();
    let rows = sinks.first().map_or(0, |sink| sink.counts().rows);
    let mut delays = Delays::default();
    sinks.iter().for_each(|sink| delays.merge(&sink.delays()));
    let outcome = MixedOutcome {
        spent: Spent {
            seconds,
            ..after.since(&before)
        },
        behind_s: (last - ended).as_secs_f64(),
        rows_per_s: rows as f64 / seconds.max(0.001),
        rows,
        large,
        primary_tps,
        delays,
        relay_rss_mb: scene.relay_rss_mb(),
    };
    drop(sinks);
    scene.close(primary)?;
    Ok(outcome)
}

/// Writes; returns the number of large transactions, and all transactions a second.
fn write(
    lab: &Lab,
    primary: &Server,
    scene: &mut Scene,
    sinks: &[Sink],
    spec: &MixedSpec,
) -> Result<(u32, f64)> {
    let started = Instant::now();
    let transactions = transactions(primary)?;
    let mut load = lab.start_load(
        primary,
        Side::Primary,
        Workload::TpcB,
        spec.clients,
        spec.scale,
    )?;
    let large = LargeWriter::start(primary, lab.pinning(), spec);
    while started.elapsed() < spec.written {
        thread::sleep(LOOK_EVERY);
        load.check()?;
        scene.check()?;
        sinks.iter().try_for_each(Sink::check)?;
    }
    drop(load);
    let large = large.stop(primary)?;
    let seconds = started.elapsed().as_secs_f64();
    let more = self::transactions(primary)? - transactions;
    Ok((large, more / seconds.max(0.001)))
}

/// Transactions that have got a transaction id so far.
fn transactions(primary: &Server) -> Result<f64> {
    let sql = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text";
    let text = primary.query_text(sql)?.unwrap_or_default();
    Ok(text.parse().unwrap_or(0.0))
}

struct LargeWriter {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<std::result::Result<u32, String>>,
}

impl LargeWriter {
    fn start(primary: &Server, pinning: &Pinning, spec: &MixedSpec) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&stop);
        let config = primary.config(SUPERUSER, "lockstep large transactions");
        let pinning = pinning.clone();
        let (rows, every) = (spec.large_rows, spec.large_every);
        let thread = thread::spawn(move || {
            pinning.pin_current_thread(Side::Primary);
            let said = |error: ClientError| one_line(&error.words());
            let mut client = config.connect().map_err(said)?;
            let sql = format!(
                "INSERT INTO large SELECT coalesce((SELECT max(id) FROM large), 0) + n, 1, \
                 'a row of the usual length' FROM generate_series(1, {rows}) AS n"
            );
            let mut written = 0;
            while !theirs.load(Ordering::Relaxed) {
                client.execute(&sql).map_err(said)?;
                written += 1;
                let ended = Instant::now();
                while ended.elapsed() < every && !theirs.load(Ordering::Relaxed) {
                    thread::sleep(LOOK_EVERY.min(every));
                }
            }
            Ok(written)
        });
        Self { stop, thread }
    }

    fn stop(self, primary: &Server) -> Result<u32> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.join();
        let written = ended.unwrap_or_else(|_| Err("its thread died".to_owned()));
        Ok(written.map_err(|reason| LabError::Refused {
            server: primary.id().clone(),
            what: "refused a large transaction".to_owned(),
            reason,
        })?)
    }
}
