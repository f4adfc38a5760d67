//! A client that speaks the protocol itself, to a server or to a relay.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;

use lockstep_wire::backend::{Backend, Report};
use lockstep_wire::frame::{self, Frame};
use lockstep_wire::frontend::Frontend;
use lockstep_wire::startup::Startup;

use super::PATIENCE;

/// Protocol 3.0, as a packet begins.
const VERSION: u32 = 196_608;

/// Either kind of socket.
trait Socket: Read + Write + Send {}

impl<S: Read + Write + Send> Socket for S {}

/// One connection.
pub struct Raw(Box<dyn Socket>);

/// One message of the server.
pub type Message = (u8, Vec<u8>);

/// A start packet with these parameters, as they are.
pub fn packet(parameters: &[(&str, &str)]) -> Vec<u8> {
    let mut body = VERSION.to_be_bytes().to_vec();
    for (name, value) in parameters {
        for text in [name, value] {
            body.extend(text.as_bytes());
            body.push(0);
        }
    }
    body.push(0);
    framed(&body)
}

/// A body with its length before it.
pub fn framed(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap();
    [&length.to_be_bytes()[..], body].concat()
}

impl Raw {
    /// Over TCP on this machine.
    pub fn tcp(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(Box::new(stream))
    }

    /// Over the socket in a folder.
    pub fn socket(folder: &Path, port: u16) -> Self {
        let stream = UnixStream::connect(folder.join(format!(".s.PGSQL.{port}"))).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(Box::new(stream))
    }

    /// Logs in without a password; the error if it is refused.
    pub fn log_in(self, packet: &[u8]) -> Result<Self, Report> {
        self.log_in_with_key(packet).map(|(client, _)| client)
    }

    /// Logs in, and returns what cancels the session's commands, too.
    pub fn log_in_with_key(mut self, packet: &[u8]) -> Result<(Self, Key), Report> {
        self.send(packet);
        let answer = self.answer();
        let key = answer.iter().find_map(key);
        match answer.into_iter().find_map(error) {
            Some(report) => Err(report),
            None => Ok((self, key.unwrap())),
        }
    }

    /// Sends a cancel request and waits until it was heard.
    pub fn cancel(mut self, key: &Key) {
        let mut packet = Vec::new();
        let (process, secret) = (key.process, key.secret.clone());
        Startup::CancelRequest { process, secret }.encode(&mut packet);
        self.send(&packet);
        assert_eq!(self.message(), None);
    }

    pub fn send(&mut self, bytes: &[u8]) {
        // Whoever has closed the connection may have said why.
        let _ = self.0.write_all(bytes);
    }

    pub fn send_query(&mut self, text: &str) {
        let mut out = Vec::new();
        Frontend::Query(text).encode(&mut out);
        self.send(&out);
    }

    /// The next message; None at the end, or where a server speaks to a client of another age.
    pub fn message(&mut self) -> Option<Message> {
        let mut head = [0; frame::HEADER];
        self.0.read_exact(&mut head).ok()?;
        let (tag, length) = frame::header(head, frame::LOGICAL_LIMIT).ok()?;
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).ok()?;
        Some((tag, body))
    }

    /// Messages up to the next `ReadyForQuery`, or up to a copy, or to the end.
    pub fn answer(&mut self) -> Vec<Message> {
        let mut all = Vec::new();
        while let Some((tag, body)) = self.message() {
            all.push((tag, body));
            if matches!(tag, b'Z' | b'W' | b'G') {
                break;
            }
        }
        all
    }

    /// What a query is answered with.
    pub fn query(&mut self, text: &str) -> Vec<Message> {
        self.send_query(text);
        self.answer()
    }

    /// The first error of the answer; None if there is none.
    pub fn refusal(&mut self, text: &str) -> Option<Report> {
        self.query(text).into_iter().find_map(error)
    }
}

/// What a client needs to cancel a session's commands.
#[derive(Debug, Clone)]
pub struct Key {
    pub process: u32,
    pub secret: Vec<u8>,
}

fn key((tag, body): &Message) -> Option<Key> {
    match Backend::parse(Frame { tag: *tag, body }) {
        Ok(Backend::BackendKeyData { process, secret }) => Some(Key {
            process,
            secret: secret.to_vec(),
        }),
        _ => None,
    }
}

pub fn error((tag, body): Message) -> Option<Report> {
    match Backend::parse(Frame { tag, body: &body }) {
        Ok(Backend::ErrorResponse(report)) => Some(report),
        _ => None,
    }
}
