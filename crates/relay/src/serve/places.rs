//! How many sessions there may be, and which are kept free for whom.
//!
//! Only who has logged in gets a place. Sessions that do not replicate never get the last
//! quarter, so that subscribers find one; and the console has some of its own, so that whoever
//! may find out why all are taken can.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places that only the console has.
const OF_THE_CONSOLE: usize = 4;

/// One of so many places is kept for sessions that replicate.
const REPLICATION: usize = 4;

pub(super) struct Places {
    all: Arc<Semaphore>,
    /// Places for sessions that do not replicate.
    others: Arc<Semaphore>,
    console: Arc<Semaphore>,
}

/// What a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The primary let its role in for replication.
    Replication,
    Other,
    /// The console, for a role that may see something there.
    Console,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    _held: Vec<OwnedSemaphorePermit>,
}

impl Places {
    pub fn new(sessions: usize) -> Self {
        let semaphore = |places| Arc::new(Semaphore::new(places));
        Self {
            all: semaphore(sessions),
            others: semaphore(sessions - sessions / REPLICATION),
            console: semaphore(OF_THE_CONSOLE),
        }
    }

    /// A place, if there is one.
    pub fn take(&self, purpose: Purpose) -> Option<Place> {
        let wanted: &[&[&Arc<Semaphore>]] = match purpose {
            Purpose::Replication => &[&[&self.all]],
            Purpose::Other => &[&[&self.others, &self.all]],
            Purpose::Console => &[&[&self.console], &[&self.others, &self.all]],
        };
        wanted.iter().find_map(|semaphores| {
            let permits = semaphores
                .iter()
                .map(|semaphore| Arc::clone(semaphore).try_acquire_owned());
            let held = permits.collect::<Result<_, _>>().ok()?;
            Some(Place { _held: held })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_kept_for_who_needs_them() {
        let places = Places::new(8);
        let take = |purpose| places.take(purpose);
        let mut others: Vec<_> = (0..6).map(|_| take(Purpose::Other).unwrap()).collect();
        assert!(take(Purpose::Other).is_none());
        let replication: Vec<_> = (0..2)
            .map(|_| take(Purpose::Replication).unwrap())
            .collect();
        assert!(take(Purpose::Replication).is_none());
        let mut console: Vec<_> = (0..OF_THE_CONSOLE)
            .map(|_| take(Purpose::Console).unwrap())
            .collect();
        assert!(take(Purpose::Console).is_none());
        // What one cannot have is not taken from another.
        others.pop();
        console.push(take(Purpose::Console).unwrap());
        assert!(take(Purpose::Replication).is_none());
        console.pop();
        assert!(take(Purpose::Replication).is_some());
        drop((others, replication, console));
        assert!((0..8).all(|_| {
            let place = take(Purpose::Replication);
            place.is_some_and(|place| {
                std::mem::forget(place);
                true
            })
        }));
    }

    #[test]
    fn few_places_are_everybodys() {
        let places = Places::new(1);
        let place = places.take(Purpose::Other).unwrap();
        assert!(places.take(Purpose::Replication).is_none());
        drop(place);
        assert!(places.take(Purpose::Other).is_some());
    }
}
