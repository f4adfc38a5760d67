//! A run whose replica has a frequency: what its cycles must keep to.

use std::time::Duration;

use lockstep_apply::batch::{Closing, CommitPoint};
use lockstep_apply::cycle::Past;
use lockstep_apply::error::ApplyError;
use lockstep_apply::session::Next;
use lockstep_wire::Lsn;

use super::source::wal_end;
use super::world::{Checked, Plant, World};

impl World {
    pub(super) fn has_cycles(&self) -> bool {
        !self.frequency.is_zero()
    }

    /// What the target knows of the cycles before.
    pub(super) fn past(&self) -> Past {
        match self.target.committed.cycle {
            Some(cycle) if self.plant != Some(Plant::ForgetsCycles) => Past {
                number: cycle.number,
                since: Some(self.now.saturating_duration_since(cycle.began)),
                took: Duration::ZERO,
                forces: cycle.forces,
            },
            _ => Past::default(),
        }
    }

    /// Somebody asks for a cycle.
    pub(super) fn force(&mut self) {
        self.forces += 1;
        self.control.force(self.forces);
        self.events.push_back(super::world::Heard::Wanted);
    }

    /// All requests for a cycle are answered.
    pub(super) fn is_answered(&self) -> bool {
        let answered = self.target.committed.cycle.map_or(0, |cycle| cycle.forces);
        answered >= self.forces
    }

    /// The session is told what the spool has.
    pub(super) fn begin_cycle(&mut self) -> Result<Next, ApplyError> {
        let received = wal_end(self.committed);
        let Some(session) = &mut self.session else {
            return Ok(Next::Again);
        };
        self.catalog.version = self.target.newest_version();
        let next = session.begin_cycle(received, &mut self.catalog, self.now)?;
        if session.running().is_some() {
            self.holding.begin_cycle(received);
            self.say(|| format!("a cycle begins, to {received}"));
            let last = self.target.committed.cycle;
            let due = last.map(|last| last.began + self.frequency);
            let is_early = due.is_some_and(|due| self.now < due);
            let answered = last.map_or(0, |last| last.forces);
            if is_early && self.forces <= answered && self.hold.is_none() {
                return Err(ApplyError::Damaged("a cycle begins too early".to_owned()));
            }
            let is_late = due.is_some_and(|due| self.now > due + Duration::from_millis(20));
            self.seen.late_cycles += u64::from(is_late);
        }
        Ok(next)
    }

    /// A commit is to be a cycle, and that the next, with nothing that has come after its beginning. But for
    /// transactions that are tried one by one.
    pub(super) fn is_cycle(&mut self, commit: CommitPoint, cycle: Option<&Closing>) -> Checked {
        let before = self.target.committed.cycle;
        let Some(cycle) = cycle else {
            return match self.has_cycles() && commit.end > self.careful {
                true => Err(format!("{} is committed outside of a cycle", commit.end)),
                false => Ok(()),
            };
        };
        let number = before.map_or(1, |before| before.number + 1);
        if cycle.number != number {
            return Err(format!("cycle {} is committed as {}", number, cycle.number));
        }
        let end = self.holding.end.unwrap_or(Lsn::INVALID);
        if self.last_before(commit.end) > end {
            return Err(format!(
                "cycle {number} ends at {}, begun for {end}",
                commit.end
            ));
        }
        self.seen.cycles += 1;
        self.seen.empty_cycles += u64::from(cycle.counts.transactions == 0);
        let answered = before.map_or(0, |before| before.forces);
        self.seen.forced_cycles += u64::from(cycle.forces > answered);
        Ok(())
    }
}
