//! Replay that pauses by itself: at a recovery target, and where the primary was given higher settings.

use lockstep_lab::cluster::Lab;
use lockstep_lab::server::PATIENCE;

use super::faults::{Strength, UNPUBLISHED, write};
use super::stage::{Injected, Stage, Which};
use super::unseen::fill;
use crate::Result;

/// The standby comes to its recovery target, and pauses there.
pub(super) fn at_target(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    const TARGET: &str = "recovery_target_lsn";
    let mut injected = Injected::default();
    let ahead = "SELECT (pg_current_wal_flush_lsn() + 100000)::text";
    let target = stage.primary.query_text(ahead)?.unwrap_or_default();
    stage.standby.set([(TARGET, target)])?;
    injected.restarts.push((Which::Standby, TARGET, None));
    stage.standby.restart()?;
    fill(stage, 1)?;
    await_pause(stage)?;
    write(stage, &mut injected, UNPUBLISHED, strength.choose(100, 5))?;
    Ok(injected)
}

/// The primary is started anew with more connections than the standby has.
pub(super) fn settings_too_low(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    const SETTING: &str = "max_connections";
    let mut injected = Injected::default();
    let more = strength.choose("101", "200");
    stage.primary.set([(SETTING, more)])?;
    stage.primary.restart()?;
    // Replay must have gone past each of the primary's starts before the standby's next one.
    injected.restarts = vec![
        (Which::Standby, SETTING, Some(more.to_owned())),
        (Which::Primary, SETTING, Some("100".to_owned())),
        (Which::Standby, SETTING, Some("100".to_owned())),
    ];
    await_pause(stage)?;
    stage
        .primary
        .await_event("have its subscribers back", PATIENCE, |primary| {
            let sql = "SELECT (count(*) = 3 AND bool_and(state = 'streaming'))::text \
                       FROM pg_stat_replication";
            Ok(primary.query_text(sql)?.as_deref() == Some("true"))
        })?;
    write(stage, &mut injected, UNPUBLISHED, strength.choose(100, 5))?;
    Ok(injected)
}

fn await_pause(stage: &mut Stage) -> Result<()> {
    let paused = "SELECT (pg_get_wal_replay_pause_state() = 'paused')::text";
    Ok(stage
        .standby
        .await_event("pause replay", PATIENCE, |standby| {
            Ok(standby.query_text(paused)?.as_deref() == Some("true"))
        })?)
}
