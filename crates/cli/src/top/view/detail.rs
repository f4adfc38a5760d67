//! Everything about one node: its way from the upstream, its lag over time, what was found
//! there with evidence and remedies, and the node itself. Longer than the screen, so it scrolls.

use lockstep_lag::links::Kind;
use lockstep_lag::monitor::{LinkState, NodeState, State};
use lockstep_wire::Lsn;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::chart::chart;
use super::table::reach;
use super::{Theme, scrolled};
use crate::doctor::text::finding_lines;
use crate::text::{count, wrapped};
use crate::top::figures::{bytes, left, one_line, right, time};
use crate::top::model::Model;
use crate::top::rows::Row;

/// Longest bar of a stage.
const BAR: usize = 30;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &mut Model, theme: Theme) {
    let lines = match model.row() {
        Some(row) => lines(model, row, usize::from(area.width), theme),
        None => Vec::new(),
    };
    model.fit(usize::from(area.height), lines.len());
    scrolled(frame, area, lines, model.scroll);
}

fn lines(model: &Model, row: &Row, columns: usize, theme: Theme) -> Vec<Line<'static>> {
    let state = &*model.state;
    let link = row.link.and_then(|index| state.links.get(index));
    let node = row.node.and_then(|index| state.nodes.get(index));
    let mut page = Page {
        lines: Vec::new(),
        columns,
        theme,
    };
    let from = link.map_or(String::new(), |link| format!(" from {}", link.upstream));
    page.title(&format!("{} · {}{from}", row.name, row.kind));
    if let Some(link) = link {
        page.text("", &lag(state, link));
    }
    if row.findings.is_empty() {
        let words = wrapped("", &row.cause, columns);
        let lines = words.into_iter();
        page.lines
            .extend(lines.map(|line| Line::styled(line, theme.status(row.status))));
    }
    page.findings(state, row);
    if let Some(link) = link {
        page.way(link);
    }
    if row.link.is_some() || model.series(row).next().is_some() {
        page.title("Lag, longest in each part");
        let chart = chart(model.series(row), reach(model), columns, theme);
        page.lines.extend(chart);
    }
    if let Some(node) = node {
        page.node(node, &row.cause);
    }
    page.lines
}

fn lag(state: &State, link: &LinkState) -> String {
    let mut words = vec![
        format!("lag {} now", time(link.lag_ms)),
        format!("at most {} in {} s", time(link.lag_max_ms), state.window_s),
        format!("{} behind", bytes(link.lag_bytes as f64)),
    ];
    if let Some(ms) = link.visible_ms {
        words.push(format!("a commit is visible after {}", time(ms)));
    }
    words.join(" · ")
}

/// Lines that are being put together.
struct Page {
    lines: Vec<Line<'static>>,
    columns: usize,
    theme: Theme,
}

impl Page {
    /// A heading, after an empty line unless it is the first.
    fn title(&mut self, text: &str) {
        if !self.lines.is_empty() {
            self.lines.push(Line::default());
        }
        for line in wrapped("", &one_line(text), self.columns) {
            self.lines.push(Line::styled(line, self.theme.strong()));
        }
    }

    fn text(&mut self, lead: &str, words: &str) {
        let lines = wrapped(lead, &one_line(words), self.columns);
        self.lines.extend(lines.into_iter().map(Line::raw));
    }

    /// Positions from the upstream's end on, each with what is missing to it from the one
    /// before and a bar for that.
    fn way(&mut self, link: &LinkState) {
        self.title("Positions, and the bytes between each and the one before");
        let (taken, last) = match link.kind {
            Kind::Physical => (("flushed", link.flush_lsn), ("replayed", link.replay_lsn)),
            Kind::Logical => (("applied", link.replay_lsn), ("flushed", link.flush_lsn)),
        };
        let most = link
            .stages
            .iter()
            .map(|stage| stage.bytes)
            .max()
            .unwrap_or(0);
        self.position("upstream", link.end_lsn, None, most);
        let positions = [
            ("sent", link.sent_lsn),
            ("received", link.write_lsn),
            taken,
            last,
        ];
        let slot = link.slot.as_ref().map(|slot| format!("slot {slot}"));
        let name = link.application_name.as_ref();
        let name = name.map(|name| format!("application_name {name}"));
        let words: Vec<String> = slot.into_iter().chain(name).collect();
        for ((name, lsn), stage) in positions.into_iter().zip(&link.stages) {
            self.position(name, lsn, Some((stage.name, stage.bytes)), most);
        }
        if !words.is_empty() {
            self.text("  ", &words.join(" · "));
        }
    }

    fn position(&mut self, name: &str, lsn: Option<Lsn>, stage: Option<(&str, u64)>, most: u64) {
        let lsn = lsn.map_or("unknown".to_owned(), |lsn| lsn.to_string());
        let mut text = format!("  {name:<9} {lsn:<17}");
        let mut bar = String::new();
        if let Some((stage, held)) = stage {
            text.push_str(&format!(" {:<7} {} ", stage, right(&bytes(held as f64), 7)));
            let room = self.columns.saturating_sub(text.chars().count()).min(BAR);
            let part = held as f64 / most.max(1) as f64;
            bar = "█".repeat((part * room as f64).ceil() as usize);
        }
        let bar = Span::styled(bar, self.theme.bars());
        self.lines.push(Line::from(vec![Span::raw(text), bar]));
    }

    fn findings(&mut self, state: &State, row: &Row) {
        if row.findings.is_empty() {
            return;
        }
        self.title(&format!("Found in the last {} s", state.window_s));
        let found = row
            .findings
            .iter()
            .filter_map(|index| state.diagnosis.findings.get(*index));
        for (index, finding) in found.enumerate() {
            let lines = finding_lines(index + 1, finding, self.columns);
            self.lines.extend(lines.into_iter().map(Line::raw));
        }
    }

    /// The node itself; `said` is there already.
    fn node(&mut self, node: &NodeState, said: &str) {
        let version = match node.version {
            0 => String::new(),
            number => format!(" · PostgreSQL {}.{}", number / 10_000, number % 100),
        };
        self.title(&format!("Node {}{version} · {}", node.name, node.address));
        let others = node.troubles.iter().map(|trouble| one_line(trouble));
        for trouble in others.filter(|trouble| trouble != said) {
            self.text("  ~ ", &trouble);
        }
        if !node.usable {
            return;
        }
        let mut facts = Vec::new();
        facts.extend(node.end_lsn.map(|lsn| format!("WAL up to {lsn}")));
        facts.extend(node.visible_lsn.map(|lsn| format!("visible up to {lsn}")));
        let rate = node.wal_bytes_per_s;
        facts.extend(rate.map(|rate| format!("WAL {}/s", bytes(rate))));
        facts.extend(
            node.round_trip_ms
                .map(|ms| format!("answers in {ms:.1} ms")),
        );
        facts.push(format!("{} clients in a query", node.active_clients));
        facts.push(format!(
            "{} waiting for a synchronous replica",
            node.awaiting_sync
        ));
        let conflicts = node.conflicts;
        let cancelled =
            conflicts.snapshot + conflicts.lock + conflicts.bufferpin + conflicts.deadlock;
        facts.push(format!(
            "{} queries cancelled by replay",
            count(cancelled as f64)
        ));
        self.text("  ", &facts.join(" · "));
        self.extension(node);
        self.slots(node);
    }

    fn extension(&mut self, node: &NodeState) {
        let Some(extension) = &node.extension else {
            return;
        };
        let mut facts = vec![
            format!(
                "{} queries run, at most {}",
                extension.running, extension.concurrency_limit
            ),
            format!("{} wait", extension.waiting),
            format!("{} sessions demoted", extension.demoted),
        ];
        facts.extend(
            extension
                .method
                .as_ref()
                .map(|method| format!("by {method}")),
        );
        facts.extend(
            extension
                .lag_ms
                .map(|ms| format!("replay lag {}", time(ms))),
        );
        self.text("  extension lockstep: ", &facts.join(" · "));
    }

    fn slots(&mut self, node: &NodeState) {
        if node.slots.is_empty() {
            return;
        }
        self.title("Slots");
        let longest = node
            .slots
            .iter()
            .map(|slot| slot.slot_name.len())
            .max()
            .unwrap_or(0);
        let wide = longest.clamp(4, 30);
        for slot in &node.slots {
            let name = left(&super::cut_name(&slot.slot_name, wide), wide);
            let mut facts = vec![
                slot.slot_type.clone(),
                if slot.active { "in use" } else { "not in use" }.to_owned(),
            ];
            if let (Some(from), Some(to)) = (slot.restart_lsn, node.end_lsn) {
                let kept = u64::from(to).saturating_sub(from.into());
                facts.push(format!("keeps {}", bytes(kept as f64)));
            }
            let status = slot.wal_status.as_ref();
            facts.extend(status.map(|status| format!("wal_status {status}")));
            let safe = slot.safe_wal_size;
            facts.extend(
                safe.map(|safe| format!("{} until it loses WAL", bytes(safe.max(0) as f64))),
            );
            facts.extend(
                slot.confirmed_flush_lsn
                    .map(|lsn| format!("confirmed {lsn}")),
            );
            self.text(&format!("  {name}  "), &facts.join(" · "));
        }
    }
}
