//! Reads a run of WAL into an [`Analysis`], and tells WAL's end from damage.

use lockstep_wire::Lsn;

use crate::analysis::Analysis;
use crate::reader::{Pages, Reader, Stop};
use crate::record::Record;
use crate::{Result, WalError};

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
    /// As the caller wished.
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

/// The same for whoever takes the records.
pub fn read_into<P: Pages>(
    reader: &mut Reader<P>,
    until: Until,
    take: &mut dyn FnMut(&Record),
) -> Result<Ended> {
    if let Some(stop) = reader.seek()? {
        // The caller's start is in no WAL: in what a switch left empty, say.
        return Ok(Ended::Stop(stop));
    }
    let mut first = None;
    let mut again = None;
    loop {
        let next = reader.position();
        let from = *first.get_or_insert(next);
        let read = u64::from(next).saturating_sub(u64::from(from));
        if until.lsn.is_some_and(|end| next >= end) || until.bytes.is_some_and(|most| read >= most)
        {
            return Ok(Ended::Limit);
        }
        let stop = match reader.read()? {
            // It may begin behind the header of the page whose start is the limit.
            Ok(record) if until.lsn.is_none_or(|end| record.start < end) => {
                take(&record);
                continue;
            }
            Ok(_) => return Ok(Ended::Limit),
            Err(stop) => stop,
        };
        if until.lsn.is_some_and(|end| stop.at >= end) {
            return Ok(Ended::Limit);
        }
        // A server that writes may have been in the middle of it: look once more.
        if again == Some(stop.at) || !reader.goes_on(&stop)? {
            return end_or_damage(reader, stop).map(Ended::Stop);
        }
        again = Some(stop.at);
    }
}

fn end_or_damage<P: Pages>(reader: &mut Reader<P>, stop: Stop) -> Result<Stop> {
    if !reader.goes_on(&stop)? {
        return Ok(stop);
    }
    Err(WalError::Damaged {
        at: stop.at,
        file: reader.pages().name(stop.page),
        reason: stop.reason.to_string(),
    })
}
