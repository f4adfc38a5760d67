//! What a session reads: the spool, message by message.
//!
//! Only whole transactions are handed out: a spool that is full in the middle of one must not keep the
//! target from committing those before it. So a transaction begins to be applied once it is here as
//! a whole.

use std::sync::Arc;

use bytes::Bytes;
use lockstep_client::{CopyData, Next};
use lockstep_spool::{Folder, Log, LogError, Read, Reader, Storage};
use lockstep_wire::logical::frames::{self, FRAME_HEADER};
use lockstep_wire::stream::XLOG_DATA_HEADER;
use lockstep_wire::{Lsn, Timeline, WireError};

use super::Spool;
use crate::error::{ApplyError, Result};
use crate::fault::Fault;
use crate::limited::LimitedStream;

/// Bytes that are read at once.
const READ: usize = 256 * 1024;

/// Bytes of a frame before the content of its CopyData message.
const BEFORE: usize = FRAME_HEADER - XLOG_DATA_HEADER;

/// The content of a CopyData message.
#[derive(Debug)]
pub enum Content {
    Copied(CopyData),
    Kept(Bytes),
}

impl AsRef<[u8]> for Content {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Copied(data) => data,
            Self::Kept(bytes) => bytes,
        }
    }
}

/// What comes next.
#[derive(Debug)]
pub enum Arrived {
    Message(Content),
    /// Nothing will come any more that ends before this.
    Covered(Lsn),
    NotYet,
    Ended,
}

/// Where a session's messages come from.
pub(crate) enum Feed {
    Source(Box<LimitedStream>),
    Spool(Box<FromSpool>),
}

impl Feed {
    /// Everything before is there; None without a spool.
    pub fn received(&self) -> Option<Lsn> {
        match self {
            Self::Source(_) => None,
            Self::Spool(spool) => Some(spool.log.received()),
        }
    }

    /// The next message, if it is there. Never waits for the source.
    pub fn next(&mut self) -> Result<Arrived> {
        match self {
            Self::Source(stream) => match stream.next().map_err(ApplyError::Source)? {
                Next::Data(data) => Ok(Arrived::Message(Content::Copied(data))),
                Next::NotYet => Ok(Arrived::NotYet),
                Next::Ended => Ok(Arrived::Ended),
            },
            Self::Spool(spool) => spool.next_message(),
        }
    }
}

/// Reads a spool.
pub struct FromSpool<S: Storage = Folder> {
    pub spool: Spool<S>,
    log: Arc<Log<S>>,
    reader: Reader<S>,
    /// Where the target stood.
    began: Lsn,
    /// Frames that were read and not handed out, and the bytes of one that is not whole.
    frames: Bytes,
    partial: Vec<u8>,
    covered: Lsn,
    /// The spool cannot be read on.
    failed: Option<ApplyError>,
    fault: Option<Fault>,
    /// The source's timeline as far as was read.
    pub timeline: Option<Timeline>,
}

impl<S: Storage> FromSpool<S> {
    pub(super) fn new(
        spool: Spool<S>,
        log: Arc<Log<S>>,
        began: Lsn,
    ) -> std::result::Result<Self, LogError> {
        Ok(Self {
            timeline: spool.timeline(),
            spool,
            reader: log.reader(began)?,
            log,
            began,
            frames: Bytes::new(),
            partial: Vec::new(),
            covered: Lsn::INVALID,
            failed: None,
            fault: None,
        })
    }

    /// The reader with a fault planted, for tests.
    #[must_use]
    pub fn with_fault(mut self, fault: Option<Fault>) -> Self {
        self.fault = fault;
        self
    }

    /// What was told is looked at from now on.
    pub fn heard(&self) {
        self.spool.state().reader_told = false;
    }

    /// Why nothing more will come. To be asked once all that has come is applied.
    pub fn failure(&mut self) -> Option<ApplyError> {
        let failed = self.failed.take();
        failed.or_else(|| self.spool.state().refused.take())
    }

    /// The next message, if it is there. Never waits.
    pub fn next_message(&mut self) -> Result<Arrived> {
        loop {
            if let Some(frame) = self.frame()? {
                return Ok(Arrived::Message(Content::Kept(frame.slice(BEFORE..))));
            }
            if self.failed.is_some() {
                return Ok(Arrived::NotYet);
            }
            // What is whole has keys before this, what is still arriving has not.
            let end = self.log.received();
            let damage = self.spool.damage();
            let limit = damage.as_ref().map_or(end, |(from, _)| end.min(*from));
            if self.fault != Some(Fault::SpoolHandsOutParts) {
                self.reader.stop_before(limit);
            }
            match (self.reader.read(READ), damage) {
                (Ok(Read::Frames { pieces, .. }), _) => {
                    self.timeline = self.spool.timeline();
                    self.put(pieces);
                }
                (Ok(_), Some((from, words))) if from == limit => {
                    self.failed = Some(ApplyError::Spool(words));
                }
                (Ok(Read::Nothing { .. } | Read::Limit), _) if end > self.covered => {
                    self.covered = end;
                    self.timeline = self.spool.timeline();
                    return Ok(Arrived::Covered(end));
                }
                (Ok(Read::Nothing { .. } | Read::Limit), _) => return Ok(Arrived::NotYet),
                (Ok(Read::Cut), _) => {
                    let words = "the spool has dropped a transaction that was whole".to_owned();
                    return Err(ApplyError::System(words));
                }
                (Err(error), _) => self.failed = Some(self.spool.damaged(error, self.began)),
            }
        }
    }

    fn put(&mut self, pieces: Vec<Bytes>) {
        match &pieces[..] {
            [one] if self.partial.is_empty() => self.frames = one.clone(),
            _ => pieces
                .iter()
                .for_each(|piece| self.partial.extend_from_slice(piece)),
        }
        // A long frame is not moved as it grows.
        if let Some(head) = self.partial.first_chunk::<FRAME_HEADER>() {
            let length = frames::header(*head).map_or(0, |frame| frame.length);
            let more = length.saturating_sub(self.partial.len());
            self.partial.reserve_exact(more);
        }
    }

    /// The next frame, if all of it was read.
    fn frame(&mut self) -> Result<Option<Bytes>> {
        if self.frames.is_empty() {
            let whole = match self.partial.first_chunk::<FRAME_HEADER>() {
                Some(head) => self.partial.len() >= frames::header(*head)?.length,
                None => false,
            };
            if !whole {
                return Ok(None);
            }
            self.frames = Bytes::from(std::mem::take(&mut self.partial));
        }
        match frames::first(&self.frames)? {
            Some(frame) => {
                let length = frame.length;
                Ok(Some(self.frames.split_to(length)))
            }
            None => {
                // The rest of it is still to be read.
                if !self.partial.is_empty() {
                    return Err(WireError::Malformed("a frame within another").into());
                }
                self.partial = std::mem::take(&mut self.frames).to_vec();
                Ok(None)
            }
        }
    }
}

impl<S: Storage> Drop for FromSpool<S> {
    fn drop(&mut self) {
        let mut state = self.spool.state();
        state.reader = None;
        state.reader_told = false;
    }
}
