//! When primary and node are asked again. No I/O, no clock.
//!
//! The primary is asked once in an interval. A node mostly shows that position some milliseconds later, so it
//! is asked soon after the answer, and again at growing distances until it shows it. So the staleness of a
//! current node grows to hardly more than an interval, and each of both is asked about once in it.
//!
//! A node that keeps up needs fewer questions: then the primary is asked once in a *rest*, which is longer.
//! Fewer questions never make the staleness that is said smaller than the true one. It grows to a rest, half
//! of the bound, and to the half of an interval in which the node has to show each answer: so the node stays
//! within its bound. One that has not shown an answer by then does not keep up, and the primary is asked an
//! interval after that question.

use std::time::Duration;

use crate::staleness::Moment;

/// Parts of an interval after the primary's answer at which the node is asked.
const PARTS: [u32; 4] = [16, 8, 4, 2];

/// Longest rest that is longer than the interval: half of the time after which a node is silent.
const LONGEST_REST: Duration = Duration::from_millis(500);

/// Longest pause between two questions to the node, however seldom the primary is asked: a node whose
/// walreceiver has ended, or that is paused, must say so soon. A little longer than the longest rest, in
/// which the node is asked once.
const LONGEST_PAUSE: Duration = Duration::from_millis(600);

/// Time between two questions to the primary while the node keeps up: half of the bound, if that is longer
/// than the interval.
pub fn rest(bound: Duration, interval: Duration) -> Duration {
    interval.max(LONGEST_REST.min(bound / 2))
}

/// Whether a node keeps up after an answer of its own: None if that does not say. `age` is that of the newest
/// question that the primary has answered; the node does not show the answer yet if it is `awaited`.
pub fn keeps_up(interval: Duration, age: Duration, is_awaited: bool) -> Option<bool> {
    let is_soon = age <= interval / 2;
    (is_soon != is_awaited).then_some(is_soon)
}

/// The moment after `now` at which the node is asked next. `answered` is when the primary's newest answer
/// came, and `until_next` the time from there to the next; the node may not show that position yet if it is
/// `awaited`.
pub fn next(
    interval: Duration,
    until_next: Duration,
    now: Moment,
    answered: Option<Moment>,
    is_awaited: bool,
) -> Moment {
    let this = answered.filter(|_| is_awaited);
    let following = answered.map(|at| at + until_next);
    let mut moments = this
        .into_iter()
        .chain(following)
        .flat_map(|at| PARTS.map(|part| at + interval / part));
    let next = moments.find(|at| *at > now);
    next.unwrap_or(now + interval).min(now + LONGEST_PAUSE)
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
            let next = next(ms(160), ms(160), ms(now), answered.map(ms), is_awaited);
            assert_eq!(next, ms(expected), "{now} {answered:?} {is_awaited}");
        }
        // While the node keeps up, the primary's next answer comes later.
        for (now, is_awaited, expected) in [
            (1010, false, 1250),
            (1010, true, 1020),
            (1085, true, 1250),
            (1250, true, 1260),
        ] {
            let next = next(ms(160), ms(240), ms(now), Some(ms(1000)), is_awaited);
            assert_eq!(next, ms(expected), "{now} {is_awaited}");
        }
    }

    #[test]
    fn no_two_questions_are_further_apart_than_a_rest_and_a_part() {
        let (interval, rest) = (Duration::from_millis(160), Duration::from_millis(240));
        for now in 0..2000 {
            for is_awaited in [false, true] {
                let now = Duration::from_millis(now);
                let answered = Some(Duration::from_millis(500)).filter(|at| *at <= now);
                let pause = next(interval, rest, now, answered, is_awaited) - now;
                assert!(pause > Duration::ZERO && pause <= rest + interval / 16);
            }
        }
    }

    #[test]
    fn a_node_is_asked_often_however_seldom_the_primary_is() {
        let s = Duration::from_secs;
        for answered in [None, Some(s(100))] {
            for is_awaited in [false, true] {
                let next = next(s(5), s(5), s(101), answered, is_awaited);
                assert!(next > s(101) && next <= s(101) + LONGEST_PAUSE, "{next:?}");
            }
        }
    }

    #[test]
    fn a_node_keeps_up_that_shows_each_answer_within_half_an_interval() {
        let ms = Duration::from_millis;
        for (age, is_awaited, expected) in [
            (1, true, None),
            (100, true, None),
            (100, false, Some(true)),
            (101, true, Some(false)),
            // Whether the node showed it in time is known from before.
            (101, false, None),
        ] {
            let said = keeps_up(ms(200), ms(age), is_awaited);
            assert_eq!(said, expected, "{age} {is_awaited}");
        }
    }

    #[test]
    fn a_rest_is_half_of_the_bound_and_not_so_long_that_the_node_seems_silent() {
        let ms = Duration::from_millis;
        for (bound, interval, expected) in [
            (100, 33, 50),
            (600, 200, 300),
            (1000, 333, 500),
            (1200, 400, 500),
            (3000, 1000, 1000),
        ] {
            let rest = rest(ms(bound), ms(interval));
            assert_eq!(rest, ms(expected), "{bound} {interval}");
        }
    }
}
