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
    use lockstep_client::Identity;
    use lockstep_wire::{SystemId, Timeline};

    use super::*;

    #[test]
    fn a_source_that_cannot_go_on_is_refused_in_words() {
        let followed = Timeline::FIRST;
        let known = FollowedSource {
            system: Some("1".to_owned()),
            timeline: Some(followed),
            history: None,
            received: Lsn::from(100),
            slot: None,
        };
        let found = SourceFound {
            identity: Identity {
                system: SystemId::from(1),
                timeline: followed,
                end: Lsn::from(99),
                database: Some("app".to_owned()),
            },
            history: Vec::new(),
            slot: None,
            is_standby: false,
        };
        let (expected, at) = ("2".to_owned(), Lsn::from(90));
        let again = "create it again";
        for (gap, word, remedy) in [
            (Gap::OtherCluster { expected }, "made from 2", "--source"),
            (Gap::SetBack, "WAL ends at 0/63", again),
            (
                Gap::Forked { followed, at },
                "left timeline 1 at 0/5A",
                again,
            ),
            (
                Gap::LeftBehind { followed },
                "not come from timeline 1",
                again,
            ),
            (
                Gap::Unrelated { followed },
                "not come from timeline 1",
                again,
            ),
            (Gap::Invalidated("x".to_owned()), "is lost (x)", again),
            (Gap::NoSlot, "not have slot \"s\"", again),
            (Gap::NotOurs(Box::default()), "not the replica's", again),
            (Gap::Ahead { confirmed: at }, "begins at 0/5A", "spool_dir"),
        ] {
            let words = words(&gap, &known, &found, "s", Holder::Target);
            assert!(words.contains(word) && words.contains(remedy), "{words}");
        }
        for reason in ["wal_removed", "rows_removed", "conflict", "idle_timeout"] {
            let words = invalid_words("s", reason);
            assert!(
                words.contains("is lost (") && !words.contains(reason),
                "{words}"
            );
        }
        assert!(gap(&known, &found, "s", Holder::Target).is_some());
        let received = at;
        let known = FollowedSource { received, ..known };
        assert_eq!(gap(&known, &found, "s", Holder::Target), None);
    }
}
