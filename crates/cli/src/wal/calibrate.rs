//! `lockstep wal calibrate`: a table of costs for `wal analyze`, from measured recoveries.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use lockstep_lab::machine;
use lockstep_wal::WalError;
use lockstep_wal::calibrate::{self, Comparison, off};
use lockstep_wal::costs::Costs;
use serde_json::{Value, json};

use crate::args::Output;
use crate::exit::Usage;
use crate::live;
use crate::text::table;

/// `lockstep wal calibrate`
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// Recoveries that were measured, as JSON (docs/wal-analyze.md has its form)
    #[arg(value_name = "MEASURED")]
    pub measured: PathBuf,
    /// File to write the table to, for --costs of lockstep wal analyze; replaced if it exists
    #[arg(long, value_name = "FILE")]
    pub into: PathBuf,
    /// PostgreSQL that was measured, as the table shall say
    #[arg(long, value_name = "VERSION")]
    pub postgresql: String,
    /// Format of the result on standard output
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    pub output: Output,
}

pub fn run(args: &CalibrateArgs) -> Result<()> {
    let measured = calibrate::read(&args.measured).map_err(|error| match error {
        WalError::Measurements { .. } => Usage(error.to_string()).into(),
        other => anyhow::Error::from(other),
    })?;
    let before = Costs::built_in()?;
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
            live::print(&json!({ "costs": costs, "recoveries": rows }).to_string());
        }
        Output::Text => as_text(&comparisons)
            .iter()
            .for_each(|line| live::print(line)),
    }
    Ok(())
}

fn as_json(one: &Comparison) -> Value {
    json!({
        "name": one.name,
        "held_out": one.held_out,
        "seconds": one.seconds,
        "simulated_seconds": one.simulated_seconds,
        "helpers": one.speedup.map(|speedup| speedup.helpers),
        "speedup": one.speedup.map(|speedup| speedup.measured),
        "simulated_speedup": one.speedup.map(|speedup| speedup.simulated),
    })
}

fn as_text(comparisons: &[Comparison]) -> Vec<String> {
    let header = [
        "recovery",
        "seconds",
        "simulated",
        "off",
        "helpers",
        "speedup",
        "simulated",
        "off",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    let percent = |share: f64| format!("{:+.1} %", share * 100.0);
    for one in comparisons {
        let name = match one.held_out {
            true => format!("{} (held out)", one.name),
            false => one.name.clone(),
        };
        let mut row = vec![
            name,
            format!("{:.3}", one.seconds),
            format!("{:.3}", one.simulated_seconds),
            percent(off(one.seconds, one.simulated_seconds)),
        ];
        if let Some(speedup) = one.speedup {
            row.extend([
                speedup.helpers.to_string(),
                format!("{:.2}", speedup.measured),
                format!("{:.2}", speedup.simulated),
                percent(off(speedup.measured, speedup.simulated)),
            ]);
        }
        rows.push(row);
    }
    table(&rows)
}
