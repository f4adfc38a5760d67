//! Streams one slot to one client.
//!
//! | module | what |
//! |---|---|
//! | [`sender`] | what to do with the log and the client; no I/O |
//! | [`task`] | the task of one session that does it |

pub mod sender;
pub mod task;
#[cfg(test)]
mod tests;
