//! The table of all nodes, and a few lines about the selected row below it.

use lockstep_lag::monitor::LinkState;
use lockstep_service::words::brief::{bytes, time};
use lockstep_service::words::lines::wrapped;
use lockstep_wire::Lsn;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::chart::Reach;
use super::{Lines, Theme};
use crate::top::figures::{bar, cut, cut_name, left, legend, one_line, parts, right, width};
use crate::top::model::Model;
use crate::top::rows::{SortBy, TopRow};

/// Fewest lines of the pane below the table: a rule, the node, the cause, and what to do.
const PANE: u16 = 4;
/// Lines besides that it takes from those that the rows leave empty: for the rest of what to do.
const MORE: u16 = 8;
/// Height of the screen from which on the pane is shown, in lines.
const PANE_FROM: u16 = 17;
/// Height of the screen from which on the line about the primary is shown, in lines.
const PRIMARY_FROM: u16 = 11;
/// Width of the screen from which on there is a column for each position, in columns.
const WIDE: usize = 160;
/// Widest name, in columns.
const MOST_NAME: usize = 28;

/// A column between the name and the cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Kind,
    Lag,
    Most,
    Bytes,
    Sent,
    Written,
    Flushed,
    Replayed,
    Stage,
    Spark,
}

impl Column {
    /// All columns in order, each with the width of the screen from which on it is shown.
    const ALL: [(Self, usize); 10] = [
        (Self::Kind, 92),
        (Self::Lag, 0),
        (Self::Most, 76),
        (Self::Bytes, 56),
        (Self::Sent, WIDE),
        (Self::Written, WIDE),
        (Self::Flushed, WIDE),
        (Self::Replayed, WIDE),
        (Self::Stage, 66),
        (Self::Spark, 72),
    ];

    fn head(self, minutes: i64) -> String {
        match self {
            Self::Kind => "KIND".to_owned(),
            Self::Lag => "LAG".to_owned(),
            Self::Most => "MAX".to_owned(),
            Self::Bytes => "BEHIND".to_owned(),
            Self::Sent => "SENT".to_owned(),
            Self::Written => "WRITE".to_owned(),
            Self::Flushed => "FLUSH".to_owned(),
            Self::Replayed => "REPLAY".to_owned(),
            Self::Stage => "STAGE".to_owned(),
            Self::Spark => format!("{minutes} min"),
        }
    }

    fn sorts(self) -> Option<SortBy> {
        match self {
            Self::Lag => Some(SortBy::Lag),
            Self::Bytes => Some(SortBy::Bytes),
            _ => None,
        }
    }

    fn is_figure(self) -> bool {
        !matches!(self, Self::Kind | Self::Stage | Self::Spark)
    }

    /// The position that the column is about.
    fn position(self, link: &LinkState) -> Option<Lsn> {
        match self {
            Self::Sent => link.sent_lsn,
            Self::Written => link.write_lsn,
            Self::Flushed => link.flush_lsn,
            Self::Replayed => link.replay_lsn,
            _ => None,
        }
    }
}

/// The columns and their widths on a screen of a certain width.
struct Plan {
    name: usize,
    columns: Vec<(Column, usize)>,
    cause: usize,
}

impl Plan {
    fn new(columns: usize, rows: &[TopRow]) -> Self {
        let longest = rows.iter().map(|row| width(&row.name)).max().unwrap_or(0);
        // Only the width beyond 80 columns is divided among long names and sparklines.
        let more = columns.saturating_sub(80);
        let name = longest.clamp(11, MOST_NAME).min(12 + more / 5);
        let wide = |column: Column| match column {
            Column::Kind => 10,
            Column::Stage => 7,
            Column::Spark if columns >= WIDE => 8 + (more / 4).min(60),
            Column::Spark => 8 + (more / 5).min(22),
            Column::Most | Column::Sent | Column::Written => 6,
            Column::Flushed | Column::Replayed => 6,
            // A mark may stand before the figure, or beside the head.
            Column::Lag | Column::Bytes => 7,
        };
        let shown = Column::ALL.iter().filter(|(_, from)| columns >= *from);
        let shown: Vec<(Column, usize)> =
            shown.map(|(column, _)| (*column, wide(*column))).collect();
        // Marks take two columns, and a blank follows each column.
        let taken: usize = shown.iter().map(|(_, wide)| wide + 1).sum();
        Self {
            name,
            cause: columns.saturating_sub(2 + name + 1 + taken),
            columns: shown,
        }
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, mut rest: Lines, model: &mut Model, theme: Theme) {
    let height = rest.all().height;
    let columns = usize::from(rest.all().width);
    if height >= PRIMARY_FROM {
        let place = rest.top(1);
        frame.render_widget(
            Line::styled(cut(&primary(model), columns), theme.dim()),
            place,
        );
    }
    if height >= PANE_FROM {
        // The head, the rows and the legend go first.
        let rows = u16::try_from(model.rows.len()).unwrap_or(u16::MAX);
        let free = rest
            .all()
            .height
            .saturating_sub(rows.saturating_add(PANE + 2));
        let pane = rest.bottom(PANE + free.min(MORE));
        self::pane(frame, pane, model, theme);
        let place = rest.bottom(1);
        let positions = match columns >= WIDE {
            true => " · SENT to REPLAY: bytes that have not got there",
            false => "",
        };
        let words = format!("lag, longest in each part: {}{positions}", legend());
        frame.render_widget(Line::styled(cut(&words, columns), theme.dim()), place);
    }
    let plan = Plan::new(columns, &model.rows);
    let head = rest.top(1);
    frame.render_widget(Line::styled(heads(model, &plan), theme.strong()), head);
    let fits = usize::from(rest.all().height);
    model.fit(fits, model.rows.len());
    for (index, row) in model.rows.iter().enumerate().skip(model.offset).take(fits) {
        let place = rest.top(1);
        let line = line(model, row, &plan, index == model.index(), theme);
        frame.render_widget(line, place);
    }
}

/// The line about the primary, and about how lag is measured.
fn primary(model: &Model) -> String {
    let state = &model.state;
    let row = model.rows.iter().find(|row| row.is_primary);
    let node = row.and_then(|row| state.nodes.get(row.node?));
    let rate = node.and_then(|node| node.wal_bytes_per_s);
    let mut words = vec![match rate {
        Some(rate) => format!("WAL {}/s", right(&bytes(rate), 6)),
        None => format!("WAL {}", right("-", 8)),
    }];
    words.push(format!("asked every {} s", state.every_s));
    words.push(format!("causes: last {} s", state.window_s));
    words.extend(node.map(|node| format!("primary {}", one_line(&node.address))));
    words.join(" · ")
}

fn heads(model: &Model, plan: &Plan) -> String {
    let mark = |by: Option<SortBy>, text: &str| match by {
        Some(by) if by == model.sort => {
            format!("{text}{}", if model.reverse { '▲' } else { '▼' })
        }
        _ => text.to_owned(),
    };
    let mut text = format!("  {} ", left(&mark(Some(SortBy::Name), "NAME"), plan.name));
    for (column, wide) in &plan.columns {
        let head = mark(column.sorts(), &column.head(model.minutes()));
        let cell = match column.is_figure() {
            true => right(&head, *wide),
            false => left(&head, *wide),
        };
        text.push_str(&cell);
        text.push(' ');
    }
    text.push_str(&mark(Some(SortBy::Cause), "CAUSE"));
    text
}

fn line<'a>(model: &Model, row: &TopRow, plan: &Plan, selected: bool, theme: Theme) -> Line<'a> {
    let style = theme.status(row.status);
    let marks = format!("{}{}", if selected { '>' } else { ' ' }, row.status.mark());
    let name = left(&cut_name(&row.name, plan.name), plan.name);
    let mut spans = vec![
        Span::styled(marks, style.patch(theme.strong())),
        Span::styled(format!("{name} "), style),
    ];
    for (column, wide) in &plan.columns {
        let cell = cell(model, row, *column, *wide);
        let style = match column {
            Column::Spark => theme.bars(),
            _ => style,
        };
        spans.push(Span::styled(format!("{cell} "), style));
    }
    spans.push(Span::styled(cause(row, plan.cause), style));
    let line = Line::from(spans);
    match selected {
        true => line.patch_style(theme.selected()),
        false => line,
    }
}

fn cell(model: &Model, row: &TopRow, column: Column, wide: usize) -> String {
    let figure = |text: Option<String>| right(&text.unwrap_or_else(|| "-".to_owned()), wide);
    match column {
        Column::Kind => left(&row.kind, wide),
        Column::Lag => figure(row.lag()),
        Column::Most => figure(row.most_ms.map(time)),
        Column::Bytes => figure(row.bytes.map(|count| bytes(count as f64))),
        Column::Sent | Column::Written | Column::Flushed | Column::Replayed => {
            let link = row.link.and_then(|index| model.state.links.get(index));
            let missing = link.and_then(|link| {
                let missing = link.end_lsn?.bytes_since(column.position(link)?);
                Some(bytes(missing as f64))
            });
            figure(missing)
        }
        Column::Stage => left(row.stage.unwrap_or("-"), wide),
        Column::Spark => {
            let reach = reach(model);
            let parts = parts(model.series(row), reach.now_ms, reach.step_ms(wide), wide);
            left(&parts.into_iter().map(bar).collect::<String>(), wide)
        }
    }
}

pub(super) fn reach(model: &Model) -> Reach {
    Reach {
        now_ms: model.state.at_ms,
        minutes: model.minutes(),
        every_ms: (model.state.every_s * 1000.0) as i64,
    }
}

/// The cause, or its label if the cause does not fit.
fn cause(row: &TopRow, columns: usize) -> String {
    match width(&row.cause) > columns {
        true => cut(&row.label, columns),
        false => row.cause.clone(),
    }
}

/// Draws the pane about the selected row: what the table leaves out, and the remedies that fit.
fn pane(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: Theme) {
    let columns = usize::from(area.width);
    let mut rest = Lines::of(area);
    let rule = rest.top(1);
    frame.render_widget(Line::styled("─".repeat(columns), theme.dim()), rule);
    let Some(row) = model.row() else {
        return;
    };
    let state = &model.state;
    let link = row.link.and_then(|index| state.links.get(index));
    let node = row.node.and_then(|index| state.nodes.get(index));
    let mut about = vec![row.name.clone()];
    about.extend((row.kind != row.name).then(|| row.kind.clone()));
    if let Some(link) = link {
        about.push(format!("from {}", link.upstream));
        if let Some(ms) = link.visible_ms {
            about.push(format!("visible after {}", time(ms)));
        }
        about.extend(link.slot.as_ref().map(|slot| format!("slot {slot}")));
    }
    if let Some(node) = node {
        about.push(node.address.clone());
    }
    let finding = row.findings.first();
    let finding = finding.and_then(|index| state.diagnosis.findings.get(*index));
    let remedies = finding.map_or(&[][..], |finding| &finding.remedies);
    let more = match row.findings.len() {
        0 | 1 => String::new(),
        found => format!(" (and {} more: Enter)", found - 1),
    };
    let style = theme.status(row.status);
    let mut lines = vec![Line::styled(
        cut(&one_line(&about.join(" · ")), columns),
        theme.strong(),
    )];
    match remedies {
        [_, ..] => {
            let room = columns.saturating_sub(width(&more));
            let why = format!("{}{more}", cut(&row.cause, room));
            lines.push(Line::styled(why, style));
            let left = usize::from(rest.all().height).saturating_sub(lines.len());
            lines.extend(
                remedy_lines(remedies, left, columns)
                    .into_iter()
                    .map(Line::raw),
            );
        }
        [] => {
            let why = wrapped("", &format!("{}{more}", row.cause), columns);
            lines.extend(why.into_iter().map(|line| Line::styled(line, style)));
        }
    }
    for line in lines {
        let place = rest.top(1);
        frame.render_widget(line, place);
    }
}

/// Remedies in at most this number of lines: those that fit whole, and of the first as much as fits.
fn remedy_lines(remedies: &[String], most: usize, columns: usize) -> Vec<String> {
    let mut shown: Vec<String> = Vec::new();
    for (index, remedy) in remedies.iter().enumerate() {
        let lead = if index == 0 { "Do: " } else { "Or: " };
        let mut lines = wrapped(lead, &one_line(remedy), columns);
        let left = most.saturating_sub(shown.len());
        if lines.len() > left {
            if index > 0 {
                break;
            }
            let rest = lines.split_off(left.saturating_sub(1));
            let rest: Vec<&str> = rest.iter().map(|line| line.trim()).collect();
            let indent = " ".repeat(if lines.is_empty() { 0 } else { lead.len() });
            lines.push(cut(&format!("{indent}{}", rest.join(" ")), columns));
        }
        shown.extend(lines);
    }
    shown
}
