//! Why a group does not go on with a primary, in words for the operator. No I/O.
//!
//! What decides is `lockstep_intake`: [`gap`] before the stream begins, and its comparison with the log
//! of what is sent again.

use lockstep_intake::continuity::{FollowedSource, Gap, SourceFound, gap};
use lockstep_wire::Lsn;

/// Ok, or why the group that has this slot must not go on: a sentence for the operator.
pub fn continues(slot: &str, known: &FollowedSource, found: &SourceFound) -> Result<(), String> {
    gap(known, found).map_or(Ok(()), |gap| Err(words(&gap, slot, known, found)))
}

fn words(gap: &Gap, name: &str, known: &FollowedSource, found: &SourceFound) -> String {
    let (now, received) = (&found.identity, known.received);
    match gap {
        Gap::OtherCluster { expected } => format!(
            "the primary is of another cluster (system identifier {}, expected {expected}): \
             connect the relay to the right one, or give it an empty spool",
            now.system
        ),
        Gap::LeftBehind { followed } => format!(
            "the primary is on timeline {}, the relay has seen timeline {followed}: an old primary \
             that was left behind; name the new one in the connection string",
            now.timeline
        ),
        Gap::Unrelated { followed } => format!(
            "the primary's timeline {} does not come from timeline {followed}, which the relay \
             followed: it is not this primary's successor",
            now.timeline
        ),
        Gap::Forked { followed, at } => format!(
            "the primary's timeline {} left what the relay followed, timeline {followed}, at \
             {at}, but the relay has transactions up to {received}: the new primary never had \
             them, and subscribers may; synchronize subscriptions again (on PostgreSQL 17 and \
             later synchronized_standby_slots prevents this)",
            now.timeline
        ),
        Gap::SetBack => format!(
            "the primary's WAL ends at {}, but the relay has its transactions up to {received}: \
             the primary was set back, as by a restored backup; subscribers may have what it \
             does not, so synchronize subscriptions again",
            now.end
        ),
        Gap::NoSlot => format!(
            "replication slot \"{name}\" does not exist on the primary: transactions committed \
             since {received} would be lost without a word; if the slot was lost in a failover, \
             subscriptions must be synchronized again (on PostgreSQL 17 and later a failover slot \
             prevents this)"
        ),
        Gap::NotOurs(slot) => {
            let expected = known.slot.as_ref();
            format!(
                "replication slot \"{name}\" is of plugin {} in database {}, expected {} in {}: \
                 it is not the relay's",
                slot.plugin.as_deref().unwrap_or("none"),
                slot.database.as_deref().unwrap_or("none"),
                expected.map_or("none", |kind| &kind.plugin),
                expected.map_or("none", |kind| &kind.database),
            )
        }
        Gap::Invalidated(why) => format!(
            "replication slot \"{name}\" was invalidated by the primary ({why}): transactions \
             committed since {received} are lost to the relay; subscriptions must be \
             synchronized again, and max_slot_wal_keep_size raised"
        ),
        Gap::Ahead { confirmed } => format!(
            "replication slot \"{name}\" stands at {confirmed}, the relay's spool ends at {received}: \
             transactions between the two are lost; subscriptions must be synchronized again"
        ),
    }
}

/// What it means that the primary does not send again what the log has from here on.
pub fn differs(at: Lsn) -> String {
    format!(
        "the primary does not have the transaction that the relay has received from it at {at}: \
         it was set back, as by a restored backup, or is another server than before, and has \
         written other WAL since; subscribers may have what it does not, so synchronize \
         subscriptions again"
    )
}

#[cfg(test)]
mod tests {
    use lockstep_client::{Identity, SlotState, Switch};
    use lockstep_intake::continuity::SlotKind;
    use lockstep_wire::{SystemId, Timeline};

    use super::*;

    fn timeline(number: u32) -> Timeline {
        Timeline::new(number).unwrap()
    }

    fn known() -> FollowedSource {
        FollowedSource {
            system: Some(SystemId::from(1).to_string()),
            timeline: Some(timeline(2)),
            history: Some(history(&[(1, 40)])),
            received: 100.into(),
            slot: Some(SlotKind {
                plugin: "lockstep".to_owned(),
                database: "app".to_owned(),
            }),
        }
    }

    fn continues(known: &FollowedSource, found: &SourceFound) -> Result<(), String> {
        super::continues("lockstep_g", known, found)
    }

    /// Timelines, and where each ended.
    fn history(ends: &[(u32, u64)]) -> Vec<Switch> {
        let switch = |&(number, at): &(u32, u64)| Switch {
            timeline: timeline(number),
            at: at.into(),
        };
        ends.iter().map(switch).collect()
    }

    fn found() -> SourceFound {
        SourceFound {
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
            is_standby: false,
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
        let changed = |change: fn(&mut SourceFound)| {
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
