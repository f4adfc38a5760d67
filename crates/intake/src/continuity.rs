//! Whether a source's slot continues what the log has. No I/O.
//!
//! | found | [`Gap`] |
//! |---|---|
//! | another system identifier | `OtherCluster` |
//! | a timeline before the log's | `LeftBehind`: an old primary |
//! | WAL that parts from the log's before the log's end, by the histories of both timelines | `Unrelated`, `Forked`: the log has transactions that this source never had |
//! | the log's timeline, and less WAL than the log has | `SetBack` |
//! | no slot | `NoSlot`: what was committed since is not kept |
//! | a slot of another plugin or database, or one that was invalidated | `NotOurs`, `Invalidated` |
//! | a slot that has confirmed more than the log has | `Ahead`: the difference is lost |
//! | otherwise | none: the stream goes on, from where the slot stands |
//!
//! A timeline's number alone says little: two standbys of the same primary can both be promoted
//! to timeline 2. What tells them apart is where each timeline in the history ended.
//!
//! A source that never had the followed timeline is refused, also if nothing was received on that: so
//! does PostgreSQL's own standby. It may be followed after a failover that came to nothing, by one more.
//!
//! Two servers may also have the same history and differ nevertheless: one that was restored
//! from an older copy of its files has written other WAL since, and two standbys may be promoted
//! at the same position. So the stream is asked for from where the slot stands, and
//! what is sent again is held against the log ([`crate::overlap`]). After a crash of the source
//! its slot often stands a little back, and what it sends again is what the log has.

use lockstep_client::history::{Left, left};
use lockstep_client::{Identity, SlotState, Switch};
use lockstep_wire::{Lsn, Timeline};

/// A history as files have it.
pub fn written_history(history: &[Switch]) -> Vec<(u32, String)> {
    history
        .iter()
        .map(|switch| (switch.timeline.get(), switch.at.to_string()))
        .collect()
}

/// A history from a file; None if it makes no sense.
pub fn read_history(written: &[(u32, String)]) -> Option<Vec<Switch>> {
    written
        .iter()
        .map(|(timeline, at)| {
            Some(Switch {
                timeline: Timeline::new(*timeline)?,
                at: at.parse().ok()?,
            })
        })
        .collect()
}

/// What is known of the source that was followed so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowedSource {
    /// The source's system identifier; None if it was not noted.
    pub system: Option<String>,
    /// The timeline that the end was received on; None if it was not noted.
    pub timeline: Option<Timeline>,
    /// Timelines that this one came from, and where each ended; None if it was not noted.
    pub history: Option<Vec<Switch>>,
    /// All that the source had up to here was received; `0/0` if nothing is known.
    pub received: Lsn,
    /// Plugin and database of the slot. None if a source that does not list the slot may have it all
    /// the same, as a relay does.
    pub slot: Option<SlotKind>,
}

/// What a slot decodes, and with which plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotKind {
    pub plugin: String,
    pub database: String,
}

/// What a source says before it streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFound {
    /// The source's system identifier and timeline.
    pub identity: Identity,
    /// Timelines that its own came from, and where each ended.
    pub history: Vec<Switch>,
    /// The slot, if the source lists it.
    pub slot: Option<SlotState>,
    /// A standby may only have to catch up: the end of its WAL says nothing.
    pub is_standby: bool,
}

/// Why the stream must not go on: transactions would be missing, or were received that this source
/// never kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gap {
    /// The source is of another cluster than this.
    OtherCluster { expected: String },
    /// The source is on an earlier timeline than this.
    LeftBehind { followed: Timeline },
    /// The source's timeline does not come from this one.
    Unrelated { followed: Timeline },
    /// The source's timeline left this one at `at`, before what was received.
    Forked { followed: Timeline, at: Lsn },
    /// The source's WAL ends before what was received.
    SetBack,
    /// The source does not have the slot.
    NoSlot,
    /// The slot has another plugin or database.
    NotOurs(Box<SlotState>),
    /// The source has invalidated the slot, in its words.
    Invalidated(String),
    /// The slot has confirmed more than was received.
    Ahead { confirmed: Lsn },
}

/// Why the stream must not go on; None if it can.
pub fn gap(followed: &FollowedSource, found: &SourceFound) -> Option<Gap> {
    let now = &found.identity;
    if let Some(system) = &followed.system {
        if *system != now.system.to_string() {
            let expected = system.clone();
            return Some(Gap::OtherCluster { expected });
        }
    }
    let wal = || wal_gap(followed, found);
    let is_known = followed.received.is_valid();
    is_known
        .then(wal)
        .flatten()
        .or_else(|| slot_gap(followed, found.slot.as_ref()))
}

/// Whether the source has all WAL that was received.
fn wal_gap(followed: &FollowedSource, found: &SourceFound) -> Option<Gap> {
    let (now, received) = (&found.identity, followed.received);
    if let Some(followed_on) = followed.timeline {
        if now.timeline < followed_on {
            return Some(Gap::LeftBehind {
                followed: followed_on,
            });
        }
        let history = followed.history.as_deref();
        match left((followed_on, history), (now.timeline, &found.history)) {
            Left::Unrelated => {
                return Some(Gap::Unrelated {
                    followed: followed_on,
                });
            }
            Left::At(at) if received > at => {
                return Some(Gap::Forked {
                    followed: followed_on,
                    at,
                });
            }
            Left::At(_) | Left::Never => {}
        }
    }
    let is_same = followed.timeline.is_none_or(|on| on == now.timeline);
    (is_same && !found.is_standby && now.end < received).then_some(Gap::SetBack)
}

/// Whether the slot keeps all that follows what was received.
fn slot_gap(followed: &FollowedSource, slot: Option<&SlotState>) -> Option<Gap> {
    let Some(slot) = slot else {
        return followed.slot.is_some().then_some(Gap::NoSlot);
    };
    if let Some(SlotKind { plugin, database }) = &followed.slot {
        if slot.plugin.as_ref() != Some(plugin) || slot.database.as_ref() != Some(database) {
            return Some(Gap::NotOurs(Box::new(slot.clone())));
        }
    }
    if let Some(why) = &slot.invalidation {
        return Some(Gap::Invalidated(why.clone()));
    }
    let (confirmed, received) = (slot.confirmed, followed.received);
    (received.is_valid() && confirmed > received).then_some(Gap::Ahead { confirmed })
}

#[cfg(test)]
mod tests {
    use lockstep_wire::SystemId;

    use super::*;

    fn timeline(number: u32) -> Timeline {
        Timeline::new(number).unwrap()
    }

    /// Timelines, and where each ended.
    fn history(ends: &[(u32, u64)]) -> Vec<Switch> {
        let switch = |&(number, at): &(u32, u64)| Switch {
            timeline: timeline(number),
            at: at.into(),
        };
        ends.iter().map(switch).collect()
    }

    /// A log, and the source that it came from.
    fn both() -> (FollowedSource, SourceFound) {
        let slot = SlotKind {
            plugin: "lockstep".to_owned(),
            database: "app".to_owned(),
        };
        let found = SlotState {
            plugin: Some(slot.plugin.clone()),
            database: Some(slot.database.clone()),
            confirmed: 100.into(),
            restart: 50.into(),
            ..SlotState::default()
        };
        let followed = FollowedSource {
            system: Some("1".to_owned()),
            timeline: Some(timeline(2)),
            history: Some(history(&[(1, 40)])),
            received: 100.into(),
            slot: Some(slot),
        };
        let identity = Identity {
            system: SystemId::from(1),
            timeline: timeline(2),
            end: 500.into(),
            database: Some("app".to_owned()),
        };
        let found = SourceFound {
            identity,
            history: history(&[(1, 40)]),
            slot: Some(found),
            is_standby: false,
        };
        (followed, found)
    }

    /// The gap once the change is made to both.
    fn after(change: impl Fn(&mut FollowedSource, &mut SourceFound)) -> Option<Gap> {
        let (mut followed, mut found) = both();
        change(&mut followed, &mut found);
        gap(&followed, &found)
    }

    #[test]
    fn a_source_that_continues_the_log_is_followed() {
        type Change = fn(&mut FollowedSource, &mut SourceFound);
        let changes: [Change; 7] = [
            |_, _| {},
            |_, found| {
                found.identity.timeline = timeline(3);
                found.history = history(&[(1, 40), (2, 100)]);
            },
            |_, found| found.slot.as_mut().unwrap().confirmed = 90.into(),
            |_, found| (found.identity.end, found.is_standby) = (99.into(), true),
            // A source that does not list the slot may have it all the same.
            |followed, found| (followed.slot, found.slot) = (None, None),
            // State of before a timeline was noted.
            |followed, _| followed.timeline = None,
            // Nothing is known, so that nothing can be missing.
            |followed, found| {
                (followed.system, followed.timeline) = (None, None);
                followed.received = Lsn::INVALID;
                found.slot.as_mut().unwrap().confirmed = 500.into();
            },
        ];
        for (number, change) in changes.into_iter().enumerate() {
            assert_eq!(after(change), None, "change {number}");
        }
    }

    #[test]
    fn a_source_that_does_not_is_refused() {
        let followed = timeline(2);
        let expected = "1".to_owned();
        for (found, expected) in [
            (
                after(|_, found| found.identity.system = SystemId::from(2)),
                Gap::OtherCluster { expected },
            ),
            (
                after(|_, found| found.identity.timeline = timeline(1)),
                Gap::LeftBehind { followed },
            ),
            (
                after(|_, found| found.identity.timeline = timeline(3)),
                Gap::Unrelated { followed },
            ),
            (
                after(|_, found| found.identity.end = 99.into()),
                Gap::SetBack,
            ),
            (after(|_, found| found.slot = None), Gap::NoSlot),
            (
                after(|_, found| found.slot.as_mut().unwrap().confirmed = 101.into()),
                Gap::Ahead {
                    confirmed: 101.into(),
                },
            ),
        ] {
            assert_eq!(found, Some(expected));
        }
        let other_plugin = after(|_, found| found.slot.as_mut().unwrap().plugin = None);
        let other_database = after(|_, found| found.slot.as_mut().unwrap().database = None);
        for found in [other_plugin, other_database] {
            assert!(matches!(found, Some(Gap::NotOurs(_))), "{found:?}");
        }
    }

    #[test]
    fn an_invalidated_slot_is_refused_whatever_is_known() {
        for received in [Lsn::INVALID, 100.into()] {
            let found = after(|followed, found| {
                followed.received = received;
                found.slot.as_mut().unwrap().invalidation = Some("x".to_owned());
            });
            assert_eq!(found, Some(Gap::Invalidated("x".to_owned())));
        }
    }

    #[test]
    fn a_fork_matters_only_if_the_log_goes_beyond_it() {
        for (received, noted, ends, now, fork) in [
            // Another timeline 2.
            (100, true, &[(1, 60)][..], 2, Some(40)),
            (41, true, &[(1, 60)], 2, Some(40)),
            (40, true, &[(1, 60)], 2, None),
            (100, true, &[(1, 40), (2, 99)], 3, Some(99)),
            // A log of an earlier version does not know where its timeline began.
            (100, false, &[(1, 60)], 2, None),
            (100, false, &[(1, 60), (2, 100)], 3, None),
            (101, false, &[(1, 60), (2, 100)], 3, Some(100)),
            (100, true, &[(1, 60), (2, 100)], 3, Some(40)),
        ] {
            let found = after(|followed, found| {
                followed.received = received.into();
                followed.history = followed.history.take().filter(|_| noted);
                found.identity.timeline = timeline(now);
                found.history = history(ends);
                found.slot.as_mut().unwrap().confirmed = 30.into();
            });
            let expected = fork.map(|at: u64| Gap::Forked {
                followed: timeline(2),
                at: at.into(),
            });
            assert_eq!(found, expected, "{received} {noted} {ends:?} {now}");
        }
    }
}
