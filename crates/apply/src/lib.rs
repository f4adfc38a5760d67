//! Applies a source's changes to the target, several transactions at a time.
//!
//! ```text
//! stream ─> merge: tables, batch of net changes ─> writers: sets of rows ─> target
//!    ^                                                 │
//!    └───────────── positions: applied, flushed ◄──────┘
//! ```
//!
//! What must stay true:
//! - **Prefix.** Each commit on the target makes it what the source was after one of its own
//!   commits. A batch holds whole transactions in the source's order, and changes of one key
//!   are only merged with each other.
//! - **Exactly once.** The position is in the target's commit record (a replication origin), so
//!   a session begins where the data stands. Only one session at a time can own an origin.
//! - **One order.** Several writers work on several batches, and commit them in the source's order:
//!   COMMIT is sent once the commit before is confirmed.
//! - **Feedback.** The source is told that something is flushed once it is committed and on
//!   disk on the target, or durable in the replica's spool if it has one, and applied once it is
//!   committed on the target.
//! - **Cycles.** With a frequency the target stands still but for one commit a cycle, which has the data,
//!   the position and the cycle's figures.
//! - **Bounded memory.** What is received and not applied stays within a limit: a transaction
//!   that is larger is applied in parts of one target transaction.
//!
//! A change that does not fit the target stops the replica right before the transaction that
//! holds it: a batch that failed is applied again transaction by transaction.
//!
//! The modules are layers: each uses those above it in this table.
//!
//! | module | what |
//! |---|---|
//! | [`failpoint`] | where tests let a process die |
//! | [`names`] | names of tables |
//! | [`copies`] | which table of the target holds the rows of which of the source; no I/O |
//! | [`types`] | which of the server's own types hold all values of which others; no I/O |
//! | [`sessions`] | the replica's own sessions on a server, and those of others in words |
//! | [`row`] | rows as a batch keeps them |
//! | [`error`] | what can go wrong |
//! | [`source_table`] | a table as the source describes it, and how its rows are found |
//! | [`reach`] | which changes of a table can meet on the target, by its catalogs; no I/O |
//! | [`table`] | a table of the target, and how it fits the source's |
//! | [`net`] | net changes of a table with a key; no I/O |
//! | [`runs`] | changes of a table without one; no I/O |
//! | [`sql_text`] | statements in the text of a query; no I/O |
//! | [`ddl`] | commands that change the source's schema, and what the target does with each; no I/O |
//! | [`batch`] | what is to be done for some transactions; no I/O |
//! | [`touches`] | which changes of two batches meet; no I/O |
//! | [`merge`] | from messages to batches; no I/O |
//! | [`continuity`] | why the source cannot go on where the replica stands, in words; no I/O |
//! | [`positions`] | what the source is told; no I/O |
//! | [`order`] | what a batch waits for; no I/O |
//! | [`crew`] | how many writers are used; no I/O |
//! | [`turn`] | whose turn it is to commit; no I/O |
//! | [`bandwidth`] | when bytes may go that have a limit a second; no I/O |
//! | [`fault`] | faults that only tests plant |
//! | [`cycle`] | when a cycle begins, and where it ends; no I/O |
//! | [`target_state`] | what apply reads and writes of the replica's state in the target |
//! | [`work`] | what a writer does with a part; no I/O |
//! | [`session`] | one stream: what is handed over, told, held back; no I/O |
//! | [`ending`] | how long the writers may take at a session's end; no I/O |
//! | [`settings`] | what to apply, and where |
//! | [`control`] | what others ask of a replica that applies, and see of it |
//! | `limited` | the source's stream, with a limit a second |
//! | [`keys`] | integer keys of rows to delete, packed; no I/O |
//! | [`binary`] | rows in COPY's binary form; no I/O |
//! | [`arrays`], [`statements`] | statements and their parameters as text; no I/O |
//! | `described` | what the target's catalogs say of tables, many at once |
//! | [`catalog`] | which table of the target a table of the source is, and what it is |
//! | [`origins`] | where the target stands |
//! | [`writer`] | changes the target |
//! | `pool` | the writers of a session, on threads |
//! | `source` | the source before it streams, and its stream |
//! | [`spool`] | the stream of the source, kept on disk until the target has it |
//! | `drive` | does what `session` decides |
//! | [`run`](mod@run) | session after session |
#![cfg_attr(
    test,
    allow(
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

pub mod arrays;
pub mod bandwidth;
pub mod batch;
pub mod binary;
pub mod catalog;
pub mod continuity;
pub mod control;
pub mod copies;
pub mod crew;
pub mod cycle;
pub mod ddl;
mod described;
mod drive;
pub mod ending;
pub mod error;
pub mod failpoint;
pub mod fault;
pub mod keys;
mod limited;
pub mod merge;
pub mod names;
pub mod net;
pub mod order;
pub mod origins;
mod pool;
pub mod positions;
pub mod reach;
pub mod row;
pub mod run;
pub mod runs;
pub mod session;
pub mod sessions;
pub mod settings;
mod source;
pub mod source_table;
pub mod spool;
pub mod sql_text;
pub mod statements;
pub mod table;
pub mod target_state;
pub mod touches;
pub mod turn;
pub mod types;
pub mod work;
pub mod writer;

pub use catalog::{Catalog, Opened, Others, Starts};
pub use control::{Control, FullBy, Phase, SpoolFull, SpoolStats, Stats, Unreplicated};
pub use copies::{Copied, Copies};
pub use crew::Writers;
pub use error::{ApplyError, Conflict};
pub use merge::Start;
pub use order::MOST_WRITERS;
pub use run::run;
pub use settings::{LEAST_MEMORY, MEMORY, Published, Settings};
pub use spool::{LEAST_LIMIT, Spool, SpoolConfig};
