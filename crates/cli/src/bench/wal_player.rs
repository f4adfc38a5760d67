//! `lockstep bench wal-player`: what the WAL player sends to a receiver that throws
//! everything away, unlimited and at set rates.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, value_parser};
use lockstep_lab::cluster::Lab;
use lockstep_lab::machine;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::Settings;
use lockstep_player::null_receiver::{self, Received, Wanted};
use lockstep_player::{Address, Pace, Player, PlayerOptions, Recording};
use serde::{Deserialize, Serialize};

use super::results::{Measured, Results, rounded};
use super::steps::Steps;
use crate::args::ServerArgs;
use crate::{scene, text};

/// Name of the benchmark and of its file.
const NAME: &str = "wal-player";

/// The case without a rate.
const UNLIMITED: &str = "unlimited";

/// Megabytes that a run may need beside the WAL.
const SPACE_MB_BASE: u64 = 1_500;

/// Clients that write what is recorded.
const TABLE: &str = "lockstep_wal";

/// Rows of one statement that writes WAL: some 25 MB of it.
const ROWS: u32 = 40_000;

/// `lockstep bench wal-player`
#[derive(Debug, Args)]
pub struct WalPlayerArgs {
    /// Rounds of each case
    #[arg(long, value_name = "N", env = "BENCH_ROUNDS", hide_env_values = true, default_value_t = 3, value_parser = value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Seconds of each round; a play that is shorter is repeated
    #[arg(long, value_name = "SECONDS", env = "BENCH_SECONDS", hide_env_values = true, default_value_t = 10, value_parser = value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// Megabytes of WAL to record
    #[arg(long, value_name = "MB", default_value_t = 400, value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub megabytes: u64,
    /// Rates to keep, in MB/s, separated by commas
    #[arg(long, value_name = "RATES", value_delimiter = ',', default_values_t = [10, 50, 200], value_parser = value_parser!(u32).range(1..=10_000))]
    pub rates: Vec<u32>,
    /// Folder for wal-player.json
    #[arg(long, value_name = "FOLDER", default_value = "bench/results")]
    pub results: PathBuf,
    /// Which servers to use.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// One round of one case.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    pub case: String,
    /// Always `lockstep`: PostgreSQL has no player of its own.
    pub variant: String,
    pub round: u32,
    pub mb_per_s: f64,
    /// Distance from the set rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_pct: Option<f64>,
    pub wal_mb: f64,
    pub seconds: f64,
    /// Connections one after the other, each from the recording's start.
    pub plays: u32,
    pub date: String,
    pub commit: String,
}

impl Measured for Row {
    fn case(&self) -> &str {
        &self.case
    }

    fn variant(&self) -> &str {
        &self.variant
    }
}

/// Runs the benchmark.
pub fn run(args: &WalPlayerArgs) -> Result<()> {
    let path = Results::<Row>::place(&args.results, NAME)?;
    let lab = scene::open_lab(&args.server, false, SPACE_MB_BASE + 3 * args.megabytes)?;
    let mut results: Results<Row> = Results::begin(
        &path,
        NAME,
        command(args),
        machine::describe(lab.folder(), lab.pinning()),
    )?;
    let cases: Vec<Option<u32>> = [None]
        .into_iter()
        .chain(args.rates.iter().copied().map(Some))
        .collect();
    let mut steps = Steps::new(1 + cases.len() * args.rounds as usize);
    steps.say(&format!("{} ({})", results.command, results.machine));
    steps.begin("recording");
    let recording = record(&lab, args.megabytes)?;
    steps.end(&format!(
        "{} MB of WAL",
        text::count(recording.bytes() as f64 / 1e6)
    ));
    for rate in cases {
        let case = name(rate);
        let mut rows = Vec::new();
        for round in 1..=args.rounds {
            steps.begin(&format!("{case} round {round}"));
            let row = measure(&lab, &recording, rate, args.seconds, round, &results.commit)?;
            steps.end(&line(&row));
            rows.push(row);
        }
        results.replace(&case, rows, vec![]);
        results.date = machine::date();
        results.save(&path)?;
    }
    for line in text::table(&table(&results)) {
        steps.say(&line);
    }
    steps.say(&format!("written to {}", scene::absolute(&path).display()));
    Ok(())
}

fn command(args: &WalPlayerArgs) -> String {
    let rates: Vec<String> = args.rates.iter().map(u32::to_string).collect();
    format!(
        "lockstep bench {NAME} --rounds {} --seconds {} --megabytes {} --rates {} --pg {}",
        args.rounds,
        args.seconds,
        args.megabytes,
        rates.join(","),
        args.server.pg
    )
}

fn name(rate: Option<u32>) -> String {
    rate.map_or_else(|| UNLIMITED.to_owned(), |rate| format!("{rate}-mb-per-s"))
}

/// Inserts into one table until there is enough WAL.
fn record(lab: &Lab, megabytes: u64) -> Result<Recording> {
    let settings: Settings = [
        ("shared_buffers", "128MB"),
        ("max_wal_size", "10GB"),
        ("autovacuum", "off"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    let source = lab.primary("source", None, &settings)?;
    source.execute(&format!("CREATE TABLE {TABLE} (id int, filler text)"))?;
    let recording = lockstep_player::record::<lockstep_player::PlayerError>(
        lab,
        &source,
        &lab.folder().join("recording"),
        || {
            let from = u64::from(source.flush_lsn()?);
            while u64::from(source.flush_lsn()?) - from < megabytes * 1_000_000 {
                source.execute(&format!(
                "INSERT INTO {TABLE} SELECT n, repeat('x', 500) FROM generate_series(1, {ROWS}) n"
            ))?;
            }
            Ok(())
        },
    )?;
    Ok(recording)
}

/// The player on the primary's core, the receiver on the standby's.
fn measure(
    lab: &Lab,
    recording: &Recording,
    rate: Option<u32>,
    seconds: u32,
    round: u32,
    commit: &str,
) -> Result<Row> {
    let pace = rate.map_or(Pace::Unlimited, |rate| Pace::Rate(f64::from(rate) * 1e6));
    let most = Duration::from_secs(seconds.into());
    let started = Instant::now();
    let (mut bytes, mut took, mut plays) = (0, 0.0, 0);
    // A connection's first message is not timed, so a play must be much longer than one.
    while plays == 0 || started.elapsed() < most {
        let left = most.saturating_sub(started.elapsed());
        let received = play(lab, recording, pace, left.max(Duration::from_millis(200)))?;
        bytes += received.timed_bytes;
        took += received.seconds;
        plays += 1;
    }
    let achieved = bytes as f64 / 1e6 / f64::max(took, 1e-9);
    Ok(Row {
        case: name(rate),
        variant: "lockstep".to_owned(),
        round,
        mb_per_s: rounded(achieved),
        error_pct: rate.map(|rate| rounded(100.0 * (achieved / f64::from(rate) - 1.0))),
        wal_mb: rounded(bytes as f64 / 1e6),
        seconds: rounded(took),
        plays,
        date: machine::date(),
        commit: commit.to_owned(),
    })
}

fn play(lab: &Lab, recording: &Recording, pace: Pace, most: Duration) -> Result<Received> {
    let player = Player::start(
        recording,
        PlayerOptions {
            listen: vec![Address::free_socket(lab.folder())?],
            pace,
            standbys: 1,
            lead_in: None,
            pin: Some((lab.pinning().clone(), Side::Primary)),
        },
    )?;
    let wanted = Wanted {
        name: "null receiver".to_owned(),
        timeline: Some(recording.timeline()),
        start: recording.played_from(),
        end: recording.end(),
        at_most: most,
    };
    let received = thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            lab.pinning().pin_current_thread(Side::Standby);
            match player.addresses().first() {
                Some(address) => null_receiver::receive(address, &wanted).map_err(Into::into),
                None => Err(anyhow::anyhow!("the player listens nowhere")),
            }
        });
        match receiver.join() {
            Ok(received) => received,
            Err(_) => Err(anyhow::anyhow!("the receiver died")),
        }
    })?;
    player.finish();
    Ok(received)
}

fn line(row: &Row) -> String {
    let error = row
        .error_pct
        .map_or_else(String::new, |error| format!(", {error:+.2} %"));
    format!("{:.1} MB/s{error}", row.mb_per_s)
}

fn table(results: &Results<Row>) -> Vec<Vec<String>> {
    let heads = ["case", "round", "MB/s", "error", "MB", "seconds", "plays"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(results.rows.iter().map(|row| {
        vec![
            row.case.clone(),
            row.round.to_string(),
            format!("{:.1}", row.mb_per_s),
            row.error_pct
                .map_or_else(|| "-".to_owned(), |error| format!("{error:+.2} %")),
            text::count(row.wal_mb),
            format!("{:.1}", row.seconds),
            row.plays.to_string(),
        ]
    }));
    rows
}
