//! A receiver that speaks the streaming protocol and discards all WAL. It measures how fast
//! the player can send when no disk slows the receiver.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use lockstep_lab::progress::Micros;
use lockstep_wire::backend::Backend;
use lockstep_wire::command::Command;
use lockstep_wire::frame::BACKEND_LIMIT;
use lockstep_wire::frontend::Frontend;
use lockstep_wire::startup::{Session, Startup};
use lockstep_wire::stream::{FromServer, FromStandby, Status, Timestamp};
use lockstep_wire::{Lsn, Timeline, WireError};

use super::connection::{Incoming, invalid};
use super::listener::Stream;
use super::{Address, PlayerError};
use crate::Result;

/// How long the player may be silent before the receiver gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Interval at which the receiver reports its position.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// What to receive.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The receiver's `application_name`.
    pub name: String,
    /// The timeline to ask for; None for the player's own.
    pub timeline: Option<Timeline>,
    /// Where the stream begins.
    pub start: Lsn,
    /// The receiver leaves once it has all WAL up to here.
    pub end: Lsn,
    /// The receiver leaves after this time even if it has not reached `end`.
    pub at_most: Duration,
}

/// What was received.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Received {
    /// Bytes of WAL.
    pub bytes: u64,
    /// End of the WAL received.
    pub end: Lsn,
    /// Seconds from the first message to the last.
    pub seconds: f64,
    /// Bytes received in `seconds`, so without those of the first message.
    pub timed_bytes: u64,
}

impl Received {
    /// Megabytes (10^6 bytes) a second.
    pub fn mb_per_s(&self) -> f64 {
        self.timed_bytes as f64 / 1e6 / self.seconds.max(1e-9)
    }
}

/// Receives from the player at `address`, and ends the stream in an orderly way.
pub fn receive(address: &Address, wanted: &Wanted) -> Result<Received> {
    let mut receiver =
        Receiver::connect(address).map_err(|error| PlayerError::connection(&error))?;
    let received = receiver.start(wanted).and_then(|()| receiver.take(wanted));
    let mut farewell = Vec::new();
    Frontend::CopyDone.encode(&mut farewell);
    Frontend::Terminate.encode(&mut farewell);
    let _ = receiver.stream.write_all(&farewell);
    received
}

struct Receiver {
    stream: Stream,
    incoming: Incoming,
}

/// A message of the player, as far as the receiver needs it.
enum Said {
    Ready,
    Streaming,
    Wal { end: Lsn, bytes: u64 },
    Asks,
    Done,
    Other,
}

impl Receiver {
    fn connect(address: &Address) -> io::Result<Self> {
        let stream = Stream::connect(address)?;
        stream.set_timeouts(Some(PATIENCE), Some(PATIENCE))?;
        Ok(Self {
            incoming: Incoming::new(stream.again()?, BACKEND_LIMIT),
            stream,
        })
    }

    fn say(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream
            .write_all(bytes)
            .map_err(|error| PlayerError::connection(&error))
    }

    fn start(&mut self, wanted: &Wanted) -> Result<()> {
        let mut bytes = Vec::new();
        let parameters = [
            ("user", "null"),
            ("replication", "true"),
            ("application_name", &wanted.name),
        ];
        Startup::Session(Session::new(0, &parameters)).encode(&mut bytes);
        self.say(&bytes)?;
        while !matches!(self.hear()?, Said::Ready) {}
        let command = Command::StartReplication {
            slot: None,
            start: wanted.start,
            timeline: wanted.timeline,
        };
        bytes.clear();
        Frontend::Query(&command.to_string()).encode(&mut bytes);
        self.say(&bytes)?;
        while !matches!(self.hear()?, Said::Streaming) {}
        Ok(())
    }

    fn take(&mut self, wanted: &Wanted) -> Result<Received> {
        let began = Instant::now();
        let mut told = began;
        let mut first: Option<(Instant, u64)> = None;
        let mut received = Received {
            bytes: 0,
            end: wanted.start,
            seconds: 0.0,
            timed_bytes: 0,
        };
        while received.end < wanted.end && began.elapsed() < wanted.at_most {
            match self.hear()? {
                Said::Wal { end, bytes } => {
                    let at = Instant::now();
                    received.bytes += bytes;
                    received.end = end;
                    let (from, before) = *first.get_or_insert((at, bytes));
                    received.seconds = (at - from).as_secs_f64();
                    received.timed_bytes = received.bytes - before;
                    if at - told >= STATUS_EVERY {
                        told = at;
                        self.status(received.end)?;
                    }
                }
                Said::Asks => self.status(received.end)?,
                Said::Done => break,
                Said::Ready | Said::Streaming | Said::Other => {}
            }
        }
        self.status(received.end)?;
        Ok(received)
    }

    fn status(&mut self, position: Lsn) -> Result<()> {
        let mut data = Vec::new();
        FromStandby::Status(Status {
            written: position,
            flushed: position,
            applied: position,
            sent_at: Timestamp::from_unix_micros(Micros::now().0),
            reply: false,
        })
        .encode(&mut data);
        let mut bytes = Vec::new();
        Frontend::CopyData(&data).encode(&mut bytes);
        self.say(&bytes)
    }

    fn hear(&mut self) -> Result<Said> {
        let bad = |error: WireError| PlayerError::connection(&invalid(error));
        let frame = self
            .incoming
            .next()
            .map_err(|error| PlayerError::connection(&error))?
            .ok_or_else(gone)?;
        // CopyData messages, which carry the WAL, take the short way below.
        if frame.tag != b'd' {
            return match Backend::parse(frame).map_err(bad)? {
                Backend::ReadyForQuery(_) => Ok(Said::Ready),
                Backend::CopyBothResponse => Ok(Said::Streaming),
                Backend::CopyDone => Ok(Said::Done),
                Backend::ErrorResponse(report) => Err(refused(&report)),
                _ => Ok(Said::Other),
            };
        }
        Ok(match FromServer::parse(frame.body).map_err(bad)? {
            FromServer::XLogData { start, wal, .. } => Said::Wal {
                end: Lsn::from(u64::from(start).saturating_add(wal.len() as u64)),
                bytes: wal.len() as u64,
            },
            FromServer::Keepalive { reply: true, .. } => Said::Asks,
            FromServer::Keepalive { .. } => Said::Other,
        })
    }
}

fn gone() -> PlayerError {
    PlayerError::Connection("the player ended it".to_owned())
}

fn refused(report: &lockstep_wire::backend::Report) -> PlayerError {
    let hint = report.hint.as_deref().unwrap_or_default();
    PlayerError::Connection(format!(
        "{} (SQLSTATE {}) {hint}",
        report.message, report.sqlstate
    ))
}
