//! The receiver's decisions, one after the other.

use std::time::{Duration, Instant};

use lockstep_spool::Standing;
use lockstep_wire::Lsn;
use lockstep_wire::stream::{FromServer, Timestamp};

use crate::receive::receiver::{
    Action, Event, RETRY, RETRY_FULL, RETRY_REFUSED, Receiver, SPARED_FOR,
};

const LOST: Event = Event::Lost { refused: false };

struct Scene {
    receiver: Receiver,
    log: Standing,
    now: Instant,
}

impl Scene {
    fn new() -> Self {
        let now = Instant::now();
        let mut receiver = Receiver::new(false, now);
        receiver.note_applied(u64::MAX.into(), false);
        Self {
            receiver,
            log: Standing {
                received: 100.into(),
                durable: 100.into(),
                open_unit: false,
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

/// With all of that applied.
fn confirm(written: u64, flushed: u64) -> Action {
    Action::Confirm {
        written: written.into(),
        flushed: flushed.into(),
        applied: flushed.into(),
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
    let applied = |applied: u64| Action::Confirm {
        written: 100.into(),
        flushed: 100.into(),
        applied: applied.into(),
    };
    let mut scene = Scene::connected();
    scene.tell(Event::Done);
    // Nobody waits: it is told when it is time.
    scene.receiver.note_applied(50.into(), false);
    scene.does(Action::Receive, Event::Nothing);
    scene.is_to(Action::Wait(Duration::from_secs(1)));
    scene.now += Duration::from_secs(1);
    scene.tell(Event::Done);
    scene.does(Action::Receive, Event::Nothing);
    scene.does(applied(50), Event::Done);
    scene.does(Action::Wait(Duration::from_secs(1)), Event::Done);
    scene.receiver.note_applied(60.into(), true);
    scene.does(Action::Receive, Event::Nothing);
    scene.does(applied(60), Event::Done);
    scene.does(Action::Wait(Duration::from_secs(1)), Event::Done);
    // What a subscriber has applied may not be durable here yet.
    scene.receiver.note_applied(300.into(), true);
    scene.does(Action::Receive, Event::Nothing);
    scene.does(applied(100), Event::Done);
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
