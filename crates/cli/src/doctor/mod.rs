//! `lockstep doctor`: where replicas lag, why, and what to change.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Args, value_parser};
use lockstep_lag::commit_probe::{CommitProbe, Pace, Plan, probe_commits};
use lockstep_lag::heartbeat::Heartbeat;
use lockstep_lag::watch::{EVERY, Watch, watch};
use lockstep_lag::window::median;
use lockstep_lag::{Diagnosis, LagError, Node, Role, diagnose};
use serde::Serialize;

use crate::args::Output;
use crate::exit::{Behind, NoTarget, Unreachable};
use crate::nodes::NodesArgs;

pub mod text;

/// Shown by the servers.
const APPLICATION_NAME: &str = "lockstep doctor";

/// `lockstep doctor`
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Which servers.
    #[command(flatten)]
    nodes: NodesArgs,
    /// Seconds to watch; a lag that comes and goes needs more
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Commit 1,000 rows at a time at each level of synchronous_commit, and show how long a commit
    /// would wait for each replica
    ///
    /// Writes: with subscribers, table lockstep_probe.commits is made on all servers, added to their
    /// publications and removed again, which takes the owners' rights; without, logical messages are
    /// written and nothing is made.
    #[arg(long)]
    probe: bool,
    /// Commits at each level with --probe; each takes 0.7 s and what it waits
    #[arg(long, value_name = "N", default_value_t = 5, requires = "probe", value_parser = value_parser!(u32).range(1..=1000))]
    commits: u32,
    /// Format of the result
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    output: Output,
}

pub fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let nodes = args.nodes.nodes()?;
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
    let probed = match args.probe {
        true => Some(probe(args, &nodes, &diagnosis)?),
        false => None,
    };
    match args.output {
        Output::Text => {
            let addresses: Vec<String> = nodes.iter().map(Node::address).collect();
            print!("{}", text::report(&diagnosis, &addresses, args.seconds));
            if let Some(probed) = &probed {
                print!("{}", text::probed(probed));
            }
        }
        Output::Json => {
            let whole = Whole {
                diagnosis: &diagnosis,
                probe: probed.as_ref(),
            };
            println!("{}", serde_json::to_string_pretty(&whole)?);
        }
    }
    verdict(&diagnosis)
}

/// The result of `--output json`.
#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    diagnosis: &'a Diagnosis,
    #[serde(skip_serializing_if = "Option::is_none")]
    probe: Option<&'a Probed>,
}

/// The measurements of `--probe`.
#[derive(Debug, Serialize)]
pub struct Probed {
    #[serde(flatten)]
    commits: CommitProbe,
    /// Median time from commit until visible on each standby; None if it took too long.
    visible_ms: BTreeMap<String, Option<f64>>,
}

/// Number of heartbeats of each standby, of which the median counts.
const BEATS: usize = 5;

fn probe(args: &DoctorArgs, nodes: &[Node], diagnosis: &Diagnosis) -> anyhow::Result<Probed> {
    let usable = |node: &&Node| {
        diagnosis
            .nodes
            .iter()
            .any(|report| report.name == node.name && report.usable)
    };
    let refused = |error: LagError| Unreachable(format!("the probe failed: {error}"));
    let Some(primary) = nodes
        .iter()
        .filter(usable)
        .find(|node| node.role == Role::Primary)
    else {
        return Err(Unreachable("there is no primary to probe".to_owned()).into());
    };
    let of_role = |role: Role| {
        nodes
            .iter()
            .filter(usable)
            .filter(move |node| node.role == role)
    };
    let subscribers: Vec<Node> = of_role(Role::Subscriber).cloned().collect();
    let plan = Plan {
        commits: args.commits,
        pace: Pace::Apart,
        watch: true,
        application_name: APPLICATION_NAME,
    };
    let commits = probe_commits(primary, &subscribers, plan).map_err(refused)?;
    let mut visible_ms = BTreeMap::new();
    for standby in of_role(Role::Standby) {
        visible_ms.insert(
            standby.name.clone(),
            beats(primary, standby).map_err(refused)?,
        );
    }
    Ok(Probed {
        commits,
        visible_ms,
    })
}

fn beats(primary: &Node, standby: &Node) -> Result<Option<f64>, LagError> {
    let mut heart = Heartbeat::connect(primary, standby, APPLICATION_NAME)?;
    let mut times = Vec::new();
    for _ in 0..BEATS {
        match heart.beat()? {
            Some(time) => times.push(time.as_secs_f64() * 1000.0),
            None => return Ok(None),
        }
    }
    Ok(Some(median(times)))
}

/// The exit code and its reason: no primary, lag, or a replica that cannot be asked.
pub fn verdict(diagnosis: &Diagnosis) -> anyhow::Result<()> {
    let blind = |role: fn(Role) -> bool| {
        let mut nodes = diagnosis.nodes.iter();
        nodes.find(|node| role(node.role) && !node.usable)
    };
    let words = |name: &str| format!("nothing can be said about {name}: see above");
    if let Some(node) = blind(|role| role == Role::Primary) {
        return Err(Unreachable(words(&node.name)).into());
    }
    if diagnosis.has_lag() {
        let first = diagnosis.findings.first();
        let cause = first.map_or("its cause is not known".to_owned(), |finding| {
            format!("{}: {}", finding.at, finding.title)
        });
        return Err(Behind(format!("lag found; {cause}")).into());
    }
    match blind(|_| true) {
        Some(node) => Err(NoTarget(words(&node.name)).into()),
        None => Ok(()),
    }
}
