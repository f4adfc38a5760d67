//! `lockstep-lab tpcc`: TPC-C on a server that the user already runs.

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, Subcommand, value_parser};
use indicatif::{ProgressBar, ProgressStyle};
use lockstep_bench::tpcc::{
    self, CONDITIONS, Condition, LoadOptions, MAX_WAREHOUSES, Report, RunOptions, Tools,
};
use lockstep_lab::package::{Major, Package};
use lockstep_service::exit::Failure;
use lockstep_service::words::output::{self, Output};
use lockstep_service::words::{figures, lines};
use serde::Serialize;

use crate::exit::SIGNAL_BASE;
use crate::name::complain;

/// What to do with TPC-C.
#[derive(Debug, Subcommand)]
pub enum TpccCommand {
    /// Create the nine tables in schema tpcc and fill them
    ///
    /// Each warehouse has the specification's number of rows, about 100 MB. The server generates the
    /// rows itself, in parallel sessions; keys and indexes are created after the data. A database that
    /// already has one of the tables in schema tpcc is refused.
    Load(LoadArgs),
    /// Run the five transactions and report throughput and latencies
    ///
    /// There are no keying and think times; --tpm paces the run. Warehouses are chosen at random, and
    /// nothing is audited: figures are not comparable with published tpmC.
    Run(RunArgs),
    /// Check the specification's twelve consistency conditions, on a primary or a standby
    ///
    /// Uses one read-only transaction with one snapshot, so it also works during load or replay. Exit
    /// code 5: a condition is violated.
    Check(CheckArgs),
}

/// The server, and the programs that talk to it.
#[derive(Debug, Args)]
pub struct Connection {
    /// The database: a libpq connection string or URI, or its name; "" for libpq's defaults
    #[arg(value_name = "CONNINFO")]
    pub conninfo: String,
    /// PostgreSQL major, 15 to 19, whose psql and pgbench are used, from /usr/lib/postgresql
    #[arg(
        long,
        value_name = "MAJOR",
        env = "PG",
        hide_env_values = true,
        default_value = "15"
    )]
    pub pg: Major,
}

/// `lockstep-lab tpcc load`
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// Number of warehouses
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=i64::from(MAX_WAREHOUSES)))]
    pub warehouses: u32,
    /// Sessions at a time [default: one for each core of this machine]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=100))]
    pub jobs: Option<u32>,
    /// Drop the nine tables first if they exist
    #[arg(long)]
    pub replace: bool,
    /// Where.
    #[command(flatten)]
    pub connection: Connection,
}

/// `lockstep-lab tpcc run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Sessions
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = value_parser!(u32).range(1..=900))]
    pub clients: u32,
    /// Transactions a minute of all five kinds together [default: as many as possible]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=100_000_000))]
    pub tpm: Option<u32>,
    /// Seconds to run
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,
    /// Format of the result on standard output
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    pub output: Output,
    /// Where.
    #[command(flatten)]
    pub connection: Connection,
}

/// `lockstep-lab tpcc check`
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Format of the result on standard output
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    pub output: Output,
    /// Where.
    #[command(flatten)]
    pub connection: Connection,
}

pub fn run(command: &TpccCommand) -> Result<()> {
    match command {
        TpccCommand::Load(args) => load(args),
        TpccCommand::Run(args) => run_transactions(args),
        TpccCommand::Check(args) => check(args),
    }
}

fn tools(connection: &Connection) -> Result<Tools> {
    let tools = Tools::direct(Package::find(connection.pg)?);
    tools.end_on_signals(|signal| {
        complain("interrupted; what was not committed is rolled back");
        std::process::exit(SIGNAL_BASE + signal);
    })?;
    Ok(tools)
}

/// A bar on a terminal (standard error), nothing elsewhere.
fn bar(steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {msg} {elapsed_precise}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(steps).with_style(style);
    bar.enable_steady_tick(Duration::from_secs(1));
    bar
}

fn load(args: &LoadArgs) -> Result<()> {
    let tools = tools(&args.connection)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let options = LoadOptions {
        warehouses: args.warehouses,
        jobs: args.jobs.unwrap_or(u32::try_from(cores).unwrap_or(1)),
        replace: args.replace,
    };
    let started = Instant::now();
    let bar = bar(1);
    let result = tpcc::load(&tools, &args.connection.conninfo, &options, &|n, of| {
        bar.set_length(of as u64);
        bar.set_position(n as u64);
        bar.set_message(format!("step {n} of {of}"));
    });
    bar.finish_and_clear();
    result?;
    output::print(&format!(
        "loaded {} into schema {} in {}",
        warehouses(args.warehouses),
        tpcc::SCHEMA,
        figures::duration(started.elapsed().as_secs())
    ));
    Ok(())
}

fn warehouses(n: u32) -> String {
    match n {
        1 => "1 warehouse".to_owned(),
        n => format!("{} warehouses", figures::count(f64::from(n))),
    }
}

/// The result of a run for machines.
#[derive(Debug, Serialize)]
struct Run {
    warehouses: u32,
    clients: u32,
    seconds: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    tpm_asked: Option<u32>,
    transactions: u64,
    tpm: f64,
    new_orders_per_min: f64,
    failed: u64,
    retried: u64,
    retries: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule_lag_ms: Option<f64>,
    kinds: Vec<Kind>,
}

/// One kind of transaction in it.
#[derive(Debug, Serialize)]
struct Kind {
    name: &'static str,
    weight_percent: u32,
    transactions: u64,
    tpm: f64,
    failed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency_stddev_ms: Option<f64>,
}

impl Run {
    fn new(args: &RunArgs, report: &Report) -> Self {
        Self {
            warehouses: report.warehouses,
            clients: args.clients,
            seconds: args.seconds,
            tpm_asked: args.tpm,
            transactions: report.transactions,
            tpm: report.per_minute,
            new_orders_per_min: report.new_orders_per_minute,
            failed: report.failed,
            retried: report.retried,
            retries: report.retries,
            schedule_lag_ms: report.schedule_lag_ms,
            kinds: report
                .kinds
                .iter()
                .map(|kind| Kind {
                    name: kind.transaction.name(),
                    weight_percent: kind.transaction.weight(),
                    transactions: kind.transactions,
                    tpm: kind.per_minute,
                    failed: kind.failed,
                    latency_ms: kind.latency_ms,
                    latency_stddev_ms: kind.latency_stddev_ms,
                })
                .collect(),
        }
    }

    fn lines(&self) -> Vec<String> {
        let ms = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), figures::ms);
        let mut rows = vec![
            [
                "transaction",
                "done",
                "a minute",
                "mean",
                "std dev",
                "failed",
            ]
            .map(str::to_owned)
            .to_vec(),
        ];
        for kind in &self.kinds {
            rows.push(vec![
                kind.name.to_owned(),
                figures::count(kind.transactions as f64),
                figures::count(kind.tpm),
                ms(kind.latency_ms),
                ms(kind.latency_stddev_ms),
                figures::count(kind.failed as f64),
            ]);
        }
        let mut lines = vec![format!(
            "TPC-C, {}, {} clients, {}",
            warehouses(self.warehouses),
            self.clients,
            figures::duration(u64::from(self.seconds))
        )];
        lines.extend(lines::table(&rows));
        let asked = self.tpm_asked.map_or_else(String::new, |tpm| {
            format!(" of {} asked for", figures::count(f64::from(tpm)))
        });
        lines.push(format!(
            "{} transactions a minute{asked}, {} New-Orders a minute (tpmC); {} failed, {} retried",
            figures::count(self.tpm),
            figures::count(self.new_orders_per_min),
            figures::count(self.failed as f64),
            figures::count(self.retried as f64),
        ));
        if let Some(lag) = self.schedule_lag_ms {
            lines.push(format!(
                "transactions started {} after their time on average; latencies include that",
                figures::ms(lag)
            ));
        }
        lines.push(
            "no keying or think times, warehouses at random: not comparable with published tpmC"
                .to_owned(),
        );
        lines
    }
}

fn run_transactions(args: &RunArgs) -> Result<()> {
    let tools = tools(&args.connection)?;
    let options = RunOptions {
        clients: args.clients,
        seconds: args.seconds,
        per_minute: args.tpm,
    };
    let bar = bar(u64::from(args.seconds));
    let result = tpcc::run(&tools, &args.connection.conninfo, &options, |progress| {
        bar.inc(1);
        let tpm = figures::count(progress.tps * 60.0);
        bar.set_message(format!("{tpm} a minute"));
    });
    bar.finish_and_clear();
    let run = Run::new(args, &result?);
    match args.output {
        Output::Json => output::print(&serde_json::to_string_pretty(&run)?),
        Output::Text => run.lines().iter().for_each(|line| output::print(line)),
    }
    Ok(())
}

/// A condition for machines.
#[derive(Debug, Serialize)]
struct Checked<'a> {
    clause: &'a str,
    name: &'static str,
    violations: u64,
}

fn check(args: &CheckArgs) -> Result<()> {
    let tools = tools(&args.connection)?;
    let conditions = tpcc::check(&tools, &args.connection.conninfo)?;
    match args.output {
        Output::Json => {
            let checked: Vec<_> = conditions
                .iter()
                .map(|condition| Checked {
                    clause: &condition.clause,
                    name: condition.name,
                    violations: condition.violations,
                })
                .collect();
            output::print(&serde_json::to_string_pretty(&checked)?);
        }
        Output::Text => {
            for condition in &conditions {
                output::print(&line(condition));
            }
        }
    }
    let violated = conditions.iter().filter(|c| c.violations > 0).count();
    match violated {
        0 => Ok(()),
        n => Err(Failure::DataMismatch(format!(
            "{n} of {} consistency conditions are violated",
            CONDITIONS.len()
        ))
        .into()),
    }
}

fn line(condition: &Condition) -> String {
    let verdict = match condition.violations {
        0 => "holds".to_owned(),
        n => format!("VIOLATED by {}", figures::count(n as f64)),
    };
    format!("{:8} {}: {verdict}", condition.clause, condition.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_bench::tpcc::{Transaction, TransactionReport};

    fn args(tpm: Option<u32>) -> RunArgs {
        RunArgs {
            clients: 4,
            tpm,
            seconds: 90,
            output: Output::Text,
            connection: Connection {
                conninfo: String::new(),
                pg: "15".parse().unwrap(),
            },
        }
    }

    fn report() -> Report {
        Report {
            warehouses: 2,
            transactions: 1_500,
            per_minute: 1_000.4,
            new_orders_per_minute: 450.0,
            failed: 3,
            retried: 4,
            retries: 30,
            schedule_lag_ms: None,
            kinds: vec![TransactionReport {
                transaction: Transaction::NewOrder,
                transactions: 675,
                failed: 3,
                per_minute: 450.0,
                latency_ms: Some(12.3),
                latency_stddev_ms: None,
            }],
        }
    }

    #[test]
    fn a_run_is_printed_with_all_its_figures() {
        let lines = Run::new(&args(None), &report()).lines();
        assert_eq!(lines[0], "TPC-C, 2 warehouses, 4 clients, 1 min 30 s");
        assert_eq!(
            lines[2],
            "new_order      675        450   12 ms         -        3"
        );
        assert_eq!(
            lines[3],
            "1,000 transactions a minute, 450 New-Orders a minute (tpmC); 3 failed, 4 retried"
        );
        assert!(lines[4].contains("not comparable"));
        assert_eq!(lines.len(), 5);
    }

    #[test]
    fn a_paced_run_says_what_was_asked_and_how_late_it_was() {
        let mut paced = report();
        paced.schedule_lag_ms = Some(40.0);
        let run = Run::new(&args(Some(1_200)), &paced);
        let text = run.lines().join("\n");
        assert!(text.contains("1,000 transactions a minute of 1,200 asked for"));
        assert!(text.contains("started 40 ms after"));
        let json = serde_json::to_value(&run).unwrap();
        assert_eq!(json["tpm_asked"], 1_200);
        assert_eq!(json["retries"], 30);
        assert_eq!(json["kinds"][0]["weight_percent"], 45);
        assert!(json["kinds"][0].get("latency_stddev_ms").is_none());
    }

    #[test]
    fn a_condition_is_one_line() {
        let condition = |violations| Condition {
            clause: "3.3.2.7".to_owned(),
            name: "n",
            violations,
        };
        assert_eq!(line(&condition(0)), "3.3.2.7  n: holds");
        assert_eq!(line(&condition(1_200)), "3.3.2.7  n: VIOLATED by 1,200");
    }
}
