//! `lockstep-lab bench wal-player`: what the WAL player sends to a receiver that throws
//! everything away, unlimited and at set rates.

use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, value_parser};
use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::settings_of;
use lockstep_player::null_receiver::{self, Received, Wanted};
use lockstep_player::{Address, Pace, Player, PlayerOptions, Recording};
use lockstep_service::words::figures::{count, tenths};
use serde::{Deserialize, Serialize};

use crate::args::{RunArgs, SecondsArgs, joined, rounds, seconds, writes};
use crate::audience::{Ahead, Audience};
use crate::benchmark::{Benchmark, Site, TurnOf};
use crate::results::{Headline, Results, megabytes, rounded};
use crate::table::{Column, Group, column, median};
use crate::{BenchError, Result};

/// The case without a rate.
const UNLIMITED: &str = "unlimited";

/// Megabytes that a run may need beside the WAL.
const SPACE_MB_BASE: u64 = 1_500;

/// What is written while WAL is recorded.
const TABLE: &str = "lockstep_wal";

/// Rows of one statement, which writes about 25 MB of WAL.
const ROWS: u32 = 40_000;

/// What the WAL player sends to a receiver that throws everything away, and how it keeps a rate
///
/// Records WAL of a private primary, then plays it unlimited and at set rates, over a Unix
/// socket, player and receiver on a core each. A play that is shorter than a round is repeated
/// over new connections. Writes wal-player.json into the results folder.
#[derive(Debug, Args)]
#[command(
    mut_arg("rounds", rounds("Rounds of each case", "3")),
    mut_arg(
        "seconds",
        seconds("Seconds of each round; a play that is shorter is repeated", "10", 1)
    ),
    mut_arg("results", writes("wal-player.json"))
)]
pub struct WalPlayerArgs {
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub time: SecondsArgs,
    /// Megabytes of WAL to record
    #[arg(long, value_name = "MB", default_value_t = 400, value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub megabytes: u64,
    /// Rates to keep, in MB/s, separated by commas
    #[arg(long, value_name = "RATES", value_delimiter = ',', default_values_t = [10, 50, 200], value_parser = value_parser!(u32).range(1..=10_000))]
    pub rates: Vec<u32>,
}

/// One round of one case.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PlayerFigures {
    pub mb_per_s: f64,
    /// Distance from the set rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_pct: Option<f64>,
    pub wal_mb: f64,
    pub seconds: f64,
    /// Connections one after the other, each from the recording's start.
    pub plays: u32,
}

impl Benchmark for WalPlayerArgs {
    const NAME: &'static str = "wal-player";

    /// The rate to keep, MB/s.
    type Case = Option<u32>;
    /// Always `lockstep`: PostgreSQL has no player of its own.
    type Variant = &'static str;
    type Figures = PlayerFigures;
    type Scene = Recording;

    fn options(&self) -> String {
        format!(
            "--rounds {} --seconds {} --megabytes {} --rates {} --pg {}",
            self.run.rounds,
            self.time.seconds,
            self.megabytes,
            joined(&self.rates),
            self.run.server.pg
        )
    }

    fn space_mb(&self) -> u64 {
        SPACE_MB_BASE + 3 * self.megabytes
    }

    fn needs_extension(&self) -> bool {
        false
    }

    fn cases(&self) -> Vec<Option<u32>> {
        let rates = self.rates.iter().copied().map(Some);
        [None].into_iter().chain(rates).collect()
    }

    fn case_name(&self, rate: &Option<u32>) -> String {
        rate.map_or_else(|| UNLIMITED.to_owned(), |rate| format!("{rate}-mb-per-s"))
    }

    fn variants(&self, _rate: &Option<u32>) -> Vec<&'static str> {
        vec!["lockstep"]
    }

    fn ahead(&self, plan: &[TurnOf<Self>]) -> Ahead {
        Ahead::Steps(1 + plan.len())
    }

    fn open(&self, site: Site<'_>, audience: &mut dyn Audience) -> Result<Recording> {
        audience.begin("recording");
        let recording = record(site.lab, self.megabytes)?;
        audience.end(&format!(
            "{} MB of WAL",
            count(recording.bytes() as f64 / 1e6)
        ));
        Ok(recording)
    }

    fn label(&self, _recording: &Recording, turn: &TurnOf<Self>) -> String {
        format!("{} round {}", self.case_name(&turn.case), turn.round)
    }

    fn measure(
        &self,
        site: Site<'_>,
        recording: &mut Recording,
        turn: &TurnOf<Self>,
        _audience: &mut dyn Audience,
    ) -> Result<PlayerFigures> {
        let rate = turn.case.map(f64::from);
        let pace = rate.map_or(Pace::Unlimited, |rate| Pace::Rate(rate * 1e6));
        let most = self.time.length();
        let started = Instant::now();
        let (mut bytes, mut took, mut plays) = (0, 0.0, 0);
        // A connection's first message is not timed, so a play must be much longer than one.
        while plays == 0 || started.elapsed() < most {
            let left = most.saturating_sub(started.elapsed());
            let left = left.max(Duration::from_millis(200));
            let received = play(site.lab, recording, pace, left)?;
            bytes += received.timed_bytes;
            took += received.seconds;
            plays += 1;
        }
        let achieved = bytes as f64 / 1e6 / f64::max(took, 1e-9);
        Ok(PlayerFigures {
            mb_per_s: rounded(achieved),
            error_pct: rate.map(|rate| rounded(100.0 * (achieved / rate - 1.0))),
            wal_mb: megabytes(bytes as f64),
            seconds: rounded(took),
            plays,
        })
    }

    fn line(&self, figures: &PlayerFigures) -> String {
        let error = figures.error_pct.map(|error| format!(", {error:+.2} %"));
        format!("{:.1} MB/s{}", figures.mb_per_s, error.unwrap_or_default())
    }

    fn headline(&self, _results: &Results<PlayerFigures>) -> Option<Headline> {
        None
    }

    fn columns(&self) -> Vec<Column<PlayerFigures>> {
        vec![
            column("case", |row| Some(row.first().case.clone())),
            column("round", |row| Some(row.first().round.to_string())),
            median("MB/s", |row| Some(row.mb_per_s), tenths),
            median(
                "error",
                |row| row.error_pct,
                |error| format!("{error:+.2} %"),
            ),
            median("MB", |row| Some(row.wal_mb), count),
            median("seconds", |row| Some(row.seconds), tenths),
            median("plays", |row| Some(f64::from(row.plays)), count),
        ]
    }

    fn groups<'r>(&self, results: &'r Results<PlayerFigures>) -> Vec<Group<'r, PlayerFigures>> {
        results.each_row()
    }
}

/// Inserts into one table until there is enough WAL.
fn record(lab: &Lab, megabytes: u64) -> Result<Recording> {
    let settings = settings_of([
        ("shared_buffers", "128MB"),
        ("max_wal_size", "10GB"),
        ("autovacuum", "off"),
    ]);
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
    let failed = |words: &str| BenchError::Unusable(words.to_owned());
    let received = thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            lab.pinning().pin_current_thread(Side::Standby);
            match player.addresses().first() {
                Some(address) => null_receiver::receive(address, &wanted).map_err(BenchError::from),
                None => Err(failed("the player listens nowhere")),
            }
        });
        match receiver.join() {
            Ok(received) => received,
            Err(_) => Err(failed("the receiver died")),
        }
    })?;
    player.finish();
    Ok(received)
}
