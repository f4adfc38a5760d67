//! A slot's stream and the feedback to it.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use lockstep_wire::stream::{FromStandby, Status};
use lockstep_wire::{Lsn, Timeline};

use crate::connection::{Connection, Failure, Link, refusal, simple};
use crate::error::Step;
use crate::libpq::{AnswerKind, Copied, CopyData};
use crate::quote::{command_literal, identifier};
use crate::{ClientError, Result};

/// The next thing in a stream.
#[derive(Debug)]
pub enum Next<D = CopyData> {
    /// One message; `lockstep_wire::stream::FromServer` decodes it.
    Data(D),
    /// No message has arrived yet: call [`Stream::wait`].
    NotYet,
    /// The server has ended the stream without an error, because it shuts down.
    Ended,
}

/// What [`Stream::wait`] returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// A message may have arrived: call [`Stream::next`].
    pub input: bool,
    /// `wake` can be read.
    pub woken: bool,
}

/// A connection that streams from a slot. Dropping it closes the connection.
pub struct Stream {
    link: Link,
    /// `stream from slot "NAME"`, for errors.
    what: String,
    /// libpq has not yet sent all that it was given.
    unsent: bool,
    /// A message to send once libpq has sent the previous one. Only the newest is kept, so that a
    /// server that does not read costs no memory.
    waiting: Option<FromStandby>,
    ended: bool,
    /// How long the server may take to say why it ended the stream.
    patience: Duration,
    pace: Pace,
}

/// Waits in a row that ended at once, and brought less than [`MANY`], after which a stream is dense.
const DENSE_FROM: u32 = 64;

/// A wait of less than this ended at once.
const AT_ONCE: Duration = Duration::from_micros(50);

/// Bytes between two waits that are worth a read: about what libpq reads at once, 16 kB.
const MANY: usize = 12 * 1024;

/// Time for which a dense stream is left unread after a wait.
const REST: Duration = Duration::from_micros(200);

/// Whether messages come so fast, and in such small pieces, that each read costs more than it brings.
///
/// A walsender that decodes a backlog writes each message by itself. A reader that waits for each is woken
/// by each, which costs both sides more than the message itself: on a source with one core it slows
/// decoding down (docs/decisions/2026-11-28-reads-of-a-dense-stream.md). So a reader of such a stream rests
/// before it reads, and finds many messages. A reader that is slower than the server finds many by itself,
/// and does not rest. Nor is a server dense that waits for replies: the wait for its next message takes
/// longer than [`AT_ONCE`].
#[derive(Debug, Default)]
struct Pace {
    /// Waits in a row that ended at once and brought little.
    in_vain: u32,
    /// Bytes of messages since the last wait.
    bytes: usize,
}

impl Pace {
    /// How long to rest before the next read. `waited` is the length of the wait, and `input` is true if a
    /// message ended it.
    fn rest(&mut self, waited: Duration, input: bool) -> Option<Duration> {
        let bytes = std::mem::take(&mut self.bytes);
        self.in_vain = match input && waited < AT_ONCE && bytes < MANY {
            true => self.in_vain.saturating_add(1),
            false => 0,
        };
        (self.in_vain >= DENSE_FROM).then_some(REST)
    }
}

impl Connection {
    /// Starts to stream from a slot: everything that commits after `start` or after the slot's
    /// confirmed position, whichever is later. `0/0` is always the earlier. `options` are the
    /// plugin's. Needs [`crate::Purpose::Replication`].
    pub fn start(self, slot: &str, start: Lsn, options: &[(&str, String)]) -> Result<Stream> {
        let command = start_command(slot, start, options)?;
        self.start_copy(&command, &format!("from slot \"{slot}\""))
    }

    /// Starts to stream WAL as it is, from `start` on, without a slot: the server keeps none of it
    /// for this connection. Needs [`crate::Purpose::Replication`].
    pub fn start_physical(self, start: Lsn, timeline: Timeline) -> Result<Stream> {
        let command = format!("START_REPLICATION PHYSICAL {start} TIMELINE {timeline}");
        self.start_copy(&command, &format!("WAL from {start}"))
    }

    fn start_copy(mut self, command: &str, from: &str) -> Result<Stream> {
        let what = format!("start streaming {from}");
        self.link.send(&simple(command)?)?;
        let deadline = Instant::now() + self.patience();
        let answer = self
            .link
            .next_answer(deadline)
            .map_err(|failure| failure.into_error(&what, self.patience()))?;
        match answer.as_ref().map(|answer| (answer, answer.kind())) {
            Some((_, AnswerKind::CopyBoth)) => Ok(Stream {
                patience: self.patience(),
                link: self.link,
                what: format!("stream {from}"),
                unsent: false,
                waiting: None,
                ended: false,
                pace: Pace::default(),
            }),
            Some((answer, AnswerKind::Error)) => Err(refusal(answer, Step::Start, &what)),
            _ => Err(ClientError::Protocol(format!(
                "no stream when asked to {what}"
            ))),
        }
    }
}

fn start_command(slot: &str, start: Lsn, options: &[(&str, String)]) -> Result<String> {
    let slot = identifier("slot", slot)?;
    let mut command = format!("START_REPLICATION SLOT {slot} LOGICAL {start}");
    let options: Result<Vec<_>> = options
        .iter()
        .map(|(name, value)| {
            let name = identifier("option", name)?;
            Ok(format!("{name} {}", command_literal("option", value)?))
        })
        .collect();
    let options = options?.join(", ");
    if !options.is_empty() {
        command.push_str(&format!(" ({options})"));
    }
    Ok(command)
}

/// One message that replaces two: the newer, with a request for a reply if either has one.
fn instead_of(old: FromStandby, new: FromStandby) -> FromStandby {
    match (old, new) {
        (FromStandby::Status(old), FromStandby::Status(new)) => FromStandby::Status(Status {
            reply: old.reply || new.reply,
            ..new
        }),
        (_, new) => new,
    }
}

impl Stream {
    /// The next message, if it has arrived. Never waits. An error ends the stream.
    #[expect(
        clippy::should_implement_trait,
        reason = "it is not over where one would end"
    )]
    pub fn next(&mut self) -> Result<Next> {
        if self.ended {
            return Ok(Next::Ended);
        }
        let first = self.link.connection.get_copy_data();
        let copied = match first {
            Copied::NotYet => {
                self.link.take()?;
                self.link.connection.get_copy_data()
            }
            other => other,
        };
        match copied {
            Copied::Data(data) => {
                self.pace.bytes += data.len();
                Ok(Next::Data(data))
            }
            Copied::NotYet => Ok(Next::NotYet),
            Copied::Failed(words) => Err(ClientError::Lost(words)),
            Copied::Done => {
                self.ended = true;
                self.why_ended()
            }
        }
    }

    /// Finds out whether the server has ended its side of the copy with an error.
    fn why_ended(&mut self) -> Result<Next> {
        let deadline = Instant::now() + self.patience;
        match self.link.next_answer(deadline) {
            Ok(Some(answer)) if answer.kind() == AnswerKind::Error => {
                Err(refusal(&answer, Step::Stream, &self.what))
            }
            Ok(_) => Ok(Next::Ended),
            Err(failure) => Err(failure.into_error(&self.what, self.patience)),
        }
    }

    /// Waits until data arrives, `wake` can be read, or `timeout` has passed. May return early
    /// with neither. Call it only after [`Next::NotYet`]. It also sends feedback that
    /// [`Stream::send`] could not send at once. If many waits in a row ended at once it brought little, it
    /// rests for 0.2 ms more, so that there is more to read.
    pub fn wait(&mut self, wake: Option<BorrowedFd<'_>>, timeout: Duration) -> Result<Ready> {
        let began = Instant::now();
        let polled = self.link.poll(self.unsent, wake, timeout)?;
        if polled.output {
            self.flush()?;
        }
        if let Some(rest) = self.pace.rest(began.elapsed(), polled.input) {
            std::thread::sleep(rest.min(timeout));
        }
        Ok(Ready {
            input: polled.input,
            woken: polled.woken,
        })
    }

    /// Sends feedback, at once or as soon as the server reads. If several messages wait, only the
    /// newest is sent, with a request for a reply if one of them has one.
    pub fn send(&mut self, message: &FromStandby) -> Result<()> {
        self.waiting = Some(match self.waiting {
            Some(waiting) => instead_of(waiting, *message),
            None => *message,
        });
        self.flush()
    }

    fn flush(&mut self) -> Result<()> {
        if self.unsent {
            self.unsent = self.link.connection.flush().map_err(ClientError::Lost)?;
        }
        let Some(message) = self.waiting.filter(|_| !self.unsent) else {
            return Ok(());
        };
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let put = self.link.connection.put_copy_data(&bytes);
        if put.map_err(ClientError::Lost)? {
            self.waiting = None;
        }
        self.unsent = self.link.connection.flush().map_err(ClientError::Lost)?;
        Ok(())
    }

    /// True while feedback waits for a server that does not read.
    pub fn is_sending(&self) -> bool {
        self.unsent || self.waiting.is_some()
    }

    /// Ends the stream in an orderly way and closes the connection. Waiting feedback is sent and
    /// the server processes it; data that still arrives is dropped. Takes at most `patience`. A
    /// server in the middle of a large transaction may need longer: then the connection is
    /// closed without waiting for it. (The session cannot be used again: servers end any further
    /// logical stream in it at once.)
    pub fn finish(mut self, patience: Duration) -> Result<()> {
        let ended = self.end(Instant::now() + patience);
        ended.map_err(|failure| failure.into_error("end the stream", patience))
    }

    fn end(&mut self, deadline: Instant) -> Result<(), Failure> {
        while self.is_sending() && !self.ended {
            self.flush()?;
            if self.is_sending() {
                self.pause(deadline)?;
            }
        }
        while !self
            .link
            .connection
            .put_copy_end(None)
            .map_err(ClientError::Lost)?
        {
            self.pause(deadline)?;
        }
        loop {
            let unsent = self.link.connection.flush().map_err(ClientError::Lost)?;
            match self.link.connection.get_copy_data() {
                Copied::Data(_) => {
                    if Instant::now() >= deadline {
                        return Err(Failure::TimedOut);
                    }
                }
                Copied::NotYet => {
                    self.unsent = unsent;
                    self.pause(deadline)?;
                }
                Copied::Done => break,
                Copied::Failed(words) => return Err(ClientError::Lost(words).into()),
            }
        }
        while let Some(answer) = self.link.next_answer(deadline)? {
            if answer.kind() == AnswerKind::Error {
                return Err(refusal(&answer, Step::Stream, &self.what).into());
            }
        }
        Ok(())
    }

    /// Waits for the server, and reads what has arrived: a server that waits for its own data to
    /// be read does not read ours.
    fn pause(&mut self, deadline: Instant) -> Result<(), Failure> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failure::TimedOut);
        }
        if self.link.poll(self.unsent, None, left)?.input {
            self.link.take()?;
        }
        Ok(())
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("what", &self.what)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_stream_in_small_pieces_is_left_unread_for_a_while() {
        let at_once = Duration::from_micros(2);
        let dense = || {
            let mut pace = Pace::default();
            for _ in 1..DENSE_FROM {
                pace.bytes = 100;
                assert_eq!(pace.rest(at_once, true), None);
            }
            pace
        };
        let mut pace = dense();
        assert_eq!(pace.rest(at_once, true), Some(REST));
        pace.bytes = MANY - 1;
        assert_eq!(pace.rest(at_once, true), Some(REST));
        for (waited, input, bytes) in [
            (AT_ONCE, true, 0),
            (at_once, false, 0),
            (at_once, true, MANY),
        ] {
            let mut pace = dense();
            pace.bytes = bytes;
            assert_eq!(pace.rest(waited, input), None);
            assert_eq!(pace.rest(at_once, true), None, "it begins anew");
        }
    }

    #[test]
    fn the_newest_feedback_keeps_what_the_older_asked_for() {
        let status = |flushed: u64, reply| {
            FromStandby::Status(Status {
                flushed: flushed.into(),
                reply,
                ..Status::default()
            })
        };
        for (old, new, reply) in [
            (false, false, false),
            (true, false, true),
            (false, true, true),
        ] {
            assert_eq!(instead_of(status(1, old), status(2, new)), status(2, reply));
        }
    }

    #[test]
    fn commands_are_quoted() {
        let command = |slot, options: &[(&str, String)]| start_command(slot, 16.into(), options);
        assert_eq!(
            command("s", &[]).unwrap(),
            "START_REPLICATION SLOT \"s\" LOGICAL 0/10"
        );
        let options = [
            ("proto_version", "1".to_owned()),
            ("publication_names", "\"it's\"".to_owned()),
        ];
        assert_eq!(
            command("a\"b", &options).unwrap(),
            "START_REPLICATION SLOT \"a\"\"b\" LOGICAL 0/10 (\"proto_version\" '1', \"publication_names\" '\"it''s\"')"
        );
        assert!(command("", &[]).is_err());
        assert!(command("s", &[("o", "a\0".to_owned())]).is_err());
        assert!(command("s", &[("", String::new())]).is_err());
    }
}
