//! What lets apply stand still for a moment: in the same process, or through the target's state.

use std::thread;
use std::time::{Duration, Instant};

use lockstep_wire::Lsn;

use super::{Result, VerifyError};
use crate::state::{Held, Holder, ReplicaState};
use crate::status::standing::hindrance;
use lockstep_apply::Control;
use lockstep_apply::control::before_all;

/// Interval of questions to the state how far apply is.
const ASK_EVERY: Duration = Duration::from_millis(20);

/// Time after which a process that applies and does not hold the replica's lock has ended: it takes the lock
/// again where only its session is lost.
pub(super) const GONE_AFTER: Duration = Duration::from_secs(3);

/// A replica that is asked to stand still.
pub trait Hold {
    /// Lets no further transaction begin. When this returns, every transaction that is applied was
    /// committed on the source before.
    fn hold(&mut self, patience: Duration) -> Result<()>;

    /// Lets exactly the transactions through whose commit record starts before `lsn`, and returns
    /// once they are committed on the target. Call [`Hold::hold`] before.
    fn advance(&mut self, lsn: Lsn, patience: Duration) -> Result<()>;

    /// An error unless nothing else was applied since [`Hold::advance`] returned.
    fn check(&mut self, lsn: Lsn) -> Result<()>;

    /// Lets changes flow again. What cannot be told now is found out by apply's process.
    fn release(&mut self);
}

fn not_reached() -> VerifyError {
    VerifyError::NoMoment(
        "the replica did not come to stand at one position in time: lockstep replica status says how \
         far it is; repeat once it has caught up, or let it be waited for longer"
            .to_owned(),
    )
}

/// The hold of a replica that this process applies to.
pub struct InProcess<'a>(pub &'a Control);

impl InProcess<'_> {
    fn until_held(&mut self, lsn: Lsn, patience: Duration) -> Result<()> {
        self.0.hold_at(lsn);
        self.0.wait_held(lsn, patience);
        self.check(lsn)
    }
}

impl Hold for InProcess<'_> {
    fn hold(&mut self, patience: Duration) -> Result<()> {
        self.until_held(before_all(), patience)
    }

    fn advance(&mut self, lsn: Lsn, patience: Duration) -> Result<()> {
        self.until_held(lsn, patience)
    }

    fn check(&mut self, lsn: Lsn) -> Result<()> {
        self.0.is_held(lsn).then_some(()).ok_or_else(not_reached)
    }

    fn release(&mut self) {
        self.0.release();
    }
}

/// The hold of a replica that any process applies to.
pub struct ThroughState {
    pub state: ReplicaState,
    pub name: String,
}

impl ThroughState {
    fn until_held(&mut self, lsn: Lsn, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        let mut there = Instant::now();
        loop {
            match self.held()? {
                Held::At(at) if at == lsn => return Ok(()),
                _ if Instant::now() >= deadline => return Err(self.not_reached()),
                _ if self.state.holder(&self.name)? == Holder::Apply => there = Instant::now(),
                _ if there.elapsed() >= GONE_AFTER => return Err(self.gone()?),
                _ => {}
            }
            thread::sleep(ASK_EVERY);
        }
    }

    /// Why nobody comes to hold the replica.
    fn gone(&mut self) -> Result<VerifyError> {
        let error = self.state.applied(&self.name)?.error;
        let error = error.map_or_else(String::new, |error| format!(": {error}"));
        Ok(VerifyError::NoMoment(format!(
            "no process applies to replica \"{}\" any more{error}; once lockstep replica run applies \
             again, repeat the command",
            self.name
        )))
    }

    /// The error of a moment that was not reached, with what the replica's process has said of it.
    fn not_reached(&mut self) -> VerifyError {
        let applied = self.state.applied(&self.name);
        match applied.ok().as_ref().and_then(hindrance) {
            Some(words) => VerifyError::NoMoment(format!(
                "replica \"{}\" did not come to stand at one position in time: {words}",
                self.name
            )),
            None => not_reached(),
        }
    }

    fn held(&mut self) -> Result<Held> {
        match self.state.held(&self.name)? {
            Held::Ended => Err(VerifyError::NoMoment(format!(
                "the process that applies to replica \"{}\" did not hold it any longer: it was \
                 started again, or it took too long to catch up; repeat the command",
                self.name
            ))),
            held => Ok(held),
        }
    }
}

impl Hold for ThroughState {
    fn hold(&mut self, patience: Duration) -> Result<()> {
        match self.state.begin_hold(&self.name, before_all(), patience)? {
            true => self.until_held(before_all(), patience),
            false => Err(VerifyError::NoMoment(self.state.hold_words(&self.name)?)),
        }
    }

    fn advance(&mut self, lsn: Lsn, patience: Duration) -> Result<()> {
        self.state.raise_hold(&self.name, lsn)?;
        self.until_held(lsn, patience)
    }

    fn check(&mut self, lsn: Lsn) -> Result<()> {
        match self.held()? {
            Held::At(at) if at == lsn => Ok(()),
            _ => Err(self.not_reached()),
        }
    }

    fn release(&mut self) {
        let _ = self.state.end_hold(&self.name);
    }
}
