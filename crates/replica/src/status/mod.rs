//! How a replica stands, for `status`.
//!
//! | module | what |
//! |---|---|
//! | [`attached`] | partitions that had rows before the publication had them |
//! | [`lost`] | tables that were copied and are not replicated any more |
//! | [`standing`] | what of the state still holds; no I/O |
//! | [`source`] | what the source says |

pub mod attached;
pub mod lost;
pub mod source;
pub mod standing;
