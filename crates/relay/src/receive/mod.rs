//! From the primary's messages to wire-ready frames in the log.
//!
//! | module | what |
//! |---|---|
//! | [`receiver`] | what to do with them, with the log and with the primary; no I/O |
//! | [`thread`] | the threads that connect, receive, append, make durable and confirm |

pub mod receiver;
#[cfg(test)]
mod tests;
pub mod thread;
