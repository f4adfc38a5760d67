//! The states and kinds that servers, relays and replicas report, as enums.
//!
//! A newer server may report a word that this version does not know. Such a word is kept as
//! text, so that it is shown as it came. Wait events are not an enum: there are hundreds, and
//! their names differ from major to major.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Each enum has a variant for each word that this version knows, and `Other` for the rest.
macro_rules! states {
    ($($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $state:ident = $word:literal,)* })*) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name {
            $($(#[$doc])* $state,)*
            /// A word that this version does not know.
            Other(String),
        }

        impl $name {
            /// Every word that this version knows.
            pub const KNOWN: &'static [Self] = &[$(Self::$state),*];

            /// The word, as it was reported.
            pub fn name(&self) -> &str {
                match self {
                    $(Self::$state => $word,)*
                    Self::Other(word) => word,
                }
            }
        }

        impl From<String> for $name {
            fn from(word: String) -> Self {
                match word.as_str() {
                    $($word => Self::$state,)*
                    _ => Self::Other(word),
                }
            }
        }

        impl From<&str> for $name {
            fn from(word: &str) -> Self {
                word.to_owned().into()
            }
        }

        /// Nothing was reported.
        impl Default for $name {
            fn default() -> Self {
                Self::Other(String::new())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.name())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                String::deserialize(from).map(Self::from)
            }
        }
    )*
        #[cfg(test)]
        #[test]
        fn words_come_back_as_they_were() {$(
            let unknown = [$name::from("of a newer server")];
            for state in $name::KNOWN.iter().chain(&unknown) {
                assert_eq!($name::from(state.name()), *state);
                let json = serde_json::to_value(state).unwrap();
                assert_eq!(json, state.name());
                assert_eq!($name::deserialize(json).unwrap(), *state);
            }
        )*}
    };
}

states! {
    /// State of a relay's group, as its console and metrics name it.
    GroupState {
        /// The group receives the primary's stream.
        Streaming = "streaming",
        /// The group has no connection to the primary.
        Connecting = "connecting",
        /// The group cannot store what it receives: the spool is at its limit, or the disk is full.
        Waiting = "waiting",
        /// The group has stopped for a reason that somebody has to decide about.
        Failed = "failed",
    }

    /// `pg_stat_replication.state`
    SenderState {
        Startup = "startup",
        /// The walsender sends WAL of some time ago.
        Catchup = "catchup",
        /// The walsender sends WAL as it is written.
        Streaming = "streaming",
        /// The walsender sends a base backup: no replica.
        Backup = "backup",
        Stopping = "stopping",
    }

    /// `pg_stat_replication.sync_state`
    SyncState {
        Async = "async",
        /// The replica becomes synchronous if one before it in the list is lost.
        Potential = "potential",
        /// Commits wait for it.
        Sync = "sync",
        /// Commits wait for a number of replicas of which it is one.
        Quorum = "quorum",
    }

    /// `pg_subscription_rel.srsubstate`
    SyncPhase {
        /// Nothing is copied yet.
        Initialize = "i",
        /// Rows are being copied.
        DataCopy = "d",
        /// The rows are copied.
        FinishedCopy = "f",
        /// The apply worker has yet to come to where the copy was made.
        Synchronized = "s",
        /// The apply worker applies its changes.
        Ready = "r",
    }

    /// `pg_replication_slots.slot_type`
    SlotType {
        Physical = "physical",
        Logical = "logical",
    }

    /// `pg_replication_slots.wal_status`
    WalStatus {
        /// The slot's WAL is within `max_wal_size`.
        Reserved = "reserved",
        /// Beyond `max_wal_size`, and kept all the same.
        Extended = "extended",
        /// The next checkpoint may remove it.
        Unreserved = "unreserved",
        /// WAL that the slot needs is removed: the slot is of no more use.
        Lost = "lost",
    }

    /// `pg_stat_wal_receiver.status`
    ReceiverStatus {
        Starting = "starting",
        Streaming = "streaming",
        /// The walreceiver has reached the end of a timeline and waits for the startup process.
        Waiting = "waiting",
        Restarting = "restarting",
        Stopping = "stopping",
        Stopped = "stopped",
    }

    /// `pg_get_wal_replay_pause_state()`
    ReplayPause {
        NotPaused = "not paused",
        /// Replay goes on until its next check.
        Requested = "pause requested",
        Paused = "paused",
    }

    /// `synchronous_commit` of a subscription's workers
    SynchronousCommit {
        Off = "off",
        Local = "local",
        RemoteWrite = "remote_write",
        On = "on",
        RemoteApply = "remote_apply",
    }

    /// How far a replica's copy is, as its target's state has it
    CopyPhase {
        /// Slot and publication are being made.
        Preparing = "preparing",
        /// Tables are being made.
        Schema = "schema",
        /// Rows are being copied.
        Copying = "copying",
        /// Indexes, constraints and triggers are being made.
        Indexing = "indexing",
        Finishing = "finishing",
        /// The replica is a copy.
        Ready = "ready",
        /// The target is being made a database of its own: nothing is applied any more.
        Promoting = "promoting",
        /// The target is a database of its own.
        Promoted = "promoted",
    }

    /// What a replica's process wrote last that it does
    ApplyState {
        Connecting = "connecting",
        Applying = "applying",
        /// Somebody has paused it.
        Paused = "paused",
        /// A change does not fit the target.
        Blocked = "blocked",
        Stopped = "stopped",
    }

    /// Who holds a replica's lock on the target
    ReplicaHolder {
        Nobody = "nobody",
        /// The session that writes what apply does.
        Apply = "apply",
        /// `replica create` or `drop`.
        Command = "other",
    }

    /// `pg_stat_activity.backend_type` of processes that replication depends on
    BackendType {
        Startup = "startup",
        Walreceiver = "walreceiver",
        Walsender = "walsender",
        Walwriter = "walwriter",
        /// A worker of a server up to 15: applies changes or copies a table.
        LogicalWorker = "logical replication worker",
        /// An apply worker, from 16 on: applies changes.
        LogicalApply = "logical replication apply worker",
        /// A parallel apply worker, from 16 on: applies a large transaction while it is streamed.
        LogicalParallel = "logical replication parallel worker",
        /// A table synchronization worker, from 16 on: copies a table.
        LogicalTablesync = "logical replication tablesync worker",
    }

    /// `pg_stat_activity.wait_event_type`
    WaitType {
        /// The process has nothing to do.
        Activity = "Activity",
        BufferPin = "BufferPin",
        /// The process waits for the other end of a connection.
        Client = "Client",
        Extension = "Extension",
        /// The process waits for storage.
        Io = "IO",
        Ipc = "IPC",
        /// The process waits for a lock that SQL can see.
        Lock = "Lock",
        Lwlock = "LWLock",
        Timeout = "Timeout",
    }
}

impl SyncState {
    /// Commits wait for it, alone or with others.
    pub fn is_waited_for(&self) -> bool {
        matches!(self, Self::Sync | Self::Quorum)
    }
}

impl BackendType {
    /// A worker of a subscription.
    pub fn is_logical_worker(&self) -> bool {
        matches!(
            self,
            Self::LogicalWorker
                | Self::LogicalApply
                | Self::LogicalParallel
                | Self::LogicalTablesync
        )
    }
}
