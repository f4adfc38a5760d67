//! What demo and benchmarks set up in the same way: a lab, a primary, and plot lines.

use std::path::PathBuf;

use anyhow::{Context, Result};
use lockstep_bench::trial::{self, Outcome, Size, Variant};
use lockstep_lab::cluster::{Lab, LabOptions};
use lockstep_lab::guard::ReaperProgram;
use lockstep_lab::server::{Server, Settings};

use crate::args::ServerArgs;
use crate::exit;
use crate::plot::{self, Axis, Line, Panel};

/// Exit codes of a process that was ended by a signal start here.
pub const SIGNAL_BASE: i32 = 128;

/// A lab that cleans up on every exit path.
pub fn open_lab(server: &ServerArgs, with_extension: bool, space_mb: u64) -> Result<Lab> {
    let program = std::env::current_exe().context("cannot find the program that runs")?;
    let lab = Lab::new(&LabOptions {
        major: server.pg,
        stage: with_extension.then(|| server.stage()),
        reaper: ReaperProgram {
            program,
            args: vec!["reap".to_owned()],
        },
        space_mb,
        pinned: true,
    })?;
    lab.end_on_signals(|signal| {
        exit::complain("interrupted; all servers are stopped and their files removed");
        std::process::exit(SIGNAL_BASE + signal);
    })?;
    Ok(lab)
}

/// A primary that is ready for trials.
pub fn open_primary(lab: &Lab, size: &Size, with_extension: bool) -> Result<Server> {
    let primary = lab.primary("primary", None, &size.settings())?;
    trial::prepare_primary(lab, &primary)?;
    if with_extension {
        // Its views reach the standbys with replication.
        primary.execute("CREATE EXTENSION lockstep")?;
    }
    Ok(primary)
}

/// Settings of a variant's standby.
pub fn standby_settings(variant: Variant, extra: &[(String, String)]) -> Settings {
    let mut settings = Settings::new();
    if variant == Variant::Lockstep {
        settings.insert("shared_preload_libraries".to_owned(), "lockstep".to_owned());
        settings.extend(extra.iter().cloned());
    }
    settings
}

/// Name of a variant for people.
pub fn title(variant: Variant) -> &'static str {
    match variant {
        Variant::Stock => "stock standby",
        Variant::Lockstep => "Lockstep standby",
    }
}

/// Colour of a variant in plots.
pub fn color(variant: Variant) -> &'static str {
    match variant {
        Variant::Stock => plot::STOCK,
        Variant::Lockstep => plot::LOCKSTEP,
    }
}

/// Lag and throughput over time.
pub fn panels<'a>(outcomes: impl IntoIterator<Item = (Variant, &'a Outcome)>) -> Vec<Panel> {
    let (mut lag, mut writes, mut reads) = (Vec::new(), Vec::new(), Vec::new());
    for (variant, outcome) in outcomes {
        let line = |points, band| Line {
            name: title(variant).to_owned(),
            color: color(variant),
            points,
            band,
        };
        let slices = &outcome.lag_slices;
        lag.push(line(
            slices.iter().map(|s| (s.second, s.median_ms)).collect(),
            slices
                .iter()
                .map(|s| (s.second, s.median_ms, s.max_ms))
                .collect(),
        ));
        writes.push(line(outcome.primary_tps_line.clone(), vec![]));
        reads.push(line(outcome.read_tps_line.clone(), vec![]));
    }
    let panel = |title: &str, axis, lines| Panel {
        title: title.to_owned(),
        axis,
        lines,
    };
    vec![
        panel(
            "Replay lag (line: median, shade: up to the largest)",
            Axis::LogMs,
            lag,
        ),
        panel("Transactions a second on the primary", Axis::Count, writes),
        panel("Reads a second on the standby", Axis::Count, reads),
    ]
}

/// One panel from the series of long rounds.
pub fn series_panel<'a>(
    title_text: &str,
    outcomes: impl IntoIterator<Item = (Variant, &'a Outcome)>,
    value: impl Fn(&trial::SeriesPoint) -> f64,
) -> Panel {
    Panel {
        title: title_text.to_owned(),
        axis: Axis::Count,
        lines: outcomes
            .into_iter()
            .map(|(variant, outcome)| Line {
                name: title(variant).to_owned(),
                color: color(variant),
                points: outcome
                    .series
                    .iter()
                    .map(|p| (p.second, value(p)))
                    .collect(),
                band: vec![],
            })
            .collect(),
    }
}

/// An absolute path, for people who look for a file.
pub fn absolute(path: &std::path::Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

/// One line about a trial.
pub fn one_line(outcome: &Outcome) -> String {
    use crate::text::{count, ms, slope};
    format!(
        "lag p50 {}, p99 {}, at end {} ({}), primary {} tps, reads {}/s",
        ms(outcome.lag.p50_ms),
        ms(outcome.lag.p99_ms),
        ms(outcome.lag.end_ms),
        slope(outcome.lag.slope_ms_per_s),
        count(outcome.primary_tps),
        count(outcome.read_tps)
    )
}
