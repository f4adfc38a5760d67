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

/// Lag and throughput over time.
pub fn panels<'a>(outcomes: impl IntoIterator<Item = (Variant, &'a Outcome)>) -> Vec<Panel> {
    let (mut lag, mut writes, mut reads) = (Vec::new(), Vec::new(), Vec::new());
    for (variant, outcome) in outcomes {
        let line = |points, band| Line {
            name: variant.title().to_owned(),
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
    title: &str,
    outcomes: impl IntoIterator<Item = (Variant, &'a Outcome)>,
    value: impl Fn(&SeriesPoint) -> f64,
) -> Panel {
    Panel {
        title: title.to_owned(),
        axis: Axis::Count,
        lines: outcomes
            .into_iter()
            .map(|(variant, outcome)| Line {
                name: variant.title().to_owned(),
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
