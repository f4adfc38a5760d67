//! Sparklines, scales, and texts in few columns.

use ratatui::text::Span;

/// Bars by lag: each bar, the milliseconds that its lag is below, and the legend's text for
/// that. The steps are fixed, so that bars of all nodes can be compared and none changes because
/// another grows.
const STEPS: [(char, f64, &str); 7] = [
    ('▁', 10.0, "10ms"),
    ('▂', 50.0, "50ms"),
    ('▃', 200.0, "0.2s"),
    ('▄', 1_000.0, "1s"),
    ('▅', 5_000.0, "5s"),
    ('▆', 30_000.0, "30s"),
    ('▇', 300_000.0, "5min"),
];

/// The bar of a lag; a blank for an unknown lag.
pub fn bar(lag_ms: Option<f64>) -> char {
    let Some(lag_ms) = lag_ms else {
        return ' ';
    };
    let step = STEPS.iter().find(|(_, below, _)| lag_ms < *below);
    step.map_or('█', |(bar, _, _)| *bar)
}

/// The legend of the bars.
pub fn legend() -> String {
    let steps: Vec<String> = STEPS
        .iter()
        .map(|(bar, _, below)| format!("{bar}<{below}"))
        .collect();
    format!("{} █more", steps.join(" "))
}

/// Divides the time up to `now_ms` into `columns` parts of `step_ms` and returns the longest lag
/// in each; None if none is known. Parts begin at multiples of `step_ms`, so that bars move only
/// when a new part begins.
pub fn parts(
    moments: impl Iterator<Item = (i64, f64)>,
    now_ms: i64,
    step_ms: i64,
    columns: usize,
) -> Vec<Option<f64>> {
    let mut parts = vec![None; columns];
    let step_ms = step_ms.max(1);
    let newest = now_ms.div_euclid(step_ms);
    for (at_ms, lag_ms) in moments {
        let Ok(ago) = usize::try_from(newest - at_ms.div_euclid(step_ms)) else {
            continue;
        };
        let part = columns.checked_sub(ago + 1);
        if let Some(part) = part.and_then(|part| parts.get_mut(part)) {
            *part = Some(part.map_or(lag_ms, |most: f64| most.max(lag_ms)));
        }
    }
    parts
}

/// The end of a scale for values up to `most_ms`: 1, 2 or 5 times a power of ten, at least 10 ms.
pub fn scale(most_ms: f64) -> f64 {
    let mut power = 10.0;
    for _ in 0..12 {
        for factor in [1.0, 2.0, 5.0] {
            if most_ms <= power * factor {
                return power * factor;
            }
        }
        power *= 10.0;
    }
    most_ms
}

/// How many columns a text takes on a terminal.
pub fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Cuts a text to at most `columns`, with … at its end if it was longer.
pub fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut kept = head(text, columns.saturating_sub(1));
    kept.truncate(kept.trim_end().len());
    if columns > 0 {
        kept.push('…');
    }
    kept
}

/// Cuts a name to at most `columns`. The middle is left out, since names often differ at their
/// ends.
pub fn cut_name(name: &str, columns: usize) -> String {
    if width(name) <= columns || columns < 5 {
        return cut(name, columns);
    }
    let end: String = name.chars().rev().collect();
    let end: String = head(&end, columns / 2 - 1).chars().rev().collect();
    format!("{}…{end}", head(name, columns - 1 - width(&end)))
}

/// The first characters of a text that fit into `columns`.
fn head(text: &str, columns: usize) -> String {
    let mut kept = String::new();
    for c in text.chars() {
        kept.push(c);
        if width(&kept) > columns {
            kept.pop();
            break;
        }
    }
    kept
}

/// A text padded with blanks on its right to `columns`.
pub fn left(text: &str, columns: usize) -> String {
    format!("{text}{}", " ".repeat(columns.saturating_sub(width(text))))
}

/// A text padded with blanks on its left to `columns`.
pub fn right(text: &str, columns: usize) -> String {
    format!("{}{text}", " ".repeat(columns.saturating_sub(width(text))))
}

/// A text on one line, without control characters, which a terminal could take for commands.
pub fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").replace(char::is_control, "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_fixed_steps() {
        let bars: String = [
            None,
            Some(0.0),
            Some(9.9),
            Some(10.0),
            Some(199.0),
            Some(200.0),
            Some(4e3),
            Some(29e3),
            Some(299e3),
            Some(1e9),
        ]
        .map(bar)
        .iter()
        .collect();
        assert_eq!(bars, " ▁▁▂▃▄▅▆▇█");
        assert!(width(&legend()) <= 70, "{}", legend());
    }

    #[test]
    fn parts_hold_the_longest_and_do_not_move_within_a_step() {
        let moments = [(0, 5.0), (999, 7.0), (1000, 1.0), (3500, 9.0)];
        let at = |now_ms| parts(moments.into_iter(), now_ms, 1000, 4);
        let expected = vec![Some(7.0), Some(1.0), None, Some(9.0)];
        assert_eq!(at(3500), expected);
        assert_eq!(at(3999), expected);
        assert_eq!(at(4000), [Some(1.0), None, Some(9.0), None]);
        assert_eq!(at(2000), [None, Some(7.0), Some(1.0), None]);
        assert!(parts(moments.into_iter(), 0, 0, 0).is_empty());
    }

    #[test]
    fn scales_are_round() {
        for (most, expected) in [(0.0, 10.0), (11.0, 20.0), (2100.0, 5000.0), (5e6, 5e6)] {
            assert_eq!(scale(most), expected);
        }
    }

    #[test]
    fn texts_are_cut_to_columns() {
        assert_eq!(cut("replay is paused", 16), "replay is paused");
        assert_eq!(cut("replay is paused", 11), "replay is…");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!(cut("x", 0), "");
        assert_eq!(cut_name("subscriber10", 12), "subscriber10");
        assert_eq!(cut_name("a_very_long_slot_name_10", 12), "a_very…me_10");
        assert_eq!(cut_name("日本語日本語日本語1", 12), "日本語…本語1");
        assert_eq!(one_line("a\n b\u{1b}[2J"), "a b?[2J");
    }
}
