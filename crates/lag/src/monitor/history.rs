//! How far behind each link was over the last hour.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use super::state::LinkState;

/// Moments kept of each link: one hour, at one moment a second.
pub const MOST_MOMENTS: usize = 3600;

/// Most links that are kept. Links that no longer exist count; the one that was last seen
/// longest ago is dropped first.
const MOST_LINKS: usize = 256;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Moment {
    /// Milliseconds since 1970, by our clock.
    pub at_ms: i64,
    /// The lag, as in [`LinkState::lag_ms`].
    pub lag_ms: f64,
    pub lag_bytes: u64,
    /// Bytes in each stage, in the order of [`LinkState::stages`].
    pub stage_bytes: [u64; 4],
    /// Milliseconds from commit to visible, if the heartbeat is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visible_ms: Option<f64>,
}

impl Moment {
    /// True if this moment shows more lag than `other`: of a step of time the worst moment stays.
    pub fn is_worse_than(&self, other: &Self) -> bool {
        (self.lag_ms, self.lag_bytes) > (other.lag_ms, other.lag_bytes)
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct LinkHistory {
    /// The link, as in [`LinkState::id`].
    pub id: String,
    /// Oldest first.
    pub moments: Vec<Moment>,
}

impl From<(i64, &LinkState)> for Moment {
    fn from((at_ms, link): (i64, &LinkState)) -> Self {
        Self {
            at_ms,
            lag_ms: link.lag_ms,
            lag_bytes: link.lag_bytes,
            stage_bytes: link.stages.each_ref().map(|stage| stage.bytes),
            visible_ms: link.visible_ms,
        }
    }
}

/// Moments of a link are in the order of their times: a clock that is set back takes along
/// those that have not come yet by it.
#[derive(Debug, Default)]
pub(super) struct History {
    links: BTreeMap<String, VecDeque<Moment>>,
}

impl History {
    pub(super) fn add(&mut self, at_ms: i64, links: &[LinkState]) {
        for link in links {
            let moments = self.links.entry(link.id.clone()).or_default();
            while moments.back().is_some_and(|last| last.at_ms >= at_ms) {
                moments.pop_back();
            }
            if moments.len() >= MOST_MOMENTS {
                moments.pop_front();
            }
            moments.push_back(Moment::from((at_ms, link)));
        }
        while self.links.len() > MOST_LINKS {
            let last = |moments: &VecDeque<Moment>| moments.back().map_or(0, |m| m.at_ms);
            let oldest = self.links.iter().min_by_key(|(_, moments)| last(moments));
            let Some(id) = oldest.map(|(id, _)| id.clone()) else {
                return;
            };
            self.links.remove(&id);
        }
    }

    /// Moments later than `since_ms`.
    pub(super) fn since(&self, since_ms: i64) -> Vec<LinkHistory> {
        let after = |moments: &VecDeque<Moment>| {
            let from = moments.partition_point(|moment| moment.at_ms <= since_ms);
            moments.iter().skip(from).cloned().collect::<Vec<_>>()
        };
        self.links
            .iter()
            .map(|(id, moments)| LinkHistory {
                id: id.clone(),
                moments: after(moments),
            })
            .filter(|link| !link.moments.is_empty())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_back_hides_nothing() {
        let mut history = History::default();
        for at_ms in [1000, 2000, 3000, 2000, 2500] {
            history.add(at_ms, &[LinkState::named("a")]);
        }
        let times = |since_ms| -> Vec<i64> {
            let links = history.since(since_ms);
            links[0].moments.iter().map(|one| one.at_ms).collect()
        };
        assert_eq!(times(-1), [1000, 2000, 2500]);
        assert_eq!(times(2000), [2500]);
    }

    #[test]
    fn history_is_bounded_and_read_from_a_time_on() {
        let mut history = History::default();
        for at_ms in 0..(MOST_MOMENTS as i64 + 10) {
            history.add(at_ms, &[LinkState::named("a")]);
        }
        let all = history.since(-1);
        assert_eq!((all.len(), all[0].moments.len()), (1, MOST_MOMENTS));
        assert_eq!(all[0].moments[0].at_ms, 10);
        assert_eq!(history.since(MOST_MOMENTS as i64 + 7)[0].moments.len(), 2);
        assert!(history.since(i64::MAX).is_empty());
        for link in 0..300 {
            history.add(link + 10_000, &[LinkState::named(&format!("b{link}"))]);
        }
        let kept = history.since(-1);
        assert_eq!(kept.len(), MOST_LINKS);
        assert!(kept.iter().all(|link| link.id != "a"));
    }
}
