//! Reads records in their order, page by page.
//!
//! It accepts what the server's own reader accepts, and stops where that stops: at the first page or
//! record that is not right. It also stops at a page of a timeline newer than its file's, which that reader
//! takes. Whether the WAL ends there or is damaged is for [`Reader::is_damaged`]: WAL is written in order, so
//! a page of the right position behind the stop says that more was written once. A server may write or
//! recycle what is read, so a stop is damage only if it is the same when it is looked at again: see
//! [`crate::walk`].
//!
//! Memory: one page, and one record as far as its pages have been found to follow each other. A
//! length in a header is never trusted for an allocation.

use std::io;

use lockstep_wire::{Lsn, SystemId, Timeline};

use crate::record::{Before, Fault, HEADER, Header, Record};
use crate::segment::{LONG_HEADER, PAGE, PageHeader, SegmentSize};
use crate::{Result, WalError};

const PAGE_BYTES: usize = PAGE as usize;

/// Resource manager XLOG, and its record after which the rest of the segment is empty.
const XLOG: u8 = 0;
const SWITCH: u8 = 0x40;

/// Where pages come from.
pub trait Pages {
    /// Fills `page` with the bytes at `at`, and returns how many there are.
    fn read(&mut self, at: Lsn, page: &mut [u8]) -> io::Result<usize>;

    /// The name of what holds the byte at `at`, for people.
    fn name(&self, at: Lsn) -> String;

    /// The newest timeline that a page can be of. None: any.
    fn timeline(&self) -> Option<Timeline> {
        None
    }

    /// Lets go what is kept open, so that the next read finds what is there then. False: what is read
    /// never changes.
    fn look_again(&mut self) -> bool {
        false
    }

    /// What held the byte at `at` was there once, and has been removed or renamed.
    fn is_gone(&self, _at: Lsn) -> bool {
        false
    }

    /// The segment that holds the byte at `at` does not begin as it should, and a later one does.
    fn is_broken(&self, _at: Lsn) -> bool {
        false
    }
}

/// The WAL that pages must be of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    pub magic: u16,
    pub size: SegmentSize,
    pub system: SystemId,
}

/// Why reading stopped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    #[error("there is no more WAL")]
    Missing,
    #[error("the server has removed or recycled its segment meanwhile")]
    Removed,
    #[error("the page there is cut off")]
    Short,
    #[error("the page there is empty or has other contents")]
    NoPage,
    #[error(
        "the page there has the right position, but begins with {0:04X}, which is not of this WAL's version"
    )]
    OtherMagic(u16),
    #[error("the page there is of {0}")]
    OtherPage(Lsn),
    #[error("the page there is of timeline {page}, newer than the timeline of its file, {file}")]
    NewerTimeline { page: u32, file: Timeline },
    #[error("the page there is of timeline {0}, older than the page before it")]
    OtherTimeline(u32),
    #[error("the page there is of another cluster, segment size or version")]
    OtherCluster,
    #[error("nothing is written there")]
    Nothing,
    #[error("{0}")]
    Record(Fault),
    #[error("its next page does not continue it")]
    NotContinued,
}

impl Reason {
    /// A page was written there and is not right: no end of WAL looks so.
    fn is_damage(&self) -> bool {
        matches!(self, Self::OtherMagic(_) | Self::NewerTimeline { .. })
    }
}

/// Where and why reading stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    /// Where a record would begin.
    pub at: Lsn,
    /// The page that is not right, or the record's own.
    pub page: Lsn,
    pub reason: Reason,
}

/// Reads records.
#[derive(Debug)]
pub struct Reader<P> {
    pages: P,
    identity: Identity,
    page: Box<[u8; PAGE_BYTES]>,
    /// The page in `page`, and its header.
    held: Option<(Lsn, PageHeader)>,
    /// The timeline of the newest page, and where this page is.
    newest: (Lsn, u32),
    before: Before,
    next: Lsn,
    record: Vec<u8>,
    /// Position of the record that is read, and of the page that is.
    at: Lsn,
}

/// Why a record cannot be had.
enum Failed {
    Stop(Reason),
    Error(WalError),
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Self {
        Self::Stop(Reason::Record(fault))
    }
}

impl From<WalError> for Failed {
    fn from(error: WalError) -> Self {
        Self::Error(error)
    }
}

/// A record's bytes are in `Reader::record`, unless they are in its page.
struct Found {
    start: Lsn,
    end: Lsn,
    header: Header,
    /// The place in the page.
    within: Option<std::ops::Range<usize>>,
}

impl<P: Pages> Reader<P> {
    /// A reader whose first record is the first that begins at or after `start`.
    pub fn new(pages: P, identity: Identity, start: Lsn) -> Self {
        Self {
            pages,
            identity,
            page: Box::new([0; PAGE_BYTES]),
            held: None,
            newest: (Lsn::INVALID, 0),
            before: Before::Unknown,
            next: start,
            record: Vec::new(),
            at: Lsn::INVALID,
        }
    }

    pub fn identity(&self) -> Identity {
        self.identity
    }

    pub fn pages(&self) -> &P {
        &self.pages
    }

    /// Where the next record may begin.
    pub fn position(&self) -> Lsn {
        self.next
    }

    /// Finds the first record that begins at or after the reader's start. Call it before the first record
    /// is read. None: reading can begin. After a stop the same is tried again.
    pub fn seek(&mut self) -> Result<Option<Stop>> {
        let start = self.next;
        let stop = self.seek_from(start)?;
        if stop.is_some() {
            (self.next, self.before) = (start, Before::Unknown);
        }
        Ok(stop)
    }

    fn seek_from(&mut self, start: Lsn) -> Result<Option<Stop>> {
        let mut page = floor(start);
        loop {
            self.at = page;
            let header = match self.load(page, LONG_HEADER) {
                Ok(header) => header,
                Err(failed) => return self.stopped(page, failed).map(Some),
            };
            let rest = match header.is_continued() {
                true => u64::from(header.continued).next_multiple_of(8),
                false => 0,
            };
            if rest < PAGE - header.length() as u64 {
                self.next = plus(page, header.length() as u64 + rest);
                break;
            }
            page = plus(page, PAGE);
        }
        while self.next < start {
            let (next, before) = (self.next, self.before);
            match self.read()? {
                Err(stop) => return Ok(Some(stop)),
                Ok(record) if record.start >= start => {
                    (self.next, self.before) = (next, before);
                    break;
                }
                Ok(_) => {}
            }
        }
        Ok(None)
    }

    /// The next record, or where and why there is none. After a stop the same is tried again.
    pub fn read(&mut self) -> Result<std::result::Result<Record<'_>, Stop>> {
        let next = self.next;
        let found = match self.find() {
            Ok(found) => found,
            Err(failed) => return self.stopped(next, failed).map(Err),
        };
        let bytes = match &found.within {
            Some(range) => self.page.get(range.clone()).unwrap_or_default(),
            None => &self.record,
        };
        match Record::parse(found.header, bytes, found.start, found.end) {
            Ok(mut record) => {
                record.end = after(&record, self.identity.size);
                self.before = Before::At(found.start);
                self.next = record.end;
                Ok(Ok(record))
            }
            Err(fault) => {
                self.held = None;
                Ok(Err(Stop {
                    at: found.start,
                    // The record's last page: pages behind that one are later WAL.
                    page: self.at,
                    reason: Reason::Record(fault),
                }))
            }
        }
    }

    /// Lets the next read find what is there then. False: what is read never changes.
    pub fn look_again(&mut self) -> bool {
        self.held = None;
        self.pages.look_again()
    }

    /// Whether a stop is no end of WAL: it says so itself, or WAL was once written behind it.
    pub fn is_damaged(&mut self, stop: &Stop) -> Result<bool> {
        if stop.reason.is_damage() || self.pages.is_broken(stop.page) {
            return Ok(true);
        }
        self.goes_on(stop)
    }

    /// What is not right at a stop that is damage.
    pub fn damage(&self, stop: &Stop) -> String {
        if self.pages.is_broken(stop.page) {
            let words = "it is there but does not begin as its segment does";
            return format!("{words}, and WAL goes on behind it");
        }
        match stop.reason.is_damage() {
            true => stop.reason.to_string(),
            false => format!("{}, and WAL goes on behind it", stop.reason),
        }
    }

    /// Whether the page at `page` is of its place.
    pub fn has_page(&mut self, page: Lsn) -> Result<bool> {
        let mut bytes = [0; LONG_HEADER];
        let read = self.pages.read(page, &mut bytes);
        let read = read.map_err(|source| self.io(page, source))?;
        let header = PageHeader::parse(&bytes);
        let fault = self.fault_of(page, &header);
        Ok(read == LONG_HEADER && fault.is_none_or(|fault| fault.is_damage()))
    }

    /// Whether WAL was once written behind a stop: a page there has its right position.
    fn goes_on(&mut self, stop: &Stop) -> Result<bool> {
        let size = self.identity.size;
        let segment = size.start_of(stop.page);
        let next_segment = plus(segment, size.bytes());
        let after = |page: Lsn| u64::from(page).checked_add(PAGE).map(Lsn::from);
        let mut next = after(floor(stop.page));
        // Nothing comes behind the last page that there can be.
        while let Some(page) = next.filter(|page| *page <= next_segment) {
            if self.has_page(page)? {
                return Ok(true);
            }
            next = after(page);
        }
        Ok(false)
    }

    fn stopped(&mut self, at: Lsn, failed: Failed) -> Result<Stop> {
        self.held = None;
        match failed {
            Failed::Error(error) => Err(error),
            Failed::Stop(reason) => Ok(Stop {
                at,
                page: self.at,
                reason,
            }),
        }
    }

    fn io(&self, at: Lsn, source: io::Error) -> WalError {
        WalError::ReadWal {
            file: self.pages.name(at),
            source,
        }
    }

    /// The header of the page at `page`, which is in `self.page` then; at least its first `least`
    /// bytes are.
    fn load(&mut self, page: Lsn, least: usize) -> Result<PageHeader, Failed> {
        self.at = page;
        if let Some((held, header)) = self.held {
            if held == page {
                return Ok(header);
            }
        }
        self.held = None;
        let read = self.pages.read(page, self.page.as_mut_slice());
        let read = read.map_err(|source| Failed::Error(self.io(page, source)))?;
        match read {
            0 => return Err(Failed::Stop(Reason::Missing)),
            short if short < PAGE_BYTES.max(least) => return Err(Failed::Stop(Reason::Short)),
            _ => {}
        }
        let header = self
            .page
            .first_chunk::<LONG_HEADER>()
            .map(PageHeader::parse)
            .ok_or(Failed::Stop(Reason::Short))?;
        if let Some(reason) = self.fault_of(page, &header) {
            return Err(Failed::Stop(reason));
        }
        // The timeline never falls from one page to the next.
        if page > self.newest.0 {
            if header.timeline < self.newest.1 {
                return Err(Failed::Stop(Reason::OtherTimeline(header.timeline)));
            }
            self.newest = (page, header.timeline);
        }
        self.held = Some((page, header));
        Ok(header)
    }

    /// What is wrong with a page's header.
    fn fault_of(&self, page: Lsn, header: &PageHeader) -> Option<Reason> {
        let identity = &self.identity;
        let is_first = identity.size.start_of(page) == page;
        let is_here = header.address == u64::from(page);
        if header.magic != identity.magic {
            return match is_here && header.address > 0 {
                true => Some(Reason::OtherMagic(header.magic)),
                false => Some(Reason::NoPage),
            };
        }
        if !header.has_known_flags() {
            return Some(Reason::NoPage);
        }
        match header.long {
            Some(long)
                if long.system != u64::from(identity.system)
                    || u64::from(long.segment_bytes) != identity.size.bytes()
                    || u64::from(long.page_bytes) != PAGE =>
            {
                return Some(Reason::OtherCluster);
            }
            None if is_first => return Some(Reason::NoPage),
            _ => {}
        }
        if !is_here {
            return Some(Reason::OtherPage(Lsn::from(header.address)));
        }
        let newest = self.pages.timeline();
        newest
            .filter(|file| header.timeline > file.get())
            .map(|file| Reason::NewerTimeline {
                page: header.timeline,
                file,
            })
    }

    /// Finds the next record and checks that it is whole, but for its checksum.
    fn find(&mut self) -> Result<Found, Failed> {
        let mut start = self.next;
        // A record that was given up is replaced by another, at the page that it was to go on.
        loop {
            match self.collect(start)? {
                Ok(found) => return Ok(found),
                Err(page) => start = page,
            }
        }
    }

    /// The record at `start`; the page on which it was given up if it was.
    fn collect(&mut self, start: Lsn) -> Result<Result<Found, Lsn>, Failed> {
        let page = floor(start);
        let header = self.load(page, HEADER)?;
        let mut offset = within_page(start);
        let mut start = start;
        if offset == 0 {
            offset = header.length();
            start = plus(page, offset as u64);
        } else if offset < header.length() {
            return Err(Failed::Stop(Reason::Nothing));
        }
        if header.is_continued() && offset == header.length() {
            return Err(Failed::Stop(Reason::NotContinued));
        }
        let rest = self.page.get(offset..).unwrap_or_default();
        let Some(length) = rest
            .first_chunk::<4>()
            .map(|first| u32::from_ne_bytes(*first))
        else {
            return Err(Failed::Stop(Reason::Nothing));
        };
        if length == 0 {
            return Err(Failed::Stop(Reason::Nothing));
        }
        if (length as usize) < HEADER {
            return Err(Fault::Length(length).into());
        }
        let length = length as usize;
        if rest.len() >= HEADER {
            let header = Header::parse(rest, start, self.before)?;
            if length <= rest.len() {
                return Ok(Ok(Found {
                    start,
                    end: plus(start, (length as u64).next_multiple_of(8)),
                    header,
                    within: Some(offset..offset + length),
                }));
            }
        }
        self.record.clear();
        self.record.extend_from_slice(rest);
        self.collect_rest(start, length)
    }

    /// The rest of a record that goes on after its first page.
    fn collect_rest(&mut self, start: Lsn, length: usize) -> Result<Result<Found, Lsn>, Failed> {
        let mut page = floor(start);
        let mut header = None;
        loop {
            page = plus(page, PAGE);
            let continued = self.load(page, HEADER)?;
            if continued.is_overwritten() {
                return Ok(Err(page));
            }
            let left = length.saturating_sub(self.record.len());
            if !continued.is_continued() || continued.continued as usize != left || left == 0 {
                return Err(Failed::Stop(Reason::NotContinued));
            }
            let from = continued.length();
            let taken = left.min(PAGE_BYTES - from);
            let bytes = self.page.get(from..from + taken).unwrap_or_default();
            self.record.extend_from_slice(bytes);
            let checked = match header {
                Some(checked) => checked,
                None => Header::parse(&self.record, start, self.before)?,
            };
            if taken == left {
                return Ok(Ok(Found {
                    start,
                    end: plus(page, (from + taken).next_multiple_of(8) as u64),
                    header: checked,
                    within: None,
                }));
            }
            header = Some(checked);
        }
    }
}

/// The start of the page that holds the byte at `lsn`.
pub(crate) fn floor(lsn: Lsn) -> Lsn {
    Lsn::from(u64::from(lsn) - u64::from(lsn) % PAGE)
}

/// The place of a byte in its page.
fn within_page(lsn: Lsn) -> usize {
    // Below PAGE.
    usize::try_from(u64::from(lsn) % PAGE).unwrap_or_default()
}

fn plus(lsn: Lsn, bytes: u64) -> Lsn {
    Lsn::from(u64::from(lsn).saturating_add(bytes))
}

/// Where the next record may begin: after a switch, in the next segment.
fn after(record: &Record, size: SegmentSize) -> Lsn {
    match (record.header.manager, record.operation()) {
        (XLOG, SWITCH) => size.round_up(record.end),
        _ => record.end,
    }
}
