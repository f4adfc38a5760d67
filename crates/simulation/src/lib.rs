//! What simulations without servers share: those of the relay, of a replica's spool and of apply.
//!
//! Only tests use this crate: what panics here is a test that fails.
//!
//! | module | what |
//! |---|---|
//! | [`disk`] | a folder in memory that may lose, refuse and damage what is written to it |
//! | [`primary`] | a primary in memory: what was committed, and a walsender that streams it |
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::panic,
    clippy::unwrap_used
)]

pub mod disk;
pub mod primary;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a run says when it panics: None if it does not.
pub fn panic_words<T>(run: impl FnOnce() -> T) -> Option<String> {
    let panic = catch_unwind(AssertUnwindSafe(run)).err()?;
    let said = panic.downcast_ref::<String>().cloned();
    let said = said.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    Some(said.unwrap_or_default())
}
