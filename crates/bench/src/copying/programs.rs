//! Ways to copy a whole database, with schema, rows, indexes and statistics.

use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::field;
use lockstep_lab::LabError;
use lockstep_lab::cluster::Lab;
use lockstep_lab::launch::failure_line;
use lockstep_lab::pinning::Side;
use serde_json::Value;

use super::Took;
use super::servers::{PATIENCE, Servers, connect, conninfo, execute, refused};
use crate::benchmark::Site;
use crate::table::Named;
use crate::{BenchError, Result};

/// Where Debian's package installs pgcopydb.
pub const PGCOPYDB: &str = "/usr/bin/pgcopydb";

/// The replica's name in the target.
const REPLICA: &str = "bench";

/// Interval at which a subscription is asked whether its tables are there.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A way to copy a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// `lockstep replica create`.
    Lockstep,
    /// The initial synchronisation of a subscription, binary where the major has that.
    StockSync,
    /// pg_dump into a folder and pg_restore from it.
    DumpRestore,
    /// `pgcopydb clone`.
    Pgcopydb,
}

impl Peer {
    pub const ALL: [Self; 4] = [
        Self::Lockstep,
        Self::StockSync,
        Self::DumpRestore,
        Self::Pgcopydb,
    ];

    /// False if this machine does not have it.
    pub fn is_there(self, pgcopydb: &Path) -> bool {
        self != Self::Pgcopydb || pgcopydb.is_file()
    }
}

impl Named for Peer {
    fn name(&self) -> &'static str {
        match self {
            Self::Lockstep => "lockstep",
            Self::StockSync => "stock-sync",
            Self::DumpRestore => "dump-restore",
            Self::Pgcopydb => "pgcopydb",
        }
    }
}

/// Copies the source's database to the target's, which is empty.
pub fn copy(
    site: Site<'_>,
    servers: &Servers,
    peer: Peer,
    jobs: u32,
    pgcopydb: &Path,
) -> Result<Took> {
    match peer {
        Peer::Lockstep => lockstep(site, servers, jobs),
        Peer::StockSync => stock_sync(site.lab, servers, jobs),
        Peer::DumpRestore => dump_restore(site.lab, servers, jobs),
        Peer::Pgcopydb => run_pgcopydb(site.lab, servers, jobs, pgcopydb),
    }
}

/// Where a line about a way that is not there goes.
pub fn left_out(pgcopydb: &Path) -> Option<String> {
    let missing = !Peer::Pgcopydb.is_there(pgcopydb);
    missing.then(|| format!("SKIP pgcopydb: {} is not there", pgcopydb.display()))
}

fn lockstep(site: Site<'_>, servers: &Servers, jobs: u32) -> Result<Took> {
    let launcher = site.lab.launcher();
    let target = conninfo(&servers.target);
    let mut create = launcher.command_as_ourselves(site.product);
    create.args(["replica", "create", REPLICA, "--output", "json"]);
    create.args(["--source", &conninfo(&servers.source), "--target", &target]);
    create.args(["--jobs", &jobs.to_string()]);
    let began = Instant::now();
    let printed = launcher.output(create)?;
    let seconds = began.elapsed().as_secs_f64();
    let printed: Value = serde_json::from_str(&printed)
        .map_err(|error| BenchError::Unusable(format!("replica create: {error}")))?;
    // Its slot would keep the WAL of all turns after it.
    let mut drop = launcher.command_as_ourselves(site.product);
    drop.args(["replica", "drop", REPLICA, "--target", &target]);
    launcher.run(drop)?;
    Ok(Took {
        seconds,
        copy_seconds: printed.get("copy_seconds").and_then(Value::as_f64),
    })
}

fn dump_restore(lab: &Lab, servers: &Servers, jobs: u32) -> Result<Took> {
    let folder = lab.folder().join("dump");
    let jobs_option = format!("--jobs={jobs}");
    let mut dump = lab.launcher().command(lab.package().program("pg_dump"));
    dump.args(["--format=directory", "--compress=0", &jobs_option]);
    dump.arg("--file").arg(&folder);
    dump.arg(conninfo(&servers.source));
    let mut restore = lab.launcher().command(lab.package().program("pg_restore"));
    restore.args([&jobs_option, "--dbname", &conninfo(&servers.target)]);
    restore.arg(&folder);
    let began = Instant::now();
    lab.launcher().run(dump)?;
    lab.launcher().run(restore)?;
    analyze(lab, servers, jobs)?;
    let seconds = began.elapsed().as_secs_f64();
    remove(&folder)?;
    Ok(Took::whole(seconds))
}

fn remove(folder: &Path) -> Result<()> {
    std::fs::remove_dir_all(folder).map_err(BenchError::io("remove", folder))
}

fn analyze(lab: &Lab, servers: &Servers, jobs: u32) -> Result<()> {
    let mut analyze = lab.launcher().command(lab.package().program("vacuumdb"));
    analyze.args(["--analyze-only", "--quiet"]);
    analyze.arg(format!("--jobs={jobs}"));
    analyze.arg(conninfo(&servers.target));
    Ok(lab.launcher().run(analyze)?)
}

fn stock_sync(lab: &Lab, servers: &Servers, jobs: u32) -> Result<Took> {
    let Servers { source, target, .. } = servers;
    let began = Instant::now();
    copy_schema(lab, servers)?;
    execute(source, "CREATE PUBLICATION stock FOR ALL TABLES")?;
    let format = match lab.package().major().get() {
        16.. => ", binary = true",
        _ => "",
    };
    let copying = Instant::now();
    execute(
        target,
        &format!(
            "CREATE SUBSCRIPTION stock CONNECTION '{}' PUBLICATION stock \
             WITH (copy_data = true{format})",
            conninfo(source)
        ),
    )?;
    let mut session = connect(target)?;
    loop {
        let row = session.query_one(
            "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate NOT IN ('s', 'r')",
        );
        let left: u64 = row
            .and_then(|row| field(&row, 0))
            .map_err(refused(target))?;
        if left == 0 {
            break;
        }
        if copying.elapsed() > PATIENCE {
            let words = format!("stock's subscription has {left} tables left");
            return Err(BenchError::Unusable(words));
        }
        thread::sleep(LOOK_EVERY);
    }
    let copy_seconds = copying.elapsed().as_secs_f64();
    analyze(lab, servers, jobs)?;
    let seconds = began.elapsed().as_secs_f64();
    drop(session);
    execute(target, "DROP SUBSCRIPTION stock")?;
    execute(source, "DROP PUBLICATION stock")?;
    Ok(Took {
        seconds,
        copy_seconds: Some(copy_seconds),
    })
}

fn copy_schema(lab: &Lab, servers: &Servers) -> Result<()> {
    let mut dump = lab.launcher().command(lab.package().program("pg_dump"));
    dump.args(["--schema-only", &conninfo(&servers.source)]);
    let schema = lab.launcher().output(dump)?;
    let schema = lab.write_file("schema.sql", &schema)?;
    let mut psql = lab.launcher().command(lab.package().program("psql"));
    psql.args(["--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1"]);
    psql.arg("--single-transaction").arg("--file").arg(schema);
    psql.arg(conninfo(&servers.target));
    Ok(lab.launcher().run(psql)?)
}

fn run_pgcopydb(lab: &Lab, servers: &Servers, jobs: u32, program: &Path) -> Result<Took> {
    let folder = lab.folder().join("pgcopydb");
    let jobs = jobs.to_string();
    let mut command = lab.launcher().command(program);
    let path = std::env::join_paths([lab.package().bin(), Path::new("/usr/bin")]);
    command.env("PATH", path.unwrap_or_default());
    command.args(["clone", "--table-jobs", &jobs, "--index-jobs", &jobs]);
    command.args(["--source", &conninfo(&servers.source)]);
    command.args(["--target", &conninfo(&servers.target)]);
    command.arg("--dir").arg(&folder);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let began = Instant::now();
    let child = lab.launcher().spawn(command, Side::Both)?;
    let output = child
        .wait_with_output()
        .map_err(BenchError::io("wait for", program))?;
    let seconds = began.elapsed().as_secs_f64();
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        let failed = LabError::Program {
            program: Peer::Pgcopydb.name().to_owned(),
            reason: failure_line(&words).unwrap_or_else(|| output.status.to_string()),
        };
        return Err(failed.into());
    }
    remove(&folder)?;
    Ok(Took::whole(seconds))
}
