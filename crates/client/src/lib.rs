//! One connection to a server, through libpq: SQL, COPY, replication slots, streaming, feedback.
//!
//! libpq itself parses the conninfo, so everything that libpq knows works: URIs, `PG*`
//! variables, service files, `.pgpass`, `sslmode`, several hosts and `target_session_attrs`.
//!
//! Modules use only those above them:
//!
//! | module | what |
//! |---|---|
//! | `limits` | limits of time and size |
//! | [`error`] | what can go wrong |
//! | `request` | what is asked of a server |
//! | `libpq` | libpq's functions, and what they own |
//! | [`quote`] | quoting of names and values in commands |
//! | [`value`] | values as the text that the server reads and writes |
//! | [`plain`] | tables of others, and whether reading them runs their code |
//! | [`target`] | a server that runs, or its files, as people name it |
//! | [`conninfo`] | where to connect, as libpq understands it |
//! | [`connection`] | a connection and its queries |
//! | [`sql`] | statements with parameters, prepared statements |
//! | [`copy`] | COPY in both directions |
//! | [`pipeline`] | statements without a round trip for each |
//! | [`slots`] | replication slots, and histories of timelines |
//! | [`history`] | where the timelines of two servers part |
//! | [`stream`] | a slot's stream and the feedback to it |
//!
//! Connecting, queries and copies block the thread, for a bounded time each. A stream blocks only in
//! [`Stream::wait`] and [`Stream::finish`]. A connection belongs to one thread at a time,
//! and may move between threads.
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

pub mod connection;
pub mod conninfo;
pub mod copy;
pub mod error;
pub mod history;
mod libpq;
mod limits;
pub mod pipeline;
pub mod plain;
pub mod quote;
mod request;
pub mod slots;
pub mod sql;
pub mod stream;
pub mod target;
pub mod value;

pub use connection::{Connection, DATABASE_OID, Identity, Rows, Table};
pub use conninfo::{Conninfo, Purpose, Server};
pub use copy::{CopyIn, CopyOut};
pub use error::{ClientError, Refusal, Result, Step};
pub use libpq::{Canceller, CopyData, Greeting, return_freed_memory};
pub use limits::{
    CANCEL_PATIENCE, CONNECT_TIMEOUT_S, MOST_ANSWER, MOST_NAME, MOST_PARAMETERS, MOST_SENT,
    MOST_SWITCHES, MOST_WORDS, PATIENCE,
};
pub use pipeline::{Answered, Pipeline};
pub use slots::{SlotState, Switch, WalStatus};
pub use stream::{Next, Ready, Stream};
pub use value::{FromText, ToText, field};
