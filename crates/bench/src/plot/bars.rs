//! Bar charts: groups of bars side by side, one colour a series.

use std::fmt::Write;

use lockstep_service::words::figures::count;

use super::{LEFT, RIGHT, WIDTH, begin, escape, nice};

const HEIGHT: f64 = 320.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 86.0;
/// Share of a group's width that its bars fill.
const FILLED: f64 = 0.7;

#[derive(Debug, Clone)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    pub color: &'static str,
    /// One value for each group; None draws no bar.
    pub values: Vec<Option<f64>>,
}

/// Draws `groups` of bars, one bar of each series in every group.
pub fn svg(title: &str, groups: &[String], series: &[Series]) -> String {
    let most = series
        .iter()
        .flat_map(|one| one.values.iter().flatten())
        .copied()
        .filter(|value| value.is_finite())
        .fold(0.0, f64::max);
    let high = nice(most.max(1.0));
    let mut out = begin(title, HEIGHT);
    let y = |value: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - (value / high).clamp(0.0, 1.0));
    for quarter in 0..=4 {
        let value = high * f64::from(quarter) / 4.0;
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#e5e7eb\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#6b7280\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y(value) + 4.0,
            count(value),
            y = y(value),
        );
    }
    draw_legend(&mut out, series);
    let wide = (WIDTH - LEFT - RIGHT) / groups.len().max(1) as f64;
    let bar = wide * FILLED / series.len().max(1) as f64;
    for (index, group) in groups.iter().enumerate() {
        let left = LEFT + wide * (index as f64 + (1.0 - FILLED) / 2.0);
        for (nth, one) in series.iter().enumerate() {
            let Some(value) = one.values.get(index).copied().flatten() else {
                continue;
            };
            let _ = writeln!(
                out,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\">\
                 <title>{}: {} {}</title></rect>",
                left + bar * nth as f64,
                y(value),
                bar * 0.92,
                y(0.0) - y(value),
                one.color,
                escape(group),
                escape(&one.name),
                count(value),
            );
        }
        let (x, below) = (left + wide * FILLED / 2.0, HEIGHT - BOTTOM + 14.0);
        let _ = writeln!(
            out,
            "<text x=\"{x:.1}\" y=\"{below:.1}\" text-anchor=\"end\" fill=\"#374151\" \
             transform=\"rotate(-35 {x:.1} {below:.1})\">{}</text>",
            escape(group)
        );
    }
    out.push_str("</svg>\n");
    out
}

fn draw_legend(out: &mut String, series: &[Series]) {
    let mut x = 16.0;
    for one in series {
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"37\" width=\"18\" height=\"8\" rx=\"2\" fill=\"{}\"/>\
             <text x=\"{}\" y=\"45\" fill=\"#374151\">{}</text>",
            one.color,
            x + 24.0,
            escape(&one.name)
        );
        x += 48.0 + one.name.len() as f64 * 7.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_high_as_their_values() {
        let series = Series {
            name: "a < b".to_owned(),
            color: "#000",
            values: vec![Some(50.0), None, Some(100.0)],
        };
        let groups = ["x", "y", "z"].map(str::to_owned);
        let text = svg("t", &groups, &[series]);
        let heights: Vec<f64> = text
            .lines()
            .filter(|line| line.contains("fill=\"#000\"><title>"))
            .filter_map(|line| {
                let rest = line.split_once("height=\"")?.1;
                rest.split_once('"')?.0.parse().ok()
            })
            .collect();
        assert_eq!(heights.len(), 2);
        assert!((heights[1] / heights[0] - 2.0).abs() < 0.01, "{heights:?}");
        assert!(text.contains("a &lt; b"));
        assert!(!svg("none", &[], &[]).contains("NaN"));
    }
}
