//! Whether a primary's slot continues what the log has. No I/O.
//!
//! | found | answer |
//! |---|---|
//! | another system identifier | refused: another cluster |
//! | a timeline before the log's | refused: an old primary that was left behind |
//! | the log's timeline, and less WAL than the log has | refused: the primary was set back |
//! | WAL that parts from the log's before the log's end, by the histories of both timelines | refused: the log has transactions that this primary never had |
//! | no slot | refused: what was committed since is not kept for the relay |
//! | a slot of another plugin or database, or one that was invalidated | refused |
//! | a slot that has confirmed more than the log has | refused: the difference is lost |
//! | otherwise | goes on, from where the slot stands |
//!
//! A timeline's number alone says little: two standbys of the same primary can both be promoted
//! to timeline 2. What tells them apart is where each timeline in the history ended.
//!
//! Two servers may also have the same history and differ nevertheless: one that was restored
//! from an older copy of its files has written other WAL since, and two standbys may be promoted
//! at the same position. So the stream is asked for from where the slot stands, and
//! what is sent again is held against the log (`crate::overlap`). After a crash of the primary
//! its slot often stands a little back, and what it sends again is what the log has.

use lockstep_client::history::{Left, left};
use lockstep_client::{Identity, SlotState, Switch};
use lockstep_wire::{Lsn, SystemId, Timeline};

/// What the log knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The slot on the primary.
    pub slot: String,
    pub plugin: String,
    pub database: String,
    pub system: SystemId,
    /// The timeline that the end of the log was received on.
    pub timeline: Timeline,
    /// Timelines that this one came from, and where each ended; None if it was not noted.
    pub history: Option<Vec<Switch>>,
    /// End of the log.
    pub received: Lsn,
}

/// What a primary says.
#[derive(Debug, Clone)]
pub struct Found {
    /// Who it is.
    pub identity: Identity,
    /// Timelines that its own came from, and where each ended.
    pub history: Vec<Switch>,
    /// The slot, if it is there.
    pub slot: Option<SlotState>,
}

/// Ok, or why the log must not go on from there: a sentence for the operator.
pub fn continues(known: &Known, found: &Found) -> Result<(), String> {
    let (name, received) = (&known.slot, known.received);
    let now = &found.identity;
    if now.system != known.system {
        return Err(format!(
            "the primary is of another cluster (system identifier {}, expected {}): \
             connect the relay to the right one, or give it an empty spool",
            now.system, known.system
        ));
    }
    if now.timeline < known.timeline {
        return Err(format!(
            "the primary is on timeline {}, the relay has seen timeline {}: an old primary \
             that was left behind; name the new one in the connection string",
            now.timeline, known.timeline
        ));
    }
    shares_wal(known, found)?;
    if now.timeline == known.timeline && now.end < received {
        return Err(format!(
            "the primary's WAL ends at {}, but the relay has its transactions up to {received}: \
             the primary was set back, as by a restored backup; subscribers may have what it \
             does not, so synchronise subscriptions anew",
            now.end
        ));
    }
    let Some(slot) = &found.slot else {
        return Err(format!(
            "replication slot \"{name}\" does not exist on the primary: transactions committed \
             since {received} would be lost without a word; if the slot was lost in a failover, \
             subscriptions must be synchronised anew (on PostgreSQL 17 and later a failover slot \
             prevents this)"
        ));
    };
    let is = |found: &Option<String>, expected: &String| found.as_ref() == Some(expected);
    if !is(&slot.plugin, &known.plugin) || !is(&slot.database, &known.database) {
        return Err(format!(
            "replication slot \"{name}\" is of plugin {} in database {}, expected {} in {}: \
             it is not the relay's",
            slot.plugin.as_deref().unwrap_or("none"),
            slot.database.as_deref().unwrap_or("none"),
            known.plugin,
            known.database
        ));
    }
    if let Some(why) = &slot.invalidation {
        return Err(format!(
            "replication slot \"{name}\" was invalidated by the primary ({why}): transactions \
             committed since {received} are lost to the relay; subscriptions must be \
             synchronised anew, and max_slot_wal_keep_size raised"
        ));
    }
    if slot.confirmed > received {
        return Err(format!(
            "replication slot \"{name}\" stands at {}, the relay's spool ends at {received}: \
             transactions between the two are lost; subscriptions must be synchronised anew",
            slot.confirmed
        ));
    }
    Ok(())
}

/// Whether the log's end is in the WAL that both timelines have.
fn shares_wal(known: &Known, found: &Found) -> Result<(), String> {
    let (old, new) = (known.timeline, found.identity.timeline);
    let history = known.history.as_deref();
    match left((old, history), (new, &found.history)) {
        Left::Unrelated => Err(format!(
            "the primary's timeline {new} does not come from timeline {old}, which the relay \
             followed: it is not this primary's successor"
        )),
        Left::At(fork) if known.received > fork => Err(format!(
            "the primary's timeline {new} left what the relay followed, timeline {old}, at \
             {fork}, but the relay has transactions up to {}: the new primary never had \
             them, and subscribers may; synchronise subscriptions anew (on PostgreSQL 17 and \
             later synchronized_standby_slots prevents this)",
            known.received
        )),
        Left::At(_) | Left::Never => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use lockstep_client::Switch;

    use super::*;

    fn timeline(number: u32) -> Timeline {
        Timeline::new(number).unwrap()
    }

    fn known() -> Known {
        Known {
            slot: "lockstep_g".to_owned(),
            plugin: "lockstep".to_owned(),
            database: "app".to_owned(),
            system: SystemId::from(1),
            timeline: timeline(2),
            history: Some(history(&[(1, 40)])),
            received: 100.into(),
        }
    }

    /// Timelines, and where each ended.
    fn history(ends: &[(u32, u64)]) -> Vec<Switch> {
        let switch = |&(number, at): &(u32, u64)| Switch {
            timeline: timeline(number),
            at: at.into(),
        };
        ends.iter().map(switch).collect()
    }

    fn found() -> Found {
        Found {
            identity: Identity {
                system: SystemId::from(1),
                timeline: timeline(2),
                end: 500.into(),
                database: Some("app".to_owned()),
            },
            history: history(&[(1, 40)]),
            slot: Some(SlotState {
                plugin: Some("lockstep".to_owned()),
                database: Some("app".to_owned()),
                temporary: false,
                active_pid: None,
                confirmed: 100.into(),
                restart: 50.into(),
                wal_status: None,
                invalidation: None,
                two_phase: false,
                failover: false,
                synced: false,
            }),
        }
    }

    #[test]
    fn a_primary_that_continues_the_log_is_followed() {
        assert_eq!(continues(&known(), &found()), Ok(()));
        let mut promoted = found();
        promoted.identity.timeline = timeline(3);
        promoted.history = history(&[(1, 40), (2, 100)]);
        promoted.slot.as_mut().unwrap().confirmed = 90.into();
        assert_eq!(continues(&known(), &promoted), Ok(()));
    }

    #[test]
    fn a_primary_that_does_not_is_refused_in_words() {
        let changed = |change: fn(&mut Found)| {
            let mut found = found();
            change(&mut found);
            continues(&known(), &found).unwrap_err()
        };
        let slot = |change: fn(&mut SlotState)| {
            let mut found = found();
            change(found.slot.as_mut().unwrap());
            continues(&known(), &found).unwrap_err()
        };
        for (said, word) in [
            (
                changed(|f| f.identity.system = SystemId::from(2)),
                "another cluster",
            ),
            (
                changed(|f| f.identity.timeline = timeline(1)),
                "left behind",
            ),
            (
                changed(|f| f.identity.timeline = timeline(3)),
                "does not come from",
            ),
            (
                changed(|f| {
                    f.identity.timeline = timeline(3);
                    f.history = history(&[(1, 40), (2, 99)]);
                }),
                "never had them",
            ),
            (changed(|f| f.identity.end = 99.into()), "was set back"),
            (changed(|f| f.slot = None), "does not exist"),
            (
                slot(|s| s.plugin = Some("pgoutput".to_owned())),
                "not the relay's",
            ),
            (slot(|s| s.database = None), "not the relay's"),
            (
                slot(|s| s.invalidation = Some("wal_removed".to_owned())),
                "invalidated",
            ),
            (
                slot(|s| s.confirmed = 101.into()),
                "between the two are lost",
            ),
        ] {
            assert!(said.contains(word), "{said}");
        }
    }

    #[test]
    fn a_fork_matters_only_if_the_log_goes_beyond_it() {
        let after = |received: u64, noted: bool, ends: &[(u32, u64)], now: u32| {
            let mut known = known();
            known.received = received.into();
            if !noted {
                known.history = None;
            }
            let mut found = found();
            found.identity.timeline = timeline(now);
            found.history = history(ends);
            found.slot.as_mut().unwrap().confirmed = 30.into();
            continues(&known, &found)
        };
        // Another timeline 2.
        assert!(after(100, true, &[(1, 60)], 2).is_err());
        assert!(after(41, true, &[(1, 60)], 2).is_err());
        assert_eq!(after(40, true, &[(1, 60)], 2), Ok(()));
        // A log of an earlier version does not know where its timeline began.
        assert_eq!(after(100, false, &[(1, 60)], 2), Ok(()));
        assert_eq!(after(100, false, &[(1, 60), (2, 100)], 3), Ok(()));
        assert!(after(101, false, &[(1, 60), (2, 100)], 3).is_err());
        assert!(after(100, true, &[(1, 60), (2, 100)], 3).is_err());
    }
}
