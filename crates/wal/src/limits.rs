//! Limits of the pipeline in `extension/src/replay`, for the simulation.
//!
//! A name here is the C source's without `LS_`. `tests/wal/limits.rs` reads those sources and compares: a
//! limit is changed in both.

/// `queue.h`: records ahead of the current one, at most.
pub const AHEAD_MAX: usize = 512;
/// `memory_hints.h`: a record with more blocks is not for helpers.
pub const BLOCKS: usize = 4;
/// `queue.h`, `dispatch.c`, `record_facts.h`: slots of the tables of transactions, of blocks and of pages of
/// visibility maps; two of one slot count as the same.
pub const XID_SLOTS: usize = 1024;
pub const BLOCK_SLOTS: usize = 32 * 1024;
pub const MAP_SLOTS: usize = 1024;

/// `pipeline.c`: records that are replayed before helpers are worth their start.
pub const WORTH_HELPERS: u64 = 256;
/// `pipeline.c`: room in the queue from which it is filled again.
pub const REFILL: usize = 32;
/// `pipeline.c`: records for which helpers rest.
pub const REST: u64 = 256 * 1024;
/// `pipeline.c`: records between two times at which helpers are told how far replay is.
pub const TELL_EVERY: usize = 8;

/// `helper.c`: records taken at once, and from how few left on.
pub const TAKE: usize = 8;
/// `helper.c`: a helper leaves the startup process so many records when that comes so near.
pub const TOO_NEAR: usize = 16;
pub const LEAP: usize = 48;
/// `helper.c`: records given back that are remembered, and so many others come before they are tried.
pub const AGAIN: usize = 256;
pub const TRY_EVERY: u64 = 16;

/// `helper_count.c`: records between two steps of `helper_rule.c`.
pub const WINDOW: u64 = 8192;
/// `helper_rule.c`: of so many records helpers must have done one, or they rest.
pub const MIN_SHARE: u64 = 4;
/// `helper_rule.c`: steps without a further helper after one was too many.
pub const HOLD: u32 = 64;
