//! The faults, each with the cause that must be found for it.

use std::time::Duration;

use lockstep_client::ClientError;
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{DATABASE, SUPERUSER};
use lockstep_lag::Cause;
use lockstep_lag::rules::Severity;

use super::stage::{Injected, Stage, Which};
use super::{
    Hurry, Writer, archives, behind, copies, missing, others, paused, replicas, slow, subscribed,
    unseen, upstream,
};
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

/// The copy of a table that waits at the subscriber.
pub const BLOCKED_BELOW: &str = "initial copy blocked at the subscriber";

/// The column that has another name on the publisher.
pub const RENAMED_COLUMN: &str = "column renamed on the publisher";

/// The table that is dropped on the publisher and made anew.
pub const TABLE_ANEW: &str = "table dropped and made anew on the publisher";

/// The column that the subscriber generates.
pub const GENERATED_COLUMN: &str = "column generated at the subscriber";

/// The role that is not there.
pub const NO_ROLE: &str = "subscription's role not there";

/// The publication that is dropped while nothing is written.
pub const PUBLICATION_DROPPED: &str = "publication dropped";

/// What a standby that restores from an archive cannot have yet.
pub const NOT_ARCHIVED: &str = "transactions that are not archived yet";

/// The archiver whose command does not end.
pub const HANGING_ARCHIVER: &str = "archiver that hangs";

/// The slot for want of which a relay gets nothing.
pub const RELAY_SLOT_DROPPED: &str = "relay's slot dropped";

/// The column for want of which a table is not copied.
pub const COPY_LACKS_COLUMN: &str = "initial copy without a column";

/// The slot of one of two subscriptions that fill a table.
pub const SHARD: &str = "slot dropped beside another subscription of the table";

/// The worker of a subscription that does not run; another fault stops its walsender.
pub const FROZEN_WORKER: &str = "frozen apply worker";

/// The standby that restores from an archive, and whose replay waits for a query.
pub const ARCHIVE_CONFLICT: &str = "recovery conflict behind an archive";

/// The values that are too long, or out of range, for a column of the subscriber.
pub const NARROW: &str = "column too narrow at the subscriber";

/// The rows for which the subscriber's table has no partition.
pub const UNPARTED: &str = "no partition for a row at the subscriber";

pub const FAULTS: &[Fault] = &[
    fault(
        "asynchronous apply commit",
        Cause::AsynchronousApplyCommit,
        slow::asynchronous_commit,
    ),
    fault("paused replay", Cause::ReplayPaused, slow::pause),
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
    fault("recovery conflict", Cause::RecoveryConflict, slow::conflict),
    fault("cleanup lock", Cause::CleanupLock, slow::cleanup_lock),
    fault("starved startup", Cause::ReplayStarved, slow::starved),
    hurried(fault(
        "replay at one core's limit",
        Cause::ReplayAtCoreLimit,
        slow::core_limit,
    )),
    traced(fault(
        "slow storage",
        Cause::ReplayWaitsForStorage,
        slow::slow_storage,
    )),
    traced(fault(
        "slow walreceiver fsync",
        Cause::SlowWalFlush,
        slow::slow_flush,
    )),
    fault("slow network", Cause::SlowNetwork, slow::slow_network),
    fault("one slow slot", Cause::SlowConsumer, slow::slow_consumer),
    traced(fault(
        "all slots slow",
        Cause::SlowDecoding,
        slow::slow_decoding,
    )),
    late(fault(
        "giant transaction spill",
        Cause::GiantTransaction,
        slow::giant,
    )),
    fault(
        "apply blocked by a lock",
        Cause::ApplyBlocked,
        slow::apply_blocked,
    ),
    fault(
        PREPARED_LOCK,
        Cause::ApplyBlocked,
        unseen::blocked_by_prepared,
    ),
    risky(fault(
        "retained WAL near its limit",
        Cause::RetainedWalNearLimit,
        slow::retained,
    )),
    fault(
        "synchronous standby missing",
        Cause::SynchronousStandbyMissing,
        unseen::synchronous_missing,
    ),
    fault(
        "synchronous consumer that confirms nothing",
        Cause::CommitsHeld,
        unseen::commits_held,
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
    fault(FROZEN_WORKER, Cause::ProcessHalted, unseen::frozen_worker),
    fault(
        "frozen walsender of a subscriber",
        Cause::ProcessHalted,
        unseen::frozen_walsender,
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
        Cause::TableMissing,
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
    fault(NO_ROLE, Cause::RoleRefused, missing::connection),
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
    fault(
        "initial copy blocked on the publisher",
        Cause::InitialSyncBlocked,
        copies::blocked_above,
    ),
    fault(
        BLOCKED_BELOW,
        Cause::InitialSyncBlocked,
        copies::blocked_below,
    ),
    fault(
        "initial copy refused by a row",
        Cause::InitialSyncFails,
        copies::refused,
    ),
    fault(
        "no worker that copies",
        Cause::InitialSyncFails,
        copies::no_copier,
    ),
    fault(
        "table renamed on the publisher",
        Cause::TableRenamed,
        copies::table_renamed,
    ),
    fault(TABLE_ANEW, Cause::TableRenamed, copies::table_anew),
    fault(GENERATED_COLUMN, Cause::ColumnsMissing, copies::generated),
    fault(
        "slot of another output plugin",
        Cause::SlotUnsuitable,
        missing::other_plugin,
    ),
    risky(fault(
        "partitioned table published by other names",
        Cause::PartitionRootDiffers,
        copies::by_partitions,
    )),
    risky(fault(
        "unlogged table at the subscriber",
        Cause::TablesUnlogged,
        copies::unlogged,
    )),
    fault(
        "partitioned table written by other names",
        Cause::PartitionRootDiffers,
        copies::written_by_partitions,
    ),
    fault(
        RENAMED_COLUMN,
        Cause::ColumnsMissing,
        copies::column_renamed,
    ),
    fault(
        "column of another type at the subscriber",
        Cause::ApplyStopped,
        copies::other_type,
    ),
    fault(NARROW, Cause::ApplyStopped, copies::narrow),
    fault(UNPARTED, Cause::ApplyStopped, subscribed::unparted),
    fault(
        "subscription's role without replication",
        Cause::RoleRefused,
        copies::role_without_replication,
    ),
    fault(
        "subscription's connection refused",
        Cause::SubscriptionRefused,
        copies::connection_refused,
    ),
    late(fault(
        "primary restarted",
        Cause::ConnectionLost,
        upstream::restarted,
    )),
    fault(
        "standby's connection refused",
        Cause::NotStreaming,
        upstream::refused,
    ),
    fault(
        "apply blocked by a row",
        Cause::ApplyBlocked,
        unseen::blocked_by_row,
    ),
    fault(
        "CHECK at the subscriber",
        Cause::ApplyStopped,
        unseen::check,
    ),
    fault(
        "NOT NULL column at the subscriber",
        Cause::ValueMissing,
        unseen::not_null,
    ),
    risky(fault(
        "inactive logical slot",
        Cause::UnusedSlot,
        unseen::unused_logical_slot,
    )),
    risky(fault(
        "old snapshot of a standby",
        Cause::FeedbackBloat,
        unseen::feedback,
    )),
    risky(fault(
        "table without replica identity",
        Cause::NoReplicaIdentity,
        unseen::unidentified,
    )),
    fault(
        "standby's slot taken by a clone",
        Cause::SlotTaken,
        others::clone,
    ),
    fault(
        "second primary",
        Cause::TwoPrimaries,
        others::second_primary,
    ),
    fault(
        "standby of another timeline",
        Cause::TimelineDiverged,
        others::diverged,
    ),
    fault(
        "standbys that follow each other",
        Cause::NoWayToPrimary,
        others::ring,
    ),
    fault(
        "upstream that is not asked",
        Cause::UpstreamNotAsked,
        others::unasked,
    ),
    fault(
        "middle of a cascade down",
        Cause::UpstreamElsewhere,
        others::middle_down,
    ),
    fault(
        "paused replay above a standby",
        Cause::ReplayPaused,
        others::paused_above,
    ),
    fault(
        "standby without an upstream",
        Cause::NoUpstream,
        upstream::nowhere,
    ),
    fault(
        "archive that gives nothing",
        Cause::RestoreFails,
        archives::fails,
    ),
    fault(
        "archive slower than the WAL",
        Cause::RestoreSlow,
        archives::slow,
    ),
    risky(fault(
        NOT_ARCHIVED,
        Cause::NotArchivedYet,
        archives::unarchived,
    )),
    risky(fault(
        HANGING_ARCHIVER,
        Cause::ArchiverFailing,
        unseen::archiver_hangs,
    )),
    risky(fault(
        "unused slot that keeps rows",
        Cause::UnusedSlot,
        unseen::slot_keeps_rows,
    )),
    fault(
        COPY_LACKS_COLUMN,
        Cause::ColumnsMissing,
        copies::lacks_column,
    ),
    fault(
        "subscription's owner may not log in",
        Cause::OwnerRefused,
        subscribed::owner,
    ),
    fault(
        "subscription's owner may not write a table",
        Cause::OwnerLacksRights,
        subscribed::denied,
    ),
    fault(
        "column lists that differ",
        Cause::ColumnListsDiffer,
        subscribed::lists,
    ),
    fault(
        "table without a key at the subscriber",
        Cause::KeyMissing,
        subscribed::keyless,
    ),
    fault(SHARD, Cause::SubscriptionSlotMissing, subscribed::shard),
    fault(
        "publication dropped before rows are written",
        Cause::PublicationMissing,
        missing::publication_dropped_early,
    ),
    fault(
        ARCHIVE_CONFLICT,
        Cause::RecoveryConflict,
        archives::conflict,
    ),
    risky(fault(
        "table followed twice",
        Cause::TableFollowedTwice,
        subscribed::followed_twice,
    )),
    risky(fault(
        "measurement that was killed",
        Cause::ProbeLeft,
        subscribed::probe,
    )),
    fault(
        RELAY_SLOT_DROPPED,
        Cause::RelayNotStreaming,
        behind::group_failed,
    ),
    fault("replica paused", Cause::ReplicaPaused, replicas::paused),
    fault(
        "replica stopped by a row",
        Cause::ReplicaStopped,
        replicas::stopped,
    ),
    fault(
        "replica's process killed",
        Cause::ReplicaNotRunning,
        replicas::killed,
    ),
    fault(
        "replica's process frozen",
        Cause::ReplicaSilent,
        replicas::silent,
    ),
    fault("replica held by verify", Cause::ReplicaHeld, replicas::held),
    risky(fault(
        "replica that lacks rows",
        Cause::ReplicaRowsMissing,
        replicas::rows_missing,
    )),
    risky(fault(
        "replica that lacks a table",
        Cause::ReplicaIncomplete,
        replicas::table_missing,
    )),
    only_looks(fault(
        "transactions spilled to disk",
        Cause::SpillToDisk,
        unseen::spilled,
    )),
    only_looks(fault(
        "publication of inserts only",
        Cause::PartlyPublished,
        subscribed::inserts_only,
    )),
    only_looks(fault("idle primary", Cause::IdlePrimary, slow::idle)),
    only_looks(fault(
        "other database's WAL",
        Cause::OtherDatabases,
        slow::other_database,
    )),
];

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

#[cfg(test)]
mod tests {
    use super::*;

    /// Causes that no fault injects. A new cause needs a fault, or a place here. Those of replicas are
    /// in `crates/cli/tests/cli/doctor_replica.rs`, others in `doctor_all_clear.rs`,
    /// `doctor_pasted.rs`, `doctor_unfed.rs` and `doctor_standbys.rs` beside it.
    const WITHOUT_FAULT: &[Cause] = &[
        Cause::ManySavepoints,
        Cause::NodeRestarted,
        Cause::ReplicaGone,
        Cause::MemberLeft,
        Cause::RelaySpoolNearLimit,
        Cause::RelayReadsFromDisk,
        Cause::ReplicaSpoolFull,
        Cause::ReplicaCopying,
        Cause::ChecksumFailures,
    ];

    /// Number of causes that the faults have.
    fn causes() -> usize {
        let has_fault = |cause: &&Cause| FAULTS.iter().any(|fault| fault.cause == **cause);
        Cause::ALL.iter().filter(has_fault).count()
    }

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
