//! Taking a slot over from the primary, and dropping one, decided without I/O.
//!
//! [`Adoption::poll`] says what to do next, [`Adoption::handle`] is told what came of it.
//! The states, in the order in which they are entered:
//!
//! | state | entered | left | who has the slot, if the machine stops now |
//! |---|---|---|---|
//! | `Adding` | [`verdict`] allows it | the book has it: `Dropping`; no place, or its log does not reach back to it: `Passed` | the primary; perhaps the book as well |
//! | `Dropping` | the book has it, *adopting* | dropped: `Settling`; refused: `TakingBack`; no answer: `Served` | the book; perhaps the primary as well |
//! | `Settling` | the primary does not have it | the book says so: `Served` | the book |
//! | `TakingBack` | the primary keeps it | the book does not have it: `Passed` | the primary; perhaps the book as well |
//! | `Served` | | | the book |
//! | `Passed` | | | the primary |
//!
//! At every moment one of the two has the slot durably, so that no transaction can be
//! forgotten that its subscriber has not confirmed. Where both have it the book says
//! *adopting*, the relay answers for it, and the adoption is resumed at `Dropping` until the
//! primary does not have it any more. The log keeps everything from the
//! slot's position on from the moment that the book has it. That a connection was lost while the primary
//! was to drop it does not tell whether it did: then it stays adopting, too, and is not taken back.

use lockstep_client::SlotState;
use lockstep_wire::Lsn;

use crate::fault::Fault;
use crate::slots::{Active, NotAdded, Route};

/// Why a slot is not adopted whose group begins later.
pub const BEHIND: &str = "the slot is behind the beginning of its group";

/// Why a slot is not adopted that decodes transactions when they are prepared.
pub const TWO_PHASE: &str = "two-phase commit is not shared";

/// What may become of a slot of the primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The slot may be adopted where it stands, if its group has everything from there on.
    Adopt(Lsn),
    /// The primary answers, and why.
    Pass(&'static str),
    /// A process of the primary uses it.
    InUse(u32),
}

/// What may become of a slot that the primary was asked for by a session in `database`.
/// `failover`: the relay's own slots are failover slots.
pub fn verdict(found: Option<&SlotState>, database: &str, failover: bool) -> Verdict {
    let Some(found) = found else {
        return Verdict::Pass("the primary has no such slot");
    };
    if found.plugin.as_deref() != Some("pgoutput") || found.database.as_deref() != Some(database) {
        return Verdict::Pass("a slot of another plugin or database");
    }
    if found.temporary || found.invalidation.is_some() {
        return Verdict::Pass("a slot that is temporary or was invalidated");
    }
    if found.two_phase {
        return Verdict::Pass(TWO_PHASE);
    }
    if let Some(pid) = found.active_pid {
        // As a server: a subscription that has moved here comes again, and may find that
        // its old session has ended meanwhile. Passed through it would stay so.
        return Verdict::InUse(pid);
    }
    if found.failover && !failover {
        return Verdict::Pass("a failover slot, and failover is off in the configuration");
    }
    Verdict::Adopt(found.confirmed)
}

/// Whether a log has everything from `confirmed` on: it began at `start`, and its oldest
/// segment begins at `oldest`. Holds for as long as the book has a slot there.
pub fn reaches(start: Lsn, oldest: Lsn, confirmed: Lsn) -> bool {
    start.max(oldest) <= confirmed
}

/// Where a stream begins: a subscriber may have more than it has confirmed, and never asks
/// for what its slot does not need any more.
pub fn first_key(confirmed: Lsn, start: Lsn) -> Lsn {
    confirmed.max(start)
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Put it into the book, durably, as adopting, if the log has everything from it on
    /// ([`reaches`]): [`Event::Done`], [`Event::NoPlace`] or [`Event::TooLate`].
    Add,
    /// Let the primary drop the slot, if it is there: [`Event::Done`], [`Event::Refused`] or
    /// [`Event::NoAnswer`].
    DropAtPrimary,
    /// Note in the book, durably, that it is adopted.
    Settle,
    /// Remove it from the book, durably.
    TakeBack,
    /// The slot is the relay's.
    Serve,
    /// The slot is the primary's, and why.
    Pass(&'static str),
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Done,
    /// The book has as many slots as it can, or one of this name.
    NoPlace,
    /// The log begins behind it.
    TooLate,
    /// The primary has said that it does not drop it.
    Refused,
    /// The primary may have dropped it or not.
    NoAnswer,
}

impl From<NotAdded> for Event {
    fn from(why: NotAdded) -> Self {
        match why {
            NotAdded::NoPlace => Self::NoPlace,
            NotAdded::TooLate => Self::TooLate,
        }
    }
}

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Adding,
    Dropping,
    Settling,
    TakingBack,
    Served,
    Passed(&'static str),
}

#[derive(Debug)]
pub struct Adoption {
    state: State,
    /// The slot was in the book already.
    resumed: bool,
    fault: Option<Fault>,
}

impl Adoption {
    /// The adoption of a slot that only the primary has.
    pub fn begin() -> Self {
        Self {
            state: State::Adding,
            resumed: false,
            fault: None,
        }
    }

    /// The adoption of a slot that the book has as adopting.
    pub fn resume() -> Self {
        Self {
            state: State::Dropping,
            resumed: true,
            fault: None,
        }
    }

    /// This adoption with something wrong, for tests.
    #[must_use]
    pub fn with_fault(mut self, fault: Option<Fault>) -> Self {
        if fault == Some(Fault::DropsBeforeAdding) && !self.resumed {
            self.state = State::Dropping;
        }
        Self { fault, ..self }
    }

    pub fn poll(&self) -> Action {
        match self.state {
            State::Adding => Action::Add,
            State::Dropping => Action::DropAtPrimary,
            State::Settling => Action::Settle,
            State::TakingBack => Action::TakeBack,
            State::Served => Action::Serve,
            State::Passed(why) => Action::Pass(why),
        }
    }

    /// What came of the last action.
    pub fn handle(&mut self, event: Event) {
        let early = self.fault == Some(Fault::DropsBeforeAdding) && !self.resumed;
        self.state = match (self.state, event) {
            (State::Adding, Event::Done) if early => State::Settling,
            (State::Adding, Event::Done) => State::Dropping,
            (State::Adding, Event::TooLate) => State::Passed(BEHIND),
            (State::Adding, _) => State::Passed("the relay has as many slots as it can"),
            (State::Dropping, Event::Done) if early => State::Adding,
            (State::Dropping, Event::NoAnswer) if early => State::Passed("the primary is gone"),
            (State::Dropping, Event::Done) => State::Settling,
            (State::Dropping, Event::Refused) if !self.resumed => State::TakingBack,
            (State::Dropping, _) => State::Served,
            (State::Settling, _) => State::Served,
            (State::TakingBack, _) => State::Passed("the primary keeps the slot"),
            (state, _) => state,
        };
    }
}

/// What becomes of a slot of the relay that is to be dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drop {
    /// The slot is in use by this process: look again, or say so.
    InUse(u32),
    /// The primary may still have it too, and would keep WAL for it without end: look again
    /// until the adoption has settled, or say so.
    Adopting,
    /// The relay's slot is removed.
    Remove,
    /// First its copy on the primary is dropped, which it was about to go back to, then it is
    /// removed. The other way round its subscriber might be served from the copy, which stands
    /// further on.
    RemoveBoth,
}

/// What becomes of a slot that is to be dropped.
pub fn drop_slot(active: Option<Active>, route: &Route, adopting: bool) -> Drop {
    match active {
        Some(active) => Drop::InUse(active.pid),
        None if adopting => Drop::Adopting,
        None if route.leaves() => Drop::RemoveBoth,
        None => Drop::Remove,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> SlotState {
        SlotState {
            plugin: Some("pgoutput".to_owned()),
            database: Some("app".to_owned()),
            confirmed: 100.into(),
            restart: 50.into(),
            ..SlotState::default()
        }
    }

    #[test]
    fn what_the_relay_cannot_keep_is_passed() {
        let after = |change: fn(&mut SlotState)| {
            let mut found = found();
            change(&mut found);
            verdict(Some(&found), "app", false)
        };
        assert_eq!(after(|_| {}), Verdict::Adopt(100.into()));
        assert_eq!(after(|slot| slot.active_pid = Some(7)), Verdict::InUse(7));
        for passed in [
            after(|slot| slot.plugin = Some("test_decoding".to_owned())),
            after(|slot| slot.plugin = None),
            after(|slot| slot.database = Some("other".to_owned())),
            after(|slot| slot.temporary = true),
            after(|slot| slot.invalidation = Some("wal_removed".to_owned())),
            after(|slot| slot.failover = true),
            after(|slot| slot.two_phase = true),
            verdict(None, "app", false),
        ] {
            assert!(matches!(passed, Verdict::Pass(_)), "{passed:?}");
        }
        let failover = SlotState {
            failover: true,
            ..found()
        };
        let kept = verdict(Some(&failover), "app", true);
        assert_eq!(kept, Verdict::Adopt(100.into()));
    }

    /// What is done one after the other, given what comes of it.
    fn steps(mut adoption: Adoption, events: &[Event]) -> Vec<Action> {
        let mut steps = vec![adoption.poll()];
        for event in events {
            adoption.handle(*event);
            steps.push(adoption.poll());
        }
        steps
    }

    #[test]
    fn a_slot_is_in_the_book_before_the_primary_drops_it() {
        use Action::{Add, DropAtPrimary, Pass, Serve, Settle, TakeBack};
        use Event::{Done, NoAnswer, NoPlace, Refused, TooLate};
        let begun = |events: &[Event]| steps(Adoption::begin(), events);
        assert_eq!(
            begun(&[Done, Done, Done]),
            [Add, DropAtPrimary, Settle, Serve]
        );
        assert!(matches!(begun(&[NoPlace])[..], [Add, Pass(_)]));
        assert!(matches!(
            begun(&[Done, Refused, Done])[..],
            [Add, DropAtPrimary, TakeBack, Pass(_)]
        ));
        assert_eq!(begun(&[TooLate]), [Add, Pass(BEHIND)]);
        // It may be dropped: taken back, nobody would have it.
        assert_eq!(begun(&[Done, NoAnswer]), [Add, DropAtPrimary, Serve]);
        let resumed = |events: &[Event]| steps(Adoption::resume(), events);
        assert_eq!(resumed(&[Done, Done]), [DropAtPrimary, Settle, Serve]);
        assert_eq!(resumed(&[Refused]), [DropAtPrimary, Serve]);
        assert_eq!(resumed(&[NoAnswer]), [DropAtPrimary, Serve]);
    }
}
