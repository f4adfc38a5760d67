//! From the upstream's messages to wire-ready frames in the log.
//!
//! | module | what |
//! |---|---|
//! | [`assembler`] | messages in, frames out; no I/O |
//! | [`feeder`] | the thread that connects, receives, appends and confirms |
//! | [`check`] | whether a primary's slot continues what the log has |
//! | [`waker`] | wakes a thread that waits for a socket |

pub mod assembler;
pub mod check;
pub mod feeder;
#[cfg(test)]
mod tests;
pub mod waker;
