//! Locks that outlive a panic, and locks by key.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// Locks. What a thread that panicked left behind is consistent enough to go on with: nothing
/// here is changed in several steps that could be half done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Held until it is dropped.
pub(crate) type Held = OwnedMutexGuard<()>;

/// One lock for each key. It exists while somebody holds it or waits for it.
#[derive(Debug)]
pub(crate) struct Keyed<K>(Mutex<BTreeMap<K, Weak<AsyncMutex<()>>>>);

impl<K> Default for Keyed<K> {
    fn default() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }
}

impl<K: Ord + Clone> Keyed<K> {
    fn of(&self, key: &K) -> Arc<AsyncMutex<()>> {
        let mut locks = lock(&self.0);
        locks.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = locks.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        let new = Arc::default();
        locks.insert(key.clone(), Arc::downgrade(&new));
        new
    }

    /// Waits for a key's lock.
    pub async fn hold(&self, key: &K) -> Held {
        self.of(key).lock_owned().await
    }

    /// Waits for a key's lock in a thread.
    pub fn hold_in_thread(&self, key: &K) -> Held {
        self.of(key).blocking_lock_owned()
    }

    /// A key's lock, if nobody has it.
    pub fn try_hold(&self, key: &K) -> Option<Held> {
        self.of(key).try_lock_owned().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_locked_one_by_one() {
        let locks = Keyed::default();
        let a = locks.try_hold(&"a").unwrap();
        assert!(locks.try_hold(&"a").is_none());
        let b = locks.hold_in_thread(&"b");
        assert_eq!(lock(&locks.0).len(), 2);
        drop((a, b));
        assert!(locks.try_hold(&"a").is_some());
        drop(locks.try_hold(&"c"));
        assert_eq!(lock(&locks.0).len(), 1);
    }
}
