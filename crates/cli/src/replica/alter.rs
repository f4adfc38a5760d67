//! `lockstep replica alter`

use std::time::Duration;

use anyhow::Result;
use clap::builder::PossibleValuesParser;
use clap::{ArgGroup, Args};
use lockstep_client::Conninfo;
use lockstep_replica::copy::progress::Moment;
use lockstep_replica::error::ReplicaError;
use lockstep_replica::lifecycle::alter::{AlterOptions, Altered, alter};
use lockstep_replica::lifecycle::alteration::Wishes;
use lockstep_replica::lifecycle::read_only;
use lockstep_replica::names::{Excluded, TableName};
use lockstep_replica::publication::subset::gather;
use lockstep_replica::state::ReplicaState;
use lockstep_service::sanitize::sanitize;
use lockstep_service::words::output::{self, Output};
use lockstep_service::words::{amount, brief, figures};

use super::create::{Told, table_name};
use super::cycles::{frequency, frequency_words, no_replica};
use super::{ReplicaArgs, failed};

/// `lockstep replica alter`
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("what").required(true).multiple(true).args([
    "frequency", "bandwidth", "read_only", "exclude_schema", "exclude_table", "include_schema", "include_table", "filters",
    "columns", "whole", "go_on",
])))]
pub struct AlterArgs {
    #[command(flatten)]
    replica: ReplicaArgs,
    /// Time from the beginning of one cycle to that of the next, such as 60s; 0: apply changes as they
    /// come
    #[arg(long, value_name = "TIME", value_parser = frequency)]
    frequency: Option<Duration>,
    /// Whether others' new sessions in the target's database begin read-only
    #[arg(long, value_name = "WHETHER", value_parser = PossibleValuesParser::new([ON, OFF]))]
    read_only: Option<String>,
    /// Leave out a schema from now on; may be given several times
    #[arg(long, value_name = "SCHEMA")]
    exclude_schema: Vec<String>,
    /// Leave out a table from now on, as schema.table, with its partitions; may be given several times
    #[arg(long, value_name = "TABLE", value_parser = table_name)]
    exclude_table: Vec<String>,
    /// Do not leave out a schema any more; may be given several times
    #[arg(long, value_name = "SCHEMA")]
    include_schema: Vec<String>,
    /// Do not leave out a table any more, or copy one that was made since; may be given several times
    #[arg(long, value_name = "TABLE", value_parser = table_name)]
    include_table: Vec<String>,
    /// Replicate only the rows of a table for which an expression is true, as schema.table=EXPRESSION, in
    /// place of the one before
    #[arg(long = "where", value_name = "TABLE=EXPRESSION")]
    filters: Vec<String>,
    /// Replicate only these columns of a table, as schema.table=a,b,c, in place of those before
    #[arg(long = "columns", value_name = "TABLE=COLUMNS")]
    columns: Vec<String>,
    /// Replicate all rows and columns of a table, as schema.table; may be given several times
    #[arg(long, value_name = "TABLE", value_parser = table_name)]
    whole: Vec<String>,
    /// Drop tables on the target that are left out from now on; otherwise they stay as they are
    #[arg(long)]
    drop_tables: bool,
    /// End what an earlier call has begun
    #[arg(long)]
    go_on: bool,
    /// Sessions that copy rows at the same time
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=128))]
    jobs: u16,
    /// Most bytes a second from source to target, such as 50MB, from now on; 0: no limit
    #[arg(long, value_name = "SIZE", value_parser = amount::parse)]
    bandwidth: Option<u64>,
}

/// Values of `--read-only`.
pub(super) const ON: &str = "on";
pub(super) const OFF: &str = "off";

fn wishes(args: &AlterArgs) -> Result<Wishes> {
    let whole = args.whole.iter().filter_map(|text| {
        let (schema, table) = text.split_once('.')?;
        Some(TableName {
            schema: schema.to_owned(),
            table: table.to_owned(),
        })
    });
    Ok(Wishes {
        exclude: Excluded {
            schemas: args.exclude_schema.clone(),
            tables: args.exclude_table.clone(),
        },
        include: Excluded {
            schemas: args.include_schema.clone(),
            tables: args.include_table.clone(),
        },
        subsets: gather(&args.filters, &args.columns).map_err(failed)?,
        whole: whole.collect(),
    })
}

pub fn run(args: &AlterArgs) -> Result<()> {
    let (target, source) = args.replica.ends()?;
    let (name, wishes) = (&args.replica.name, wishes(args)?);
    settings(args, &target)?;
    if wishes.is_empty() && !args.go_on {
        return Ok(());
    }
    let options = AlterOptions {
        name: name.clone(),
        target,
        source,
        wishes,
        drops: args.drop_tables,
        jobs: usize::from(args.jobs),
    };
    let mut told = Told::new(Output::Text);
    let altered = alter(&options, &mut told);
    told.end();
    for line in lines(&options, &altered.map_err(failed)?) {
        output::print(&sanitize(&line));
    }
    Ok(())
}

/// What the process that applies takes up by itself.
fn settings(args: &AlterArgs, target: &Conninfo) -> Result<()> {
    let name = &args.replica.name;
    let is_read_only = args.read_only.as_deref().map(|given| given == ON);
    let set = || -> Result<_, ReplicaError> {
        let Some(mut state) = ReplicaState::find(target)? else {
            return Ok(false);
        };
        let mut is_there = match args.frequency {
            Some(frequency) => state.set_frequency(name, frequency)?,
            None => true,
        };
        if let (Some(bytes), true) = (args.bandwidth, is_there) {
            is_there = state.set_bandwidth(name, Some(bytes).filter(|bytes| *bytes > 0))?;
        }
        match is_read_only {
            Some(is_read_only) if is_there => read_only::set(&mut state, name, is_read_only),
            _ => Ok(is_there),
        }
    };
    if !set().map_err(failed)? {
        return Err(no_replica(name));
    }
    let frequency = args.frequency.map(frequency_words);
    let read_only = is_read_only.map(|it| read_only_words(it).to_owned());
    let bandwidth = args.bandwidth.map(bandwidth_words);
    for words in [frequency, bandwidth, read_only].into_iter().flatten() {
        output::print(&format!("replica {name} {words}"));
    }
    Ok(())
}

fn bandwidth_words(bytes: u64) -> String {
    match bytes {
        0 => "has no limit of bandwidth".to_owned(),
        _ => format!(
            "moves at most {}/s from source to target",
            brief::bytes(bytes as f64)
        ),
    }
}

pub(super) fn read_only_words(is_read_only: bool) -> &'static str {
    match is_read_only {
        true => {
            "is read-only for others: new sessions in its database begin read-only (SET \
             default_transaction_read_only = off lets one write), those that are open stay as they are"
        }
        false => "may be written to by others: new sessions in its database begin read-write",
    }
}

/// What an alteration has done.
fn lines(options: &AlterOptions, altered: &Altered) -> Vec<String> {
    let name = &options.name;
    let mut lines = Vec::new();
    match &altered.changes {
        None => lines.push(format!(
            "replica {name}: what an earlier call had begun is done"
        )),
        Some(changes) if changes.is_empty() => {
            lines.push(format!("replica {name}: no table is copied or left"));
        }
        Some(changes) => {
            let left = match options.drops {
                true => "is replicated no longer, and dropped on the target",
                false => "is replicated no longer, and stays on the target as it is",
            };
            let joins = changes.joins.iter().map(|(table, _)| (table, "joins"));
            let anew = changes
                .anew
                .iter()
                .map(|(table, _)| (table, "is copied anew"));
            let leaves = changes.leaves.iter().map(|table| (table, left));
            let each = joins.chain(anew).chain(leaves);
            lines.extend(each.map(|(table, what)| format!("table {table} {what}")));
        }
    }
    if altered.copied != Moment::default() {
        let Moment {
            tables_done, rows, ..
        } = altered.copied;
        lines.push(format!(
            "{} of {} copied; all others went on from where they were",
            figures::counted(rows, "row"),
            figures::counted(tables_done, "table")
        ));
    }
    lines
}
