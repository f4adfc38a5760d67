//! Where the timelines of two servers part. No I/O.
//!
//! A timeline's number alone says little: two standbys of the same primary can both be promoted to
//! timeline 2. What tells them apart is where each timeline in the history ended.

use lockstep_wire::{Lsn, Timeline};

use crate::Switch;

/// Whether a server has left what was followed before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// All WAL of the one is the other's, as far as both have it.
    Never,
    /// Both have the same WAL up to here.
    At(Lsn),
    /// The server's timeline does not come from the one that was followed.
    Unrelated,
}

/// Where a server on timeline `new` left timeline `old`. What is not known of the old one's history is
/// taken for the same.
pub fn left(
    (old, old_history): (Timeline, Option<&[Switch]>),
    (new, new_history): (Timeline, &[Switch]),
) -> Left {
    if old != new && !new_history.iter().any(|switch| switch.timeline == old) {
        return Left::Unrelated;
    }
    let before = |switch: &&Switch| switch.timeline < old;
    let assumed: Vec<Switch>;
    let old_history = match old_history {
        Some(history) => history,
        None => {
            assumed = new_history.iter().filter(before).copied().collect();
            &assumed
        }
    };
    parts_at((old_history, old), (new_history, new)).map_or(Left::Never, Left::At)
}

/// The position up to which two timelines, each with its history, have the same WAL; None if they are one.
fn parts_at(one: (&[Switch], Timeline), other: (&[Switch], Timeline)) -> Option<Lsn> {
    fn parts<'a>(
        (history, last): (&'a [Switch], Timeline),
    ) -> impl Iterator<Item = (Timeline, Option<Lsn>)> + 'a {
        let ended = history
            .iter()
            .map(|switch| (switch.timeline, Some(switch.at)));
        ended.chain([(last, None)])
    }
    let mut same = Lsn::INVALID;
    for ((one, one_end), (other, other_end)) in parts(one).zip(parts(other)) {
        match (one_end, other_end) {
            _ if one != other => return Some(same),
            (Some(a), Some(b)) if a == b => same = a,
            (Some(a), Some(b)) => return Some(a.min(b)),
            (Some(end), None) | (None, Some(end)) => return Some(end),
            (None, None) => return None,
        }
    }
    Some(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(number: u32) -> Timeline {
        Timeline::new(number).unwrap()
    }

    fn history(ends: &[(u32, u64)]) -> Vec<Switch> {
        let switch = |&(number, at): &(u32, u64)| Switch {
            timeline: timeline(number),
            at: Lsn::from(at),
        };
        ends.iter().map(switch).collect()
    }

    /// One timeline with its history, another with its, and where they part.
    #[test]
    fn two_promotions_are_told_apart_by_where_they_forked() {
        type Side<'a> = (&'a [(u32, u64)], u32);
        let table: &[(Side<'_>, Side<'_>, Option<u64>)] = &[
            ((&[], 1), (&[], 1), None),
            ((&[], 1), (&[(1, 70)], 2), Some(70)),
            ((&[(1, 40)], 2), (&[(1, 40)], 2), None),
            // Both were promoted from timeline 1, at different positions.
            ((&[(1, 40)], 2), (&[(1, 60)], 2), Some(40)),
            ((&[(1, 60)], 2), (&[(1, 40)], 2), Some(40)),
            ((&[(1, 60)], 2), (&[(1, 40), (2, 90)], 3), Some(40)),
            ((&[(1, 40)], 2), (&[(1, 40), (2, 90)], 3), Some(90)),
            // Not by way of the first one's timeline.
            ((&[(1, 40)], 2), (&[(1, 60)], 3), Some(40)),
            ((&[(1, 40), (2, 50)], 4), (&[(1, 40), (3, 60)], 4), Some(40)),
        ];
        for &((one, last_of_one), (other, last_of_other), expected) in table {
            let (one, other) = (history(one), history(other));
            let one = (one.as_slice(), timeline(last_of_one));
            let other = (other.as_slice(), timeline(last_of_other));
            let expected = expected.map(Lsn::from);
            assert_eq!(parts_at(one, other), expected, "{one:?} {other:?}");
            assert_eq!(parts_at(other, one), expected, "{other:?} {one:?}");
        }
    }
    #[test]
    fn histories_tell_where_timelines_part() {
        type Ends = &'static [(u32, u64)];
        let cases: [(u32, Option<Ends>, u32, Ends, Left); 9] = [
            (1, Some(&[]), 1, &[], Left::Never),
            (2, Some(&[(1, 40)]), 2, &[(1, 40)], Left::Never),
            (2, None, 2, &[(1, 40)], Left::Never),
            // Both were promoted from timeline 1, at different positions.
            (2, Some(&[(1, 40)]), 2, &[(1, 30)], Left::At(Lsn::from(30))),
            (
                2,
                Some(&[(1, 40)]),
                3,
                &[(1, 40), (2, 90)],
                Left::At(Lsn::from(90)),
            ),
            (2, None, 3, &[(1, 40), (2, 90)], Left::At(Lsn::from(90))),
            (
                2,
                Some(&[(1, 40)]),
                3,
                &[(1, 20), (2, 90)],
                Left::At(Lsn::from(20)),
            ),
            (2, None, 3, &[(1, 40)], Left::Unrelated),
            (3, None, 2, &[(1, 40)], Left::Unrelated),
        ];
        for (old, known, new, found, expected) in cases {
            let (known, found) = (known.map(history), history(found));
            let known = (timeline(old), known.as_deref());
            assert_eq!(
                left(known, (timeline(new), &found)),
                expected,
                "{known:?} {found:?}"
            );
        }
    }
}
