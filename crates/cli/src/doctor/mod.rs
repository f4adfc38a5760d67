//! `lockstep doctor`: where replicas lag, why, and what to change.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use lockstep_lag::commit_probe::{CommitProbe, Pace, Plan, probe_commits};
use lockstep_lag::diagnosis::twice::compare_all;
use lockstep_lag::figures::median;
use lockstep_lag::heartbeat::{Heart, PATIENCE, Pulse};
use lockstep_lag::nodes::Watched;
use lockstep_lag::watch::{Watch, watch};
use lockstep_lag::window::{EVERY, Window};
use lockstep_lag::{Diagnosis, LagError, Node, Role, diagnose};
use lockstep_service::clock::unix_ms;
use lockstep_service::exit::Failure;
use lockstep_service::words::output;
use serde::Serialize;

use crate::nodes::NodesArgs;

mod nagios;
pub mod text;

use nagios::{Level, Thresholds};

/// Shown by the servers.
const APPLICATION_NAME: &str = "lockstep doctor";

/// `lockstep doctor`
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Which servers.
    #[command(flatten)]
    nodes: NodesArgs,
    /// Seconds to watch; take more for a lag that comes and goes
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 5,
        value_parser = value_parser!(u32).range(1..=3600)
    )]
    seconds: u32,
    /// Commit 1,000 rows at a time at each level of synchronous_commit, and show how long a commit
    /// would wait for each replica
    ///
    /// Writes. With subscribers, it creates table lockstep_probe.commits on all servers, adds it to
    /// their publications and removes it again; this needs the rights of the owners. Without
    /// subscribers, it writes logical messages and creates nothing.
    #[arg(long)]
    probe: bool,
    /// Commits at each level with --probe; each takes 0.7 s plus its wait
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        requires = "probe",
        value_parser = value_parser!(u32).range(1..=1000)
    )]
    commits: u32,
    /// Say of every check what is asked, who may ask it, what it proves, and what has come of it
    #[arg(long)]
    explain: bool,
    /// Say which standby would be promoted if the primary failed now, what would be lost, and what
    /// speaks against it
    #[arg(long)]
    ready_to_fail_over: bool,
    /// Format of the result: for people, for programs, or as a plugin of Nagios, with its exit codes
    #[arg(long, visible_alias = "format", value_enum, value_name = "FORMAT", default_value_t = Format::Text)]
    output: Format,
    /// Age of a replica's data, in seconds, from which --output nagios is a warning (10)
    #[arg(long, value_name = "SECONDS")]
    warning: Option<u32>,
    /// Age of a replica's data, in seconds, from which --output nagios is critical (60)
    #[arg(long, value_name = "SECONDS")]
    critical: Option<u32>,
}

/// Age of a replica's data from which a plugin warns, in seconds,
const WARNING_S: u32 = 10;

/// and from which it says critical.
const CRITICAL_S: u32 = 60;

/// Format of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Text for people
    Text,
    /// JSON for programs
    Json,
    /// A line with figures, and exit codes 0 to 3, as monitoring programs expect it of a plugin
    Nagios,
}

/// Runs, and returns the exit code of a plugin; other failures are errors.
pub fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    if args.output != Format::Nagios {
        if args.warning.or(args.critical).is_some() {
            let words = "--warning and --critical need --output nagios".to_owned();
            return Err(Failure::Usage(words).into());
        }
        return diagnosed(args).map(|()| ExitCode::SUCCESS);
    }
    let (level, text) = match plugin(args) {
        Ok(said) => said,
        Err(error) => (Level::Unknown, nagios::unknown(&format!("{error:#}"))),
    };
    output::print(&text);
    Ok(ExitCode::from(level.code()))
}

/// What a plugin says.
fn plugin(args: &DoctorArgs) -> anyhow::Result<(Level, String)> {
    let thresholds = Thresholds {
        warning_s: args.warning.unwrap_or(WARNING_S),
        critical_s: args.critical.unwrap_or(CRITICAL_S),
    };
    let wrong = match thresholds.warning_s > thresholds.critical_s {
        true => Some("--warning is more than --critical"),
        false if args.probe || args.explain || args.ready_to_fail_over => {
            Some("--output nagios has no --probe, no --explain and no --ready-to-fail-over")
        }
        false => None,
    };
    if let Some(words) = wrong {
        return Err(Failure::Usage(words.to_owned()).into());
    }
    let clusters = args.nodes.clusters()?;
    let diagnoses = diagnoses(args, &clusters);
    let several = diagnoses.len() > 1;
    let named = clusters.iter().zip(&diagnoses).map(|(watched, diagnosis)| {
        let name = watched.cluster.as_deref().filter(|_| several);
        (name, diagnosis)
    });
    Ok(nagios::report(&named.collect::<Vec<_>>(), thresholds))
}

/// Watches all clusters at once, so that one that hangs delays no other.
fn diagnoses(args: &DoctorArgs, clusters: &[Watched]) -> Vec<Diagnosis> {
    let of_one = |watched: &Watched| {
        let mut window = watch(
            &watched.nodes,
            Watch {
                application_name: APPLICATION_NAME,
                length: Duration::from_secs(args.seconds.into()),
                every: EVERY,
            },
        );
        window.membership.clone_from(&watched.membership);
        diagnose(&window).watched_enough()
    };
    let mut diagnoses: Vec<Diagnosis> = thread::scope(|scope| {
        let threads: Vec<_> = clusters
            .iter()
            .map(|watched| scope.spawn(move || of_one(watched)))
            .collect();
        let diagnoses = threads.into_iter().map(|thread| {
            // A thread that died is a bug: no node of its cluster was asked.
            thread
                .join()
                .unwrap_or_else(|_| diagnose(&Window::new(Vec::new())))
        });
        diagnoses.collect()
    });
    let names: Vec<Option<&str>> = clusters.iter().map(|it| it.cluster.as_deref()).collect();
    compare_all(&names, &mut diagnoses);
    diagnoses
}

fn diagnosed(args: &DoctorArgs) -> anyhow::Result<()> {
    let clusters = args.nodes.clusters()?;
    let diagnoses = diagnoses(args, &clusters);
    let mut all = Vec::new();
    for (watched, diagnosis) in clusters.iter().zip(&diagnoses) {
        all.push(OfCluster {
            cluster: watched.cluster.as_deref(),
            diagnosis,
            probe: match args.probe {
                true => Some(probe(args, &watched.nodes, diagnosis)?),
                false => None,
            },
        });
    }
    let said = match args.output {
        Format::Text | Format::Nagios => all.iter().map(|one| one.text(args, all.len())).collect(),
        Format::Json => json(&all)?,
    };
    output::write(said.as_bytes());
    let named = all.iter().map(|one| (one.cluster, one.diagnosis));
    verdicts(&named.collect::<Vec<_>>())
}

/// Version of the JSON: it grows when a field is removed or means something else.
const SCHEMA: u32 = 1;

/// The result for a cluster.
#[derive(Serialize)]
struct OfCluster<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<&'a str>,
    #[serde(flatten)]
    diagnosis: &'a Diagnosis,
    #[serde(skip_serializing_if = "Option::is_none")]
    probe: Option<Probed>,
}

impl OfCluster<'_> {
    fn text(&self, args: &DoctorArgs, clusters: usize) -> String {
        let mut said = match self.cluster {
            Some(name) if clusters > 1 => format!("Cluster {name}\n\n"),
            _ => String::new(),
        };
        said.push_str(&text::report(self.diagnosis, args.seconds));
        if args.ready_to_fail_over {
            said.push_str(&text::failovers(self.diagnosis));
        }
        if args.explain {
            said.push_str(&text::explained(self.diagnosis));
        }
        if let Some(probed) = &self.probe {
            said.push_str(&text::probed(probed));
        }
        if clusters > 1 {
            said.push('\n');
        }
        said
    }
}

/// The result of `--output json`: that of the cluster, or a list of `clusters` if there are several.
fn json(all: &[OfCluster<'_>]) -> anyhow::Result<String> {
    #[derive(Serialize)]
    struct Whole<'a> {
        schema: u32,
        /// The end of the watch, in milliseconds since 1970.
        at_ms: i64,
        #[serde(flatten)]
        one: Option<&'a OfCluster<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        clusters: Option<&'a [OfCluster<'a>]>,
    }
    let one = match all {
        [one] => Some(one),
        _ => None,
    };
    let whole = Whole {
        schema: SCHEMA,
        at_ms: unix_ms(),
        one,
        clusters: one.is_none().then_some(all),
    };
    Ok(serde_json::to_string_pretty(&whole)? + "\n")
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
    let refused = |error: LagError| Failure::Unreachable(format!("the probe failed: {error}"));
    let Some(primary) = nodes
        .iter()
        .filter(usable)
        .find(|node| node.role == Role::Primary)
    else {
        return Err(Failure::Unreachable("there is no primary to probe".to_owned()).into());
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
    let mut heart = Heart::connect(primary, APPLICATION_NAME)?;
    let mut pulse = Pulse::connect(standby, APPLICATION_NAME)?;
    let mut times = Vec::new();
    for _ in 0..BEATS {
        match pulse.feel(heart.beat()?, PATIENCE)? {
            Some(time) => times.push(time.as_secs_f64() * 1000.0),
            None => return Ok(None),
        }
    }
    Ok(Some(median(times)))
}

/// Most replicas that the line on standard error names.
const MOST_NAMED: usize = 3;

/// Who lags and why, in one line; else what is as bad as lag.
fn headline(diagnosis: &Diagnosis) -> String {
    let lagging = diagnosis.lagging();
    let named = lagging.iter().take(MOST_NAMED).map(|(link, why)| {
        let why = why.map_or(text::UNKNOWN, |finding| finding.title.as_str());
        format!("{}: {why}", link.replica)
    });
    let mut words: Vec<String> = named.collect();
    if let Some(more @ 1..) = lagging.len().checked_sub(MOST_NAMED) {
        words.push(format!("and {more} more"));
    }
    if words.is_empty() {
        let first = diagnosis.findings.first();
        words.extend(first.map(|found| format!("{}: {}", found.at, found.title)));
    }
    let lost = lost(diagnosis);
    if !lost.is_empty() {
        words.push(format!("nothing can be said about {}", text::some(&lost)));
    }
    words.join("; ")
}

/// The nodes that cannot be asked, the primary first.
fn lost(diagnosis: &Diagnosis) -> Vec<&str> {
    let nodes = diagnosis.nodes.iter().filter(|node| !node.usable);
    nodes.map(|node| node.name.as_str()).collect()
}

/// The exit code of all clusters and its reasons: that of the worst, which comes first.
pub fn verdicts(clusters: &[(Option<&str>, &Diagnosis)]) -> anyhow::Result<()> {
    let of_cluster = |(name, diagnosis): &(Option<&str>, &Diagnosis)| {
        let failure = verdict(diagnosis).err()?;
        Some(match name.filter(|_| clusters.len() > 1) {
            Some(name) => failure.map(|words| words.insert_str(0, &format!("cluster {name}: "))),
            None => failure,
        })
    };
    let mut failures: Vec<Failure> = clusters.iter().filter_map(of_cluster).collect();
    failures.sort_by_key(|failure| match failure {
        Failure::Unreachable(_) => 0,
        Failure::Behind(_) => 1,
        Failure::NoTarget(_) => 2,
        _ => 3,
    });
    let mut failures = failures.into_iter();
    match failures.next() {
        Some(worst) => {
            let rest: String = failures.map(|other| format!("; {other}")).collect();
            Err(worst.map(|words| words.push_str(&rest)).into())
        }
        None => Ok(()),
    }
}

/// The exit code and its reason: no primary, lag, a replica that cannot be asked, or something
/// that cannot be seen. Risks alone are no failure.
fn verdict(diagnosis: &Diagnosis) -> Result<(), Failure> {
    let mut nodes = diagnosis.nodes.iter();
    let lost = lost(diagnosis);
    let words = format!("nothing can be said about {}: see above", text::some(&lost));
    if nodes.any(|node| node.role == Role::Primary && !node.usable) {
        return Err(Failure::Unreachable(words));
    }
    if diagnosis.has_lag() {
        let words = format!("lag found; {}", headline(diagnosis));
        return Err(Failure::Behind(words));
    }
    if !lost.is_empty() {
        return Err(Failure::NoTarget(words));
    }
    match diagnosis.unknown.first() {
        Some(unseen) => {
            let words = format!("not known whether all is well: {unseen}");
            Err(Failure::NotKnown(words))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use lockstep_lab::assert_has;
    use lockstep_lag::diagnosis::{Finding, LinkReport, NodeReport};
    use lockstep_lag::point::Bound;
    use lockstep_lag::point::LinkKind;
    use lockstep_lag::rules::{Cause, Fact, Severity};

    use super::*;

    pub(super) fn link(replica: &str, lag_ms: f64) -> LinkReport {
        LinkReport {
            upstream: "primary".to_owned(),
            streams_from: None,
            replica: replica.to_owned(),
            subscription: None,
            kind: LinkKind::Physical,
            slot: None,
            lockstep_replica: None,
            initial_copy: None,
            behind: lag_ms > 0.0,
            lag_ms,
            bound: Bound::default(),
            lag_most_ms: None,
            lag_max_ms: lag_ms,
            lag_bytes: 1.0,
            behind_primary: None,
            stage_bytes: [].into(),
        }
    }

    pub(super) fn found(at: &str, title: &str, severity: Severity) -> Finding {
        Finding {
            cause: Cause::ReplayPaused,
            title: title.to_owned(),
            severity,
            at: at.to_owned(),
            explains: 0.0,
            lag_ms: 0.0,
            evidence: Vec::new(),
            names: [].into(),
            remedies: Vec::new(),
        }
    }

    #[test]
    fn each_replica_that_lags_is_named_with_its_own_cause() {
        let mut diagnosis = Diagnosis {
            healthy: false,
            unknown: Vec::new(),
            nodes: Vec::new(),
            links: vec![link("a", 300.0), link("fine", 0.0), link("b", 900.0)],
            findings: vec![
                found("slot x", "a slot keeps WAL", Severity::Lag),
                found("a", "replay is paused", Severity::Lag),
                found("b", "a risk", Severity::Risk),
            ],
            checks: Vec::new(),
            failover: Vec::new(),
            unlinked: Vec::new(),
        };
        let unknown = text::UNKNOWN;
        assert_eq!(
            headline(&diagnosis),
            format!("b: {unknown}; a: replay is paused")
        );
        let more = ["c", "d"].map(|name| link(name, 100.0));
        diagnosis.links.extend(more);
        assert_eq!(
            headline(&diagnosis),
            format!("b: {unknown}; a: replay is paused; c: {unknown}; and 1 more")
        );
        diagnosis.links.clear();
        assert_eq!(headline(&diagnosis), "slot x: a slot keeps WAL");
    }

    #[test]
    fn all_nodes_that_are_lost_are_named() {
        let node = |name: &str, role, usable| NodeReport {
            name: name.to_owned(),
            address: String::new(),
            role,
            usable,
            version: 0,
            identity: None,
            database: String::new(),
            relay_version: None,
            samples: 0,
            troubles: Vec::new(),
        };
        let mut diagnosis = Diagnosis {
            healthy: false,
            unknown: Vec::new(),
            nodes: vec![
                node("db1", Role::Primary, true),
                node("db2", Role::Standby, false),
                node("db3", Role::Standby, false),
            ],
            links: Vec::new(),
            findings: Vec::new(),
            checks: Vec::new(),
            failover: Vec::new(),
            unlinked: Vec::new(),
        };
        let said = |diagnosis: &Diagnosis| verdict(diagnosis).unwrap_err().to_string();
        let words = "nothing can be said about db2, db3: see above";
        assert_eq!(said(&diagnosis), words);
        for name in ["db4", "db5"] {
            diagnosis.nodes.push(node(name, Role::Standby, false));
        }
        let words = "nothing can be said about db2, db3, db4 and 1 more: see above";
        assert_eq!(said(&diagnosis), words);
        diagnosis.links = vec![link("db9", 300.0)];
        assert!(said(&diagnosis).contains("db2, db3, db4 and 1 more"));
    }

    /// What all subscriptions do by default takes a line, not a page.
    #[test]
    fn a_commit_that_nobody_waits_for_is_worth_a_line() {
        let note = |at: &str| Finding {
            cause: Cause::AsynchronousApplyCommit,
            evidence: vec![Fact {
                name: "flush_lag_ms",
                value: 1.0,
                words: "evidence".to_owned(),
            }],
            ..found(at, "it commits asynchronously", Severity::Note)
        };
        let mut diagnosis = Diagnosis {
            healthy: true,
            unknown: Vec::new(),
            nodes: Vec::new(),
            links: Vec::new(),
            findings: vec![note("app"), note("shop")],
            checks: Vec::new(),
            failover: Vec::new(),
            unlinked: Vec::new(),
        };
        let text = text::report(&diagnosis, 1);
        let lines = text.lines().filter(|line| line.contains("app"));
        let words = ["Commits of app, shop wait for no flush there (--explain)."];
        assert_eq!(lines.collect::<Vec<_>>(), words, "{text}");
        assert!(!text.contains("evidence"), "{text}");
        assert!(text.starts_with("Watched 0 nodes for 1 s."), "{text}");
        let all = text::explained(&diagnosis);
        assert_has!(all, "Note: shop: it commits asynchronously");
        // If a commit waits for it, it is a cause like any other.
        diagnosis.findings[0].severity = Severity::Lag;
        let text = text::report(&diagnosis, 1);
        assert_has!(text, "1. app: ", "evidence");
        assert!(text.contains("Commits of shop wait"), "{text}");
    }

    #[test]
    fn bounds_are_marked_and_explained_once() {
        let of = |replica, bound| LinkReport {
            bound,
            ..link(replica, 300.0)
        };
        let links = [("a", Bound::MOST), ("b", Bound::MOST), ("c", Bound::LEAST)];
        let mut diagnosis = Diagnosis {
            healthy: false,
            unknown: Vec::new(),
            nodes: Vec::new(),
            links: links.map(|(name, bound)| of(name, bound)).into(),
            findings: Vec::new(),
            checks: Vec::new(),
            failover: Vec::new(),
            unlinked: Vec::new(),
        };
        let marked = |text: &str, sign| text.matches(&format!("  {sign} 300 ms  ")).count();
        let text = text::report(&diagnosis, 1);
        assert_eq!((marked(&text, "≤"), marked(&text, "≥")), (2, 1), "{text}");
        assert_eq!(text.matches("--subscriber").count(), 1, "{text}");
        diagnosis.links.drain(..2);
        let text = text::report(&diagnosis, 1);
        assert_eq!((marked(&text, "≤"), marked(&text, "≥")), (0, 1), "{text}");
        assert!(!text.contains("--subscriber"), "{text}");
    }

    /// A copy that runs is an observation, and no cause.
    #[test]
    fn an_initial_copy_is_mentioned() {
        let copy = lockstep_lag::rules::InitialCopy {
            tables: 2,
            rows: 1_234,
        };
        let diagnosis = Diagnosis {
            healthy: true,
            unknown: Vec::new(),
            nodes: Vec::new(),
            links: vec![LinkReport {
                initial_copy: Some(copy),
                ..link("app", 0.0)
            }],
            findings: Vec::new(),
            checks: Vec::new(),
            failover: Vec::new(),
            unlinked: Vec::new(),
        };
        let text = text::report(&diagnosis, 1);
        let line = "- app: its initial copy runs: 2 tables are being copied, 1,234 rows so far";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("Healthy: no replica lags"), "{text}");
    }

    #[test]
    fn the_exit_code_says_what_is_known() {
        let nothing = || Diagnosis {
            healthy: false,
            unknown: Vec::new(),
            nodes: Vec::new(),
            links: Vec::new(),
            findings: Vec::new(),
            checks: Vec::new(),
            failover: Vec::new(),
            unlinked: Vec::new(),
        };
        let risk = Diagnosis {
            findings: vec![found("a", "a risk", Severity::Risk)],
            ..nothing()
        };
        assert!(verdict(&risk).is_ok());
        let hidden = Diagnosis {
            unknown: vec!["primary does not show x".to_owned()],
            ..nothing()
        };
        assert!(matches!(verdict(&hidden), Err(Failure::NotKnown(_))));
        let lags = Diagnosis {
            links: vec![link("a", 300.0)],
            ..hidden
        };
        assert!(matches!(verdict(&lags), Err(Failure::Behind(_))));
        // Of several clusters the worst counts, and all are told.
        let hidden = Diagnosis {
            unknown: vec!["primary does not show x".to_owned()],
            ..nothing()
        };
        let all = [(Some("a"), &hidden), (Some("b"), &risk), (Some("c"), &lags)];
        let error = verdicts(&all).unwrap_err();
        assert!(
            matches!(error.downcast_ref(), Some(Failure::Behind(_))),
            "{error}"
        );
        let words = error.to_string();
        assert!(words.starts_with("cluster c: lag found; "), "{words}");
        assert!(
            words.contains("; cluster a: not known") && !words.contains("cluster b"),
            "{words}"
        );
        assert!(verdicts(&all[1..2]).is_ok());
    }
}
