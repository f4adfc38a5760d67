//! Commit-to-visible latency of each standby, measured as often as samples are taken: one commit
//! on the primary, for which all standbys are asked.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::{MonitorParts, lock};
use crate::Result;
use crate::heartbeat::{Beat, Heart, PATIENCE, Pulse};
use crate::node::{Node, Role};

/// Pause before another attempt to connect.
const RETRY: Duration = Duration::from_secs(1);

/// The last commit, and how many there were.
#[derive(Debug, Default)]
struct Newest {
    beat: Mutex<(u64, Option<Beat>)>,
    changed: Condvar,
}

impl Newest {
    fn number(&self) -> u64 {
        lock(&self.beat).0
    }

    fn set(&self, beat: Beat) {
        let mut newest = lock(&self.beat);
        *newest = (newest.0 + 1, Some(beat));
        self.changed.notify_all();
    }

    /// The next commit after those of this number, if there is one in time.
    fn after(&self, number: u64, patience: Duration) -> Option<Beat> {
        let newest = lock(&self.beat);
        let next = self
            .changed
            .wait_timeout_while(newest, patience, |newest| newest.0 <= number);
        let (newest, waited) = next.unwrap_or_else(PoisonError::into_inner);
        newest.1.filter(|_| !waited.timed_out())
    }
}

/// Starts a thread for the primary and one for each standby.
pub(super) fn start(shared: &Arc<MonitorParts>) {
    let Some(primary) = shared.of_role(Role::Primary).next() else {
        return;
    };
    let newest = Arc::new(Newest::default());
    let (on_primary, primary, beaten) = (Arc::clone(shared), primary.clone(), Arc::clone(&newest));
    thread::spawn(move || {
        loop {
            // It ends with the monitor, or a connection that is lost.
            let _ = commit(&on_primary, &primary, &beaten);
            if !on_primary.pause(RETRY) {
                return;
            }
        }
    });
    for standby in shared.of_role(Role::Standby) {
        let (shared, standby, newest) = (Arc::clone(shared), standby.clone(), Arc::clone(&newest));
        thread::spawn(move || {
            loop {
                let _ = follow(&shared, &standby, &newest);
                lock(&shared.beats).insert(standby.name.clone(), None);
                if !shared.pause(RETRY) {
                    return;
                }
            }
        });
    }
}

fn commit(shared: &MonitorParts, primary: &Node, newest: &Newest) -> Result<()> {
    let mut heart = Heart::connect(primary, &shared.settings.application_name)?;
    while shared.pause(shared.settings.every) {
        newest.set(heart.beat()?);
    }
    Ok(())
}

/// Measures until the connection is lost or the monitor ends.
fn follow(shared: &MonitorParts, standby: &Node, newest: &Newest) -> Result<()> {
    let every = shared.settings.every;
    let mut pulse = Pulse::connect(standby, &shared.settings.application_name)?;
    let mut number = newest.number();
    while shared.pause(Duration::ZERO) {
        // No commit for long says as little as one that does not come.
        let mut time = None;
        if let Some(beat) = newest.after(number, PATIENCE) {
            time = pulse.feel(beat, PATIENCE)?;
            while time.is_none() {
                lock(&shared.beats).insert(standby.name.clone(), None);
                // A standby that is paused is asked no more often than samples are taken.
                if !shared.pause(every) {
                    return Ok(());
                }
                time = pulse.feel(beat, Duration::ZERO)?;
            }
        }
        let ms = time.map(|time| time.as_secs_f64() * 1000.0);
        lock(&shared.beats).insert(standby.name.clone(), ms);
        number = newest.number();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_from_before_is_not_waited_for() {
        let newest = Newest::default();
        assert!(newest.after(0, Duration::ZERO).is_none());
        newest.set(Beat::now());
        assert!(newest.after(0, Duration::ZERO).is_some());
        assert_eq!(newest.number(), 1);
        assert!(newest.after(1, Duration::ZERO).is_none());
    }
}
