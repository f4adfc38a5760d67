//! The samples of some seconds, and how to read them. No I/O, no clock.

use std::collections::BTreeMap;
use std::time::Duration;

use lockstep_wire::Lsn;

use crate::figures::ratio;
use crate::node::{Node, Role, Trouble};
use crate::patroni::Membership;
use crate::process_cpu::Cpu;
use crate::sample::{Facts, Sample};
use crate::source::Source;
use crate::states::BackendType;
use crate::views::{Io, Process};

/// Interval at which a node is asked.
pub const EVERY: Duration = Duration::from_millis(100);

/// Most samples of a node in one window; the oldest are dropped first.
pub const MOST_SAMPLES: usize = 36_000;

/// Most bytes of answers that a window keeps of a node; the oldest samples are dropped first.
pub const MOST_BYTES: usize = 256 * 1024 * 1024;

/// Most groups of a relay whose ends are remembered for longer than samples are.
const MOST_GROUPS: usize = 64;

#[derive(Debug, Clone, Default)]
pub struct Window {
    /// Nodes in the order in which they were named: the primary first.
    pub nodes: Vec<NodeWindow>,
    /// Replicas that were there before; None if nobody has watched for longer than this window.
    pub remembered: Option<Vec<Remembered>>,
    /// What is to be told about the list of nodes; None if the user names them all.
    pub membership: Option<Membership>,
}

/// A replica that was connected for some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    pub upstream: String,
    /// The name of its link.
    pub replica: String,
    /// Time since it was last seen.
    pub away: Duration,
}

#[derive(Debug, Clone)]
pub struct NodeWindow {
    pub name: String,
    /// The node's address, as in [`crate::Node::address`]; empty if it is not known.
    pub address: String,
    /// Host, port and database as a command for a shell names the node in single quotes; `...` if that needs
    /// quotes of its own, or is not known.
    pub target: String,
    /// What it was said to be.
    pub role: Role,
    pub facts: Facts,
    /// Oldest first.
    pub samples: Vec<Sample>,
    /// Ends of its WAL: more of them than there are samples, and from longer ago. Oldest first.
    pub glances: Vec<Glance>,
    /// Ends of each group of a relay, as in `glances`.
    pub group_glances: BTreeMap<String, Vec<Glance>>,
    pub troubles: Vec<Trouble>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Glance {
    /// Time since the window began, by our clock.
    pub at: Duration,
    /// The WAL's end, as in [`Sample::end`].
    pub end: Lsn,
}

/// Shares of the time, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CpuShares {
    /// Share of the time on a core.
    pub ran: f64,
    /// Ready to run, and waiting for a core.
    pub queued: f64,
}

impl Window {
    pub fn new(nodes: Vec<NodeWindow>) -> Self {
        Self {
            nodes,
            remembered: None,
            membership: None,
        }
    }

    /// The primary, if it answered and is one.
    pub fn primary(&self) -> Option<&NodeWindow> {
        self.usable().find(|node| node.role == Role::Primary)
    }

    /// The server that `asker` reaches at this host or address and port, as far as that can be told from
    /// here: one that is asked there, or one on the same machine that says that it listens there.
    pub(crate) fn server_at(
        &self,
        asker: &NodeWindow,
        (host, port): &(String, String),
    ) -> Option<&NodeWindow> {
        let address = format!("{host}:{port}");
        let within = format!("{address}/");
        let servers = || self.nodes.iter().filter(|node| node.role != Role::Relay);
        let has_port = |node: &NodeWindow| node.facts.setting("port") == Some(port.as_str());
        let is_asked = |node: &&NodeWindow| {
            let is_named = node.address == address || node.address.starts_with(&within);
            is_named || node.facts.hosts.contains(host) && has_port(node)
        };
        let is_beside = |node: &&NodeWindow| {
            let both_here = asker.facts.is_on_this_machine() && node.facts.is_on_this_machine();
            both_here && has_port(node) && node.facts.listens_locally(host)
        };
        servers()
            .find(is_asked)
            .or_else(|| servers().find(is_beside))
    }

    /// Nodes that something can be said about.
    pub fn usable(&self) -> impl DoubleEndedIterator<Item = &NodeWindow> {
        self.nodes.iter().filter(|node| node.is_usable())
    }
}

impl NodeWindow {
    /// True if the node answered, and is what it was said to be.
    pub fn is_usable(&self) -> bool {
        !self.samples.is_empty() && !self.troubles.iter().any(Trouble::is_blind)
    }

    /// True if it may be reached at this host and port, by another name or address than those that are known
    /// here.
    pub(crate) fn may_be_at(&self, (host, port): &(String, String)) -> bool {
        self.facts.setting("port") == Some(port.as_str()) && self.facts.may_listen_at(host)
    }

    /// True for a standby that gets WAL from an archive only, by its settings.
    pub fn restores_only(&self) -> bool {
        let last = self.last().filter(|last| last.receiver.is_none());
        let source = last.and_then(|last| last.source.as_deref());
        source.is_some_and(Source::restores_only)
    }

    /// The server archives WAL, according to its setting: a standby only with `always`.
    pub fn archives(&self) -> bool {
        matches!(
            (self.role, self.facts.setting("archive_mode")),
            (Role::Primary, Some("on" | "always")) | (Role::Standby, Some("always"))
        )
    }

    pub fn last(&self) -> Option<&Sample> {
        self.samples.last()
    }

    /// Time from the first sample to the last.
    pub fn length(&self) -> Duration {
        match (self.samples.first(), self.samples.last()) {
            (Some(first), Some(last)) => last.at.saturating_sub(first.at),
            _ => Duration::ZERO,
        }
    }

    /// The part of the window from the first to the last sample for which `holds` is true.
    pub fn span(&self, holds: impl Fn(&Sample) -> bool) -> Self {
        let from = self.samples.iter().position(&holds);
        let to = self.samples.iter().rposition(&holds);
        let samples = match (from, to) {
            (Some(from), Some(to)) => self.samples.get(from..=to).unwrap_or_default().to_vec(),
            _ => Vec::new(),
        };
        Self {
            samples,
            ..self.clone()
        }
    }

    /// The share of samples for which `holds` is true; 0 without samples.
    pub fn share(&self, holds: impl Fn(&Sample) -> bool) -> f64 {
        let all = self.samples.len();
        let some = self.samples.iter().filter(|sample| holds(sample)).count();
        ratio(some as f64, all as f64)
    }

    pub fn mean(&self, number: impl Fn(&Sample) -> f64) -> f64 {
        let sum: f64 = self.samples.iter().map(number).sum();
        ratio(sum, self.samples.len() as f64)
    }

    /// The growth of a counter over the window; 0 if the counter was reset meanwhile.
    pub fn growth(&self, counter: impl Fn(&Sample) -> Option<f64>) -> f64 {
        let mut values = self.samples.iter().filter_map(counter);
        let first = values.next();
        match (first, values.next_back()) {
            (Some(first), Some(last)) => (last - first).clamp(0.0, f64::MAX),
            _ => 0.0,
        }
    }

    /// Mean milliseconds of what this kind of process did to files, and how often it did, over the window.
    /// `of` is the time and the number of it; None if there was none, or it was not timed.
    pub fn io_time(&self, kind: &BackendType, of: fn(&Io) -> (f64, f64)) -> Option<(f64, f64)> {
        let found = |sample: &Sample| {
            let io = sample.totals.io.iter();
            io.filter(|io| io.backend_type == *kind).map(of).next()
        };
        let time = self.growth(|sample| Some(found(sample)?.0));
        let number = self.growth(|sample| Some(found(sample)?.1));
        (time > 0.0 && number > 0.0).then_some((time / number, number))
    }

    pub fn empty(name: &str, role: Role) -> Self {
        Self {
            name: name.to_owned(),
            address: String::new(),
            target: "...".to_owned(),
            role,
            facts: Facts::default(),
            samples: Vec::new(),
            glances: Vec::new(),
            group_glances: BTreeMap::new(),
            troubles: Vec::new(),
        }
    }

    /// Without any answer yet.
    pub fn of(node: &Node) -> Self {
        Self {
            address: node.address(),
            target: node.target(),
            ..Self::empty(&node.name, node.role)
        }
    }

    /// Adds a sample. The oldest samples are dropped if they would be too many or too large.
    pub fn keep(&mut self, sample: Sample) {
        let mut size = sample.size;
        let fitting = self.samples.iter().rev().take(MOST_SAMPLES - 1);
        let kept = fitting
            .take_while(|sample| {
                size = size.saturating_add(sample.size);
                size <= MOST_BYTES
            })
            .count();
        self.samples.drain(..self.samples.len() - kept);
        self.samples.push(sample);
    }

    /// Adds an end of WAL, of the server or of one of a relay's groups.
    pub fn glanced(&mut self, group: Option<String>, glance: Glance) {
        match group {
            None => self.glances.push(glance),
            Some(group) if self.group_glances.contains_key(&group) => {
                self.group_glances.entry(group).or_default().push(glance);
            }
            Some(group) if self.group_glances.len() < MOST_GROUPS => {
                self.group_glances.insert(group, vec![glance]);
            }
            Some(_) => {}
        }
    }

    fn glances_of(&self, group: Option<&str>) -> &[Glance] {
        match group {
            Some(group) => self.group_glances.get(group).map_or(&[], Vec::as_slice),
            None => &self.glances,
        }
    }

    /// The end of this node's WAL, or of one of a relay's groups, in the newest answer that is
    /// not later than `at`.
    pub fn end_at(&self, group: Option<&str>, at: Duration) -> Option<Lsn> {
        let glances = self.glances_of(group);
        let after = glances.partition_point(|glance| glance.at <= at);
        let glance = after.checked_sub(1).and_then(|last| glances.get(last));
        let sample = self.sample_at(at).and_then(|sample| sample.end_of(group));
        sample.max(glance.map(|glance| glance.end))
    }

    /// The newest sample that is not later than `at`, or the first one.
    pub fn sample_at(&self, at: Duration) -> Option<&Sample> {
        let after = self.samples.partition_point(|sample| sample.at <= at);
        self.samples.get(after.saturating_sub(1))
    }

    /// The oldest sample that is not earlier than `at`, or the last one.
    pub fn sample_from(&self, at: Duration) -> Option<&Sample> {
        let earlier = self.samples.partition_point(|sample| sample.at < at);
        self.samples.get(earlier).or_else(|| self.last())
    }

    /// Least time for which there has been WAL beyond a position: since the first answer
    /// whose end was beyond it. Zero if there is none. Measured by our own clock, so the
    /// servers' clocks do not matter.
    pub fn age_beyond(&self, group: Option<&str>, position: Lsn, at: Duration) -> Duration {
        let since = self.beyond_since(group, position);
        since.map_or(Duration::ZERO, |since| at.saturating_sub(since))
    }

    /// When an answer had an end beyond a position for the first time.
    pub fn beyond_since(&self, group: Option<&str>, position: Lsn) -> Option<Duration> {
        let sample = self
            .samples
            .iter()
            .find(|sample| sample.end_of(group).is_some_and(|end| end > position));
        let glances = self.glances_of(group);
        let glanced = glances.partition_point(|glance| glance.end <= position);
        let glance = glances.get(glanced).map(|glance| glance.at);
        sample
            .map(|sample| sample.at)
            .into_iter()
            .chain(glance)
            .min()
    }

    /// When the end of this node's WAL, or of one of a relay's groups, was known for the first
    /// time.
    pub fn first_answer(&self, group: Option<&str>) -> Option<Duration> {
        let mut samples = self.samples.iter();
        let sample = samples.find(|sample| sample.end_of(group).is_some());
        let glance = self.glances_of(group).first().map(|glance| glance.at);
        sample
            .map(|sample| sample.at)
            .into_iter()
            .chain(glance)
            .min()
    }

    /// The node's clock less ours, in microseconds, in the middle of its samples.
    pub fn clock_offset_us(&self) -> Option<i64> {
        let mut offsets: Vec<i64> = self.samples.iter().map(|s| s.clock_offset_us).collect();
        offsets.sort_unstable();
        offsets.get(offsets.len() / 2).copied()
    }

    /// CPU of the first process that `choose` accepts, over the window. None if it is not
    /// known.
    pub fn cpu(&self, choose: impl Fn(&Process) -> bool) -> Option<CpuShares> {
        let mut seen = self.samples.iter().filter_map(|sample| {
            let process = sample.processes.iter().find(|process| choose(process))?;
            Some((sample.at, process.pid, process.cpu?))
        });
        let (from, pid, before) = seen.next()?;
        let (to, _, after) = seen.filter(|(_, other, _)| *other == pid).last()?;
        shares(before, after, to.saturating_sub(from))
    }
}

fn shares(before: Cpu, after: Cpu, time: Duration) -> Option<CpuShares> {
    // In a shorter time a single turn of the scheduler would weigh too much.
    const LEAST: Duration = Duration::from_millis(500);
    let part = |before: Duration, after: Duration| {
        ratio(
            after.saturating_sub(before).as_secs_f64(),
            time.as_secs_f64(),
        )
        .min(1.0)
    };
    (time >= LEAST).then(|| CpuShares {
        ran: part(before.ran, after.ran),
        queued: part(before.queued, after.queued),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Wal;

    fn primary(ends: &[(u64, u64)]) -> NodeWindow {
        NodeWindow {
            samples: ends
                .iter()
                .map(|&(ms, end)| Sample {
                    at: Duration::from_millis(ms),
                    wal: Wal {
                        flush: Some(Lsn::from(end)),
                        ..Wal::default()
                    },
                    ..Sample::default()
                })
                .collect(),
            ..NodeWindow::empty("primary", Role::Primary)
        }
    }

    #[test]
    fn glances_count_where_samples_are_rare() {
        let mut primary = primary(&[(0, 100), (1000, 300)]);
        let glance = |ms, end| Glance {
            at: Duration::from_millis(ms),
            end: Lsn::from(end),
        };
        primary.glances = vec![glance(0, 100), glance(400, 200), glance(900, 300)];
        for (position, at, expected) in [(100, 1000, 600), (250, 1000, 100), (300, 1000, 0)] {
            assert_eq!(
                primary.age_beyond(None, Lsn::from(position), Duration::from_millis(at)),
                Duration::from_millis(expected),
                "{position} at {at}"
            );
        }
        for (at, end) in [(399, 100), (400, 200), (950, 300), (2000, 300)] {
            let found = primary.end_at(None, Duration::from_millis(at));
            assert_eq!(found, Some(Lsn::from(end)), "at {at}");
        }
    }

    #[test]
    fn ages_are_since_wal_was_there() {
        let primary = primary(&[(0, 100), (100, 100), (200, 200), (300, 300)]);
        for (position, at, expected) in [
            (100, 300, 100),
            (200, 300, 0),
            (250, 350, 50),
            (300, 900, 0),
            (50, 300, 300),
        ] {
            assert_eq!(
                primary.age_beyond(None, Lsn::from(position), Duration::from_millis(at)),
                Duration::from_millis(expected),
                "{position} at {at}"
            );
        }
        assert_eq!(
            primary.end_at(None, Duration::from_millis(250)),
            Some(Lsn::from(200))
        );
        assert_eq!(primary.end_at(None, Duration::ZERO), Some(Lsn::from(100)));
    }

    #[test]
    fn shares_growth_and_cpu() {
        let mut node = primary(&[(0, 10), (1000, 20), (2000, 40)]);
        let end = |sample: &Sample| sample.end().map(|end| u64::from(end) as f64);
        assert_eq!(node.growth(end), 30.0);
        assert_eq!(node.share(|sample| sample.at > Duration::ZERO), 2.0 / 3.0);
        for (index, sample) in node.samples.iter_mut().enumerate() {
            sample.processes.push(Process {
                pid: 7,
                cpu: Some(Cpu {
                    ran: Duration::from_millis(500 * index as u64),
                    queued: Duration::from_millis(250 * index as u64),
                    stopped: false,
                }),
                ..Process::default()
            });
        }
        let cpu = node.cpu(|process| process.pid == 7).unwrap();
        assert_eq!(
            cpu,
            CpuShares {
                ran: 0.5,
                queued: 0.25
            }
        );
        assert_eq!(node.cpu(|process| process.pid == 8), None);
        node.samples[2].processes[0].pid = 9;
        assert_eq!(node.cpu(|_| true).unwrap().ran, 0.5);
    }
}
