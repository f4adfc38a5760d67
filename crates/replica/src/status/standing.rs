//! How a replica stands, out of what its state and its source say. No I/O.
//!
//! The state holds what apply wrote last, and a process that is killed writes nothing more. So what
//! it says counts only while apply's session holds the replica's lock and has just written. Figures
//! of lag are given only where they are known.

use std::time::Duration;

use lockstep_apply::cycle::SILENT_AFTER;
use lockstep_service::words::figures;
use lockstep_wire::Lsn;

use crate::state::{Applied, Holder};

/// What is older than this is not known any more. Apply writes its state every second, and hears of
/// the source every 5 s.
pub const FRESH: Duration = Duration::from_secs(15);

/// What works on a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing<'a> {
    /// Nothing: nobody holds the replica's lock.
    NotRunning,
    /// Another than apply: `replica create` or `drop`.
    Other,
    /// Apply's session is there, but has written nothing for a time: its machine may be gone.
    Silent,
    /// Apply, in the state that it has just written.
    Apply(&'a str),
}

/// WAL of the source that is not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lag {
    Unknown,
    /// The source was not asked: its stream has told of this much.
    AtLeast(u64),
    Exactly(u64),
}

fn is_fresh(age: Option<Duration>) -> bool {
    age.is_some_and(|age| age <= FRESH)
}

pub fn standing(holder: Holder, applied: &Applied) -> Standing<'_> {
    match holder {
        Holder::Nobody => Standing::NotRunning,
        Holder::Other => Standing::Other,
        Holder::Apply if is_fresh(applied.age) => Standing::Apply(&applied.state),
        Holder::Apply => Standing::Silent,
    }
}

/// The lag. `source_end` is the end of the source's WAL, asked after `applied` was read, so that
/// the lag is never less than it says.
pub fn lag(standing: Standing<'_>, applied: &Applied, source_end: Option<Lsn>) -> Lag {
    if standing != Standing::Apply("applying") {
        return Lag::Unknown;
    }
    match (source_end, applied.lsn) {
        (Some(end), Some(lsn)) if end >= lsn => Lag::Exactly(end.bytes_since(lsn)),
        // The source has gone back.
        (Some(_), _) => Lag::Unknown,
        (None, Some(_)) if is_fresh(applied.heard) => Lag::AtLeast(applied.lag_bytes),
        (None, _) => Lag::Unknown,
    }
}

/// Why a replica whose process is there does not get on, as far as that process has said; None if it knows
/// nothing. While a spool is full, nothing is heard of the source, which is not to blame then.
pub fn hindrance(applied: &Applied) -> Option<String> {
    let full = applied.spool.as_ref().and_then(|spool| spool.full.as_ref());
    let full = full.map(|full| format!("its spool is full: {}", full.words));
    let silent = || match applied.heard {
        Some(heard) if heard < SILENT_AFTER => None,
        Some(heard) => Some(format!(
            "its process has heard nothing of the source for {} s: is the source there, and does nobody else \
             use the slot?",
            heard.as_secs()
        )),
        None => Some("its process has heard nothing of the source since it began".to_owned()),
    };
    let of_stream = full.or_else(|| silent().filter(|_| applied.error.is_none()));
    let all: Vec<_> = applied.error.clone().into_iter().chain(of_stream).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Words for rows to update or delete that the target did not have; None if there were none.
pub fn missing_words(rows: u64) -> Option<String> {
    missed(rows).map(|words| {
        format!("{words}, which is not what the source is: drop the replica and create it again")
    })
}

/// Words for such rows without what would mend it, for a replica that follows its source no longer.
pub fn missed(rows: u64) -> Option<String> {
    (rows > 0).then(|| {
        format!(
            "{} to update or delete {} not on the target",
            figures::counted(rows, "row"),
            figures::verb(rows, "was", "were")
        )
    })
}

#[cfg(test)]
mod tests {
    use lockstep_apply::{FullBy, SpoolFull, SpoolStats};

    use super::*;

    const NOW: Option<Duration> = Some(Duration::from_secs(1));
    const OLD: Option<Duration> = Some(Duration::from_secs(60));

    fn applied(state: &str, age: Option<Duration>) -> Applied {
        Applied {
            cycles: None,
            state: state.to_owned(),
            lsn: Some(Lsn::from(100)),
            lag_bytes: 7,
            heard: NOW,
            error: None,
            age,
            spool: None,
            unreplicated: None,
            writers: None,
            commit_time: None,
        }
    }

    #[test]
    fn what_is_written_counts_while_apply_lives_and_writes() {
        let now = applied("applying", NOW);
        let old = applied("applying", OLD);
        let never = Applied::default();
        for (holder, applied, expected) in [
            (Holder::Nobody, &now, Standing::NotRunning),
            (Holder::Nobody, &never, Standing::NotRunning),
            (Holder::Other, &now, Standing::Other),
            (Holder::Apply, &now, Standing::Apply("applying")),
            (Holder::Apply, &old, Standing::Silent),
            (Holder::Apply, &never, Standing::Silent),
        ] {
            assert_eq!(standing(holder, applied), expected);
        }
    }

    #[test]
    fn what_holds_a_replica_back_is_what_its_process_has_said() {
        let now = applied("applying", NOW);
        assert_eq!(hindrance(&now), None);
        let full = |now: &Applied| Applied {
            spool: Some(SpoolStats {
                full: Some(SpoolFull {
                    by: Some(FullBy::Limit),
                    words: "the limit".to_owned(),
                }),
                ..SpoolStats::default()
            }),
            heard: OLD,
            ..now.clone()
        };
        let words = hindrance(&full(&now)).unwrap();
        assert_eq!(words, "its spool is full: the limit");
        let blocked = Applied {
            error: Some("no such table".to_owned()),
            ..now.clone()
        };
        let words = hindrance(&full(&blocked)).unwrap();
        assert_eq!(words, "no such table; its spool is full: the limit");
        for (heard, wanted) in [(OLD, "for 60 s"), (None, "since it began")] {
            let silent = Applied {
                heard,
                ..now.clone()
            };
            assert!(hindrance(&silent).unwrap().contains(wanted));
        }
        assert_eq!(
            hindrance(&Applied {
                heard: OLD,
                ..blocked
            })
            .unwrap(),
            "no such table"
        );
    }

    #[test]
    fn a_lag_is_shown_only_while_it_is_known() {
        let end = |end: u64| Some(Lsn::from(end));
        let silent = Applied {
            heard: OLD,
            ..applied("applying", NOW)
        };
        let nothing = Applied {
            lsn: None,
            ..applied("applying", NOW)
        };
        for (holder, applied, source_end, expected) in [
            (
                Holder::Apply,
                applied("applying", NOW),
                end(130),
                Lag::Exactly(30),
            ),
            (
                Holder::Apply,
                applied("applying", NOW),
                end(100),
                Lag::Exactly(0),
            ),
            (
                Holder::Apply,
                applied("applying", NOW),
                None,
                Lag::AtLeast(7),
            ),
            (Holder::Apply, silent.clone(), None, Lag::Unknown),
            (Holder::Apply, silent, end(130), Lag::Exactly(30)),
            (Holder::Apply, nothing.clone(), end(130), Lag::Unknown),
            (Holder::Apply, nothing, None, Lag::Unknown),
            // The source was restored to an earlier state.
            (
                Holder::Apply,
                applied("applying", NOW),
                end(99),
                Lag::Unknown,
            ),
            (
                Holder::Apply,
                applied("applying", OLD),
                end(130),
                Lag::Unknown,
            ),
            (
                Holder::Apply,
                applied("connecting", NOW),
                end(100),
                Lag::Unknown,
            ),
            (
                Holder::Apply,
                applied("blocked", NOW),
                end(100),
                Lag::Unknown,
            ),
            (
                Holder::Apply,
                applied("paused", NOW),
                end(100),
                Lag::Unknown,
            ),
            (
                Holder::Nobody,
                applied("applying", NOW),
                end(100),
                Lag::Unknown,
            ),
            (
                Holder::Other,
                applied("applying", NOW),
                end(100),
                Lag::Unknown,
            ),
        ] {
            let standing = standing(holder, &applied);
            let found = lag(standing, &applied, source_end);
            assert_eq!(found, expected, "{holder:?} {applied:?} {source_end:?}");
        }
    }
}
