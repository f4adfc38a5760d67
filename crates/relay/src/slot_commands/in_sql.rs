//! The relay's slots in SQL: how they are listed, and what functions of slots do to them; and what
//! the relay says of the primary to a session that has left it.

use std::sync::Arc;

use lockstep_wire::Lsn;
use lockstep_wire::backend::{Backend, Column, INT8, Report, TEXT};
use tracing::info;

use super::{Sessions, in_use};
use crate::group::Group;
use crate::session::{Facts, Standing};
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

    /// `IDENTIFY_SYSTEM`, as far as the relay has received the database's WAL: a stream that begins
    /// there misses nothing.
    pub(super) fn identity_of(&self, standing: &Standing) -> Option<Vec<u8>> {
        let groups = self.0.all_groups();
        let here = |group: &&Arc<Group>| group.database_oid() == Some(standing.database_oid);
        let followed = groups.iter().find(here)?.followed();
        let columns = [
            ("systemid", TEXT),
            ("timeline", INT8),
            ("xlogpos", TEXT),
            ("dbname", TEXT),
        ];
        let columns = columns.map(|(name, kind)| Column { name, kind });
        let values = [
            followed.system?,
            followed.timeline?.to_string(),
            followed.received.to_string(),
            standing.database.clone(),
        ];
        let values = values.iter().map(|value| Some(value.as_bytes())).collect();
        let mut out = Vec::new();
        for message in [
            Backend::RowDescription(columns.into()),
            Backend::DataRow(values),
            Backend::CommandComplete("IDENTIFY_SYSTEM"),
        ] {
            message.encode(&mut out);
        }
        Some(out)
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
