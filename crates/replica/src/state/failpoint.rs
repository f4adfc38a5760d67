//! Where a replica can die, so that tests let it die there: see [`lockstep_spool::failpoint`].
//!
//! Each is a state that differs, on the source, on the target or on disk, from those of the others.
//! `crates/replica/tests/replica/failpoints` has a scenario for each.

use lockstep_apply::failpoint as apply;
use lockstep_spool::failpoint::{self as spool, Failpoint};
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
    /// The file was read again: replicas that it has no longer have ended, and new ones have not begun.
    DAEMON_RELOADED = "daemon-reloaded";

    /// Apply's process has answered a hold.
    HOLD_ANSWERED = "hold-answered";
    /// `verify` holds the replica, and has its slot on the source.
    VERIFY_HOLDS = "verify-holds";

    /// Apply is where the promotion wants it, and the state is still that of a replica that follows.
    PROMOTE_HELD = "promote-held";
    /// The state says that the replica is being promoted; apply's process may still be there.
    PROMOTE_BEGUN = "promote-begun";
    /// The state says where the target stands, and no origin is left: nothing can be applied any more.
    PROMOTE_FENCED = "promote-fenced";
    /// The sequences are set, and the state does not say so.
    PROMOTE_SEQUENCES = "promote-sequences";
    /// The source has nothing of the replica any more, and the state does not say so.
    PROMOTE_CLEANED = "promote-cleaned";

    /// The slot of the way back is made; nobody waits yet.
    SWITCH_PREPARED = "switch-prepared";
    /// The state says that a switchover has begun.
    SWITCH_BEGUN = "switch-begun";
    /// The triggers of both fences are there, and let everything pass.
    SWITCH_PLANTED = "switch-planted";
    /// Nobody can write on the target but its replica; the source takes writes.
    SWITCH_CLOSED = "switch-closed";
    /// Nobody can write on the source any more; the target follows it.
    SWITCH_FENCED = "switch-fenced";
    /// The target has all that the source had at the fence.
    SWITCH_DRAINED = "switch-drained";
    /// The way back begins at the end of the target's WAL, which is not open yet.
    SWITCH_REVERSED = "switch-reversed";
    /// Clients are led to the target, which is open.
    SWITCH_REDIRECTED = "switch-redirected";
    /// Everything is done, and the state does not say so.
    SWITCH_CLEANED = "switch-cleaned";

    /// The state has what is wanted of the tables, and says that the replica is being altered.
    ALTER_BEGUN = "alter-begun";
    /// The source sends what is wanted.
    ALTER_PUBLISHED = "alter-published";
    /// All rows are there, and the state is still being altered.
    ALTER_COPIED = "alter-copied";

    /// The replica's slot is dropped, its publication is not.
    DROP_SLOT = "drop-slot";
    /// The source has nothing of the replica any more.
    DROP_SOURCE = "drop-source";
    /// The target has no origin of the replica any more, and its state.
    DROP_ORIGINS = "drop-origins";
}

/// The failpoints of the replica, of apply and of spools.
pub fn all() -> impl Iterator<Item = Failpoint> {
    ALL.iter().chain(apply::ALL).chain(spool::ALL).copied()
}
