//! Reads on new sessions while standbys are delayed, stopped, paused, cut off and restarted at random: how
//! many are staler than the pool promises.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_lab::cluster::Lab;
use lockstep_lab::workload::APP_ROLE;

use super::clients::{Pace, Reads, joined, read, write};
use super::ledger::{Ledger, Read};
use super::nodes::{AgentRules, Nodes, small};
use super::proxy::{Checks, Proxy};
use super::stock::Formula;
use super::trouble::{plan, sleep_until, suffer};
use crate::Result;

/// The bound, and the time between two checks of HAProxy.
const BOUND: &str = "100ms";
const BOUND_MS: u32 = 100;
const CHECK_MS: u32 = 50;

/// The oldest data that a new session may see: the bound and two intervals.
pub const MOST: Duration = Duration::from_millis((BOUND_MS + 2 * CHECK_MS) as u64);

const STANDBYS: usize = 3;

/// What decides which standbys are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deciding {
    Agents,
    PgsqlCheck,
    /// Patroni's formula, with this many bytes.
    Formula(u64),
}

/// What the clients do.
#[derive(Debug, Clone, Copy)]
pub struct Clients {
    pub writers: usize,
    pub readers: usize,
    /// Commits, and reads, a second of all of them.
    pub commits_per_s: f64,
    pub reads_per_s: f64,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    pub seconds: f64,
    pub commits: u64,
    pub reads: u64,
    pub failed: u64,
    pub on_standbys: u64,
    /// Reads older than allowed when their session was asked for.
    pub stale: u64,
    /// Reads older than allowed when their query was sent.
    pub stale_when_asked: u64,
    /// The oldest of all, when its session was asked for.
    pub oldest: Duration,
    pub troubles: usize,
}

/// Runs clients for this long on a new pool.
pub fn run(
    lab: &Lab,
    product: &Path,
    deciding: Deciding,
    clients: &Clients,
    seed: u64,
    length: Duration,
) -> Result<Seen> {
    let mut nodes = Nodes::start(lab, STANDBYS, &small(STANDBYS), clients.writers, true)?;
    let mut formula = None;
    let checks = match deciding {
        Deciding::Agents => {
            let (settle, rise) = ("300ms", "1s");
            let bound = BOUND;
            let rules = AgentRules {
                bound,
                settle,
                rise,
            };
            nodes.start_agents(lab, product, &rules)?;
            Checks::Agents {
                product,
                when_all_late: "primary",
            }
        }
        Deciding::PgsqlCheck => Checks::Pgsql,
        Deciding::Formula(most) => Checks::Formula(formula.insert(Formula::start(&nodes, most)?)),
    };
    let mut proxy = Proxy::start(lab, &nodes, checks, CHECK_MS)?;
    proxy.await_readers(STANDBYS)?;
    let ledger = Ledger::new(clients.writers);
    let reads = Reads::default();
    let plans = plan(seed, STANDBYS, length);
    let troubles = plans.iter().map(Vec::len).sum();
    load(
        &mut nodes,
        &ledger,
        &reads,
        proxy.reads,
        clients,
        |links, standbys, began| {
            thread::scope(|scope| {
                let each = standbys.iter_mut().zip(links).zip(&plans);
                let suffering: Vec<_> = each
                    .map(|((standby, link), plan)| {
                        scope.spawn(move || suffer(standby, link, plan, began))
                    })
                    .collect();
                sleep_until(began + length);
                suffering.into_iter().try_for_each(joined)
            })
        },
    )?;
    proxy.check()?;
    nodes.check_agents()?;
    drop((proxy, formula));
    nodes.remove()?;
    Ok(Seen {
        seconds: ledger.now().as_secs_f64(),
        commits: ledger.total(),
        failed: reads.failures().len() as u64,
        troubles,
        ..judge(&reads.all(), &ledger)
    })
}

/// Runs writers and readers while something is done to the standbys.
fn load(
    nodes: &mut Nodes,
    ledger: &Ledger,
    reads: &Reads,
    port: u16,
    clients: &Clients,
    happens: impl FnOnce(
        &[crate::fault::SlowLink],
        &mut [lockstep_lab::server::Server],
        Instant,
    ) -> Result<()>,
) -> Result<()> {
    let primary = nodes.primary()?.config(APP_ROLE, "bench writer");
    let links = std::mem::take(&mut nodes.links);
    let stop = AtomicBool::new(false);
    let (_, standbys) = nodes.parts()?;
    let done = thread::scope(|scope| {
        let (primary, stop) = (&primary, &stop);
        let writers: Vec<_> = (0..clients.writers)
            .map(|number| {
                scope.spawn(move || write(ledger, primary, number, clients.commits_per_s, stop))
            })
            .collect();
        for number in 0..clients.readers {
            let pace = Pace::of(number, clients.readers, clients.reads_per_s);
            scope.spawn(move || read(ledger, reads, port, pace, stop));
        }
        let happened = happens(&links, standbys, Instant::now());
        stop.store(true, Ordering::Relaxed);
        let written = writers.into_iter().try_for_each(joined);
        happened.and(written)
    });
    nodes.links = links;
    done
}

/// How old all reads were.
fn judge(reads: &[Read], ledger: &Ledger) -> Seen {
    let mut seen = Seen::default();
    for read in reads {
        let age = ledger.age(&read.seen, read.begun);
        seen.reads += 1;
        seen.on_standbys += u64::from(read.is_standby);
        seen.stale += u64::from(age > MOST);
        seen.stale_when_asked += u64::from(ledger.age(&read.seen, read.asked) > MOST);
        seen.oldest = seen.oldest.max(age);
    }
    seen
}
