//! Load: pgbench processes, and what they report while they run.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::cluster::Lab;
use crate::error::ServerId;
use crate::launch::failure_line;
use crate::pinning::Side;
use crate::progress::{self, Micros, Progress};
use crate::server::{DATABASE, SUPERUSER, Server};
use crate::{LabError, Result};

pub use crate::address::APP_ROLE;

/// Rows that the aggregate query reads.
pub const AGGREGATE_ROWS: u32 = 3_000;

/// Rows that a report reads, if there are as many.
const REPORT_ROWS: u32 = 1_000_000;

/// Rows of pgbench_accounts for each unit of scale.
pub const ACCOUNTS_PER_SCALE: u32 = 100_000;

/// Megabytes of tables and indexes for each unit of scale, to estimate disk space.
pub const MB_PER_SCALE: u64 = 16;

/// `--time` of pgbench, longer than any run: a load is ended by a signal.
const SECONDS: &str = "1000000";

/// The newest lines of pgbench's messages that are kept, for an error.
const KEPT_LINES: usize = 20;

/// What the clients run. All use pgbench's default, the simple query protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// pgbench's TPC-B-like transaction.
    TpcB,
    /// One row of pgbench_accounts by primary key (`pgbench -S`).
    Select,
    /// Sum over [`AGGREGATE_ROWS`] consecutive rows of pgbench_accounts, from a random row on.
    Aggregate,
    /// Sum over the first 1,000,000 rows of pgbench_accounts, each in a new session.
    Report,
}

impl Workload {
    fn name(self) -> &'static str {
        match self {
            Self::TpcB => "write load",
            Self::Select | Self::Aggregate | Self::Report => "read load",
        }
    }
}

/// A running pgbench. Dropping the value ends pgbench.
#[derive(Debug)]
pub struct Load {
    name: &'static str,
    server: ServerId,
    child: Child,
    said: Arc<Said>,
    listener: Option<JoinHandle<()>>,
}

/// What pgbench has said so far.
#[derive(Debug, Default)]
struct Said {
    progress: Mutex<Vec<Progress>>,
    other: Mutex<Vec<String>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lab {
    /// Creates [`APP_ROLE`] with rights to read and write every present and future table.
    pub fn create_app_role(&self, primary: &Server) -> Result<()> {
        primary.execute(&format!(
            "CREATE ROLE {APP_ROLE} LOGIN; \
             GRANT pg_read_all_data, pg_write_all_data TO {APP_ROLE}"
        ))
    }

    /// Creates pgbench's tables and fills them, replacing those that exist.
    pub fn load_data(&self, primary: &Server, scale: u32) -> Result<()> {
        let mut pgbench = self.pgbench(primary, SUPERUSER);
        pgbench.args(["--initialize", "--quiet", "--scale"]);
        pgbench.arg(scale.to_string());
        self.launcher().run(pgbench)
    }

    /// Starts `clients` clients against `server`, on the cores of `side`, as fast as they
    /// can.
    pub fn start_load(
        &self,
        server: &Server,
        side: Side,
        workload: Workload,
        clients: u32,
        scale: u32,
    ) -> Result<Load> {
        self.start_paced_load(server, side, workload, clients, scale, None)
    }

    /// Like [`Lab::start_load`]; `rate` limits the transactions a second of all clients together.
    pub fn start_paced_load(
        &self,
        server: &Server,
        side: Side,
        workload: Workload,
        clients: u32,
        scale: u32,
        rate: Option<f64>,
    ) -> Result<Load> {
        let mut options: Vec<OsString> = Vec::new();
        if let Some(rate) = rate {
            options.push(format!("--rate={rate}").into());
        }
        match workload {
            Workload::TpcB => {}
            Workload::Select => options.push("--select-only".into()),
            Workload::Aggregate => {
                options.push("--file".into());
                options.push(self.aggregate_script(scale)?.into());
            }
            Workload::Report => {
                options.push("--connect".into());
                options.push("--file".into());
                options.push(self.report_script()?.into());
            }
        }
        self.start_pgbench(server, side, workload.name(), clients, &options)
    }

    /// Starts `clients` clients of pgbench with the options of every load and `options`, e.g. the
    /// caller's own scripts. `name` is for messages.
    pub fn start_pgbench(
        &self,
        server: &Server,
        side: Side,
        name: &'static str,
        clients: u32,
        options: &[OsString],
    ) -> Result<Load> {
        let mut pgbench = self.pgbench(server, APP_ROLE);
        pgbench.arg("--no-vacuum");
        pgbench.args(["--client", &clients.to_string()]);
        // Each side has one core; more threads would have to share it.
        pgbench.args(["--jobs", "1", "--time", SECONDS, "--progress-timestamp"]);
        pgbench.args(["--progress", &progress::INTERVAL.to_string()]);
        pgbench.args(options);
        pgbench.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = self.launcher().spawn(pgbench, side)?;
        let said = Arc::new(Said::default());
        let listener = child.stderr.take().map(|stderr| {
            let said = Arc::clone(&said);
            thread::spawn(move || listen(stderr, &said))
        });
        Ok(Load {
            name,
            server: server.id().clone(),
            child,
            said,
            listener,
        })
    }

    pub fn pgbench(&self, server: &Server, user: &str) -> Command {
        let mut pgbench = self.launcher().command(self.package().program("pgbench"));
        pgbench.arg("--host").arg(server.sockets());
        pgbench.args(["--port", &server.port().to_string()]);
        pgbench.args(["--username", user]);
        pgbench.env("PGDATABASE", DATABASE);
        pgbench
    }

    fn aggregate_script(&self, scale: u32) -> Result<std::path::PathBuf> {
        let last_start = scale * ACCOUNTS_PER_SCALE - AGGREGATE_ROWS + 1;
        let script = format!(
            "\\set first random(1, {last_start})\n\
             SELECT sum(abalance) FROM pgbench_accounts \
             WHERE aid BETWEEN :first AND :first + {};\n",
            AGGREGATE_ROWS - 1
        );
        self.write_file("aggregate.sql", &script)
    }

    fn report_script(&self) -> Result<std::path::PathBuf> {
        let script = format!(
            "SELECT count(*), sum(abalance) FROM pgbench_accounts WHERE aid <= {REPORT_ROWS};\n"
        );
        self.write_file("report.sql", &script)
    }
}

fn listen(stderr: ChildStderr, said: &Said) {
    for line in BufReader::new(stderr)
        .lines()
        .map_while(std::io::Result::ok)
    {
        if let Some(progress) = progress::parse(&line) {
            locked(&said.progress).push(progress);
        } else {
            let mut other = locked(&said.other);
            if other.len() >= KEPT_LINES {
                other.remove(0);
            }
            other.push(line);
        }
    }
}

impl Load {
    /// Returns an error if pgbench has ended: by itself, or because it lost all its clients.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                self.join_listener();
                Err(self.failure(status.to_string()))
            }
            Err(error) => Err(self.failure(error.to_string())),
        }
    }

    /// Transactions a second in the newest progress line.
    pub fn newest_tps(&self) -> Option<f64> {
        locked(&self.said.progress).last().map(|line| line.tps)
    }

    /// All progress lines so far.
    pub fn progress(&self) -> Vec<Progress> {
        locked(&self.said.progress).clone()
    }

    /// Transactions a second from `from` to `to`. An error if a client was lost or nothing was
    /// reported, since the figure would then be wrong.
    pub fn tps_between(&self, from: Micros, to: Micros) -> Result<f64> {
        let aborted = locked(&self.said.other)
            .iter()
            .find(|line| line.contains("aborted"))
            .cloned();
        if let Some(line) = aborted {
            return Err(self.failure(line));
        }
        progress::tps_between(&locked(&self.said.progress), from, to)
            .ok_or_else(|| self.failure("pgbench reported no progress".to_owned()))
    }

    fn failure(&self, otherwise: String) -> LabError {
        LabError::Load {
            load: self.name.to_owned(),
            server: self.server.clone(),
            reason: failure_line(&locked(&self.said.other).join("\n")).unwrap_or(otherwise),
        }
    }

    fn join_listener(&mut self) {
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // Only if it still runs: another process may have its process id by now.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
        self.join_listener();
    }
}
