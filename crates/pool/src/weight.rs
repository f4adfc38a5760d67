//! How large a node's share of new sessions is, in percent of the weight that HAProxy knows for it.

use std::time::Duration;

/// The share with which a newcomer or a node that returns begins.
pub const FIRST_SHARE: f64 = 0.1;

/// Part of the bound up to which a node's share is whole: one that keeps up is not said to be older, however
/// seldom the primary is asked.
const FRESH: f64 = 2.0 / 3.0;

/// The share of a node at the bound, beside one that is fresh.
const AT_THE_BOUND: f64 = 0.5;

/// Use of the node's connections up to which its share is whole.
const COMFORTABLE: f64 = 0.5;

/// The share of a node whose connections are all in use.
const FULL: f64 = 0.1;

/// Sessions of a node, and how many it allows ordinary roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    pub sessions: u32,
    pub most: u32,
}

impl Load {
    /// Whether a new session of an ordinary role would be refused.
    pub fn is_full(self) -> bool {
        self.sessions >= self.most
    }
}

/// Goes from 1 at `from` to `least` at `to`.
fn falling(value: f64, from: f64, to: f64, least: f64) -> f64 {
    let way = ((value - from) / (to - from)).clamp(0.0, 1.0);
    1.0 - way * (1.0 - least)
}

fn ratio(part: Duration, whole: Duration) -> f64 {
    part.as_secs_f64() / whole.as_secs_f64().max(f64::MIN_POSITIVE)
}

/// Whole percent, at least 1: HAProxy takes 0 for a drained server.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn percent(share: f64) -> u8 {
    (share * 100.0).round().clamp(1.0, 100.0) as u8
}

/// The share of a node that is in: less the older its data is, the fuller it is, and at first.
/// `held_to` is the bound that it is held to; None on a node that may be late.
pub fn of_node_in(
    staleness: Duration,
    held_to: Option<Duration>,
    load: Option<Load>,
    since: Duration,
    rise: Duration,
) -> u8 {
    let fresh = held_to.map_or(1.0, |bound| {
        falling(ratio(staleness, bound), FRESH, 1.0, AT_THE_BOUND)
    });
    let free = load.map_or(1.0, |load| {
        let used = f64::from(load.sessions) / f64::from(load.most.max(1));
        falling(used, COMFORTABLE, 1.0, FULL)
    });
    let risen = match since < rise {
        true => FIRST_SHARE + (1.0 - FIRST_SHARE) * ratio(since, rise),
        false => 1.0,
    };
    percent(fresh * free * risen)
}

/// The share of a late node among late nodes: one that is ten times as late gets a tenth.
pub fn of_late_node(staleness: Option<Duration>, bound: Duration) -> u8 {
    staleness.map_or(1, |staleness| percent(ratio(bound, staleness)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn the_share_follows_age_load_and_time() {
        let bound = Some(s(1.0));
        let load = |sessions| {
            Some(Load {
                sessions,
                most: 100,
            })
        };
        let risen = s(60.0);
        for (staleness, load, since, expected) in [
            (0.1, None, risen, 100),
            (0.5, load(50), risen, 100),
            (0.66, None, risen, 100),
            (0.75, None, risen, 88),
            (1.0, None, risen, 50),
            (9.0, None, risen, 50),
            (0.1, load(75), risen, 55),
            (0.1, load(200), risen, 10),
            (0.1, None, s(0.0), 10),
            (0.1, None, s(15.0), 55),
            (1.0, load(100), s(0.0), 1),
        ] {
            let share = of_node_in(s(staleness), bound, load, since, s(30.0));
            assert_eq!(share, expected, "{staleness} {load:?} {since:?}");
        }
        assert_eq!(of_node_in(s(99.0), None, None, risen, s(30.0)), 100);
        assert_eq!(of_node_in(s(0.0), bound, None, s(0.0), s(0.0)), 100);
    }

    #[test]
    fn late_nodes_share_by_how_late_they_are() {
        for (staleness, expected) in [(Some(2.0), 50), (Some(10.0), 10), (Some(1e6), 1), (None, 1)]
        {
            assert_eq!(of_late_node(staleness.map(s), s(1.0)), expected);
        }
    }
}
