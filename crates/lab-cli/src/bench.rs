//! Benchmarks and the demo: they measure in a library of their own, which is told here what
//! program it is a part of and how to show itself.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use lockstep_bench::demo::{self, DemoArgs};
use lockstep_bench::demo_pool::{self, PoolDemoArgs};
use lockstep_bench::host::Host;
use lockstep_bench::measurements;
use lockstep_service::words::output::{self, Output};

use crate::args::Bench;
use crate::exit::SIGNAL_BASE;
use crate::name::complain;
use crate::terminal::Terminal;

pub fn run(benchmark: &Bench) -> Result<()> {
    match benchmark {
        Bench::Measure(command) => {
            leave_libpq_variables()?;
            Ok(command.run(&host()?, &mut Terminal::new(Output::Text))?)
        }
        Bench::Measurements { tree } => {
            for path in measurements::write(tree)? {
                output::print(&format!("written: {}", path.display()));
            }
            Ok(())
        }
    }
}

pub fn run_demo(args: &DemoArgs) -> Result<()> {
    leave_libpq_variables()?;
    Ok(demo::run(args, &host()?, &mut Terminal::new(args.output))?)
}

pub fn run_demo_pool(args: &PoolDemoArgs) -> Result<()> {
    leave_libpq_variables()?;
    Ok(demo_pool::run(
        args,
        &host()?,
        &mut Terminal::new(Output::Text),
    )?)
}

/// The user's libpq variables are for the user's servers: `PGHOSTADDR`, `PGSERVICE` or `PGTZ`
/// would lead connections to private servers elsewhere, or break them. libpq reads its
/// environment whatever a connection string says, so this program starts again without them.
fn leave_libpq_variables() -> Result<()> {
    let is_libpqs = |name: &str| {
        let name = name.strip_prefix("PG").unwrap_or_default();
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_uppercase())
    };
    let mut again = Command::new(program()?);
    let mut found = false;
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_libpqs) {
            again.env_remove(name);
            found = true;
        }
    }
    if !found {
        return Ok(());
    }
    let error = again.args(std::env::args_os().skip(1)).exec();
    Err(error).context("cannot start again without libpq's variables")
}

fn program() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find the program that runs")
}

fn host() -> Result<Host> {
    Ok(Host::new(program()?, |signal| {
        complain("interrupted; all servers are stopped and their files removed");
        std::process::exit(SIGNAL_BASE + signal);
    }))
}
