//! `lockstep-lab wal record`: records the WAL of a running primary, with a base backup to start
//! from.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, value_parser};
use lockstep_bench::host::absolute;
use lockstep_player::{self, Recorder, Recording};
use lockstep_service::words::figures;
use lockstep_service::words::output::{self, Output};
use serde_json::json;

/// Pause between two looks at the source and the clock.
const POLL: Duration = Duration::from_millis(100);

/// Interval at which progress is shown: in place on a terminal, as lines elsewhere.
const SHOW_IN_PLACE: Duration = Duration::from_secs(1);
const SHOW_LINES: Duration = Duration::from_secs(10);

/// Ports in the advice on how to play.
const PLAYER_PORT: u16 = 54399;
const STANDBY_PORT: u16 = 54398;

/// `lockstep-lab wal record`
#[derive(Debug, Args)]
pub struct RecordArgs {
    /// Folder for the recording; new or empty
    #[arg(value_name = "FOLDER")]
    pub recording: PathBuf,
    /// The primary to record: a libpq conninfo string or URI; its role needs REPLICATION
    #[arg(long, value_name = "CONNINFO")]
    pub source: String,
    /// Seconds to record once the base backup is complete [default: until Ctrl-C]
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u64).range(1..=604_800))]
    pub seconds: Option<u64>,
    /// Format of the result on standard output; with json, progress goes to standard error
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Output::Text)]
    pub output: Output,
}

/// Records until the time is over, or until a signal.
pub fn run(args: &RecordArgs) -> Result<()> {
    let stop = lockstep_player::stop_on_signals()?;
    progress("base backup …", false);
    let mut recorder = Recorder::of(&args.source, &args.recording, &stop)?;
    let until = match args.seconds {
        Some(seconds) => format!("for {}", figures::duration(seconds)),
        None => "until Ctrl-C".to_owned(),
    };
    progress(
        &format!("the base backup is complete; recording {until}"),
        false,
    );
    let in_place = std::io::stderr().is_terminal();
    let every = if in_place { SHOW_IN_PLACE } else { SHOW_LINES };
    let started = Instant::now();
    let mut shown = started;
    let over = |elapsed: Duration| args.seconds.is_some_and(|most| elapsed.as_secs() >= most);
    while !stop.load(Ordering::SeqCst) && !over(started.elapsed()) {
        thread::sleep(POLL);
        recorder.check()?;
        if shown.elapsed() >= every {
            shown = Instant::now();
            let line = format!(
                "{}: {} MB in whole segments",
                figures::duration(started.elapsed().as_secs()),
                figures::count(recorder.received_bytes()? as f64 / 1e6)
            );
            progress(&line, in_place);
        }
    }
    if in_place {
        progress("", false);
    }
    let recording = recorder.finish()?;
    match args.output {
        Output::Json => output::print(&summary(&recording).to_string()),
        Output::Text => say_how_to_play(&recording),
    }
    Ok(())
}

/// Shows progress on standard error, so that standard output has only the result.
fn progress(line: &str, in_place: bool) {
    let mut stderr = std::io::stderr();
    let _ = match in_place {
        true => write!(stderr, "\r{line}").and_then(|()| stderr.flush()),
        false => writeln!(stderr, "{line}"),
    };
}

fn summary(recording: &Recording) -> serde_json::Value {
    json!({
        "folder": absolute(recording.folder()),
        "system_identifier": recording.system_identifier().to_string(),
        "timeline": recording.timeline().get(),
        "server_version": recording.server_version(),
        "start_lsn": recording.start().to_string(),
        "consistency_lsn": recording.consistency().to_string(),
        "end_lsn": recording.end().to_string(),
        "wal_mb": recording.bytes() as f64 / 1e6,
        "seconds": recording.seconds(),
    })
}

fn say_how_to_play(recording: &Recording) {
    let folder = absolute(recording.folder());
    let folder = folder.display();
    output::print(&format!(
        "{:.1} MB of WAL from {} to {}, written in {:.1} s, of PostgreSQL {} on timeline {}",
        recording.bytes() as f64 / 1e6,
        recording.played_from(),
        recording.end(),
        recording.seconds(),
        recording.server_version(),
        recording.timeline(),
    ));
    output::print(&format!("recorded in {folder}"));
    let mut settings = vec![
        format!("port = {STANDBY_PORT}"),
        format!("primary_conninfo = 'host=127.0.0.1 port={PLAYER_PORT} user=replicator'"),
    ];
    let needed = recording.standby_settings();
    settings.extend(
        needed
            .iter()
            .map(|(name, value)| format!("{name} = {value}")),
    );
    let settings: Vec<String> = settings.iter().map(|line| format!("\"{line}\"")).collect();
    for line in [
        "",
        "To play it to a standby, in a shell of the account that servers run as, which must be able",
        "to read the recording (DATA is a folder that is not there yet):",
        "",
        &format!("  cp -a {folder}/base DATA && cd DATA"),
        "  touch standby.signal pg_ident.conf && : >postgresql.auto.conf",
        "  echo 'local all all peer' >pg_hba.conf",
        &format!("  printf '%s\\n' {} >postgresql.conf", settings.join(" ")),
        &format!(
            "  /usr/lib/postgresql/{}/bin/pg_ctl -D . -l log start",
            recording.major()
        ),
        &format!("  lockstep-lab wal play {folder} --listen 127.0.0.1:{PLAYER_PORT}"),
        "",
        "The source's other settings are left out: add to postgresql.conf what shall be tested.",
    ] {
        output::print(line);
    }
}
