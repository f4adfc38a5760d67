//! The details of one node: the stages of its link, its lag over time, the findings about it with
//! evidence and remedies, and the node itself. They can be longer than the screen, so they scroll.

use lockstep_lag::monitor::{LinkState, MonitorState, NodeState};
use lockstep_lag::point::LinkKind;
use lockstep_lag::point::{Bound, TOLD_LATE};
use lockstep_lag::states::WalStatus;
use lockstep_service::words::brief::{bytes, time};
use lockstep_service::words::figures::{count, percent};
use lockstep_service::words::lines::wrapped;
use lockstep_wire::Lsn;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::chart::chart;
use super::table::reach;
use super::{Theme, scrolled};
use crate::doctor::text::finding_lines;
use crate::top::figures::{cut_name, left, one_line, right, width};
use crate::top::model::Model;
use crate::top::rows::TopRow;

/// Longest bar of a stage, in columns.
const BAR: usize = 30;
/// Widest name of a slot, in columns.
const MOST_SLOT: usize = 32;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &mut Model, theme: Theme) {
    let lines = match model.row() {
        Some(row) => lines(model, row, usize::from(area.width), theme),
        None => Vec::new(),
    };
    model.fit(usize::from(area.height), lines.len());
    scrolled(frame, area, lines, model.scroll);
}

fn lines(model: &Model, row: &TopRow, columns: usize, theme: Theme) -> Vec<Line<'static>> {
    let state = &*model.state;
    let link = row.link.and_then(|index| state.links.get(index));
    let node = row.node.and_then(|index| state.nodes.get(index));
    let mut page = Page {
        lines: Vec::new(),
        columns,
        theme,
    };
    let from = link.map_or(String::new(), |link| format!(" from {}", link.upstream));
    page.title(&match row.kind == row.name {
        true => row.name.clone(),
        false => format!("{} · {}{from}", row.name, row.kind),
    });
    if let Some(link) = link {
        page.flow(&lag(state, link));
        if let Some(replica) = &link.lockstep_replica {
            page.text("", &replica.words());
        }
        if link.bound == Bound::MOST {
            page.text("≤ is ", TOLD_LATE);
        }
    }
    let first = row.findings.first();
    let first = first.and_then(|index| state.diagnosis.findings.get(*index));
    if first.is_none_or(|finding| finding.title != row.cause) {
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

/// How far behind the link is. Figures have fixed widths, so that nothing moves.
fn lag(state: &MonitorState, link: &LinkState) -> Vec<String> {
    let most = right(&time(link.lag_max_ms), 6);
    let sign = match link.bound.sign() {
        "" => String::new(),
        sign => format!("{sign} "),
    };
    let mut items = vec![
        format!("lag {sign}{} now", right(&time(link.lag_ms), 6)),
        format!("{most} at most in {} s", state.window_s),
        format!("{} behind", right(&bytes(link.lag_bytes as f64), 6)),
    ];
    items.extend(link.behind_primary.map(|all| {
        let age = format!("{}{}", all.sign(), time(all.lag_ms));
        format!("{} behind the primary", right(&age, 7))
    }));
    let visible = link.visible_ms;
    items.extend(visible.map(|ms| format!("visible after {}", right(&time(ms), 6))));
    items
}

/// The lines of the page, while they are collected.
struct Page {
    lines: Vec<Line<'static>>,
    columns: usize,
    theme: Theme,
}

impl Page {
    /// Adds a heading, with an empty line before it unless it is the first.
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

    /// Adds items side by side, in as many lines as they need.
    fn flow(&mut self, items: &[String]) {
        let mut line = String::new();
        for item in items {
            let more = if line.is_empty() { "" } else { " · " };
            if !line.is_empty() && width(&line) + width(more) + width(item) > self.columns {
                self.lines.push(Line::raw(std::mem::take(&mut line)));
                line.clone_from(item);
            } else {
                line.push_str(more);
                line.push_str(item);
            }
        }
        self.lines.push(Line::raw(line));
    }

    /// Adds the link's positions, from the upstream's end of WAL on. Each has the number of bytes
    /// by which it is behind the one before, and a bar for that.
    fn way(&mut self, link: &LinkState) {
        self.title("Positions, and the bytes between each and the one before");
        let (taken, last) = match link.kind {
            LinkKind::Physical => (("flushed", link.flush_lsn), ("replayed", link.replay_lsn)),
            LinkKind::Logical => (("applied", link.replay_lsn), ("flushed", link.flush_lsn)),
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

    fn findings(&mut self, state: &MonitorState, row: &TopRow) {
        if row.findings.is_empty() {
            return;
        }
        self.title(&format!("Found in the last {} s", state.window_s));
        let found = row
            .findings
            .iter()
            .filter_map(|index| state.diagnosis.findings.get(*index));
        for (index, finding) in found.enumerate() {
            let lead = format!("{}. ", index + 1);
            for line in finding_lines(&lead, finding, self.columns) {
                // A long literal is in one line, which is longer than the screen.
                let line: Vec<char> = line.chars().collect();
                let pieces = line.chunks(self.columns.max(1));
                let pieces = pieces.map(|piece| piece.iter().collect::<String>());
                self.lines.extend(pieces.map(Line::raw));
            }
        }
    }

    /// Adds the node itself. `said` is text that the page shows already.
    fn node(&mut self, node: &NodeState, said: &str) {
        let version = match (node.version, &node.relay_version) {
            (_, Some(relay)) => format!(" · Lockstep {}", one_line(relay)),
            (0, None) => String::new(),
            (number, None) => format!(" · PostgreSQL {}.{}", number / 10_000, number % 100),
        };
        self.title(&format!("Node {}{version} · {}", node.name, node.address));
        let others = node.troubles.iter().map(|trouble| one_line(trouble));
        for trouble in others.filter(|trouble| trouble != said) {
            self.text("  ~ ", &trouble);
        }
        if !node.usable {
            return;
        }
        let conflicts = node.conflicts;
        let cancelled =
            conflicts.snapshot + conflicts.lock + conflicts.bufferpin + conflicts.deadlock;
        let text = |lsn: Option<Lsn>| lsn.map(|lsn| lsn.to_string());
        let of_server = |number: u64| node.relay.is_none().then(|| count(number as f64));
        let rate = node.wal_bytes_per_s;
        let answers = node.round_trip_ms;
        // Each has a line of its own, so that figures that change do not move others.
        for (name, value) in [
            ("WAL up to", text(node.end_lsn)),
            ("visible up to", text(node.visible_lsn)),
            ("WAL", rate.map(|rate| format!("{}/s", bytes(rate)))),
            ("answers in", answers.map(|ms| format!("{ms:.1} ms"))),
            ("clients in a query", of_server(node.active_clients)),
            (
                "waiting for a synchronous replica",
                of_server(node.awaiting_sync),
            ),
            ("queries cancelled by replay", of_server(cancelled)),
        ] {
            if let Some(value) = value {
                self.fact(name, &value);
            }
        }
        self.extension(node);
        self.relay(node);
        self.slots(node);
    }

    fn fact(&mut self, name: &str, value: &str) {
        self.lines
            .push(Line::raw(format!("  {name:<33}  {}", one_line(value))));
    }

    fn extension(&mut self, node: &NodeState) {
        let Some(extension) = &node.extension else {
            return;
        };
        self.title("Extension lockstep");
        let limit = extension.concurrency_limit;
        let method = extension.method.as_deref().unwrap_or("no way known");
        self.fact("replay lag", &extension.lag_ms.map_or("-".to_owned(), time));
        let running = format!("{} of at most {limit}", extension.running);
        self.fact("queries that run", &running);
        self.fact("queries that wait", &count(extension.waiting as f64));
        self.fact("sessions demoted", &count(extension.demoted as f64));
        self.fact("demoted by", method);
        if let Some(report) = &node.parallel_replay {
            self.text("  parallel replay: ", &report.words);
        }
    }

    /// Adds a relay's groups, with what they hold, and how its subscribers are served.
    fn relay(&mut self, node: &NodeState) {
        let Some(relay) = &node.relay else {
            return;
        };
        for group in &relay.groups {
            self.title(&format!("Group {}: {}", group.name, group.state));
            if let Some(reason) = &group.reason {
                self.text("  ~ ", reason);
            }
            let text = |lsn: Option<Lsn>| lsn.map_or("-".to_owned(), |lsn| lsn.to_string());
            self.fact("received up to", &text(group.received));
            self.fact("durable up to", &text(group.durable));
            for (name, held, limit) in [
                ("in memory", group.cache_bytes, group.cache_limit_bytes),
                ("on disk", group.spool_bytes, group.spool_limit_bytes),
            ] {
                let limit = match (limit, name) {
                    (0, "in memory") => "off".to_owned(),
                    (0, _) => "no limit".to_owned(),
                    (limit, _) => format!("at most {}", bytes(limit as f64)),
                };
                self.fact(name, &format!("{}, {limit}", bytes(held as f64)));
            }
            for slot in relay.readers(&group.name) {
                let all = slot.cache_hit + slot.cache_miss;
                let hits = match all {
                    0 => "-".to_owned(),
                    all => percent(slot.cache_hit as f64 / all as f64),
                };
                let behind = bytes(slot.behind_bytes as f64);
                let words = format!("{behind} to send, {hits} from memory");
                self.fact(&format!("slot {}", one_line(&slot.name)), &words);
            }
        }
    }

    fn slots(&mut self, node: &NodeState) {
        if node.slots.is_empty() {
            return;
        }
        let names = node.slots.iter().map(|slot| width(&slot.slot_name));
        let wide = names.max().unwrap_or(0).clamp(5, MOST_SLOT);
        self.title("Slots, with the WAL that they keep and what they may keep besides");
        let head = format!(
            "  {} TYPE     IN USE   KEEPS    LEFT WAL_STATUS",
            left("NAME", wide)
        );
        self.lines.push(Line::styled(head, self.theme.dim()));
        for slot in &node.slots {
            let kept = match (slot.restart_lsn, node.end_lsn) {
                (Some(from), Some(to)) => bytes(to.bytes_since(from) as f64),
                _ => "-".to_owned(),
            };
            let safe = slot.safe_wal_size;
            let safe = safe.map_or("-".to_owned(), |safe| bytes(safe.max(0) as f64));
            self.lines.push(Line::raw(format!(
                "  {} {:<8} {:<6} {} {} {}",
                left(&cut_name(&one_line(&slot.slot_name), wide), wide),
                slot.slot_type,
                if slot.active { "yes" } else { "no" },
                right(&kept, 7),
                right(&safe, 7),
                slot.wal_status.as_ref().map_or("-", WalStatus::name),
            )));
        }
    }
}
