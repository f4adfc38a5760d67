//! The `lockstep` command: reads arguments, prints text or JSON, and returns an exit code.
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
mod doctor;
mod exit;
mod live;
mod nodes;
mod relay;
mod replica;
mod serve;
mod steps;
mod terminal;
mod top;
mod wal;

use std::process::ExitCode;

use args::Command;

fn main() -> ExitCode {
    let command = match args::parse() {
        Ok(command) => command,
        Err(code) => return code,
    };
    let result = match command {
        Command::Demo(args) => bench::run_demo(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Relay(args) => relay::run(&args),
        Command::Replica { command } => replica::run(&command),
        Command::Serve(args) => serve::run(&args),
        Command::Bench { benchmark } => bench::run(&benchmark),
        Command::Wal { command } => wal::run(&command),
        Command::Completion { shell } => args::complete(shell),
        Command::Man { folder } => args::write_man_pages(&folder),
        Command::Reap => lockstep_lab::guard::run_reaper().map_err(anyhow::Error::from),
    };
    exit::code_of(result)
}
