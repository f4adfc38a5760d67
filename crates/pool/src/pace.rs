//! When the node is asked again. No I/O, no clock.
//!
//! The primary is asked once in an interval. A node mostly shows that position some milliseconds later, so it
//! is asked soon after the answer, and again at growing distances until it shows it. So the staleness of a
//! current node grows to hardly more than an interval, and each of both is asked about once in it.

use std::time::Duration;

use crate::staleness::Moment;

/// Parts of an interval after the primary's answer at which the node is asked.
const PARTS: [u32; 4] = [16, 8, 4, 2];

/// The moment after `now` at which the node is asked next. `answered` is when the primary's newest answer
/// came; the node may not show its position yet if it is `awaited`.
pub fn next(interval: Duration, now: Moment, answered: Option<Moment>, is_awaited: bool) -> Moment {
    // The primary's next answer is expected an interval after this one.
    let this = answered.filter(|_| is_awaited);
    let following = answered.map(|at| at + interval);
    let mut moments = this
        .into_iter()
        .chain(following)
        .flat_map(|at| PARTS.map(|part| at + interval / part));
    moments
        .find(|at| *at > now)
        .unwrap_or_else(|| now + interval)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_asked_soon_after_the_primary() {
        let ms = Duration::from_millis;
        for (now, answered, is_awaited, expected) in [
            // Nobody has answered for the primary, or not for long.
            (500, None, false, 660),
            (500, Some(100), true, 660),
            // The node shows what the primary had.
            (1020, Some(1000), false, 1170),
            (1000, Some(1000), false, 1170),
            // It does not yet.
            (1000, Some(1000), true, 1010),
            (1010, Some(1000), true, 1020),
            (1025, Some(1000), true, 1040),
            (1045, Some(1000), true, 1080),
            (1085, Some(1000), true, 1170),
            // The primary's next answer is late.
            (1170, Some(1000), false, 1180),
            (1180, Some(1000), false, 1200),
            (1240, Some(1000), false, 1400),
        ] {
            let next = next(ms(160), ms(now), answered.map(ms), is_awaited);
            assert_eq!(next, ms(expected), "{now} {answered:?} {is_awaited}");
        }
    }

    #[test]
    fn no_two_questions_are_further_apart_than_an_interval_and_a_part() {
        let interval = Duration::from_millis(160);
        for now in 0..2000 {
            for is_awaited in [false, true] {
                let now = Duration::from_millis(now);
                let answered = Some(Duration::from_millis(500)).filter(|at| *at <= now);
                let pause = next(interval, now, answered, is_awaited) - now;
                assert!(pause > Duration::ZERO && pause <= interval + interval / 16);
            }
        }
    }
}
