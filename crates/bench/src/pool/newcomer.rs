//! A new node made by `lockstep pool add`: how soon it answers as fast as one that has served for long, and
//! what that costs the node that is copied.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use lockstep_client::ClientError;
use lockstep_lab::LabError;
use lockstep_lab::address::ServerAddress;
use lockstep_lab::cluster::Lab;
use lockstep_lab::launch::failure_line;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::settings_of;
use lockstep_lab::sweep;
use lockstep_lab::workload::{ACCOUNTS_PER_SCALE, APP_ROLE};
use nix::unistd::Pid;

use super::clients::{Pace, joined};
use super::nodes::{Nodes, Seat, small};
use crate::replay::slow_reads::{LATENCY, Library};
use crate::{BenchError, Result};

/// Name of the new node, and of the standby that is copied.
const NEWCOMER: &str = "newcomer";
const PEER: &str = "node1";

/// pgbench's scale: its tables fit into shared buffers.
const SCALE: u32 = 10;
const SHARED_BUFFERS: &str = "256MB";

/// Readers of each node, and look-ups a second of all of them.
const READERS: usize = 4;
const LOOKUPS: f64 = 400.0;

/// Readers of the standby that is copied, which read as fast as they can.
const PEER_READERS: usize = 2;

/// How long these are measured before the copy, and how long the first look-ups of the new node.
const BEFORE: Duration = Duration::from_secs(5);
pub const FIRST: Duration = Duration::from_secs(10);

/// How a node joined.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Joining {
    /// Seconds that `lockstep pool add` took.
    pub join_s: f64,
    /// 99th percentile of look-ups in the first seconds, on the new node and on one that has served for long.
    pub newcomer_p99_ms: f64,
    pub veteran_p99_ms: f64,
    /// Look-ups a second of the peer's readers during the copy, as a part of those before.
    pub peer_share: f64,
    /// Reads of the new node that waited, during its first look-ups.
    pub delayed: u64,
}

/// Makes a node, warmed or not, and measures its first look-ups. Reads of data that is not in its shared
/// buffers take a millisecond there, as on storage with that latency.
pub fn run(lab: &Lab, product: &Path, is_warmed: bool) -> Result<Joining> {
    if let Some(missing) = Library::missing() {
        return Err(BenchError::Unusable(format!(
            "case join needs slow reads: {missing}"
        )));
    }
    let mut nodes = warm_nodes(lab)?;
    // The account of the servers may not be able to enter the folder of the program.
    let program = lab.folder().join("lockstep");
    fs::copy(product, &program).map_err(BenchError::io("copy", product))?;
    let file = nodes.write_file(lab)?;
    let port = nodes.seat(lab, NEWCOMER)?;
    let [peer, veteran] = [1, 2].map(|place| {
        let server = nodes.servers.get(place);
        server.map(|server| server.config(APP_ROLE, "bench reader"))
    });
    let missing = || BenchError::Unusable("a standby is missing".to_owned());
    let (peer, veteran) = (peer.ok_or_else(missing)?, veteran.ok_or_else(missing)?);
    let mut more = vec!["--no-proxy", "--from", PEER];
    if !is_warmed {
        more.push("--no-warm");
    }
    let slow = Library::of(lab)?.share(lab, NEWCOMER)?;
    let mut begun = None;
    let (join_s, peer_share) = beside_readers(&peer, || {
        let seat = nodes.seat_of(NEWCOMER)?;
        add(
            lab,
            &program,
            seat,
            &file,
            &more,
            &slow.environment(),
            &mut |line| {
                // The server runs, and is not warm yet.
                if line.starts_with("catching up") {
                    begun = Some(slow.begin(LATENCY));
                }
            },
        )
    })?;
    begun.ok_or_else(|| {
        BenchError::Unusable("pool add did not say that it catches up".to_owned())
    })??;
    // `add` ran on the primary's core, as on another machine. The look-ups find both nodes on one core.
    let folder = lab.folder().join(NEWCOMER);
    for process in sweep::processes(&folder) {
        let pinning = lab.launcher().pinning();
        pinning.pin(Pid::from_raw(process), Side::Standby);
    }
    let newcomer = ServerAddress {
        port,
        ..veteran.clone()
    };
    let before = slow.counts()?.delayed;
    let [newcomer_p99_ms, veteran_p99_ms] = first_lookups([&newcomer, &veteran])?;
    let delayed = slow.counts()?.delayed - before;
    stop(lab, NEWCOMER)?;
    fs::remove_dir_all(&folder).map_err(BenchError::io("remove", &folder))?;
    nodes.remove()?;
    Ok(Joining {
        join_s,
        newcomer_p99_ms,
        veteran_p99_ms,
        peer_share,
        delayed,
    })
}

/// A primary and two standbys with all data in their shared buffers.
fn warm_nodes(lab: &Lab) -> Result<Nodes> {
    let mut settings = small(3);
    settings.extend(settings_of([
        ("shared_preload_libraries", "lockstep"),
        ("shared_buffers", SHARED_BUFFERS),
    ]));
    let mut nodes = Nodes::start(lab, 2, &settings, 1, false)?;
    nodes.primary()?.execute("CREATE EXTENSION lockstep")?;
    lab.load_data(nodes.primary()?, SCALE)?;
    // Without it a clone replays what loaded the data, and is warm by that.
    nodes.primary()?.execute("CHECKPOINT")?;
    let (primary, standbys) = nodes.parts()?;
    for standby in standbys {
        standby.catch_up(primary)?;
        standby.execute("CHECKPOINT")?;
        standby.execute(&read_all())?;
    }
    Ok(nodes)
}

/// Reads a row of each page by its key, as look-ups do. A scan of the whole table would leave no page in
/// shared buffers.
fn read_all() -> String {
    let rows = SCALE * ACCOUNTS_PER_SCALE;
    format!(
        "SET enable_seqscan = off; SET enable_bitmapscan = off; \
         SELECT count(abalance) FROM generate_series(1, {rows}, 20) i JOIN pgbench_accounts ON aid = i"
    )
}

fn lookup(random: &mut Rng) -> String {
    let aid = random.u32(1..=SCALE * ACCOUNTS_PER_SCALE);
    format!("SELECT abalance FROM pgbench_accounts WHERE aid = {aid}")
}

fn failed(error: ClientError) -> BenchError {
    BenchError::Unusable(format!("a reader failed: {error}"))
}

/// Does something while readers read as fast as they can. Returns how many seconds it took, and which part
/// of the earlier look-ups a second was left meanwhile.
fn beside_readers(peer: &ServerAddress, work: impl FnOnce() -> Result<()>) -> Result<(f64, f64)> {
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let readers: Vec<_> = (0..PEER_READERS)
            .map(|number| {
                let (done, stop) = (&done, &stop);
                scope.spawn(move || {
                    let mut random = Rng::with_seed(number as u64);
                    let mut session = peer.connect().map_err(failed)?;
                    while !stop.load(Ordering::Relaxed) {
                        session.query(&lookup(&mut random)).map_err(failed)?;
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        let per_s = |from: u64, began: Instant| {
            (done.load(Ordering::Relaxed) - from) as f64 / began.elapsed().as_secs_f64()
        };
        thread::sleep(BEFORE / 5);
        let (from, began) = (done.load(Ordering::Relaxed), Instant::now());
        thread::sleep(BEFORE);
        let before = per_s(from, began);
        let (from, began) = (done.load(Ordering::Relaxed), Instant::now());
        let worked = work();
        let (during, took) = (per_s(from, began), began.elapsed().as_secs_f64());
        stop.store(true, Ordering::Relaxed);
        let read = readers.into_iter().try_for_each(joined);
        worked.and(read)?;
        Ok((took, during / before))
    })
}

/// The 99th percentiles, in ms, of paced look-ups on two servers at the same time.
fn first_lookups(servers: [&ServerAddress; 2]) -> Result<[f64; 2]> {
    let times: [Mutex<Vec<f64>>; 2] = Default::default();
    thread::scope(|scope| {
        let mut readers = Vec::new();
        for (server, times) in servers.into_iter().zip(&times) {
            for number in 0..READERS {
                readers.push(scope.spawn(move || {
                    let mut random = Rng::with_seed(100 + number as u64);
                    let mut session = server.connect().map_err(failed)?;
                    let mut pace = Pace::of(number, READERS, LOOKUPS);
                    let (mut own, began) = (Vec::new(), Instant::now());
                    while began.elapsed() < FIRST {
                        pace.wait();
                        let sql = lookup(&mut random);
                        let asked = Instant::now();
                        session.query(&sql).map_err(failed)?;
                        own.push(asked.elapsed().as_secs_f64() * 1000.0);
                    }
                    times
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .extend(own);
                    Ok(())
                }));
            }
        }
        readers.into_iter().try_for_each(joined)
    })?;
    Ok(times.map(|times| p99(times.into_inner().unwrap_or_else(PoisonError::into_inner))))
}

fn p99(times: Vec<f64>) -> f64 {
    percentile(times, 99)
}

/// The time below which so many in a hundred are.
pub fn percentile(mut times: Vec<f64>, hundredths: usize) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    let place = times.len().saturating_sub(1) * hundredths / 100;
    times.get(place).copied().unwrap_or_default()
}

/// Runs `lockstep pool add` for a new server, and tells each line that it says.
pub fn add(
    lab: &Lab,
    product: &Path,
    seat: &Seat,
    file: &Path,
    more: &[&str],
    environment: &[(&str, &Path)],
    tell: &mut dyn FnMut(&str),
) -> Result<()> {
    let (agent, check) = (seat.agent_place(), seat.check_place());
    let mut command = lab.launcher().command(product);
    command
        .args(["pool", "add", &seat.name, "--nodes"])
        .arg(file);
    command.args(["--conninfo", &seat.conninfo]);
    command.args(["--agent", &agent, "--agent-check", &check]);
    command.arg("--data").arg(lab.folder().join(&seat.name));
    command.arg("--bin-dir").arg(lab.package().bin());
    command.args(more).envs(environment.iter().copied());
    let log = lab.folder().join("add.log");
    let said = fs::File::create(&log).map_err(BenchError::io("write", &log))?;
    command.stdout(Stdio::piped()).stderr(said);
    // As on another machine: the standbys have the other core.
    let mut child = lab.launcher().spawn(command, Side::Primary)?;
    if let Some(said) = child.stdout.take() {
        for line in BufReader::new(said).lines().map_while(std::io::Result::ok) {
            tell(&line);
        }
    }
    if child.wait().is_ok_and(|status| status.success()) {
        return Ok(());
    }
    let said = fs::read_to_string(&log).unwrap_or_default();
    let program = "lockstep pool add".to_owned();
    let reason = failure_line(&said).unwrap_or_else(|| "it said nothing".to_owned());
    Err(LabError::Program { program, reason }.into())
}

/// Stops the server that `add` has made.
pub fn stop(lab: &Lab, name: &str) -> Result<()> {
    let mut stop = lab.launcher().command(lab.package().program("pg_ctl"));
    stop.arg("-D").arg(lab.folder().join(name));
    stop.args(["-m", "fast", "stop"]);
    Ok(lab.launcher().run(stop)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_a_hundred_is_above_the_percentile() {
        let times: Vec<f64> = (1..=1000).rev().map(f64::from).collect();
        assert_eq!(p99(times), 990.0);
        assert_eq!(p99(vec![]), 0.0);
        assert_eq!(p99(vec![5.0]), 5.0);
    }
}
