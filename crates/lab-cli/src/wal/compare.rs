//! `lockstep-lab wal compare`: compares data folders of the user with the page oracle.

use anyhow::Result;
use clap::{Args, ValueEnum};
use lockstep_service::exit::Failure;
use lockstep_service::words::figures::count;
use lockstep_service::words::output::{self, Output};
use lockstep_verify::VerifyError;
use lockstep_verify::oracle::{
    self, Amcheck, CompareOptions, Comparison, Difference, Node, RowComparison, Side, Target, What,
};
use serde_json::{Value, json};

/// `lockstep-lab wal compare`
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// A data directory, or the conninfo of a standby on this machine with replay paused and extension
    /// lockstep created; the server of a data directory is asked as PGUSER or postgres
    #[arg(value_name = "A")]
    pub a: String,
    /// The other one
    #[arg(value_name = "B")]
    pub b: String,
    /// How to compare free space maps. They are not WAL-logged, so they may differ between standbys
    /// that were cloned at different times or have crashed; ignore leaves them out
    #[arg(long, value_enum, value_name = "HOW", default_value_t = FreeSpace::Strict)]
    pub free_space: FreeSpace,
    /// Most differences to print; all are counted
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub limit: usize,
    /// Compare hashes of all rows of all tables, too; both servers must be running
    #[arg(long)]
    pub rows: bool,
    /// Run pg_amcheck --heapallindexed on each side, too; both servers must be running and have
    /// extension amcheck
    #[arg(long)]
    pub amcheck: bool,
    /// Format of the result on standard output
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    pub output: Output,
}

/// How the free space map is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FreeSpace {
    /// Like every other fork.
    Strict,
    /// Not at all.
    Ignore,
}

/// Everything that was compared.
struct Outcome {
    pages: Comparison,
    rows: Option<RowComparison>,
    amcheck: Vec<(Side, Amcheck)>,
}

pub fn run(args: &CompareArgs) -> Result<()> {
    let outcome = compare(args)?;
    match args.output {
        Output::Text => output::write(outcome.text().as_bytes()),
        Output::Json => output::print(&outcome.json().to_string()),
    }
    match outcome.faults().as_slice() {
        [] => Ok(()),
        faults => Err(Failure::DataMismatch(format!("A and B: {}", faults.join(", "))).into()),
    }
}

fn compare(args: &CompareArgs) -> Result<Outcome, VerifyError> {
    let (a, b) = (Target::parse(&args.a), Target::parse(&args.b));
    let package = oracle::package_of(Side::A, &a)?;
    let a = Node::open(&package, Side::A, &a)?;
    let b = Node::open(&package, Side::B, &b)?;
    let options = CompareOptions {
        free_space: match args.free_space {
            FreeSpace::Strict => oracle::FreeSpace::Strict,
            FreeSpace::Ignore => oracle::FreeSpace::Ignore,
        },
        limit: args.limit,
    };
    // Whatever may be refused comes before the long work.
    let rows = args
        .rows
        .then(|| oracle::compare_rows(&a, &b))
        .transpose()?;
    let mut amcheck = Vec::new();
    if args.amcheck {
        for (side, node) in [(Side::A, &a), (Side::B, &b)] {
            amcheck.push((side, oracle::amcheck(&package, node)?));
        }
    }
    Ok(Outcome {
        pages: oracle::compare_nodes(&package, &a, &b, &options)?,
        rows,
        amcheck,
    })
}

fn number(value: u64) -> String {
    count(value as f64)
}

impl Outcome {
    /// What is not as it must be, in a few words each.
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if !self.pages.equal() {
            faults.push(format!(
                "{} differences of pages or files",
                number(self.pages.found)
            ));
        }
        if let Some(rows) = self.rows.as_ref().filter(|rows| !rows.differing.is_empty()) {
            faults.push(format!(
                "{} tables with different rows",
                rows.differing.len()
            ));
        }
        for (side, check) in &self.amcheck {
            if !check.corruption.is_empty() {
                faults.push(format!("pg_amcheck found corruption in {side}"));
            }
        }
        faults
    }

    fn text(&self) -> String {
        let pages = &self.pages;
        let mut lines: Vec<String> = pages.differences.iter().map(ToString::to_string).collect();
        let untold = pages.found - pages.differences.len() as u64;
        if untold > 0 {
            lines.push(format!("… and {} more", number(untold)));
        }
        if let Some(rows) = &self.rows {
            lines.extend(
                rows.differing
                    .iter()
                    .map(|name| format!("{name}: rows differ")),
            );
            lines.push(format!(
                "rows: {} tables, {} rows",
                number(rows.tables),
                number(rows.rows)
            ));
        }
        for (side, check) in &self.amcheck {
            lines.extend(
                check
                    .corruption
                    .iter()
                    .map(|line| format!("{side}: {line}")),
            );
            lines.push(format!(
                "pg_amcheck on {side}: databases {}",
                check.databases.join(", ")
            ));
        }
        lines.push(format!(
            "at {}, WAL from {}: {} files, {} pages, {} bytes compared, {} differences",
            pages.position,
            pages.wal_from,
            number(pages.files),
            number(pages.pages),
            number(pages.bytes),
            number(pages.found)
        ));
        lines.join("\n") + "\n"
    }

    fn json(&self) -> Value {
        let pages = &self.pages;
        let mut value = json!({
            "equal": self.faults().is_empty(),
            "position": pages.position.to_string(),
            "wal_from": pages.wal_from.to_string(),
            "files": pages.files,
            "pages": pages.pages,
            "bytes": pages.bytes,
            "found": pages.found,
            "differences": pages.differences.iter().map(difference).collect::<Vec<_>>(),
        });
        let Some(object) = value.as_object_mut() else {
            return value;
        };
        if let Some(rows) = &self.rows {
            let rows =
                json!({ "tables": rows.tables, "rows": rows.rows, "differing": rows.differing });
            object.insert("rows".to_owned(), rows);
        }
        if !self.amcheck.is_empty() {
            let sides: Vec<Value> = self
                .amcheck
                .iter()
                .map(|(side, check)| {
                    json!({ "side": side.to_string(), "databases": check.databases, "corruption": check.corruption })
                })
                .collect();
            object.insert("amcheck".to_owned(), Value::Array(sides));
        }
        value
    }
}

fn difference(difference: &Difference) -> Value {
    let (kind, offset) = match &difference.what {
        What::Content { offset, .. } => ("content", Some(*offset)),
        What::PageKind { .. } => ("kind", None),
        What::Behind { .. } => ("behind", None),
        What::Future { .. } => ("future", None),
        What::Missing { .. } => ("missing", None),
        What::PartialPage { .. } => ("partial page", None),
        What::File => ("file", None),
    };
    json!({
        "file": difference.file,
        "name": difference.name,
        "fork": difference.fork.map(|fork| fork.fork.name()),
        "block": difference.block,
        "lsn_a": difference.lsn_a.map(|lsn| lsn.to_string()),
        "lsn_b": difference.lsn_b.map(|lsn| lsn.to_string()),
        "kind": kind,
        "offset": offset,
        "text": difference.what.to_string(),
    })
}
