//! Reads a run of WAL into an [`Analysis`], and tells WAL's end from damage.

use std::thread;
use std::time::Duration;

use lockstep_wire::Lsn;

use crate::analysis::Analysis;
use crate::reader::{Pages, Reader, Reason, Stop, floor};
use crate::record::Record;
use crate::{Result, WalError};

/// Looks that find a place that is not right the same before it is damage.
const MOST_SAME: u32 = 3;

/// Most looks at one record that changes meanwhile: each of its pages is written once.
const MOST_LOOKS: u32 = 100_000;

/// Pause between two looks at what has not changed.
const PAUSE: Duration = Duration::from_millis(10);

/// Where reading ends, whatever WAL there is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Until {
    /// No record that begins here or behind is read.
    pub lsn: Option<Lsn>,
    /// No record is read after this many bytes of WAL.
    pub bytes: Option<u64>,
}

/// Why reading ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The walk ended where the caller wished.
    Limit,
    /// The WAL ends there.
    Stop(Stop),
}

/// Reads records into `analysis`. Damage with WAL behind it is an error.
pub fn read<P: Pages>(
    reader: &mut Reader<P>,
    until: Until,
    analysis: &mut Analysis,
) -> Result<Ended> {
    read_into(reader, until, &mut |record| analysis.add(record))
}

/// Like `read`, for whoever takes the records.
pub fn read_into<P: Pages>(
    reader: &mut Reader<P>,
    until: Until,
    take: &mut dyn FnMut(&Record),
) -> Result<Ended> {
    let mut looks = Looks::default();
    let start = reader.position();
    while let Some(stop) = reader.seek()? {
        let is_left_empty = is_left_empty(reader, start, &stop);
        if is_left_empty && !reader.pages().is_gone(stop.page) {
            return Ok(Ended::Stop(stop));
        }
        if let Some(stop) = looks.end(reader, stop, true)? {
            return Ok(Ended::Stop(stop));
        }
    }
    let mut first = None;
    let mut is_first = true;
    loop {
        let next = reader.position();
        let from = *first.get_or_insert(next);
        let read = next.bytes_since(from);
        if until.lsn.is_some_and(|end| next >= end) || until.bytes.is_some_and(|most| read >= most)
        {
            return Ok(Ended::Limit);
        }
        let stop = match reader.read()? {
            // It may begin behind the header of the page whose start is the limit.
            Ok(record) if until.lsn.is_none_or(|end| record.start < end) => {
                take(&record);
                is_first = false;
                continue;
            }
            Ok(_) => return Ok(Ended::Limit),
            Err(stop) => stop,
        };
        if until.lsn.is_some_and(|end| stop.at >= end) {
            return Ok(Ended::Limit);
        }
        if let Some(stop) = looks.end(reader, stop, is_first)? {
            return Ok(Ended::Stop(stop));
        }
    }
}

/// The caller's start is in no WAL: in what a switch has left empty, or behind the WAL's end. Within a
/// segment that cannot be told from a page that is damaged.
fn is_left_empty<P: Pages>(reader: &Reader<P>, start: Lsn, stop: &Stop) -> bool {
    let segment = reader.identity().size.start_of(stop.page);
    stop.reason == Reason::NoPage && stop.page != segment && stop.page == floor(start)
}

/// Looks at one place.
///
/// A server may write WAL, and recycle it, while it is read. It writes in order, and renames a segment
/// before it writes into it as another. So a page that is not right is damage only if it is the same when it
/// is read once more after WAL behind it was seen, and its file still has its name after that.
#[derive(Debug, Default)]
struct Looks {
    last: Option<Stop>,
    /// Looks in a row that found it the same.
    same: u32,
    /// Times that reading stopped at the same record.
    all: u32,
}

impl Looks {
    /// The end of what can be read if `stop` is that; none if reading is to be tried again there. Damage is
    /// an error.
    fn end<P: Pages>(
        &mut self,
        reader: &mut Reader<P>,
        stop: Stop,
        is_first: bool,
    ) -> Result<Option<Stop>> {
        if reader.pages().is_gone(stop.page) {
            let reason = Reason::Removed;
            return Ok(Some(Stop { reason, ..stop }));
        }
        if !reader.is_damaged(&stop)? {
            return Ok(Some(stop));
        }
        match &self.last {
            Some(last) if last.at == stop.at => {
                self.same = if *last == stop { self.same + 1 } else { 0 };
                self.all += 1;
            }
            _ => (self.same, self.all) = (0, 0),
        }
        if self.same >= MOST_SAME || self.all >= MOST_LOOKS || !reader.look_again() {
            return Err(damage(reader, &stop, is_first)?);
        }
        if self.same > 0 {
            thread::sleep(PAUSE);
        }
        self.last = Some(stop);
        Ok(None)
    }
}

/// The error for a stop that is damage, before any record or after some.
fn damage<P: Pages>(reader: &mut Reader<P>, stop: &Stop, is_first: bool) -> Result<WalError> {
    let size = reader.identity().size;
    let segment = size.start_of(stop.page);
    let next = Lsn::from(u64::from(segment).saturating_add(size.bytes()));
    let file = reader.pages().name(stop.page);
    let advice = match is_first {
        false => format!("; --end {} reads what is before", stop.at),
        true if !reader.has_page(next)? => String::new(),
        true if stop.at == segment && stop.reason != Reason::Short => {
            return Ok(WalError::FirstDamaged { file, next });
        }
        true => format!("; --start {next} reads from the next segment on"),
    };
    Ok(WalError::Damaged {
        at: stop.at,
        file,
        reason: reader.damage(stop),
        advice,
    })
}
