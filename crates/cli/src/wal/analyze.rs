//! `lockstep wal analyze`: how much of some WAL can be replayed in parallel, without a server that
//! replays it.

mod text;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, value_parser};
use lockstep_client::Conninfo;
use lockstep_client::target::Target;
use lockstep_service::exit::Failure;
use lockstep_service::words::output::{self, Output};
use lockstep_wal::WalError;
use lockstep_wal::analysis::{Analysis, Limit, Outcome, Report, Share};
use lockstep_wal::class::{Rules, Stage};
use lockstep_wal::costs::Costs;
use lockstep_wal::folder::{Range, Run};
use lockstep_wal::reader::{Pages, Reader, Reason};
use lockstep_wal::stream::{Amount, MOST_BYTES, Streamed};
use lockstep_wal::walk::{self, Ended, Until};
use lockstep_wire::{Lsn, Timeline};
use serde_json::{Value, json};

/// Numbers of helpers that are simulated. 1 is what a machine with two cores can have.
const HELPERS: [usize; 6] = [1, 2, 4, 8, 16, 64];

/// Kinds of records that are named for each cause.
const KINDS: usize = 3;

/// How much of a server's WAL is read by default, in 10^6 bytes.
const MEGABYTES: u64 = 64;

/// `lockstep wal analyze`
#[derive(Debug, Args)]
pub struct AnalyzeArgs {
    /// A folder with WAL segments (pg_wal, an archive, a data directory, a recording), or the conninfo
    /// of a server, with a role that has REPLICATION
    #[arg(value_name = "FOLDER|CONNINFO")]
    pub source: String,
    /// In a folder: the timeline to read [default: the newest that has a segment]
    #[arg(long, value_name = "N")]
    pub timeline: Option<Timeline>,
    /// In a folder: begin with the first record at or after this LSN [default: where the oldest
    /// segments without a gap begin]
    #[arg(long, value_name = "LSN")]
    pub start: Option<Lsn>,
    /// In a folder: end before the first record at or after this LSN [default: where the WAL ends]
    #[arg(long, value_name = "LSN")]
    pub end: Option<Lsn>,
    /// Most WAL to read, in 10^6 bytes: from a folder the first, from a server the newest [default: all
    /// of a folder, 64 from a server]
    #[arg(long, value_name = "MB", value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    pub megabytes: Option<u64>,
    /// From a server: then go on for this long with what it writes
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u64).range(1..=86_400))]
    pub seconds: Option<u64>,
    /// Use the rules of lockstep.replay_hot_standby, while sessions read [default: those of crash
    /// recovery, of restoring a base backup, and of a standby's start]
    #[arg(long)]
    pub hot_standby: bool,
    /// Costs of records, as JSON, in place of the built-in table
    #[arg(long, value_name = "FILE")]
    pub costs: Option<PathBuf>,
    /// Format of the result on standard output
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    pub output: Output,
}

impl AnalyzeArgs {
    fn rules(&self, major: u32) -> Rules {
        let stage = match self.hot_standby {
            true => Stage::HotStandby,
            false => Stage::BeforeConsistency,
        };
        Rules { stage, major }
    }
}

/// What was read, and what came of it.
pub struct Outcomes {
    pub source: String,
    pub timeline: Timeline,
    pub major: u32,
    pub report: Report,
    pub ended: Ended,
    /// WAL of a folder that was not read: the segment that is missing, and where WAL goes on.
    pub behind: Option<(String, Lsn)>,
    /// Whether the WAL begins with the oldest that the server has.
    pub from_oldest: bool,
    pub costs: Costs,
}

pub fn run(args: &AnalyzeArgs) -> Result<()> {
    let costs = match &args.costs {
        Some(file) => Costs::read(file).map_err(refused)?,
        None => Costs::built_in()?,
    };
    if args.source.trim().is_empty() {
        bail!(Failure::Usage(
            "the source is empty; name a folder or the conninfo of a server".to_owned()
        ));
    }
    let outcomes = match Target::parse(&args.source) {
        Target::Folder(folder) => of_folder(args, &folder, costs)?,
        Target::Conninfo(conninfo) => of_server(args, &conninfo, costs)?,
    };
    match args.output {
        Output::Text => output::write(text::text(&outcomes).as_bytes()),
        Output::Json => output::print(&as_json(&outcomes).to_string()),
    }
    Ok(())
}

fn of_folder(args: &AnalyzeArgs, folder: &Path, costs: Costs) -> Result<Outcomes> {
    if args.seconds.is_some() {
        bail!(Failure::Usage(
            "--seconds is for a server, not for a folder".to_owned()
        ));
    }
    if args
        .start
        .zip(args.end)
        .is_some_and(|(start, end)| start >= end)
    {
        bail!(Failure::Usage("--end is not behind --start".to_owned()));
    }
    let range = Range {
        timeline: args.timeline,
        start: args.start,
    };
    let run = Run::find(folder, range).map_err(refused)?;
    if let Some(end) = args
        .end
        .filter(|&end| end > run.end && run.next_run.is_some())
    {
        return Err(refused(run.missing_before(end)));
    }
    let until = Until {
        lsn: args.end,
        bytes: args.megabytes.map(|megabytes| megabytes * 1_000_000),
    };
    let source = run.folder.display().to_string();
    let rules = args.rules(run.major);
    let (report, ended) = analyzed(run.reader(), until, rules, &costs, &source)?;
    let behind = run.next_run.filter(|_| ended != Ended::Limit);
    Ok(Outcomes {
        source,
        timeline: run.timeline,
        major: run.major,
        behind: behind.map(|next| (run.missing(), next)),
        from_oldest: false,
        report,
        ended,
        costs,
    })
}

fn of_server(args: &AnalyzeArgs, conninfo: &str, costs: Costs) -> Result<Outcomes> {
    if args.timeline.is_some() || args.start.is_some() || args.end.is_some() {
        let words = "--timeline, --start and --end are for a folder, not for a server";
        bail!(Failure::Usage(words.to_owned()));
    }
    let megabytes = args.megabytes.unwrap_or(MEGABYTES);
    let amount = Amount {
        bytes: megabytes * 1_000_000,
        longer: Duration::from_secs(args.seconds.unwrap_or(0)),
    };
    if amount.bytes > MOST_BYTES {
        let words = format!(
            "--megabytes {megabytes} of a server is more than fits; write {}",
            MOST_BYTES / 1_000_000
        );
        bail!(Failure::Usage(words));
    }
    let conninfo = Conninfo::parse(conninfo)?;
    let mut streamed = Streamed::read(&conninfo, amount).map_err(refused)?;
    let source = format!("the server at {}", streamed.name());
    let until = Until::default();
    let rules = args.rules(streamed.major);
    let (report, ended) = analyzed(streamed.reader(), until, rules, &costs, &source)?;
    Ok(Outcomes {
        source,
        timeline: streamed.timeline,
        major: streamed.major,
        behind: None,
        from_oldest: streamed.from_oldest,
        report,
        ended,
        costs,
    })
}

fn analyzed<P: Pages>(
    mut reader: Reader<P>,
    until: Until,
    rules: Rules,
    costs: &Costs,
    source: &str,
) -> Result<(Report, Ended)> {
    let start = reader.position();
    let mut analysis = Analysis::new(costs.clone(), reader.identity().size, rules, &HELPERS);
    let ended = walk::read(&mut reader, until, &mut analysis)?;
    let reason = match &ended {
        Ended::Limit => "--end is before the first".to_owned(),
        Ended::Stop(stop) if stop.reason == Reason::Removed => {
            format!("{}; run it again", stop.reason)
        }
        Ended::Stop(stop) => stop.reason.to_string(),
    };
    let none = || WalError::NoRecord {
        file: source.to_owned(),
        start,
        reason,
    };
    let report = analysis.finish().ok_or_else(none).map_err(refused)?;
    Ok((report, ended))
}

/// Arguments that name what cannot be used are usage errors; what cannot be read is not.
fn refused(error: WalError) -> anyhow::Error {
    match error {
        WalError::NoWal { .. }
        | WalError::NoRecord { .. }
        | WalError::ReadFolder { .. }
        | WalError::Missing { .. }
        | WalError::Gap { .. }
        | WalError::ReadCosts { .. }
        | WalError::Costs { .. } => Failure::Usage(error.to_string()).into(),
        // Its exit code is that of a server that cannot be reached.
        WalError::Server(error) => error.into(),
        WalError::Removing(_) => Failure::Unreachable(error.to_string()).into(),
        other => other.into(),
    }
}

fn share(share: &Share, all: &Share) -> Value {
    json!({
        "records": share.records,
        "bytes": share.bytes,
        "cost_s": share.cost_ns / 1e9,
        "share_of_records": ratio(share.records as f64, all.records as f64),
        "share_of_bytes": ratio(share.bytes as f64, all.bytes as f64),
        "share_of_cost": ratio(share.cost_ns, all.cost_ns),
    })
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// What keeps records from running ahead.
fn causes(outcomes: &Outcomes) -> Vec<Value> {
    let causes = outcomes.report.held.iter().map(|(cause, held)| {
        let kinds = held.commonest(outcomes.major, usize::MAX);
        let kinds: Vec<_> = kinds
            .into_iter()
            .map(|(name, records)| json!({ "name": name, "records": records }))
            .collect();
        json!({
            "cause": cause.name(),
            "barrier": cause.is_barrier(),
            "records": held.share.records,
            "bytes": held.share.bytes,
            "cost_s": held.share.cost_ns / 1e9,
            "kinds": kinds,
        })
    });
    causes.collect()
}

fn as_json(outcomes: &Outcomes) -> Value {
    let report = &outcomes.report;
    let kinds = report.largest_kinds().into_iter().map(|(name, kind)| {
        json!({
            "name": name,
            "records": kind.records,
            "bytes": kind.bytes,
            "images": kind.images,
            "image_bytes": kind.image_bytes,
        })
    });
    let simulated = |outcome: &Outcome| {
        json!({
            "helpers": outcome.helpers,
            "seconds": outcome.seconds,
            "speedup": outcome.speedup,
            "share_of_records_by_helpers": outcome.by_helpers,
            "share_of_time_waiting": outcome.waited,
        })
    };
    let (bound, limit) = report.bound();
    json!({
        "source": outcomes.source,
        "timeline": outcomes.timeline.get(),
        "postgresql": outcomes.major,
        "start_lsn": report.first.to_string(),
        "end_lsn": report.end.to_string(),
        "ended": text::why_ended(outcomes),
        "hot_standby": report.rules.is_hot(),
        "records": report.all.records,
        "bytes": report.all.bytes,
        "image_bytes": report.image_bytes,
        "kinds": kinds.collect::<Vec<_>>(),
        "parallel": share(&report.ahead, &report.all),
        "barriers": report.barriers,
        "causes": causes(outcomes),
        "critical_path": {
            "records": report.critical.records,
            "seconds": report.critical.ns / 1e9,
            "share_of_redo": ratio(report.critical.ns, report.redo_ns),
        },
        "simulated": {
            "one_process_s": report.alone_seconds,
            "look_ahead_s": report.look_ahead_seconds,
            "startup_process_s": report.own_seconds,
            "bound": bound,
            "bound_by": match limit { Limit::Startup => "startup process", Limit::Order => "order" },
            "by_helpers": report.outcomes.iter().map(simulated).collect::<Vec<_>>(),
            "costs": outcomes.costs,
        },
        "verdict": text::verdict(report),
    })
}
