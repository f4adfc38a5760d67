//! Panels of trials, and the colours of variants.

use super::lines::{Axis, Line, Panel};
use super::{LOCKSTEP, STOCK};
use crate::trial::{Outcome, SeriesPoint, Variant};

/// Colour of a variant in plots.
pub fn color(variant: Variant) -> &'static str {
    match variant {
        Variant::Stock => STOCK,
        Variant::Lockstep => LOCKSTEP,
    }
}

/// Lag and throughput over time of trials, each with the name and the colour of its lines.
pub fn panels<'a>(
    trials: impl IntoIterator<Item = (&'a str, &'static str, &'a Outcome)>,
) -> Vec<Panel> {
    let (mut lag, mut writes, mut reads) = (Vec::new(), Vec::new(), Vec::new());
    for (name, color, outcome) in trials {
        let line = |points, band| Line {
            name: name.to_owned(),
            color,
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
    title: &str,
    trials: impl IntoIterator<Item = (&'a str, &'static str, &'a Outcome)>,
    value: impl Fn(&SeriesPoint) -> f64,
) -> Panel {
    Panel {
        title: title.to_owned(),
        axis: Axis::Count,
        lines: trials
            .into_iter()
            .map(|(name, color, outcome)| Line {
                name: name.to_owned(),
                color,
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
