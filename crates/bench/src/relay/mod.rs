//! What logical subscribers cost a primary, directly and behind a relay: consumers that
//! keep nothing, real subscriptions, a relay as a child process, and rounds of both.
//!
//! | module | what |
//! |---|---|
//! | [`endpoint`] | where consumers connect: the primary or a relay |
//! | [`sink`] | a consumer that counts, measures and throws away |
//! | [`delays`] | times from commit to arrival, in bounded memory |
//! | [`subscriber`] | a server with real subscriptions |
//! | [`beat`] | rows that carry the time, for the lag of real subscriptions |
//! | [`process`] | a relay |
//! | [`walsenders`] | what decoding costs the primary |
//! | [`publisher`] | the primary: settings, tables, slots |
//! | [`scene`] | how consumers reach the primary in a round |
//! | [`follower`] | a server with a database that `lockstep replica` keeps in step |
//! | `limit` | the rows of a backlog, written at once |
//! | [`fanout`], [`catch_up`], [`mixed`], [`applying`] | rounds |

pub mod applying;
pub mod beat;
pub mod catch_up;
pub mod delays;
pub mod endpoint;
pub mod fanout;
pub mod follower;
mod limit;
pub mod mixed;
pub mod process;
pub mod publisher;
pub mod scene;
mod session;
pub mod sink;
pub mod subscriber;
pub mod walsenders;

pub use crate::endpoint::Endpoint;
pub use crate::error::ConsumerError;
pub use sink::{Counts, Sink};
