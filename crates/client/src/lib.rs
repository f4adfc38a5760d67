//! One connection to a server, through libpq: SQL, COPY, replication slots, streaming, feedback.
//!
//! libpq itself parses the conninfo, so everything that libpq knows works: URIs, `PG*`
//! variables, service files, `.pgpass`, `sslmode`, several hosts and `target_session_attrs`.
//!
//! | module | what |
//! |---|---|
//! | [`conninfo`] | where to connect, as libpq understands it |
//! | [`connection`] | a connection and its queries |
//! | [`sql`] | statements with parameters, prepared statements |
//! | [`copy`] | COPY in both directions |
//! | [`pipeline`] | statements without a round trip for each |
//! | [`plain`] | tables of others, and whether reading them runs their code |
//! | [`target`] | a server that runs, or its files, as people name it |
//! | [`value`] | values as the text that the server reads and writes |
//! | [`slots`] | replication slots, and histories of timelines |
//! | [`history`] | where the timelines of two servers part |
//! | [`stream`] | a slot's stream and the feedback to it |
//! | [`quote`] | quoting of names and values in commands |
//! | [`error`] | what can go wrong |
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

use std::time::Duration;

pub mod connection;
pub mod conninfo;
pub mod copy;
pub mod error;
pub mod history;
mod libpq;
pub mod pipeline;
pub mod plain;
pub mod quote;
pub mod slots;
pub mod sql;
pub mod stream;
pub mod target;
pub mod value;

pub use connection::{Connection, DATABASE_OID, Identity, Purpose, Server, Table};
pub use conninfo::Conninfo;
pub use copy::{CopyIn, CopyOut};
pub use error::{ClientError, Refusal, Result, Step};
pub use libpq::{Canceller, CopyData, return_freed_memory};
pub use pipeline::{Answered, Pipeline};
pub use slots::{SlotState, Switch, WalStatus};
pub use stream::{Next, Ready, Stream};
pub use value::{FromText, ToText, field};

/// How long libpq may try one address unless the user says otherwise, in seconds.
pub const CONNECT_TIMEOUT_S: u32 = 10;

/// How long a query may take unless [`Connection::set_patience`] says otherwise.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How long a cancelled query may take to end.
pub const CANCEL_PATIENCE: Duration = Duration::from_secs(5);

/// Most bytes of one query's answer.
pub const MOST_ANSWER: usize = 64 * 1024 * 1024;

/// Most bytes of a COPY that are sent at a time, and so held in libpq's memory.
pub const MOST_SENT: usize = 64 * 1024;

/// Most parameters of one statement: the protocol counts them in two bytes.
pub const MOST_PARAMETERS: usize = 65_535;

/// Longest name of a slot, plugin or publication, in bytes. The server would shorten a longer
/// one.
pub const MOST_NAME: usize = 63;

/// Longest message of the server or libpq in an error, in characters. A longer one is cut.
pub const MOST_WORDS: usize = 1_000;

/// Most switches in a timeline's history.
pub const MOST_SWITCHES: usize = 10_000;
