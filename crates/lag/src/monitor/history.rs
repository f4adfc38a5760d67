//! How far behind each link was over the last hour.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::Serialize;

use super::state::LinkState;
use crate::window::Remembered;

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

/// Time for which a replica was there from which it is missed, in milliseconds: a backup or a copy of a table
/// comes and goes.
const LEAST_STAY_MS: i64 = 60_000;

/// Time after which a replica that is gone is forgotten, in milliseconds.
const FORGOTTEN_MS: i64 = 3_600_000;

/// Upstream and replica of a link.
#[derive(Debug, Default)]
struct Names {
    upstream: String,
    replica: String,
}

/// Moments of a link are in the order of their times: a clock that is set back takes along
/// those that have not come yet by it.
#[derive(Debug, Default)]
pub(super) struct History {
    links: BTreeMap<String, VecDeque<Moment>>,
    /// Names of those links.
    names: BTreeMap<String, Names>,
}

impl History {
    pub(super) fn add(&mut self, at_ms: i64, links: &[LinkState]) {
        for link in links {
            self.names.entry(link.id.clone()).or_insert_with(|| Names {
                upstream: link.upstream.clone(),
                replica: link.replica.clone(),
            });
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
            self.names.remove(&id);
        }
    }

    /// Replicas that were there for some time, and how long ago each was there last.
    pub(super) fn remembered(&self, at_ms: i64) -> Vec<Remembered> {
        let links = self.links.iter();
        let known = links.filter_map(|(id, moments)| {
            let (first, last) = (moments.front()?.at_ms, moments.back()?.at_ms);
            let away = at_ms.saturating_sub(last).max(0);
            let names = self.names.get(id)?;
            (last.saturating_sub(first) >= LEAST_STAY_MS && away < FORGOTTEN_MS).then(|| {
                Remembered {
                    upstream: names.upstream.clone(),
                    replica: names.replica.clone(),
                    away: Duration::from_millis(away.unsigned_abs()),
                }
            })
        });
        known.collect()
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
    fn who_stayed_is_remembered_for_an_hour() {
        let mut history = History::default();
        for second in 0..=120 {
            let mut links = vec![LinkState::named("stays")];
            if second < 50 {
                links.push(LinkState::named("backup"));
            }
            if second < 90 {
                links.push(LinkState::named("leaves"));
            }
            history.add(second * 1000, &links);
        }
        let known = |at_ms| -> Vec<(String, u64)> {
            let all = history.remembered(at_ms).into_iter();
            all.map(|it| (it.replica, it.away.as_secs())).collect()
        };
        let pair = |name: &str, seconds| (name.to_owned(), seconds);
        assert_eq!(known(121_000), [pair("leaves", 32), pair("stays", 1)]);
        assert_eq!(known(3_700_000), [pair("stays", 3580)]);
        assert_eq!(known(0), [pair("leaves", 0), pair("stays", 0)]);
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
