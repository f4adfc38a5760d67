//! Recorded WAL, and the player that feeds it to standbys as a primary would.
//!
//! A [`Recording`] is a folder with a base backup and the WAL from there on; [`Recorder`]
//! makes one of any running primary. [`Player`] serves it to any number of standbys
//! through the streaming protocol, at a [`Pace`].
//!
//! | module | what |
//! |---|---|
//! | [`recording`] | the folder, and what is checked before it is used |
//! | `record`, `source`, `dump`, `client_programs` | making one with PostgreSQL's own programs |
//! | `segment` | names, page headers and bytes of WAL segments |
//! | [`pace`] | when which WAL is published |
//! | [`player`], `publisher`, `listener`, `session`, `slots`, `streaming` | the primary's side |
//! | [`status`] | what the player says about its standbys |
//! | `standby_of` | a private standby from a recording |
//! | [`null_receiver`] | a receiver that throws everything away |
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod client_programs;
mod connection;
mod dump;
pub mod error;
mod listener;
pub mod null_receiver;
pub mod pace;
pub mod player;
mod publisher;
mod record;
pub mod recording;
mod segment;
mod session;
mod slots;
mod source;
mod standby_of;
pub mod status;
mod streaming;

pub use error::{PlayerError, Result};
pub use listener::Address;
pub use pace::Pace;
pub use player::{Player, PlayerOptions};
pub use record::{Recorder, record, stop_on_signals};
pub use recording::Recording;
pub use segment::SegmentSize;
pub use standby_of::{prepare_standby_of, standby_of};
pub use status::{PlayerStatus, SessionStatus, State};
