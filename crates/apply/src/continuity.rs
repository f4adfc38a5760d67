//! Why a source cannot go on where a replica stands, in words. No I/O.
//!
//! What decides is `lockstep_intake`. The source is told that something is flushed only once the target's
//! origin, or the replica's spool, holds that position on disk. So a slot that confirms more than they have
//! is not the one that was left: it was made again or moved, and what lies in between would never be
//! sent. A source whose WAL does not hold what they have was set back.

use lockstep_intake::continuity::{self, FollowedSource, Gap, SourceFound};
use lockstep_wire::Lsn;

/// Who has what was received from the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    Target,
    /// The replica's spool.
    Spool,
}

impl Holder {
    fn name(self) -> &'static str {
        match self {
            Self::Target => "the target",
            Self::Spool => "the spool",
        }
    }
}

/// The last resort.
const AGAIN: &str = "drop the replica (lockstep replica drop) and create it again";

/// What a slot that the source has invalidated means, and what to do.
pub fn invalid_words(slot: &str, reason: &str) -> String {
    let why = match reason {
        "wal_removed" => "the source has removed WAL that it needs (max_slot_wal_keep_size)",
        "rows_removed" | "conflict" => "the source has removed rows of catalogs that it needs",
        "wal_level_insufficient" => "wal_level was less than logical",
        "idle_timeout" => "nobody used it for idle_replication_slot_timeout",
        other => other,
    };
    format!(
        "slot \"{slot}\" on the source is lost ({why}): the changes that the replica does not have yet will \
         never be sent; {AGAIN}"
    )
}

/// Why the source cannot go on where `holder` stands; None if it can.
pub fn gap(
    known: &FollowedSource,
    found: &SourceFound,
    slot: &str,
    holder: Holder,
) -> Option<String> {
    continuity::gap(known, found).map(|gap| words(&gap, known, found, slot, holder))
}

fn words(gap: &Gap, known: &FollowedSource, found: &SourceFound, slot: &str, by: Holder) -> String {
    let (lsn, now, holder) = (known.received, &found.identity, by.name());
    match gap {
        Gap::OtherCluster { expected } => format!(
            "the source is cluster {}, and the replica was made from {expected}: name the right \
             one with --source",
            now.system
        ),
        Gap::SetBack => format!(
            "the source's WAL ends at {}, before {lsn}, which {holder} has: the source was set \
             back to an earlier state, and {holder} has what it has not; {AGAIN}",
            now.end
        ),
        Gap::Forked { followed, at } => format!(
            "the source is on timeline {}, which left timeline {followed} at {at}, and {holder} has timeline \
             {followed} up to {lsn}: the source has lost changes that {holder} has; {AGAIN}",
            now.timeline
        ),
        Gap::LeftBehind { followed } | Gap::Unrelated { followed } => format!(
            "the source is on timeline {}, which does not come from timeline {followed}, and {holder} has \
             timeline {followed} up to {lsn}: the source has lost changes that {holder} has; {AGAIN}",
            now.timeline
        ),
        Gap::Invalidated(reason) => invalid_words(slot, reason),
        Gap::NoSlot => format!("the source does not have slot \"{slot}\"; {AGAIN}"),
        Gap::NotOurs(_) => {
            format!("slot \"{slot}\" on the source is not the replica's; {AGAIN}")
        }
        Gap::Ahead { confirmed } => {
            let unless = match by {
                Holder::Spool => ";",
                Holder::Target => ". If it is in a spool, run the replica with its spool_dir; else",
            };
            format!(
                "slot \"{slot}\" on the source begins at {confirmed}, and {holder} has only what the source \
                 had at {lsn}: the slot was made again or moved, or {holder} was set back, and what lies in \
                 between will never be sent{unless} {AGAIN}"
            )
        }
    }
}

/// What it means that the source does not send again what the spool has from here on.
pub fn differs(at: Lsn) -> String {
    format!(
        "the source does not have the transaction that the spool has received from it at {at}: the source \
         was set back to an earlier state, as by a restored backup, or is another server than before, and \
         has written other WAL since; the spool, and perhaps the target, has what it has not; {AGAIN}"
    )
}

#[cfg(test)]
mod tests {
    use lockstep_client::{Identity, SlotState, Switch};
    use lockstep_wire::{SystemId, Timeline};

    use super::*;

    fn timeline(number: u32) -> Timeline {
        Timeline::new(number).unwrap()
    }

    fn known() -> FollowedSource {
        FollowedSource {
            system: Some("7".to_owned()),
            timeline: Some(timeline(2)),
            history: None,
            received: Lsn::from(100),
            slot: None,
        }
    }

    fn slot(confirmed: u64, invalidation: Option<&str>) -> SlotState {
        SlotState {
            plugin: Some("pgoutput".to_owned()),
            database: Some("app".to_owned()),
            temporary: false,
            active_pid: None,
            confirmed: confirmed.into(),
            restart: 50.into(),
            wal_status: None,
            invalidation: invalidation.map(str::to_owned),
            two_phase: false,
            failover: false,
            synced: false,
        }
    }

    fn found() -> SourceFound {
        SourceFound {
            identity: Identity {
                system: SystemId::from(7),
                timeline: timeline(2),
                end: Lsn::from(100),
                database: Some("app".to_owned()),
            },
            history: Vec::new(),
            slot: Some(slot(100, None)),
            is_standby: false,
        }
    }

    fn gap(known: &FollowedSource, found: &SourceFound) -> Option<String> {
        super::gap(known, found, "s", Holder::Target)
    }

    fn switch(number: u32, at: u64) -> Switch {
        Switch {
            timeline: timeline(number),
            at: Lsn::from(at),
        }
    }

    #[test]
    fn a_source_goes_on_only_where_the_target_stands() {
        let at = |number: u32, end: u64| Identity {
            timeline: timeline(number),
            end: end.into(),
            ..found().identity
        };
        let later = |history: Vec<Switch>| SourceFound {
            identity: at(3, 500),
            history,
            ..found()
        };
        let confirmed = |confirmed: Option<u64>| SourceFound {
            identity: at(2, 500),
            slot: confirmed.map(|confirmed| slot(confirmed, None)),
            ..found()
        };
        let end = |end: u64, is_standby| SourceFound {
            identity: at(2, end),
            is_standby,
            ..found()
        };
        for (found, expected) in [
            (found(), None),
            (confirmed(Some(99)), None),
            (confirmed(Some(101)), Some("begins at 0/65")),
            (confirmed(None), None),
            (end(99, false), Some("WAL ends at 0/63")),
            (end(99, true), None),
            (later(vec![switch(1, 50), switch(2, 100)]), None),
            (
                later(vec![switch(1, 50), switch(2, 99)]),
                Some("left timeline 2 at 0/63"),
            ),
            (
                later(vec![switch(1, 50)]),
                Some("does not come from timeline 2"),
            ),
        ] {
            let words = gap(&known(), &found);
            match expected {
                None => assert_eq!(words, None, "{found:?}"),
                Some(expected) => assert!(words.unwrap().contains(expected), "{found:?}"),
            }
        }
    }

    #[test]
    fn an_invalidated_slot_is_refused_whatever_it_confirms() {
        for reason in [
            "wal_removed",
            "rows_removed",
            "idle_timeout",
            "conflict",
            "x",
        ] {
            let found = SourceFound {
                slot: Some(slot(100, Some(reason))),
                ..found()
            };
            let nothing = FollowedSource {
                received: Lsn::INVALID,
                ..known()
            };
            for known in [known(), nothing] {
                let words = gap(&known, &found).unwrap();
                assert!(
                    words.starts_with("slot \"s\" on the source is lost ("),
                    "{words}"
                );
                assert!(words.contains("create it again"), "{words}");
            }
        }
    }

    #[test]
    fn another_cluster_is_refused_and_no_knowledge_refuses_nothing() {
        let other = SourceFound {
            identity: Identity {
                system: SystemId::from(8),
                ..found().identity
            },
            ..found()
        };
        assert!(gap(&known(), &other).unwrap().contains("--source"));
        let nothing = FollowedSource {
            received: Lsn::INVALID,
            timeline: None,
            system: None,
            ..known()
        };
        let later = SourceFound {
            slot: Some(slot(500, None)),
            ..other
        };
        assert_eq!(gap(&nothing, &later), None);
        // Before there was a timeline in the state.
        let older = FollowedSource {
            timeline: None,
            ..known()
        };
        assert_eq!(gap(&older, &found()), None);
    }
}
