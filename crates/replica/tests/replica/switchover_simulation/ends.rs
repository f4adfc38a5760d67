//! Both ends of a switchover, as its driver reaches them.

use std::time::{Duration, Instant};

use lockstep_client::ClientError;
use lockstep_replica::error::{ReplicaError, Result};
use lockstep_replica::lifecycle::fence::{self, Fenced};
use lockstep_replica::lifecycle::promotion::{
    Drained, Next, Part, Process, Seen, SourceSays, parts,
};
use lockstep_replica::state::{Phase, Replica, SwitchStage};
use lockstep_replica::switchover::decision::{Clients, WayBack};
use lockstep_replica::switchover::drive::{Compare, Drive, Limits, Opens, Servers};
use lockstep_replica::switchover::left::Left;
use lockstep_wire::Lsn;

use super::database::{Database, Hold, ReplicaRow};
use super::session::Session;
use super::world::{Plant, Pooler, SharedWorld, Trouble, World, names};
use crate::begun;

/// What connects to both ends.
pub struct Command {
    pub world: SharedWorld,
    pub number: u32,
    pub limits: Limits,
    /// The user ends it then.
    pub stops: Option<Instant>,
}

/// Both ends, as one command sees them.
pub struct Ends {
    world: SharedWorld,
    number: u32,
    stops: Option<Instant>,
    state: Session,
    source: Option<Session>,
    /// The session of the source's state for the way back.
    way: Option<Session>,
    replica: Replica,
    says: SourceSays,
    is_fenced: bool,
    is_open: bool,
    is_cleaned: bool,
    /// This command has begun it.
    has_begun: bool,
}

fn on_target<T>(done: Result<T, ClientError>) -> Result<T> {
    done.map_err(ReplicaError::Target)
}

fn on_source<T>(done: Result<T, ClientError>) -> Result<T> {
    done.map_err(ReplicaError::Source)
}

impl Opens for Command {
    type Servers = Ends;
    type Done = bool;

    fn now(&self) -> Instant {
        self.world.borrow().now
    }

    fn rest(&mut self, time: Duration) {
        self.world.borrow_mut().passes(time);
    }

    fn is_stopped(&self) -> bool {
        self.stops.is_some_and(|at| at <= self.now())
    }

    fn says(&mut self, words: &str) {
        self.world.borrow().say(|| words.to_owned());
    }

    fn open(&mut self, timeout: Duration) -> Result<Drive<Ends>> {
        let target = self.world.borrow().target();
        let state = Session::connect(&self.world, target)?;
        let mut ends = Ends {
            world: self.world.clone(),
            number: self.number,
            stops: self.stops,
            state,
            source: None,
            way: None,
            replica: replica(names(1 - target).0),
            says: SourceSays::Nothing("it was not asked".to_owned()),
            is_fenced: false,
            is_open: false,
            is_cleaned: false,
            has_begun: false,
        };
        ends.refresh()?;
        let is_left = ends.row(|row| row.is_left)?;
        if ends.replica.phase == Phase::Ready || is_left {
            let asked = ends.source().and_then(|source| on_source(source.mark()));
            ends.says = match asked {
                Ok(end) => SourceSays::Ends(end),
                Err(error) => SourceSays::Nothing(error.to_string()),
            };
        }
        ends.wait_for_apply();
        Drive::open(
            ends,
            Limits {
                timeout,
                ..self.limits
            },
        )
    }

    fn done(&mut self, _: Drive<Ends>, is_again: bool) -> Result<bool> {
        Ok(is_again)
    }

    fn unknown(&self, error: ReplicaError) -> ReplicaError {
        error
    }
}

fn replica(name: &str) -> Replica {
    Replica {
        source: "host=source".to_owned(),
        source_database: "app".to_owned(),
        phase: Phase::Ready,
        ..begun(name, name)
    }
}

impl Ends {
    fn plant(&self) -> Option<Plant> {
        self.world.borrow().plant
    }

    /// Does something at the pooler's console, if there is one, unless something goes wrong.
    fn console(&self, what: &str, effect: impl FnOnce(&mut Pooler)) -> Result<()> {
        let world = &mut *self.world.borrow_mut();
        world.passes(Duration::from_millis(1));
        if world.pooler.is_none() {
            return Ok(());
        }
        let trouble = world.trouble();
        if trouble == Some(Trouble::KilledBefore) {
            world.kill();
        }
        world.say(|| format!("pooler: {what}"));
        world.pooler.as_mut().map(effect);
        match trouble {
            Some(Trouble::KilledAfter) => world.kill(),
            Some(Trouble::LostAfter) => Err(ReplicaError::State("the console is lost".to_owned())),
            _ => Ok(()),
        }
    }

    fn names(&self) -> (&'static str, &'static str) {
        names(self.world.borrow().source)
    }

    /// Reads the replica's row in the target's state.
    fn row<T>(&mut self, read: impl FnOnce(&ReplicaRow) -> T) -> Result<T> {
        let name = self.names().0;
        on_target(
            self.state
                .database("reads the state", |it| read(&it.replicas[name])),
        )
    }

    /// Changes it.
    fn keep(&mut self, what: &str, change: impl FnOnce(&mut ReplicaRow)) -> Result<()> {
        let name = self.names().0;
        on_target(self.state.database(what, |it| {
            change(it.replicas.get_mut(name).unwrap());
            it.commit(false);
        }))
    }

    /// Reads or changes what the source's state has of the way back.
    fn back<T>(&mut self, what: &str, does: impl FnOnce(&mut Database) -> T) -> Result<T> {
        if self.way.as_ref().is_none_or(Session::is_lost) {
            let side = self.world.borrow().source;
            self.way = Some(Session::connect(&self.world, side)?);
        }
        on_source(self.way.as_mut().unwrap().database(what, does))
    }

    fn part(&mut self, part: Part) -> Result<()> {
        let name = self.names().0;
        match part {
            Part::Drain(_) | Part::RaiseSequences => unreachable!("it is not asked for"),
            Part::KeepBegun { .. } => self.keep_begun(),
            Part::EndHold => self.end_hold(),
            Part::Lock => self.wait_for(Duration::from_secs(30), "the lock", |world| {
                !world.apply.has_lock
            }),
            Part::KeepStands => on_target(self.state.database("keeps where it stands", |it| {
                it.commit(false);
            })),
            // A process that has lost the lock looks at the state before it begins again.
            Part::DropOrigins => self.wait_for(Duration::from_secs(30), "an origin", |world| {
                !world.apply.has_lock
            }),
            Part::SetSequences => {
                let source = self.source().and_then(|source| on_source(source.setting()));
                match source {
                    Ok(_) => self.keep("keeps that sequences are set", |row| {
                        row.has_sequences = true
                    }),
                    Err(error) => {
                        self.says = SourceSays::Nothing(error.to_string());
                        Ok(())
                    }
                }
            }
            Part::Pass(fence) => on_target(fence::pass(&mut self.state, fence)),
            Part::OpenDatabase => {
                self.is_open = true;
                on_target(self.state.database("opens the database", |it| {
                    if it.setting.as_deref() == Some("on") {
                        it.setting = None;
                        it.commit(false);
                    }
                }))
            }
            Part::Clean => {
                self.is_cleaned = true;
                let dropped = self.source().and_then(|source| {
                    on_source(source.database("drops the slot", |it| {
                        it.slots.remove(name);
                        it.commit(false);
                    }))
                });
                match dropped {
                    Ok(()) => {
                        self.keep("keeps that the source is clean", |row| row.is_left = false)
                    }
                    Err(_) => Ok(()),
                }
            }
            Part::Remove(fence) => on_target(fence::remove(&mut self.state, fence)).map(drop),
            Part::KeepEnded => self.keep("keeps the end", |row| row.phase = Phase::Promoted),
        }
    }

    /// From here on there is only forward: all that was committed on the source is to be here.
    fn keep_begun(&mut self) -> Result<()> {
        let name = self.names().0;
        on_target(self.state.does("keeps that it is promoted", |world, side| {
            let lacking = world.lacking(1 - side, side);
            if !lacking.is_empty() {
                world.fails(format!("the target lacks {lacking:?} when it is promoted"));
            }
            let database = &mut world.sides[side];
            let row = database.replicas.get_mut(name).unwrap();
            if row.phase == Phase::Ready {
                (row.phase, row.is_left) = (Phase::Promoting, true);
                database.commit(false);
            }
        }))
    }

    /// Waits until something is so; an error after `patience`.
    fn wait_for(
        &mut self,
        patience: Duration,
        what: &str,
        is_so: impl Fn(&World) -> bool,
    ) -> Result<()> {
        let until = self.now() + patience;
        while !on_target(self.state.does("waits", |world, _| is_so(world)))? {
            if self.now() >= until {
                return Err(ReplicaError::State(format!("waited for too long: {what}")));
            }
            self.rest(Duration::from_millis(20));
        }
        Ok(())
    }

    /// One that has just begun is given the time to say so.
    fn wait_for_apply(&mut self) {
        let until = self.now() + Duration::from_secs(5);
        let is_ready = self.replica.phase == Phase::Ready;
        while is_ready && !self.world.borrow().apply.has_lock && self.now() < until {
            self.rest(Duration::from_millis(20));
        }
    }
}

impl Servers for Ends {
    type Session = Session;

    fn now(&self) -> Instant {
        self.world.borrow().now
    }

    fn rest(&mut self, time: Duration) {
        self.world.borrow_mut().passes(time);
    }

    fn is_stopped(&self) -> bool {
        self.stops.is_some_and(|at| at <= self.now())
    }

    fn says(&mut self, words: &str) {
        self.world.borrow().say(|| words.to_owned());
    }

    fn source(&mut self) -> Result<&mut Session> {
        if self.source.as_ref().is_none_or(Session::is_lost) {
            let side = self.world.borrow().source;
            self.source = Some(Session::connect(&self.world, side)?);
        }
        Ok(self.source.as_mut().unwrap())
    }

    fn state(&mut self) -> &mut Session {
        &mut self.state
    }

    fn target(&mut self) -> Result<Session> {
        let side = self.world.borrow().target();
        Session::connect(&self.world, side)
    }

    fn replica(&self) -> &Replica {
        &self.replica
    }

    fn refresh(&mut self) -> Result<()> {
        let is_hidden = self.plant() == Some(Plant::PhaseNotSeen) && !self.has_begun;
        let phase = self.row(|row| row.phase)?;
        self.replica.phase = match is_hidden && phase == Phase::Promoting {
            true => Phase::Ready,
            false => phase,
        };
        Ok(())
    }

    fn take_hold(&mut self) -> Result<()> {
        let number = self.number;
        let other = on_target(self.state.database("takes the hold", |it| {
            let other = it.taken.filter(|taken| *taken != number);
            it.taken.get_or_insert(number);
            other
        }))?;
        other.map_or(Ok(()), |other| {
            Err(ReplicaError::State(format!("command {other} has it")))
        })
    }

    fn end_hold(&mut self) -> Result<()> {
        on_target(self.state.database("ends the hold", |it| it.hold = None))
    }

    fn stage(&mut self) -> Result<SwitchStage> {
        let is_hidden = self.plant() == Some(Plant::StageNotSeen) && !self.has_begun;
        let stage = self.row(|row| row.stage)?;
        Ok(match is_hidden && stage.is_begun() {
            true => SwitchStage::None,
            false => stage,
        })
    }

    fn begin(&mut self) -> Result<SwitchStage> {
        let stage = match self.world.borrow().pooler {
            Some(_) => SwitchStage::Pooled,
            None => SwitchStage::Begun,
        };
        self.set_stage(stage)?;
        Ok(stage)
    }

    fn set_stage(&mut self, stage: SwitchStage) -> Result<()> {
        self.has_begun = true;
        self.keep("keeps the stage", |row| row.stage = stage)
    }

    fn clients(&mut self, _: SwitchStage) -> Result<Clients> {
        Ok(match &self.world.borrow().pooler {
            None => Clients::Direct,
            Some(pooler) if pooler.waits => Clients::Wait,
            Some(_) => Clients::Flow,
        })
    }

    fn way_back(&mut self, is_ready: bool) -> Result<(WayBack, Option<String>)> {
        if !self.world.borrow().wants_way_back {
            return Ok((WayBack::NotWanted, None));
        }
        let name = self.names().1;
        let own = self.back("reads the way back", |it| it.replicas.get(name).cloned())?;
        let has_slot = on_target(
            self.state
                .database("looks for its slot", |it| it.slots.contains_key(name)),
        )?;
        let Some(own) = own else {
            return Ok((WayBack::Missing, None));
        };
        let is_early = self.plant() == Some(Plant::WayBackNotBegun);
        Ok(match (own.phase, is_ready) {
            (Phase::Preparing, false) if is_early => (WayBack::Ready, None),
            (Phase::Preparing, _) if has_slot && own.has_tables => (WayBack::Prepared, None),
            (Phase::Ready, false) => (WayBack::Ready, None),
            (Phase::Preparing, _) => (WayBack::Part, None),
            (Phase::Promoted, _) => (WayBack::Missing, None),
            _ => (
                WayBack::Missing,
                Some("the source has a replica of that name".to_owned()),
            ),
        })
    }

    fn take_down(&mut self) -> Result<()> {
        on_source(self.source()?.setting()).map(drop)
    }

    fn findings(&mut self) -> Result<Option<String>> {
        let prepared = on_source(self.source()?.prepared())?;
        Ok((!prepared.is_empty()).then(|| format!("prepared: {}", prepared.join(", "))))
    }

    fn hindrances(&mut self) -> Result<Option<String>> {
        on_source(self.source()?.setting())?;
        Ok(None)
    }

    fn waits(&mut self) -> Result<Option<String>> {
        on_source(self.source()?.setting())?;
        let (side, name) = (self.world.borrow().source, self.names().0);
        on_target(self.state.does("looks how far it is", |world, target| {
            let ends = world.sides[side].commits.last().map_or(0, |it| it.at);
            let behind = ends.saturating_sub(world.sides[target].position(name));
            (behind > 40).then(|| "the target is behind".to_owned())
        }))
    }

    fn promotion(&mut self) -> Result<Seen> {
        let row = self.row(ReplicaRow::clone)?;
        let name = self.names().0;
        let stands = on_target(
            self.state
                .database("asks where it stands", |it| it.position(name)),
        )?;
        let is_there = self.world.borrow().apply.runs();
        Ok(Seen {
            source: self.says.clone(),
            process: match is_there {
                true => Process::Applies,
                false => Process::Nobody,
            },
            spool: None,
            stands: Lsn::from(stands),
            whole_from: Lsn::INVALID,
            has_cycled: false,
            drained: Drained::NotYet,
            is_fenced: self.is_fenced,
            is_open: self.is_open,
            is_cleaned: self.is_cleaned,
            has_slot: true,
            has_sequences: row.has_sequences,
            is_left: row.is_left,
        })
    }

    fn analyze(&mut self) -> Result<()> {
        on_target(self.state.setting()).map(drop)
    }

    fn prepare(&mut self) -> Result<()> {
        let name = self.names().1;
        self.back("adds the way back", |it| {
            let row = it
                .replicas
                .get(name)
                .filter(|it| it.phase == Phase::Preparing);
            let row = row
                .cloned()
                .unwrap_or_else(|| ReplicaRow::new(Phase::Preparing, 0));
            it.replicas.insert(name, row);
            it.commit(false);
        })?;
        on_target(
            self.state
                .database("drops an old slot", |it| it.slots.remove(name)),
        )?;
        on_target(self.state.database("makes the slot", |it| {
            let end = it.wal;
            it.slots.insert(name, end);
            it.commit(false);
        }))?;
        self.back("adds its tables", |it| {
            it.replicas.get_mut(name).unwrap().has_tables = true;
            it.commit(false);
        })
    }

    fn unprepare(&mut self) -> Result<()> {
        let name = self.names().1;
        on_target(
            self.state
                .database("drops the slot", |it| it.slots.remove(name)),
        )?;
        self.back("drops the way back", |it| {
            it.replicas.remove(name);
            it.commit(false);
        })
    }

    fn arm(&mut self) -> Result<()> {
        on_target(
            self.state
                .database("asks for a hold that never comes", |it| {
                    it.hold = Some(Hold {
                        wanted: u64::MAX,
                        is_held: false,
                    });
                }),
        )?;
        self.wait_for(Duration::from_secs(15), "looks of apply", |world| {
            world.apply.has_lock
        })
    }

    fn pause(&mut self, patience: Duration) -> Result<()> {
        let until = self.now() + patience;
        self.console("clients wait", |it| it.waits = true)?;
        loop {
            let is_idle = on_target(self.state.does("waits for clients", |world, _| {
                let mut pooled = world.clients.iter().filter(|it| it.is_pooled());
                pooled.all(|it| it.transaction.is_none())
            }))?;
            if is_idle {
                return Ok(());
            }
            if self.now() >= until {
                self.console("clients go on", |it| it.waits = false)?;
                return Err(ReplicaError::State("clients have not ended".to_owned()));
            }
            self.rest(Duration::from_millis(20));
        }
    }

    fn spared(&mut self) -> Vec<u32> {
        Vec::new()
    }

    fn ends_at(&mut self, end: Lsn) {
        self.says = SourceSays::Ends(end);
    }

    fn drain(&mut self, end: Lsn, patience: Duration) -> Result<Drained> {
        if self.plant() == Some(Plant::DrainedAtOnce) {
            return Ok(Drained::To(end));
        }
        let wanted = u64::from(end);
        on_target(self.state.database("asks for a hold", |it| {
            it.hold = Some(Hold {
                wanted,
                is_held: false,
            });
        }))?;
        let until = self.now() + patience;
        loop {
            let hold = on_target(self.state.database("looks at the hold", |it| it.hold))?;
            let words = match hold {
                Some(hold) if hold.is_held => return Ok(Drained::To(end)),
                None => "apply was started anew",
                Some(_) if self.now() >= until => "it was not there in time",
                Some(_) => {
                    self.rest(Duration::from_millis(20));
                    continue;
                }
            };
            self.end_hold()?;
            return Ok(Drained::Not(words.to_owned()));
        }
    }

    fn compare(&mut self, _: Duration) -> Result<Compare> {
        let differs = on_target(self.state.does("compares", |world, side| {
            let (here, there) = (&world.sides[1 - side].rows, &world.sides[side].rows);
            let mut differ = here
                .symmetric_difference(there)
                .filter(|row| !world.own.contains(row));
            differ.next().map(|row| format!("row {row} differs"))
        }))?;
        Ok(Compare {
            differs,
            let_go: false,
        })
    }

    fn promote(&mut self, next: Next) -> Result<()> {
        for part in parts(&next) {
            self.part(part)?;
        }
        self.is_fenced |= next == Next::Fence;
        self.refresh()
    }

    fn reverse(&mut self) -> Result<()> {
        let name = self.names().1;
        let end = u64::from(on_target(self.state.mark())?);
        let stays = self.plant() == Some(Plant::SlotStays);
        let start = on_target(self.state.database("moves the slot", |it| {
            let confirmed = it.slots.get_mut(name)?;
            *confirmed = if stays { *confirmed } else { end };
            Some(*confirmed)
        }))?;
        let gone = || ReplicaError::State("the slot of the way back is gone".to_owned());
        let start = start.ok_or_else(gone)?;
        self.back("lets the way back begin", |it| {
            let row = it.replicas.get_mut(name).unwrap();
            (row.start, row.phase) = (start, Phase::Ready);
            it.commit(false);
        })
    }

    fn redirect(&mut self) -> Result<()> {
        on_target(self.state.setting())?;
        let side = self.world.borrow().target();
        self.console("leads to the target", |it| it.leads_to = side)
    }

    fn resume(&mut self, _: bool) -> Result<()> {
        self.console("clients go on", |it| it.waits = false)
    }

    fn left(&self) -> Left {
        Left {
            name: self.replica.name.clone(),
            is_begun: false,
            phase: self.replica.phase,
            is_fenced: false,
            is_open: self.is_open,
            waits: None,
            database: "app".to_owned(),
        }
    }

    fn note(&mut self, _: String) {}

    fn lacks(&mut self, words: String) {
        self.world
            .borrow_mut()
            .fails(format!("it says of itself: {words}"));
    }
}
