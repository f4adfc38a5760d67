//! Every decision for every combination of what can be seen; and promotions in a world in memory, killed and
//! left by their source at every step.

use super::*;

fn replica(phase: Phase) -> Replica {
    Replica {
        name: "r".to_owned(),
        source: "host=a".to_owned(),
        system_id: "7".to_owned(),
        source_database: "app".to_owned(),
        slot: "s".to_owned(),
        publication: "s".to_owned(),
        origin: "s".to_owned(),
        exclude_schemas: Vec::new(),
        exclude_tables: Vec::new(),
        subsets: Vec::new(),
        phase,
        start: Some(1.into()),
        paused: false,
        resumes: 0,
        frequency: Duration::ZERO,
        forces: 0,
        ddl: false,
        altering: false,
        read_only: false,
        bandwidth: None,
    }
}

/// A replica that follows its source.
pub(crate) fn ready() -> Replica {
    replica(Phase::Ready)
}

/// What is seen before a promotion.
pub(crate) fn seen() -> Seen {
    Seen {
        source: SourceSays::Ends(20.into()),
        process: Process::Applies,
        spool: None,
        stands: 10.into(),
        whole_from: 5.into(),
        has_cycled: false,
        drained: Drained::NotYet,
        is_fenced: false,
        is_open: false,
        is_cleaned: false,
        has_slot: true,
        has_sequences: false,
        is_left: true,
    }
}

const PHASES: [Phase; 8] = [
    Phase::Preparing,
    Phase::Schema,
    Phase::Copying,
    Phase::Indexing,
    Phase::Finishing,
    Phase::Ready,
    Phase::Promoting,
    Phase::Promoted,
];

const BOTH: [bool; 2] = [false, true];

fn words() -> String {
    "why".to_owned()
}

/// Each combination of what a decision is made of.
fn for_all(mut check: impl FnMut(Wish, &Replica, &Seen, Next)) {
    let sources = [
        SourceSays::Ends(20.into()),
        SourceSays::Unusable(words()),
        SourceSays::Nothing(words()),
    ];
    let processes = [
        Process::Nobody,
        Process::Applies,
        Process::Blocked(words()),
        Process::Stuck(words()),
    ];
    let drains = [
        Drained::NotYet,
        Drained::To(20.into()),
        Drained::Not(words()),
    ];
    let spools = [
        None,
        Some((10.into(), 10.into())),
        Some((10.into(), 18.into())),
    ];
    for phase in PHASES {
        for bits in 0..1_u32 << 10 {
            let bit = |place: u32| bits >> place & 1 == 1;
            let wish = Wish {
                with_data_loss: bit(0),
                without_spool: bit(1),
            };
            let replica = Replica {
                paused: bit(2),
                frequency: Duration::from_secs(u64::from(bit(3))),
                ..replica(phase)
            };
            for source in &sources {
                for process in &processes {
                    for drained in &drains {
                        for spool in spools {
                            let seen = Seen {
                                source: source.clone(),
                                process: process.clone(),
                                spool,
                                whole_from: if bit(4) { 11.into() } else { 5.into() },
                                has_cycled: bit(5),
                                drained: drained.clone(),
                                is_fenced: bit(6),
                                is_open: bit(7),
                                is_cleaned: bit(8),
                                has_sequences: bit(9),
                                ..seen()
                            };
                            let next = next(wish, &replica, &seen);
                            check(wish, &replica, &seen, next);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn no_combination_promotes_what_must_not_be() {
    let mut number = 0;
    for_all(|wish, replica, seen, next| {
        number += 1;
        let is = |what: bool| assert!(what, "{next:?} {wish:?} {replica:?} {seen:?}");
        let answers = matches!(seen.source, SourceSays::Ends(_));
        match &next {
            Next::Drain(to) => {
                is(replica.phase == Phase::Ready && !replica.paused);
                is(seen.process == Process::Applies && seen.drained == Drained::NotYet);
                let all = if answers { 20 } else { 18 };
                is(*to == Lsn::from(all) && (answers || wish.with_data_loss));
            }
            Next::Begin { to, loses } => {
                is(replica.phase == Phase::Ready && !replica.paused);
                is(replica.frequency.is_zero() || seen.has_cycled);
                is(!matches!(seen.process, Process::Stuck(_)));
                is(*loses || answers && seen.drained == Drained::To(20.into()));
                is(!*loses || wish.with_data_loss && seen.stands >= seen.whole_from);
                is(to.is_some() == answers);
                // What a spool has is not left there, unless it does not fit or is gone.
                let is_alone = seen.process == Process::Nobody && seen.spool.is_some() && *loses;
                is(!is_alone || wish.without_spool);
                // A source that answers gives what it has to a process that applies.
                is(seen.process != Process::Nobody || !answers || !*loses || seen.spool.is_some());
                let has_more = seen.spool.is_some_and(|(from, to)| from < to);
                let is_drained = seen.drained == Drained::To(20.into());
                is(seen.process != Process::Applies || !has_more || is_drained);
            }
            Next::Fence => is(replica.phase == Phase::Promoting && !seen.is_fenced),
            Next::SetSequences => is(seen.is_fenced && !seen.has_sequences && answers),
            Next::RaiseSequences => {
                is(seen.is_fenced && !seen.has_sequences && !answers && wish.with_data_loss);
            }
            Next::Open => is(seen.is_fenced && seen.has_sequences && !seen.is_open),
            Next::Clean if replica.phase == Phase::Promoted => {
                is(!seen.is_cleaned && !matches!(seen.source, SourceSays::Nothing(_)));
            }
            Next::Clean => is(seen.is_fenced && seen.has_sequences && seen.is_open),
            Next::End => {
                is(replica.phase == Phase::Promoting && seen.is_fenced && seen.is_open);
                is(seen.has_sequences && seen.is_cleaned);
            }
            Next::Done => is(replica.phase == Phase::Promoted),
            Next::Refuse(words) => {
                is(replica.phase < Phase::Promoting || !seen.has_sequences);
                is(!words.is_empty());
            }
        }
    });
    assert_eq!(number, 8 * 1024 * 3 * 4 * 3 * 3);
}

#[test]
fn a_refusal_says_what_to_do() {
    let refused = |wish: Wish, replica: &Replica, seen: &Seen| match next(wish, replica, seen) {
        Next::Refuse(words) => words,
        other => panic!("{other:?}"),
    };
    let (plain, ready) = (Wish::default(), replica(Phase::Ready));
    let loss = Wish {
        with_data_loss: true,
        ..plain
    };
    let has = |words: &str, wanted: &str| assert!(words.contains(wanted), "{words}");
    has(
        &refused(plain, &replica(Phase::Copying), &seen()),
        "replica create again",
    );
    let paused = Replica {
        paused: true,
        ..ready.clone()
    };
    has(&refused(loss, &paused, &seen()), "replica resume");
    let cycling = Replica {
        frequency: Duration::from_secs(60),
        ..ready.clone()
    };
    has(&refused(loss, &cycling, &seen()), "replica force r");
    let gone = Seen {
        source: SourceSays::Nothing(words()),
        ..seen()
    };
    has(&refused(plain, &ready, &gone), "--with-data-loss");
    let alone = Seen {
        process: Process::Nobody,
        ..seen()
    };
    has(
        &refused(plain, &ready, &alone),
        "start lockstep replica run",
    );
    has(&refused(loss, &ready, &alone), "start lockstep replica run");
    // A slot that is gone gives nothing.
    let slotless = Seen {
        has_slot: false,
        ..alone.clone()
    };
    assert!(matches!(
        next(loss, &ready, &slotless),
        Next::Begin { loses: true, .. }
    ));
    let spooled = Seen {
        spool: Some((10.into(), 18.into())),
        process: Process::Nobody,
        ..gone.clone()
    };
    has(&refused(loss, &ready, &spooled), "--without-spool");
    let slow = Seen {
        spool: Some((10.into(), 18.into())),
        drained: Drained::Not(words()),
        ..gone.clone()
    };
    has(&refused(loss, &ready, &slow), "--wait");
    let torn = Seen {
        whole_from: 11.into(),
        ..gone
    };
    has(&refused(loss, &ready, &torn), "different moments");
}

/// What outlives a call.
#[derive(Debug, Clone)]
struct World {
    phase: Phase,
    /// None once the source is gone.
    source: Option<u64>,
    slot: bool,
    spool: Option<u64>,
    target: u64,
    applies: bool,
    /// What was promised when the promotion began, and whether less will do.
    to: Option<u64>,
    loses: bool,
    promoted: Option<u64>,
    has_sequences: bool,
    is_left: bool,
    /// Applications write.
    is_open: bool,
    /// Steps that were made, in all calls; the source is gone from this one on.
    steps: u32,
    source_dies: u32,
}

/// What came of a call.
#[derive(Debug, PartialEq)]
enum Call {
    Done,
    Refused(String),
    Killed,
}

impl World {
    fn new(has_spool: bool, source_dies: u32) -> Self {
        Self {
            phase: Phase::Ready,
            source: Some(20),
            slot: true,
            spool: has_spool.then_some(15),
            target: 10,
            applies: true,
            to: None,
            loses: false,
            promoted: None,
            has_sequences: false,
            is_left: true,
            is_open: false,
            steps: 0,
            source_dies,
        }
    }

    /// Time passes: the source goes on or dies, and apply does.
    fn pass(&mut self) {
        self.steps += 1;
        if self.steps >= self.source_dies {
            self.source = None;
        }
        if let Some(end) = &mut self.source {
            *end += 1;
            if let Some(spool) = &mut self.spool {
                *spool = (*end).max(*spool);
            }
        }
        // One that has not seen that the promotion has begun applies a little more.
        if self.applies && self.phase < Phase::Promoted {
            self.target = (self.target + 1).min(self.has());
        }
    }

    /// What apply can have.
    fn has(&self) -> u64 {
        let spooled = self.spool.unwrap_or(0);
        self.target.max(spooled).max(self.source.unwrap_or(0))
    }

    fn call(&mut self, wish: Wish, kill_at: Option<u32>) -> Call {
        let mut says = match self.source {
            Some(end) => SourceSays::Ends(end.into()),
            None => SourceSays::Nothing(words()),
        };
        let mut own = seen();
        for step in 0..20 {
            if kill_at == Some(step) {
                return Call::Killed;
            }
            let spool = self.spool.map(|spool| spool.max(self.target));
            let seen = Seen {
                source: says.clone(),
                process: match self.applies {
                    true => Process::Applies,
                    false => Process::Nobody,
                },
                spool: spool.map(|spool| (self.target.into(), spool.into())),
                stands: self.target.into(),
                has_sequences: self.has_sequences,
                is_left: self.is_left,
                ..own.clone()
            };
            match next(wish, &replica(self.phase), &seen) {
                Next::Refuse(words) => return Call::Refused(words),
                Next::Done => return Call::Done,
                Next::Drain(to) => {
                    own.drained = match u64::from(to) <= self.has() {
                        true => {
                            self.target = self.target.max(to.into());
                            Drained::To(to)
                        }
                        false => Drained::Not(words()),
                    };
                }
                Next::Begin { to, loses } => {
                    (self.phase, self.loses) = (Phase::Promoting, loses);
                    self.to = to.map(u64::from);
                }
                Next::Fence => {
                    self.applies = false;
                    self.promoted = self.promoted.max(Some(self.target));
                    own.is_fenced = true;
                }
                Next::SetSequences => {
                    assert!(!self.is_open, "values of applications are taken back");
                    match self.source {
                        Some(_) => self.has_sequences = true,
                        None => says = SourceSays::Nothing(words()),
                    }
                }
                Next::RaiseSequences => self.has_sequences = true,
                Next::Open => {
                    self.is_open = true;
                    own.is_open = true;
                }
                Next::Clean => {
                    own.is_cleaned = true;
                    if self.source.is_some() {
                        (self.slot, self.is_left) = (false, false);
                    }
                }
                Next::End => self.phase = Phase::Promoted,
            }
            self.pass();
        }
        panic!("it does not end: {self:?}");
    }

    fn assert_promoted(&self, began_with: u64, spooled: u64) {
        assert_eq!(self.phase, Phase::Promoted, "{self:?}");
        assert!(
            !self.applies && self.has_sequences && self.is_open,
            "{self:?}"
        );
        assert_eq!(
            self.promoted,
            Some(self.target),
            "something came later: {self:?}"
        );
        match self.loses {
            false => assert!(self.target >= self.to.unwrap().max(began_with), "{self:?}"),
            true => assert!(self.target >= spooled, "{self:?}"),
        }
        assert_eq!(self.is_left, self.slot, "{self:?}");
        assert!(!self.slot || self.source.is_none(), "{self:?}");
    }
}

#[test]
fn a_promotion_that_is_killed_at_any_step_ends_the_same() {
    let loss = Wish {
        with_data_loss: true,
        ..Wish::default()
    };
    let (mut lost, mut kept) = (0, 0);
    for has_spool in BOTH {
        for source_dies in (0..14).chain([u32::MAX]) {
            for kill_at in 0..12 {
                for kill_again in 0..12 {
                    let mut world = World::new(has_spool, source_dies);
                    let began_with = 20;
                    for kill in [Some(kill_at), Some(kill_again), None] {
                        let call = world.call(Wish::default(), kill);
                        if let Call::Refused(words) = &call {
                            assert!(world.source.is_none(), "{words} {world:?}");
                            let before = world.clone();
                            let again = world.call(Wish::default(), None);
                            assert!(matches!(again, Call::Refused(_)), "{again:?}");
                            assert_eq!(world.phase, before.phase);
                        }
                    }
                    let spooled = world.spool.unwrap_or(0);
                    assert_eq!(world.call(loss, None), Call::Done, "{world:?}");
                    world.assert_promoted(began_with, spooled);
                    match world.loses {
                        true => lost += 1,
                        false => kept += 1,
                    }
                }
            }
        }
    }
    assert!(lost > 20 && kept > 1000, "{lost} {kept}");
}
