//! Reads and writes the protocol messages of one connection.

use std::io::{self, BufReader, ErrorKind, Read, Write};

use lockstep_wire::backend::Backend;
use lockstep_wire::frame::{self, Frame};
use lockstep_wire::startup::{self, Startup};

use super::listener::Stream;

/// Reads the messages of the other side.
#[derive(Debug)]
pub(crate) struct Incoming {
    reader: BufReader<Stream>,
    /// Longest message that is accepted, in bytes.
    limit: usize,
    body: Vec<u8>,
}

impl Incoming {
    pub fn new(stream: Stream, limit: usize) -> Self {
        Self {
            reader: BufReader::new(stream),
            limit,
            body: Vec::new(),
        }
    }

    /// The next message; None if the other side has closed the connection.
    pub fn next(&mut self) -> io::Result<Option<Frame<'_>>> {
        let mut head = [0; frame::HEADER];
        if !self.begin(&mut head)? {
            return Ok(None);
        }
        let (tag, length) = frame::header(head, self.limit).map_err(invalid)?;
        self.fill(length)?;
        Ok(Some(Frame {
            tag,
            body: &self.body,
        }))
    }

    /// A client's first packet; None if the client has closed the connection.
    pub fn startup(&mut self) -> io::Result<Option<Startup>> {
        let mut head = [0; startup::HEADER];
        if !self.begin(&mut head)? {
            return Ok(None);
        }
        self.fill(startup::length(head).map_err(invalid)?)?;
        Startup::parse(&self.body).map(Some).map_err(invalid)
    }

    /// Reads a message's first bytes; false if the other side has closed the connection.
    fn begin(&mut self, head: &mut [u8]) -> io::Result<bool> {
        match self.reader.read_exact(head) {
            Ok(()) => Ok(true),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn fill(&mut self, length: usize) -> io::Result<()> {
        self.body.resize(length, 0);
        self.reader.read_exact(&mut self.body)
    }
}

/// The error of a connection on which bytes arrived that are no valid message.
pub(crate) fn invalid(error: lockstep_wire::WireError) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

/// Writes a server's messages to its client. They are buffered until flushed.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub stream: Stream,
    buffer: Vec<u8>,
}

impl Outgoing {
    pub fn new(stream: Stream) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
        }
    }

    pub fn put(&mut self, message: &Backend<'_>) {
        message.encode(&mut self.buffer);
    }

    pub fn flush(&mut self) -> io::Result<()> {
        let written = self.stream.write_all(&self.buffer);
        self.buffer.clear();
        written
    }

    pub fn send(&mut self, message: &Backend<'_>) -> io::Result<()> {
        self.put(message);
        self.flush()
    }
}
