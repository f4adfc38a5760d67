//! Limits of every group, which a reload of the configuration may change.

use std::sync::{Arc, PoisonError, RwLock};

use lockstep_spool::Limits;

use crate::config::OnSpoolLimit;

/// Limits of every group, from the configuration.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// Limits of the log.
    pub limits: Limits,
    /// What becomes of a spool that is full.
    pub on_limit: OnSpoolLimit,
}

/// The policy in force: a reload may change it.
#[derive(Debug, Clone)]
pub struct InForce(Arc<RwLock<Policy>>);

impl InForce {
    /// This one, until another is set.
    pub fn new(policy: Policy) -> Self {
        Self(Arc::new(RwLock::new(policy)))
    }

    /// What is in force now.
    pub fn get(&self) -> Policy {
        *self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets another. Logs that are open are told by [`super::Group::obey`].
    pub fn set(&self, policy: Policy) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = policy;
    }

    /// Does something with what is in force. Whoever sets another waits for it, and so obeys
    /// after it.
    pub(super) fn while_it_is(&self, work: impl FnOnce(&Policy)) {
        work(&self.0.read().unwrap_or_else(PoisonError::into_inner));
    }
}
