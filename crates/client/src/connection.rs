//! A connection and its queries.

use std::ffi::CString;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use lockstep_wire::{Lsn, SystemId, Timeline};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::conninfo::{Conninfo, Purpose, Server};
use crate::error::{Refusal, Step};
use crate::libpq::{Answer, AnswerKind, Canceller, Greeting, Handle};
use crate::request::Request;
use crate::{CANCEL_PATIENCE, ClientError, MOST_ANSWER, PATIENCE, Result};

/// Rows of text; None is null.
pub type Rows = Vec<Vec<Option<String>>>;

/// Rows with the names of their columns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// Names of the columns, in order.
    pub columns: Vec<String>,
    pub rows: Rows,
}

/// The settings that a subscriber makes for its own connection: values of a stream are then
/// unambiguous, and row filters look up unqualified names in pg_catalog only.
const PREPARE: &str = "SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; \
     SET extra_float_digits = 3; SELECT pg_catalog.set_config('search_path', '', false)";

/// Asks for the OID of a session's database.
pub const DATABASE_OID: &str = "SELECT d.oid FROM pg_catalog.pg_database AS d \
     WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()";

/// Calls of libpq for each read of what has arrived. With TLS one message can need several
/// reads: a record that does not fit into libpq's buffer waits inside OpenSSL, where poll
/// does not see it.
const TAKES: u32 = 1;
const TAKES_WITH_TLS: u32 = 4;

/// A connection to a server.
pub struct Connection {
    pub(crate) link: Link,
    purpose: Purpose,
    patience: Duration,
    /// Whether a command that is late ends the connection, and is not cancelled.
    gives_up: bool,
}

/// What a server says about its cluster and its WAL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The cluster's system identifier.
    pub system: SystemId,
    pub timeline: Timeline,
    /// Where the server's WAL ends on disk.
    pub end: Lsn,
    pub database: Option<String>,
}

impl Connection {
    /// Connects. Blocks until a server has accepted the connection or all hosts have refused it,
    /// for each address at most the conninfo's `connect_timeout`, or
    /// [`crate::CONNECT_TIMEOUT_S`] if it has none. `application_name` is used unless the user
    /// has chosen another.
    pub fn connect(conninfo: &Conninfo, purpose: Purpose, application_name: &str) -> Result<Self> {
        let connection = Self::open(conninfo, purpose, application_name)?;
        connection.prepared()
    }

    /// Like [`Connection::connect`], for a session that only asks and must never wait for long: each command
    /// has this time, and one that is late ends the connection. It is not cancelled, since that waits for the
    /// server without a limit, a minute or two where the network is cut.
    pub fn connect_to_ask(
        conninfo: &Conninfo,
        purpose: Purpose,
        application_name: &str,
        patience: Duration,
    ) -> Result<Self> {
        let mut connection = Self::open(conninfo, purpose, application_name)?;
        connection.patience = patience;
        connection.gives_up = true;
        connection.prepared()
    }

    fn open(conninfo: &Conninfo, purpose: Purpose, application_name: &str) -> Result<Self> {
        let parameters = conninfo.parameters(purpose, application_name);
        let connection = Handle::connect(&parameters).map_err(ClientError::Connect)?;
        let link = Link {
            connection,
            broken: None,
            changed: 0,
        };
        Ok(Self::from_link(link, purpose))
    }

    /// The session, ready for its purpose.
    fn prepared(mut self) -> Result<Self> {
        if self.purpose == Purpose::Replication {
            self.command(Step::Query, "prepare the session", PREPARE)?;
        }
        Ok(self)
    }

    /// How a server answers at a conninfo. Blocks as [`Connection::connect`] does.
    pub fn greeting(conninfo: &Conninfo) -> Greeting {
        Handle::greeting(&conninfo.parameters(Purpose::Sql, ""))
    }

    /// Whether a server answers at a conninfo, be it with a refusal. Blocks as
    /// [`Connection::connect`] does.
    pub fn answers(conninfo: &Conninfo) -> bool {
        Self::greeting(conninfo) != Greeting::Silent
    }

    pub(crate) fn from_link(link: Link, purpose: Purpose) -> Self {
        Self {
            link,
            purpose,
            patience: PATIENCE,
            gives_up: false,
        }
    }

    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// How long each command may take from now on.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// How long each command may take.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Runs SQL and returns the rows of all its statements, as text. An answer of more than
    /// [`MOST_ANSWER`] bytes, or none within the patience, is an error; the query is then
    /// cancelled.
    pub fn query(&mut self, sql: &str) -> Result<Rows> {
        self.command(Step::Query, "run a query", sql)
    }

    /// Runs SQL and returns one table for each statement that returns rows, even if it returned
    /// none, within the same limits as [`Connection::query`].
    pub fn tables(&mut self, sql: &str) -> Result<Vec<Table>> {
        self.ask(Step::Query, "run a query", simple(sql)?)
    }

    /// Makes a canceller, which cancels this connection's statements while another thread waits
    /// for them.
    pub fn canceller(&self) -> Result<Canceller> {
        self.link.connection.canceller().map_err(ClientError::Lost)
    }

    /// True if no further command can succeed. That the server has ended the connection is only
    /// noticed by the next command.
    pub fn is_closed(&self) -> bool {
        self.link.broken.is_some() || self.link.connection.is_closed()
    }

    /// True if the server has sent nothing since the last answer: that it has ended the connection, for one.
    pub fn is_quiet(&self) -> bool {
        let polled = self.link.poll(false, None, Duration::ZERO);
        !self.is_closed() && polled.is_ok_and(|polled| !polled.input)
    }

    /// The server's version as in `server_version_num`, e.g. 150020.
    pub fn server_version(&self) -> u32 {
        self.link.connection.server_version()
    }

    /// The process id of the server's backend for this connection.
    pub fn backend_pid(&self) -> u32 {
        self.link.connection.backend_pid()
    }

    /// A setting that the server reports by itself: `server_version`, `client_encoding`, ...
    pub fn parameter(&self, name: &str) -> Option<String> {
        let name = CString::new(name).ok()?;
        self.link.connection.parameter(&name)
    }

    /// The value of a connection option that is in use. None for a password.
    pub fn option(&self, name: &str) -> Option<String> {
        self.link
            .connection
            .settings()
            .into_iter()
            .find(|setting| setting.name == name && !setting.secret)
            .and_then(|setting| setting.value)
            .filter(|value| !value.is_empty())
    }

    /// The server of this connection: one, even if the conninfo names several.
    pub fn server(&self) -> Result<Server> {
        let connection = &self.link.connection;
        let port = connection.port();
        let port = port
            .parse()
            .map_err(|_| ClientError::Protocol(format!("port {port} is no port")))?;
        Ok(Server {
            host: connection.host(),
            hostaddr: Some(connection.hostaddr()).filter(|address| !address.is_empty()),
            port,
            database: connection.database(),
            user: connection.user(),
            tls: connection.tls(),
            sslmode: self
                .option("sslmode")
                .unwrap_or_else(|| "prefer".to_owned()),
            sslrootcert: self.option("sslrootcert"),
            sslcrl: self.option("sslcrl"),
            sslcert: self.option("sslcert"),
            sslkey: self.option("sslkey"),
            sslsni: self.option("sslsni").is_none_or(|value| value == "1"),
            ssl_min_protocol_version: self.option("ssl_min_protocol_version"),
        })
    }

    /// `IDENTIFY_SYSTEM`; needs [`Purpose::Replication`].
    pub fn identify(&mut self) -> Result<Identity> {
        let rows = self.command(Step::Identify, "say who it is", "IDENTIFY_SYSTEM")?;
        let mut row = rows.into_iter().next().unwrap_or_default().into_iter();
        let mut field = || row.next().flatten();
        let (system, timeline, end, database) = (field(), field(), field(), field());
        Ok(Identity {
            system: parsed("system identifier", system)?,
            timeline: parsed("timeline", timeline)?,
            end: parsed("position", end)?,
            database,
        })
    }

    /// The OID of the session's database, which stays when the database is renamed.
    pub fn database_oid(&mut self) -> Result<u32> {
        let rows = self.command(Step::Query, "say which database this is", DATABASE_OID)?;
        let oid = rows
            .into_iter()
            .next()
            .and_then(|row| row.into_iter().next());
        parsed("database's OID", oid.flatten())
    }

    /// Runs one command within the patience.
    pub(crate) fn command(&mut self, step: Step, what: &str, sql: &str) -> Result<Rows> {
        self.rows(step, what, simple(sql)?)
    }

    /// The rows of all answers to a request.
    pub(crate) fn rows(&mut self, step: Step, what: &str, request: Request) -> Result<Rows> {
        let tables = self.ask(step, what, request)?;
        Ok(tables.into_iter().flat_map(|table| table.rows).collect())
    }

    fn ask(&mut self, step: Step, what: &str, request: Request) -> Result<Vec<Table>> {
        self.link.send(&request)?;
        // libpq has a copy of its values, which may be large.
        drop(request);
        let answered = self.link.tables(step, what, Instant::now() + self.patience);
        if !matches!(answered, Err(Failure::TimedOut)) {
            return answered.map_err(|failure| failure.into_error(what, self.patience));
        }
        // Cancel the command: the server must not finish it later, after this error.
        let is_cancelled = !self.gives_up
            && (self.canceller())
                .and_then(|canceller| canceller.cancel())
                .is_ok();
        let ended = is_cancelled
            && !matches!(
                self.link
                    .tables(step, what, Instant::now() + CANCEL_PATIENCE),
                Err(Failure::TimedOut)
            );
        if !ended {
            self.link.broken = Some(format!("it did not {what} in time"));
        }
        Err(Failure::TimedOut.into_error(what, self.patience))
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("purpose", &self.purpose)
            .field("host", &self.link.connection.host())
            .finish_non_exhaustive()
    }
}

/// Parses a field of an answer.
pub(crate) fn parsed<T: std::str::FromStr>(what: &str, field: Option<String>) -> Result<T> {
    let text = field.unwrap_or_default();
    text.parse()
        .map_err(|_| ClientError::Protocol(format!("\"{text}\" is no {what}")))
}

/// SQL, or a command of replication, without parameters.
pub(crate) fn simple(sql: &str) -> Result<Request> {
    Ok(Request::Simple(c_string(sql)?))
}

/// A command's text, for libpq.
pub(crate) fn c_string(text: &str) -> Result<CString> {
    CString::new(text)
        .map_err(|_| ClientError::Protocol("a command of ours holds a NUL character".to_owned()))
}

/// Why there is no answer.
pub(crate) enum Failure {
    TimedOut,
    Other(ClientError),
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::Other(error)
    }
}

impl Failure {
    pub(crate) fn into_error(self, what: &str, patience: Duration) -> ClientError {
        match self {
            Self::TimedOut => ClientError::TimedOut {
                what: what.to_owned(),
                seconds: patience.as_secs(),
            },
            Self::Other(error) => error,
        }
    }
}

/// A connection, and the waiting for its socket.
pub(crate) struct Link {
    pub connection: Handle,
    /// Why the connection can no longer be used; None while it can.
    pub broken: Option<String>,
    /// Rows that the last request's statements have changed, as their command tags say.
    pub changed: u64,
}

impl Link {
    /// Sends as much of a request as can be sent without waiting.
    pub fn send(&mut self, request: &Request) -> Result<()> {
        if let Some(reason) = &self.broken {
            return Err(ClientError::Lost(reason.clone()));
        }
        self.connection.send(request).map_err(ClientError::Lost)
    }

    /// Reads what has arrived into libpq's buffer.
    pub fn take(&mut self) -> Result<()> {
        let takes = match self.connection.tls() {
            true => TAKES_WITH_TLS,
            false => TAKES,
        };
        for _ in 0..takes {
            self.connection.consume_input().map_err(ClientError::Lost)?;
        }
        Ok(())
    }

    /// Sends the rest of a request, and waits for the next answer.
    pub fn next_answer(&mut self, deadline: Instant) -> Result<Option<Answer>, Failure> {
        loop {
            let unsent = self.connection.flush().map_err(ClientError::Lost)?;
            if !unsent && !self.connection.is_busy() {
                return Ok(self.connection.next_answer());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Failure::TimedOut);
            }
            if self.poll(unsent, None, left)?.input {
                self.take()?;
            }
        }
    }

    /// All answers to a command that have rows.
    fn tables(&mut self, step: Step, what: &str, deadline: Instant) -> Result<Vec<Table>, Failure> {
        let mut tables = Vec::new();
        let mut table: Option<Table> = None;
        let mut bytes = 0;
        let mut refused = None;
        self.changed = 0;
        loop {
            let answer = match self.next_answer(deadline) {
                Ok(Some(answer)) => answer,
                Ok(None) => break,
                // The server's last error, which says why it ends the connection, says more.
                Err(Failure::Other(ClientError::Lost(_))) if refused.is_some() => break,
                Err(failure) => return Err(failure),
            };
            let mut ended = false;
            match answer.kind() {
                kind @ (AnswerKind::Row | AnswerKind::Rows) => {
                    let table = table.get_or_insert_with(|| {
                        let columns = answer.columns();
                        bytes +=
                            size_of::<Table>() + columns.iter().map(String::len).sum::<usize>();
                        Table {
                            columns,
                            rows: Rows::new(),
                        }
                    });
                    let new = answer.rows();
                    bytes += size(&new);
                    table.rows.extend(new);
                    ended = kind == AnswerKind::Rows;
                }
                AnswerKind::Command => self.changed += answer.affected(),
                AnswerKind::Error => {
                    refused.get_or_insert(refusal(&answer, step, what));
                }
                AnswerKind::CopyBoth
                | AnswerKind::CopyOne(_)
                | AnswerKind::Sync
                | AnswerKind::Skipped
                | AnswerKind::Other => {
                    return Err(self.unusable(format!("it began a copy when asked to {what}")));
                }
            }
            if ended {
                tables.extend(table.take());
            }
            if bytes > MOST_ANSWER {
                return Err(self.unusable(format!(
                    "over {} MB when asked to {what}",
                    MOST_ANSWER / (1024 * 1024)
                )));
            }
        }
        match refused {
            Some(ClientError::Refused(refusal)) if self.connection.is_closed() => {
                Err(ClientError::Ended(refusal).into())
            }
            Some(error) => Err(error.into()),
            None => Ok(tables),
        }
    }

    fn unusable(&mut self, reason: String) -> Failure {
        self.broken = Some(reason.clone());
        ClientError::Protocol(reason).into()
    }

    /// Waits until the socket can be read, until it can be written if data is `unsent`, or
    /// until `wake` can be read; at most for `timeout`. May return early with none of them.
    pub fn poll(
        &self,
        unsent: bool,
        wake: Option<BorrowedFd<'_>>,
        timeout: Duration,
    ) -> Result<Polled> {
        let socket = self
            .connection
            .socket()
            .ok_or_else(|| ClientError::Lost("it is closed".to_owned()))?;
        let mut interest = PollFlags::POLLIN;
        interest.set(PollFlags::POLLOUT, unsent);
        let mut fds = vec![PollFd::new(socket, interest)];
        fds.extend(wake.map(|wake| PollFd::new(wake, PollFlags::POLLIN)));
        match poll(&mut fds, poll_timeout(timeout)) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(Polled::default()),
            Err(errno) => return Err(ClientError::Lost(errno.desc().to_owned())),
        }
        let events = |place: usize| {
            fds.get(place)
                .and_then(PollFd::revents)
                .unwrap_or(PollFlags::empty())
        };
        // Errors of the socket are found by reading it.
        Ok(Polled {
            input: events(0).intersects(!PollFlags::POLLOUT),
            output: events(0).contains(PollFlags::POLLOUT),
            woken: !events(1).is_empty(),
        })
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Polled {
    pub input: bool,
    pub output: bool,
    pub woken: bool,
}

/// The timeout in whole milliseconds. It is rounded up: rounded down, a wait of less than a
/// millisecond would not wait at all.
fn poll_timeout(timeout: Duration) -> PollTimeout {
    let millis = timeout.as_nanos().div_ceil(1_000_000);
    let millis = i32::try_from(millis).unwrap_or(i32::MAX);
    PollTimeout::try_from(millis).unwrap_or(PollTimeout::ZERO)
}

pub(crate) fn size(rows: &Rows) -> usize {
    let texts = rows.iter().flatten().flatten().map(String::len);
    rows.iter().map(Vec::len).sum::<usize>() * size_of::<Option<String>>() + texts.sum::<usize>()
}

/// The error that an answer reports. An error without an SQLSTATE comes from libpq and means
/// that the connection is lost.
pub(crate) fn refusal(answer: &Answer, step: Step, what: &str) -> ClientError {
    let report = answer.report();
    if report.sqlstate.is_empty() {
        return ClientError::Lost(report.message);
    }
    ClientError::refused(Refusal {
        step,
        what: what.to_owned(),
        sqlstate: report.sqlstate,
        message: report.message,
        detail: report.detail,
        table: report.table,
        hint: report.hint,
        context: report.context,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_rounded_up() {
        for (timeout, millis) in [
            (Duration::ZERO, 0),
            (Duration::from_nanos(1), 1),
            (Duration::from_millis(5), 5),
            (Duration::from_micros(5_001), 6),
            (Duration::MAX, i32::MAX),
        ] {
            assert_eq!(
                poll_timeout(timeout).as_millis(),
                u32::try_from(millis).ok()
            );
        }
    }

    #[test]
    fn connections_move_between_threads() {
        fn is_send<T: Send>() {}
        is_send::<Connection>();
        is_send::<crate::Stream>();
        is_send::<crate::CopyData>();
    }
}
