//! Reads of what was just written, through HAProxy, while standbys are paused and restarted and the primary
//! changes.
//!
//! A client writes, and reads it in a new session. With tokens the session waits on its node until that
//! has the write; where it cannot, the client reads from the primary.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use lockstep_client::Connection;
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{Server, Settings, Stop};

use super::clients::{Pace, joined};
use super::ledger::commit;
use super::nodes::{AgentRules, Nodes, follow, small};
use super::proxy::{Checks, Proxy, session};
use super::trouble::sleep_until;
use crate::{BenchError, Result};

/// Nodes, of which one is the primary.
const NODES: usize = 4;

/// Clients, each with a row of its own.
pub const CLIENTS: usize = 16;

/// Time between two checks of HAProxy, in milliseconds.
const CHECK_MS: u32 = 200;

/// Longest wait for a token.
const WAIT_MS: u32 = 5_000;

/// Time from one trouble to the next, and how long replay is paused.
const TROUBLE_EVERY: Duration = Duration::from_secs(7);
const PAUSED_FOR: Duration = Duration::from_secs(2);

/// What came of it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Paired {
    pub seconds: f64,
    /// Writes that were read afterwards.
    pub pairs: u64,
    /// Reads that missed the write.
    pub stale: u64,
    /// Reads that a standby answered.
    pub on_standbys: u64,
    /// Waits that failed: the primary was asked then.
    pub refused: u64,
    /// Writes that failed, which are no pairs.
    pub failed_writes: u64,
    pub failovers: u64,
    pub pauses: u64,
    pub restarts: u64,
}

/// Counters that the clients share.
#[derive(Debug, Default)]
struct Counters {
    pairs: AtomicU64,
    stale: AtomicU64,
    on_standbys: AtomicU64,
    refused: AtomicU64,
    failed_writes: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Settings of every node.
pub fn settings() -> Settings {
    let mut settings = small(NODES);
    settings.insert("shared_preload_libraries".to_owned(), "lockstep".to_owned());
    settings
}

/// Runs the clients for this long on a new pool.
pub fn run(
    lab: &Lab,
    product: &Path,
    with_tokens: bool,
    pairs_per_s: f64,
    seed: u64,
    length: Duration,
) -> Result<Paired> {
    let mut nodes = Nodes::start(lab, NODES - 1, &settings(), CLIENTS, false)?;
    nodes.primary()?.execute("CREATE EXTENSION lockstep")?;
    let rules = AgentRules {
        bound: "1s",
        settle: "1s",
        rise: "2s",
    };
    nodes.start_agents(lab, product, &rules)?;
    let checks = Checks::Agents {
        product,
        when_all_late: "freshest",
    };
    let mut proxy = Proxy::start(lab, &nodes, checks, CHECK_MS)?;
    proxy.await_readers(NODES - 1)?;
    let (counters, stop) = (Counters::default(), AtomicBool::new(false));
    let began = Instant::now();
    let mut paired = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let ports = [proxy.writes, proxy.reads];
                let pace = Pace::of(number, CLIENTS, pairs_per_s);
                let (counters, stop) = (&counters, &stop);
                scope.spawn(move || client(number, ports, with_tokens, pace, counters, stop))
            })
            .collect();
        let happened = troubles(&mut nodes.servers, seed, began + length);
        stop.store(true, Ordering::Relaxed);
        let done = clients.into_iter().try_for_each(joined);
        done.and(happened)
    })?;
    proxy.check()?;
    nodes.check_agents()?;
    drop(proxy);
    nodes.remove()?;
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    paired.seconds = began.elapsed().as_secs_f64();
    paired.pairs = get(&counters.pairs);
    paired.stale = get(&counters.stale);
    paired.on_standbys = get(&counters.on_standbys);
    paired.refused = get(&counters.refused);
    paired.failed_writes = get(&counters.failed_writes);
    Ok(paired)
}

/// Writes and reads in turn, until the end.
fn client(
    number: usize,
    [writes, reads]: [u16; 2],
    with_tokens: bool,
    mut pace: Pace,
    counters: &Counters,
    stop: &AtomicBool,
) -> Result<()> {
    let (mut writer, mut written) = (None, 0_u64);
    loop {
        pace.wait();
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        written += 1;
        let Some(token) = write(&mut writer, writes, number, written) else {
            writer = None;
            count(&counters.failed_writes);
            continue;
        };
        let token = with_tokens.then_some(token.as_str());
        let seen = match look(reads, number, token) {
            Some(seen) => seen,
            None => {
                count(&counters.refused);
                match from_primary(writes, number, token, stop) {
                    Some(seen) => seen,
                    None => return Ok(()),
                }
            }
        };
        count(&counters.pairs);
        if seen.number < written {
            count(&counters.stale);
        }
        if seen.is_standby {
            count(&counters.on_standbys);
        }
    }
}

/// Commits, and returns the token of it.
fn write(kept: &mut Option<Connection>, port: u16, client: usize, number: u64) -> Option<String> {
    if kept.is_none() {
        *kept = session(port).ok();
    }
    let session = kept.as_mut()?;
    session.execute(&commit(client, number)).ok()?;
    let rows = session.query("SELECT lockstep_replay_token()").ok()?;
    rows.into_iter().next()?.into_iter().next()?
}

struct Looked {
    number: u64,
    is_standby: bool,
}

/// What a new session sees of a client's writes, after it has waited for the token.
fn look(port: u16, client: usize, token: Option<&str>) -> Option<Looked> {
    let mut session = session(port).ok()?;
    if let Some(token) = token {
        let limit = format!("SET lockstep.wait_timeout = '{WAIT_MS}ms'");
        session.execute(&limit).ok()?;
        let wait = format!("SET lockstep.wait_for_lsn = '{token}'");
        session.execute(&wait).ok()?;
    }
    let sql =
        format!("SELECT n::text, pg_is_in_recovery()::text FROM ledger WHERE writer = {client}");
    let mut row = session.query(&sql).ok()?.into_iter().next()?.into_iter();
    let (number, is_standby) = (row.next()??, row.next()??);
    Some(Looked {
        number: number.parse().ok()?,
        is_standby: is_standby == "true",
    })
}

/// What the primary has, tried again while there is none; None at the end.
fn from_primary(
    port: u16,
    client: usize,
    token: Option<&str>,
    stop: &AtomicBool,
) -> Option<Looked> {
    while !stop.load(Ordering::Relaxed) {
        if let Some(seen) = look(port, client, token) {
            return Some(seen);
        }
        thread::sleep(Duration::from_millis(50));
    }
    None
}

/// Pauses and restarts standbys and changes the primary: of each three troubles one of each kind, in an order
/// that the seed determines.
fn troubles(servers: &mut [Server], seed: u64, end: Instant) -> Result<Paired> {
    let mut random = Rng::with_seed(seed);
    let (mut done, mut primary, mut next) = (Paired::default(), 0, Instant::now());
    let mut kinds = Vec::new();
    loop {
        next += TROUBLE_EVERY;
        if next + TROUBLE_EVERY > end {
            break;
        }
        sleep_until(next);
        let standby = (primary + random.usize(1..NODES)) % NODES;
        if kinds.is_empty() {
            kinds.extend([0, 1, 2]);
            random.shuffle(&mut kinds);
        }
        match kinds.pop() {
            Some(0) => {
                let server = server_at(servers, standby)?;
                server.execute("SELECT pg_wal_replay_pause()")?;
                thread::sleep(PAUSED_FOR);
                server.execute("SELECT pg_wal_replay_resume()")?;
                done.pauses += 1;
            }
            Some(1) => {
                server_at(servers, standby)?.restart()?;
                done.restarts += 1;
            }
            _ => {
                fail_over(servers, primary, standby)?;
                primary = standby;
                done.failovers += 1;
            }
        }
    }
    sleep_until(end);
    Ok(done)
}

fn server_at(servers: &mut [Server], place: usize) -> Result<&mut Server> {
    let missing = || BenchError::Unusable(format!("there is no node {place}"));
    servers.get_mut(place).ok_or_else(missing)
}

/// Ends the primary, which sends its standbys all WAL before; promotes a standby, which the others and the
/// old primary follow from then on.
fn fail_over(servers: &mut [Server], old: usize, new: usize) -> Result<()> {
    let (sockets, port) = {
        let server = server_at(servers, new)?;
        (server.sockets().to_path_buf(), server.port())
    };
    let ended = server_at(servers, old)?;
    follow(ended, &sockets, port, false)?;
    ended.stop(Stop::Fast)?;
    let signal = ended.data().join("standby.signal");
    std::fs::write(&signal, "").map_err(BenchError::io("write", &signal))?;
    server_at(servers, new)?.promote()?;
    for place in (0..servers.len()).filter(|place| ![old, new].contains(place)) {
        follow(server_at(servers, place)?, &sockets, port, false)?;
    }
    Ok(server_at(servers, old)?.start()?)
}
