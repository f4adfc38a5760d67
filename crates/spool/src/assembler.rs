//! What the upstream sends, turned into frames for the log. No I/O, no clock.
//!
//! A walsender sends again what was not confirmed, so after a reconnection the first units
//! may be in the log already: those whose key is before `resume` are dropped. Schema
//! messages in them are not, since the walsender sends each only once a session: they
//! move into the next unit. The Begin messages of what is dropped are kept until they are taken, to
//! be held against the log.
//!
//! A keepalive's position is used only between two units, and not while a batch is announced by a
//! marker: it may cover commits that have not come yet.

use std::mem;

use bytes::Bytes;
use lockstep_wire::batch::Payload;
use lockstep_wire::logical::frames::put_frame;
use lockstep_wire::logical::{self, Boundary};
use lockstep_wire::stream::{FromServer, Timestamp};
use lockstep_wire::{Lsn, WireError};

/// Frames that are gathered before they must be taken, in bytes.
pub const GATHER: usize = 256 * 1024;

/// Most bytes of schema that wait for a unit.
const PENDING_SCHEMA: usize = 32 * 1024 * 1024;

/// A stream that makes no sense.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum StreamError {
    /// A message that cannot be read.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// A message where it cannot be.
    #[error("{what} at {lsn}")]
    Order {
        /// What came.
        what: &'static str,
        /// The message's position, or the last one known.
        lsn: Lsn,
    },
    /// More than is kept in memory.
    #[error("more than {PENDING_SCHEMA} bytes of Relation and Type messages without a transaction")]
    Schema,
}

/// Where in the stream the last message was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The stream is between units.
    Between,
    /// The stream is in a unit that goes to the log.
    Unit,
    /// The stream is in a unit that the log has already.
    Dropped,
}

/// Turns one connection's messages into frames.
#[derive(Debug)]
pub struct Assembler {
    batched: bool,
    resume: Lsn,
    place: Place,
    /// A marker was seen and its batch was not: keepalives say nothing.
    held: bool,
    frames: Vec<u8>,
    pending_schema: Vec<u8>,
    covered: Lsn,
    /// Everything that ends up to here has come, whether the log had it or not.
    seen: Lsn,
    /// Begin messages of dropped units.
    again: Vec<Vec<u8>>,
    again_bytes: usize,
    sent: Lsn,
    reply: bool,
    units: u64,
}

impl Assembler {
    /// An assembler for a connection that starts at `resume`, the end of what the log has. `batched`:
    /// the slot's plugin is lockstep, with batches.
    pub fn new(resume: Lsn, batched: bool) -> Self {
        Self {
            batched,
            resume,
            place: Place::Between,
            held: false,
            frames: Vec::new(),
            pending_schema: Vec::new(),
            covered: resume,
            seen: Lsn::INVALID,
            again: Vec::new(),
            again_bytes: 0,
            sent: resume,
            reply: false,
            units: 0,
        }
    }

    /// Takes one CopyData message.
    pub fn take_in(&mut self, data: &[u8]) -> Result<(), StreamError> {
        match FromServer::parse(data)? {
            FromServer::XLogData {
                start,
                end,
                sent_at,
                wal,
            } => {
                self.sent = self.sent.max(end);
                self.payload(start, sent_at, wal)
            }
            FromServer::Keepalive { end, reply, .. } => {
                self.sent = self.sent.max(end);
                self.reply |= reply;
                // Within a unit, or while a commit is held, the position covers what has
                // not come yet.
                if self.place == Place::Between && !self.held {
                    self.covered = self.covered.max(end);
                    self.seen = self.seen.max(end);
                }
                Ok(())
            }
        }
    }

    fn payload(&mut self, lsn: Lsn, sent_at: Timestamp, data: &[u8]) -> Result<(), StreamError> {
        match Payload::parse(data, self.batched)? {
            Payload::Plain(message) => self.message(lsn, sent_at, message),
            Payload::Marker => {
                self.held = true;
                Ok(())
            }
            Payload::Batch(entries) => {
                self.held = false;
                for entry in entries {
                    let entry = entry?;
                    self.message(entry.lsn, entry.time, entry.message)?;
                }
                Ok(())
            }
        }
    }

    fn message(&mut self, lsn: Lsn, at: Timestamp, message: &[u8]) -> Result<(), StreamError> {
        let order = |what| Err(StreamError::Order { what, lsn });
        match (logical::boundary(message)?, self.place) {
            (Boundary::Begin { key }, Place::Between) => {
                if key < self.resume {
                    self.place = Place::Dropped;
                    self.again.push(message.to_vec());
                    self.again_bytes += message.len();
                    return Ok(());
                }
                self.seen = self.seen.max(key);
                self.place = Place::Unit;
                put_frame(&mut self.frames, lsn, at, message)?;
                self.frames.append(&mut self.pending_schema);
                return Ok(());
            }
            (Boundary::Begin { .. }, _) => return order("a transaction begins within another"),
            (Boundary::Whole { key, end }, Place::Between) => {
                let known = key.map_or(end <= self.resume, |key| key < self.resume);
                if known {
                    self.seen = self.seen.max(end);
                    return Ok(());
                }
                self.finished(end);
            }
            (Boundary::End { end, .. }, Place::Unit) => self.finished(end),
            (Boundary::End { end, .. }, Place::Dropped) => {
                self.place = Place::Between;
                self.seen = self.seen.max(end);
                return Ok(());
            }
            (Boundary::Schema(_), Place::Dropped | Place::Between) => {
                put_frame(&mut self.pending_schema, lsn, at, message)?;
                return match self.pending_schema.len() > PENDING_SCHEMA {
                    true => Err(StreamError::Schema),
                    false => Ok(()),
                };
            }
            (Boundary::Change, Place::Dropped) => return Ok(()),
            (Boundary::Change | Boundary::Schema(_), Place::Unit) => {}
            (Boundary::Change, Place::Between) => {
                return order("a change outside of a transaction");
            }
            (Boundary::End { .. }, Place::Between) => {
                return order("the end of a transaction that did not begin");
            }
            // What comes whole is never within a transaction; this stream never asked for
            // transactions in pieces.
            (Boundary::Whole { .. }, _) => return order("a message within another transaction"),
        }
        put_frame(&mut self.frames, lsn, at, message)?;
        Ok(())
    }

    fn finished(&mut self, end: Lsn) {
        self.place = Place::Between;
        self.seen = self.seen.max(end);
        self.resume = self.resume.max(end);
        self.covered = self.covered.max(end);
        self.units += 1;
    }

    /// How many bytes of frames and of Begin messages wait to be taken.
    pub fn gathered(&self) -> usize {
        self.frames.len() + self.again_bytes
    }

    /// Begin messages of units that the log has, since the last call.
    pub fn take_again(&mut self) -> Vec<Vec<u8>> {
        self.again_bytes = 0;
        mem::take(&mut self.again)
    }

    /// Everything that ends up to here has come, whether the log had it or not.
    pub fn seen(&self) -> Lsn {
        self.seen
    }

    /// The frames that have come since the last call.
    pub fn take_frames(&mut self) -> Bytes {
        Bytes::from(mem::take(&mut self.frames))
    }

    /// Nothing that ends before this position will come any more. Meant for the log once
    /// all frames were taken.
    pub fn covered(&self) -> Lsn {
        self.covered
    }

    /// No unit is open.
    pub fn between_units(&self) -> bool {
        self.place == Place::Between
    }

    /// Where the primary's WAL ended when it last said so.
    pub fn sent(&self) -> Lsn {
        self.sent
    }

    /// Whether the primary has asked for an answer that it did not get.
    pub fn is_asked(&self) -> bool {
        self.reply
    }

    /// Whether the primary has asked for an answer since the last call.
    pub fn take_reply(&mut self) -> bool {
        mem::take(&mut self.reply)
    }

    /// Units that have come whole, since the last call.
    pub fn take_units(&mut self) -> u64 {
        mem::take(&mut self.units)
    }
}
