//! Line plots: panels below each other with one legend.

use std::fmt::Write;

use lockstep_service::words::figures::count;

use super::{LEFT, RIGHT, WIDTH, begin, escape, nice};

const HEAD: f64 = 56.0;
const PANEL: f64 = 190.0;
const PANEL_GAP: f64 = 52.0;
/// Nothing on a logarithmic axis is below this.
const LOG_FLOOR: f64 = 0.1;

/// What an axis measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// Milliseconds, logarithmic.
    LogMs,
    /// A number, from zero.
    Count,
}

#[derive(Debug, Clone)]
pub struct Line {
    /// The line's name in the legend; lines of one name share an entry.
    pub name: String,
    /// The line's colour.
    pub color: &'static str,
    /// Places on the horizontal axis, and values.
    pub points: Vec<(f64, f64)>,
    /// Second, low and high of a shaded band; may be empty.
    pub band: Vec<(f64, f64, f64)>,
}

/// One set of axes.
#[derive(Debug, Clone)]
pub struct Panel {
    /// What the panel shows, with unit.
    pub title: String,
    /// The vertical axis.
    pub axis: Axis,
    /// The panel's lines.
    pub lines: Vec<Line>,
}

/// Draws the panels below each other, over seconds.
pub fn svg(title: &str, panels: &[Panel]) -> String {
    svg_over(title, "s", panels)
}

/// Draws the panels below each other; the horizontal axis starts at zero and is in `unit`.
pub fn svg_over(title: &str, unit: &str, panels: &[Panel]) -> String {
    let height = HEAD + panels.len() as f64 * (PANEL + PANEL_GAP);
    let mut out = begin(title, height);
    legend(&mut out, panels);
    let end = panels
        .iter()
        .flat_map(|panel| &panel.lines)
        .flat_map(|line| &line.points)
        .map(|point| point.0)
        .fold(1.0, f64::max);
    for (index, panel) in panels.iter().enumerate() {
        let top = HEAD + index as f64 * (PANEL + PANEL_GAP) + 14.0;
        draw_panel(&mut out, panel, top, end, unit);
    }
    out.push_str("</svg>\n");
    out
}

fn legend(out: &mut String, panels: &[Panel]) {
    let mut seen: Vec<&str> = Vec::new();
    let mut x = 16.0;
    for line in panels.iter().flat_map(|panel| &panel.lines) {
        if seen.contains(&line.name.as_str()) {
            continue;
        }
        seen.push(&line.name);
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"37\" width=\"18\" height=\"4\" rx=\"2\" fill=\"{}\"/>\
             <text x=\"{}\" y=\"44\" fill=\"#374151\">{}</text>",
            line.color,
            x + 24.0,
            escape(&line.name)
        );
        x += 48.0 + line.name.len() as f64 * 7.0;
    }
}

/// Maps values to pixels.
struct Scale {
    axis: Axis,
    low: f64,
    high: f64,
    top: f64,
    end: f64,
}

impl Scale {
    fn of(panel: &Panel, top: f64, end: f64) -> Self {
        let values = panel.lines.iter().flat_map(|line| {
            let band = line.band.iter().flat_map(|&(_, low, high)| [low, high]);
            line.points.iter().map(|point| point.1).chain(band)
        });
        let (mut least, mut most) = (f64::MAX, 0.0_f64);
        for value in values.filter(|value| value.is_finite()) {
            least = least.min(value);
            most = most.max(value);
        }
        let (low, high) = match panel.axis {
            Axis::LogMs => {
                let low = least.clamp(LOG_FLOOR, 1.0).log10().floor();
                (low, most.max(10.0).log10().ceil())
            }
            Axis::Count => (0.0, nice(most.max(1.0))),
        };
        Self {
            axis: panel.axis,
            low,
            high,
            top,
            end,
        }
    }

    fn x(&self, second: f64) -> f64 {
        LEFT + second / self.end * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let value = match self.axis {
            Axis::LogMs => value.max(LOG_FLOOR).log10(),
            Axis::Count => value,
        };
        let part = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        self.top + PANEL * (1.0 - part)
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        match self.axis {
            Axis::LogMs => (self.low as i32..=self.high as i32)
                .map(|power| {
                    let value = 10_f64.powi(power);
                    let label = match power {
                        ..0 => format!("{value} ms"),
                        0..=2 => format!("{value:.0} ms"),
                        _ => format!("{:.0} s", value / 1000.0),
                    };
                    (value, label)
                })
                .collect(),
            Axis::Count => (0..=4)
                .map(|quarter| {
                    let value = self.high * f64::from(quarter) / 4.0;
                    (value, count(value))
                })
                .collect(),
        }
    }
}

fn draw_panel(out: &mut String, panel: &Panel, top: f64, end: f64, unit: &str) {
    let scale = Scale::of(panel, top, end);
    let bottom = top + PANEL;
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"{}\" font-weight=\"600\" fill=\"#374151\">{}</text>",
        top - 8.0,
        escape(&panel.title)
    );
    for (value, label) in scale.ticks() {
        let y = scale.y(value);
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#e5e7eb\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#6b7280\">{label}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y + 4.0
        );
    }
    for (value, label) in across(end, unit) {
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#6b7280\">{label}</text>",
            scale.x(value),
            bottom + 18.0
        );
    }
    for line in &panel.lines {
        draw_line(out, line, &scale);
    }
}

fn draw_line(out: &mut String, line: &Line, scale: &Scale) {
    if !line.band.is_empty() {
        let high = line.band.iter().map(|&(s, _, high)| (s, high));
        let low = line.band.iter().rev().map(|&(s, low, _)| (s, low));
        let _ = writeln!(
            out,
            "<polygon points=\"{}\" fill=\"{}\" fill-opacity=\"0.16\"/>",
            path(high.chain(low), scale),
            line.color
        );
    }
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\" \
         stroke-linejoin=\"round\"/>",
        path(line.points.iter().copied(), scale),
        line.color
    );
}

fn path(points: impl Iterator<Item = (f64, f64)>, scale: &Scale) -> String {
    points
        .filter(|(second, value)| second.is_finite() && value.is_finite())
        .map(|(second, value)| format!("{:.1},{:.1}", scale.x(second), scale.y(value)))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Ticks of the horizontal axis: at most ten, at round values.
fn across(end: f64, unit: &str) -> Vec<(f64, String)> {
    let step = [
        1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0,
    ]
    .into_iter()
    .find(|step| end / step <= 10.0)
    .unwrap_or(end.max(1.0));
    (0..=(end / step) as u32)
        .map(|index| f64::from(index) * step)
        .map(|value| (value, format!("{value:.0} {unit}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::STOCK;
    use super::*;

    fn line(points: Vec<(f64, f64)>) -> Line {
        Line {
            name: "a < b".to_owned(),
            color: STOCK,
            points,
            band: vec![],
        }
    }

    #[test]
    fn every_value_stays_inside_its_panel() {
        let panel = Panel {
            title: "lag".to_owned(),
            axis: Axis::LogMs,
            lines: vec![line(vec![(0.0, 0.0), (5.0, 123_456.0), (10.0, f64::NAN)])],
        };
        let scale = Scale::of(&panel, 100.0, 10.0);
        for value in [0.0, 0.001, 1.0, 99.0, 1e9] {
            let y = scale.y(value);
            assert!((100.0..=100.0 + PANEL).contains(&y), "{value} at {y}");
        }
        let text = svg("<lag>", &[panel]);
        assert!(text.contains("&lt;lag&gt;") && text.contains("a &lt; b"));
        assert!(!text.contains("NaN") && text.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn an_empty_plot_is_still_a_plot() {
        let panel = Panel {
            title: "none".to_owned(),
            axis: Axis::Count,
            lines: vec![line(vec![])],
        };
        assert!(!svg("t", &[panel]).contains("NaN"));
        assert!(svg("t", &[]).contains("</svg>"));
    }

    #[test]
    fn ticks_are_round() {
        let labels: Vec<_> = across(45.0, "s").into_iter().map(|tick| tick.1).collect();
        assert_eq!(labels.first().unwrap(), "0 s");
        assert_eq!(labels.last().unwrap(), "45 s");
        assert!(across(600.0, "s").len() <= 11);
    }
}
