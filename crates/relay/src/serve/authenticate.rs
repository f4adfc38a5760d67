//! From the start packet to the first `ReadyForQuery`: the primary and the client speak
//! with each other, the relay listens and takes one offer away.
//!
//! **Channel binding.** A client that binds its login to the TLS channel would bind it to
//! the one with the relay, which the primary does not know, so the relay takes
//! `SCRAM-SHA-256-PLUS` out of what the primary offers. Where TLS is spoken on one leg
//! only, all is well. Where it is spoken on both, a client that could have bound says so
//! (flag `y`), and the primary, which did offer it, must take that for an attack. The
//! message is signed by the client, so that the relay can only say what to do:
//! `channel_binding=disable` at the client, or no TLS between relay and primary.

use std::collections::BTreeMap;
use std::io;

use bytes::BytesMut;
use lockstep_wire::backend::{Backend, Report};
use lockstep_wire::frame::{self, Frame};
use tokio::io::AsyncWriteExt;

use super::frames::{FrameReader, ReadError, split};
use super::pass::leave;
use super::pump::Ends;
use super::stop::Stop;
use super::transport::{Reader, Transport, Writer, after, close_with, message};
use crate::session::{Client, Secret};
use crate::spare::Scarce;

/// Longest message while a session begins, in bytes: a server takes tokens up to 64 kB.
const LIMIT: usize = 128 * 1024;

/// Authentication requests, by number.
const SASL: u32 = 10;
/// Requests that need no answer: done, and the server's last word of SASL.
const NO_ANSWER: [u32; 2] = [0, 12];

/// Mechanisms that bind the channel end in this.
const BINDING: &[u8] = b"-PLUS";

/// Most settings that are remembered of what the primary reports (18 reports 16).
const MOST_SETTINGS: usize = 64;

/// What a client that could bind, but was not offered to, begins its SCRAM with.
const COULD_BIND: &[u8] = b"y,";

/// A session that the primary has let in. The client waits for its first `ReadyForQuery`.
pub(super) struct Begun {
    pub ends: Ends,
    /// The primary's process.
    pub pid: u32,
    /// What it takes to cancel its commands.
    pub secret: Secret,
    /// Settings that it has reported, by name.
    pub settings: BTreeMap<String, String>,
}

struct Login {
    client: FrameReader<Reader>,
    client_writer: Writer,
    primary: FrameReader<Reader>,
    primary_writer: Writer,
    /// The primary is spoken to over TLS.
    encrypted: bool,
    /// The primary waits for a message of the client.
    awaited: bool,
    /// An offer to bind the channel was taken away, and has not been answered.
    offered: bool,
    pid: u32,
    secret: Secret,
    settings: BTreeMap<String, String>,
    /// The primary has said something.
    said: bool,
}

/// How a login has ended.
pub(super) enum LoggedIn {
    Begun(Begun),
    /// The primary has too few of something, and said so before anything else.
    Short(Short),
    /// The client has not been let in, and knows why.
    Over,
}

/// A client that has been told nothing yet. It may log in once more.
pub(super) struct Short {
    pub client: Client,
    pub scarce: Scarce,
    /// The primary's error, a whole message.
    error: Vec<u8>,
}

impl Short {
    /// Tells the client what the primary said.
    pub async fn tell(self) {
        close_with(self.client, &self.error).await;
    }
}

impl LoggedIn {
    /// The session, if the client was let in; otherwise it is told why not.
    pub async fn or_tell(self) -> Option<Begun> {
        match self {
            Self::Begun(begun) => return Some(begun),
            Self::Short(short) => short.tell().await,
            Self::Over => {}
        }
        None
    }
}

/// What the primary's messages have led to.
enum Progress {
    Going,
    Ready,
    Short(Scarce, Vec<u8>),
}

/// How a login ends.
enum Outcome {
    Ready,
    Short(Scarce, Vec<u8>),
    ClientGone,
    PrimaryGone,
    Refused(Report),
}

/// Sends `packet` to the primary and lets the client log in. The first `ReadyForQuery` is kept
/// back.
pub(super) async fn authenticate(
    client: Client,
    primary: Transport,
    packet: &[u8],
    stop: &mut Stop,
) -> LoggedIn {
    let encrypted = primary.is_tls();
    let (primary_reader, primary_writer) = primary.halves();
    let mut login = Login {
        client: FrameReader::new(client.reader),
        client_writer: client.writer,
        primary: FrameReader::new(primary_reader),
        primary_writer,
        encrypted,
        awaited: false,
        offered: false,
        pid: 0,
        secret: Secret::default(),
        settings: BTreeMap::new(),
        said: false,
    };
    // If it fails the primary may still have said why.
    let _ = send(&mut login.primary_writer, packet).await;
    match login.run(stop).await {
        Outcome::Ready => return LoggedIn::Begun(login.begun()),
        Outcome::Short(scarce, error) => {
            let client = login.into_client();
            return LoggedIn::Short(Short {
                client,
                scarce,
                error,
            });
        }
        Outcome::ClientGone => {}
        Outcome::PrimaryGone => close_with(login.into_client(), &[]).await,
        Outcome::Refused(report) => refuse(login.into_client(), report).await,
    }
    LoggedIn::Over
}

async fn send(writer: &mut Writer, bytes: &[u8]) -> io::Result<()> {
    writer.write_all(bytes).await?;
    writer.flush().await
}

impl Login {
    async fn run(&mut self, stop: &mut Stop) -> Outcome {
        loop {
            tokio::select! {
                said = self.primary.message(LIMIT) => match said {
                    Ok(Some(first)) => {
                        if let Some(outcome) = self.pass_down(first).await {
                            return outcome;
                        }
                    }
                    Ok(None) | Err(ReadError::Io(_)) => return Outcome::PrimaryGone,
                    Err(ReadError::Wire(error)) => return nonsense(&error),
                },
                // What comes unasked stays where it is: it may be a query.
                answer = self.client.message(LIMIT), if self.awaited => match answer {
                    Ok(Some(answer)) => {
                        if let Some(report) = self.look_at_answer(&answer) {
                            return Outcome::Refused(report);
                        }
                        // If it fails the primary's last words are on their way.
                        let _ = send(&mut self.primary_writer, &answer).await;
                    }
                    Ok(None) | Err(ReadError::Io(_)) => return Outcome::ClientGone,
                    Err(ReadError::Wire(error)) => {
                        let what = format!("invalid message: {error}");
                        return Outcome::Refused(Report::fatal("08P01", what));
                    }
                },
                () = stop.told() => return Outcome::Refused(stop.why()),
            }
        }
    }

    /// Passes on what the primary said; the outcome, if there is one.
    async fn pass_down(&mut self, first: BytesMut) -> Option<Outcome> {
        let mut out = Vec::new();
        let taken = self.take_all(first, &mut out);
        if send(&mut self.client_writer, &out).await.is_err() {
            return Some(Outcome::ClientGone);
        }
        match taken {
            Ok(Progress::Going) => None,
            Ok(Progress::Ready) => Some(Outcome::Ready),
            Ok(Progress::Short(scarce, error)) => Some(Outcome::Short(scarce, error)),
            Err(error) => Some(nonsense(&error)),
        }
    }

    fn begun(self) -> Begun {
        let (client_reader, client_left) = self.client.into_parts();
        let (primary_reader, primary_left) = self.primary.into_parts();
        Begun {
            ends: Ends {
                client_reader: after(client_left, client_reader),
                client_writer: self.client_writer,
                primary_reader: after(primary_left, primary_reader),
                primary_writer: self.primary_writer,
            },
            pid: self.pid,
            secret: self.secret,
            settings: self.settings,
        }
    }

    fn into_client(self) -> Client {
        let (reader, left) = self.client.into_parts();
        Client {
            reader: after(left, reader),
            writer: self.client_writer,
        }
    }

    /// Takes a message of the primary and those that have come with it.
    fn take_all(&mut self, first: BytesMut, out: &mut Vec<u8>) -> Result<Progress, ReadError> {
        let mut next = Some(first);
        while let Some(message) = next {
            match self.take(&message, out) {
                Progress::Going => next = self.primary.buffered(LIMIT)?,
                over => return Ok(over),
            }
        }
        Ok(Progress::Going)
    }

    /// Takes one message of the primary: what the client gets of it goes to `out`.
    fn take(&mut self, message: &[u8], out: &mut Vec<u8>) -> Progress {
        let (tag, body) = split(message);
        let first = !std::mem::replace(&mut self.said, true);
        match Backend::parse(Frame { tag, body }) {
            Ok(Backend::ErrorResponse(report)) if first => {
                if let Some(scarce) = Scarce::of(&report.sqlstate, &report.message) {
                    return Progress::Short(scarce, message.to_vec());
                }
            }
            Ok(Backend::Authentication(SASL)) => {
                self.awaited = true;
                let (list, taken) = without_binding(body);
                self.offered = taken;
                frame::put(out, tag, |out| out.extend(list));
                return Progress::Going;
            }
            Ok(Backend::Authentication(way)) => self.awaited = !NO_ANSWER.contains(&way),
            Ok(Backend::AuthenticationOk) => self.awaited = false,
            Ok(Backend::BackendKeyData { process, secret }) => {
                (self.pid, self.secret) = (process, Secret(secret.to_vec()));
            }
            // Servers report a fixed number of them; each is short.
            Ok(Backend::ParameterStatus { name, value }) if self.settings.len() < MOST_SETTINGS => {
                self.settings.insert(name.to_owned(), value.to_owned());
            }
            Ok(Backend::ReadyForQuery(_)) => return Progress::Ready,
            // Whatever it is, it is between the two.
            _ => {}
        }
        out.extend_from_slice(message);
        Progress::Going
    }

    /// Looks at an answer of the client; a report if it cannot succeed.
    fn look_at_answer(&mut self, answer: &[u8]) -> Option<Report> {
        self.awaited = false;
        if !std::mem::take(&mut self.offered) || !self.encrypted {
            return None;
        }
        // The mechanism's name, a length, then the client's first words.
        let (_, body) = split(answer);
        let name = body.iter().position(|&byte| byte == 0)?;
        let words = body.get(name + 5..)?;
        words.starts_with(COULD_BIND).then(|| {
            Report::fatal(
                "28000",
                "this login cannot pass through the relay: TLS on both sides of it leaves no channel to bind",
            )
            .hint("Connect with channel_binding=disable, or let the relay speak to the primary without TLS.")
        })
    }
}

/// A list of mechanisms without those that bind the channel; true if there was one.
fn without_binding(body: &[u8]) -> (Vec<u8>, bool) {
    let (number, names) = body.split_at_checked(4).unwrap_or((body, &[]));
    let mut list = number.to_vec();
    let mut taken = false;
    for name in names.split_inclusive(|&byte| byte == 0) {
        match name.strip_suffix(&[0]).unwrap_or(name).ends_with(BINDING) {
            true => taken = true,
            false => list.extend_from_slice(name),
        }
    }
    (list, taken)
}

/// Refuses a session after all, and leaves the primary.
pub(super) async fn turn_away(begun: Begun, report: Report) {
    let mut ends = begun.ends;
    leave(&mut ends.primary_writer).await;
    let client = Client {
        reader: ends.client_reader,
        writer: ends.client_writer,
    };
    refuse(client, report).await;
}

fn nonsense(error: &dyn std::fmt::Display) -> Outcome {
    let what = format!("the primary does not make sense: {error}");
    Outcome::Refused(Report::fatal("08P01", what))
}

/// Tells a client why its session ends.
pub(super) async fn refuse(client: Client, report: Report) {
    close_with(client, &message(report)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mechanisms_that_bind_are_taken_away() {
        for (offered, left, taken) in [
            (
                &b"\0\0\0\x0aSCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0"[..],
                &b"\0\0\0\x0aSCRAM-SHA-256\0\0"[..],
                true,
            ),
            (
                b"\0\0\0\x0aSCRAM-SHA-256\0\0",
                b"\0\0\0\x0aSCRAM-SHA-256\0\0",
                false,
            ),
            (
                b"\0\0\0\x0aSCRAM-SHA-256\0OAUTHBEARER\0\0",
                b"\0\0\0\x0aSCRAM-SHA-256\0OAUTHBEARER\0\0",
                false,
            ),
            (b"\0\0\0\x0aX-PLUS\0\0", b"\0\0\0\x0a\0", true),
            (b"\0\0\0\x0a", b"\0\0\0\x0a", false),
            (b"\0", b"\0", false),
        ] {
            assert_eq!(without_binding(offered), (left.to_vec(), taken));
        }
    }
}
