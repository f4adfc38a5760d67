//! What the relay gives up: groups that no slot uses any more, and what others need more while the
//! primary has too few walsenders or slots.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::{Relay, Running};
use crate::error::Result;
use crate::group::Group;
use crate::lock::lock;
use crate::look::look;
use crate::receive::Receiving;
use crate::spare::{Candidate, Gift, Need, Scarce, TRY_AGAIN, Then, choose};
use crate::stats::Source;

/// A group that is not configured is removed once no slot has used it for this time.
const FORGET_AFTER: Duration = Duration::from_secs(60);

impl Relay {
    /// Removes groups that are not configured and that no slot has used for some time.
    pub(super) fn forget_unused(&self) {
        let configured = self.config().groups;
        let mut unused = Vec::new();
        {
            let mut groups = lock(&self.groups);
            for (name, running) in groups.iter_mut() {
                let used = self.slots().saved(name).is_some()
                    || configured.iter().any(|group| group.name == *name);
                running.unused_since = match used {
                    true => None,
                    false => running.unused_since.or_else(|| Some(Instant::now())),
                };
                if running
                    .unused_since
                    .is_some_and(|since| since.elapsed() >= FORGET_AFTER)
                {
                    unused.push(running.group.clone());
                }
            }
        }
        for group in unused {
            self.forget(&group);
        }
    }

    /// Removes a group that is not configured unless a slot uses it; false if it is still there.
    fn forget(&self, group: &Arc<Group>) -> bool {
        let name = group.name();
        let Some(_making) = self.making_groups.try_hold(group.key()) else {
            return false;
        };
        if self.slots().saved(name).is_some() {
            // Somebody has begun to use it.
            return false;
        }
        let Some(running) = lock(&self.groups).remove(name) else {
            return false;
        };
        // Its connection must end before the slot can be dropped.
        drop(running);
        match group.remove() {
            Ok(()) => {
                info!(group = name, "removed a group that no slot uses");
                true
            }
            Err(failed) => {
                warn!(group = name, error = %failed, "cannot remove a group that no slot uses; trying again");
                if let Ok(receiving) = Receiving::start(group.clone()) {
                    let running = Running {
                        group: group.clone(),
                        _receiving: receiving,
                        unused_since: None,
                    };
                    lock(&self.groups).insert(name.to_owned(), running);
                }
                false
            }
        }
    }

    /// Does what a client waits for. While the primary has too few of something for that, the
    /// relay gives up what it can.
    pub fn in_need<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        let mut need = Need::default();
        loop {
            let failed = match work() {
                Ok(done) => return Ok(done),
                Err(failed) => failed,
            };
            let Some(scarce) = Scarce::met(&failed) else {
                return Err(failed);
            };
            if need.refused(Instant::now()) == Then::Give && !self.give_up(scarce) {
                return Err(failed);
            }
            std::thread::sleep(TRY_AGAIN);
        }
    }

    /// Gives up one thing of which the primary has too few; false if there is nothing that can
    /// be spared.
    pub fn give_up(&self, scarce: Scarce) -> bool {
        let _one_at_a_time = lock(&self.giving);
        if choose(scarce, &self.candidates()).is_none() {
            return false;
        }
        // What is known of whom commits wait for may be a minute old.
        if let Err(failed) = look(self.primary(), &self.all_groups(), &self.snapshot().clients) {
            warn!(error = %failed, "cannot give up a walsender: the primary does not say whom it waits for");
            return false;
        }
        let mut candidates = self.candidates();
        while let Some(gift) = choose(scarce, &candidates) {
            let (Gift::Group(name) | Gift::Walsender(name)) = &gift;
            let given = self.group(name).is_some_and(|group| match gift {
                Gift::Group(_) => self.forget(&group),
                Gift::Walsender(_) => {
                    group.spare_walsender();
                    true
                }
            });
            if given {
                info!(?gift, lacks = ?scarce, "gave up what nobody needs now for a client that needs it");
                return true;
            }
            candidates.retain(|candidate| candidate.name != *name);
        }
        false
    }

    fn candidates(&self) -> Vec<Candidate> {
        let configured = self.config().groups;
        let candidate = |group: &Arc<Group>| {
            let (name, synchronous) = (group.name(), &group.synchronous);
            Candidate {
                name: name.to_owned(),
                configured: configured.iter().any(|group| group.name == name),
                used: self.slots().saved(name).is_some(),
                read: group.readers() > 0,
                streams: synchronous.walsender().is_some() && !group.is_to_spare(),
                // One with a name of its own was given it to be waited for.
                awaited: synchronous.is_awaited() || synchronous.own_name().is_some(),
            }
        };
        self.all_groups().iter().map(candidate).collect()
    }

    /// Has others give up their walsenders for groups that are read and get none.
    pub(super) fn help_groups(&self) {
        let lacks = |group: &Arc<Group>| group.readers() > 0 && group.lacks_walsender();
        if self.all_groups().iter().any(lacks) {
            self.give_up(Scarce::Walsenders);
        }
    }
}
