//! Drawing, from 40 columns and 10 lines up. What does not fit is left out in the order of its
//! importance: why a node lags stays to the last.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::figures::{clock, cut, width};
use super::model::{Model, Page};
use super::rows::{Status, headline};

mod chart;
mod detail;
mod help;
mod table;
mod theme;

pub use theme::Theme;

/// Least columns.
const LEAST_WIDTH: u16 = 40;
/// Least lines.
const LEAST_HEIGHT: u16 = 10;

/// Draws everything, and tells the model how much of it fits.
pub fn draw(frame: &mut Frame<'_>, model: &mut Model, theme: Theme) {
    let area = frame.area();
    if area.width < LEAST_WIDTH || area.height < LEAST_HEIGHT {
        return too_small(frame, model, theme);
    }
    let mut rest = Lines::of(area);
    let head = rest.top(1);
    top_line(frame, head, model, theme);
    let foot = rest.bottom(1);
    frame.render_widget(keys(model, foot.width, theme), foot);
    if model.help {
        return help::draw(frame, rest.all(), model, theme);
    }
    match model.page {
        Page::Table => table::draw(frame, rest, model, theme),
        Page::Detail => detail::draw(frame, rest.all(), model, theme),
    }
}

fn too_small(frame: &mut Frame<'_>, model: &mut Model, theme: Theme) {
    let area = frame.area();
    let (status, words) = headline(&model.rows, model.state.diagnosis.healthy);
    let size = format!("too small: {}×{}", area.width, area.height);
    let need = format!("{LEAST_WIDTH}×{LEAST_HEIGHT} is needed");
    let lines = [
        Line::styled(words, theme.status(status)),
        Line::raw(size),
        Line::raw(need),
        Line::raw("q quits"),
    ];
    let mut rest = Lines::of(area);
    for line in lines {
        let place = rest.top(1);
        frame.render_widget(line, place);
    }
}

/// How everybody is doing, and when.
fn top_line(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let (status, words) = headline(&model.rows, model.state.diagnosis.healthy);
    let state = &model.state;
    let mut when = match state.number {
        0 => String::new(),
        _ => clock(state.at_ms),
    };
    if model.paused {
        when = format!("PAUSED at {when}");
    }
    let room = usize::from(area.width).saturating_sub(width(&when) + 1);
    let words = match status {
        Status::Fine => words,
        _ => format!("{} {words}", status.mark()),
    };
    let words = cut(&words, room);
    let gap = " ".repeat(usize::from(area.width).saturating_sub(width(&words) + width(&when)));
    let line = Line::from(vec![
        Span::styled(words, theme.status(status).patch(theme.strong())),
        Span::raw(gap),
        Span::styled(
            when,
            if model.paused {
                theme.strong()
            } else {
                theme.dim()
            },
        ),
    ]);
    frame.render_widget(line, area);
}

/// Keys, and what each does.
type Keys = &'static [(&'static str, &'static str)];

/// The keys that fit, the most useful first, `q` and `?` always.
fn keys(model: &Model, columns: u16, theme: Theme) -> Line<'static> {
    let (first, last): (Keys, Keys) = if model.help {
        (&[("↑↓", "scroll")], &[("Esc", "back"), ("q", "quit")])
    } else if model.page == Page::Detail {
        (
            &[
                ("↑↓", "scroll"),
                ("←→", "other node"),
                ("t", "time span"),
                ("p", "pause"),
            ],
            &[("Esc", "back"), ("?", "help"), ("q", "quit")],
        )
    } else {
        (
            &[
                ("↑↓", "select"),
                ("⏎", "detail"),
                ("l n b c", "sort"),
                ("r", "reverse"),
                ("t", "span"),
                ("p", "pause"),
            ],
            &[("?", "help"), ("q", "quit")],
        )
    };
    let length = |(key, word): &(&str, &str)| width(key) + width(word) + 3;
    let mut room = usize::from(columns).saturating_sub(last.iter().map(length).sum());
    let mut shown: Vec<(&str, &str)> = Vec::new();
    for one in first {
        let Some(left) = room.checked_sub(length(one)) else {
            break;
        };
        room = left;
        shown.push(*one);
    }
    let spans = shown.iter().chain(last).flat_map(|(key, word)| {
        [
            Span::styled(format!("{key} "), theme.strong()),
            Span::styled(format!("{word}  "), theme.dim()),
        ]
    });
    Line::from_iter(spans)
}

/// Lines of the screen that are not taken yet.
#[derive(Debug, Clone, Copy)]
struct Lines {
    area: Rect,
}

impl Lines {
    fn of(area: Rect) -> Self {
        Self { area }
    }

    /// The uppermost.
    fn top(&mut self, lines: u16) -> Rect {
        let lines = lines.min(self.area.height);
        let taken = Rect {
            height: lines,
            ..self.area
        };
        self.area.y += lines;
        self.area.height -= lines;
        taken
    }

    /// The lowest.
    fn bottom(&mut self, lines: u16) -> Rect {
        let lines = lines.min(self.area.height);
        self.area.height -= lines;
        Rect {
            y: self.area.y + self.area.height,
            height: lines,
            ..self.area
        }
    }

    /// What is left.
    fn all(self) -> Rect {
        self.area
    }
}

/// Lines from the first that is to be shown, as many as fit.
fn scrolled(frame: &mut Frame<'_>, area: Rect, lines: Vec<Line<'_>>, from: usize) {
    let mut rest = Lines::of(area);
    for line in lines.into_iter().skip(from).take(usize::from(area.height)) {
        let place = rest.top(1);
        frame.render_widget(line, place);
    }
}
