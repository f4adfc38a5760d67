//! The sender's decisions, one after the other.

use std::time::{Duration, Instant};

use lockstep_wire::Lsn;
use lockstep_wire::backend::Report;
use lockstep_wire::stream::{FromStandby, Status, Timestamp};

use super::sender::{
    ASK_AFTER, Action, COVER_EVERY, Confirmation, Event, LONGEST_PACE, Onward, PACE, QUIET, Sender,
};

struct Scene {
    sender: Sender,
    now: Instant,
}

impl Scene {
    fn new(next: Option<Onward>) -> Self {
        let now = Instant::now();
        let mut scene = Self {
            sender: Sender::new("s", 100.into(), 110.into(), next, now),
            now,
        };
        let before = next.map(|next| match next {
            Onward::Group(at) | Onward::Primary(at) => at,
        });
        let from = 110.into();
        scene.does(Action::Open { from, before }, Event::Done);
        scene
    }

    fn is_to(&mut self, action: Action) {
        assert_eq!(self.sender.poll(self.now), action);
    }

    fn does(&mut self, action: Action, event: Event) {
        self.is_to(action);
        self.tell(event);
    }

    fn tell(&mut self, event: Event) {
        self.sender.handle(event, self.now);
    }

    fn finds_nothing(&mut self, covered: u64) {
        let covered = covered.into();
        self.does(Action::Read, Event::Nothing { covered });
    }

    /// Nothing at first, which is told at once.
    fn begins(&mut self) {
        self.finds_nothing(110);
        self.does(keepalive(110, false), Event::Done);
        self.does(Action::Wait(COVER_EVERY), woken(1));
    }

    fn finds(&mut self, sent: u64, within: bool) {
        let sent = sent.into();
        self.does(Action::Read, Event::Frames { sent, within });
    }

    fn hears(&mut self, flushed: u64, reply: bool) -> Option<Confirmation> {
        let feedback = FromStandby::Status(Status {
            written: Lsn::from(u64::MAX),
            flushed: flushed.into(),
            applied: flushed.into(),
            sent_at: Timestamp(0),
            reply,
        });
        self.sender.heard(&feedback, self.now)
    }

    /// SQLSTATE of its end, and whether the client is told.
    fn ends(&mut self) -> (String, bool) {
        match self.sender.poll(self.now) {
            Action::End { why, say } => (why.unwrap().sqlstate.to_string(), say),
            other => panic!("{other:?}"),
        }
    }
}

fn woken(sessions: usize) -> Event {
    Event::Woken { sessions }
}

fn keepalive(end: u64, reply: bool) -> Action {
    let end = end.into();
    Action::Keepalive { end, reply }
}

#[test]
fn feedback_counts_up_to_what_was_offered() {
    let mut scene = Scene::new(None);
    let heard = scene.hears(500, false).unwrap();
    assert_eq!((heard.flushed, heard.written), (110.into(), 110.into()));
    scene.finds(200, false);
    // Also before it is written: the answer may come while the rest waits.
    assert_eq!(scene.hears(500, false).unwrap().flushed, 200.into());
    scene.does(Action::Write, Event::Done);
    assert_eq!(scene.hears(150, false).unwrap().flushed, 150.into());
}

#[test]
fn what_is_covered_is_told_soon_and_when_asked() {
    let mut scene = Scene::new(None);
    scene.begins();
    scene.now += QUIET;
    scene.finds_nothing(300);
    scene.does(keepalive(300, false), Event::Done);
    scene.does(Action::Wait(COVER_EVERY), woken(1));
    // Not each time.
    scene.finds_nothing(350);
    scene.does(Action::Wait(QUIET), woken(1));
    scene.now += QUIET / 2;
    scene.finds_nothing(400);
    scene.is_to(Action::Wait(QUIET / 2));
    assert!(!scene.sender.is_urgent());
    assert_eq!(scene.hears(300, true).unwrap().flushed, 300.into());
    assert!(scene.sender.is_urgent());
    scene.tell(woken(1));
    scene.finds_nothing(400);
    scene.does(keepalive(400, false), Event::Done);
    assert!(!scene.sender.is_urgent());
}

#[test]
fn a_client_that_is_sent_transactions_is_told_each_second() {
    let mut scene = Scene::new(None);
    scene.begins();
    let step = QUIET / 2;
    for turn in 1..=20_u32 {
        scene.now += step;
        scene.finds(1000 * u64::from(turn), false);
        scene.does(Action::Write, Event::Done);
        scene.finds_nothing(1000 * u64::from(turn) + 100);
        if turn < 20 {
            scene.does(Action::Wait(QUIET.min(step * (20 - turn))), woken(1));
        }
    }
    scene.is_to(keepalive(20_100, false));
}

#[test]
fn a_silent_client_is_asked_and_then_left() {
    let mut scene = Scene::new(None);
    scene.begins();
    scene.now += ASK_AFTER;
    scene.finds_nothing(110);
    scene.does(keepalive(110, true), Event::Done);
    scene.does(Action::Wait(COVER_EVERY), woken(1));
    scene.now += ASK_AFTER / 2;
    scene.finds_nothing(110);
    scene.is_to(Action::Wait(COVER_EVERY));
    scene.now += ASK_AFTER / 2;
    assert_eq!(scene.ends(), ("57P05".to_owned(), true));

    let mut scene = Scene::new(None);
    scene.begins();
    scene.now += ASK_AFTER;
    scene.finds_nothing(110);
    scene.does(keepalive(110, true), Event::Done);
    scene.hears(110, false);
    scene.now += ASK_AFTER;
    scene.does(Action::Wait(COVER_EVERY), woken(1));
    scene.finds_nothing(110);
    scene.is_to(keepalive(110, true));
}

/// A client that has much to apply says nothing meanwhile.
#[test]
fn a_client_has_time_to_answer_after_a_backlog() {
    let mut scene = Scene::new(None);
    // A write that took long.
    scene.finds(200, false);
    scene.now += 3 * ASK_AFTER;
    scene.tell(Event::Done);
    // It is asked among what it is sent, and needs not hear of more than it was told.
    scene.does(keepalive(110, true), Event::Done);
    for _ in 0..3 {
        scene.finds(300, false);
        scene.does(Action::Write, Event::Done);
    }
    scene.finds_nothing(300);
    scene.is_to(Action::Wait(COVER_EVERY));
    scene.now += ASK_AFTER - Duration::from_secs(1);
    scene.tell(woken(1));
    scene.finds_nothing(300);
    scene.does(keepalive(300, false), Event::Done);
    scene.is_to(Action::Wait(COVER_EVERY));
    scene.now += Duration::from_secs(1);
    assert_eq!(scene.ends(), ("57P05".to_owned(), true));
}

#[test]
fn many_sessions_wait_for_each_other_and_one_never_does() {
    for (sessions, pause) in [(1, None), (3, Some(PACE * 2)), (1000, Some(LONGEST_PACE))] {
        let mut scene = Scene::new(None);
        scene.begins();
        scene.finds(200, false);
        scene.does(Action::Write, Event::Done);
        scene.finds_nothing(200);
        scene.does(Action::Wait(COVER_EVERY), woken(sessions));
        if let Some(pause) = pause {
            scene.does(Action::Pause(pause), Event::Done);
        }
        scene.is_to(Action::Read);
        scene.now += Duration::from_secs(1) - QUIET;
        scene.finds_nothing(200);
        scene.does(Action::Wait(QUIET), woken(sessions));
        scene.is_to(Action::Read);
    }
}

#[test]
fn an_altered_slot_goes_on_in_another_group() {
    for event in [
        Event::Limit,
        Event::Nothing {
            covered: 400.into(),
        },
    ] {
        let mut scene = Scene::new(Some(Onward::Group(400.into())));
        scene.does(Action::Read, event);
        scene.does(Action::NextGroup, Event::Done);
        let from = 400.into();
        scene.does(Action::Open { from, before: None }, Event::Done);
        scene.is_to(Action::Read);
    }
}

/// Sent all that is before a position from which on the slot is the primary's.
fn leaving() -> Scene {
    let mut scene = Scene::new(Some(Onward::Primary(400.into())));
    scene.finds(390, false);
    scene.does(Action::Write, Event::Done);
    scene.does(Action::Read, Event::Limit);
    scene.does(keepalive(400, true), Event::Done);
    scene.is_to(Action::Hear(COVER_EVERY));
    scene
}

#[test]
fn a_slot_goes_back_to_the_primary_once_all_is_confirmed() {
    let mut scene = leaving();
    // The client asks in each of its answers: the next keepalive comes no sooner.
    for _ in 0..3 {
        scene.hears(390, true);
        assert!(!scene.sender.is_urgent());
        scene.does(Action::Hear(COVER_EVERY), Event::Done);
    }
    scene.now += COVER_EVERY;
    scene.does(keepalive(400, true), Event::Done);
    scene.does(Action::Hear(COVER_EVERY), Event::Done);
    scene.hears(400, false);
    assert!(scene.sender.is_urgent());
    scene.tell(Event::Done);
    // The end of the copy is no error.
    scene.does(Action::EndCopy, Event::Done);
    scene.is_to(Action::Hear(ASK_AFTER));
    scene.hears(400, false);
    scene.tell(Event::ClientDone);
    assert!(scene.sender.is_urgent());
    scene.tell(Event::Done);
    scene.is_to(Action::Finish { ended: true });
}

#[test]
fn a_client_that_does_not_answer_is_sent_away() {
    let silent = ("57P05".to_owned(), true);
    let mut scene = leaving();
    scene.now += ASK_AFTER;
    assert_eq!(scene.ends(), silent);

    let mut scene = leaving();
    scene.hears(400, false);
    scene.does(Action::EndCopy, Event::Done);
    scene.now += ASK_AFTER;
    assert_eq!(scene.ends(), silent);

    let mut scene = leaving();
    scene.hears(400, false);
    scene.does(Action::EndCopy, Event::Done);
    scene.tell(Event::Stop);
    assert_eq!(scene.ends(), ("57P01".to_owned(), true));

    let mut scene = leaving();
    scene.tell(Event::ClientDone);
    scene.is_to(Action::Finish { ended: false });
}

#[test]
fn a_cancel_request_ends_the_stream_between_two_messages() {
    let mut waiting = Scene::new(None);
    waiting.begins();
    waiting.tell(Event::Canceled);
    waiting.is_to(Action::Cancel);

    let mut midway = Scene::new(None);
    midway.finds(200, true);
    midway.tell(Event::Canceled);
    midway.does(Action::Write, Event::Done);
    midway.finds(200, false);
    midway.does(Action::Write, Event::Done);
    midway.is_to(Action::Cancel);

    let mut leaving = leaving();
    leaving.tell(Event::Canceled);
    leaving.is_to(Action::Cancel);
}

#[test]
fn within_a_message_nothing_else_is_said() {
    let mut stopped = Scene::new(None);
    stopped.finds(200, true);
    stopped.does(Action::Write, Event::Done);
    stopped.tell(Event::Stop);
    assert_eq!(stopped.ends(), ("57P01".to_owned(), false));

    // A write is finished, unless the client is gone.
    let mut dropped = Scene::new(None);
    dropped.finds(200, false);
    dropped.tell(Event::Dropped);
    assert!(!dropped.sender.is_over());
    dropped.does(Action::Write, Event::Done);
    assert_eq!(dropped.ends(), ("55000".to_owned(), true));
    let mut gone = Scene::new(None);
    gone.finds(200, false);
    gone.tell(Event::ClientGone(Some(Report::fatal("08P01", "nonsense"))));
    assert!(gone.sender.is_over());
    assert_eq!(gone.ends(), ("08P01".to_owned(), false));

    // The client has ended the copy: it gets the rest of the message first.
    let mut done = Scene::new(None);
    done.finds(200, true);
    done.does(Action::Write, Event::Done);
    done.tell(Event::ClientDone);
    assert!(!done.sender.hears());
    done.finds(200, false);
    done.does(Action::Write, Event::Done);
    done.is_to(Action::Finish { ended: false });
}

/// A write to a client that takes nothing has no end of its own.
#[test]
fn a_write_is_given_up_once_its_client_takes_and_says_nothing() {
    let limit = ASK_AFTER * 2;
    assert_eq!(limit, Duration::from_secs(60));
    let mut scene = Scene::new(None);
    scene.finds(200, false);
    scene.is_to(Action::Write);
    let began = scene.now;
    assert_eq!(scene.sender.gives_up_write_at(began), began + limit);
    // One that says something is there, and has as long again.
    scene.now += limit / 2;
    scene.hears(100, false);
    assert_eq!(scene.sender.gives_up_write_at(began), scene.now + limit);
    // Whoever took the last write counts as heard.
    let next = scene.now + limit / 2;
    assert_eq!(scene.sender.gives_up_write_at(next), next + limit);
    assert!(!scene.sender.is_over());
    // Where the write stands nobody knows: nothing can be said.
    scene.now += limit;
    let event = scene.sender.takes_nothing();
    scene.tell(event);
    assert!(scene.sender.is_over());
    assert_eq!(scene.ends(), ("57P05".to_owned(), false));
}

#[test]
fn a_group_that_cannot_go_on_ends_its_sessions() {
    let mut scene = Scene::new(None);
    scene.begins();
    scene.finds_nothing(110);
    scene.is_to(Action::Wait(COVER_EVERY));
    let why = Report::error("55000", "it is gone");
    scene.tell(Event::GroupFailed(why));
    assert_eq!(scene.ends(), ("55000".to_owned(), true));
    let mut cut = Scene::new(None);
    cut.does(Action::Read, Event::Cut);
    assert_eq!(cut.ends(), ("57P01".to_owned(), true));
}
