//! What of a group's log may be removed, and how room is made in a spool that is full.
//!
//! A segment goes once everything in it is confirmed by every slot that reads the group, as
//! far as the book's file says: after a crash a slot is where the file says. Without slots
//! what is durable is not needed any more.

use lockstep_spool::{Log, Storage};
use tracing::error;

use crate::config::OnSpoolLimit;
use crate::error::{RelayError, Result};
use crate::slots::{Slot, SlotBook};

/// Removes segments of a group's log that no slot needs any more; bytes removed.
pub fn retain<L: Storage, B: Storage>(
    group: &str,
    log: &Log<L>,
    slots: &SlotBook<B>,
) -> Result<u64> {
    let _held = slots.hold();
    let durable = log.durable();
    let needed = slots.saved(group).unwrap_or(durable).min(durable);
    log.retain(needed).map_err(|source| RelayError::Log {
        group: group.to_owned(),
        source,
    })
}

/// Tries to make room in a spool that is full; true if some was made. Drops the slowest slot
/// where the operator has chosen that.
pub fn make_room<L: Storage, B: Storage>(
    group: &str,
    log: &Log<L>,
    slots: &SlotBook<B>,
    on_limit: OnSpoolLimit,
) -> Result<bool> {
    slots.save_if_moved()?;
    if retain(group, log, slots)? > 0 {
        return Ok(true);
    }
    if on_limit != OnSpoolLimit::DropSlowest {
        return Ok(false);
    }
    // The subscriber of one that goes back to the primary would not notice that it was dropped:
    // it would find the primary's copy, which stands further on. The primary may have one, too,
    // of a slot that it is being asked to copy or to drop.
    let slowest = slots.slowest(group);
    let may_be = |slot: &Slot| !slot.route().leaves() && !slot.is_adopting();
    let Some(slot) = slowest.filter(|slot| may_be(slot)) else {
        return Ok(false);
    };
    error!(
        group,
        slot = slot.name,
        confirmed = %slot.confirmed(),
        "dropping the slowest slot: the spool has reached its limit; its subscription must be \
         synchronized again"
    );
    if !slots.remove_if(&slot.name, may_be)? {
        return Ok(false);
    }
    // Its session is told before anything else can fail.
    slot.end();
    Ok(retain(group, log, slots)? > 0)
}
