//! Reads through HAProxy on one, two and four standbys, each with a CPU quota of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_lab::cluster::Lab;
use lockstep_lab::server::Server;
use lockstep_lab::usage;

use super::clients::joined;
use super::nodes::{AgentRules, Nodes, small};
use super::proxy::{Checks, Proxy, session};
use crate::{BenchError, Result};

/// Where the kernel's controller of CPU time is: version 1, and version 2.
const CONTROLLERS: [(&str, &str); 2] = [
    ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us"),
    ("/sys/fs/cgroup", "cpu.max"),
];

/// Microseconds of CPU in each period of 100 ms: a sixth of a core.
const QUOTA_US: u32 = 16_000;
const QUOTA_V2: &str = "16000 100000";

/// Readers for each node.
const READERS: usize = 8;

/// Time between two checks of HAProxy, in milliseconds.
const CHECK_MS: u32 = 500;

/// What a reader does.
const QUERY: &str = "SELECT count(*)::text FROM generate_series(1, 2000)";

/// A group of processes with a CPU quota. Dropping it ends the limit, and removes the group if its processes
/// have ended.
#[derive(Debug)]
struct Quota(PathBuf);

impl Quota {
    /// Limits all processes of a server, and those that it will start.
    fn of(server: &Server) -> Result<Self> {
        let name = format!("lockstep-bench-{}-{}", std::process::id(), server.id().name);
        let mut refused = None;
        for (root, file) in CONTROLLERS {
            let folder = Path::new(root).join(&name);
            if !Path::new(root).join("cgroup.procs").exists() || fs::create_dir(&folder).is_err() {
                continue;
            }
            let quota = Self(folder);
            let value = match file {
                "cpu.max" => QUOTA_V2.to_owned(),
                _ => QUOTA_US.to_string(),
            };
            match quota.write(file, &value).and_then(|()| quota.take(server)) {
                Ok(()) => return Ok(quota),
                Err(error) => refused = Some(error),
            }
        }
        let words = refused.map_or_else(
            || "there is no CPU controller that this account may use".to_owned(),
            |error| error.to_string(),
        );
        Err(BenchError::Unusable(format!(
            "case scale needs cgroups with CPU quotas, which root has: {words}; leave it out with --cases"
        )))
    }

    fn write(&self, file: &str, value: &str) -> std::io::Result<()> {
        fs::write(self.0.join(file), value)
    }

    fn take(&self, server: &Server) -> std::io::Result<()> {
        let postmaster = server.pid().unwrap_or_default();
        self.write("cgroup.procs", &postmaster.to_string())?;
        for child in usage::children(postmaster) {
            // One that has just ended is no error.
            let _ = self.write("cgroup.procs", &child.to_string());
        }
        Ok(())
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // A server that has just been ended leaves the group within moments.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Reads a second through HAProxy on this many standbys.
pub fn run(lab: &Lab, product: &Path, standbys: usize, length: Duration) -> Result<f64> {
    // Dropped after the servers.
    let mut quotas = Vec::new();
    let mut nodes = Nodes::start(lab, standbys, &small(standbys), 1, false)?;
    for standby in nodes.servers.iter().skip(1) {
        quotas.push(Quota::of(standby)?);
    }
    let rules = AgentRules {
        bound: "1s",
        settle: "1s",
        rise: "1s",
    };
    nodes.start_agents(lab, product, &rules)?;
    let checks = Checks::Agents {
        product,
        when_all_late: "freshest",
    };
    let mut proxy = Proxy::start(lab, &nodes, checks, CHECK_MS)?;
    proxy.await_readers(standbys)?;
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let port = proxy.reads;
    let per_s = thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS * standbys)
            .map(|_| scope.spawn(|| read(port, &done, &stop)))
            .collect();
        // Sessions open one after the other, and the first seconds of a quota are no measure.
        thread::sleep(length / 5);
        let (before, began) = (done.load(Ordering::Relaxed), Instant::now());
        thread::sleep(length);
        let read = done.load(Ordering::Relaxed) - before;
        let per_s = read as f64 / began.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().try_for_each(joined).map(|()| per_s)
    })?;
    proxy.check()?;
    nodes.check_agents()?;
    drop(proxy);
    nodes.remove()?;
    Ok(per_s)
}

fn read(port: u16, done: &AtomicU64, stop: &AtomicBool) -> Result<()> {
    let failed = |error| BenchError::Unusable(format!("a reader failed: {error}"));
    let mut session = session(port).map_err(failed)?;
    while !stop.load(Ordering::Relaxed) {
        session.query(QUERY).map_err(failed)?;
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
