//! The `lockstep-lab` command: the demo, benchmarks, recordings of WAL, comparison of clusters.
//!
//! The modules are layers: each uses those above it in this table.
//!
//! | module | what |
//! |---|---|
//! | `name` | the program's name |
//! | `exit` | which exit code an error gives |
//! | `live`, `steps`, `terminal` | how a run shows itself on a terminal, and in lines elsewhere |
//! | `tpcc` | `lockstep-lab tpcc` |
//! | `wal` | `lockstep-lab wal` |
//! | `args` | the command line |
//! | `bench` | `lockstep-lab demo`, `lockstep-lab demo-pool` and `lockstep-lab bench` |
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod args;
mod bench;
mod exit;
mod live;
mod name;
mod steps;
mod terminal;
mod tpcc;
mod wal;

use std::process::ExitCode;

use anyhow::{Context, Result};
use lockstep_lab::guard;
use lockstep_service::words::output;

use args::{Cli, Command, PROGRAM};

fn main() -> ExitCode {
    let Cli { command } = match PROGRAM.parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let Err(error) = run(&command) else {
        return PROGRAM.done(ExitCode::SUCCESS);
    };
    if guard::asked_to_end().is_some() {
        // The failure is only a consequence of the signal. The thread that handles the signal
        // exits the process once everything is cleaned up.
        loop {
            std::thread::park();
        }
    }
    PROGRAM.failed(&*error, exit::code(&error))
}

fn run(command: &Command) -> Result<()> {
    match command {
        Command::Demo(args) => bench::run_demo(args),
        Command::DemoPool(args) => bench::run_demo_pool(args),
        Command::Bench { benchmark } => bench::run(benchmark),
        Command::Tpcc { command } => tpcc::run(command),
        Command::Wal { command } => wal::run(command),
        Command::Completion { shell } => {
            output::write(&PROGRAM.completion(*shell));
            Ok(())
        }
        Command::Man { folder } => PROGRAM
            .write_man_pages(folder)
            .with_context(|| format!("cannot write man pages into {}", folder.display())),
        Command::Reap => Ok(guard::run_reaper()?),
    }
}
