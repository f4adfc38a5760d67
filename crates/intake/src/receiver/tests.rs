//! The receiver's decisions, one after the other.

use std::time::{Duration, Instant};

use lockstep_spool::Standing;
use lockstep_wire::Lsn;
use lockstep_wire::stream::{FromServer, Timestamp};

use super::{
    Action, AppliedByReaders, Event, RETRY_FULL, Receiver, Refusal, SPARED_FOR, Terms, Trusted,
};

const LOST: Event = Event::Lost { refused: false };

const RETRY: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
const RETRY_REFUSED: Duration = Duration::from_secs(5);

/// Terms of a relay's group.
const GROUP: Terms = Terms {
    batched: false,
    status_every: Duration::from_secs(1),
    asks: false,
    retry: RETRY,
    trusted: Trusted::After(RETRY[1]),
    refusal: Refusal::TriedAfter(RETRY_REFUSED),
    unsynced: 0,
    farewell: None,
};

/// Terms of a replica's spool.
const SPOOL: Terms = Terms {
    asks: true,
    trusted: Trusted::OnceMoved,
    refusal: Refusal::Halts,
    unsynced: 1000,
    farewell: Some(Duration::from_millis(500)),
    ..GROUP
};

struct Scene {
    receiver: Receiver,
    log: Standing,
    now: Instant,
}

impl Scene {
    fn new() -> Self {
        Self::on(GROUP)
    }

    fn on(terms: Terms) -> Self {
        let now = Instant::now();
        let mut receiver = Receiver::new(terms, now);
        receiver.note_applied(applied(u64::MAX, false));
        Self {
            receiver,
            log: Standing {
                received: 100.into(),
                durable: 100.into(),
                open_unit: false,
                cut_makes_room: false,
                most_append: usize::MAX,
            },
            now,
        }
    }

    /// Connected, and what is durable already told.
    fn connected() -> Self {
        let mut scene = Self::new();
        scene.does(Action::Connect, Event::Connected(Lsn::from(100)));
        scene.does(Action::Receive, Event::Nothing);
        scene.does(confirm(100, 100), Event::Done);
        scene.does(Action::Wait(Duration::from_secs(1)), Event::Done);
        scene
    }

    fn is_to(&mut self, action: Action) {
        assert_eq!(self.receiver.poll(self.log, self.now), action);
    }

    fn does(&mut self, action: Action, event: Event) {
        self.is_to(action);
        self.tell(event);
    }

    fn tell(&mut self, event: Event) {
        self.receiver.handle(event, self.log, self.now);
    }

    fn hears(&mut self, end: u64) {
        let mut data = Vec::new();
        FromServer::Keepalive {
            end: end.into(),
            sent_at: Timestamp(0),
            reply: false,
        }
        .encode(&mut data);
        self.is_to(Action::Receive);
        assert!(self.receiver.take_in(&data).unwrap());
    }
}

fn applied(lsn: u64, awaited: bool) -> AppliedByReaders {
    AppliedByReaders {
        lsn: lsn.into(),
        awaited,
        ask: false,
    }
}

/// A confirmation with all of that applied.
fn confirm(written: u64, flushed: u64) -> Action {
    Action::Confirm {
        written: written.into(),
        flushed: flushed.into(),
        applied: flushed.into(),
        reply: false,
    }
}

#[test]
fn what_is_durable_is_confirmed_and_nothing_else() {
    let mut scene = Scene::connected();
    scene.hears(200);
    scene.tell(Event::Nothing);
    scene.is_to(Action::Cover(200.into()));
    scene.log.received = 200.into();
    scene.tell(Event::Done);
    scene.does(Action::Sync, Event::Done);
    // Not durable yet: nothing to tell.
    scene.is_to(Action::Wait(Duration::from_secs(1)));
    scene.log.durable = 150.into();
    scene.tell(Event::Done);
    scene.does(Action::Receive, Event::Nothing);
    scene.is_to(confirm(200, 150));
    // It moves on while it is told: that is told next.
    scene.log.durable = 200.into();
    scene.tell(Event::Done);
    scene.does(Action::Wait(Duration::from_secs(1)), Event::Done);
    scene.does(Action::Receive, Event::Nothing);
    scene.does(confirm(200, 200), Event::Done);
    // Nothing moves, but it is time.
    scene.is_to(Action::Wait(Duration::from_secs(1)));
    scene.now += Duration::from_secs(1);
    scene.tell(Event::Done);
    scene.does(Action::Receive, Event::Nothing);
    scene.does(confirm(200, 200), Event::Done);
}

#[test]
fn what_is_applied_is_told_at_once_to_who_waits_for_it() {
    let told = |applied: u64| Action::Confirm {
        written: 100.into(),
        flushed: 100.into(),
        applied: applied.into(),
        reply: false,
    };
    let mut scene = Scene::connected();
    scene.tell(Event::Done);
    // Nobody waits: it is told when it is time.
    scene.receiver.note_applied(applied(50, false));
    scene.does(Action::Receive, Event::Nothing);
    scene.is_to(Action::Wait(Duration::from_secs(1)));
    scene.now += Duration::from_secs(1);
    scene.tell(Event::Done);
    scene.does(Action::Receive, Event::Nothing);
    scene.does(told(50), Event::Done);
    scene.does(Action::Wait(Duration::from_secs(1)), Event::Done);
    scene.receiver.note_applied(applied(60, true));
    scene.does(Action::Receive, Event::Nothing);
    scene.does(told(60), Event::Done);
    scene.does(Action::Wait(Duration::from_secs(1)), Event::Done);
    // What a subscriber has applied may not be durable here yet.
    scene.receiver.note_applied(applied(300, true));
    scene.does(Action::Receive, Event::Nothing);
    scene.does(told(100), Event::Done);
    scene.is_to(Action::Wait(Duration::from_secs(1)));
}

#[test]
fn a_write_that_finds_no_room_is_tried_until_there_is_some() {
    let mut scene = Scene::connected();
    scene.hears(200);
    scene.tell(Event::Nothing);
    scene.does(Action::Cover(200.into()), Event::Full);
    assert!(scene.receiver.is_blocked());
    scene.does(Action::Block, Event::Done);
    scene.does(Action::MakeRoom, Event::Freed(false));
    scene.does(Action::Rest(RETRY_FULL), Event::Done);
    scene.does(Action::Cover(200.into()), Event::Full);
    // The primary is to know that the relay is there.
    scene.now += Duration::from_secs(1);
    scene.does(Action::MakeRoom, Event::Freed(true));
    scene.does(confirm(100, 100), Event::Done);
    scene.does(Action::Cover(200.into()), Event::Done);
    scene.does(Action::Unblock, Event::Done);
    scene.does(Action::Sync, Event::Done);
    scene.is_to(Action::Wait(Duration::from_secs(1)));
}

/// A unit that has begun in a segment that is confirmed otherwise keeps it on a full disk for ever. It is
/// cut, and comes again.
#[test]
fn a_unit_that_keeps_the_disk_full_is_cut_and_asked_for_again() {
    let mut scene = Scene::connected();
    scene.hears(200);
    scene.tell(Event::Nothing);
    scene.does(Action::Cover(200.into()), Event::Full);
    scene.does(Action::Block, Event::Done);
    scene.log.open_unit = true;
    scene.log.cut_makes_room = true;
    scene.does(Action::MakeRoom, Event::Freed(true));
    scene.does(Action::Cover(200.into()), Event::Full);
    scene.does(Action::MakeRoom, Event::Freed(false));
    scene.is_to(Action::Cut);
    scene.log.open_unit = false;
    scene.log.cut_makes_room = false;
    scene.tell(Event::Done);
    scene.does(Action::Fail, Event::Done);
    scene.does(Action::Rest(RETRY[0]), Event::Done);
    scene.does(Action::Connect, Event::Connected(Lsn::from(100)));
    scene.is_to(Action::Receive);
}

#[test]
fn what_came_before_the_end_of_a_stream_is_stored() {
    let mut scene = Scene::connected();
    scene.hears(200);
    scene.tell(Event::Ended);
    scene.does(Action::Cover(200.into()), Event::Done);
    scene.log.received = 200.into();
    scene.does(Action::Sync, Event::Done);
    scene.log.open_unit = true;
    scene.is_to(Action::Cut);
    scene.log.open_unit = false;
    scene.does(Action::Fail, Event::Done);
    scene.does(Action::Rest(RETRY[0]), Event::Done);
    scene.is_to(Action::Connect);
}

#[test]
fn tries_come_more_rarely_until_one_has_lasted() {
    let mut scene = Scene::new();
    let mut rests = Vec::new();
    for _ in 0..8 {
        scene.does(Action::Connect, LOST);
        scene.does(Action::Fail, Event::Done);
        let Action::Rest(time) = scene.receiver.poll(scene.log, scene.now) else {
            panic!("it does not rest");
        };
        rests.push(time.as_millis());
        scene.tell(Event::Done);
    }
    assert_eq!(rests, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    scene.does(Action::Connect, Event::Lost { refused: true });
    scene.does(Action::Fail, Event::Done);
    scene.does(Action::Rest(RETRY_REFUSED), Event::Done);
    scene.does(Action::Connect, Event::Connected(Lsn::from(100)));
    scene.now += Duration::from_secs(6);
    scene.does(Action::Receive, LOST);
    scene.does(Action::Fail, Event::Done);
    scene.does(Action::Rest(RETRY[0]), Event::Done);
}

#[test]
fn a_unit_that_cannot_be_cut_does_not_keep_it_from_trying() {
    let mut scene = Scene::connected();
    scene.log.open_unit = true;
    scene.does(Action::Receive, LOST);
    scene.does(Action::Cut, LOST);
    scene.does(Action::Fail, Event::Done);
    scene.does(Action::Rest(RETRY[0]), Event::Done);
    scene.does(Action::Connect, LOST);
}

#[test]
fn it_stops_wherever_it_waits() {
    let blocked = |scene: &mut Scene| {
        scene.hears(200);
        scene.tell(Event::Nothing);
        scene.does(Action::Cover(200.into()), Event::Full);
        scene.does(Action::Block, Event::Done);
    };
    let waiting = |scene: &mut Scene| {
        scene.does(Action::Receive, Event::Nothing);
        scene.is_to(Action::Wait(Duration::from_secs(1)));
    };
    let resting = |scene: &mut Scene| {
        scene.does(Action::Receive, LOST);
        scene.does(Action::Fail, Event::Done);
        scene.is_to(Action::Rest(RETRY[0]));
    };
    for bring in [blocked, waiting, resting] as [fn(&mut Scene); 3] {
        let mut scene = Scene::connected();
        bring(&mut scene);
        scene.log.open_unit = true;
        scene.tell(Event::Stop);
        scene.is_to(Action::Cut);
        scene.log.open_unit = false;
        scene.does(Action::Stop, Event::Done);
        scene.is_to(Action::Stop);
    }
    let mut scene = Scene::new();
    scene.tell(Event::Stop);
    scene.is_to(Action::Stop);
    assert_eq!(scene.receiver.sent(), Lsn::INVALID);
}

/// What is sent again is held against the log before anything is stored, and nothing beyond
/// the slot's position is confirmed until then.
#[test]
fn a_stream_that_begins_before_the_logs_end_is_compared_first() {
    let mut scene = Scene::new();
    scene.does(Action::Connect, Event::Connected(40.into()));
    scene.hears(60);
    scene.does(Action::Receive, Event::Nothing);
    scene.does(confirm(40, 40), Event::Done);
    scene.does(Action::Wait(Duration::from_secs(1)), Event::Done);
    scene.hears(100);
    scene.does(Action::Receive, Event::Nothing);
    let all = Action::Compare {
        again: Vec::new(),
        all: true,
    };
    scene.does(all.clone(), Event::Done);
    scene.does(confirm(100, 100), Event::Done);
    scene.does(Action::Wait(Duration::from_secs(1)), Event::Done);

    let mut scene = Scene::new();
    scene.does(Action::Connect, Event::Connected(40.into()));
    scene.hears(130);
    scene.does(Action::Receive, Event::Nothing);
    scene.does(all, Event::Lost { refused: true });
    scene.does(Action::Fail, Event::Done);
    scene.does(Action::Rest(RETRY_REFUSED), Event::Done);
}

#[test]
fn a_connection_that_others_need_more_is_given_up_and_made_again() {
    let mut scene = Scene::connected();
    // Something is under way, and half of a unit is in the log.
    scene.tell(Event::Done);
    scene.log.open_unit = true;
    scene.tell(Event::Spare);
    scene.is_to(Action::Cut);
    scene.log.open_unit = false;
    scene.tell(Event::Done);
    scene.is_to(Action::Idle(SPARED_FOR));
    // Asked once more: there is nothing to give.
    scene.tell(Event::Spare);
    scene.does(Action::Idle(SPARED_FOR), Event::Done);
    scene.tell(Event::Spare);
    scene.does(Action::Connect, LOST);
    // A try that failed is no gift.
    scene.does(Action::Fail, Event::Done);
    scene.does(Action::Rest(RETRY[0]), Event::Done);
    scene.does(Action::Connect, Event::Connected(100.into()));
    scene.tell(Event::Spare);
    scene.is_to(Action::Idle(SPARED_FOR));
    scene.tell(Event::Stop);
    scene.is_to(Action::Stop);
}

#[test]
fn a_host_that_says_when_to_try_is_waited_for() {
    let mut scene = Scene::on(SPOOL);
    scene.is_to(Action::Halt);
    scene.does(Action::Halt, Event::Done);
    scene.does(Action::Connect, Event::Lost { refused: true });
    scene.does(Action::Fail, Event::Done);
    scene.does(Action::Halt, Event::Done);
    // What may pass is tried again.
    scene.does(Action::Connect, LOST);
    scene.does(Action::Fail, Event::Done);
    scene.does(Action::Rest(RETRY[0]), Event::Done);
    scene.does(Action::Connect, Event::Lost { refused: true });
    scene.does(Action::Fail, Event::Done);
    scene.is_to(Action::Halt);
    scene.tell(Event::Stop);
    scene.is_to(Action::Stop);
}

/// A confirmation that asks for an answer.
fn asking(flushed: u64) -> Action {
    Action::Confirm {
        written: flushed.into(),
        flushed: flushed.into(),
        applied: flushed.into(),
        reply: true,
    }
}

#[test]
fn a_host_that_takes_leave_has_all_durable_and_confirmed_before() {
    let mut scene = Scene::on(SPOOL);
    scene.does(Action::Halt, Event::Done);
    scene.does(Action::Connect, Event::Connected(100.into()));
    scene.hears(200);
    // More comes, and little is not durable.
    scene.tell(Event::Done);
    scene.does(Action::Cover(200.into()), Event::Done);
    scene.log.received = 200.into();
    let told = Action::Confirm {
        written: 200.into(),
        flushed: 100.into(),
        applied: 100.into(),
        reply: true,
    };
    scene.does(told, Event::Done);
    scene.tell(Event::Stop);
    scene.is_to(Action::Sync);
    scene.log.durable = 200.into();
    scene.tell(Event::Done);
    scene.does(confirm(200, 200), Event::Done);
    scene.does(Action::Leave(Duration::from_millis(500)), Event::Done);
    scene.is_to(Action::Stop);
}

#[test]
fn an_answer_is_asked_for_when_it_is_time_and_when_the_host_wants_one() {
    let mut scene = Scene::on(SPOOL);
    scene.does(Action::Halt, Event::Done);
    scene.does(Action::Connect, Event::Connected(100.into()));
    scene.does(Action::Receive, Event::Nothing);
    scene.does(asking(100), Event::Done);
    scene.does(Action::Wait(Duration::from_secs(1)), Event::Done);
    let ask = AppliedByReaders {
        ask: true,
        ..applied(u64::MAX, false)
    };
    scene.receiver.note_applied(ask);
    // It is asked until the source is told.
    scene.receiver.note_applied(applied(u64::MAX, false));
    scene.does(Action::Receive, Event::Nothing);
    scene.does(asking(100), Event::Done);
    scene.is_to(Action::Wait(Duration::from_secs(1)));
    scene.now += Duration::from_secs(1);
    scene.tell(Event::Done);
    scene.does(Action::Receive, Event::Nothing);
    scene.does(asking(100), Event::Done);
}

#[test]
fn one_on_which_something_was_confirmed_is_followed_by_the_shortest_pause() {
    let mut scene = Scene::on(SPOOL);
    scene.does(Action::Halt, Event::Done);
    let mut rest_after = |moves: bool| {
        scene.does(Action::Connect, Event::Connected(100.into()));
        scene.does(Action::Receive, Event::Nothing);
        scene.log.durable = 100.into();
        scene.does(asking(100), Event::Done);
        scene.does(Action::Wait(Duration::from_secs(1)), Event::Done);
        if moves {
            scene.log.received = 150.into();
            scene.log.durable = 150.into();
            scene.does(Action::Receive, Event::Nothing);
            scene.does(confirm(150, 150), Event::Done);
            scene.does(Action::Wait(Duration::from_secs(1)), LOST);
        } else {
            scene.does(Action::Receive, LOST);
        }
        scene.does(Action::Fail, Event::Done);
        let Action::Rest(time) = scene.receiver.poll(scene.log, scene.now) else {
            panic!("it does not rest");
        };
        scene.tell(Event::Done);
        scene.log.received = 100.into();
        time.as_millis()
    };
    let rests = [false, false, false, true, false].map(&mut rest_after);
    assert_eq!(rests, [100, 200, 400, 100, 200]);
}
