//! The thread of one node: it keeps samples of the last seconds, and ends of WAL from longer
//! ago.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Asked, MonitorParts, lock};
use crate::Result;
use crate::node::{Role, Trouble};
use crate::node_sampler::NodeSampler;
use crate::sample::Sample;
use crate::window::EVERY;
use crate::window::{Glance, NodeWindow};

/// Pause before another attempt to connect.
const RETRY: Duration = Duration::from_secs(1);

/// How long ends of WAL are kept. No lag is shown as longer than this.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// Ends of WAL that are older than the window are kept this far apart.
const APART: Duration = Duration::from_secs(1);

/// Asks the node until the monitor ends, or does not want it any more.
pub(super) fn run(shared: &MonitorParts, one: &Asked) {
    let mut lost_at = None;
    loop {
        match follow(shared, one, lost_at) {
            Ok(()) => return,
            Err(error) => {
                lost_at = Some(Instant::now());
                // What was known of a node that does not answer is no longer true.
                lock(&one.window).troubles = vec![error.trouble()];
            }
        }
        if !goes_on(shared, one, RETRY) {
            return;
        }
    }
}

/// Waits; false if this is the end.
fn goes_on(shared: &MonitorParts, one: &Asked, time: Duration) -> bool {
    shared.pause(time) && !one.over.load(Ordering::Relaxed)
}

/// One connection, until it is lost or this is the end.
fn follow(shared: &MonitorParts, one: &Asked, lost_at: Option<Instant>) -> Result<()> {
    let node = &one.node;
    let settings = &shared.settings;
    let mut sampler = NodeSampler::connect(node, &settings.application_name)?;
    let mut restarted = false;
    with(one, |window| {
        restarted = window.facts.is_restarted(sampler.facts());
        window.facts = sampler.facts().clone();
        // The server may be another one than before the connection was lost.
        window.samples.clear();
    });
    loop {
        let asked = Instant::now();
        let sample = sampler.sample(shared.began)?;
        let mut troubles = sampler.gaps().to_vec();
        troubles.extend(sampler.mismatch(&sample));
        if let Some(lost_at) = lost_at.filter(|at| at.elapsed() < settings.window) {
            troubles.push(Trouble::Interrupted {
                reason: format!("{} s ago", lost_at.elapsed().as_secs()),
                restarted,
            });
        }
        let is_upstream =
            matches!(node.role, Role::Primary | Role::Relay) || !sample.senders.is_empty();
        with(one, |window| {
            window.troubles = troubles;
            add(window, sample, settings.window);
        });
        let next = asked + settings.every;
        while Instant::now() < next {
            let left = next.saturating_duration_since(Instant::now());
            if !goes_on(shared, one, left.min(EVERY)) {
                return Ok(());
            }
            if is_upstream && Instant::now() + EVERY / 2 < next {
                let glances = sampler.glance(shared.began)?;
                with(one, |window| {
                    for (group, glance) in glances {
                        window.glanced(group, glance);
                    }
                });
            }
        }
    }
}

fn with(one: &Asked, change: impl FnOnce(&mut NodeWindow)) {
    change(&mut lock(&one.window));
}

/// Adds a sample and drops what is too old.
fn add(window: &mut NodeWindow, sample: Sample, length: Duration) {
    let now = sample.at;
    let groups = sample.relay.iter().flat_map(|relay| &relay.groups);
    let ends: Vec<_> = groups
        .filter_map(|group| Some((Some(group.name.clone()), group.end()?)))
        .chain(sample.end().map(|end| (None, end)))
        .collect();
    for (group, end) in ends {
        window.glanced(group, Glance { at: now, end });
    }
    let oldest = now.saturating_sub(length);
    window.samples.retain(|sample| sample.at >= oldest);
    window.keep(sample);
    let forgotten = now.saturating_sub(REMEMBERED);
    thin(&mut window.glances, oldest, forgotten);
    window.group_glances.retain(|_, glances| {
        thin(glances, oldest, forgotten);
        !glances.is_empty()
    });
}

/// Drops ends older than `forgotten`, and of those older than `sparse` each that follows
/// another within [`APART`]. The first of several stays, because it gives the longest age.
fn thin(glances: &mut Vec<Glance>, sparse: Duration, forgotten: Duration) {
    let mut last: Option<Duration> = None;
    glances.retain(|glance| {
        let soon = last.is_some_and(|last| glance.at < last + APART);
        let keep = glance.at >= sparse || (glance.at >= forgotten && !soon);
        if keep {
            last = Some(glance.at);
        }
        keep
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::{Group, Relay};
    use lockstep_wire::Lsn;

    #[test]
    fn old_ends_are_thinned_and_then_forgotten() {
        let mut glances: Vec<Glance> = (0..100)
            .map(|tenth| Glance {
                at: Duration::from_millis(100 * tenth),
                end: Lsn::from(tenth),
            })
            .collect();
        thin(&mut glances, Duration::from_secs(8), Duration::from_secs(3));
        let times: Vec<u128> = glances.iter().map(|glance| glance.at.as_millis()).collect();
        let mut expected = vec![3000, 4000, 5000, 6000, 7000];
        expected.extend((80..100).map(|tenth| tenth * 100));
        assert_eq!(times, expected);
    }

    #[test]
    fn samples_outside_the_window_go() {
        let mut window = NodeWindow::empty("n", Role::Primary);
        for second in 0..10 {
            let sample = Sample {
                at: Duration::from_secs(second),
                ..Sample::default()
            };
            add(&mut window, sample, Duration::from_secs(3));
        }
        let times: Vec<u64> = window.samples.iter().map(|s| s.at.as_secs()).collect();
        assert_eq!(times, [6, 7, 8, 9]);
    }

    #[test]
    fn ends_of_a_relay_s_groups_are_remembered() {
        let mut window = NodeWindow::empty("n", Role::Relay);
        for second in 0..20 {
            let group = |name: &str, end: u64| Group {
                name: name.to_owned(),
                received: Some(Lsn::from(end)),
                ..Group::default()
            };
            let sample = Sample {
                at: Duration::from_secs(second),
                relay: Some(Relay {
                    groups: vec![group("a", 100 + second), group("b", 7)],
                    ..Relay::default()
                }),
                ..Sample::default()
            };
            add(&mut window, sample, Duration::from_secs(3));
        }
        let now = Duration::from_secs(19);
        assert_eq!(window.samples.len(), 4);
        // Ends from before the samples.
        for (group, position, seconds) in [("a", 104, 14), ("a", 119, 0), ("b", 6, 19), ("b", 7, 0)]
        {
            let age = window.age_beyond(Some(group), Lsn::from(position), now);
            assert_eq!(age, Duration::from_secs(seconds), "{group} {position}");
        }
        assert_eq!(window.end_at(Some("b"), now), Some(Lsn::from(7)));
        assert_eq!(window.end_at(Some("c"), now), None);
    }
}
