//! Replication that is made to lag in one known way at a time, to test what finds the causes.
//!
//! A [`Stage`] is a primary, a standby and two subscribers, with a [`SlowLink`] that can be
//! narrowed in front of the standby and of the first subscriber. [`Fault::inject`] begins a
//! [`Fault`], and [`Stage::heal`] ends it and waits until all replicas have caught up. A fault
//! that cannot be injected on this machine says why.
//!
//! | module | what |
//! |---|---|
//! | [`stage`] | the servers |
//! | [`faults`] | the faults |
//! | `behind` | faults at a relay and behind one |
//! | `slow` | faults of replicas that are slow, held or full |
//! | `copies` | faults of copies of tables, and of tables that change on the publisher |
//! | `missing` | faults of what is missing, refused or used up |
//! | `consumer` | a consumer that confirms nothing |
//! | `paused` | replay that pauses by itself |
//! | `subscribed` | faults of what subscriptions are made of |
//! | `others` | faults of clusters with one more server |
//! | `archives` | faults of a standby that restores from an archive |
//! | `replicas` | faults of a replica of Lockstep |
//! | `upstream` | faults of where a standby gets its WAL from |
//! | `unseen` | faults that positions alone do not show |
//! | [`freeze`] | a process that is stopped |
//! | [`slow_link`] | a connection of limited bandwidth |
//! | [`hurry`] | a process that gets a core before all others |
//! | [`writer`] | a session that writes a little, all the time |

mod archives;
mod behind;
mod consumer;
mod copies;
pub mod faults;
pub mod freeze;
pub mod hurry;
mod missing;
mod others;
mod paused;
mod replicas;
mod slow;
pub mod slow_link;
pub mod stage;
mod subscribed;
mod unseen;
mod upstream;
pub mod writer;

pub use faults::{Fault, Strength};
pub use freeze::Frozen;
pub use hurry::Hurry;
pub use slow_link::SlowLink;
pub use stage::{Injected, Stage};
pub use writer::Writer;
