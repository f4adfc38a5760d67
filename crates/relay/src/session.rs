//! What a client's session and the relay ask of each other.
//!
//! A session is passed through to the primary byte for byte. Only where it is a session of
//! replication, and idle, is each simple query shown to the [`SlotCommands`], which says what
//! becomes of it; and in all sessions SQL that concerns replication slots is read.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;

use lockstep_wire::backend::Report;
use lockstep_wire::command::Command;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use crate::output_settings::OutputSettings;
use crate::slot_sql::{Act, Listed};
use crate::spare::Scarce;

/// What is known about a session once the primary has let it in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The relay's own number of the session, from 1.
    pub id: u64,
    /// The primary's process for it, as its cancel key says: what a client sees as its pid.
    pub pid: u32,
    /// The rest of its cancel key.
    pub secret: Secret,
    /// The role, as the primary reports it.
    pub user: String,
    /// The database that the client has named, to be shown. What the session may do is its
    /// [`Standing`]'s.
    pub database: String,
    /// `application_name` as the session began, or nothing.
    pub application_name: String,
    /// Where the client is; None for a Unix socket.
    pub peer: Option<SocketAddr>,
    /// The server version as the primary states it, `15.20 (Debian 15.20-0+deb12u1)`.
    pub server_version: String,
    /// The encoding of the primary's database.
    pub server_encoding: String,
}

impl Facts {
    /// The primary's major version; 0 if it does not state one.
    pub fn major(&self) -> u32 {
        let digits = self.server_version.split(|c: char| !c.is_ascii_digit());
        digits
            .take(1)
            .find_map(|digits| digits.parse().ok())
            .unwrap_or(0)
    }
}

/// What only the primary and the client know of each other.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(pub Vec<u8>);

impl Secret {
    /// Takes as long wherever two of one length differ.
    pub fn is(&self, other: &[u8]) -> bool {
        let differences = self.0.iter().zip(other).map(|(one, other)| one ^ other);
        let differ = differences.fold(0, std::ops::BitOr::bitor);
        !self.0.is_empty() && self.0.len() == other.len() && differ == 0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// What the primary has answered about a session of logical replication. A session has one
/// only if the primary let its role in for replication, and in this database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    pub database: String,
    /// The database's OID: another may come to have the name.
    pub database_oid: u32,
    /// OID of the role that has logged in.
    pub role_oid: u32,
    /// All settings as `SHOW` shows them, as JSON; None if they cannot be read in the session's encoding.
    pub shown: Option<String>,
    pub written: Written,
}

/// How the primary writes values for a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// `client_encoding`.
    pub encoding: String,
    /// `DateStyle`: output, then the order of day and month.
    pub dates: String,
    /// `IntervalStyle`.
    pub intervals: String,
    /// `extra_float_digits`.
    pub float_digits: i32,
    /// The other settings; None if nobody can have the same.
    pub output: Option<OutputSettings>,
}

/// What must be known of a session before anything is decided about a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// Nothing: it is the primary's.
    Nothing,
    /// Where the session stands, even if it was asked before the last `SET`.
    Standing,
    /// Where the session stands now, asked again.
    StandingNow,
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

/// Tells a session that it must end: None until then, and why from then on.
pub type Terminated = watch::Receiver<Option<Report>>;

/// Tells a session to cancel its command, by a change.
pub type Canceled = watch::Receiver<()>;

/// Resolves when a command is to be canceled.
pub(crate) async fn told(canceled: &mut Canceled) {
    if canceled.changed().await.is_err() {
        std::future::pending().await
    }
}

/// What a client is told whose command was canceled, in a server's words.
pub(crate) fn canceled() -> Report {
    Report::error("57014", "canceling statement due to user request")
}

/// Who decides what becomes of replication commands.
pub trait SlotCommands: Send + Sync + 'static {
    /// How it streams.
    type Stream: Stream;

    /// What must be known before this command, `text` as it was sent, is decided. Asking costs
    /// the session a round trip.
    fn needs(&self, facts: &Facts, command: &Command, text: &str) -> Needs;

    /// What becomes of one command that needs something. Called only in sessions of replication
    /// outside of a transaction block, with nothing under way; one without a standing is in no
    /// database, or in one that no group can have. The future is dropped before it is done if the
    /// client leaves or cancels the command, or the relay stops: what must not be left half done
    /// belongs into a task.
    fn decide(
        &self,
        facts: &Facts,
        standing: Option<&Standing>,
        command: &Command,
        text: &str,
    ) -> impl Future<Output = Decision<Self::Stream>> + Send;

    /// The relay's slots, for sessions that ask SQL for them.
    fn listed(&self) -> Vec<Listed> {
        Vec::new()
    }

    /// Does what a session's SQL asks of a slot of the relay; the session's role may use slots. The
    /// future may be dropped like that of [`Self::decide`].
    fn act(&self, _facts: &Facts, _act: &Act) -> impl Future<Output = Result<(), Report>> + Send {
        async { Ok(()) }
    }

    /// Messages of the answer to `IDENTIFY_SYSTEM` in a session whose connection to the primary was
    /// closed; None if the relay does not know it.
    fn identify(&self, _standing: &Standing) -> Option<Vec<u8>> {
        None
    }

    /// The primary has refused a session something of which it has too few. True if the relay
    /// has given some up, so that it may be tried again.
    fn short_of(&self, _scarce: Scarce) -> impl Future<Output = bool> + Send {
        async { false }
    }

    /// A session has begun (after authentication). It is told by what is returned if it must
    /// end.
    fn opened(&self, facts: &Facts) -> Terminated;

    /// True if a session keeps its connection to the primary while the relay streams to it.
    fn keeps_connections(&self) -> bool {
        false
    }

    /// The session has no connection to the primary any more.
    fn left_primary(&self, _facts: &Facts) {}

    /// What tells the session to cancel what the relay does for it, from now on.
    fn hears_cancel(&self, facts: &Facts) -> Canceled;

    /// A client wants the command of a session canceled. True if that is the primary's to do.
    fn cancel(&self, process: u32, secret: &[u8]) -> bool;

    fn closed(&self, facts: &Facts);
}
