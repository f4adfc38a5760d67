//! When `pg_wal` fills its disk and when a slot is in danger, if all goes on as it did while this server
//! watched. No I/O, no clock: time is that of the states.

use std::collections::{BTreeMap, VecDeque};

use lockstep_lag::monitor::MonitorState;
use serde::Serialize;

/// Least time between two figures that are kept, milliseconds: a node's `pg_wal` is looked at as often.
const STEP_MS: i64 = 15_000;

/// Time that is looked back, milliseconds.
const REACH_MS: i64 = 3_600_000;

/// Time in which a change that has just begun is seen, milliseconds.
const RECENT_MS: i64 = 600_000;

/// Least time from which anything is forecast, milliseconds: a checkpoint takes minutes.
const LEAST_MS: i64 = 300_000;

/// Most figures that are kept of one thing.
const MOST: usize = (REACH_MS / STEP_MS) as usize + 1;

/// Most slots that are watched.
const MOST_SLOTS: usize = 1_000;

/// Later than this is never, milliseconds: 30 days.
const FARTHEST_MS: f64 = 30.0 * 86_400_000.0;

/// What is to come.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Forecast {
    pub nodes: Vec<Folder>,
    pub slots: Vec<Room>,
}

/// `pg_wal` of a node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Folder {
    pub node: String,
    pub bytes: u64,
    /// How fast it grows; negative if it shrinks. None before five minutes were seen.
    pub growth_bytes_per_s: Option<f64>,
    /// The size that it can have, if that was given.
    pub limit_bytes: Option<u64>,
    /// The size up to which it may grow between checkpoints.
    pub max_wal_size_bytes: Option<u64>,
    /// Milliseconds until it has that size, 0 if it has; None if in more than 30 days, if checkpoints will
    /// end the growth before, or if it is not known.
    pub full_ms: Option<f64>,
}

/// The room that `max_slot_wal_keep_size` leaves to a slot.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Room {
    pub node: String,
    pub slot: String,
    pub safe_bytes: i64,
    /// How fast the room shrinks; negative if it grows. None before five minutes were seen.
    pub shrinks_bytes_per_s: Option<f64>,
    /// Milliseconds until none is left, 0 if none is; None if in more than 30 days or not known.
    pub danger_ms: Option<f64>,
}

/// Figures over time, the oldest first.
#[derive(Debug, Default)]
struct Series(VecDeque<(i64, f64)>);

impl Series {
    fn take(&mut self, at_ms: i64, figure: f64) {
        match self.0.back_mut() {
            // A clock that was set back begins anew.
            Some((last, _)) if at_ms < *last => self.0.clear(),
            Some((last, _)) if at_ms - *last < STEP_MS => return,
            _ => {}
        }
        self.0.push_back((at_ms, figure));
        while self.0.len() > MOST || self.0.front().is_some_and(|(at, _)| at_ms - at > REACH_MS) {
            self.0.pop_front();
        }
    }

    /// The highest figure after a time, up to another one.
    fn highest(&self, after_ms: i64, to_ms: i64) -> Option<f64> {
        let seen = self
            .0
            .iter()
            .filter(|(at, _)| (after_ms + 1..=to_ms).contains(at));
        seen.map(|(_, figure)| *figure).reduce(f64::max)
    }

    /// Growth a second of the highest figure, from one time of this length to the next: what goes up and down
    /// with checkpoints does not grow.
    fn rise(&self, last_ms: i64, length_ms: i64) -> Option<f64> {
        let middle = last_ms - length_ms;
        let before = self.highest(middle - length_ms - 1, middle)?;
        Some((self.highest(middle, last_ms)? - before) / (length_ms as f64 / 1000.0))
    }

    /// The growth over all that is kept, or that of the last minutes if these have the highest figure of all:
    /// whichever is faster, so that no forecast is too late.
    fn growth(&self) -> Option<f64> {
        let (first, last) = (self.0.front()?.0, self.0.back()?.0);
        if last - first < LEAST_MS {
            return None;
        }
        let half = (last - first) / 2;
        let all = self.rise(last, half)?;
        let since = last - RECENT_MS;
        let is_record = self.highest(since, last) > self.highest(first - 1, since);
        let recent = self
            .rise(last, RECENT_MS)
            .filter(|_| half > RECENT_MS && is_record);
        Some(recent.map_or(all, |recent| recent.max(all)))
    }
}

/// Milliseconds until so much is used up: none if nothing is left.
fn until(bytes: f64, bytes_per_s: Option<f64>) -> Option<f64> {
    if bytes <= 0.0 {
        return Some(0.0);
    }
    let rate = bytes_per_s.filter(|rate| *rate > 0.0)?;
    let ms = bytes / rate * 1000.0;
    (ms <= FARTHEST_MS).then_some(ms)
}

/// Remembers sizes, and forecasts.
#[derive(Debug, Default)]
pub struct Forecaster {
    /// Sizes that `pg_wal` can have, by node.
    limits: BTreeMap<String, u64>,
    folders: BTreeMap<String, Series>,
    /// Bytes that are used of a slot's room, by node and slot.
    slots: BTreeMap<(String, String), Series>,
}

impl Forecaster {
    pub fn new(limits: BTreeMap<String, u64>) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Takes a state, and says what is to come.
    pub fn take(&mut self, state: &MonitorState) -> Forecast {
        let mut forecast = Forecast::default();
        for node in state.nodes.iter().filter(|node| node.usable) {
            if let Some(folder) = node.wal_folder {
                let series = self.folders.entry(node.name.clone()).or_default();
                series.take(state.at_ms, folder.bytes as f64);
                let growth = series.growth();
                let limit = self.limits.get(&node.name).copied();
                let checkpoints_end_it = |limit: u64| {
                    let most = node.max_wal_size_bytes;
                    // Under load it may be a little larger for a while.
                    most.is_some_and(|most| folder.bytes <= most + most / 4 && most < limit)
                };
                let growth_to = |limit| growth.filter(|_| !checkpoints_end_it(limit));
                let full = |limit| until(limit as f64 - folder.bytes as f64, growth_to(limit));
                forecast.nodes.push(Folder {
                    node: node.name.clone(),
                    bytes: folder.bytes,
                    growth_bytes_per_s: growth,
                    limit_bytes: limit,
                    max_wal_size_bytes: node.max_wal_size_bytes,
                    full_ms: limit.and_then(full),
                });
            }
            for slot in &node.slots {
                let Some(safe) = slot.safe_wal_size else {
                    continue;
                };
                let key = (node.name.clone(), slot.slot_name.clone());
                if self.slots.len() >= MOST_SLOTS && !self.slots.contains_key(&key) {
                    continue;
                }
                let series = self.slots.entry(key).or_default();
                series.take(state.at_ms, -(safe as f64));
                let shrinks = series.growth();
                forecast.slots.push(Room {
                    node: node.name.clone(),
                    slot: slot.slot_name.clone(),
                    safe_bytes: safe,
                    shrinks_bytes_per_s: shrinks,
                    danger_ms: until(safe as f64, shrinks),
                });
            }
        }
        // A slot that is gone is forgotten, so that another with its name begins anew.
        let is_there = |(node, slot): &(String, String)| {
            let lost = state.nodes.iter().any(|it| it.name == *node && !it.usable);
            let mut slots = forecast.slots.iter();
            lost || slots.any(|room| room.node == *node && room.slot == *slot)
        };
        self.slots.retain(|key, _| is_there(key));
        forecast
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example;

    const MB: u64 = 1 << 20;

    /// What is forecast after so many seconds in which `pg_wal` of the primary had this size each second, and
    /// its slot so much room.
    fn after(seconds: i64, size: impl Fn(i64) -> u64, room: impl Fn(i64) -> i64) -> Forecast {
        let limits = [("primary".to_owned(), 2_000 * MB)].into();
        let mut forecaster = Forecaster::new(limits);
        let mut forecast = Forecast::default();
        for second in 0..=seconds {
            let mut state = example::state();
            state.at_ms += second * 1000;
            let primary = &mut state.nodes[0];
            primary.wal_folder.as_mut().unwrap().bytes = size(second);
            primary.slots[0].safe_wal_size = Some(room(second));
            forecast = forecaster.take(&state);
        }
        forecast
    }

    fn minutes(ms: Option<f64>) -> Option<f64> {
        ms.map(|ms| (ms / 60_000.0).round())
    }

    #[test]
    fn a_disk_and_a_slot_are_full_when_the_line_says() {
        let found = after(1_200, |s| MB * s as u64, |s| (2_000 - s) * MB as i64);
        let (folder, room) = (&found.nodes[0], &found.slots[0]);
        assert_eq!(folder.growth_bytes_per_s.map(f64::round), Some(MB as f64));
        // 800 MB are left at 1 MB a second.
        assert_eq!(minutes(folder.full_ms), Some(13.0), "{folder:?}");
        assert_eq!(minutes(room.danger_ms), Some(13.0), "{room:?}");
        // Nobody has said how large the other disks are.
        assert!(found.nodes[1].full_ms.is_none() && found.nodes[1].limit_bytes.is_none());
    }

    #[test]
    fn growth_that_checkpoints_end_fills_nothing() {
        // The disk, and max_wal_size, in megabytes.
        for (limit, most, expected) in [
            (2_000, 900, Some(13.0)),
            (2_000, 1_500, None),
            // Under load it is a little larger for a while.
            (2_000, 1_000, None),
            // The disk has no room for what checkpoints allow.
            (2_000, 4_000, Some(13.0)),
            (1_000, 4_000, Some(0.0)),
        ] {
            let limits = BTreeMap::from([("primary".to_owned(), limit * MB)]);
            let mut forecaster = Forecaster::new(limits);
            let mut forecast = Forecast::default();
            for second in (0..=1_200).step_by(15) {
                let mut state = example::state();
                state.at_ms += second * 1000;
                state.nodes[0].max_wal_size_bytes = Some(most * MB);
                state.nodes[0].wal_folder.as_mut().unwrap().bytes = second as u64 * MB;
                forecast = forecaster.take(&state);
            }
            assert_eq!(
                minutes(forecast.nodes[0].full_ms),
                expected,
                "{limit} {most}"
            );
        }
    }

    #[test]
    fn what_is_used_up_is_full_now() {
        for seconds in [0, 1_200] {
            let found = after(seconds, |_| 2_000 * MB, |_| 0);
            let (folder, room) = (&found.nodes[0], &found.slots[0]);
            assert_eq!(
                (folder.full_ms, room.danger_ms),
                (Some(0.0), Some(0.0)),
                "{found:?}"
            );
        }
    }

    #[test]
    fn a_growth_that_has_just_begun_is_seen() {
        let size = |s: i64| MB * (500 + (s - 3_000).max(0) as u64);
        let found = after(3_600, size, |_| 0);
        let growth = found.nodes[0].growth_bytes_per_s.unwrap() / MB as f64;
        assert!((0.9..=1.1).contains(&growth), "{growth}");
    }

    #[test]
    fn what_goes_up_and_down_is_never_full() {
        // Checkpoints each five minutes.
        let found = after(3_600, |s| MB * (500 + s as u64 % 300), |_| 700 * MB as i64);
        let growth = found.nodes[0].growth_bytes_per_s.unwrap();
        assert!(growth < 0.2 * MB as f64, "{growth}");
        assert_eq!(found.slots[0].danger_ms, None);
        let shrinks = after(3_600, |s| MB * (4_000 - s as u64), |s| s * MB as i64);
        assert_eq!(
            (shrinks.nodes[0].full_ms, shrinks.slots[0].danger_ms),
            (None, None)
        );
    }

    #[test]
    fn nothing_is_forecast_of_a_short_time_or_a_slot_made_anew() {
        let found = after(200, |s| MB * s as u64, |s| (2_000 - s) * MB as i64);
        assert_eq!(found.nodes[0].growth_bytes_per_s, None);
        assert_eq!(found.slots[0].danger_ms, None);

        let mut forecaster = Forecaster::default();
        let mut state = example::state();
        for second in 0..600 {
            state.at_ms += 1000;
            state.nodes[0].slots[0].safe_wal_size = Some((2_000 - second) * MB as i64);
            forecaster.take(&state);
        }
        let slots = std::mem::take(&mut state.nodes[0].slots);
        forecaster.take(&state);
        state.nodes[0].slots = slots;
        assert_eq!(forecaster.take(&state).slots[0].shrinks_bytes_per_s, None);
        // While a node does not answer nothing is forgotten.
        assert!(forecaster.folders.contains_key("primary"));
        state.nodes[0].usable = false;
        assert!(
            forecaster
                .take(&state)
                .nodes
                .iter()
                .all(|it| it.node != "primary")
        );
        assert_eq!(forecaster.slots.len(), 1);
    }

    #[test]
    fn no_more_is_kept_than_is_looked_at() {
        let mut series = Series::default();
        for second in 0..20_000 {
            series.take(second * 1000, second as f64);
        }
        assert!(series.0.len() <= MOST, "{}", series.0.len());
        series.take(5, 1.0);
        assert_eq!(series.0.len(), 1);
    }
}
