//! Drawing, on screens of at least 40 columns and 10 lines. On small screens the least important
//! parts are left out first, and the cause of a node's lag last.

use lockstep_service::words::date;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::figures::{cut, width};
use super::model::{Model, Page};
use super::rows::{Status, headline};

mod chart;
mod detail;
mod help;
mod table;
mod theme;

pub use theme::Theme;

/// Least width of the screen, in columns.
const LEAST_WIDTH: u16 = 40;
/// Least height of the screen, in lines.
const LEAST_HEIGHT: u16 = 10;

/// Draws the screen, and tells the model how many rows or lines fit.
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
    let (status, words) = summary(model);
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

/// The summary, with the name of the cluster, and its place if there are several.
fn summary(model: &Model) -> (Status, String) {
    let (status, words) = headline(&model.rows, &model.state.diagnosis);
    let of = match (&model.state.cluster, model.place) {
        (None, _) => String::new(),
        (Some(name), (_, 1)) => format!("{name}: "),
        (Some(name), (index, all)) => format!("{name} ({} of {all}, Tab): ", index + 1),
    };
    (status, of + &words)
}

/// Draws the first line: the summary of all nodes, and the time.
fn top_line(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let (status, words) = summary(model);
    let state = &model.state;
    let mut when = match state.number {
        0 => String::new(),
        _ => date::time_of_day(state.at_ms),
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

/// Keys, each with a word for what it does.
type Keys = &'static [(&'static str, &'static str)];

/// The line of keys: those that fit, the most useful first, and always `q` and `?`.
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

/// The lines of the screen that are not yet used.
#[derive(Debug, Clone, Copy)]
struct Lines {
    area: Rect,
}

impl Lines {
    fn of(area: Rect) -> Self {
        Self { area }
    }

    /// Takes the uppermost `lines`.
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

    /// Takes the lowest `lines`.
    fn bottom(&mut self, lines: u16) -> Rect {
        let lines = lines.min(self.area.height);
        self.area.height -= lines;
        Rect {
            y: self.area.y + self.area.height,
            height: lines,
            ..self.area
        }
    }

    /// Takes the rest.
    fn all(self) -> Rect {
        self.area
    }
}

/// Draws lines from number `from` on, as many as fit.
fn scrolled(frame: &mut Frame<'_>, area: Rect, lines: Vec<Line<'_>>, from: usize) {
    let mut rest = Lines::of(area);
    for line in lines.into_iter().skip(from).take(usize::from(area.height)) {
        let place = rest.top(1);
        frame.render_widget(line, place);
    }
}
