//! Causes of lag, and what looks like one.

use serde::{Serialize, Serializer};

/// Writes the enum, the list of its variants and their ids from one list.
macro_rules! causes {
    ($($(#[$doc:meta])* $cause:ident = $id:literal,)*) => {
        /// Why a replica lags, will lag, or only seems to.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Cause {
            $($(#[$doc])* $cause,)*
        }

        impl Cause {
            pub const ALL: &'static [Self] = &[$(Self::$cause),*];

            /// The cause's name in JSON and metrics. Alerts of users rely on it, so it never
            /// changes.
            pub fn id(self) -> &'static str {
                match self {
                    $(Self::$cause => $id,)*
                }
            }
        }
    };
}

causes! {
    /// Somebody has paused replay.
    ReplayPaused = "replay_paused",
    /// Replay is paused, and has a recovery target, which it may have reached.
    RecoveryTarget = "recovery_target",
    /// Settings of a standby are lower than its primary's, so that replay pauses.
    StandbySettingsTooLow = "standby_settings_too_low",
    /// `recovery_min_apply_delay` holds replay back.
    ReplayDelayed = "replay_delayed",
    /// Replay waits for a query that needs old rows or holds a lock.
    RecoveryConflict = "recovery_conflict",
    /// Replay waits for a page that a query pins.
    CleanupLock = "cleanup_lock",
    /// Replay does not get the CPU.
    ReplayStarved = "replay_starved",
    /// Replay uses a whole core.
    ReplayAtCoreLimit = "replay_at_core_limit",
    /// Replay waits for storage.
    ReplayWaitsForStorage = "replay_waits_for_storage",
    /// Transactions with many savepoints make look-ups slow.
    ManySavepoints = "many_savepoints",
    /// The startup process does not run at all.
    ReplayHalted = "replay_halted",
    /// A process that replication depends on does not run: a walsender, or an apply worker.
    ProcessHalted = "process_halted",
    /// A node was started anew while it was watched.
    NodeRestarted = "node_restarted",
    /// Two servers of one cluster take writes.
    TwoPrimaries = "two_primaries",
    /// Something ends walsenders again and again.
    WalsendersEnded = "walsenders_ended",
    /// A standby does not stream.
    NotStreaming = "not_streaming",
    /// A standby's slot is in use by another standby, or a subscription's by another consumer.
    SlotTaken = "slot_taken",
    /// A standby's slot is not there on its upstream.
    SlotMissing = "slot_missing",
    /// An upstream has removed WAL that a standby needs.
    WalRemoved = "wal_removed",
    /// `primary_conninfo` leads to none of the servers, or to one that cannot be the upstream.
    UpstreamElsewhere = "upstream_elsewhere",
    /// A standby is told of no server and of no archive that it could get WAL from.
    NoUpstream = "no_upstream",
    /// A standby has a history that its upstream does not have.
    TimelineDiverged = "timeline_diverged",
    /// The role of `primary_conninfo` may not ask for WAL.
    RoleRefused = "role_refused",
    /// An upstream has no walsender left for a replica.
    NoFreeWalsender = "no_free_walsender",
    /// Standbys follow each other, so that nothing comes to them from a primary.
    NoWayToPrimary = "no_way_to_primary",
    /// A standby gets its WAL from a server that was not asked.
    UpstreamNotAsked = "upstream_not_asked",
    /// `restore_command` does not get WAL that is archived.
    RestoreFails = "restore_fails",
    /// `restore_command` is slower than the WAL.
    RestoreSlow = "restore_slow",
    /// The walreceiver is connected and takes nothing.
    ReceiverHalted = "receiver_halted",
    /// The walreceiver writes and flushes slowly.
    SlowWalFlush = "slow_wal_flush",
    /// Checkpoints fill the WAL with whole pages.
    FullPageImages = "full_page_images",
    /// The network is slower than the WAL.
    SlowNetwork = "slow_network",
    /// A replica was not connected to its upstream for some time.
    ConnectionLost = "connection_lost",
    /// Commits wait for replicas that are not connected.
    SynchronousStandbyMissing = "synchronous_standby_missing",
    /// Commits wait for a replica that is connected and does not confirm them.
    CommitsHeld = "commits_held",
    /// An apply worker commits asynchronously, and its flush comes late.
    AsynchronousApplyCommit = "asynchronous_apply_commit",
    /// Tables of a subscription are not copied, and their copy does not get on.
    InitialSyncFails = "initial_sync_fails",
    /// The copy of a subscription's tables waits for a lock.
    InitialSyncBlocked = "initial_sync_blocked",
    /// The slot of a subscription is on no server.
    SubscriptionSlotMissing = "subscription_slot_missing",
    /// The slot of a subscription is one that no apply worker can use.
    SlotUnsuitable = "slot_unsuitable",
    /// A subscription follows a publication that is not there.
    PublicationMissing = "publication_missing",
    /// A published table has another name than the one that a subscription follows.
    TableRenamed = "table_renamed",
    /// Published tables are not there at the subscriber.
    TableMissing = "table_missing",
    /// Publications of one subscription have different columns of a table.
    ColumnListsDiffer = "column_lists_differ",
    /// A partitioned table is followed by its own name and published by those of its partitions, or the other
    /// way round.
    PartitionRootDiffers = "partition_root_differs",
    /// A subscriber's table lacks published columns, or generates them itself.
    ColumnsMissing = "columns_missing",
    /// A followed table has no key at the subscriber by which the row of an update or delete is found.
    KeyMissing = "key_missing",
    /// A column of a followed table must have a value, and gets none.
    ValueMissing = "value_missing",
    /// A subscriber's server has no worker left for a subscription.
    NoFreeWorker = "no_free_worker",
    /// A subscription's connection to its publisher is refused.
    SubscriptionRefused = "subscription_refused",
    /// The worker of a subscription may not write tables.
    OwnerLacksRights = "owner_lacks_rights",
    /// The owner of a subscription may not log in.
    OwnerRefused = "owner_refused",
    /// A subscription is disabled or its worker fails.
    ApplyStopped = "apply_stopped",
    /// A subscription follows tables that are not published.
    TablesNotPublished = "tables_not_published",
    /// Published tables that a subscription does not follow.
    TablesNotFollowed = "tables_not_followed",
    /// Two subscriptions of a database follow a table of the same publisher.
    TableFollowedTwice = "table_followed_twice",
    /// Tables that a subscription follows are unlogged at the subscriber.
    TablesUnlogged = "tables_unlogged",
    /// Updates and deletes of a published table are refused.
    NoReplicaIdentity = "no_replica_identity",
    /// An apply worker waits for a lock.
    ApplyBlocked = "apply_blocked",
    /// An apply worker searches a whole table for each row, as no index leads to it.
    MissingIndex = "missing_index",
    /// A consumer takes what it is sent, and confirms nothing.
    ConfirmsNothing = "confirms_nothing",
    /// The consumer is slower than what it is sent.
    SlowConsumer = "slow_consumer",
    /// Decoding is slow for all.
    SlowDecoding = "slow_decoding",
    /// A transaction is larger than what decoding keeps in memory.
    GiantTransaction = "giant_transaction",
    /// Decoding writes transactions to disk.
    SpillToDisk = "spill_to_disk",
    /// A slot keeps nearly as much WAL as it may.
    RetainedWalNearLimit = "retained_wal_near_limit",
    /// A slot has lost WAL that its consumer needs.
    SlotLost = "slot_lost",
    /// A replica was connected, and is no longer.
    ReplicaGone = "replica_gone",
    /// Patroni no longer names a member.
    MemberLeft = "member_left",
    /// A slot keeps WAL for nobody.
    UnusedSlot = "unused_slot",
    /// A relay is there and does nothing.
    RelayHalted = "relay_halted",
    /// A group of a relay does not stream.
    RelayNotStreaming = "relay_not_streaming",
    /// A relay's spool is nearly as large as it may be.
    RelaySpoolNearLimit = "relay_spool_near_limit",
    /// A subscriber at a relay is so far behind that it is served from disk.
    RelayReadsFromDisk = "relay_reads_from_disk",
    /// A replica of Lockstep does not apply, because of an error.
    ReplicaStopped = "replica_stopped",
    /// Somebody has paused a replica of Lockstep.
    ReplicaPaused = "replica_paused",
    /// No process works on a replica of Lockstep.
    ReplicaNotRunning = "replica_not_running",
    /// The process of a replica of Lockstep is connected and does nothing.
    ReplicaSilent = "replica_silent",
    /// The spool of a replica of Lockstep takes nothing more in.
    ReplicaSpoolFull = "replica_spool_full",
    /// A replica of Lockstep stands still while it is compared.
    ReplicaHeld = "replica_held",
    /// A replica of Lockstep had not all rows that its source had.
    ReplicaRowsMissing = "replica_rows_missing",
    /// A replica of Lockstep lacks tables of its source as they are there, or objects.
    ReplicaIncomplete = "replica_incomplete",
    /// A replica of Lockstep is not a copy yet.
    ReplicaCopying = "replica_copying",
    /// WAL is not archived.
    ArchiverFailing = "archiver_failing",
    /// What a primary has written since its last archived segment is not on a standby that restores from the
    /// archive.
    NotArchivedYet = "not_archived_yet",
    /// Replay cancels queries.
    QueriesCancelled = "queries_cancelled",
    /// A prepared transaction that nobody ends keeps rows and WAL.
    PreparedTransaction = "prepared_transaction",
    /// An open transaction on the primary keeps rows and WAL.
    OldTransaction = "old_transaction",
    /// A standby's queries keep dead rows on the primary.
    FeedbackBloat = "feedback_bloat",
    /// Pages were read with a wrong checksum.
    ChecksumFailures = "checksum_failures",
    /// A measurement of commits that was killed has left its table.
    ProbeLeft = "probe_left",
    /// Indexes were made with another version of a collation.
    CollationVersion = "collation_version",
    /// Publications leave out changes, columns or rows of followed tables.
    PartlyPublished = "partly_published",
    /// Nothing is written, so the time since the last commit is no lag.
    IdlePrimary = "idle_primary",
    /// The WAL that the slot is behind holds nothing for this replica.
    OtherDatabases = "other_databases",
}

impl Serialize for Cause {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.id())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::rules::Severity;

    #[test]
    fn ids_are_unique_and_names_are_those_of_json() {
        let ids: BTreeSet<&str> = Cause::ALL.iter().map(|cause| cause.id()).collect();
        assert_eq!(ids.len(), Cause::ALL.len());
        for severity in [Severity::Note, Severity::Risk, Severity::Lag] {
            assert_eq!(serde_json::to_value(severity).unwrap(), severity.name());
        }
    }
}
