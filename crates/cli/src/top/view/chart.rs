//! A chart of lag over time, several lines high, with a scale.

use lockstep_service::words::brief::time;
use ratatui::text::{Line, Span};

use super::Theme;
use crate::top::figures::{parts, right, scale};

/// Height of the bars, in lines.
const HEIGHT: u32 = 6;
/// Width of the scale left of the bars, in columns.
const AXIS: usize = 8;
/// Bars of 0 to 8 eighths of a character.
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The span of time that is drawn.
#[derive(Debug, Clone, Copy)]
pub struct Reach {
    /// End of the span, in milliseconds since 1970.
    pub now_ms: i64,
    /// Length of the span.
    pub minutes: i64,
    /// Interval of samples, in milliseconds.
    pub every_ms: i64,
}

impl Reach {
    /// Milliseconds that each of `columns` stands for: at least an interval of samples, since
    /// shorter columns would leave gaps.
    pub fn step_ms(self, columns: usize) -> i64 {
        let columns = i64::try_from(columns.max(1)).unwrap_or(i64::MAX);
        (self.minutes * 60_000 / columns).max(self.every_ms)
    }
}

/// Draws the chart, `columns` wide.
pub fn chart(
    moments: impl Iterator<Item = (i64, f64)>,
    reach: Reach,
    columns: usize,
    theme: Theme,
) -> Vec<Line<'static>> {
    let wide = columns.saturating_sub(AXIS + 1).max(1);
    let step_ms = reach.step_ms(wide);
    let parts = parts(moments, reach.now_ms, step_ms, wide);
    let most = parts.iter().flatten().copied().fold(0.0, f64::max);
    let top = scale(most);
    let mut lines = Vec::new();
    for line in (0..HEIGHT).rev() {
        let label = match line {
            line if line + 1 == HEIGHT => time(top),
            0 => "0".to_owned(),
            _ => String::new(),
        };
        let bars: String = parts.iter().map(|part| piece(*part, top, line)).collect();
        lines.push(Line::from(vec![
            Span::styled(format!("{} │", right(&label, AXIS - 2)), theme.dim()),
            Span::styled(bars.trim_end().to_owned(), theme.bars()),
        ]));
    }
    let ago = format!("{} ago", time(step_ms as f64 * wide as f64));
    let gap = " ".repeat(wide.saturating_sub(ago.len() + 3));
    let axis = format!("{} └{ago}{gap}now", " ".repeat(AXIS - 2));
    lines.push(Line::styled(axis, theme.dim()));
    lines
}

/// The part of a bar in one line, counted from below. A known value is never blank.
fn piece(part: Option<f64>, top: f64, line: u32) -> char {
    let Some(value) = part else {
        return ' ';
    };
    let eighths = (value / top * f64::from(HEIGHT * 8)).ceil().max(1.0) - f64::from(line * 8);
    let index = eighths.clamp(0.0, 8.0) as usize;
    EIGHTHS.get(index).copied().unwrap_or(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_high_as_their_values() {
        let column = |value: Option<f64>| -> String {
            let pieces = (0..HEIGHT).rev().map(|line| piece(value, 480.0, line));
            pieces.collect()
        };
        for (value, expected) in [
            (None, "      "),
            (Some(0.0), "     ▁"),
            (Some(80.0), "     █"),
            (Some(90.0), "    ▁█"),
            (Some(480.0), "██████"),
        ] {
            assert_eq!(column(value), expected);
        }
    }

    #[test]
    fn a_column_is_no_shorter_than_a_sample() {
        let reach = |every_ms| Reach {
            now_ms: 0,
            minutes: 2,
            every_ms,
        };
        assert_eq!(reach(1000).step_ms(60), 2000);
        assert_eq!(reach(5000).step_ms(60), 5000);
        assert_eq!(reach(1000).step_ms(0), 120_000);
    }
}
