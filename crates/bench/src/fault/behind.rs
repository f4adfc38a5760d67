//! Faults at a relay and behind one. Each makes the relay, a table and a subscription of its own.

use lockstep_lab::LabError;
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::PATIENCE;

use super::Frozen;
use super::faults::{Strength, write};
use super::slow::dawdle;
use super::stage::{Injected, Stage, Which};
use crate::Result;
use crate::relay::process::{Relay, RelayOptions};
use crate::relay::publisher;

const INSERT: &str = "INSERT INTO relayed (v) VALUES (repeat('x', 1000))";

/// Rows of a transaction that a slow trigger has to pass: a worker that takes 10 ms for each is
/// slower than a writer on a busy machine as well.
const SEVERAL: &str = "INSERT INTO relayed (v) SELECT repeat('x', 1000) FROM generate_series(1, 3)";

/// The second subscriber has a slow trigger.
pub(super) fn slow_worker(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = open(lab, stage)?;
    stage.second.execute(&dawdle("relayed", strength))?;
    write(stage, &mut injected, SEVERAL, 2)?;
    Ok(injected)
}

pub(super) fn frozen_relay(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = open(lab, stage)?;
    let pid = stage.relay.as_ref().map(Relay::pid);
    injected
        .frozen
        .extend(pid.map(Frozen::process).transpose()?);
    write(stage, &mut injected, INSERT, strength.choose(50, 5))?;
    Ok(injected)
}

/// The relay's slots on the primary are dropped.
pub(super) fn group_failed(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = open(lab, stage)?;
    stage.primary.execute(
        "DO $$ BEGIN LOOP BEGIN \
           PERFORM pg_drop_replication_slot(slot_name) FROM pg_replication_slots \
             WHERE slot_name LIKE 'lockstep%'; \
           EXIT WHEN NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name LIKE 'lockstep%'); \
         EXCEPTION WHEN object_in_use THEN \
           PERFORM pg_terminate_backend(active_pid) FROM pg_replication_slots \
             WHERE slot_name LIKE 'lockstep%'; \
         END; PERFORM pg_sleep(0.01); END LOOP; END $$",
    )?;
    write(stage, &mut injected, INSERT, strength.choose(50, 5))?;
    Ok(injected)
}

/// Starts a relay, and waits until the second subscriber follows a table through it.
fn open(lab: &Lab, stage: &mut Stage) -> Result<Injected> {
    let Some(program) = stage.program.clone() else {
        let reason = "no program is given that could run a relay";
        return Err(LabError::Measurement(reason.to_owned()).into());
    };
    for server in [&stage.primary, &stage.second] {
        server.execute("CREATE TABLE relayed (id bigserial PRIMARY KEY, v text)")?;
    }
    stage
        .primary
        .execute("CREATE PUBLICATION behind FOR TABLE relayed")?;
    let options = RelayOptions {
        program,
        cache: "16MB".to_owned(),
        failover: false,
    };
    let relay = Relay::start(lab, &publisher::endpoint(&stage.primary), &options)?;
    let subscribe = format!(
        "CREATE SUBSCRIPTION behind CONNECTION '{}' PUBLICATION behind",
        relay.endpoint().conninfo()
    );
    stage.relay = Some(relay);
    stage.second.execute(&subscribe)?;
    stage
        .second
        .await_event("copy the table", PATIENCE, |second| {
            let sql = "SELECT (srsubstate = 'r')::text FROM pg_subscription_rel \
                   WHERE srrelid = 'relayed'::regclass";
            Ok(second.query_text(sql)?.as_deref() == Some("true"))
        })?;
    let mut injected = Injected::default();
    injected
        .undo
        .push((Which::Second, "DROP SUBSCRIPTION behind".to_owned()));
    Ok(injected)
}

/// Ends the relay, if there is one, and removes what was made for it. Its subscription is gone
/// already, and nobody writes.
pub(super) fn close(stage: &mut Stage) -> Result<()> {
    let Some(relay) = stage.relay.take() else {
        return Ok(());
    };
    relay.stop()?;
    const SLOTS: &str = "FROM pg_replication_slots WHERE slot_name LIKE 'lockstep%'";
    stage
        .primary
        .await_event("free the relay's slots", PATIENCE, |primary| {
            let sql = format!("SELECT 'active' {SLOTS} AND active LIMIT 1");
            Ok(primary.query_text(&sql)?.is_none())
        })?;
    stage.primary.execute(&format!(
        "SELECT pg_drop_replication_slot(slot_name) {SLOTS}; \
         DROP PUBLICATION behind; DROP TABLE relayed"
    ))?;
    Ok(stage.second.execute("DROP TABLE relayed")?)
}
