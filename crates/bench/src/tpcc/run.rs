//! One run of the five transactions.

use std::process::Stdio;
use std::thread;

use lockstep_lab::LabError;
use lockstep_lab::error::one_line;
use lockstep_lab::progress::{self, Progress};

use super::TpccError;
use super::load::{Probe, count_warehouses};
use super::report::Report;
use super::scripts::arguments;
use super::tools::Tools;
use crate::{BenchError, Result};

/// How to run.
#[derive(Debug, Clone, Copy)]
pub struct RunOptions {
    /// Sessions.
    pub clients: u32,
    /// How long.
    pub seconds: u32,
    /// Transactions a minute, of all kinds together; None is as many as possible.
    pub per_minute: Option<u32>,
}

/// Runs the five transactions on a loaded database. `heard` hears the throughput every
/// [`progress::INTERVAL`].
pub fn run(
    tools: &Tools,
    conninfo: &str,
    options: &RunOptions,
    mut heard: impl FnMut(Progress),
) -> Result<Report> {
    let probe = Probe::of(tools, conninfo)?;
    probe.refuse_read_only()?;
    probe.refuse_not_loaded()?;
    let warehouses = count_warehouses(tools, conninfo)?;

    let mut pgbench = tools.command("pgbench");
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(options.clients as usize).max(1);
    pgbench.arg("--no-vacuum");
    pgbench.arg(format!("--client={}", options.clients));
    pgbench.arg(format!("--jobs={threads}"));
    pgbench.arg(format!("--time={}", options.seconds));
    pgbench.arg(format!("--progress={}", progress::INTERVAL));
    pgbench.arg("--progress-timestamp");
    if let Some(per_minute) = options.per_minute {
        pgbench.arg(format!("--rate={}", f64::from(per_minute) / 60.0));
    }
    let (arguments, scripts) = arguments(tools, warehouses)?;
    pgbench.args(arguments);
    // The conninfo is an operand: nothing in it can be an option.
    pgbench.arg("--").arg(conninfo);
    pgbench.stdout(Stdio::piped()).stderr(Stdio::piped());

    let child = tools.spawn(pgbench)?;
    let ended = tools.finish(child, "", |line| {
        if let Some(progress) = progress::parse(line) {
            heard(progress);
        }
    })?;
    drop(scripts);
    if ended.code != Some(0) {
        return Err(failure(&ended.stderr));
    }
    Report::parse(&ended.stdout, warehouses).ok_or_else(|| {
        TpccError::Answer {
            program: "pgbench",
            answer: one_line(&ended.stdout),
        }
        .into()
    })
}

/// pgbench's first error is the cause; those after it are consequences.
fn failure(stderr: &str) -> BenchError {
    let cause = stderr
        .lines()
        .find(|line| {
            ["error:", "ERROR:", "FATAL:"]
                .iter()
                .any(|word| line.contains(word))
        })
        .map_or_else(|| "it was killed".to_owned(), one_line);
    match cause.split_once("connection to server") {
        Some((_, rest)) => TpccError::Unreachable {
            reason: format!("connection to server{rest}"),
        }
        .into(),
        None => LabError::Program {
            program: "pgbench".to_owned(),
            reason: cause,
        }
        .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_is_the_cause() {
        let refused = failure(
            "pgbench: error: connection to server on socket \"x\" failed: FATAL:  sorry, too many clients already\n\
             pgbench: error: could not create connection for client 52\n",
        );
        assert_eq!(
            refused.to_string(),
            "the connection failed: connection to server on socket \"x\" failed: FATAL: sorry, too many clients already"
        );
        let aborted = failure(
            "pgbench: error: client 3 script 1 aborted in command 9 query 0: ERROR:  no\n\
             pgbench: error: Run was aborted; the above results are incomplete.\n",
        );
        assert!(
            aborted.to_string().ends_with("query 0: ERROR: no"),
            "{aborted}"
        );
        assert!(failure("").to_string().contains("killed"));
    }
}
