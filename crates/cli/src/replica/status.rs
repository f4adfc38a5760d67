//! `lockstep replica status`

use anyhow::Result;
use clap::Args;
use lockstep_replica::error::ReplicaError;
use lockstep_replica::state::{Applied, Phase, Progress, Replica, State, TableCopy, TableState};
use serde_json::{Value, json};

use super::{conninfo, failed};
use crate::args::Output;
use crate::exit::Usage;
use crate::top::figures;
use crate::{live, text};

/// `lockstep replica status`
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// One replica, with its tables; all of the target without it
    #[arg(value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    target: super::TargetArgs,
    /// Format of the result on standard output
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    output: Output,
}

/// A replica with all that is known.
struct Known {
    replica: Replica,
    progress: Progress,
    applied: Applied,
    tables: Vec<TableCopy>,
}

pub fn run(args: &StatusArgs) -> Result<()> {
    let target = conninfo("--target", &args.target.target)?;
    let known = ask(&target, args.name.as_deref()).map_err(failed)?;
    if let (Some(name), true) = (&args.name, known.is_empty()) {
        return Err(Usage(format!("the target has no replica \"{name}\"")).into());
    }
    match args.output {
        Output::Json => {
            let all: Vec<_> = known
                .iter()
                .map(|one| one.json(args.name.is_some()))
                .collect();
            live::print(&json!({ "replicas": all }).to_string());
        }
        Output::Text if known.is_empty() => live::print("the target has no replica"),
        Output::Text => {
            let heads = [
                "name", "phase", "tables", "copied", "rate", "start", "apply", "applied", "behind",
            ];
            let mut rows = vec![heads.map(str::to_owned).to_vec()];
            rows.extend(known.iter().map(Known::line));
            let errors = known.iter().filter_map(|one| one.applied.error.as_ref());
            for error in errors {
                rows.push(Vec::new());
                rows.push(vec![format!("it does not apply: {error}")]);
            }
            if args.name.is_some() {
                let tables = known.iter().flat_map(|one| &one.tables);
                rows.push(Vec::new());
                let heads = ["table", "state", "rows", "bytes", "start"];
                rows.push(heads.map(str::to_owned).to_vec());
                rows.extend(tables.map(table_line));
            }
            for part in rows.split(Vec::is_empty) {
                for line in text::table(part) {
                    live::print(&lockstep_lag::sanitize::sanitize(&line));
                }
            }
        }
    }
    Ok(())
}

fn ask(target: &lockstep_client::Conninfo, name: Option<&str>) -> Result<Vec<Known>, ReplicaError> {
    let Some(mut state) = State::find(target)? else {
        return Ok(Vec::new());
    };
    let mut known = Vec::new();
    for replica in state.replicas()? {
        if name.is_none_or(|name| name == replica.name) {
            known.push(Known {
                progress: state.progress(&replica.name)?,
                applied: state.applied(&replica.name)?,
                tables: state.tables(&replica.name)?,
                replica,
            });
        }
    }
    Ok(known)
}

fn start(start: Option<lockstep_wire::Lsn>) -> String {
    start.map_or_else(|| "-".to_owned(), |start| start.to_string())
}

fn table_line(table: &TableCopy) -> Vec<String> {
    vec![
        format!("{}.{}", table.name.schema, table.name.table),
        table.state.text().to_owned(),
        text::count(table.rows as f64),
        figures::bytes(table.bytes as f64),
        start(table.start),
    ]
}

impl Known {
    fn copied(&self) -> usize {
        let copied = |table: &&TableCopy| table.state == TableState::Copied;
        self.tables.iter().filter(copied).count()
    }

    /// The rate while rows are copied; it means nothing afterwards.
    fn is_copying(&self) -> bool {
        self.replica.phase == Phase::Copying
    }

    fn line(&self) -> Vec<String> {
        let Progress {
            bytes_total,
            bytes_done,
            bytes_per_s,
        } = self.progress;
        let share = match bytes_total {
            _ if self.replica.phase > Phase::Copying => "100 %".to_owned(),
            0 => "-".to_owned(),
            total => format!("{} %", bytes_done.saturating_mul(100) / total),
        };
        let rate = match self.is_copying() {
            true => format!("{}/s", figures::bytes(bytes_per_s as f64)),
            false => "-".to_owned(),
        };
        vec![
            self.replica.name.clone(),
            self.replica.phase.text().to_owned(),
            format!("{}/{}", self.copied(), self.tables.len()),
            share,
            rate,
            start(self.replica.start),
            match self.applied.state.as_str() {
                "" => "-".to_owned(),
                state => state.to_owned(),
            },
            start(self.applied.lsn),
            figures::bytes(self.applied.lag_bytes as f64),
        ]
    }

    fn json(&self, with_tables: bool) -> Value {
        let replica = &self.replica;
        let tables: Vec<_> = self
            .tables
            .iter()
            .map(|table| {
                json!({
                    "schema": table.name.schema,
                    "table": table.name.table,
                    "state": table.state.text(),
                    "rows": table.rows,
                    "bytes": table.bytes,
                    "start_lsn": table.start.map(|start| start.to_string()),
                })
            })
            .collect();
        let mut value = json!({
            "name": replica.name,
            "source": replica.source,
            "phase": replica.phase.text(),
            "start_lsn": replica.start.map(|start| start.to_string()),
            "slot": replica.slot,
            "publication": replica.publication,
            "paused": replica.paused,
            "apply": self.applied.state,
            "applied_lsn": self.applied.lsn.map(|lsn| lsn.to_string()),
            "lag_bytes": self.applied.lag_bytes,
            "error": self.applied.error,
            "tables_total": self.tables.len(),
            "tables_copied": self.copied(),
            "bytes_total": self.progress.bytes_total,
            "bytes_done": self.progress.bytes_done,
            "bytes_per_s": self.is_copying().then_some(self.progress.bytes_per_s),
        });
        if let (true, Some(map)) = (with_tables, value.as_object_mut()) {
            map.insert("tables".to_owned(), tables.into());
        }
        value
    }
}
