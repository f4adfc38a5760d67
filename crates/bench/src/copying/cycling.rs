//! What follows the source of [`Servers`] with pauses: a replica, whose cycles are asked for, or a
//! subscription, which is disabled in between.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::field;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::Server;
use serde::Deserialize;

use super::servers::{PATIENCE, Servers, connect, conninfo, execute, refused};
use crate::benchmark::Site;
use crate::relay::follower::Running;
use crate::{BenchError, Result};

/// The replica's name in the target.
const REPLICA: &str = "bench";

/// A frequency that is longer than any benchmark: cycles begin when they are asked for.
pub const ON_REQUEST: &str = "30d";

/// Most bytes that a replica's spool may take.
const SPOOL: &str = "8GB";

/// Interval at which a server is asked whether something has happened.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A cycle, as `lockstep replica force` prints it.
#[derive(Debug, Clone, Deserialize)]
pub struct Cycle {
    pub elapsed_ms: u64,
    pub rows: u64,
    pub tables: u64,
    /// Bytes of the source's messages.
    pub sent_bytes: u64,
    /// Bytes of values that were sent to the target.
    pub write_bytes: u64,
}

/// What `lockstep plan` prints of a cycle.
#[derive(Debug, Deserialize)]
struct Planned {
    plan: PlannedCycle,
}

#[derive(Debug, Deserialize)]
struct PlannedCycle {
    budget_s: f64,
}

/// A replica.
#[derive(Debug)]
pub struct Replica<'a> {
    site: Site<'a>,
    source: String,
    target: String,
    /// The spool's folder, if cycles are asked for.
    spool: Option<PathBuf>,
    log: PathBuf,
    running: Option<Running>,
}

impl<'a> Replica<'a> {
    /// Copies the source's database. `cycles`: the target moves only when that is asked for.
    pub fn create(site: Site<'a>, servers: &Servers, cycles: bool) -> Result<Self> {
        let folder = site.lab.folder();
        let replica = Self {
            site,
            source: conninfo(&servers.source),
            target: conninfo(&servers.target),
            spool: cycles.then(|| folder.join("spool")),
            log: folder.join("replica.log"),
            running: None,
        };
        let frequency = if cycles { ON_REQUEST } else { "0" };
        // Stock's subscription has the same database.
        let ends = ["--source", &replica.source, "--read-only", "off"];
        replica.call("create", &[&ends[..], &["--frequency", frequency]].concat())?;
        Ok(replica)
    }

    fn call(&self, verb: &str, options: &[&str]) -> Result<String> {
        let launcher = self.site.lab.launcher();
        let mut call = launcher.command_as_ourselves(self.site.product);
        call.args(["replica", verb, REPLICA, "--target", &self.target]);
        call.args(options);
        Ok(launcher.output(call)?)
    }

    /// Starts `lockstep replica run`.
    pub fn start(&mut self) -> Result<()> {
        let launcher = self.site.lab.launcher();
        let mut run = launcher.command_as_ourselves(self.site.product);
        run.args(["replica", "run", REPLICA, "--target", &self.target]);
        if let Some(folder) = &self.spool {
            run.arg("--spool-dir").arg(folder);
            run.args(["--spool-limit", SPOOL]);
        }
        self.running = Some(Running::start(self.site.lab, run, Side::Both, &self.log)?);
        Ok(())
    }

    pub fn stop(&mut self) -> Result<()> {
        self.running.take().map_or(Ok(()), Running::stop)
    }

    /// CPU seconds of the process that runs now.
    pub fn cpu_s(&self) -> f64 {
        self.running.as_ref().map_or(0.0, Running::cpu_s)
    }

    /// The most memory that the process which runs now has had, in MB.
    pub fn peak_mb(&self) -> Option<f64> {
        let pid = self.running.as_ref()?.pid();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))?;
        let kb: f64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kb / 1024.0)
    }

    /// Waits until everything that is committed on the source now is in the spool.
    pub fn await_spooled(&mut self, source: &Server) -> Result<()> {
        let end = source.flush_lsn()?;
        let slot = format!("lockstep\\_{REPLICA}\\_%");
        let sql = format!(
            "SELECT count(*) FROM pg_replication_slots \
             WHERE slot_name LIKE '{slot}' AND confirmed_flush_lsn >= '{end}'"
        );
        self.until(source, &sql)
    }

    /// Waits until a query on a server counts something.
    pub fn until(&mut self, server: &Server, sql: &str) -> Result<()> {
        until(server, sql, || {
            self.running.as_mut().map_or(Ok(()), Running::check)
        })
    }

    /// Asks for a cycle, and waits for its end.
    pub fn force(&self) -> Result<Cycle> {
        let printed = self.call("force", &["--output", "json"])?;
        serde_json::from_str(&printed)
            .map_err(|error| BenchError::Unusable(format!("replica force: {error}")))
    }

    /// Seconds that a cycle would take by the replica's history.
    pub fn forecast(&self, tables: u64, bytes: u64) -> Result<f64> {
        let launcher = self.site.lab.launcher();
        let mut call = launcher.command_as_ourselves(self.site.product);
        call.args(["plan", "--from", REPLICA, "--target", &self.target]);
        call.args(["--tables", &tables.to_string()]);
        call.args(["--data", &format!("{bytes}B"), "--output", "json"]);
        let planned: Planned = serde_json::from_str(&launcher.output(call)?)
            .map_err(|error| BenchError::Unusable(format!("plan: {error}")))?;
        Ok(planned.plan.budget_s)
    }

    /// Ends it, and removes all but the copied tables.
    pub fn remove(mut self) -> Result<()> {
        self.stop()?;
        self.call("drop", &[])?;
        match &self.spool {
            Some(folder) => {
                std::fs::remove_dir_all(folder).map_err(BenchError::io("remove", folder))
            }
            None => Ok(()),
        }
    }
}

/// A subscription to all tables of the source, disabled at first. It copies no rows.
#[derive(Debug)]
pub struct Subscription<'a> {
    servers: &'a Servers,
}

impl<'a> Subscription<'a> {
    pub fn create(servers: &'a Servers) -> Result<Self> {
        execute(&servers.source, "CREATE PUBLICATION stock FOR ALL TABLES")?;
        execute(
            &servers.target,
            &format!(
                "CREATE SUBSCRIPTION stock CONNECTION '{}' PUBLICATION stock \
                 WITH (copy_data = false, enabled = false, binary = true)",
                conninfo(&servers.source)
            ),
        )?;
        Ok(Self { servers })
    }

    pub fn enable(&mut self) -> Result<()> {
        execute(&self.servers.target, "ALTER SUBSCRIPTION stock ENABLE")
    }

    pub fn disable(&mut self) -> Result<()> {
        execute(&self.servers.target, "ALTER SUBSCRIPTION stock DISABLE")?;
        let sql = "SELECT count(*) FROM pg_stat_subscription \
                   HAVING count(*) FILTER (WHERE pid IS NOT NULL) = 0";
        until(&self.servers.target, sql, || Ok(()))
    }

    /// Waits until it has told the source that it has all that is committed there now.
    pub fn await_received(&mut self) -> Result<()> {
        let end = self.servers.source.flush_lsn()?;
        let sql =
            format!("SELECT count(*) FROM pg_stat_subscription WHERE latest_end_lsn >= '{end}'");
        until(&self.servers.target, &sql, || Ok(()))
    }

    /// Waits until a query on the target counts something.
    pub fn until(&self, sql: &str) -> Result<()> {
        until(&self.servers.target, sql, || Ok(()))
    }

    pub fn remove(self) -> Result<()> {
        execute(&self.servers.target, "DROP SUBSCRIPTION stock")?;
        execute(&self.servers.source, "DROP PUBLICATION stock")
    }
}

/// Waits until a query on a server counts something, as long as `check` finds nothing wrong.
pub fn until(server: &Server, sql: &str, mut check: impl FnMut() -> Result<()>) -> Result<()> {
    let mut session = connect(server)?;
    let began = Instant::now();
    loop {
        check()?;
        let row = session.query_opt(sql).map_err(refused(server))?;
        let count: u64 = row
            .map_or(Ok(0), |row| field(&row, 0))
            .map_err(refused(server))?;
        if count > 0 {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            return Err(BenchError::Unusable(format!("in vain: {sql}")));
        }
        thread::sleep(LOOK_EVERY);
    }
}
