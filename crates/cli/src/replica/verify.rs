//! `lockstep replica verify`

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lockstep_replica::state::Unmade;
use lockstep_replica::verify::{
    Difference, DifferenceKind, MOST_NAMED, Replicated, Report, TableReport, replica,
};
use lockstep_service::exit::Failure;
use lockstep_service::sanitize::sanitize;
use lockstep_service::words::output::{self, Output};
use lockstep_service::words::{figures, lines};
use serde_json::{Value, json};

use super::{ReplicaArgs, failed};
use crate::name::complain;

/// `lockstep replica verify`
#[derive(Debug, Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    replica: ReplicaArgs,
    /// Sessions on each side
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=128))]
    jobs: u16,
    /// Most seconds for which changes are held back until both sides are at one position; also the
    /// longest wait for a table's lock
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=3600))]
    wait: u16,
    /// Format of the result on standard output
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    output: Output,
}

pub fn run(args: &VerifyArgs) -> Result<()> {
    let (target, source) = args.replica.ends()?;
    let what = Replicated {
        name: args.replica.name.clone(),
        target,
        source,
        jobs: usize::from(args.jobs),
        patience: Duration::from_secs(args.wait.into()),
    };
    let report = replica(&what, &mut |line| complain(line)).map_err(failed)?;
    match args.output {
        Output::Json => output::print(&to_json(&args.replica.name, &report).to_string()),
        Output::Text => lines(&report)
            .iter()
            .for_each(|line| output::print(&sanitize(line))),
    }
    match report.is_equal() {
        true => Ok(()),
        false => Err(Failure::DataMismatch(mismatch(&args.replica.name, &report)).into()),
    }
}

/// How many rows differ. A table that is not there is one difference.
fn count(differences: usize, more: bool) -> String {
    match more {
        true => format!("more than {MOST_NAMED}"),
        false => differences.to_string(),
    }
}

fn lines(report: &Report) -> Vec<String> {
    let heads = ["table", "rows", "differ"].map(str::to_owned).to_vec();
    let tables = report.tables.iter().map(|table| {
        vec![
            format!("{}.{}", table.table.schema, table.table.table),
            figures::count(table.rows as f64),
            match table.differences.first().map(|one| one.kind) {
                Some(DifferenceKind::NoTable) => "not there".to_owned(),
                Some(DifferenceKind::NotCompared) => "not compared".to_owned(),
                Some(
                    DifferenceKind::Gone
                    | DifferenceKind::Renamed
                    | DifferenceKind::Replaced
                    | DifferenceKind::Unpublished
                    | DifferenceKind::Uncopied
                    | DifferenceKind::NoPartition,
                ) => "not sent".to_owned(),
                _ => count(table.differences.len(), table.more),
            },
        ]
    });
    let table: Vec<_> = std::iter::once(heads).chain(tables).collect();
    let mut lines = lines::table(&table);
    for table in &report.tables {
        lines.extend(table.differences.iter().map(|one| named(table, one)));
    }
    lines.extend(report.publication.clone());
    if report.sequences > 0 {
        lines.push(format!(
            "not compared: sequences ({}), which follow the source's some seconds later",
            report.sequences
        ));
    }
    for one in &report.unmade {
        lines.push(one.line());
    }
    if report.is_equal() {
        let rows: u64 = report.tables.iter().map(|table| table.rows).sum();
        lines.push(format!(
            "source and target are equal at {}: {}, {}",
            report.lsn,
            figures::counted(report.tables.len() as u64, "table"),
            figures::counted(rows, "row")
        ));
    }
    lines
}

pub fn unmade_json(one: &Unmade) -> Value {
    json!({
        "object": one.name(),
        "error": one.error,
        "command": one.command,
    })
}

fn named(table: &TableReport, one: &Difference) -> String {
    let name = format!("{}.{}", table.table.schema, table.table.table);
    let what = match one.kind {
        DifferenceKind::NoTable => {
            return format!("{name}: the target has no such table, or not its columns");
        }
        DifferenceKind::NotCompared => {
            return format!(
                "{name}: not compared, or only in part: it was rewritten, truncated, replaced, dropped, \
                 altered or locked on a side while verify ran; repeat the command"
            );
        }
        DifferenceKind::Gone => {
            return format!("{name}: it was copied, and the source no longer has such a table");
        }
        DifferenceKind::Renamed => {
            let now = &one.key;
            return format!("{name}: it was copied, and is called {now} on the source now");
        }
        DifferenceKind::Replaced => {
            return format!(
                "{name}: it was copied, and another table has its name on the source now, which the \
                 publication does not have"
            );
        }
        DifferenceKind::Unpublished => {
            return format!("{name}: it was copied, and the publication does not have it any more");
        }
        DifferenceKind::Uncopied => {
            return format!("{name}: it was made, or became logged, after the copy");
        }
        DifferenceKind::NoPartition => {
            return format!(
                "{name}: the source has made this partition after the copy, and the target's table is no \
                 partition"
            );
        }
        DifferenceKind::Missing => "the target lacks it",
        DifferenceKind::Extra => "only the target has it",
        DifferenceKind::Changed => "its values differ",
    };
    let key = match table.key.is_empty() {
        true => "whole row".to_owned(),
        false => table.key.join(", "),
    };
    format!("{name} ({key}) = {}: {what}", one.key)
}

fn mismatch(name: &str, report: &Report) -> String {
    let is_open = |one: &Difference| one.kind == DifferenceKind::NotCompared;
    let all = report.tables.len();
    let open = (report.tables.iter())
        .filter(|table| table.differences.iter().any(is_open))
        .count();
    let differ: Vec<_> = (report.tables.iter())
        .map(|table| (table, table.differences.iter().filter(|one| !is_open(one))))
        .map(|(table, differences)| (table.more, differences.count()))
        .filter(|(_, found)| *found > 0)
        .collect();
    let were = figures::verb(open as u64, "was", "were");
    if differ.is_empty() {
        let altered =
            (report.publication.as_ref()).map(|_| "its publication was altered".to_owned());
        let lacks = report.unmade.iter().filter(|one| one.is_of_the_copy());
        let lacks = Some(lacks.count()).filter(|lacks| *lacks > 0);
        let lacks = lacks.map(|lacks| format!("the copy could not make {lacks} of its objects"));
        let open = Some(open).filter(|open| *open > 0);
        let open = open.map(|open| {
            format!(
                "{open} of {} {were} not compared",
                figures::counted(all as u64, "table")
            )
        });
        let nothing = (all == 0).then(|| "there is no table to compare".to_owned());
        let why = altered.into_iter().chain(lacks).chain(open).chain(nothing);
        let why: Vec<_> = why.collect();
        return format!(
            "replica {name} cannot be called equal to its source at {}: {}",
            report.lsn,
            why.join("; ")
        );
    }
    let found: usize = differ.iter().map(|(_, found)| found).sum();
    let more = if differ.iter().any(|(more, _)| *more) {
        "at least "
    } else {
        ""
    };
    let found = figures::counted(found as u64, "difference");
    let besides = match open {
        0 => String::new(),
        open => format!("; {open} {were} not compared"),
    };
    format!(
        "replica {name} is not what its source was at {}: {more}{found} in {} of {}{besides}",
        report.lsn,
        differ.len(),
        figures::counted(all as u64, "table")
    )
}

fn to_json(name: &str, report: &Report) -> Value {
    let kind = |kind| match kind {
        DifferenceKind::Missing => "missing",
        DifferenceKind::Extra => "extra",
        DifferenceKind::Changed => "changed",
        DifferenceKind::NoTable => "no_table",
        DifferenceKind::NotCompared => "not_compared",
        DifferenceKind::Gone => "gone",
        DifferenceKind::Renamed => "renamed",
        DifferenceKind::Replaced => "replaced",
        DifferenceKind::Unpublished => "unpublished",
        DifferenceKind::Uncopied => "uncopied",
        DifferenceKind::NoPartition => "no_partition",
    };
    let difference = |one: &Difference| json!({"key": one.key, "kind": kind(one.kind)});
    let tables = report.tables.iter().map(|table| {
        json!({
            "schema": table.table.schema,
            "table": table.table.table,
            "rows": table.rows,
            "key": table.key,
            "differences": table.differences.iter().map(difference).collect::<Vec<_>>(),
            "more": table.more,
        })
    });
    json!({
        "name": name,
        "lsn": report.lsn.to_string(),
        "equal": report.is_equal(),
        "publication": report.publication,
        "sequences_not_compared": report.sequences,
        "not_made": report.unmade.iter().map(unmade_json).collect::<Vec<_>>(),
        "tables": tables.collect::<Vec<_>>(),
    })
}
