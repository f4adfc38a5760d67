//! How a replica stands, for `status`.
//!
//! | module | what |
//! |---|---|
//! | [`lost`] | tables that were copied and are not replicated any more |
//! | [`standing`] | what of the state still holds; no I/O |
//! | [`source`] | what the source says |

pub mod lost;
pub mod source;
pub mod standing;
