//! `lockstep-lab wal random`: runs the random workload against a server of the user.

use anyhow::{Result, bail};
use clap::{ArgGroup, Args, value_parser};
use lockstep_lab::package::{Major, Package};
use lockstep_service::words::output;
use lockstep_verify::random::{self, RandomWorkload, Size, Summary};

/// `lockstep-lab wal random`
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("where").required(true))]
pub struct RandomArgs {
    /// The seed: the same seed, sessions and statements give the same text
    #[arg(long, value_name = "N")]
    pub seed: u64,
    /// Statements of each session
    #[arg(long, value_name = "N", default_value_t = Size::default().statements, value_parser = value_parser!(u32).range(1..=i64::from(random::MOST_STATEMENTS)))]
    pub statements: u32,
    /// Sessions at the same time
    #[arg(long, value_name = "N", default_value_t = Size::default().sessions, value_parser = value_parser!(u32).range(1..=i64::from(random::MOST_SESSIONS)))]
    pub sessions: u32,
    /// Print the workload as input of psql, without connecting
    #[arg(long, group = "where")]
    pub print: bool,
    /// Primary and database to run in, as a libpq conninfo string or URI; needs a superuser
    #[arg(long, value_name = "CONNINFO", group = "where")]
    pub target: Option<String>,
    /// Run even if the database's name does not begin with lockstep_random
    #[arg(long, conflicts_with = "print")]
    pub any_database: bool,
    /// PostgreSQL major whose psql to use, 15 to 19, from /usr/lib/postgresql
    #[arg(
        long,
        value_name = "MAJOR",
        env = "PG",
        hide_env_values = true,
        default_value = "15"
    )]
    pub pg: Major,
}

pub fn run(args: &RandomArgs) -> Result<()> {
    let size = Size {
        sessions: args.sessions,
        statements: args.statements,
    };
    let workload = RandomWorkload::new(args.seed, size);
    let Some(target) = &args.target else {
        output::write(workload.text().as_bytes());
        return Ok(());
    };
    let package = Package::find(args.pg)?;
    let summary = random::run_on(&package, target, args.any_database, &workload)?;
    output::print(&format!("seed {}: {summary}", args.seed));
    judge(&summary)
}

fn judge(summary: &Summary) -> Result<()> {
    let Some(first) = summary.unexpected.first() else {
        return Ok(());
    };
    bail!(
        "{} statements failed in a way that no correct server answers; the first: {first}; look at the server's log",
        summary.unexpected_count
    );
}
