//! Where a replica can die, so that tests let it die there: see [`lockstep_spool::failpoint`].
//!
//! Each is a state that differs, on the source, on the target or on disk, from those of the others.
//! `crates/replica/tests/replica/failpoints` has a scenario for each.

use lockstep_spool::failpoint::{self, Failpoint};
use lockstep_spool::failpoints;

failpoints! {
    /// The replica is in the state, and the source has nothing of it.
    CREATE_BEGUN = "create-begun";
    /// The publication is made.
    CREATE_PUBLISHED = "create-published";
    /// The slot is made, and the state does not know where it starts.
    CREATE_SLOT_MADE = "create-slot-made";
    /// The state knows the start; the snapshot ends with the process.
    CREATE_START_KEPT = "create-start-kept";
    /// pg_restore makes the tables, and outlives the process.
    CREATE_RESTORING = "create-restoring";
    /// The tables are made, and the state does not list them.
    CREATE_RESTORED = "create-restored";
    /// The state lists the tables, and is still at their making.
    CREATE_LISTED = "create-listed";
    /// A range of a table is committed.
    COPY_RANGE = "copy-range";
    /// Tables are committed, others are not.
    COPY_TABLE = "copy-table";
    /// All rows are there, and the state is still at the copy.
    COPY_ENDED = "copy-ended";
    /// pg_restore makes indexes, and outlives the process.
    CREATE_INDEXING = "create-indexing";
    /// Indexes and constraints are there, and the state is still at them.
    CREATE_INDEXED = "create-indexed";
    /// Sequences are set.
    CREATE_SEQUENCES = "create-sequences";
    /// All is done, and the state does not say that it is ready.
    CREATE_FINISHED = "create-finished";

    /// The process has the replica's lock, and no origin.
    FOLLOW_TAKEN = "follow-taken";
    /// Origins are owned, and where the target stands is known; no stream yet.
    APPLY_OPENED = "apply-opened";
    /// An origin has taken over where others stand, which are not dropped.
    APPLY_TAKES_OVER = "apply-takes-over";
    /// A part of a transaction is made on the target; more of it follows.
    APPLY_PART = "apply-part";
    /// A writer has made all changes of a batch ahead of its turn.
    APPLY_AHEAD = "apply-ahead";
    /// A TRUNCATE is made and not committed.
    APPLY_TRUNCATED = "apply-truncated";
    /// A batch is made and not committed; next COMMIT is sent.
    APPLY_WRITTEN = "apply-written";
    /// A commit is confirmed; neither the source nor the next writer knows.
    APPLY_COMMITTED = "apply-committed";
    /// An origin has moved where nothing changes, and the source does not know.
    APPLY_MOVED = "apply-moved";
    /// The source is to be told of a position that is committed.
    APPLY_UNTOLD = "apply-untold";
    /// The source was told.
    APPLY_TOLD = "apply-told";
    /// A batch does not fit, and its transactions are to be applied one by one.
    APPLY_REFUSED = "apply-refused";
    /// A change does not fit: the replica waits right before its transaction.
    APPLY_BLOCKED = "apply-blocked";
    /// The end or a pause was asked for: the writers are done.
    APPLY_ENDING = "apply-ending";
    /// A pause was asked for: apply has disconnected.
    APPLY_PAUSED = "apply-paused";
    /// A pause has ended, and nothing is connected.
    APPLY_RESUMED = "apply-resumed";
    /// The file was read again: replicas that it has no longer have ended, and new ones have not begun.
    DAEMON_RELOADED = "daemon-reloaded";

    /// It is written whose the spool is, before it has segments.
    SPOOL_NAMED = "spool-named";
    /// The spool's first segment is made, which is not written.
    SPOOL_MADE = "spool-made";
    /// The source was told what is durable in the spool.
    SPOOL_TOLD = "spool-told";

    /// Apply's process has answered a hold.
    HOLD_ANSWERED = "hold-answered";
    /// `verify` holds the replica, and has its slot on the source.
    VERIFY_HOLDS = "verify-holds";

    /// The replica's slot is dropped, its publication is not.
    DROP_SLOT = "drop-slot";
    /// The source has nothing of the replica any more.
    DROP_SOURCE = "drop-source";
    /// The target has no origin of the replica any more, and its state.
    DROP_ORIGINS = "drop-origins";
}

/// Those of the replica and of its spool.
pub fn all() -> impl Iterator<Item = Failpoint> {
    ALL.iter().chain(failpoint::ALL).copied()
}
