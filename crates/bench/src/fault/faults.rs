//! The faults, each with the cause that must be found for it.

use std::time::Duration;

use lockstep_client::ClientError;
use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::{DATABASE, SUPERUSER};
use lockstep_lab::workload::Workload;
use lockstep_lag::Cause;
use lockstep_lag::rules::Severity;

use super::stage::{Injected, OTHER_DATABASE, SCALE, Stage, Which};
use super::{Hurry, Writer, behind, missing, paused, unseen, upstream};
use crate::Result;
use crate::slow_calls::SlowCalls;

/// How strong a fault is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strength {
    /// Just enough to be found.
    Mild,
    Strong,
}

impl Strength {
    pub const ALL: [Self; 2] = [Self::Mild, Self::Strong];

    pub(super) fn choose<T>(self, mild: T, strong: T) -> T {
        match self {
            Self::Mild => mild,
            Self::Strong => strong,
        }
    }
}

/// A way to make replication lag.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    pub name: &'static str,
    cause: Cause,
    /// What doctor must call it: lag, a risk, or a note if it only looks like lag.
    pub severity: Severity,
    /// How many seconds doctor watches.
    pub seconds: u32,
    inject: fn(&Lab, &mut Stage, Strength) -> Result<Injected>,
    missing: fn() -> Option<&'static str>,
}

const fn fault(
    name: &'static str,
    cause: Cause,
    inject: fn(&Lab, &mut Stage, Strength) -> Result<Injected>,
) -> Fault {
    Fault {
        name,
        cause,
        severity: Severity::Lag,
        seconds: 4,
        inject,
        missing: || None,
    }
}

const fn traced(mut fault: Fault) -> Fault {
    fault.missing = SlowCalls::missing;
    fault
}

const fn hurried(mut fault: Fault) -> Fault {
    fault.missing = Hurry::missing;
    fault
}

/// A fault that shows only some seconds after it was injected.
const fn late(mut fault: Fault) -> Fault {
    fault.seconds = 10;
    fault
}

const fn only_looks(mut fault: Fault) -> Fault {
    fault.severity = Severity::Note;
    fault
}

/// A fault that makes nothing lag yet.
const fn risky(mut fault: Fault) -> Fault {
    fault.severity = Severity::Risk;
    fault
}

/// The slow network that is to the first subscriber; the other is to the standby.
pub const SUBSCRIBER_NETWORK: &str = "network slow to a subscriber";

/// The lock that no session holds.
pub const PREPARED_LOCK: &str = "apply blocked by a prepared transaction";

/// The trigger for which a worker fails.
pub const REFUSING_TRIGGER: &str = "trigger that refuses rows";

/// The foreign key for which a worker fails.
pub const REFUSING_KEY: &str = "TRUNCATE against a foreign key";

/// The slow consumer that gets its changes through a relay.
pub const BEHIND_RELAY: &str = "slow worker behind a relay";

/// The lost slot that is a subscription's.
pub const SUBSCRIPTION_LOST: &str = "slot of a subscription lost";

/// The publication that is dropped while nothing is written.
pub const PUBLICATION_DROPPED: &str = "publication dropped";

pub const FAULTS: &[Fault] = &[
    fault(
        "asynchronous apply commit",
        Cause::AsynchronousApplyCommit,
        asynchronous_commit,
    ),
    fault("paused replay", Cause::ReplayPaused, pause),
    fault(
        "recovery target reached",
        Cause::RecoveryTarget,
        paused::at_target,
    ),
    fault(
        "settings lower than the primary's",
        Cause::StandbySettingsTooLow,
        paused::settings_too_low,
    ),
    fault("recovery conflict", Cause::RecoveryConflict, conflict),
    fault("cleanup lock", Cause::CleanupLock, cleanup_lock),
    fault("starved startup", Cause::ReplayStarved, starved),
    hurried(fault(
        "replay at one core's limit",
        Cause::ReplayAtCoreLimit,
        core_limit,
    )),
    traced(fault(
        "slow storage",
        Cause::ReplayWaitsForStorage,
        slow_storage,
    )),
    traced(fault(
        "slow walreceiver fsync",
        Cause::SlowWalFlush,
        slow_flush,
    )),
    fault("slow network", Cause::SlowNetwork, slow_network),
    fault("one slow slot", Cause::SlowConsumer, slow_consumer),
    traced(fault("all slots slow", Cause::SlowDecoding, slow_decoding)),
    late(fault(
        "giant transaction spill",
        Cause::GiantTransaction,
        giant,
    )),
    fault(
        "apply blocked by a lock",
        Cause::ApplyBlocked,
        apply_blocked,
    ),
    fault(
        PREPARED_LOCK,
        Cause::ApplyBlocked,
        unseen::blocked_by_prepared,
    ),
    risky(fault(
        "retained WAL near its limit",
        Cause::RetainedWalNearLimit,
        retained,
    )),
    fault(
        "synchronous standby missing",
        Cause::SynchronousStandbyMissing,
        unseen::synchronous_missing,
    ),
    fault(
        "recovery_min_apply_delay",
        Cause::ReplayDelayed,
        unseen::delayed,
    ),
    fault(
        "frozen startup",
        Cause::ReplayHalted,
        unseen::frozen_startup,
    ),
    fault(
        "frozen walreceiver",
        Cause::ReceiverHalted,
        unseen::frozen_walreceiver,
    ),
    // They are back at once, because the stage's servers retry soon.
    risky(fault(
        "killed walsenders",
        Cause::WalsendersEnded,
        unseen::killed_walsenders,
    )),
    fault(
        SUBSCRIBER_NETWORK,
        Cause::SlowNetwork,
        unseen::slow_subscriber_network,
    ),
    fault(
        "checkpoint and full-page images",
        Cause::FullPageImages,
        unseen::page_images,
    ),
    fault(
        "unique violation",
        Cause::ApplyStopped,
        unseen::unique_violation,
    ),
    fault(
        "subscription disabled",
        Cause::ApplyStopped,
        unseen::disabled,
    ),
    fault(
        "table missing at the subscriber",
        Cause::ApplyStopped,
        unseen::table_missing,
    ),
    fault(
        "missing index at the subscriber",
        Cause::MissingIndex,
        unseen::missing_index,
    ),
    fault(BEHIND_RELAY, Cause::SlowConsumer, behind::slow_worker),
    // Doctor waits ten seconds for its console.
    late(fault(
        "frozen relay",
        Cause::RelayHalted,
        behind::frozen_relay,
    )),
    risky(fault(
        "table that no subscriber follows",
        Cause::TablesNotFollowed,
        unseen::table_not_followed,
    )),
    risky(fault(
        "table left out of the publication",
        Cause::TablesNotPublished,
        unseen::table_left_out,
    )),
    risky(fault(
        "prepared transaction",
        Cause::PreparedTransaction,
        unseen::prepared,
    )),
    risky(fault(
        "old transaction holding slots",
        Cause::OldTransaction,
        unseen::old_transaction,
    )),
    risky(fault(
        "archiver failing",
        Cause::ArchiverFailing,
        unseen::archiver,
    )),
    risky(fault(
        "cancelled queries",
        Cause::QueriesCancelled,
        unseen::cancelled,
    )),
    risky(fault(
        "inactive slot",
        Cause::UnusedSlot,
        unseen::unused_slot,
    )),
    fault(
        "column missing at the subscriber",
        Cause::ColumnsMissing,
        missing::column,
    ),
    fault(REFUSING_TRIGGER, Cause::ApplyStopped, missing::trigger),
    fault(REFUSING_KEY, Cause::ApplyStopped, missing::truncate),
    fault(
        "slot of a subscription dropped",
        Cause::SubscriptionSlotMissing,
        missing::slot,
    ),
    fault(
        "publication not there",
        Cause::PublicationMissing,
        missing::publication,
    ),
    fault(
        "role without replication",
        Cause::RoleRefused,
        missing::role,
    ),
    fault(
        "standby's slot not there",
        Cause::SlotMissing,
        upstream::standby_slot,
    ),
    fault(
        "upstream at another port",
        Cause::UpstreamElsewhere,
        upstream::elsewhere,
    ),
    fault(
        "upstream of another cluster",
        Cause::UpstreamElsewhere,
        upstream::other_cluster,
    ),
    fault(
        "WAL removed on the upstream",
        Cause::WalRemoved,
        upstream::removed,
    ),
    fault(
        "no walsender left",
        Cause::NoFreeWalsender,
        missing::walsenders,
    ),
    fault("no worker left", Cause::NoFreeWorker, missing::workers),
    fault(
        "subscription's role not there",
        Cause::SubscriptionRefused,
        missing::connection,
    ),
    fault(
        "consumer that confirms nothing",
        Cause::ConfirmsNothing,
        missing::confirmation,
    ),
    fault("slot lost", Cause::SlotLost, missing::lost),
    fault(
        SUBSCRIPTION_LOST,
        Cause::SlotLost,
        missing::subscription_lost,
    ),
    fault(
        "slot and publication dropped",
        Cause::SubscriptionSlotMissing,
        missing::slot_and_publication,
    ),
    risky(fault(
        PUBLICATION_DROPPED,
        Cause::PublicationMissing,
        missing::publication_dropped,
    )),
    risky(fault(
        "collation of another version",
        Cause::CollationVersion,
        missing::collation,
    )),
    only_looks(fault("idle primary", Cause::IdlePrimary, idle)),
    only_looks(fault(
        "other database's WAL",
        Cause::OtherDatabases,
        other_database,
    )),
];

/// Number of causes that the faults have.
pub fn causes() -> usize {
    let has_fault = |cause: &&Cause| FAULTS.iter().any(|fault| fault.cause == **cause);
    Cause::ALL.iter().filter(has_fault).count()
}

impl Fault {
    /// The fault of a name.
    pub fn named(name: &str) -> Option<&'static Self> {
        FAULTS.iter().find(|fault| fault.name == name)
    }

    /// The cause that doctor must find.
    pub fn cause(&self) -> Cause {
        self.cause
    }

    /// Why the fault cannot be injected on this machine, if it cannot.
    pub fn missing(&self) -> Option<&'static str> {
        (self.missing)()
    }

    /// Begins the fault.
    pub fn inject(&self, lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
        (self.inject)(lab, stage, strength)
    }
}

/// Inserts rows of about 1 kB into a published table.
pub(super) const PUBLISHED: &str =
    "INSERT INTO t (v) SELECT repeat(md5(random()::text), 30) FROM generate_series(1, 10)";

/// Inserts the same rows into a table that is not published.
pub(super) const UNPUBLISHED: &str =
    "INSERT INTO busy (v) SELECT repeat(md5(random()::text), 30) FROM generate_series(1, 10)";

pub(super) fn write(
    stage: &Stage,
    injected: &mut Injected,
    sql: &str,
    pause_ms: u64,
) -> Result<()> {
    let pause = Duration::from_millis(pause_ms);
    injected
        .writers
        .push(Writer::start(&stage.primary, DATABASE, sql, pause)?);
    Ok(())
}

/// Opens a session that runs `sql` and stays, and makes it the culprit.
pub(super) fn hold(stage: &Stage, which: Which, sql: &str, injected: &mut Injected) -> Result<()> {
    let server = stage.server(which);
    let refused = |error: ClientError| server.refused("refused a statement", &error);
    let mut client = server.connect(SUPERUSER, "lockstep holder")?;
    client.execute(sql).map_err(refused)?;
    injected.culprit = Some(client.backend_pid());
    injected.held.push(client);
    Ok(())
}

fn asynchronous_commit(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    // Quoted, as FIRST is a keyword of synchronous_standby_names.
    injected.set(
        stage,
        Which::Primary,
        "synchronous_standby_names",
        "\"first\"",
    )?;
    write(stage, &mut injected, PUBLISHED, strength.choose(100, 1))?;
    Ok(injected)
}

fn pause(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    stage.standby.execute("SELECT pg_wal_replay_pause()")?;
    injected
        .undo
        .push((Which::Standby, "SELECT pg_wal_replay_resume()".to_owned()));
    write(stage, &mut injected, UNPUBLISHED, strength.choose(100, 5))?;
    Ok(injected)
}

/// Mild: an old snapshot. Strong: a lock.
fn conflict(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    injected.set(stage, Which::Standby, "max_standby_streaming_delay", "-1")?;
    stage.primary.execute(
        "TRUNCATE victim; INSERT INTO victim SELECT i, 'x' FROM generate_series(1, 1000) i",
    )?;
    stage.standby.catch_up(&stage.primary)?;
    hold(
        stage,
        Which::Standby,
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM victim",
        &mut injected,
    )?;
    stage.primary.execute(strength.choose(
        "DELETE FROM victim WHERE id % 2 = 0",
        "ALTER TABLE victim ADD COLUMN w int; ALTER TABLE victim DROP COLUMN w",
    ))?;
    stage.primary.execute("VACUUM victim")?;
    write(stage, &mut injected, UNPUBLISHED, 20)?;
    Ok(injected)
}

/// A cursor that has stopped on a page whose dead rows are older than its snapshot.
fn cleanup_lock(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    injected.set(stage, Which::Standby, "max_standby_streaming_delay", "-1")?;
    stage.primary.execute(
        "TRUNCATE victim; INSERT INTO victim SELECT i, 'x' FROM generate_series(1, 1000) i",
    )?;
    stage
        .primary
        .execute("DELETE FROM victim WHERE id BETWEEN 10 AND 20")?;
    // The snapshot below must see the deletion as committed.
    stage.standby.catch_up(&stage.primary)?;
    hold(
        stage,
        Which::Standby,
        "BEGIN; DECLARE c CURSOR FOR SELECT * FROM victim; FETCH 1 FROM c",
        &mut injected,
    )?;
    stage.primary.execute("VACUUM victim")?;
    write(stage, &mut injected, UNPUBLISHED, strength.choose(100, 5))?;
    Ok(injected)
}

/// A backlog, and readers that take the core.
fn starved(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    backlog(stage, strength.choose(500_000, 1_000_000))?;
    let readers = strength.choose(32, 90);
    let load = lab.start_load(
        &stage.standby,
        Side::Standby,
        Workload::Aggregate,
        readers,
        SCALE,
    )?;
    injected.loads.push(load);
    stage.standby.await_event(
        "have its readers",
        lockstep_lab::server::PATIENCE,
        |standby| {
            let sql = format!(
                "SELECT (count(*) >= {readers})::text FROM pg_stat_activity \
             WHERE query LIKE 'SELECT sum(abalance)%'"
            );
            Ok(standby.query_text(&sql)?.as_deref() == Some("true"))
        },
    )?;
    stage.standby.execute("SELECT pg_wal_replay_resume()")?;
    Ok(injected)
}

/// A backlog that is replayed from memory, by a startup process that gets a core before all others.
fn core_limit(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let startup = stage.process(Which::Standby, "startup", None)?;
    injected.hurried = Some(Hurry::process(lab, startup)?);
    // Up to a million rows are replayed each second, and on a busy machine doctor misses the first
    // seconds.
    backlog(stage, strength.choose(5_000_000, 6_000_000))?;
    stage.standby.execute("SELECT pg_wal_replay_resume()")?;
    Ok(injected)
}

/// Pauses replay and inserts rows into a table with three indexes, in a database without
/// subscriptions so that walsenders do not decode them.
fn backlog(stage: &mut Stage, rows: u32) -> Result<()> {
    stage.execute_in(
        OTHER_DATABASE,
        "DROP TABLE IF EXISTS backlog; \
         CREATE TABLE backlog (a int, b int, c int); \
         CREATE INDEX ON backlog (a); CREATE INDEX ON backlog (b); CREATE INDEX ON backlog (c)",
    )?;
    stage.standby.catch_up(&stage.primary)?;
    stage.standby.execute("SELECT pg_wal_replay_pause()")?;
    stage.execute_in(
        OTHER_DATABASE,
        &format!("INSERT INTO backlog SELECT i, i, i FROM generate_series(1, {rows}) i"),
    )?;
    let end = stage.primary.flush_lsn()?;
    Ok(stage.standby.await_event(
        "receive the backlog",
        lockstep_lab::server::PATIENCE,
        |standby| {
            let sql = format!("SELECT (pg_last_wal_receive_lsn() >= '{end}')::text");
            Ok(standby.query_text(&sql)?.as_deref() == Some("true"))
        },
    )?)
}

fn slow_storage(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let pid = stage.process(Which::Standby, "startup", None)?;
    let delay = Duration::from_millis(strength.choose(20, 60));
    injected.slow.push(SlowCalls::of(
        lab,
        pid,
        "pread64,preadv,pwrite64,pwritev",
        delay,
    )?);
    for _ in 0..2 {
        write(stage, &mut injected, UNPUBLISHED, 1)?;
    }
    Ok(injected)
}

fn slow_flush(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let pid = stage.process(Which::Standby, "walreceiver", None)?;
    let delay = Duration::from_millis(strength.choose(600, 1500));
    injected
        .slow
        .push(SlowCalls::of(lab, pid, "fdatasync,fsync", delay)?);
    for _ in 0..2 {
        write(stage, &mut injected, UNPUBLISHED, 5)?;
    }
    Ok(injected)
}

fn slow_network(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    stage
        .standby_link
        .limit(Some(strength.choose(300_000, 50_000)));
    for _ in 0..2 {
        write(stage, &mut injected, UNPUBLISHED, 3)?;
    }
    Ok(injected)
}

/// Makes a trigger that slows down whoever applies rows of a table.
pub(super) fn dawdle(table: &str, strength: Strength) -> String {
    let delay = strength.choose("0.01", "0.05");
    format!(
        "CREATE OR REPLACE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS \
           $$ BEGIN PERFORM pg_sleep({delay}); RETURN NEW; END $$; \
         CREATE TRIGGER dawdle BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION dawdle(); \
         ALTER TABLE {table} ENABLE ALWAYS TRIGGER dawdle"
    )
}

fn slow_consumer(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    stage.second.execute(&dawdle("t", strength))?;
    injected
        .undo
        .push((Which::Second, "DROP TRIGGER dawdle ON t".to_owned()));
    write(stage, &mut injected, PUBLISHED, 20)?;
    Ok(injected)
}

fn slow_decoding(lab: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let delay = Duration::from_millis(strength.choose(30, 80));
    for name in ["first", "second"] {
        let pid = stage.process(Which::Primary, "walsender", Some(name))?;
        injected
            .slow
            .push(SlowCalls::of(lab, pid, "pread64", delay)?);
    }
    for _ in 0..2 {
        write(stage, &mut injected, PUBLISHED, 2)?;
    }
    Ok(injected)
}

fn giant(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    injected.set(stage, Which::Primary, "logical_decoding_work_mem", "1MB")?;
    let rows = strength.choose(150_000, 300_000);
    let sql = format!(
        "BEGIN; INSERT INTO t (v) SELECT repeat(md5(i::text), 6) FROM generate_series(1, {rows}) i; \
         COMMIT; SELECT pg_sleep(3600)"
    );
    write(stage, &mut injected, &sql, 1000)?;
    Ok(injected)
}

fn apply_blocked(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    hold(
        stage,
        Which::Second,
        strength.choose("BEGIN; LOCK t IN SHARE MODE", "BEGIN; LOCK t"),
        &mut injected,
    )?;
    write(stage, &mut injected, PUBLISHED, 20)?;
    Ok(injected)
}

/// Most pieces of WAL written until a slot is near its limit: more than reach the limit.
const MOST_FILLS: u32 = 50;

fn retained(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    injected.set(stage, Which::Primary, "max_slot_wal_keep_size", "128MB")?;
    stage.primary.execute("CHECKPOINT")?;
    stage
        .primary
        .execute("SELECT pg_create_physical_replication_slot('forgotten', true)")?;
    injected.undo.push((
        Which::Primary,
        "SELECT pg_drop_replication_slot('forgotten')".to_owned(),
    ));
    let fill = |megabytes: u32| {
        stage.primary.execute(&format!(
            "SELECT count(pg_logical_emit_message(false, 'fill', repeat('x', 1000000))) \
             FROM generate_series(1, {megabytes})"
        ))
    };
    // The subscribers' slots move on with a checkpoint's records; only slot `forgotten` stays
    // behind.
    fill(70)?;
    stage.primary.execute("CHECKPOINT")?;
    // How much a slot may keep beyond the limit depends on where in a segment it begins.
    let safe_mb = strength.choose(20, 10);
    let is_near = format!(
        "SELECT (safe_wal_size < {safe_mb} * 1024 * 1024)::text FROM pg_replication_slots \
         WHERE slot_name = 'forgotten'"
    );
    for _ in 0..MOST_FILLS {
        if stage.primary.query_text(&is_near)?.as_deref() == Some("true") {
            break;
        }
        fill(2)?;
    }
    stage.calm()?;
    Ok(injected)
}

fn idle(_: &Lab, stage: &mut Stage, _: Strength) -> Result<Injected> {
    stage.calm()?;
    // Old enough that the age of the last commit would look like lag.
    stage
        .standby
        .await_event("be idle", lockstep_lab::server::PATIENCE, |standby| {
            let sql = "SELECT (now() - pg_last_xact_replay_timestamp() > '6s')::text";
            Ok(standby.query_text(sql)?.as_deref() == Some("true"))
        })?;
    Ok(Injected::default())
}

fn other_database(_: &Lab, stage: &mut Stage, strength: Strength) -> Result<Injected> {
    let mut injected = Injected::default();
    let sql =
        "INSERT INTO noise SELECT repeat(md5(random()::text), 30) FROM generate_series(1, 100)";
    let pause = Duration::from_millis(strength.choose(50, 10));
    injected
        .writers
        .push(Writer::start(&stage.primary, OTHER_DATABASE, sql, pause)?);
    Ok(injected)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Causes that no fault injects. A new cause needs a fault, or a place here. Those of replicas are
    /// in `crates/cli/tests/cli/doctor_replica.rs`, others in `doctor_all_clear.rs` and
    /// `doctor_unfed.rs` beside it.
    const WITHOUT_FAULT: &[Cause] = &[
        Cause::ManySavepoints,
        Cause::TwoPrimaries,
        Cause::NotStreaming,
        Cause::SlotTaken,
        Cause::TimelineDiverged,
        Cause::RestoreFails,
        Cause::RestoreSlow,
        Cause::InitialSyncFails,
        Cause::NoReplicaIdentity,
        Cause::SpillToDisk,
        Cause::ReplicaGone,
        Cause::MemberLeft,
        Cause::RelayNotStreaming,
        Cause::RelaySpoolNearLimit,
        Cause::RelayReadsFromDisk,
        Cause::ReplicaStopped,
        Cause::ReplicaPaused,
        Cause::ReplicaNotRunning,
        Cause::ReplicaSilent,
        Cause::ReplicaSpoolFull,
        Cause::ReplicaHeld,
        Cause::ReplicaRowsMissing,
        Cause::ReplicaIncomplete,
        Cause::ReplicaCopying,
        Cause::FeedbackBloat,
        Cause::ChecksumFailures,
    ];

    #[test]
    fn the_pages_say_how_many_faults_there_are() {
        let (faults, causes) = (FAULTS.len(), causes());
        for (page, words) in [
            (
                include_str!("../../../../docs/measurements.in.md"),
                format!("{faults} faults with {causes} causes"),
            ),
            (
                include_str!("../../../../docs/lag.md"),
                format!("{faults} faults with {causes} of these causes"),
            ),
        ] {
            assert!(page.contains(&words), "{words}");
        }
    }

    #[test]
    fn every_cause_has_a_fault_or_is_known_to_have_none() {
        let has_fault = |cause: &Cause| FAULTS.iter().any(|fault| fault.cause() == *cause);
        let without: Vec<Cause> = Cause::ALL
            .iter()
            .filter(|cause| !has_fault(cause))
            .copied()
            .collect();
        assert_eq!(without, WITHOUT_FAULT);
    }
}
