//! Switchovers in a world in memory, killed and failing at every step. Clients write whenever somebody takes
//! their writes; at no time may two servers take them, and no write may be lost.

use super::*;
use crate::lifecycle::promotion::{SourceSays, tests_replica, tests_seen};

/// What outlives a call, and what it is made of.
#[derive(Debug, Clone)]
struct World {
    phase: Phase,
    stage: SwitchStage,
    /// Writes that each server has; the source's WAL ends after as many as it has.
    source: u64,
    target: u64,
    applies: bool,
    has_slot: bool,
    has_sequences: bool,
    is_left: bool,
    is_planted: bool,
    is_closed: bool,
    /// Whether [`Step::Close`] does anything.
    closes: bool,
    /// Somebody takes the fence away once, after the drain.
    is_broken: bool,
    /// A client begins a transaction of two phases at each step whose number this divides, and ends it at its
    /// next: through the pooler, or beside it. 0: none. `u32::MAX`: one is prepared, and never ended.
    two_phases: u32,
    is_prepared: bool,
    is_fenced: bool,
    is_open: bool,
    clients: Clients,
    is_redirected: bool,
    /// Where the way back begins: None if it is not made, 0 if it is only prepared.
    way_back: Option<u64>,
    wants_way_back: bool,
    /// Writes that were acknowledged.
    written: u64,
    /// Calls and attempts so far that fail at a step, by its number.
    fails_at: Option<u32>,
    steps: u32,
    /// Attempts to fence the source.
    tries: u32,
}

#[derive(Debug, PartialEq)]
enum Call {
    Done,
    Refused(String),
    Killed,
}

/// What a call knows.
#[derive(Debug)]
struct Known {
    promotion: promotion::Seen,
    failure: Option<String>,
    is_late: bool,
    is_analyzed: bool,
    is_armed: bool,
    is_surely_planted: bool,
    is_surely_closed: bool,
    is_whole: bool,
    fence: Option<Lsn>,
    compared: Compared,
}

impl Known {
    fn of(world: &World) -> Self {
        let is_killed = world.phase == Phase::Ready && world.stage.is_begun();
        Self {
            promotion: promotion::Seen {
                drained: Drained::NotYet,
                ..tests_seen()
            },
            failure: is_killed.then(|| "killed".to_owned()),
            is_late: false,
            is_analyzed: false,
            is_armed: false,
            is_surely_planted: false,
            is_surely_closed: false,
            is_whole: false,
            fence: None,
            compared: Compared::NotYet,
        }
    }

    /// Another attempt begins.
    fn begin_anew(&mut self) {
        (self.failure, self.fence, self.compared) = (None, None, Compared::NotYet);
        (self.is_late, self.is_whole) = (false, false);
        self.promotion.drained = Drained::NotYet;
    }
}

impl World {
    fn new(has_pooler: bool, wants_way_back: bool, fails_at: Option<u32>) -> Self {
        Self {
            phase: Phase::Ready,
            stage: SwitchStage::None,
            source: 20,
            target: 10,
            applies: true,
            has_slot: true,
            has_sequences: false,
            is_left: true,
            is_planted: false,
            is_closed: false,
            closes: true,
            is_broken: false,
            two_phases: 0,
            is_prepared: false,
            is_fenced: false,
            is_open: false,
            clients: if has_pooler {
                Clients::Flow
            } else {
                Clients::Direct
            },
            is_redirected: false,
            way_back: None,
            wants_way_back,
            written: 20,
            fails_at,
            steps: 0,
            tries: 0,
        }
    }

    /// Clients write, and apply goes on.
    fn pass(&mut self) {
        self.steps += 1;
        assert!(
            !self.is_open || self.is_fenced,
            "both servers take writes: {self:?}"
        );
        // A client that looks for a server that takes writes finds the target once the source takes none.
        assert!(
            !self.is_fenced || self.is_closed || self.is_open,
            "the target takes writes before it opens: {self:?}"
        );
        if self.clients != Clients::Wait {
            if self.is_open && (self.is_redirected || self.clients == Clients::Direct) {
                self.target += 1;
                self.written += 1;
            } else if !self.is_fenced {
                self.source += 1;
                self.written += 1;
            }
        }
        let goes_on = self.clients != Clients::Wait && self.two_phases != u32::MAX;
        if self.is_prepared && goes_on {
            self.is_prepared = false;
        } else if goes_on && self.two_phases > 0 && self.steps % self.two_phases == 0 {
            self.is_prepared = !self.is_fenced && !self.is_open;
        }
        if self.applies && self.phase == Phase::Ready {
            self.target = (self.target + 3).min(self.source);
        }
    }

    fn way(&self) -> WayBack {
        match (self.wants_way_back, self.way_back) {
            (false, _) => WayBack::NotWanted,
            (true, None) => WayBack::Missing,
            (true, Some(0)) => WayBack::Prepared,
            (true, Some(_)) => WayBack::Ready,
        }
    }

    fn call(&mut self, kill_at: Option<u32>, is_late_at: Option<u32>, patience: u32) -> Call {
        let mut known = Known::of(self);
        for step in 0..patience + 60 {
            if kill_at == Some(step) {
                return Call::Killed;
            }
            known.is_late |= is_late_at == Some(step);
            let seen = self.see(&mut known, step >= patience);
            let replica = Replica {
                phase: self.phase,
                ..tests_replica()
            };
            match next(&replica, &seen) {
                Step::Refuse(words) => return Call::Refused(words),
                Step::Done => return Call::Done,
                step => self.take(step, &mut known),
            }
            self.pass();
        }
        panic!("it does not end: {self:?}");
    }

    fn see(&self, known: &mut Known, is_overdue: bool) -> SwitchSeen {
        known.promotion.stands = self.target.into();
        known.promotion.has_sequences = self.has_sequences;
        known.promotion.is_left = self.is_left;
        known.promotion.source = SourceSays::Ends(self.source.into());
        SwitchSeen {
            stage: self.stage,
            refusal: None,
            waits: (self.target + 3 < self.source).then(|| "behind".to_owned()),
            failure: known.failure.clone(),
            is_overdue,
            is_late: known.is_late,
            is_analyzed: known.is_analyzed,
            is_armed: known.is_armed,
            clients: self.clients,
            way_back: self.way(),
            is_planted: self.is_planted,
            is_surely_planted: known.is_surely_planted,
            is_closed: self.is_closed,
            is_surely_closed: known.is_surely_closed,
            is_fenced: self.is_fenced && self.phase == Phase::Ready,
            fence: known.fence,
            compared: known.compared.clone(),
            is_whole: known.is_whole,
            is_redirected: self.is_redirected,
            promotion: known.promotion.clone(),
        }
    }

    fn take(&mut self, step: Step, known: &mut Known) {
        let fails = self.fails_at == Some(self.steps);
        let mut fail = |words: &str| known.failure = Some(words.to_owned());
        match step {
            Step::Refuse(_) | Step::Done => {}
            Step::Analyze => known.is_analyzed = true,
            Step::Prepare => self.way_back = Some(0),
            Step::Unprepare => self.way_back = None,
            Step::Arm => known.is_armed = true,
            Step::Wait(_) => known.begin_anew(),
            Step::Begin => {
                self.stage = match self.clients {
                    Clients::Direct => SwitchStage::Begun,
                    _ => SwitchStage::Pooled,
                };
            }
            Step::Plant => {
                self.is_planted = true;
                match fails {
                    true => fail("not planted"),
                    false => known.is_surely_planted = true,
                }
            }
            Step::Close if fails => {
                self.is_closed = true;
                fail("not closed");
            }
            Step::Close => (self.is_closed, known.is_surely_closed) = (self.closes, true),
            Step::Pause if fails => fail("no pause"),
            Step::Pause => self.clients = Clients::Wait,
            Step::Fence => {
                // One that fails may be there in part.
                (self.is_fenced, self.tries) = (true, self.tries + 1);
                assert!(known.is_surely_planted);
                match fails || self.is_prepared {
                    true => fail("prepared: 'gid 7'"),
                    false => known.fence = Some(self.source.into()),
                }
            }
            Step::Drain(to) => {
                assert!(self.is_fenced && Lsn::from(self.source) == to, "{self:?}");
                known.promotion.drained = match fails {
                    true => Drained::Not("late".to_owned()),
                    false => Drained::To(to),
                };
                if !fails {
                    self.target = self.source;
                }
            }
            Step::Compare if fails => fail("differs"),
            Step::Compare => {
                assert_eq!(self.source, self.target);
                known.compared = Compared::Equal;
            }
            Step::Look if self.is_broken => {
                self.is_broken = false;
                fail("the fence is broken");
            }
            Step::Look => known.is_whole = true,
            Step::Promotion(next) => self.promote(&next, &mut known.promotion),
            Step::Reverse | Step::Redirect | Step::Resume | Step::Finish => self.go_over(&step),
            Step::Unfence | Step::Unclose | Step::Uproot | Step::Forget => {
                self.take_back(&step, known);
            }
        }
    }

    /// What leads clients, and lets the source follow the target.
    fn go_over(&mut self, step: &Step) {
        match step {
            Step::Reverse => {
                assert!(!self.applies && !self.is_open, "{self:?}");
                self.way_back = Some(self.target);
            }
            Step::Redirect => {
                assert!(self.is_open);
                self.is_redirected = true;
            }
            Step::Resume => {
                assert!(self.is_redirected || !self.is_fenced, "{self:?}");
                self.clients = Clients::Flow;
            }
            _ => self.stage = SwitchStage::Done,
        }
    }

    /// What ends an attempt.
    fn take_back(&mut self, step: &Step, known: &mut Known) {
        match step {
            Step::Unfence => {
                assert_eq!(self.phase, Phase::Ready);
                self.is_fenced = false;
                known.failure.get_or_insert_with(|| "late".to_owned());
                known.is_armed = false;
            }
            Step::Unclose => {
                known.failure.get_or_insert_with(|| "late".to_owned());
                (self.is_closed, known.is_surely_closed) = (false, false);
            }
            Step::Uproot => {
                assert!(!self.is_fenced && !self.is_closed, "{self:?}");
                (self.is_planted, known.is_surely_planted) = (false, false);
            }
            _ => {
                assert!(!self.is_planted, "{self:?}");
                self.stage = SwitchStage::None;
            }
        }
    }

    fn promote(&mut self, next: &Next, own: &mut promotion::Seen) {
        match next {
            Next::Begin { to, loses } => {
                assert!(!loses && *to == Some(self.source.into()), "{self:?}");
                assert!(!self.is_prepared && !self.is_broken, "{self:?}");
                self.phase = Phase::Promoting;
            }
            Next::Fence => {
                self.applies = false;
                own.is_fenced = true;
            }
            Next::SetSequences => {
                assert!(!self.is_open);
                self.has_sequences = true;
            }
            Next::Open => {
                assert!(self.is_fenced && !self.applies && self.has_sequences);
                assert!(!self.wants_way_back || self.way_back > Some(0), "{self:?}");
                (self.is_open, self.is_closed) = (true, false);
                own.is_open = true;
            }
            Next::Clean => {
                own.is_cleaned = true;
                (self.has_slot, self.is_left) = (false, false);
            }
            Next::End => self.phase = Phase::Promoted,
            other => panic!("{other:?} {self:?}"),
        }
    }

    fn assert_switched(&self, began_at: u64) {
        assert_eq!(self.phase, Phase::Promoted, "{self:?}");
        assert!(self.is_fenced && self.is_open && !self.has_slot, "{self:?}");
        assert!(
            self.clients != Clients::Wait && self.is_redirected,
            "{self:?}"
        );
        // Each write that was acknowledged is there, and the way back has all from the opening on.
        assert_eq!(self.target, self.written, "{self:?}");
        assert!(self.source >= began_at);
        if self.wants_way_back {
            assert_eq!(self.way_back, Some(self.source), "{self:?}");
        }
    }

    fn assert_untouched(&self) {
        assert_eq!(
            (self.phase, self.stage),
            (Phase::Ready, SwitchStage::None),
            "{self:?}"
        );
        assert!(
            !self.is_fenced && !self.is_closed && !self.is_planted && !self.is_open,
            "{self:?}"
        );
        assert_ne!(self.clients, Clients::Wait, "{self:?}");
        assert_eq!(
            (self.source, self.way_back),
            (self.written, None),
            "{self:?}"
        );
    }
}

use lockstep_wire::Lsn;

const BOTH: [bool; 2] = [false, true];

#[test]
fn a_switchover_that_is_killed_and_fails_at_any_step_ends_the_same() {
    let mut retried = 0;
    for has_pooler in BOTH {
        for wants_way_back in BOTH {
            for fails_at in (0..18).map(Some).chain([None]) {
                for late in (0..22).map(Some).chain([None]) {
                    for kill_at in 0..26 {
                        let mut world = World::new(has_pooler, wants_way_back, fails_at);
                        let began_at = world.source;
                        for (kill, late) in [(Some(kill_at), late), (Some(kill_at / 2), None)] {
                            world.call(kill, late, 50);
                        }
                        assert_eq!(world.call(None, None, 50), Call::Done, "{world:?}");
                        world.assert_switched(began_at);
                        assert_eq!(world.call(None, None, 50), Call::Done);
                        retried += u32::from(world.tries > 1);
                    }
                }
            }
        }
    }
    assert!(retried > 1_000, "{retried}");
}

#[test]
#[should_panic(expected = "the target takes writes before it opens")]
fn a_target_that_takes_writes_before_it_opens_is_noticed() {
    let mut world = World::new(false, true, None);
    world.closes = false;
    world.call(None, None, 50);
}

#[test]
fn transactions_of_two_phases_are_waited_for_and_one_that_never_ends_is_named() {
    let mut retried = 0;
    for has_pooler in BOTH {
        // None shares a factor with the number of steps of an attempt: that would meet the same step each
        // time.
        for two_phases in [5, 7, 11] {
            for kill_at in 0..40 {
                let mut world = World::new(has_pooler, true, None);
                world.two_phases = two_phases;
                world.call(Some(kill_at), None, 1_000);
                assert_eq!(world.call(None, None, 1_000), Call::Done, "{world:?}");
                world.assert_switched(20);
                retried += u32::from(world.tries > 1);
            }
        }
        let mut world = World::new(has_pooler, true, None);
        (world.two_phases, world.is_prepared) = (u32::MAX, true);
        let Call::Refused(words) = world.call(None, None, 40) else {
            panic!("{world:?}");
        };
        assert!(words.contains("gid 7"), "{words}");
        world.assert_untouched();
    }
    assert!(retried > 20, "{retried}");
}

#[test]
fn a_fence_that_is_taken_away_after_the_drain_takes_the_attempt_back() {
    let mut world = World::new(true, true, None);
    world.is_broken = true;
    assert_eq!(world.call(None, None, 60), Call::Done);
    world.assert_switched(20);
    assert_eq!(world.tries, 2);
}

#[test]
fn one_whose_time_is_up_leaves_nothing() {
    let mut refused = 0;
    for has_pooler in BOTH {
        for wants_way_back in BOTH {
            for late in 0..20 {
                let mut world = World::new(has_pooler, wants_way_back, None);
                match world.call(None, Some(late), 5) {
                    Call::Refused(_) => {
                        refused += 1;
                        world.assert_untouched();
                    }
                    call => {
                        assert_eq!(call, Call::Done);
                        world.assert_switched(20);
                    }
                }
            }
        }
    }
    assert!(refused > 10, "{refused}");
}

#[test]
fn clients_that_wait_although_it_is_done_are_led_on() {
    let mut world = World::new(true, false, None);
    assert_eq!(world.call(None, None, 50), Call::Done);
    (world.clients, world.is_redirected) = (Clients::Wait, false);
    assert_eq!(world.call(None, None, 50), Call::Done);
    world.assert_switched(20);
}

#[test]
fn what_is_no_switchover_is_refused() {
    for (phase, stage) in [
        (Phase::Promoting, SwitchStage::None),
        (Phase::Promoted, SwitchStage::None),
        (Phase::Copying, SwitchStage::None),
    ] {
        let mut world = World::new(false, false, None);
        (world.phase, world.stage) = (phase, stage);
        let refused = world.call(None, None, 50);
        assert!(matches!(refused, Call::Refused(_)), "{phase:?}");
    }
}

#[test]
fn a_way_back_that_is_half_made_is_made_anew_or_removed() {
    let world = World::new(false, true, None);
    let seen = SwitchSeen {
        way_back: WayBack::Part,
        is_analyzed: true,
        ..world.see(&mut Known::of(&world), false)
    };
    assert_eq!(next(&tests_replica(), &seen), Step::Prepare);
    let refused = SwitchSeen {
        refusal: Some("no".to_owned()),
        ..seen
    };
    assert_eq!(next(&tests_replica(), &refused), Step::Unprepare);
}
