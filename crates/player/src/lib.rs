//! Recorded WAL, and the player that sends it to standbys as a primary would.
//!
//! A [`Recording`] is a folder with a base backup and all WAL since that backup began. A
//! [`Recorder`] makes one from any running primary. A [`Player`] serves it to standbys through
//! the streaming replication protocol, at a [`Pace`].
//!
//! The modules are layers: each uses those above it in this table.
//!
//! | module | what |
//! |---|---|
//! | [`error`] | what can go wrong |
//! | [`recording`] | the folder, and its checks before it is used |
//! | `client_programs`, `dump`, `source`, `record` | recording, with PostgreSQL's own programs |
//! | `standby_of` | a private standby from a recording |
//! | [`pace`], `commits`, `publisher` | which WAL is published when |
//! | [`status`] | what the player reports about its standbys |
//! | `listener`, `connection` | addresses, and messages over one connection |
//! | `slots`, `session_state`, `play` | what the player's threads share |
//! | `streaming`, `session` | a stream, and the commands of a session |
//! | [`player`] | the primary's part |
//! | [`null_receiver`] | a receiver that discards all WAL |
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
mod commits;
mod connection;
mod dump;
pub mod error;
mod listener;
pub mod null_receiver;
pub mod pace;
mod play;
pub mod player;
mod publisher;
mod record;
pub mod recording;
mod session;
mod session_state;
mod slots;
mod source;
mod standby_of;
pub mod status;
mod streaming;

pub use error::{PlayerError, Result};
pub use listener::Address;
pub use lockstep_wal::SegmentSize;
pub use pace::Pace;
pub use player::{Player, PlayerOptions};
pub use record::{Recorder, record, stop_on_signals};
pub use recording::Recording;
pub use standby_of::{prepare_standby_of, standby_of};
pub use status::{PlayerStatus, SessionState, SessionStatus};
