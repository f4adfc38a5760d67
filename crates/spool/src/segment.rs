//! The spool's files.
//!
//! A segment is a file `SEQUENCE-POSITION.spool`, both in hexadecimal: its number, counted
//! from 1, and the position in the log of its first frame. Numbers are little-endian.
//!
//! ```text
//! header   magic 8, version u32, zero u32, sequence u64, group start u64, position u64,
//!          received u64, open key u64, bytes of the segment before u64, crc32c u32, zero u32
//! record   kind u8, flags u8, zero u16, length u32, position u64, first key u64,
//!          last key u64, last end u64, crc32c of the payload u32, crc32c of the above u32
//!          payload
//! record   …
//! ```
//!
//! - *received* is the end of the last whole unit, or what was covered after it, before this
//!   segment; *open key* is the key of the unit that is still arriving there, or 0. Every
//!   unit that begins in this segment has at least [`SegmentHeader::first_lsn`] as its key.
//! - A record's *position* is that of its first frame byte; only `Frames` and `Piece` have
//!   frame bytes. *First* and *last key* are those of the units that begin in it, *last end*
//!   that of the last unit that ends in it; 0 is none. For `Cover` the last end is the LSN
//!   that is covered.
//! - `Frames` holds whole frames; a frame longer than [`CHUNK_BYTES`] comes in `Piece`s of
//!   its own. `Schema` records follow the header: what is in force there. With flag
//!   `OPEN` a unit is still open after the record, with `SCHEMA` some of its frames describe
//!   tables or types, with `SESSION` an upstream session begins with it, so that what was in
//!   force before need not be known after it; with `MORE` the frame goes on.
//! - A record never holds the start of a unit that does not end in it unless that unit's
//!   Begin is its first frame. So the log can be cut between records.
//! - Checksums of a record are seeded with the segment's number, so that a block which
//!   landed in the wrong file is not mistaken for one of this file.
//!
//! What damage means:
//! - A segment is called `*.new` until it and all segments before it were durable once. So
//!   nothing in such a file was acknowledged; it is removed.
//! - A segment that has its name had a durable header and schema. If they cannot be read,
//!   that is damage, never an interrupted write. Likewise the end of a segment that another
//!   one follows.
//! - The last segment may end in a torn or missing record: what was not durable when the
//!   machine stopped. It is cut there, and further back to the end of the last whole unit, and
//!   what could not be read is kept in `*.damaged`. Where units would be missing then that the
//!   file `durable` says were durable ([`super::mark`]), it is damage: nothing is cut, and the
//!   log goes on in a segment behind it, which begins where `durable` stands.
//! - Anywhere else a record that cannot be read, a length that differs from what the next
//!   segment says, or a missing segment is `Corrupt`: units from there up to the next
//!   segment cannot be read; those before and behind can.

use bytes::Bytes;
use lockstep_wire::Lsn;

use super::position::LogPosition;

/// Most bytes of a record's payload, and of one piece of memory in the cache.
pub const CHUNK_BYTES: usize = 256 * 1024;

/// Bytes of a segment's header.
pub(super) const SEGMENT_HEADER: usize = 72;

/// Bytes of a record's header.
pub(super) const RECORD_HEADER: usize = 48;

/// Bytes of the longest record.
pub(super) const MOST_RECORD: usize = RECORD_HEADER + CHUNK_BYTES;

const MAGIC: [u8; 8] = *b"LSspool\n";
const VERSION: u32 = 1;
const SUFFIX: &str = ".spool";
const UNFINISHED: &str = ".new";

/// A segment's first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    /// Number, from 1.
    pub sequence: u64,
    /// Where the log began.
    pub group_start: Lsn,
    /// Position of the first frame.
    pub position: LogPosition,
    /// End of the last whole unit, or cover, before.
    pub received: Lsn,
    /// Key of the unit that is open at the start.
    pub open: Option<Lsn>,
    /// Length of the segment before; 0 if there is none.
    pub previous_bytes: u64,
}

/// Why something is no segment's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoHeader {
    Damaged(&'static str),
    /// The header is one of another version of this format. Every version keeps this header's
    /// length, its first twelve bytes and its checksum.
    Version(u32),
}

impl SegmentHeader {
    /// Every unit that begins in this segment or later has at least this key, every earlier
    /// one a lower key.
    pub fn first_lsn(&self) -> Lsn {
        match self.open {
            Some(key) => Lsn::from(u64::from(key).saturating_add(1)),
            None => self.received,
        }
    }

    pub fn encode(&self) -> [u8; SEGMENT_HEADER] {
        let mut out = Writer::<SEGMENT_HEADER>::new();
        out.put(&MAGIC);
        out.u32(VERSION);
        out.u32(0);
        out.u64(self.sequence);
        out.u64(self.group_start.into());
        out.u64(self.position.into());
        out.u64(self.received.into());
        out.u64(self.open.unwrap_or_default().into());
        out.u64(self.previous_bytes);
        let crc = crc32c::crc32c(out.written());
        out.u32(crc);
        out.bytes
    }

    /// What is wrong with it, if it is none.
    pub fn decode(bytes: &[u8; SEGMENT_HEADER]) -> Result<Self, NoHeader> {
        let mut fields = Fields(bytes);
        if fields.array::<8>() != MAGIC {
            return Err(NoHeader::Damaged(
                "it does not begin as a spool segment does",
            ));
        }
        let version = fields.u32();
        let zero = fields.u32();
        let header = Self {
            sequence: fields.u64(),
            group_start: fields.lsn(),
            position: LogPosition::from(fields.u64()),
            received: fields.lsn(),
            open: Some(fields.lsn()).filter(|lsn| lsn.is_valid()),
            previous_bytes: fields.u64(),
        };
        let covered = bytes.len() - fields.0.len();
        let crc = crc32c::crc32c(bytes.get(..covered).unwrap_or_default());
        match fields.u32() == crc && fields.u32() == 0 && zero == 0 {
            true if version == VERSION => Ok(header),
            true => Err(NoHeader::Version(version)),
            false => Err(NoHeader::Damaged("its header has a wrong checksum")),
        }
    }
}

/// Name of a segment's file.
pub(super) fn file_name(sequence: u64, position: LogPosition) -> String {
    format!("{sequence:08x}-{:016x}{SUFFIX}", u64::from(position))
}

/// Name of a segment's file while it is being prepared.
pub(super) fn unfinished_name(sequence: u64, position: LogPosition) -> String {
    file_name(sequence, position) + UNFINISHED
}

/// What a file's name says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    Segment {
        sequence: u64,
        position: LogPosition,
    },
    Unfinished,
    Other,
}

pub(super) fn read_name(name: &str) -> Named {
    if name.ends_with(UNFINISHED) {
        return Named::Unfinished;
    }
    let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let parsed = name
        .strip_suffix(SUFFIX)
        .and_then(|stem| stem.split_once('-'))
        .and_then(|(sequence, position)| Some((number(sequence)?, number(position)?)));
    match parsed {
        // Only names as this module writes them.
        Some((sequence, position)) if name == file_name(sequence, position.into()) => {
            Named::Segment {
                sequence,
                position: position.into(),
            }
        }
        _ => Named::Other,
    }
}

/// What a record holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordKind {
    /// Whole frames.
    Frames,
    /// A part of one frame.
    Piece,
    /// Frames in force where the segment begins.
    Schema,
    /// Nothing; more is covered.
    Cover,
}

impl RecordKind {
    fn number(self) -> u8 {
        match self {
            Self::Frames => 1,
            Self::Piece => 2,
            Self::Schema => 3,
            Self::Cover => 4,
        }
    }

    fn from_number(number: u8) -> Option<Self> {
        [Self::Frames, Self::Piece, Self::Schema, Self::Cover]
            .into_iter()
            .find(|kind| kind.number() == number)
    }

    /// Whether its payload is a part of the log.
    pub fn is_stream(self) -> bool {
        matches!(self, Self::Frames | Self::Piece)
    }
}

/// What is known about some frames without a look at them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Marks {
    /// Key of the first unit that begins here; `0/0` if none does.
    pub first_key: Lsn,
    /// Key of the last unit that begins here; `0/0` if none does.
    pub last_key: Lsn,
    /// End of the last unit that ends here; `0/0` if none does.
    pub last_end: Lsn,
    /// A unit is open after it.
    pub open: bool,
    /// Some frames describe tables or types.
    pub schema: bool,
    /// An upstream session begins with it.
    pub session: bool,
    /// Whether the last frame goes on after this record.
    pub more: bool,
}

impl Marks {
    /// Marks of frames with these marks, followed by frames with `next`.
    pub fn then(self, next: Self) -> Self {
        let valid = |lsn: Lsn, other: Lsn| match lsn.is_valid() {
            true => lsn,
            false => other,
        };
        Self {
            first_key: valid(self.first_key, next.first_key),
            last_key: valid(next.last_key, self.last_key),
            last_end: valid(next.last_end, self.last_end),
            open: next.open,
            schema: self.schema || next.schema,
            session: self.session,
            more: next.more,
        }
    }
}

const OPEN: u8 = 1;
const SCHEMA: u8 = 2;
const SESSION: u8 = 4;
const MORE: u8 = 8;

/// A record's first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordHeader {
    pub kind: RecordKind,
    pub marks: Marks,
    /// Bytes of the payload.
    pub length: usize,
    /// Where its frames are in the log, or would be.
    pub position: LogPosition,
    /// Checksum of the payload.
    pub crc: u32,
}

impl RecordHeader {
    pub fn new(
        kind: RecordKind,
        marks: Marks,
        position: LogPosition,
        payload: &[u8],
        segment: u64,
    ) -> Self {
        Self {
            kind,
            marks,
            length: payload.len(),
            position,
            crc: crc32c::crc32c_append(seed(segment), payload),
        }
    }

    pub fn encode(&self, segment: u64) -> [u8; RECORD_HEADER] {
        let marks = &self.marks;
        let flags = [
            (marks.open, OPEN),
            (marks.schema, SCHEMA),
            (marks.session, SESSION),
            (marks.more, MORE),
        ];
        let mut out = Writer::<RECORD_HEADER>::new();
        out.put(&[self.kind.number()]);
        out.put(&[flags
            .iter()
            .filter(|(set, _)| *set)
            .map(|(_, flag)| flag)
            .sum()]);
        out.put(&[0; 2]);
        out.u32(u32::try_from(self.length).unwrap_or(u32::MAX));
        out.u64(self.position.into());
        out.u64(marks.first_key.into());
        out.u64(marks.last_key.into());
        out.u64(marks.last_end.into());
        out.u32(self.crc);
        let crc = crc32c::crc32c_append(seed(segment), out.written());
        out.u32(crc);
        out.bytes
    }

    /// None if it is not one.
    pub fn decode(bytes: &[u8; RECORD_HEADER], segment: u64) -> Option<Self> {
        let (checked, _) = bytes.split_last_chunk::<4>()?;
        let mut fields = Fields(bytes);
        let [kind, flags, zero_a, zero_b] = fields.array();
        let length = usize::try_from(fields.u32()).ok()?;
        let position = LogPosition::from(fields.u64());
        let marks = Marks {
            first_key: fields.lsn(),
            last_key: fields.lsn(),
            last_end: fields.lsn(),
            open: flags & OPEN != 0,
            schema: flags & SCHEMA != 0,
            session: flags & SESSION != 0,
            more: flags & MORE != 0,
        };
        let header = Self {
            kind: RecordKind::from_number(kind)?,
            marks,
            length,
            position,
            crc: fields.u32(),
        };
        let right = fields.u32() == crc32c::crc32c_append(seed(segment), checked)
            && flags & !(OPEN | SCHEMA | SESSION | MORE) == 0
            && (zero_a, zero_b) == (0, 0)
            && length <= CHUNK_BYTES;
        right.then_some(header)
    }

    /// Whether `payload` is what was written.
    pub fn holds(&self, payload: &[u8], segment: u64) -> bool {
        crc32c::crc32c_append(seed(segment), payload) == self.crc
    }

    /// Bytes of the log that it holds.
    pub fn stream_bytes(&self) -> usize {
        match self.kind.is_stream() {
            true => self.length,
            false => 0,
        }
    }

    /// Bytes of the whole record.
    pub fn record_bytes(&self) -> u64 {
        (RECORD_HEADER + self.length) as u64
    }
}

/// Where checksums of a segment's records begin.
fn seed(segment: u64) -> u32 {
    crc32c::crc32c(&segment.to_le_bytes())
}

/// A record as it was read.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub header: RecordHeader,
    pub payload: Bytes,
    /// Offset in the file of what follows it.
    pub next: u64,
}

/// Fills a header front to back.
struct Writer<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Writer<N> {
    fn new() -> Self {
        Self {
            bytes: [0; N],
            at: 0,
        }
    }

    fn put(&mut self, field: &[u8]) {
        if let Some(place) = self.bytes.get_mut(self.at..self.at + field.len()) {
            place.copy_from_slice(field);
            self.at += field.len();
        }
    }

    fn u32(&mut self, number: u32) {
        self.put(&number.to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.put(&number.to_le_bytes());
    }

    fn written(&self) -> &[u8] {
        self.bytes.get(..self.at).unwrap_or_default()
    }
}

/// Reads a header front to back; zeros past its end, which no checksum lets pass.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk::<N>() {
            Some((field, rest)) => {
                self.0 = rest;
                *field
            }
            None => [0; N],
        }
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    fn lsn(&mut self) -> Lsn {
        Lsn::from(self.u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment() -> SegmentHeader {
        SegmentHeader {
            sequence: 7,
            group_start: Lsn::from(0x10),
            position: LogPosition::from(0xABCD),
            received: Lsn::from(0x2000),
            open: Some(Lsn::from(0x2100)),
            previous_bytes: 4711,
        }
    }

    fn record() -> RecordHeader {
        let marks = Marks {
            first_key: Lsn::from(1),
            last_key: Lsn::from(2),
            last_end: Lsn::from(3),
            open: true,
            schema: false,
            session: true,
            more: false,
        };
        RecordHeader::new(
            RecordKind::Frames,
            marks,
            LogPosition::from(9),
            b"payload",
            7,
        )
    }

    #[test]
    fn headers_come_back_as_they_were_written() {
        assert_eq!(SegmentHeader::decode(&segment().encode()), Ok(segment()));
        let closed = SegmentHeader {
            open: None,
            ..segment()
        };
        assert_eq!(SegmentHeader::decode(&closed.encode()), Ok(closed));
        assert_eq!(segment().first_lsn(), Lsn::from(0x2101));
        assert_eq!(closed.first_lsn(), Lsn::from(0x2000));
        assert_eq!(RecordHeader::decode(&record().encode(7), 7), Some(record()));
        assert_eq!(RecordHeader::decode(&record().encode(7), 8), None);
        assert!(record().holds(b"payload", 7));
        assert!(!record().holds(b"payloac", 7));
        assert!(!record().holds(b"payload", 6));
    }

    #[test]
    fn a_header_with_any_bit_changed_is_refused() {
        for bit in 0..SEGMENT_HEADER * 8 {
            let mut bytes = segment().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&bytes).is_err(), "bit {bit}");
        }
        for bit in 0..RECORD_HEADER * 8 {
            let mut bytes = record().encode(7);
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RecordHeader::decode(&bytes, 7), None, "bit {bit}");
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        let name = file_name(0x1F, LogPosition::from(0xABC));
        assert_eq!(name, "0000001f-0000000000000abc.spool");
        assert_eq!(
            read_name(&name),
            Named::Segment {
                sequence: 0x1F,
                position: LogPosition::from(0xABC)
            }
        );
        assert_eq!(
            read_name(&unfinished_name(1, LogPosition::START)),
            Named::Unfinished
        );
        for other in [
            "lock",
            "1-2.spool",
            "0000001F-0000000000000abc.spool",
            ".spool",
            "-.spool",
        ] {
            assert_eq!(read_name(other), Named::Other, "{other}");
        }
    }
}
