//! The relay's slots in SQL: how they are listed, and what functions of slots do to them.

use lockstep_wire::Lsn;
use lockstep_wire::backend::Report;
use tracing::info;

use super::{Sessions, in_use};
use crate::session::Facts;
use crate::slot_sql::{Act, Listed};

impl Sessions {
    /// The slots as a server lists its own.
    pub(super) fn listed_slots(&self) -> Vec<Listed> {
        let slots = self.0.slots().all();
        let listed = slots.iter().map(|slot| {
            let stat = slot.stat();
            let group = self.0.group(&stat.group);
            Listed {
                name: stat.name,
                database: stat.database,
                database_oid: group.and_then(|group| group.database_oid()),
                active_pid: stat.active_pid,
                confirmed: stat.confirmed,
                lost: !stat.reason.is_empty(),
            }
        });
        listed.collect()
    }

    /// Does what a statement asks of a slot.
    pub(super) async fn act_on(&self, facts: &Facts, act: &Act) -> Result<(), Report> {
        match act {
            Act::Drop { slot } => {
                let dropped = self.drop_kept(facts, slot, false).await;
                dropped.unwrap_or_else(|| Err(missing(slot)))
            }
            Act::Advance { slot, to } => self.advance(facts, slot, *to),
        }
    }

    /// Confirms a position in the place of the slot's subscriber.
    fn advance(&self, facts: &Facts, name: &str, to: Lsn) -> Result<(), Report> {
        if !to.is_valid() {
            return Err(Report::error("22023", "invalid target WAL LSN"));
        }
        let relay = &self.0;
        let slot = relay.slots().get(name).ok_or_else(|| missing(name))?;
        let _in_use = slot
            .acquire(facts.id, facts.pid)
            .map_err(|active| in_use(name, active.pid))?;
        let refused = |why: String| {
            let message = format!("cannot advance replication slot to {to}, {why}");
            Err(Report::error("55000", message))
        };
        let confirmed = slot.confirmed();
        if to < confirmed {
            return refused(format!("minimum is {confirmed}"));
        }
        let route = slot.route();
        let group = match route.next {
            None => relay.group(&route.group),
            Some(_) => return refused("its subscription was altered: stream it first".to_owned()),
        };
        let received = group.map_or(confirmed, |group| group.log().received());
        if to > received {
            return refused(format!("the relay has received WAL up to {received}"));
        }
        slot.confirm(to);
        info!(slot = name, at = %to, "advanced");
        Ok(())
    }
}

fn missing(slot: &str) -> Report {
    Report::error(
        "42704",
        format!("replication slot \"{slot}\" does not exist"),
    )
}
