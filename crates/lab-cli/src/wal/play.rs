//! `lockstep-lab wal play`: serves a recording to standbys, as a primary would.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, value_parser};
use lockstep_player::{
    self, Address, Pace, Player, PlayerOptions, PlayerStatus, Recording, SessionState,
    SessionStatus,
};
use lockstep_service::words::output::{self, Output};
use lockstep_service::words::{figures, lines};
use lockstep_wire::Lsn;
use serde_json::json;

/// Pause between two looks at whether the play is over.
const POLL: Duration = Duration::from_millis(20);

/// Interval at which the status is shown.
const SHOW_EVERY: Duration = Duration::from_secs(1);

/// `lockstep-lab wal play`
#[derive(Debug, Args)]
pub struct PlayArgs {
    /// The recording's folder
    #[arg(value_name = "FOLDER")]
    pub recording: PathBuf,
    /// Address to listen on; anybody who can connect to it can read the recording
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:54399")]
    pub listen: SocketAddr,
    /// Listen on a Unix socket in this folder instead
    #[arg(
        long,
        value_name = "FOLDER",
        conflicts_with = "listen",
        requires = "port"
    )]
    pub socket_folder: Option<PathBuf>,
    /// Port of the Unix socket
    #[arg(long, value_name = "PORT", requires = "socket_folder", value_parser = value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Megabytes (10^6 bytes) a second [default: as fast as standbys take it]
    #[arg(long, value_name = "MB_PER_S", value_parser = positive, conflicts_with = "speed")]
    pub rate: Option<f64>,
    /// Play FACTOR times as fast as the WAL was written
    #[arg(long, value_name = "FACTOR", value_parser = positive)]
    pub speed: Option<f64>,
    /// Begin when N standbys stream
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=64))]
    pub standbys: u32,
    /// Go on after all standbys have replayed everything, until Ctrl-C
    #[arg(long)]
    pub stay: bool,
    /// Format of the result on standard output; with json, progress goes to standard error
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    pub output: Output,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("give a number above 0".to_owned()),
    }
}

impl PlayArgs {
    fn pace(&self) -> Pace {
        match (self.rate, self.speed) {
            (Some(rate), _) => Pace::Rate(rate * 1e6),
            (None, Some(factor)) => Pace::Factor(factor),
            (None, None) => Pace::Unlimited,
        }
    }

    fn address(&self) -> Address {
        match (&self.socket_folder, self.port) {
            (Some(folder), Some(port)) => Address::Socket {
                folder: folder.clone(),
                port,
            },
            _ => Address::Tcp(self.listen),
        }
    }
}

/// Plays until the standbys have everything, or until a signal.
pub fn run(args: &PlayArgs) -> Result<()> {
    let recording = Recording::open(&args.recording)?;
    let stop = lockstep_player::stop_on_signals()?;
    let player = Player::start(
        &recording,
        PlayerOptions {
            listen: vec![args.address()],
            pace: args.pace(),
            standbys: args.standbys as usize,
            lead_in: None,
            pin: None,
        },
    )?;
    let mut view = View::new();
    view.say(&format!(
        "{} MB of WAL from {} to {}, {}; waiting for {} to stream with primary_conninfo = '{}'",
        figures::count(recording.bytes() as f64 / 1e6),
        recording.played_from(),
        recording.end(),
        args.pace(),
        match args.standbys {
            1 => "a standby".to_owned(),
            number => format!("{number} standbys"),
        },
        player.conninfo(),
    ));
    while !stop.load(Ordering::SeqCst) {
        let status = player.status();
        view.show(&status);
        if status.is_done() && !args.stay {
            break;
        }
        thread::sleep(POLL);
    }
    let status = player.finish();
    view.end(&status);
    match args.output {
        Output::Json => output::print(&result(&status).to_string()),
        Output::Text => {
            for line in lines::table(&table(&status)) {
                output::print(&line);
            }
        }
    }
    Ok(())
}

/// Shows progress on standard error, so that standard output has only the result.
struct View {
    in_place: bool,
    shown: Option<Instant>,
    notices: BTreeSet<String>,
    /// Time and position of the last look, for the rate.
    before: Option<(Instant, u64)>,
}

impl View {
    fn new() -> Self {
        Self {
            in_place: std::io::stderr().is_terminal(),
            shown: None,
            notices: BTreeSet::new(),
            before: None,
        }
    }

    fn say(&self, line: &str) {
        let clear = if self.in_place { "\r\x1b[K" } else { "" };
        let _ = writeln!(std::io::stderr(), "{clear}{line}");
    }

    /// Shows new notices at once, and the status once a second.
    fn show(&mut self, status: &PlayerStatus) {
        self.say_notices(status);
        if status.began.is_none() || self.shown.is_some_and(|at| at.elapsed() < SHOW_EVERY) {
            return;
        }
        self.shown = Some(Instant::now());
        let line = self.line(status);
        match self.in_place {
            true => {
                let mut stderr = std::io::stderr();
                let _ = write!(stderr, "\r\x1b[K{line}").and_then(|()| stderr.flush());
            }
            false => self.say(&line),
        }
    }

    fn say_notices(&mut self, status: &PlayerStatus) {
        for notice in &status.notices {
            if self.notices.insert(notice.clone()) {
                self.say(notice);
            }
        }
    }

    fn line(&mut self, status: &PlayerStatus) -> String {
        let at = Instant::now();
        let published = u64::from(status.published);
        let rate = self.before.map_or(0.0, |(then, before)| {
            (published - before) as f64 / 1e6 / (at - then).as_secs_f64().max(0.001)
        });
        self.before = Some((at, published));
        let behind = |lsn: Lsn| (published as f64 - u64::from(lsn) as f64).max(0.0) / 1e6;
        let sessions: Vec<String> = status
            .sessions
            .iter()
            .filter(|session| matches!(session.state, SessionState::Streaming | SessionState::Lost))
            .map(|session| {
                format!(
                    "{} {}: {:.1} MB to send, {:.1} MB to replay",
                    name(session),
                    session.state.name(),
                    behind(session.sent),
                    behind(session.applied.max(session.start)),
                )
            })
            .collect();
        format!(
            "published {} ({:.0} MB left, {rate:.1} MB/s); {}",
            status.published,
            (u64::from(status.end) - published) as f64 / 1e6,
            sessions.join("; ")
        )
    }

    fn end(&mut self, status: &PlayerStatus) {
        if self.in_place && self.shown.is_some() {
            let _ = writeln!(std::io::stderr());
        }
        self.say_notices(status);
    }
}

fn name(session: &SessionStatus) -> String {
    match session.application_name.as_str() {
        "" => format!("session {}", session.number),
        name => name.to_owned(),
    }
}

fn table(status: &PlayerStatus) -> Vec<Vec<String>> {
    let heads = [
        "standby", "state", "MB", "seconds", "MB/s", "sent", "written", "flushed", "applied",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(status.sessions.iter().map(|session| {
        let seconds = status.seconds(session);
        let megabytes = session.bytes as f64 / 1e6;
        vec![
            name(session),
            session.state.name().to_owned(),
            format!("{megabytes:.1}"),
            seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.2}")),
            seconds.map_or_else(
                || "-".to_owned(),
                |seconds| format!("{:.1}", megabytes / seconds.max(0.001)),
            ),
            session.sent.to_string(),
            session.written.to_string(),
            session.flushed.to_string(),
            session.applied.to_string(),
        ]
    }));
    rows
}

fn result(status: &PlayerStatus) -> serde_json::Value {
    let sessions: Vec<_> = status
        .sessions
        .iter()
        .map(|session| {
            let seconds = status.seconds(session);
            let megabytes = session.bytes as f64 / 1e6;
            json!({
                "standby": name(session),
                "state": session.state.name(),
                "mb": megabytes,
                "seconds": seconds,
                "mb_per_s": seconds.map(|seconds| megabytes / seconds.max(0.001)),
                "start_lsn": session.start.to_string(),
                "sent_lsn": session.sent.to_string(),
                "write_lsn": session.written.to_string(),
                "flush_lsn": session.flushed.to_string(),
                "apply_lsn": session.applied.to_string(),
            })
        })
        .collect();
    json!({
        "published_lsn": status.published.to_string(),
        "end_lsn": status.end.to_string(),
        "done": status.is_done(),
        "standbys": sessions,
        "notices": status.notices,
    })
}
