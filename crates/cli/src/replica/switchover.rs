//! `lockstep replica switchover` and `rollback`

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use lockstep_client::Conninfo;
use lockstep_replica::error::{Finding, ReplicaError, Result as ReplicaResult};
use lockstep_replica::switchover::haproxy::HaProxy;
use lockstep_replica::switchover::pooler::PoolerOptions;
use lockstep_replica::switchover::rollback::{old_server, while_applied};
use lockstep_replica::switchover::run::{
    Compare, Rehearsed, SwitchWatcher, Switched, Switchover, rehearse, switchover,
};
use lockstep_service::address::HostPort;
use lockstep_service::exit::Failure;
use lockstep_service::sanitize::sanitize;
use lockstep_service::words::{output, span};

use super::promote::words;
use super::run::on_signals;
use super::{ReplicaArgs, conninfo, failed, replica_name};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Longest time for which clients wait before an attempt is taken back, unless another is given.
const MAX_PAUSE: &str = "1s";

/// `lockstep replica switchover`
#[derive(Debug, Args)]
pub struct SwitchoverArgs {
    #[command(flatten)]
    replica: ReplicaArgs,
    #[command(flatten)]
    how: SwitchArgs,
    /// The replica for the way back, from the target to the source [default: NAME_back]
    #[arg(long, value_name = "NAME", value_parser = replica_name, conflicts_with = "no_reverse")]
    reverse: Option<String>,
    /// Go without a way back
    #[arg(long)]
    no_reverse: bool,
}

/// `lockstep replica rollback`
#[derive(Debug, Args)]
pub struct RollbackArgs {
    #[command(flatten)]
    replica: ReplicaArgs,
    #[command(flatten)]
    how: SwitchArgs,
    /// The replica for the way back, which the switchover has made [default: NAME_back]
    #[arg(long, value_name = "NAME", value_parser = replica_name)]
    reverse: Option<String>,
}

/// How all writing moves from one server to the other.
#[derive(Debug, Args)]
struct SwitchArgs {
    /// Say what would be done, and how long the pause would be; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Compare both sides while nobody can write
    #[arg(long, value_name = "HOW", value_enum, default_value = "none")]
    verify: How,
    /// How to connect to PgBouncer's admin console, so that its clients wait meanwhile
    #[arg(long, value_name = "CONNINFO", requires = "on_switch")]
    pgbouncer: Option<String>,
    /// What the database is called in PgBouncer, if not as on the source
    #[arg(long, value_name = "DATABASE", requires = "pgbouncer")]
    pgbouncer_database: Option<String>,
    /// HAProxy's runtime socket, so that new connections wait meanwhile and are led to the target
    #[arg(long, value_name = "SOCKET", conflicts_with = "pgbouncer")]
    #[arg(requires_all = ["haproxy_address", "haproxy_backend", "haproxy_servers"])]
    haproxy: Option<PathBuf>,
    /// Where clients connect to that HAProxy
    #[arg(long, value_name = "HOST:PORT", requires = "haproxy", value_parser = HostPort::parse)]
    haproxy_address: Option<HostPort>,
    /// HAProxy's back end that leads to the source
    #[arg(long, value_name = "BACKEND", requires = "haproxy", value_parser = haproxy_name)]
    haproxy_backend: Option<String>,
    /// The servers of that back end that are the source and the target
    #[arg(long, value_name = "SOURCE,TARGET", requires = "haproxy", value_parser = haproxy_name)]
    #[arg(value_delimiter = ',')]
    haproxy_servers: Vec<String>,
    /// A shell's command that leads clients to the target; PgBouncer reads its configuration after it
    ///
    /// It is run again if the command was killed. LOCKSTEP_HOST, LOCKSTEP_PORT and LOCKSTEP_DATABASE name the
    /// target, LOCKSTEP_REPLICA the replica.
    #[arg(long, value_name = "COMMAND")]
    on_switch: Option<String>,
    /// Longest time for which clients wait before it is taken back and tried again
    #[arg(long, value_name = "TIME", default_value = MAX_PAUSE, value_parser = span::parse)]
    max_pause: Duration,
    /// Time after which no attempt begins
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = span::parse)]
    timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum How {
    /// No comparison: lockstep replica verify compares before, while writing goes on
    None,
    /// The number of rows of each table
    Counts,
    /// All rows
    Full,
}

/// Prints what happens.
struct Says;

impl SwitchWatcher for Says {
    fn found(&mut self, findings: &[Finding]) {
        for one in findings {
            let words = format!(
                "{:<8} {} {}; {}",
                one.severity.to_string(),
                one.subject,
                one.says,
                one.todo
            );
            output::print(&sanitize(&words));
        }
    }

    fn says(&mut self, words: &str) {
        output::print(&sanitize(words));
    }
}

/// The name of the way back, if none is given: going back there leads to the first name again.
fn back(name: &str) -> String {
    match name.strip_suffix("_back") {
        Some(first) if !first.is_empty() => first.to_owned(),
        _ => format!("{name}_back"),
    }
}

/// A name in HAProxy, which goes into commands.
fn haproxy_name(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | ':' | '-' | '_');
    match !text.is_empty() && text.chars().all(is_plain) {
        true => Ok(text.to_owned()),
        false => Err("names in HAProxy have letters, digits, '.', ':', '-' and '_'".to_owned()),
    }
}

/// What stands between clients and the servers.
fn pooler(args: &SwitchArgs) -> Result<Option<PoolerOptions>> {
    if let Some(console) = &args.pgbouncer {
        return Ok(Some(PoolerOptions::PgBouncer {
            console: conninfo("--pgbouncer", console)?,
            database: args.pgbouncer_database.clone(),
        }));
    }
    let options = (&args.haproxy, &args.haproxy_address, &args.haproxy_backend);
    let (Some(socket), Some(address), Some(backend)) = options else {
        return Ok(None);
    };
    match &args.haproxy_servers[..] {
        [old, new] if old != new => Ok(Some(PoolerOptions::HaProxy(HaProxy {
            socket: socket.clone(),
            address: address.clone(),
            backend: backend.clone(),
            old: old.clone(),
            new: new.clone(),
        }))),
        _ => {
            let words = "--haproxy-servers: give two, the source's and the target's";
            Err(Failure::Usage(words.to_owned()).into())
        }
    }
}

fn wanted(args: &SwitchoverArgs) -> Result<Switchover> {
    let (target, source) = args.replica.ends()?;
    let name = args.replica.name.clone();
    let way_back = match args.no_reverse {
        true => None,
        false => Some(way_back(&name, args.reverse.as_ref())?),
    };
    let pooler = pooler(&args.how)?;
    moved(&args.how, (name, target, source), way_back, pooler)
}

/// The name of the replica for the way back from a replica.
fn way_back(name: &str, given: Option<&String>) -> Result<String> {
    let way_back = given.cloned().unwrap_or_else(|| back(name));
    replica_name(&way_back).map_err(|words| {
        Failure::Usage(match given {
            Some(_) => format!("--reverse: {words}"),
            None => format!("the way back needs a name of its own (--reverse): {words}"),
        })
    })?;
    match way_back == name {
        false => Ok(way_back),
        true => {
            let words = "--reverse: the way back needs another name than the replica";
            Err(Failure::Usage(words.to_owned()).into())
        }
    }
}

/// A promotion with a way back: a switchover whose clients are led by nobody.
pub fn directly(
    (name, target, source): (String, Conninfo, Option<Conninfo>),
    reverse: Option<&String>,
    wait: u32,
) -> Result<()> {
    let what = Switchover {
        way_back: Some(way_back(&name, reverse)?),
        name,
        target,
        source,
        compare: Compare::None,
        pooler: None,
        on_switch: None,
        max_pause: span::parse(MAX_PAUSE).map_err(Failure::Usage)?,
        timeout: Duration::from_secs(wait.into()),
        stop: Arc::default(),
    };
    stops(&what)?;
    let switched = switchover(&what, &mut Says);
    let needs_source = |error| {
        match error {
        ReplicaError::Source(_) => ReplicaError::Unfinished {
            error: Box::new(error),
            left: "A way back needs the source: if it is gone for good, promote with --with-data-loss, and make a \
                   replica of the target on another server"
                .to_owned(),
        },
        error => error,
    }
    };
    ended(&what, switched.map_err(needs_source))
}

fn moved(
    how: &SwitchArgs,
    (name, target, source): (String, Conninfo, Option<Conninfo>),
    way_back: Option<String>,
    pooler: Option<PoolerOptions>,
) -> Result<Switchover> {
    if how.max_pause.is_zero() {
        return Err(Failure::Usage("--max-pause must be more than 0".to_owned()).into());
    }
    Ok(Switchover {
        name,
        target,
        source,
        compare: match how.verify {
            How::None => Compare::None,
            How::Counts => Compare::Counts,
            How::Full => Compare::Full,
        },
        pooler,
        on_switch: how.on_switch.clone(),
        way_back,
        max_pause: how.max_pause,
        timeout: how.timeout,
        stop: Arc::default(),
    })
}

pub fn run(args: &SwitchoverArgs) -> Result<()> {
    let what = wanted(args)?;
    if args.how.dry_run {
        return rehearsed(&what, rehearse(&what, &mut Says));
    }
    stops(&what)?;
    ended(&what, switchover(&what, &mut Says))
}

/// Goes back from a replica's target to its source, which is a switchover of the way back.
pub fn rollback(args: &RollbackArgs) -> Result<()> {
    let (new, old) = args.replica.ends()?;
    let (name, how) = (&args.replica.name, &args.how);
    let way_back = way_back(name, args.reverse.as_ref())?;
    let pooler = pooler(how)?.map(PoolerOptions::turned);
    let old = old_server(name, &way_back, &new, old.as_ref()).map_err(failed)?;
    let ends = (way_back, old, Some(new));
    let what = moved(how, ends, Some(name.clone()), pooler)?;
    output::print(&sanitize(&format!(
        "going back from replica {name} by a switchover of replica {}: its target is the old server, its source the \
         new one",
        what.name
    )));
    if how.dry_run {
        return rehearsed(
            &what,
            while_applied(&what, &mut Says, |says| rehearse(&what, says)),
        );
    }
    stops(&what)?;
    ended(
        &what,
        while_applied(&what, &mut Says, |says| switchover(&what, says)),
    )
}

/// Ctrl-C takes back what can be taken back.
fn stops(what: &Switchover) -> Result<()> {
    let stop = what.stop.clone();
    on_signals(&[SIGINT, SIGTERM], move |_| {
        stop.store(true, Ordering::Relaxed)
    })
}

/// Says what a switchover would do.
fn rehearsed(what: &Switchover, rehearsed: ReplicaResult<Rehearsed>) -> Result<()> {
    for line in rehearsal(what, &rehearsed.map_err(failed)?) {
        output::print(&sanitize(&line));
    }
    Ok(())
}

/// Says what a switchover has done.
fn ended(what: &Switchover, switched: ReplicaResult<Switched>) -> Result<()> {
    let switched = switched.map_err(failed)?;
    for line in lines(what, &switched) {
        output::print(&sanitize(&line));
    }
    let lacks: Vec<_> = (switched.promoted.lacks.into_iter())
        .chain(switched.promoted.read_only)
        .collect();
    match lacks.is_empty() {
        true => Ok(()),
        false => Err(Failure::DataMismatch(format!(
            "the switchover of replica {} is done, and not everything is as it should be: {}",
            what.name,
            lacks.join("; ")
        ))
        .into()),
    }
}

fn ms(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}

/// What is to be known of a switchover that is done.
fn lines(what: &Switchover, switched: &Switched) -> Vec<String> {
    let name = &what.name;
    let mut lines = vec![match switched.is_again {
        true => format!("the switchover of replica {name} was done before"),
        false => format!(
            "the switchover of replica {name} is done: {}",
            words(&switched.promoted.promotion)
        ),
    }];
    if let Some(pause) = switched.pause {
        let steps = switched.steps.iter();
        let steps: Vec<_> = steps
            .map(|(step, took)| format!("{step} {}", ms(*took)))
            .collect();
        lines.push(format!(
            "nobody could write for {} ({})",
            ms(pause),
            steps.join(", ")
        ));
    }
    lines.extend(switched.promoted.notes.clone());
    if !switched.is_again {
        lines.push(
            "the source takes no writes any more; keep it until you are sure of the target"
                .to_owned(),
        );
    }
    if let (Some(PoolerOptions::HaProxy(it)), false) = (&what.pooler, switched.is_again) {
        lines.push(format!(
            "HAProxy leads to server {} until it is reloaded: write `disabled` into the line of server {} of back end {} \
             in its configuration, and take it out of that of {0}",
            it.new, it.old, it.backend
        ));
    }
    if let Some(way_back) = &switched.way_back {
        lines.push(format!(
            "the target keeps all changes for the way back: let lockstep replica run {0} apply them to the old \
             server (--target there), and go back with lockstep replica rollback {1}, or drop replica {0} there",
            way_back.name, name
        ));
    }
    lines
}

/// What a switchover would do.
fn rehearsal(what: &Switchover, rehearsed: &Rehearsed) -> Vec<String> {
    let mut lines = vec![format!(
        "a switchover of replica {} would gather statistics on the target{}, {}fence {} on the source, let the \
         target come to the end of the source's WAL{}, set the sequences, open the target{}, and remove the \
         replica's slot from the source",
        what.name,
        match &what.way_back {
            Some(name) => format!(", make replica {name} for the way back"),
            None => String::new(),
        },
        match &what.pooler {
            Some(PoolerOptions::PgBouncer { .. }) => "let PgBouncer's clients wait, ",
            Some(PoolerOptions::HaProxy(_)) => "let new sessions of HAProxy wait, ",
            None => "",
        },
        lockstep_service::words::figures::counted(rehearsed.tables, "table"),
        match what.compare {
            Compare::None => "",
            Compare::Counts => ", compare the numbers of rows",
            Compare::Full => ", compare all rows",
        },
        if what.on_switch.is_some() || what.pooler.is_some() {
            ", lead clients there"
        } else {
            ""
        },
    )];
    if let Some(words) = &rehearsed.waits {
        lines.push(format!("it would wait first: {words}"));
    }
    let mut all = Duration::ZERO;
    for (part, took, is_measured) in &rehearsed.parts {
        all += *took;
        let how = if *is_measured {
            "measured now"
        } else {
            "estimated"
        };
        lines.push(format!("{part}: {} ({how})", ms(*took)));
    }
    let without = match what.compare {
        Compare::Full => {
            " and the comparison of all rows, for which see how long lockstep replica verify takes"
        }
        _ => "",
    };
    lines.push(format!("the pause would be about {}{without}", ms(all)));
    if all > what.max_pause {
        lines.push(format!(
            "that is longer than --max-pause {}: it would be taken back",
            span::show(what.max_pause)
        ));
    }
    lines.push("nothing is changed".to_owned());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_back_of_a_way_back_has_the_first_name() {
        assert_eq!(back("app"), "app_back");
        assert_eq!(back(&back("app")), "app");
        assert_eq!(back("_back"), "_back_back");
    }
}
