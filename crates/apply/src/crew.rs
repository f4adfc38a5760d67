//! How many writers a session uses. No I/O, no clock: times are arguments.
//!
//! Each writer takes a session and a replication origin of the target, and another one helps only if
//! there is a backlog, if what follows each other changes different rows, and if the target can do more
//! at a time than it does. Nobody knows the last before it was tried. So, with [`Writers::Auto`]:
//!
//! | at the end of a window | then |
//! |---|---|
//! | most parts wait for others, or were done again | half as many writers, and a rest |
//! | a trial was not faster by [`GAIN`], or not at all after half a window | as many as before, and a rest |
//! | otherwise | a trial: twice as many writers |
//!
//! A window is a number of parts, or of seconds, of which each part was *pressed*: handed over while all
//! writers had one. A part that is not ends the window, since the writers keep up; so does one of a
//! transaction that comes in parts, which one writer applies. During a rest windows count and nothing is
//! tried; each rest is twice as long as the one before, and a trial that succeeds ends that.
//!
//! Where one writer is used, parts are planned as for several while a window counts, so that whether they
//! wait for each other is known before a second writer is tried.

use std::fmt;
use std::time::{Duration, Instant};

use crate::order::MOST_WRITERS;

/// Most writers that are chosen without a number given.
pub const MOST_CHOSEN: usize = 8;

/// How many times as many changes a second a trial must apply.
const GAIN: f64 = 1.1;

/// A window ends earlier with [`FEW`] parts that took [`LONG`]: where parts are large, and a target slow, a
/// number of them would be minutes.
const FEW: u32 = 2;
const LONG: Duration = Duration::from_secs(1);

/// Windows of the first rest, and of the longest.
const FIRST_REST: u32 = 8;
const LONGEST_REST: u32 = 256;

/// How many writers a replica is to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Writers {
    /// The number is chosen by what helps, up to [`MOST_CHOSEN`].
    #[default]
    Auto,
    /// This many, from 1 to [`MOST_WRITERS`].
    Number(usize),
}

impl Writers {
    /// How many there are when a session begins.
    pub fn first(self) -> usize {
        match self {
            Self::Auto => 1,
            Self::Number(number) => number.clamp(1, MOST_WRITERS),
        }
    }

    fn most(self) -> usize {
        match self {
            Self::Auto => MOST_CHOSEN,
            Self::Number(_) => self.first(),
        }
    }
}

impl From<usize> for Writers {
    fn from(number: usize) -> Self {
        Self::Number(number)
    }
}

/// Length of a window: at least both, or [`FEW`] and [`LONG`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    pub parts: u32,
    pub span: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            parts: 6,
            span: Duration::from_millis(200),
        }
    }
}

/// Why there are so many writers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Why {
    /// The number was given.
    #[default]
    Given,
    /// Nothing was tried yet, and the newest part did not wait for a writer.
    KeepsUp,
    /// Nothing was tried yet, and the newest part waits for a writer.
    Backlog,
    /// Nothing was tried yet, and the newest part is of a transaction that comes in parts.
    OneTransaction,
    /// A trial runs with this number.
    Tried,
    /// This number was faster than half of it.
    Faster,
    /// Twice as many were not faster.
    NoFaster,
    /// Changes that follow each other are of the same rows.
    Meet,
    /// The target has no room for another one: its words.
    NoRoom(String),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Given => "as given",
            Self::KeepsUp => "the newest batch did not wait for a writer",
            Self::Backlog => "there is a backlog, and twice as many may be tried",
            Self::OneTransaction => "the changes are of one transaction, which one writer applies",
            Self::Tried => "tried, because of a backlog",
            Self::Faster => "faster than fewer",
            Self::NoFaster => "more were not faster",
            Self::Meet => "changes that follow each other are of the same rows",
            Self::NoRoom(words) => return write!(f, "no room for more: {words}"),
        })
    }
}

#[derive(Debug, Default)]
struct Window {
    /// Parts that were under way when the number of writers changed, and are not of this window.
    skip: usize,
    began: Option<Instant>,
    /// Parts that were handed over, and those of them that wait for others.
    handed: u32,
    hindered: u32,
    /// Parts that were done, those of them that were done again, and their changes.
    done: u32,
    again: u32,
    changes: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Crew {
    used: usize,
    most: usize,
    pace: Pace,
    why: Why,
    window: Option<Window>,
    /// Changes a second with half as many writers, while twice as many are tried.
    before: Option<f64>,
    /// Windows that are left of a rest, and the length of the next one.
    rest: u32,
    next_rest: u32,
}

impl Crew {
    pub fn new(writers: Writers, pace: Pace) -> Self {
        Self {
            used: writers.first(),
            most: writers.most(),
            pace,
            why: match writers {
                Writers::Auto => Why::KeepsUp,
                Writers::Number(_) => Why::Given,
            },
            window: None,
            before: None,
            rest: 0,
            next_rest: FIRST_REST,
        }
    }

    /// Writers that may have a part.
    pub fn used(&self) -> usize {
        self.used
    }

    pub fn why(&self) -> &Why {
        &self.why
    }

    /// Parts are to be planned as for several writers.
    pub fn plans_for_several(&self) -> bool {
        self.used > 1 || (self.window.is_some() && self.rest <= 1)
    }

    /// A part is handed over. `pressed`: all writers have one. `hindered`: most of its changes wait for
    /// another part. True if why the number of writers is what it is has changed.
    pub fn handed(&mut self, pressed: bool, hindered: bool) -> bool {
        if !self.is_choosing() {
            return false;
        }
        if !pressed {
            self.window = None;
            return self.before_trials(Why::KeepsUp);
        }
        let skip = self.used + 1;
        let window = self.window.get_or_insert_with(|| Window {
            skip,
            ..Window::default()
        });
        if window.began.is_some() {
            window.handed += 1;
            window.hindered += u32::from(hindered);
        }
        self.before_trials(Why::Backlog)
    }

    /// A part is handed over that says nothing of what others could do: it is of a transaction that comes in
    /// parts, if `of_one`, or applied by itself since one was refused. True as with [`Crew::handed`].
    pub fn handed_alone(&mut self, of_one: bool) -> bool {
        self.window = None;
        of_one && self.before_trials(Why::OneTransaction)
    }

    /// True if this is new, and nothing was tried yet that says more.
    fn before_trials(&mut self, why: Why) -> bool {
        let untried = matches!(self.why, Why::KeepsUp | Why::Backlog | Why::OneTransaction);
        let changed = untried && self.why != why;
        if changed {
            self.why = why;
        }
        changed
    }

    /// A part is done. True if the number of writers, or why it is what it is, has changed.
    pub fn done(&mut self, changes: u64, again: bool, now: Instant) -> bool {
        let Some(window) = &mut self.window else {
            return false;
        };
        let Some(began) = window.began else {
            window.skip = window.skip.saturating_sub(1);
            window.began = (window.skip == 0).then_some(now);
            return false;
        };
        window.done += 1;
        window.again += u32::from(again);
        window.changes += changes;
        let lasted = now.saturating_duration_since(began);
        let rate = window.changes as f64 / lasted.as_secs_f64().max(1e-6);
        // Each part of a trial that does not help is applied more slowly than it could be.
        let is_in_vain = lasted * 2 >= self.pace.span && self.before.is_some_and(|it| rate < it);
        let is_enough = window.done >= self.pace.parts && (lasted >= self.pace.span || is_in_vain);
        let is_slow = window.done >= FEW && lasted >= LONG;
        if window.handed == 0 || !(is_enough || is_slow) {
            return false;
        }
        let meet = window.hindered * 2 > window.handed || window.again * 2 > window.done;
        self.window = None;
        self.decide(rate, meet)
    }

    /// The target has no room for more writers than these.
    pub fn has_no_room(&mut self, there: usize, words: String) {
        self.most = there.max(1);
        self.used = self.used.min(self.most);
        self.before = None;
        self.window = None;
        self.why = Why::NoRoom(words);
    }

    fn is_choosing(&self) -> bool {
        self.why != Why::Given
    }

    fn decide(&mut self, rate: f64, meet: bool) -> bool {
        let trial = self.before.take();
        let halved = (self.used / 2).max(1);
        match trial {
            _ if meet => self.go_back(halved, Why::Meet),
            Some(before) if rate < before * GAIN => self.go_back(halved, Why::NoFaster),
            trial => {
                if trial.is_some() {
                    self.why = Why::Faster;
                    self.next_rest = FIRST_REST;
                }
                self.rest = self.rest.saturating_sub(1);
                if self.rest == 0 && self.used < self.most {
                    self.before = Some(rate);
                    self.used = (self.used * 2).min(self.most);
                    self.why = Why::Tried;
                } else if trial.is_none() {
                    return false;
                }
                true
            }
        }
    }

    fn go_back(&mut self, used: usize, why: Why) -> bool {
        let changed = self.used != used || self.why != why;
        self.used = used;
        self.why = why;
        self.rest = self.next_rest;
        self.next_rest = (self.next_rest * 2).min(LONGEST_REST);
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A target that applies parts at a speed that depends on the number of writers.
    struct Load<'a> {
        crew: Crew,
        now: Instant,
        speed: &'a dyn Fn(usize) -> f64,
    }

    impl<'a> Load<'a> {
        fn new(writers: Writers, speed: &'a dyn Fn(usize) -> f64) -> Self {
            Self {
                crew: Crew::new(writers, Pace::default()),
                now: Instant::now(),
                speed,
            }
        }

        /// Hands over and does this many parts; returns the numbers of writers, each time that one changes.
        fn parts(&mut self, parts: u32, pressed: bool, hindered: bool) -> Vec<usize> {
            let mut used = Vec::new();
            for _ in 0..parts {
                self.crew
                    .handed(pressed, hindered && self.crew.plans_for_several());
                self.now += Duration::from_secs_f64(1_000.0 / (self.speed)(self.crew.used()));
                let before = self.crew.used();
                if self.crew.done(1_000, false, self.now) && self.crew.used() != before {
                    used.push(self.crew.used());
                }
            }
            used
        }
    }

    #[test]
    fn a_backlog_that_can_be_spread_gets_as_many_as_help() {
        let mut load = Load::new(Writers::Auto, &|writers| 10_000.0 * writers.min(4) as f64);
        assert_eq!(load.parts(1_000, false, false), [0; 0], "it keeps up");
        assert_eq!(load.crew.why(), &Why::KeepsUp);
        // The fifth to eighth are no help.
        assert_eq!(load.parts(60, true, false), [2, 4, 8, 4]);
        assert_eq!(load.crew.why(), &Why::NoFaster);
        // They stay while the writers keep up, and are there for the next backlog.
        assert_eq!(load.parts(1_000, false, false), [0; 0]);
        assert_eq!(load.crew.used(), 4);
    }

    #[test]
    fn a_trial_that_is_no_faster_at_all_ends_after_half_a_window() {
        let parts_with_two = |faster: f64| {
            let speed = |writers: usize| match writers {
                1 => 200_000.0,
                _ => 200_000.0 * faster,
            };
            let mut load = Load::new(Writers::Auto, &speed);
            // Those under way at first, and a window of 200 ms.
            assert_eq!(load.parts(2 + 40, true, false), [2]);
            let parts = (1..).find(|_| !load.parts(1, true, false).is_empty());
            assert_eq!((load.crew.used(), load.crew.why()), (1, &Why::NoFaster));
            parts.unwrap()
        };
        // 100 ms of 10 ms each, or 200 ms where it is a little faster.
        assert_eq!(parts_with_two(0.5), 3 + 10);
        assert_eq!(parts_with_two(1.05), 3 + 42);
    }

    #[test]
    fn large_parts_of_a_slow_target_are_not_counted_for_minutes() {
        // Each part takes a second and more.
        let mut load = Load::new(Writers::Auto, &|writers| 800.0 * writers as f64);
        assert_eq!(load.parts(4, true, false), [2], "{:?}", load.crew);
    }

    #[test]
    fn it_is_said_whether_there_is_a_backlog_before_anything_is_tried() {
        let mut crew = Crew::new(Writers::Auto, Pace::default());
        assert!(!crew.handed(false, false));
        assert!(crew.handed(true, false) && !crew.handed(true, false));
        assert_eq!(crew.why(), &Why::Backlog);
        assert!(crew.handed_alone(true));
        assert_eq!(crew.why(), &Why::OneTransaction);
        assert!(!crew.plans_for_several(), "the window has ended");
        assert!(crew.handed(false, false));
        assert_eq!(crew.why(), &Why::KeepsUp);
        // What was tried says more.
        let mut load = Load::new(Writers::Auto, &|_| 10_000.0);
        load.parts(40, true, false);
        assert!(!load.crew.handed(false, false) && !load.crew.handed_alone(true));
        assert_eq!(load.crew.why(), &Why::NoFaster);
    }

    #[test]
    fn changes_of_the_same_rows_are_left_to_one() {
        let mut load = Load::new(Writers::Auto, &|_| 10_000.0);
        assert_eq!(load.parts(100, true, true), [0; 0]);
        assert_eq!((load.crew.used(), load.crew.why()), (1, &Why::Meet));
        let mut load = Load::new(Writers::Auto, &|writers| 10_000.0 * writers as f64);
        assert_eq!(load.parts(80, true, false), [2, 4, 8]);
        // What was spread before meets now: down again, one step for each window.
        assert_eq!(load.parts(80, true, true)[..3], [4, 2, 1]);
    }

    #[test]
    fn a_trial_that_fails_is_repeated_less_and_less_often() {
        let mut load = Load::new(Writers::Auto, &|_| 10_000.0);
        let mut trials = Vec::new();
        for part in 0..10_000 {
            trials.extend(load.parts(1, true, false).contains(&2).then_some(part));
        }
        let between: Vec<_> = trials.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(between.len() > 3, "{trials:?}");
        let (shortest, longest) = (between[0], between[between.len() - 1]);
        assert!(between.is_sorted() && longest > 8 * shortest, "{between:?}");
        assert_eq!(load.crew.why(), &Why::NoFaster);
    }

    #[test]
    fn a_target_without_room_is_left_as_it_is() {
        let mut load = Load::new(Writers::Auto, &|writers| 10_000.0 * writers as f64);
        assert_eq!(load.parts(12, true, false), [2]);
        load.crew.has_no_room(1, "full".to_owned());
        assert_eq!(load.parts(1_000, true, false), [0; 0]);
        assert_eq!(load.crew.used(), 1);
        assert_eq!(load.crew.why().to_string(), "no room for more: full");
    }

    #[test]
    fn a_number_that_is_given_stays() {
        let mut load = Load::new(Writers::Number(3), &|writers| 10_000.0 * writers as f64);
        assert_eq!(load.parts(1_000, true, false), [0; 0]);
        assert_eq!(load.parts(1_000, true, true), [0; 0]);
        assert_eq!((load.crew.used(), load.crew.why()), (3, &Why::Given));
        assert_eq!(Writers::Number(99).first(), MOST_WRITERS);
    }
}
