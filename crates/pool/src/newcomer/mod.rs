//! A new node: cloned from a peer, started, caught up, and warmed before it serves.
//!
//! Each step may be cut short by a kill; the next call goes on from what [`kept`] has on disk.
//!
//! | module | what |
//! |---|---|
//! | [`error`] | why a node cannot be added |
//! | [`peer`] | what the other servers say, and which of them is cloned |
//! | [`settings`] | the new node's settings |
//! | [`kept`] | what was done already |
//! | [`hot`] | blocks in the order of their files, and the pace of reading them |
//! | [`programs`] | PostgreSQL's own programs |
//! | [`warm`] | reads the blocks that a peer has in memory |
//! | [`add`] | all of it |

pub mod add;
pub mod error;
pub mod hot;
pub mod kept;
pub mod peer;
pub mod programs;
pub mod settings;
pub mod warm;
