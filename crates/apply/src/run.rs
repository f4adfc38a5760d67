//! A replica that applies, from its start to its end: session after session.

use std::time::Duration;

use lockstep_wire::Lsn;
use tracing::{error, info, warn};

use crate::catalog::Open;
use crate::control::{Control, Phase};
use crate::drive::{Drive, Ended};
use crate::error::{ApplyError, Result};
use crate::failpoint;
use crate::session::Wanted;
use crate::settings::{LEAST_MEMORY, LONGEST_PAUSE, SHORTEST_PAUSE, Settings};
use crate::spool::Spool;

/// A change that did not fit is tried again after this long.
const RETRY: Duration = Duration::from_secs(10);

/// Applies until [`Control::stop`]. Changes that the target does not have yet are kept in `spool`;
/// without one the source keeps them. `open` makes a session on the target that knows which tables to apply
/// from where; it is called for each connection to the target. An error is logged, shown in the statistics,
/// and followed by another attempt; only an error that no attempt can mend is returned.
pub fn run(
    settings: &Settings,
    spool: Option<&Spool>,
    control: &Control,
    open: &mut Open<'_>,
) -> Result<()> {
    let settings = &Settings {
        memory: settings.memory.max(LEAST_MEMORY),
        ..settings.clone()
    };
    let ended = sessions(settings, spool, control, open);
    control.count(|stats| {
        stats.phase = Phase::Stopped;
        stats.error = ended.as_ref().err().map(ToString::to_string);
    });
    ended
}

fn sessions(
    settings: &Settings,
    spool: Option<&Spool>,
    control: &Control,
    open: &mut Open<'_>,
) -> Result<()> {
    // A batch up to here did not fit: its transactions are applied one by one.
    let mut careful = Lsn::INVALID;
    let mut attempts = Attempts::default();
    loop {
        let wanted = control.wanted();
        if wanted.stop {
            return Ok(());
        }
        if let Some(words) = control.refused() {
            return Err(ApplyError::Publication(words));
        }
        if wanted.pause {
            control.count(|stats| stats.phase = Phase::Paused);
            failpoint::APPLY_PAUSED.reach();
            control.rest(wanted, Duration::MAX / 4);
            failpoint::APPLY_RESUMED.reach();
            continue;
        }
        let applied = control.stats().counts.transactions;
        let ended = match Drive::open(settings, spool, control, open, careful) {
            Ok(drive) => {
                attempts.opened = true;
                drive.run()
            }
            Err(error) => Ended {
                error: Some(error),
                failed_batch: None,
            },
        };
        if control.stats().counts.transactions > applied {
            attempts.pause = SHORTEST_PAUSE;
        }
        let Some(error) = ended.error else {
            continue;
        };
        match ended.failed_batch {
            Some(end) if end > careful => {
                info!("a batch did not fit ({error}): its transactions are applied one by one");
                failpoint::APPLY_REFUSED.reach();
                careful = end;
            }
            Some(_) => block(control, wanted, &error),
            None => reconnect(control, wanted, error, &mut attempts)?,
        }
    }
}

/// Waits until a change that did not fit may fit.
fn block(control: &Control, wanted: Wanted, error: &ApplyError) {
    error!("{error}");
    control.count(|stats| {
        stats.phase = Phase::Blocked;
        stats.error = Some(error.to_string());
    });
    failpoint::APPLY_BLOCKED.reach();
    control.rest(wanted, RETRY);
}

/// Waits until servers may answer again. An error that no attempt can mend is returned.
fn reconnect(
    control: &Control,
    wanted: Wanted,
    error: ApplyError,
    attempts: &mut Attempts,
) -> Result<()> {
    let Some(pause) = attempts.pause_after(&error) else {
        return Err(error);
    };
    warn!("{error}; tried again");
    control.count(|stats| {
        stats.phase = Phase::Connecting;
        stats.error = Some(error.to_string());
    });
    control.rest(wanted, pause);
    Ok(())
}

/// When a session is tried again that has failed. No I/O.
struct Attempts {
    pause: Duration,
    /// A session has begun: a target that has once let us in may do so again, whatever it says now.
    opened: bool,
    /// The last one found that this process does not have the replica's lock.
    was_lost: bool,
}

impl Default for Attempts {
    fn default() -> Self {
        Self {
            pause: SHORTEST_PAUSE,
            opened: false,
            was_lost: false,
        }
    }
}

impl Attempts {
    /// The pause before the next attempt; None if none can mend the error. A lock that is found to be lost is
    /// taken again at once by whoever waits to hear of it.
    fn pause_after(&mut self, error: &ApplyError) -> Option<Duration> {
        let of_target = matches!(error, ApplyError::Target(_));
        let may_pass = error.may_pass() || (self.opened && of_target);
        if !may_pass {
            return None;
        }
        let is_lost = matches!(error, ApplyError::NotTaken(_));
        if is_lost && !self.was_lost {
            self.pause = SHORTEST_PAUSE;
        }
        self.was_lost = is_lost;
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_lock_is_looked_for_soon_however_long_the_target_was_away() {
        let mut attempts = Attempts::default();
        let lost = ApplyError::NotTaken(String::new());
        let away = ApplyError::Ended;
        for (error, ms) in [
            (&away, 100),
            (&away, 200),
            (&away, 400),
            (&lost, 100),
            (&lost, 200),
            (&away, 400),
            (&lost, 100),
        ] {
            let pause = attempts.pause_after(error).unwrap();
            assert_eq!(pause, Duration::from_millis(ms), "{error}");
        }
        for _ in 0..20 {
            attempts.pause_after(&away);
        }
        assert_eq!(attempts.pause_after(&away), Some(LONGEST_PAUSE));
        let gone = ApplyError::Gap(String::new());
        assert_eq!(attempts.pause_after(&gone), None);
    }
}
