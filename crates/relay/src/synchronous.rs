//! What a primary that waits for its standbys sees of a group.
//!
//! A primary with `synchronous_standby_names` looks for the names there among its walsenders'
//! `application_name`s. A subscription behind a relay has no walsender, so naming it makes
//! each commit wait for ever, unless its group carries that name. What the group confirms is
//! then what the primary waits for: with `synchronous_commit = on` the relay's spool, with
//! `remote_apply` the slowest of the group's subscribers.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use lockstep_service::waker::Waker;

use crate::lock::lock;

/// `application_name` of the relay's connections, unless a group is given its own.
pub const APPLICATION_NAME: &str = "lockstep relay";

/// A group's part in synchronous replication.
#[derive(Debug)]
pub struct Synchronous {
    /// The name by which the primary waits for it, if it was given one.
    application_name: Option<String>,
    /// The slots whose subscribers must have applied; all of the group if there is none here.
    applied_by: Vec<String>,
    /// Commits on the primary may wait for it.
    awaited: AtomicBool,
    /// The primary's process that streams to it; 0 while there is none.
    walsender: AtomicU32,
    /// Wakes the receiver.
    waker: Mutex<Option<Waker>>,
}

impl Default for Synchronous {
    fn default() -> Self {
        Self::new(None, &[])
    }
}

impl Synchronous {
    pub fn new(application_name: Option<&str>, applied_by: &[String]) -> Self {
        Self {
            application_name: application_name.map(str::to_owned),
            applied_by: applied_by.to_vec(),
            awaited: AtomicBool::new(false),
            walsender: AtomicU32::new(0),
            waker: Mutex::default(),
        }
    }

    /// The name that it was given.
    pub fn own_name(&self) -> Option<&str> {
        self.application_name.as_deref()
    }

    pub fn application_name(&self) -> &str {
        self.own_name().unwrap_or(APPLICATION_NAME)
    }

    pub fn applied_by(&self) -> &[String] {
        &self.applied_by
    }

    /// Whether commits may wait for what the group's subscribers have applied.
    pub fn is_awaited(&self) -> bool {
        self.awaited.load(Ordering::Relaxed)
    }

    /// Notes whether commits may wait; its receiver learns it at once.
    pub fn set_awaited(&self, awaited: bool) {
        if self.awaited.swap(awaited, Ordering::Relaxed) != awaited {
            self.wake();
        }
    }

    /// The primary's process that streams to the group, while there is one.
    pub fn walsender(&self) -> Option<u32> {
        Some(self.walsender.load(Ordering::Relaxed)).filter(|&pid| pid > 0)
    }

    pub fn set_walsender(&self, pid: Option<u32>) {
        self.walsender.store(pid.unwrap_or(0), Ordering::Relaxed);
    }

    /// What wakes the group's receiver from now on.
    pub fn set_waker(&self, waker: Waker) {
        *lock(&self.waker) = Some(waker);
    }

    /// A subscriber has said how far it is.
    pub fn heard(&self) {
        if self.is_awaited() {
            self.wake();
        }
    }

    /// Has the receiver look what it is to do.
    pub fn wake(&self) {
        if let Some(waker) = &*lock(&self.waker) {
            waker.wake();
        }
    }
}
