//! `lockstep replica create`

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use clap::builder::PossibleValuesParser;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lockstep_replica::copy::progress::Moment;
use lockstep_replica::error::Finding;
use lockstep_replica::lifecycle::Watcher;
use lockstep_replica::lifecycle::create::{CreateOptions, Created, create};
use lockstep_replica::names::Excluded;
use lockstep_replica::publication::subset::gather;
use lockstep_replica::state::Phase;
use lockstep_service::exit::Failure;
use lockstep_service::sanitize::sanitize;
use lockstep_service::words::output::{self, Output};
use lockstep_service::words::{amount, brief, figures, lines};
use serde_json::json;

use super::alter::{OFF, ON, read_only_words};
use super::cycles::{frequency, frequency_words};
use super::verify::unmade_json;
use super::{conninfo, failed};
use crate::name::complain;

/// Time between plain lines while rows are copied.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Columns of the findings on a screen.
const COLUMNS: usize = 100;

/// `lockstep replica create`
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// The replica's name: lower-case letters, digits and underscores
    #[arg(value_name = "NAME", value_parser = super::replica_name)]
    name: String,
    /// How to connect to the source database, as a conninfo string or URI
    #[arg(long, value_name = "CONNINFO")]
    source: String,
    #[command(flatten)]
    target: super::TargetArgs,
    /// Database on the target [default: the one in --target, otherwise the source's name]
    #[arg(long, value_name = "DATABASE")]
    alias: Option<String>,
    /// Leave out a schema; may be given several times
    #[arg(long, value_name = "SCHEMA")]
    exclude_schema: Vec<String>,
    /// Leave out a table, as schema.table, with its partitions; may be given several times
    #[arg(long, value_name = "TABLE", value_parser = table_name)]
    exclude_table: Vec<String>,
    /// Replicate only the rows of a table for which an expression is true, as
    /// schema.table=EXPRESSION; may be given once for each table
    #[arg(long = "where", value_name = "TABLE=EXPRESSION")]
    filters: Vec<String>,
    /// Replicate only these columns of a table, as schema.table=a,b,c; may be given once for each
    /// table
    #[arg(long = "columns", value_name = "TABLE=COLUMNS")]
    columns: Vec<String>,
    /// Sessions that copy rows and create indexes at the same time
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=128))]
    jobs: u16,
    /// Most bytes a second from source to target, such as 50MB, while rows are copied and afterwards; 0: no
    /// limit
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = amount::parse)]
    bandwidth: u64,
    /// Time from the beginning of one cycle to that of the next, such as 60s, for a target that moves in
    /// one commit a cycle; needs a spool then. 0: apply changes as they come
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = frequency)]
    frequency: Duration,
    /// Follow changes of the schema: event triggers on the source write each command into the stream, and the
    /// target runs it at its place. Needs a superuser on the source
    #[arg(long)]
    ddl: bool,
    /// Whether others' new sessions in the target's database begin read-only, until it is promoted or the
    /// replica dropped
    #[arg(long, value_name = "WHETHER", value_parser = PossibleValuesParser::new([ON, OFF]))]
    #[arg(default_value = ON)]
    read_only: String,
    /// Leave out large objects, which PostgreSQL does not replicate
    #[arg(long)]
    skip_large_objects: bool,
    /// Format of the result on standard output
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    output: Output,
}

/// Parses a table's name, which has its schema.
pub fn table_name(text: &str) -> std::result::Result<String, String> {
    let (schema, table) = text.split_once('.').unwrap_or_default();
    match schema.is_empty() || table.is_empty() {
        false => Ok(text.to_owned()),
        true => Err("write it as schema.table".to_owned()),
    }
}

pub fn run(args: &CreateArgs) -> Result<()> {
    let source = conninfo("--source", &args.source)?;
    let mut target = conninfo("--target", &args.target.target)?;
    let database = match (&args.alias, target.get("dbname")) {
        (Some(alias), _) => Some(alias.clone()),
        (None, Some(_)) => None,
        (None, None) => source.effective("dbname"),
    };
    if let Some(database) = database {
        target = target.with_database(&database)?;
    }
    let options = CreateOptions {
        name: args.name.clone(),
        source,
        target,
        excluded: Excluded {
            schemas: args.exclude_schema.clone(),
            tables: args.exclude_table.clone(),
        },
        subsets: gather(&args.filters, &args.columns).map_err(failed)?,
        jobs: usize::from(args.jobs),
        bytes_per_s: Some(args.bandwidth).filter(|bytes| *bytes > 0),
        skip_large_objects: args.skip_large_objects,
        frequency: args.frequency,
        ddl: args.ddl,
        read_only: args.read_only == ON,
    };
    let mut told = Told::new(args.output);
    let created = create(&options, &mut told);
    told.end();
    match (args.output, &created) {
        (Output::Json, _) => output::print(&told.json(created.as_ref().ok()).to_string()),
        (Output::Text, Ok(created)) => {
            output::print(&format!(
                "replica {} is ready: its slot keeps all changes from {} on",
                args.name, created.start
            ));
            if !args.frequency.is_zero() {
                output::print(&format!("it {}", frequency_words(args.frequency)));
            }
            if args.ddl {
                output::print("it follows changes of the schema");
            }
            if created.read_only {
                output::print(&format!("its target {}", read_only_words(true)));
            }
        }
        (Output::Text, Err(_)) => {}
    }
    let created = created.map_err(failed)?;
    if created.unmade.is_empty() {
        return Ok(());
    }
    if args.output == Output::Text {
        for one in &created.unmade {
            output::print(&sanitize(&one.line()));
        }
    }
    let few = figures::counted(created.unmade.len() as u64, "object");
    Err(Failure::DataMismatch(format!(
        "replica {} is ready, but {few} of the source could not be made or set on its target: run the \
            commands \
         above there, or where they say, with search_path empty unless they set it{}",
        args.name,
        match created.read_only {
            true => " (SET default_transaction_read_only = off first, on the target)",
            false => "",
        }
    ))
    .into())
}

/// Tells the terminal what happens.
pub struct Told {
    output: Output,
    bar: Option<ProgressBar>,
    findings: Vec<Finding>,
    last_line: Option<Instant>,
}

impl Told {
    pub fn new(output: Output) -> Self {
        Self {
            output,
            bar: None,
            findings: Vec::new(),
            last_line: None,
        }
    }

    fn say(&self, line: &str) {
        if self.output == Output::Text {
            output::print(line);
        }
    }

    pub fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn json(&self, created: Option<&Created>) -> serde_json::Value {
        let findings: Vec<_> = self
            .findings
            .iter()
            .map(|one| {
                json!({
                    "severity": one.severity.to_string(),
                    "subject": one.subject,
                    "says": one.says,
                    "todo": one.todo,
                })
            })
            .collect();
        json!({
            "findings": findings,
            "start_lsn": created.map(|created| created.start.to_string()),
            "not_made": created
                .map(|created| created.unmade.iter().map(unmade_json).collect::<Vec<_>>()),
            "tables": created.map(|created| created.copied.tables_done),
            "rows": created.map(|created| created.copied.rows),
            "sent_bytes": created.map(|created| created.copied.bytes_sent),
            "copy_seconds": created.map(|created| created.copied.elapsed.as_secs_f64()),
        })
    }
}

impl Watcher for Told {
    fn waits(&mut self, words: &str) {
        let words = sanitize(words);
        match &self.bar {
            Some(bar) => bar.suspend(|| complain(&words)),
            None => complain(&words),
        }
    }

    fn found(&mut self, findings: &[Finding]) {
        self.findings = findings.to_vec();
        if findings.is_empty() {
            self.say("preflight: nothing found");
            return;
        }
        for one in findings {
            let words = format!("{} {}. {}", one.subject, one.says, one.todo);
            let lead = format!("{:<9}", one.severity.to_string());
            for line in lines::wrapped(&lead, &sanitize(&words), COLUMNS) {
                self.say(&line);
            }
        }
    }

    fn phase(&mut self, phase: Phase, again: bool) {
        self.end();
        let what = match phase {
            Phase::Preparing => "making publication and slot",
            Phase::Schema => "creating tables",
            Phase::Copying => "copying rows",
            Phase::Indexing => "creating indexes and constraints",
            Phase::Finishing => "setting sequences, filling views, gathering statistics",
            Phase::Ready | Phase::Promoting | Phase::Promoted => return,
        };
        let on = if again { " (going on)" } else { "" };
        self.say(&format!("{what}{on}"));
        let terminal = std::io::stdout().is_terminal() && self.output == Output::Text;
        if phase == Phase::Copying && terminal {
            let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stdout());
            if let Ok(style) = ProgressStyle::with_template("  {bar:30} {msg}") {
                bar.set_style(style);
            }
            self.bar = Some(bar);
        }
    }

    fn progress(&mut self, moment: &Moment) {
        let line = progress(moment);
        if let Some(bar) = &self.bar {
            bar.set_length(moment.bytes_total.max(1));
            bar.set_position(moment.bytes_done);
            bar.set_message(line);
            return;
        }
        let ended = moment.tables_done == moment.tables_total;
        if ended || self.last_line.is_none_or(|at| at.elapsed() >= LINE_EVERY) {
            self.last_line = Some(Instant::now());
            self.say(&format!("  {line}"));
        }
    }
}

fn progress(moment: &Moment) -> String {
    let left = match moment.remaining() {
        Some(left) if !left.is_zero() => {
            format!(", about {} left", figures::duration(left.as_secs()))
        }
        _ => String::new(),
    };
    format!(
        "{} of {}, {} of {}, {}, {}/s{left}",
        moment.tables_done,
        figures::counted(moment.tables_total, "table"),
        brief::bytes(moment.bytes_done as f64),
        brief::bytes(moment.bytes_total as f64),
        figures::counted(moment.rows, "row"),
        brief::bytes(moment.bytes_per_s() as f64),
    )
}
