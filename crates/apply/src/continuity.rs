//! Whether a source can go on where the target stands. No I/O.
//!
//! The source is told that something is flushed only once the target's origin holds that position on
//! disk. So a slot that confirms more than the target has is not the one that was left: it was made
//! again or moved, and what lies in between would never be sent. A source whose WAL does not hold
//! what the target has applied was set back.

use lockstep_client::Switch;
use lockstep_client::history::{Left, left};
use lockstep_wire::{Lsn, Timeline};

/// What is known from before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// All that the source had here is there, on disk. `0/0` if nothing is known.
    pub lsn: Lsn,
    /// The source's timeline when somebody last looked.
    pub timeline: Option<Timeline>,
    /// The source's system identifier.
    pub system: Option<String>,
    /// Who has it: the target, or the replica's spool.
    pub holder: &'static str,
}

/// [`Known::holder`].
pub const TARGET: &str = "the target";
pub const SPOOL: &str = "the spool";

/// What the source says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub system: String,
    pub timeline: Timeline,
    /// The ends of the timelines before, as far as they are needed.
    pub switches: Vec<Switch>,
    /// The end of its WAL. None for a standby, which may only have to catch up.
    pub end: Option<Lsn>,
    /// What the slot confirms. None if the server does not list it: a relay has it, or it is gone.
    pub confirmed: Option<Lsn>,
    /// Why the slot can no longer be used, in the server's words.
    pub invalid: Option<String>,
}

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
         never be sent; drop the replica (lockstep replica drop) and create it again"
    )
}

/// Why the source cannot go on where the target stands; None if it can.
pub fn gap(known: &Known, found: &Found, slot: &str) -> Option<String> {
    let (lsn, end, holder) = (known.lsn, found.end, known.holder);
    if let Some(system) = known
        .system
        .as_ref()
        .filter(|system| **system != found.system)
    {
        let other = &found.system;
        return Some(format!(
            "the source is cluster {other}, and the replica was made from {system}: name the right \
             one with --source"
        ));
    }
    if let Some(reason) = &found.invalid {
        return Some(invalid_words(slot, reason));
    }
    if !lsn.is_valid() {
        return None;
    }
    let again = "drop the replica (lockstep replica drop) and create it again";
    if let Some(end) = end.filter(|end| *end < lsn) {
        return Some(format!(
            "the source's WAL ends at {end}, before {lsn}, which {holder} has: the source was set \
             back to an earlier state, and {holder} has what it has not; {again}"
        ));
    }
    if let Some(before) = known.timeline {
        let now = found.timeline;
        let went = match left((before, None), (now, &found.switches)) {
            Left::At(at) if at < lsn => Some(format!("left timeline {before} at {at}")),
            Left::Unrelated => Some(format!("does not come from timeline {before}")),
            Left::At(_) | Left::Never => None,
        };
        if let Some(went) = went {
            return Some(format!(
                "the source is on timeline {now}, which {went}, and {holder} has timeline \
                 {before} up to {lsn}: the source has lost changes that {holder} has; {again}"
            ));
        }
    }
    let confirmed = found.confirmed.filter(|confirmed| *confirmed > lsn)?;
    let unless = match holder == SPOOL {
        true => ";",
        false => ". If it is in a spool, run the replica with its spool_dir; else",
    };
    Some(format!(
        "slot \"{slot}\" on the source begins at {confirmed}, and {holder} has only what the source \
         had at {lsn}: the slot was made again or moved, or {holder} was set back, and what lies in \
         between will never be sent{unless} {again}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(number: u32) -> Timeline {
        Timeline::new(number).unwrap()
    }

    fn known() -> Known {
        Known {
            lsn: Lsn::from(100),
            timeline: Some(timeline(2)),
            system: Some("7".to_owned()),
            holder: TARGET,
        }
    }

    fn found() -> Found {
        Found {
            system: "7".to_owned(),
            timeline: timeline(2),
            switches: Vec::new(),
            end: Some(Lsn::from(100)),
            confirmed: Some(Lsn::from(100)),
            invalid: None,
        }
    }

    fn switch(number: u32, at: u64) -> Switch {
        Switch {
            timeline: timeline(number),
            at: Lsn::from(at),
        }
    }

    #[test]
    fn a_source_goes_on_only_where_the_target_stands() {
        let later = |switches: Vec<Switch>| Found {
            timeline: timeline(3),
            switches,
            end: Some(Lsn::from(500)),
            ..found()
        };
        let confirmed = |confirmed| Found {
            confirmed,
            end: Some(Lsn::from(500)),
            ..found()
        };
        let end = |end: Option<u64>| Found {
            end: end.map(Lsn::from),
            ..found()
        };
        for (found, expected) in [
            (found(), None),
            (confirmed(Some(Lsn::from(99))), None),
            (confirmed(Some(Lsn::from(101))), Some("begins at 0/65")),
            (confirmed(None), None),
            (end(Some(99)), Some("WAL ends at 0/63")),
            (end(None), None),
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
            let words = gap(&known(), &found, "s");
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
            let found = Found {
                invalid: Some(reason.to_owned()),
                ..found()
            };
            let nothing = Known {
                lsn: Lsn::INVALID,
                ..known()
            };
            for known in [known(), nothing] {
                let words = gap(&known, &found, "s").unwrap();
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
        let other = Found {
            system: "8".to_owned(),
            ..found()
        };
        assert!(gap(&known(), &other, "s").unwrap().contains("--source"));
        let nothing = Known {
            lsn: Lsn::INVALID,
            timeline: None,
            system: None,
            holder: TARGET,
        };
        let later = Found {
            confirmed: Some(Lsn::from(500)),
            ..other
        };
        assert_eq!(gap(&nothing, &later, "s"), None);
        // Before there was a timeline in the state.
        let older = Known {
            timeline: None,
            ..known()
        };
        assert_eq!(gap(&older, &found(), "s"), None);
    }
}
