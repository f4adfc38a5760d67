//! Rows from source to target.
//!
//! | module | what |
//! |---|---|
//! | [`tables`] | which tables there are, with their columns, as the snapshot sees them |
//! | [`binary`] | which types may go in the binary format |
//! | [`fit`] | whether the target's tables hold what the source has, and how it goes there |
//! | [`plan`] | what is copied by one session at a time, without I/O |
//! | [`bandwidth`] | the limit on bytes a second |
//! | [`progress`] | how far it is |
//! | [`workers`] | the sessions that copy |

pub mod bandwidth;
pub mod binary;
pub mod fit;
pub mod plan;
pub mod progress;
pub mod tables;
pub mod workers;
