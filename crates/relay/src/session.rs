//! What a client's session and the relay ask of each other.
//!
//! A session is passed through to the primary byte for byte. Only where it is a session of
//! logical replication, and idle, is each simple query shown to the [`SlotCommands`], which says
//! what becomes of it.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;

use lockstep_wire::command::Command;
use tokio::io::{AsyncRead, AsyncWrite};

/// What is known about a session once the primary has let it in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The relay's own number of the session, from 1.
    pub id: u64,
    /// The primary's process for it, as its cancel key says: what a client sees as its pid.
    pub pid: u32,
    pub user: String,
    pub database: String,
    /// `application_name`, or nothing.
    pub application_name: String,
    /// Where the client is; None for a Unix socket.
    pub peer: Option<SocketAddr>,
    /// As the primary states it, `15.20 (Debian 15.20-0+deb12u1)`.
    pub server_version: String,
    /// All settings that the primary has reported, by name.
    pub settings: BTreeMap<String, String>,
}

/// What becomes of a command.
#[derive(Debug)]
pub enum Decision<S> {
    /// The primary answers it.
    Pass,
    /// The relay answers with these messages, `ReadyForQuery` included.
    Reply(Vec<u8>),
    /// The relay streams. `CopyBothResponse` has not been sent yet.
    Stream(S),
}

/// The client's side of a session, decrypted.
pub struct Client {
    pub reader: Box<dyn AsyncRead + Send + Unpin>,
    pub writer: Box<dyn AsyncWrite + Send + Unpin>,
}

/// Why streaming ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// Both sides have ended the copy: `CommandComplete` and `ReadyForQuery` are sent, the
    /// session goes on.
    Idle,
    /// The session is over; an error, if there was one, is sent.
    Closed,
}

/// Streams one slot to one client.
pub trait Stream: Send + 'static {
    /// Runs until either side ends it. An error is that of the client's connection.
    fn run(self, client: Client) -> impl Future<Output = std::io::Result<(Client, After)>> + Send;
}

/// Who decides what becomes of replication commands.
pub trait SlotCommands: Send + Sync + 'static {
    /// How it streams.
    type Stream: Stream;

    /// What becomes of one command; `text` is the command as it was sent. Called only in
    /// sessions of logical replication (`replication=database`) outside of a transaction
    /// block, with nothing under way. The future is dropped before it is done if the client
    /// leaves or the relay stops: what must not be left half done belongs into a task.
    fn decide(
        &self,
        facts: &Facts,
        command: &Command,
        text: &str,
    ) -> impl Future<Output = Decision<Self::Stream>> + Send;

    /// A session has begun (after authentication).
    fn opened(&self, facts: &Facts);

    fn closed(&self, facts: &Facts);
}
