//! How old the data is that a node shows, without trust in clocks or in bytes that were received.
//!
//! The agent asks the primary for its flush position again and again, and notes when it asked. All that
//! was flushed at that moment is at or before the position in the answer. So once the node has replayed
//! that position, its data is no older than the question. The staleness is the time since the newest
//! question whose answer the node has shown: an upper bound, by the one clock of the agent. Answers that
//! are lost or late, and questions that are forgotten, can only make it larger.
//!
//! Positions are compared within a timeline only: a position alone says nothing about WAL that a failover
//! has replaced.

use std::collections::VecDeque;
use std::time::Duration;

use lockstep_wire::{Lsn, Timeline};

use crate::fault::Fault;

/// A moment of the agent's clock: the time since it began.
pub type Moment = Duration;

/// Most questions that wait to be shown. Beyond it, every second one of the older half is forgotten.
pub const MOST_QUESTIONS: usize = 128;

/// A position on a timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    pub timeline: Timeline,
    pub lsn: Lsn,
}

/// A question that was answered.
#[derive(Debug, Clone, Copy)]
struct Question {
    asked: Moment,
    /// The primary's flush position in the answer.
    flushed: Lsn,
}

/// The questions, and what the node has shown of them.
#[derive(Debug, Default)]
pub struct Staleness {
    /// The timeline of all questions; None before the first.
    timeline: Option<Timeline>,
    /// Questions that the node has not shown, by time and by position: each later one is further on.
    waiting: VecDeque<Question>,
    /// When the newest question was asked that the node has shown.
    shown: Option<Moment>,
    /// Where the node was when it last answered; None if that is not known, or on which timeline.
    node: Option<Position>,
    fault: Option<Fault>,
}

impl Staleness {
    /// Nothing known, and a fault planted, for tests.
    pub fn with_fault(fault: Option<Fault>) -> Self {
        Self {
            fault,
            ..Self::default()
        }
    }

    /// Takes the primary's answer to a question. One on an older timeline than before is of a server that
    /// was the primary, and is ignored; false says so.
    pub fn primary_answered(&mut self, asked: Moment, flushed: Position) -> bool {
        match self.timeline {
            Some(timeline) if flushed.timeline < timeline => return false,
            Some(timeline) if flushed.timeline > timeline => self.waiting.clear(),
            _ => {}
        }
        self.timeline = Some(flushed.timeline);
        if self.fault == Some(Fault::OnlyNewestQuestion) {
            self.waiting.clear();
        }
        self.note(Question {
            asked,
            flushed: flushed.lsn,
        });
        if self.waiting.len() > MOST_QUESTIONS {
            self.thin();
        }
        self.show();
        true
    }

    /// Adds a question, unless a later one asks for no more. It makes earlier ones needless that ask for
    /// as much.
    fn note(&mut self, new: Question) {
        let is_later = |old: &Question| old.asked >= new.asked;
        let is_needless = |old: &Question| is_later(old) && old.flushed <= new.flushed;
        if self.waiting.iter().any(is_needless) {
            return;
        }
        self.waiting
            .retain(|old| is_later(old) || old.flushed < new.flushed);
        let place = self.waiting.iter().position(is_later);
        self.waiting
            .insert(place.unwrap_or(self.waiting.len()), new);
    }

    fn thin(&mut self) {
        let half = self.waiting.len() / 2;
        let mut kept = VecDeque::with_capacity(self.waiting.len());
        let mut before: Option<Lsn> = None;
        for (index, question) in self.waiting.iter().enumerate() {
            if index < half && index % 2 == 0 {
                before = Some(question.flushed);
                continue;
            }
            let mut question = *question;
            if let (Some(Fault::ThinsWrongly), Some(flushed)) = (self.fault, before.take()) {
                question.flushed = flushed;
            }
            kept.push_back(question);
        }
        self.waiting = kept;
    }

    /// Takes what the node says that it shows; `timeline` is None if that is not known.
    pub fn node_answered(&mut self, replayed: Lsn, timeline: Option<Timeline>) {
        self.node = timeline.map(|timeline| Position {
            timeline,
            lsn: replayed,
        });
        self.show();
    }

    /// The session to the node is lost. The server may have crashed, and replay may begin anew before
    /// what it had reached.
    pub fn node_lost(&mut self) {
        self.node = None;
        self.shown = None;
    }

    fn show(&mut self) {
        let Some(node) = self.node else {
            return;
        };
        let is_one = Some(node.timeline) == self.timeline;
        if !is_one && self.fault != Some(Fault::TimelinesIgnored) {
            return;
        }
        while let Some(question) = self.waiting.front() {
            if question.flushed > node.lsn {
                break;
            }
            self.shown = self.shown.max(Some(question.asked));
            self.waiting.pop_front();
        }
    }

    /// The staleness; None if the node has shown nothing yet.
    pub fn at(&self, now: Moment) -> Option<Duration> {
        self.shown.map(|shown| now.saturating_sub(shown))
    }

    /// Whether an answer of the primary waits to be shown.
    pub fn awaits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The timeline that the primary is on, as far as is known.
    pub fn timeline(&self) -> Option<Timeline> {
        self.timeline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Timeline = Timeline::FIRST;

    fn ms(ms: u64) -> Moment {
        Duration::from_millis(ms)
    }

    fn at(lsn: u64) -> Position {
        Position {
            timeline: FIRST,
            lsn: lsn.into(),
        }
    }

    fn second() -> Timeline {
        Timeline::new(2).unwrap()
    }

    #[test]
    fn the_newest_question_counts_that_is_shown() {
        let mut staleness = Staleness::default();
        assert_eq!(staleness.at(ms(5)), None);
        for (asked, flushed) in [(10, 100), (20, 200), (30, 300)] {
            staleness.primary_answered(ms(asked), at(flushed));
        }
        staleness.node_answered(99.into(), Some(FIRST));
        assert_eq!(staleness.at(ms(40)), None);
        staleness.node_answered(250.into(), Some(FIRST));
        assert_eq!(staleness.at(ms(40)), Some(ms(20)));
        // Nothing is written: each question is shown at once.
        staleness.node_answered(300.into(), Some(FIRST));
        staleness.primary_answered(ms(50), at(300));
        assert_eq!(staleness.at(ms(51)), Some(ms(1)));
    }

    #[test]
    fn an_idle_primary_leaves_one_question() {
        let mut staleness = Staleness::default();
        for asked in 0..1000 {
            staleness.primary_answered(ms(asked), at(100));
        }
        assert_eq!(staleness.waiting.len(), 1);
        // An answer that comes late asks for more than a newer one.
        staleness.primary_answered(ms(500), at(150));
        assert_eq!(staleness.waiting.len(), 1);
        staleness.node_answered(100.into(), Some(FIRST));
        assert_eq!(staleness.at(ms(1000)), Some(ms(1)));
    }

    #[test]
    fn a_node_far_behind_costs_no_more_memory() {
        let mut staleness = Staleness::default();
        for asked in 0..20_000 {
            staleness.primary_answered(ms(asked), at(asked));
            assert!(staleness.waiting.len() <= MOST_QUESTIONS);
        }
        // The newest are all there, the old ones far apart.
        staleness.node_answered(19_990.into(), Some(FIRST));
        assert_eq!(staleness.at(ms(20_000)), Some(ms(10)));
    }

    #[test]
    fn another_timeline_shows_nothing() {
        let mut staleness = Staleness::default();
        staleness.primary_answered(ms(10), at(100));
        staleness.node_answered(500.into(), None);
        assert_eq!(staleness.at(ms(20)), None);
        staleness.node_answered(500.into(), Some(FIRST));
        assert_eq!(staleness.at(ms(20)), Some(ms(10)));
        let promoted = Position {
            timeline: second(),
            lsn: 400.into(),
        };
        assert!(staleness.primary_answered(ms(30), promoted));
        assert_eq!(staleness.at(ms(40)), Some(ms(30)));
        assert!(!staleness.primary_answered(ms(40), at(600)));
        staleness.node_answered(600.into(), Some(FIRST));
        assert_eq!(staleness.at(ms(50)), Some(ms(40)));
        staleness.node_answered(400.into(), Some(second()));
        assert_eq!(staleness.at(ms(50)), Some(ms(20)));
    }

    #[test]
    fn a_lost_node_has_shown_nothing() {
        let mut staleness = Staleness::default();
        staleness.primary_answered(ms(10), at(100));
        staleness.node_answered(100.into(), Some(FIRST));
        staleness.node_lost();
        assert_eq!(staleness.at(ms(20)), None);
        staleness.primary_answered(ms(20), at(100));
        assert_eq!(staleness.at(ms(20)), None);
        staleness.node_answered(100.into(), Some(FIRST));
        assert_eq!(staleness.at(ms(21)), Some(ms(1)));
    }
}
