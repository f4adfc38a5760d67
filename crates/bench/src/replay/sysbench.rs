//! Writes of another project's load generator: sysbench's `oltp_write_only`, as its Debian package has it.
//! They are its `oltp_read_write` without the reads, which leave no WAL.
//!
//! The WAL of sysbench was not looked at while costs and rules of parallel replay were chosen.

use std::path::Path;
use std::process::Command;

use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{DATABASE, SUPERUSER, Server};

use crate::Result;

/// Where Debian's package installs it.
const SYSBENCH: &str = "/usr/bin/sysbench";

/// Tables that it writes to.
const TABLES: u32 = 8;

/// Sessions that fill them.
const JOBS: u32 = 2;

pub fn is_there() -> bool {
    Path::new(SYSBENCH).is_file()
}

/// What is said where it is not there.
pub fn left_out() -> String {
    format!("SKIP sysbench: {SYSBENCH} is not there")
}

/// Fills the tables with `rows` in all.
pub fn prepare(lab: &Lab, primary: &Server, rows: u32) -> Result<()> {
    let mut prepare = command(lab, primary, JOBS, rows);
    prepare.arg("prepare");
    Ok(lab.launcher().run(prepare)?)
}

/// Writes for so many seconds.
pub fn run(lab: &Lab, primary: &Server, clients: u32, rows: u32, seconds: u32) -> Result<()> {
    let mut run = command(lab, primary, clients, rows);
    run.arg(format!("--time={seconds}")).arg("run");
    Ok(lab.launcher().run(run)?)
}

fn command(lab: &Lab, primary: &Server, threads: u32, rows: u32) -> Command {
    let mut sysbench = lab.launcher().command(SYSBENCH);
    sysbench.args(["oltp_write_only", "--db-driver=pgsql"]);
    sysbench.arg(format!("--pgsql-host={}", primary.sockets().display()));
    sysbench.arg(format!("--pgsql-port={}", primary.port()));
    sysbench.arg(format!("--pgsql-user={SUPERUSER}"));
    sysbench.arg(format!("--pgsql-db={DATABASE}"));
    sysbench.arg(format!("--threads={threads}"));
    sysbench.arg(format!("--tables={TABLES}"));
    sysbench.arg(format!("--table-size={}", (rows / TABLES).max(1)));
    sysbench
}
