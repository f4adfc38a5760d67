//! `replica run --config`: follows several replicas in one process, each on threads of its own.
//!
//! One that fails (its target does not answer, it is not copied yet, its slot is gone) is tried again
//! from time to time, and the others do not notice.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tracing::{error, error_span, info};

use crate::error::ReplicaError;
use crate::lifecycle::follow::{Following, follow};
use crate::state::failpoint;
use lockstep_apply::{Control, Stats};

/// A replica that failed is tried again after this long.
pub const RETRY: Duration = Duration::from_secs(10);

/// Replicas that are followed.
#[derive(Debug, Default)]
pub struct Daemon {
    running: Vec<Running>,
    seen: Seen,
}

/// What others can see of the replicas that are followed; clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Seen(Arc<Mutex<Vec<(Following, Control)>>>);

impl Seen {
    /// What each replica does. One that was promoted meanwhile is none any more.
    pub fn all(&self) -> Vec<(Following, Stats)> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let stats = |(what, control): &(Following, Control)| (what.clone(), control.stats());
        let all = seen.iter().map(stats);
        all.filter(|(_, stats)| !stats.promoted).collect()
    }
}

#[derive(Debug)]
struct Running {
    what: Following,
    control: Control,
    thread: JoinHandle<()>,
}

impl Daemon {
    /// Follows these replicas from now on and no others. One that is followed already with the same
    /// settings goes on undisturbed.
    pub fn follow(&mut self, wanted: &[Following]) {
        let running = std::mem::take(&mut self.running);
        let (stay, go): (Vec<_>, Vec<_>) = running
            .into_iter()
            .partition(|one| wanted.contains(&one.what) && !one.thread.is_finished());
        self.running = stay;
        end(go);
        failpoint::DAEMON_RELOADED.reach();
        for what in wanted {
            if self.running.iter().any(|one| one.what == *what) {
                continue;
            }
            let control = Control::default();
            let (for_thread, given) = (what.clone(), control.clone());
            let thread = thread::Builder::new().name("replica".to_owned());
            match thread.spawn(move || supervise(&for_thread, &given)) {
                Ok(thread) => self.running.push(Running {
                    what: what.clone(),
                    control,
                    thread,
                }),
                Err(error) => error!(replica = what.name, %error, "no thread can be started"),
            }
        }
        let seen = |one: &Running| (one.what.clone(), one.control.clone());
        *self.seen.0.lock().unwrap_or_else(PoisonError::into_inner) =
            self.running.iter().map(seen).collect();
    }

    /// What others can see, now and later.
    pub fn seen(&self) -> Seen {
        self.seen.clone()
    }

    /// Ends all replicas. Each finishes what it applies if that is quick.
    pub fn end(self) {
        end(self.running);
    }
}

fn end(running: Vec<Running>) {
    running.iter().for_each(|one| one.control.stop());
    for one in running {
        // It has no panic of its own to hand on.
        let _ = one.thread.join();
    }
}

/// Follows one replica, again and again, until it is told to stop.
fn supervise(what: &Following, control: &Control) {
    let _named = error_span!("replica", name = what.name, target = %what.target).entered();
    info!("begins");
    let mut said = None;
    while !control.is_stopped() {
        let ended = catch_unwind(AssertUnwindSafe(|| follow(what, control)));
        let words = match ended {
            Ok(Ok(())) => break,
            Ok(Err(error @ ReplicaError::Promoted { .. })) => {
                info!("{error}");
                control.count(|stats| stats.promoted = true);
                break;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "a thread of it has panicked".to_owned(),
        };
        let Stats { sessions, .. } = control.stats();
        // The same words once, unless it has applied meanwhile.
        if sessions > 0 || said.as_ref() != Some(&words) {
            error!("{words}; tried again every {} s", RETRY.as_secs());
        }
        control.failed(&words);
        said = Some(words);
        control.wait_stopped(RETRY);
    }
    info!("ended");
}
