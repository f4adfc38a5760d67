//! Slots on the primary that the relay has to drop: what an adoption or the making of a group
//! left there.

use std::sync::atomic::Ordering;

use tracing::{error, info, warn};

use super::{Relay, drop_at_primary};
use crate::adoption::{Action, Adoption, Event};
use crate::error::Result;
use crate::lock::lock;
use crate::slots::Slot;
use crate::upstream_slot;

/// What the sweep is called in [`crate::said::Said`]: no group has such a name.
const SWEEPING: &str = "the sweep";

impl Relay {
    /// Drops what the primary still has of slots that were adopted just before a crash.
    pub(super) fn finish_adoptions(&self) {
        for slot in self.slots().all() {
            if !slot.is_adopting() || !self.is_connected() {
                continue;
            }
            let Some(_making) = self.making_slots.try_hold(&slot.name) else {
                continue;
            };
            if let Err(failed) = self.finish_adoption(&slot) {
                warn!(slot = slot.name, error = %failed, "the primary still has a slot that was adopted");
            }
        }
    }

    pub fn finish_adoption(&self, slot: &Slot) -> Result<()> {
        let mut upstream = self.primary().connect_for_sql(&slot.database)?;
        let mut adoption = Adoption::resume();
        loop {
            let event = match adoption.poll() {
                Action::DropAtPrimary => match upstream.slot(&slot.name)? {
                    Some(found) if slot.was(&found) => drop_at_primary(&mut upstream, &slot.name),
                    Some(_) => {
                        warn!(
                            slot = slot.name,
                            "the primary has another slot of this name than the one that was \
                             adopted; it stays"
                        );
                        Event::Done
                    }
                    None => Event::Done,
                },
                Action::Settle => {
                    self.slots().adopted(slot)?;
                    Event::Done
                }
                _ => return Ok(()),
            };
            adoption.handle(event);
        }
    }

    /// Once after the start: drops slots that were made for this spool and that none of its
    /// groups has, as a crash leaves them while a group is made. And says so if a spool is
    /// new where the primary has slots of another one: a volume may not be mounted.
    pub(super) fn sweep(&self) {
        if self.swept.load(Ordering::Acquire) || self.primary().known().is_none() {
            return;
        }
        match self.sweep_now() {
            Ok(()) => self.swept.store(true, Ordering::Release),
            Err(failed) if self.said.is_new(SWEEPING, &failed) => {
                warn!(
                    error = %failed,
                    "cannot look for slots that a crash left on the primary; trying again"
                );
            }
            Err(_) => {}
        }
    }

    fn sweep_now(&self) -> Result<()> {
        let console = &self.config().console_database;
        let mut upstream = self.primary().connect_for_sql(console)?;
        let identity = &self.around.identity;
        let there = upstream_slot::list(&mut upstream)?;
        // In this order: a group whose slot is there is being made, or made by now.
        let begun = lock(&self.begun).clone();
        let groups = self.all_groups();
        for slot in there {
            let (name, used) = (&slot.name, slot.active);
            if self.new_spool && !used && identity.is_foreign(name) {
                error!(
                    slot = name,
                    "the spool is new, but the primary has a slot of another spool that nobody \
                     uses: is the spool's volume mounted? If that spool is gone for good, drop \
                     the slot"
                );
            }
            let has = groups.iter().any(|group| group.upstream_slot() == name)
                || begun.iter().any(|group| identity.slot(group) == *name);
            // A damaged group's file does not say which slot it has.
            if used || has || !identity.made(name) || !self.damaged.is_empty() {
                continue;
            }
            upstream.drop_slot(name)?;
            info!(
                slot = name,
                "dropped a slot of this spool that no group has"
            );
        }
        Ok(())
    }
}
