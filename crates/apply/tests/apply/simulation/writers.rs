//! The writers of a run: what each does next of its job, and who waits for whom.

use std::time::Duration;

use lockstep_apply::batch::{Closing, CommitPoint, Missing};
use lockstep_apply::error::ApplyError;
use lockstep_apply::turn::Waited;
use lockstep_apply::work::{Answer, News, Stop, Todo, Which, Work};

use super::target::{Made, deadlock};
use super::world::{Checked, Heard, World};

/// One writer's place.
#[derive(Default)]
pub struct Desk {
    pub work: Option<Work>,
    /// Whose transaction its statement waits for.
    blocked: Option<usize>,
}

impl World {
    pub fn writer_step(&mut self, writer: usize) -> Checked {
        let Some(desk) = self.desks.get_mut(writer) else {
            return Ok(());
        };
        let Some(mut work) = desk.work.take() else {
            self.begin(writer);
            return Ok(());
        };
        let number = work.job().plan.number;
        let todo = work.next();
        if todo == Todo::Tell {
            self.in_parts = work.job().has_more().then_some(writer);
            self.events.push_back(Heard::News(work.news()));
            self.turn.pass(number);
            return Ok(());
        }
        let answer = self.todo(writer, &work, todo)?;
        let Some(answer) = answer else {
            self.desks[writer].work = Some(work);
            return Ok(());
        };
        self.seen.again += u64::from(todo == Todo::RollBack);
        match work.answer(answer) {
            Ok(()) => self.desks[writer].work = Some(work),
            Err(Stop::Over) => self.target.open[writer] = None,
            Err(Stop::Failed(error)) => {
                self.target.open[writer] = None;
                if self.turn.fail() {
                    self.events.push_back(Heard::News(News::Failed(error)));
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, writer: usize) {
        // Others rest.
        if writer >= self.used {
            return;
        }
        if self.turn.has_failed() || self.in_parts.is_some_and(|other| other != writer) {
            return;
        }
        // While a transaction comes in parts, the others get no jobs.
        let others = self.desks.iter().filter_map(|desk| desk.work.as_ref());
        if others.into_iter().any(|work| work.job().has_more()) {
            return;
        }
        let Some(job) = self.jobs.pop_front() else {
            return;
        };
        let number = job.plan.number;
        self.turn.begin(number, writer as u32);
        let is_first = self.turn.is_first(number);
        self.seen.ahead += u64::from(!is_first && !job.plan.is_alone());
        self.desks[writer].work = Some(Work::new(job, is_first).with_fault(self.fault()));
    }

    /// Does one thing of a job; None if it is not done yet.
    fn todo(&mut self, writer: usize, work: &Work, todo: Todo) -> Checked<Option<Answer>> {
        let plan = &work.job().plan;
        let before = plan.number - 1;
        let made = |missing| Some(Answer::Made { missing });
        Ok(match todo {
            Todo::WaitFor(other) => self.wait(writer, other),
            Todo::WaitAhead => self.wait(writer, before),
            Todo::WaitTurn => match self.turn.reached(before) {
                Waited::Reached => Some(Answer::Reached),
                Waited::NotYet => None,
                Waited::Failed => Some(Answer::Over),
            },
            Todo::Apply(which) => match self.apply(writer, work, which) {
                None => None,
                Some(Ok(missing)) => made(missing),
                Some(Err(error)) => Some(Answer::Failed(error)),
            },
            Todo::RollBack => {
                self.target.open[writer] = None;
                made(false)
            }
            Todo::CheckReach => Some(Answer::Known(self.rng.u32(0..10) > 0)),
            // One that ends a cycle is never small.
            Todo::AtOnce(_) if cycle(work).is_some() => Some(Answer::NotSmall),
            Todo::AtOnce(_) if self.rng.bool() => Some(Answer::NotSmall),
            Todo::AtOnce(commit) => match self.apply(writer, work, Which::All) {
                None => None,
                Some(Err(error)) => Some(Answer::Failed(error)),
                Some(Ok(_)) => Some(self.commit(writer, work, commit)?),
            },
            Todo::Commit(commit) => Some(self.commit(writer, work, commit)?),
            Todo::Move(end) => {
                self.target.moved(end, true);
                self.say(|| format!("the origin is moved to {end}"));
                made(false)
            }
            Todo::Tell => None,
        })
    }

    /// Makes changes; None while they wait for a lock.
    fn apply(
        &mut self,
        writer: usize,
        work: &Work,
        which: Which,
    ) -> Option<Result<bool, ApplyError>> {
        let part = work.job().part()?;
        self.desks[writer].blocked = None;
        // Sessions of others take part in deadlocks, too.
        if self.rng.u32(0..150) == 0 {
            self.seen.deadlocks += 1;
            return Some(Err(deadlock()));
        }
        match self.target.apply(writer, part, which, &work.job().plan) {
            Made::All => {
                let open = self.target.open[writer].as_ref();
                Some(Ok(open.is_some_and(|open| open.missing > 0)))
            }
            Made::Refused(error) => Some(Err(error)),
            Made::Blocked(other) => {
                self.desks[writer].blocked = Some(other);
                if self.waits_for(other, writer) {
                    self.desks[writer].blocked = None;
                    return Some(Err(deadlock()));
                }
                None
            }
        }
    }

    /// The statement of this writer waits for a lock of the other, directly or not.
    fn waits_for(&self, writer: usize, other: usize) -> bool {
        let mut at = writer;
        for _ in 0..self.writers {
            match self.desks.get(at).and_then(|desk| desk.blocked) {
                Some(next) if next == other => return true,
                Some(next) => at = next,
                None => return false,
            }
        }
        false
    }

    fn wait(&mut self, writer: usize, number: u64) -> Option<Answer> {
        match self.turn.reached(number) {
            Waited::Reached => Some(Answer::Reached),
            Waited::Failed => Some(Answer::Over),
            Waited::NotYet if self.target.open[writer].is_none() => None,
            Waited::NotYet => {
                let first = self.turn.first_backend()? as usize;
                // So is one behind whom somebody waits who lets nobody pass.
                let queued = self.rng.u32(0..50) == 0;
                let is_in_the_way = first != writer && (queued || self.waits_for(first, writer));
                self.seen.in_the_way += u64::from(is_in_the_way);
                is_in_the_way.then_some(Answer::InTheWay)
            }
        }
    }

    fn commit(&mut self, writer: usize, work: &Work, commit: CommitPoint) -> Checked<Answer> {
        let number = work.job().plan.number;
        let cycle = cycle(work);
        let flush_every = Duration::from_millis(200);
        let flush = self.turn.is_to_flush(number, flush_every, self.now);
        self.is_cycle(commit, cycle)?;
        if commit.end < self.target.committed.kept
            || (commit.end == self.target.committed.kept && cycle.is_none())
        {
            return Err(format!(
                "{} commits after {}",
                commit.end, self.target.committed.kept
            ));
        }
        let missing = self.target.commit(writer, commit, cycle, flush);
        if missing > 0 {
            return Err(format!("{missing} rows were missing up to {}", commit.end));
        }
        self.seen.commits += 1;
        self.say(|| {
            format!(
                "writer {writer} has committed to {}, cycle {cycle:?}",
                commit.end
            )
        });
        self.is_right("after a commit")?;
        // The server's WAL writer may have flushed some.
        let some = self.flushes.usize(0..=2 * self.target.not_durable());
        let flushed = match flush {
            true => Some(commit.end),
            false => self.target.flush_some(some),
        };
        if flushed.is_some() {
            self.turn.flushed(self.now);
            self.seen.flushed_later += u64::from(!flush);
        }
        Ok(Answer::Committed {
            flushed,
            missing: Missing::new(),
        })
    }
}

/// The cycle that ends with a writer's part.
pub fn cycle(work: &Work) -> Option<&Closing> {
    work.job().part().and_then(|part| part.cycle.as_deref())
}
