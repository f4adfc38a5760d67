//! The `lockstep` command: reads arguments, prints text or JSON, and returns an exit code.
//!
//! The modules are layers: each uses those above it in this table.
//!
//! | module | what |
//! |---|---|
//! | `name` | the program's name |
//! | `exit` | which exit code an error gives |
//! | `nodes` | the servers that are named on the command line or in a file |
//! | `doors` | options of what answers HTTP: logins, TLS, the log |
//! | `doctor` | `lockstep doctor` |
//! | `top` | `lockstep top` |
//! | `pool` | `lockstep pool` |
//! | `serve` | `lockstep serve` |
//! | `relay` | `lockstep relay` |
//! | `replica` | `lockstep replica` |
//! | `plan` | `lockstep plan` |
//! | `wal` | `lockstep wal` |
//! | `args` | the command line |
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
mod doctor;
mod doors;
mod exit;
mod name;
mod nodes;
mod plan;
mod pool;
mod relay;
mod replica;
mod serve;
mod top;
mod wal;

use std::process::ExitCode;

use anyhow::{Context, Result};
use lockstep_service::words::output;

use args::{Cli, Command, PROGRAM};

fn main() -> ExitCode {
    let Cli { command } = match PROGRAM.parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    match run(&command) {
        Ok(code) => PROGRAM.done(code),
        Err(error) => PROGRAM.failed(&*error, exit::code(&error)),
    }
}

fn run(command: &Command) -> Result<ExitCode> {
    let done = match command {
        Command::Doctor(args) => return doctor::run(args),
        Command::Pool { command } => return pool::run(command),
        Command::Top(args) => top::run(args),
        Command::Relay(args) => relay::run(args),
        Command::Replica { command } => replica::run(command),
        Command::Plan(args) => plan::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Wal { command } => wal::run(command),
        Command::Completion { shell } => {
            output::write(&PROGRAM.completion(*shell));
            Ok(())
        }
        Command::Man { folder } => PROGRAM
            .write_man_pages(folder)
            .with_context(|| format!("cannot write man pages into {}", folder.display())),
    };
    done.map(|()| ExitCode::SUCCESS)
}
