//! A replication connection without libpq, for consumers that must cost as little as possible:
//! large reads, and messages that are parsed in the buffer.
//!
//! Only for servers that ask for no password, as the lab's do.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use lockstep_client::quote::{command_literal, identifier, publication_names};
use lockstep_lab::server::{DATABASE, SUPERUSER};
use lockstep_wire::backend::Backend;
use lockstep_wire::frame::{self, Frame, LOGICAL_LIMIT};
use lockstep_wire::frontend::Frontend;
use lockstep_wire::startup::{Session as Startup, Startup as First};
use lockstep_wire::stream::{FromStandby, Status};

/// How much is read at a time, at least.
const READ: usize = 256 * 1024;

/// How long the other side may take until the stream begins.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a stream waits for input before it looks whether it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A connection.
pub(super) struct Session {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// What of the buffer is unread.
    start: usize,
    end: usize,
}

/// The SQLSTATE of a slot that is in use.
pub(super) const IN_USE: &str = "55006";

/// Why a stream did not begin.
pub(super) enum Refused {
    /// Another session uses the slot.
    InUse,
    Other(String),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::Other(error.to_string())
    }
}

fn invalid(error: impl ToString) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error.to_string())
}

impl Session {
    /// Connects and begins to stream.
    pub fn stream(
        port: u16,
        application: &str,
        slot: &str,
        publication: &str,
    ) -> Result<Self, Refused> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut session = Self {
            stream,
            buffer: vec![0; READ],
            start: 0,
            end: 0,
        };
        let mut bytes = Vec::new();
        let parameters = [
            ("user", SUPERUSER),
            ("database", DATABASE),
            ("replication", "database"),
            ("application_name", application),
            ("client_encoding", "UTF8"),
        ];
        First::Session(Startup::new(0, &parameters)).encode(&mut bytes);
        session.stream.write_all(&bytes)?;
        session.until(|message| matches!(message, Backend::ReadyForQuery(_)))?;
        let names = publication_names([publication]).map_err(invalid)?;
        let command = format!(
            "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', publication_names {})",
            identifier("slot", slot).map_err(invalid)?,
            command_literal("publication", &names).map_err(invalid)?
        );
        bytes.clear();
        Frontend::Query(&command).encode(&mut bytes);
        session.stream.write_all(&bytes)?;
        session.until(|message| matches!(message, Backend::CopyBothResponse))?;
        session.stream.set_read_timeout(Some(LOOK_EVERY))?;
        Ok(session)
    }

    /// Reads messages up to the one that is waited for.
    fn until(&mut self, found: impl Fn(&Backend<'_>) -> bool) -> Result<(), Refused> {
        loop {
            while let Some(frame) = self.next()? {
                match Backend::parse(frame).map_err(invalid)? {
                    Backend::ErrorResponse(report) if report.sqlstate == IN_USE => {
                        return Err(Refused::InUse);
                    }
                    Backend::ErrorResponse(report) => return Err(Refused::Other(report.message)),
                    Backend::Authentication(kind) => {
                        return Err(Refused::Other(format!(
                            "it asks for authentication {kind}, which sinks do not know"
                        )));
                    }
                    message if found(&message) => return Ok(()),
                    _ => {}
                }
            }
            if !self.fill()? {
                return Err(invalid("nothing came").into());
            }
        }
    }

    /// The next whole message of what was read.
    pub fn next(&mut self) -> io::Result<Option<Frame<'_>>> {
        let unread = self.buffer.get(self.start..self.end).unwrap_or_default();
        match frame::first(unread, LOGICAL_LIMIT).map_err(invalid)? {
            Some((frame, length)) => {
                self.start += length;
                Ok(Some(frame))
            }
            None => Ok(None),
        }
    }

    /// Reads what has arrived; false if nothing came for a while. The end of the stream is an
    /// error.
    pub fn fill(&mut self) -> io::Result<bool> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.buffer.len() - self.end < READ / 2 {
            // The message is longer than the buffer. Its length is checked when it is read.
            let length = self.buffer.len() * 2;
            self.buffer.resize(length, 0);
        }
        let room = self.buffer.get_mut(self.end..).unwrap_or_default();
        match self.stream.read(room) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                self.end += read;
                Ok(true)
            }
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Sends the status: how far the consumer is.
    pub fn status(&mut self, status: Status) -> io::Result<()> {
        let mut data = Vec::new();
        FromStandby::Status(status).encode(&mut data);
        let mut bytes = Vec::new();
        Frontend::CopyData(&data).encode(&mut bytes);
        self.stream.write_all(&bytes)
    }

    /// Ends the stream without waiting for the other side.
    pub fn leave(mut self) -> io::Result<()> {
        let mut bytes = Vec::new();
        Frontend::CopyDone.encode(&mut bytes);
        Frontend::Terminate.encode(&mut bytes);
        self.stream.write_all(&bytes)
    }
}
