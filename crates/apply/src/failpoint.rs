//! Where apply and its spool can die, so that tests let it die there: see [`lockstep_spool::failpoint`].
//!
//! Each is a state that differs, on the source, on the target or on disk, from those of the others.
//! `crates/replica/tests/replica/failpoints` has a scenario for each.

use lockstep_spool::failpoints;

failpoints! {
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
    /// A command has changed the schema, and is not committed.
    APPLY_ALTERED = "apply-altered";
    /// A batch is made and not committed; next COMMIT is sent.
    APPLY_WRITTEN = "apply-written";
    /// A commit is confirmed; neither the source nor the next writer knows.
    APPLY_COMMITTED = "apply-committed";
    /// An origin has moved where nothing changes, and the source does not know.
    APPLY_MOVED = "apply-moved";
    /// A cycle's figures are written and not committed.
    CYCLE_KEPT = "cycle-kept";
    /// A cycle has begun, and nothing of it is made.
    CYCLE_BEGUN = "cycle-begun";
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

    /// The spool's owner is written, before the spool has segments.
    SPOOL_NAMED = "spool-named";
    /// The spool's first segment is made, which is not written.
    SPOOL_MADE = "spool-made";
    /// The source was told what is durable in the spool.
    SPOOL_TOLD = "spool-told";
}
