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
    /// Who it is.
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
