//! `lockstep-lab wal calibrate`: a table of costs for `wal analyze`, from measured recoveries.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use lockstep_lab::machine;
use lockstep_service::exit::Failure;
use lockstep_service::words::lines::table;
use lockstep_service::words::output::{self, Output};
use lockstep_wal::WalError;
use lockstep_wal::calibrate::{self, Comparison, Speed, off};
use lockstep_wal::costs::Costs;
use serde_json::{Value, json};

/// `lockstep-lab wal calibrate`
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// Measured replays, as JSON (docs/wal-analyze.md describes the format)
    #[arg(value_name = "MEASURED")]
    pub measured: PathBuf,
    /// File for the table, which lockstep wal analyze reads with --costs; replaced if it exists
    #[arg(long, value_name = "FILE")]
    pub into: PathBuf,
    /// PostgreSQL version that was measured, for the table
    #[arg(long, value_name = "VERSION")]
    pub postgresql: String,
    /// Format of the result on standard output
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    pub output: Output,
}

pub fn run(args: &CalibrateArgs) -> Result<()> {
    let measured = calibrate::read(&args.measured).map_err(|error| match error {
        WalError::Measurements { .. } => Failure::Usage(error.to_string()).into(),
        other => anyhow::Error::from(other),
    })?;
    let before = Costs::estimates()?;
    let (costs, comparisons) = calibrate::calibrate(&before, &measured)?;
    let known = comparisons.iter().filter(|one| !one.held_out).count();
    let costs = Costs {
        machine: machine::describe_system(),
        measured: format!("fitted to {known} recoveries on {}", machine::date()),
        postgresql: args.postgresql.clone(),
        ..costs
    };
    let text = serde_json::to_string_pretty(&costs)?;
    let write = fs::write(&args.into, text + "\n");
    write.with_context(|| format!("cannot write {}", args.into.display()))?;
    match args.output {
        Output::Json => {
            let rows: Vec<_> = comparisons.iter().map(as_json).collect();
            output::print(&json!({ "costs": costs, "recoveries": rows }).to_string());
        }
        Output::Text => as_text(&comparisons)
            .iter()
            .for_each(|line| output::print(line)),
    }
    Ok(())
}

fn as_json(one: &Comparison) -> Value {
    let speed = |speed: &Speed| {
        json!({
            "seconds": speed.seconds,
            "look_ahead_speedup": speed.look_ahead,
            "speedup": speed.speedup,
        })
    };
    json!({
        "name": one.name,
        "hot_standby": one.hot_standby,
        "held_out": one.held_out,
        "helpers": one.helpers,
        "measured": speed(&one.measured),
        "simulated": speed(&one.simulated),
        "simulated_without_it": one.without.as_ref().map(speed),
    })
}

fn as_text(comparisons: &[Comparison]) -> Vec<String> {
    let header = [
        "recovery",
        "figure",
        "measured",
        "simulated",
        "off",
        "without it*",
        "off",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for one in comparisons {
        let figures: [(String, Figure); 3] = [
            ("seconds, one process".to_owned(), |speed| {
                Some(speed.seconds)
            }),
            ("speedup, looking ahead".to_owned(), |speed| {
                speed.look_ahead
            }),
            (helpers(one.helpers), |speed| speed.speedup),
        ];
        for (name, figure) in figures {
            rows.extend(row(one, name, figure));
        }
    }
    let mut lines = table(&rows);
    lines.push("* simulated with a table that was made without this recovery".to_owned());
    lines
}

type Figure = fn(&Speed) -> Option<f64>;

fn helpers(number: Option<usize>) -> String {
    match number {
        Some(1) => "speedup, 1 helper".to_owned(),
        number => format!("speedup, {} helpers", number.unwrap_or_default()),
    }
}

/// None if the figure was not measured.
fn row(one: &Comparison, name: String, figure: Figure) -> Option<Vec<String>> {
    let measured = figure(&one.measured)?;
    let percent = |simulated: f64| format!("{:+.1} %", off(measured, simulated) * 100.0);
    let shown = |simulated: Option<f64>| match simulated {
        Some(simulated) => [format!("{simulated:.2}"), percent(simulated)],
        None => [String::new(), String::new()],
    };
    let marks = match (one.hot_standby, one.held_out) {
        (true, true) => " (hot standby, held out)",
        (true, false) => " (hot standby)",
        (false, true) => " (held out)",
        (false, false) => "",
    };
    let mut row = vec![
        format!("{}{marks}", one.name),
        name,
        format!("{measured:.2}"),
    ];
    row.extend(shown(figure(&one.simulated)));
    row.extend(shown(one.without.as_ref().and_then(figure)));
    Some(row)
}
