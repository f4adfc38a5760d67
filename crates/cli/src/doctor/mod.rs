//! `lockstep doctor`: where replicas lag, why, and what to change.

use std::time::Duration;

use clap::{Args, value_parser};
use lockstep_lag::watch::{EVERY, Watch, watch};
use lockstep_lag::{Diagnosis, Node, Role, diagnose};
use lockstep_upstream::Conninfo;

use crate::args::Output;
use crate::exit::Diagnosed;

mod text;

/// Shown by the servers.
const APPLICATION_NAME: &str = "lockstep doctor";

/// `lockstep doctor`
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// The primary, as a conninfo string or URI; .pgpass, service files and PG* variables work
    #[arg(long, value_name = "CONNINFO", value_parser = conninfo)]
    primary: Conninfo,
    /// A physical standby, cascading ones too; may be repeated
    #[arg(long, value_name = "CONNINFO", value_parser = conninfo)]
    standby: Vec<Conninfo>,
    /// A database with subscriptions to the primary; may be repeated
    #[arg(long, value_name = "CONNINFO", value_parser = conninfo)]
    subscriber: Vec<Conninfo>,
    /// Seconds to watch; a lag that comes and goes needs more
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Format of the result
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    output: Output,
}

/// Reads a conninfo. Its words go into a usage error, so passwords are not among them.
fn conninfo(text: &str) -> Result<Conninfo, String> {
    Conninfo::parse(text).map_err(|error| error.to_string())
}

/// Runs it.
pub fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let nodes = nodes(args);
    let length = Duration::from_secs(args.seconds.into());
    let window = watch(
        &nodes,
        Watch {
            application_name: APPLICATION_NAME,
            length,
            every: EVERY,
        },
    );
    let diagnosis = diagnose(&window);
    match args.output {
        Output::Text => {
            let addresses: Vec<String> = nodes.iter().map(address).collect();
            print!("{}", text::report(&diagnosis, &addresses, args.seconds));
        }
        Output::Json => println!("{}", serde_json::to_string_pretty(&diagnosis)?),
    }
    verdict(&diagnosis)
}

fn verdict(diagnosis: &Diagnosis) -> anyhow::Result<()> {
    let blind = |role: fn(Role) -> bool| {
        let mut nodes = diagnosis.nodes.iter();
        nodes.find(|node| role(node.role) && !node.usable)
    };
    let words = |name: &str| format!("nothing can be said about {name}: see above");
    if let Some(node) = blind(|role| role == Role::Primary) {
        return Err(Diagnosed::NoPrimary(words(&node.name)).into());
    }
    if diagnosis.has_lag() {
        let first = diagnosis.findings.first();
        let cause = first.map_or("its cause is not known".to_owned(), |finding| {
            format!("{}: {}", finding.at, finding.title)
        });
        return Err(Diagnosed::Lag(format!("lag found; {cause}")).into());
    }
    match blind(|_| true) {
        Some(node) => Err(Diagnosed::NoReplica(words(&node.name)).into()),
        None => Ok(()),
    }
}

/// Nodes by their role, numbered where there are several.
fn nodes(args: &DoctorArgs) -> Vec<Node> {
    let named = |role: Role, conninfos: &[Conninfo]| -> Vec<Node> {
        let several = conninfos.len() > 1;
        conninfos
            .iter()
            .enumerate()
            .map(|(index, conninfo)| Node {
                name: match several {
                    true => format!("{role}{}", index + 1),
                    false => role.to_string(),
                },
                role,
                conninfo: conninfo.clone(),
            })
            .collect()
    };
    let mut nodes = named(Role::Primary, std::slice::from_ref(&args.primary));
    nodes.extend(named(Role::Standby, &args.standby));
    nodes.extend(named(Role::Subscriber, &args.subscriber));
    nodes
}

/// Where a node is, without anything secret.
fn address(node: &Node) -> String {
    let part = |option| node.conninfo.effective(option).unwrap_or_default();
    let database = part("dbname");
    let (host, port) = (part("host"), part("port"));
    match database.is_empty() {
        true => format!("{host}:{port}"),
        false => format!("{host}:{port}/{database}"),
    }
}
