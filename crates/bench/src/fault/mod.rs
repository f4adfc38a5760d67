//! Replication that is made to lag, in one known way at a time, so that what finds causes can
//! be held against them.
//!
//! A [`Stage`] is a primary, a standby and two subscribers, with a [`SlowLink`] that can be
//! narrowed in front of the standby and of the first subscriber. A [`Fault`] is put upon it
//! with [`Fault::inject`], and taken away with [`Stage::heal`], after which everybody has
//! caught up again. What cannot be injected here says why.
//!
//! | module | what |
//! |---|---|
//! | [`stage`] | the servers |
//! | [`faults`] | the faults |
//! | [`slow_link`] | a connection of limited bandwidth |
//! | [`slow_calls`] | system calls of one process that take longer |
//! | [`hurry`] | a process that gets a core whoever else wants it |
//! | [`writer`] | somebody who writes a little, all the time |

pub mod faults;
pub mod hurry;
pub mod slow_calls;
pub mod slow_link;
pub mod stage;
pub mod writer;

pub use faults::{Fault, Strength};
pub use hurry::Hurry;
pub use slow_calls::SlowCalls;
pub use slow_link::SlowLink;
pub use stage::{Injected, Stage};
pub use writer::Writer;
