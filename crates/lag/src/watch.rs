//! All nodes for some seconds. Each node has a thread of its own, so one that does not answer
//! delays no other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::node::{Node, Role, Trouble};
use crate::node_sampler::NodeSampler;
use crate::sample::Sample;
use crate::states::SenderState;
use crate::views::{Sender, Slot};
use crate::window::{NodeWindow, Window};
use crate::{LagError, Result};
use lockstep_service::sanitize::sanitize;

/// Pause before another attempt to connect.
const RETRY: Duration = Duration::from_secs(1);

/// Longest time after the watch for which a reply is waited for: pg_receivewal and pg_recvlogical reply every
/// ten seconds, unless they are told otherwise.
const REPLIES: Duration = Duration::from_secs(11);

/// A smaller difference between clocks is not reported, milliseconds.
const SKEW_MS: f64 = 100.0;

#[derive(Debug, Clone, Copy)]
pub struct Watch<'a> {
    pub application_name: &'a str,
    /// How long to watch.
    pub length: Duration,
    /// Interval at which each node is asked.
    pub every: Duration,
}

/// The nodes of which a replica has not replied yet, by their place.
struct Awaited(Vec<AtomicBool>);

impl Awaited {
    fn tell(&self, place: usize, is_awaited: bool) {
        if let Some(own) = self.0.get(place) {
            own.store(is_awaited, Ordering::Relaxed);
        }
    }

    fn is_any(&self) -> bool {
        self.0.iter().any(|it| it.load(Ordering::Relaxed))
    }
}

/// Asks all nodes until the time is over, and some seconds longer if what only receives has not replied.
/// Blocks; a node that hangs can add the time that libpq allows it.
pub fn watch(nodes: &[Node], watch: Watch<'_>) -> Window {
    let began = Instant::now();
    let awaited = &Awaited(nodes.iter().map(|_| AtomicBool::new(false)).collect());
    let mut windows: Vec<NodeWindow> = thread::scope(|scope| {
        let threads: Vec<_> = nodes
            .iter()
            .enumerate()
            .map(|(place, node)| {
                scope.spawn(move || {
                    let seen = one(node, watch, began, (awaited, place));
                    awaited.tell(place, false);
                    seen
                })
            })
            .collect();
        nodes
            .iter()
            .zip(threads)
            .map(|(node, thread)| {
                thread.join().unwrap_or_else(|_| {
                    blind(
                        node,
                        "the thread that asks it died, which is a bug".to_owned(),
                    )
                })
            })
            .collect()
    });
    compare(&mut windows);
    Window::new(windows)
}

fn blind(node: &Node, reason: String) -> NodeWindow {
    NodeWindow {
        troubles: vec![Trouble::Unreachable { reason }],
        ..NodeWindow::of(node)
    }
}

/// Who waits for replies, and the place of the node.
type Waits<'a> = (&'a Awaited, usize);

fn one(node: &Node, watch: Watch<'_>, began: Instant, waits: Waits<'_>) -> NodeWindow {
    let mut seen = NodeWindow::of(node);
    let mut lost: Option<LagError> = None;
    let mut restarted = false;
    // At least once, even if the time is over.
    loop {
        match follow(node, watch, began, waits, &mut seen, &mut restarted) {
            Ok(()) => {
                seen.troubles.extend(lost.map(|error| Trouble::Interrupted {
                    reason: sanitize(&error.to_string()),
                    restarted,
                }));
                return seen;
            }
            Err(error @ (LagError::Version(_) | LagError::WrongRole(_))) => {
                seen.troubles.push(error.trouble());
                return seen;
            }
            Err(error) => lost = Some(error),
        }
        waits.0.tell(waits.1, false);
        if began.elapsed() + RETRY >= watch.length {
            break;
        }
        thread::sleep(RETRY);
    }
    seen.troubles.extend(lost.map(|error| error.trouble()));
    seen
}

/// One connection, until the time is over or it is lost. Sets `restarted` if the server was started anew
/// since the one before.
fn follow(
    node: &Node,
    watch: Watch<'_>,
    began: Instant,
    (awaited, place): Waits<'_>,
    seen: &mut NodeWindow,
    restarted: &mut bool,
) -> Result<()> {
    let mut sampler = NodeSampler::connect(node, watch.application_name)?;
    *restarted |= seen.facts.is_restarted(sampler.facts());
    seen.facts = sampler.facts().clone();
    loop {
        let asked = Instant::now();
        let sample = sampler.sample(began)?;
        seen.troubles
            .retain(|trouble| !matches!(trouble, Trouble::Gap { .. } | Trouble::WrongRole { .. }));
        seen.troubles.extend(sampler.gaps().iter().cloned());
        seen.troubles.extend(sampler.mismatch(&sample));
        seen.keep(sample);
        awaited.tell(place, awaits_reply(seen));
        let next = asked + watch.every;
        let extra = match awaited.is_any() {
            true => REPLIES,
            false => Duration::ZERO,
        };
        if next > began + watch.length + extra {
            return Ok(());
        }
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// True if something that only receives WAL, or changes, has not replied in this window, and had not told
/// before that it has all: until it does nobody knows how far it is.
fn awaits_reply(seen: &NodeWindow) -> bool {
    let Some(last) = seen.last() else {
        return false;
    };
    let receivers = last.senders.iter().filter(|sender| {
        let streams = sender.state == Some(SenderState::Streaming);
        let has_all = sender.write_lsn >= last.end();
        streams && sender.replay_lsn.is_none() && sender.replied_us.is_some() && !has_all
    });
    let is_silent = |sender: &Sender| {
        let mut seen = seen.samples.iter().filter_map(|it| it.sender(sender.pid));
        seen.all(|it| it.replied_us == sender.replied_us)
    };
    receivers.into_iter().any(is_silent)
}

/// Notes troubles that show only by comparison with the primary: another cluster, a different
/// clock. A relay tells neither, but its slots on the primary show whether it belongs there.
pub fn compare(nodes: &mut [NodeWindow]) {
    let Some(primary) = nodes.iter().find(|node| node.role == Role::Primary) else {
        return;
    };
    let system = primary.facts.system.clone();
    let clock = clock(&primary.samples);
    let slots = primary.last().filter(|_| primary.is_usable());
    let slots = slots.map(|last| last.slots.clone());
    for node in nodes.iter_mut().filter(|node| node.role != Role::Primary) {
        let known = !system.is_empty() && !node.facts.system.is_empty();
        if node.role == Role::Standby && known && node.facts.system != system {
            node.troubles.push(Trouble::OtherSystem {
                found: node.facts.system.clone(),
                expected: system.clone(),
            });
        }
        if node.role == Role::Relay {
            let slots = slots.as_deref();
            node.troubles
                .extend(slots.and_then(|slots| stranger(node, slots)));
            continue;
        }
        if let (Some((offset, error)), Some((theirs, their_error))) =
            (clock, self::clock(&node.samples))
        {
            let ahead_ms = theirs - offset;
            let uncertain_ms = error + their_error;
            if ahead_ms.abs() > SKEW_MS + uncertain_ms {
                node.troubles.push(Trouble::ClockSkew {
                    ahead_ms,
                    uncertain_ms,
                });
            }
        }
    }
}

/// Detects a relay of another primary: its groups stream all the time, but from none of the
/// primary's slots.
fn stranger(relay: &NodeWindow, slots: &[Slot]) -> Option<Trouble> {
    let groups = |sample: &Sample| sample.relay.as_ref().map(|relay| relay.groups.clone());
    let before = relay.samples.first().and_then(groups)?;
    let streamed = |name: &str| {
        let mut groups = before.iter();
        groups.any(|group| group.name == name && group.is_streaming())
    };
    let mut now = relay.last().and_then(groups)?;
    now.retain(|group| group.is_streaming() && streamed(&group.name));
    let first = now.first()?;
    let known = |slot: &str| slots.iter().any(|row| row.slot_name == slot);
    (!now.iter().any(|group| known(&group.upstream_slot))).then(|| Trouble::WrongRole {
        reason: format!(
            "it is a relay of another primary than the one that was named: group {} streams from {}",
            first.name,
            first.primary.as_deref().unwrap_or("elsewhere")
        ),
    })
}

/// The server's clock less ours, and the largest error of that, both in milliseconds. The
/// quickest answer tells it best.
fn clock(samples: &[Sample]) -> Option<(f64, f64)> {
    let best = samples.iter().min_by_key(|sample| sample.round_trip)?;
    Some((
        best.clock_offset_us as f64 / 1000.0,
        best.round_trip.as_secs_f64() * 500.0,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Facts;
    use lockstep_wire::Lsn;

    fn node(role: Role, system: &str, offset_ms: i64, round_trip_ms: u64) -> NodeWindow {
        let sample = |extra: i64, round_trip| Sample {
            clock_offset_us: (offset_ms + extra) * 1000,
            round_trip: Duration::from_millis(round_trip),
            ..Sample::default()
        };
        NodeWindow {
            name: role.to_string(),
            role,
            facts: Facts {
                system: system.to_owned(),
                ..Facts::default()
            },
            // A slow answer says little about the clock.
            samples: vec![sample(900, 2000), sample(0, round_trip_ms)],
            ..NodeWindow::empty("", role)
        }
    }

    #[test]
    fn a_reply_is_awaited_of_what_only_receives() {
        let awaited = |written: u64, replay: Option<u64>, replies: [i64; 2]| {
            let samples = replies.map(|reply| {
                let mut sample = Sample::default();
                sample.wal.flush = Some(Lsn::from(100));
                sample.senders = vec![Sender {
                    state: Some(SenderState::Streaming),
                    write_lsn: Some(Lsn::from(written)),
                    replay_lsn: replay.map(Lsn::from),
                    replied_us: Some(reply),
                    ..Sender::default()
                }];
                sample
            });
            awaits_reply(&NodeWindow {
                samples: samples.into(),
                ..NodeWindow::empty("primary", Role::Primary)
            })
        };
        assert!(awaited(90, None, [1, 1]));
        assert!(!awaited(90, None, [1, 2]));
        assert!(!awaited(100, None, [1, 1]));
        // A standby, which replays, is asked itself.
        assert!(!awaited(90, Some(90), [1, 1]));
    }

    #[test]
    fn clocks_and_clusters_are_compared() {
        for (offset_ms, round_trip_ms, skewed) in [
            (5000, 10, true),
            (5150, 10, true),
            (5090, 10, false),
            (4000, 10, true),
            (5000, 10, true),
            (300, 1000, false),
        ] {
            let base = if offset_ms > 1000 { 5000 } else { 0 };
            let mut nodes = [
                node(Role::Primary, "1", base, 2),
                node(Role::Standby, "1", offset_ms, round_trip_ms),
            ];
            compare(&mut nodes);
            let found = !nodes[1].troubles.is_empty();
            assert_eq!(found, skewed && offset_ms != base, "{offset_ms}");
            assert!(nodes[0].troubles.is_empty());
        }
        let mut nodes = [
            node(Role::Primary, "1", 0, 2),
            node(Role::Standby, "2", 0, 2),
            node(Role::Subscriber, "3", 0, 2),
            node(Role::Standby, "", 0, 2),
        ];
        compare(&mut nodes);
        assert!(
            matches!(&nodes[1].troubles[..], [Trouble::OtherSystem { found, .. }] if found == "2")
        );
        assert!(nodes[2].troubles.is_empty() && nodes[3].troubles.is_empty());
    }
}
