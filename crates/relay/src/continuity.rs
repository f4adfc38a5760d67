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
    use lockstep_client::Identity;
    use lockstep_wire::{SystemId, Timeline};

    use super::*;

    #[test]
    fn a_primary_that_does_not_continue_the_log_is_refused_in_words() {
        let followed = Timeline::FIRST;
        let known = FollowedSource {
            system: Some("1".to_owned()),
            timeline: Some(followed),
            history: None,
            received: 100.into(),
            slot: None,
        };
        let found = SourceFound {
            identity: Identity {
                system: SystemId::from(1),
                timeline: followed,
                end: 99.into(),
                database: Some("app".to_owned()),
            },
            history: Vec::new(),
            slot: None,
            is_standby: false,
        };
        let (expected, at) = ("2".to_owned(), 90.into());
        for (gap, word) in [
            (Gap::OtherCluster { expected }, "another cluster"),
            (Gap::LeftBehind { followed }, "left behind"),
            (Gap::Unrelated { followed }, "does not come from"),
            (Gap::Forked { followed, at }, "never had them"),
            (Gap::SetBack, "ends at 0/63"),
            (Gap::NoSlot, "\"lockstep_g\" does not exist"),
            (Gap::NotOurs(Box::default()), "not the relay's"),
            (Gap::Invalidated("x".to_owned()), "invalidated"),
            (Gap::Ahead { confirmed: at }, "between the two are lost"),
        ] {
            let words = words(&gap, "lockstep_g", &known, &found);
            assert!(words.contains(word), "{words}");
        }
        assert!(continues("lockstep_g", &known, &found).is_err());
        let received = at;
        let known = FollowedSource { received, ..known };
        assert_eq!(continues("lockstep_g", &known, &found), Ok(()));
    }
}
