//! WAL read without a server: its segments and records, which of them Lockstep replays in
//! parallel, and how long that takes in a simulation.
//!
//! ```text
//!  folder ─┐
//!  stream ─┴─ pages ──> reader ──> record ──> class ──> job ──> simulate, once for each number of helpers
//!                         │                     │
//!                         └ where WAL ends      └ the rules of extension/src/replay/record_class.c
//! ```
//!
//! [`reader`] accepts what PostgreSQL's reader accepts; tests compare it with `pg_waldump`, on damaged
//! WAL too. Tests also compile `record_class.c` into a program that prints classes, before consistency
//! and in hot standby, and compare them with ours: a rule is changed in both. [`simulate`] has the steps
//! of `pipeline.c`, its `helper` those of `helper.c` (what a helper has taken, claims and tries again),
//! its `watch` those of `helper_rule.c`. [`limits`] has their limits, which a test compares with the C
//! sources. What records cost comes from a table (`costs.json`), which [`calibrate`] fits to measured
//! replays, from `estimates.json` on.
//!
//! Modules use only those above them:
//!
//! | module | what |
//! |---|---|
//! | [`error`] | what can go wrong |
//! | [`limits`] | the pipeline's limits |
//! | [`names`] | names of resource managers and record types |
//! | [`segment`] | names of segments' files, headers of pages |
//! | [`record`] | a record's bytes to values |
//! | [`class`] | which records Lockstep replays in parallel |
//! | [`costs`] | what a record costs, as it was measured on a machine |
//! | [`reader`] | records from pages, one after the other |
//! | [`folder`] | which segments of a folder belong together, and their pages |
//! | [`memory`], [`stream`] | WAL that is held in memory; WAL from a server that runs |
//! | [`job`], [`simulate`] | records as the pipeline sees them; the pipeline with a clock of its own |
//! | [`analysis`], [`walk`] | all of it together; reading into it, and where WAL ends |
//! | [`sample`], [`fit`], [`calibrate`] | costs from measured recoveries |
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

pub mod analysis;
pub mod calibrate;
pub mod class;
pub mod costs;
pub mod error;
pub mod fit;
pub mod folder;
pub mod job;
pub mod limits;
pub mod memory;
pub mod names;
pub mod reader;
pub mod record;
pub mod sample;
pub mod segment;
pub mod simulate;
pub mod stream;
pub mod walk;

pub use error::{Result, WalError};
pub use segment::SegmentSize;
