//! Commit-to-visible latency of each standby, measured as often as samples are taken: one commit
//! on the primary, for which all standbys are asked.

use std::sync::atomic::{AtomicBool, Ordering};
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

/// What the threads of one set of nodes share.
struct Beating {
    shared: Arc<MonitorParts>,
    newest: Newest,
    /// Other threads measure now.
    over: Arc<AtomicBool>,
}

/// Starts a thread for the primary and one for each standby. They end once `over` is set.
pub(super) fn start(shared: &Arc<MonitorParts>, nodes: &[Node], over: &Arc<AtomicBool>) {
    let of_role = |role| nodes.iter().filter(move |node| node.role == role).cloned();
    let Some(primary) = of_role(Role::Primary).next() else {
        return;
    };
    let beating = Arc::new(Beating {
        shared: Arc::clone(shared),
        newest: Newest::default(),
        over: Arc::clone(over),
    });
    let on_primary = Arc::clone(&beating);
    thread::spawn(move || {
        loop {
            // It ends with the monitor, or a connection that is lost.
            let _ = on_primary.commit(&primary);
            if !on_primary.pause(RETRY) {
                return;
            }
        }
    });
    for standby in of_role(Role::Standby) {
        let beating = Arc::clone(&beating);
        thread::spawn(move || {
            loop {
                let _ = beating.follow(&standby);
                beating.note(&standby, None);
                if !beating.pause(RETRY) {
                    return;
                }
            }
        });
    }
}

impl Beating {
    /// Waits; false if this is the end.
    fn pause(&self, time: Duration) -> bool {
        self.shared.pause(time) && !self.over.load(Ordering::Relaxed)
    }

    fn note(&self, standby: &Node, ms: Option<f64>) {
        if !self.over.load(Ordering::Relaxed) {
            lock(&self.shared.beats).insert(standby.name.clone(), ms);
        }
    }

    fn commit(&self, primary: &Node) -> Result<()> {
        let settings = &self.shared.settings;
        let mut heart = Heart::connect(primary, &settings.application_name)?;
        while self.pause(settings.every) {
            self.newest.set(heart.beat()?);
        }
        Ok(())
    }

    /// Measures until the connection is lost or this is the end.
    fn follow(&self, standby: &Node) -> Result<()> {
        let settings = &self.shared.settings;
        let mut pulse = Pulse::connect(standby, &settings.application_name)?;
        let mut number = self.newest.number();
        while self.pause(Duration::ZERO) {
            // No commit for long says as little as one that does not come.
            let mut time = None;
            if let Some(beat) = self.newest.after(number, PATIENCE) {
                time = pulse.feel(beat, PATIENCE)?;
                while time.is_none() {
                    self.note(standby, None);
                    // A standby that is paused is asked no more often than samples are taken.
                    if !self.pause(settings.every) {
                        return Ok(());
                    }
                    time = pulse.feel(beat, Duration::ZERO)?;
                }
            }
            self.note(standby, time.map(|time| time.as_secs_f64() * 1000.0));
            number = self.newest.number();
        }
        Ok(())
    }
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
