//! The help: explains keys, columns and marks.

use lockstep_service::words::lines::wrapped;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::{Theme, scrolled};
use crate::top::figures::legend;
use crate::top::model::Model;

const KEYS: &[(&str, &str)] = &[
    (
        "↑ ↓ j k",
        "select; in detail: scroll. PgUp, PgDn, Home, End too",
    ),
    (
        "Enter d",
        "the selected node in detail; ← → go to the one before or after",
    ),
    (
        "Esc",
        "back; in the table: let the selection follow what is worst",
    ),
    (
        "l n b c",
        "sort by lag, name, bytes or cause; r the other way round",
    ),
    ("t", "how far sparklines go back: 2, 10, 30 or 60 minutes"),
    (
        "p space",
        "hold the picture; samples go on. Tab: the next cluster",
    ),
    ("q Ctrl-C", "quit"),
];

const COLUMNS: &[(&str, &str)] = &[
    (
        "LAG",
        "how long there was WAL not replayed or applied; ≥ at least, ≤ at most",
    ),
    ("MAX", "the longest in the time that causes look back"),
    (
        "BEHIND",
        "bytes of WAL not replayed or applied; SENT… if wide: not sent yet…",
    ),
    (
        "STAGE",
        "where most of them are: send, receive, flush, replay; if logical: decode, receive, apply, flush",
    ),
    (
        "CAUSE",
        "the most important found in that time; evidence is in detail",
    ),
];

const MARKS: &[(&str, &str)] = &[
    ("!", "it lags, or a slot is about to lose WAL"),
    ("x", "it does not answer, or is not what it was said to be"),
    ("~", "no lag, but something to know"),
    (".", "it is being asked"),
];

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &mut Model, theme: Theme) {
    let columns = usize::from(area.width);
    let mut lines = Vec::new();
    for (title, entries) in [("Keys", KEYS), ("Columns", COLUMNS), ("Marks", MARKS)] {
        lines.push(Line::styled(title, theme.strong()));
        for (name, meaning) in entries {
            for line in wrapped(&format!("  {name:<9}"), meaning, columns) {
                lines.push(Line::raw(line));
            }
        }
    }
    let words = "Sparklines: the longest lag in each part of the time; blank is unknown";
    for line in wrapped("", words, columns) {
        lines.push(Line::styled(line, theme.strong()));
    }
    for line in wrapped("  ", &legend(), columns) {
        lines.push(Line::from(Span::styled(line, theme.bars())));
    }
    model.fit(usize::from(area.height), lines.len());
    scrolled(frame, area, lines, model.help_scroll);
}
