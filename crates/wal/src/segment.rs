//! WAL segments: their file names, page headers and bytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use lockstep_wire::{Lsn, Timeline};

/// Bytes of a WAL page. Debian's packages use no other size.
pub const PAGE: u64 = 8192;

/// Bytes of a page's header, and of the long header of a segment's first page.
pub const SHORT_HEADER: usize = 24;
pub const LONG_HEADER: usize = 40;

/// Flags in a header's `xlp_info`: the page begins with the rest of a record; the header is a long
/// one; a record that was to go on here was given up; and all that there are.
const IS_CONTINUED: u16 = 0x0001;
const IS_LONG: u16 = 0x0002;
const IS_OVERWRITTEN: u16 = 0x0008;
const ALL_FLAGS: u16 = 0x000F;

/// Size of a segment: a power of two from 1 MB to 1 GB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentSize(u32);

impl SegmentSize {
    /// The size of `bytes` bytes; None if a segment cannot have that size.
    pub fn new(bytes: u32) -> Option<Self> {
        ((1 << 20..=1 << 30).contains(&bytes) && bytes.is_power_of_two()).then_some(Self(bytes))
    }

    pub fn bytes(self) -> u64 {
        u64::from(self.0)
    }

    /// The size as `SHOW wal_segment_size` displays it.
    pub fn shown(self) -> String {
        match self.0 >> 20 {
            1024 => "1GB".to_owned(),
            megabytes => format!("{megabytes}MB"),
        }
    }

    /// Start of the segment that holds the byte at `lsn`.
    pub fn start_of(self, lsn: Lsn) -> Lsn {
        let position = u64::from(lsn);
        Lsn::from(position - position % self.bytes())
    }

    /// `lsn`, or the start of the next segment if it is not the start of one.
    pub fn round_up(self, lsn: Lsn) -> Lsn {
        let start = self.start_of(lsn);
        match start == lsn {
            true => lsn,
            false => Lsn::from(u64::from(start).saturating_add(self.bytes())),
        }
    }

    /// Name of the file that holds the byte at `lsn`.
    pub fn file_name(self, timeline: Timeline, lsn: Lsn) -> String {
        let number = u64::from(lsn) / self.bytes();
        let each = 0x1_0000_0000 / self.bytes();
        format!(
            "{:08X}{:08X}{:08X}",
            timeline.get(),
            number / each,
            number % each
        )
    }

    /// Where the segment of a file of this name begins, and its timeline. None if no segment has
    /// the name.
    pub fn place_of(self, name: &str) -> Option<(Timeline, Lsn)> {
        let (timeline, high, low) = name_parts(name)?;
        let each = 0x1_0000_0000 / self.bytes();
        let number = (u64::from(low) < each).then_some(u64::from(high) * each + u64::from(low))?;
        Some((timeline, Lsn::from(number.checked_mul(self.bytes())?)))
    }

    /// Starts of the segments that hold the bytes from `from` up to `to`, `to` excluded.
    pub fn starts(self, from: Lsn, to: Lsn) -> impl Iterator<Item = Lsn> {
        let step = usize::try_from(self.bytes()).unwrap_or(usize::MAX);
        (u64::from(self.start_of(from))..u64::from(to))
            .step_by(step)
            .map(Lsn::from)
    }
}

/// The three numbers in the name of a segment's file.
pub fn name_parts(name: &str) -> Option<(Timeline, u32, u32)> {
    let digits = |byte: u8| byte.is_ascii_digit() || (b'A'..=b'F').contains(&byte);
    if name.len() != 24 || !name.bytes().all(digits) {
        return None;
    }
    let part = |at: usize| u32::from_str_radix(name.get(at..at + 8)?, 16).ok();
    Some((Timeline::new(part(0)?)?, part(8)?, part(16)?))
}

/// Name of a timeline's history file.
pub fn history_name(timeline: Timeline) -> String {
    format!("{:08X}.history", timeline.get())
}

/// The magic number (`xlp_magic`) of a major's WAL pages.
pub fn magic(major: u32) -> Option<u16> {
    match major {
        15 => Some(0xD110),
        16 => Some(0xD113),
        17 => Some(0xD116),
        18 => Some(0xD118),
        19 => Some(0xD122),
        _ => None,
    }
}

/// The major whose WAL pages have a magic number.
pub fn major_of(number: u16) -> Option<u32> {
    (15..=19).find(|&major| magic(major) == Some(number))
}

/// A page's header. It is written and read in the machine's byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageHeader {
    pub magic: u16,
    info: u16,
    pub timeline: u32,
    pub address: u64,
    /// Bytes that remain of a record that began on an earlier page (`xlp_rem_len`).
    pub continued: u32,
    /// Only on a segment's first page.
    pub long: Option<LongPart>,
}

/// The part of a header that only a segment's first page has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LongPart {
    pub system: u64,
    pub segment_bytes: u32,
    pub page_bytes: u32,
}

impl PageHeader {
    pub fn parse(bytes: &[u8; LONG_HEADER]) -> Self {
        let info = u16::from_ne_bytes(part(bytes, 2));
        Self {
            magic: u16::from_ne_bytes(part(bytes, 0)),
            info,
            timeline: u32::from_ne_bytes(part(bytes, 4)),
            address: u64::from_ne_bytes(part(bytes, 8)),
            continued: u32::from_ne_bytes(part(bytes, 16)),
            long: (info & IS_LONG != 0).then(|| LongPart {
                system: u64::from_ne_bytes(part(bytes, 24)),
                segment_bytes: u32::from_ne_bytes(part(bytes, 32)),
                page_bytes: u32::from_ne_bytes(part(bytes, 36)),
            }),
        }
    }

    /// The page begins with the rest of a record.
    pub fn is_continued(&self) -> bool {
        self.info & IS_CONTINUED != 0
    }

    /// The record that was to go on here never came to an end.
    pub fn is_overwritten(&self) -> bool {
        self.info & IS_OVERWRITTEN != 0
    }

    pub fn has_known_flags(&self) -> bool {
        self.info & !ALL_FLAGS == 0
    }

    /// Bytes of the header.
    pub fn length(&self) -> usize {
        match self.long {
            Some(_) => LONG_HEADER,
            None => SHORT_HEADER,
        }
    }

    /// The end of the record that this page continues, or the page's start if it continues none:
    /// in both cases a record ends there. None if the record goes on after this page.
    fn record_end(&self) -> Option<u64> {
        if self.continued == 0 {
            return Some(self.address);
        }
        let length = self.length() as u64 + u64::from(self.continued).next_multiple_of(8);
        match length <= PAGE {
            true => self.address.checked_add(length),
            false => None,
        }
    }
}

/// `N` bytes from `at` on, with zeros after the end of `bytes`.
fn part<const N: usize>(bytes: &[u8; LONG_HEADER], at: usize) -> [u8; N] {
    let mut out = [0; N];
    for (place, byte) in out.iter_mut().zip(bytes.iter().skip(at)) {
        *place = *byte;
    }
    out
}

/// The end of a record of `length` bytes that starts at `start`. The headers of the pages that
/// it crosses are skipped; they do not count for `length`.
pub fn record_end(start: Lsn, length: u64, size: SegmentSize) -> Lsn {
    let mut at = u64::from(start);
    let mut left = length;
    loop {
        let room = PAGE - at % PAGE;
        if left <= room {
            return Lsn::from((at + left).next_multiple_of(8));
        }
        at += room;
        left -= room;
        at += match at % size.bytes() {
            0 => LONG_HEADER as u64,
            _ => SHORT_HEADER as u64,
        };
    }
}

/// Reads the bytes of one timeline's segments in a folder.
#[derive(Debug)]
pub struct SegmentReader {
    folder: PathBuf,
    timeline: Timeline,
    size: SegmentSize,
    /// The file that was read last, and the start of its segment.
    open: Option<(Lsn, File)>,
}

/// How many pages [`SegmentReader::record_end_before`] goes back.
const MOST_PAGES_BACK: usize = 16;

impl SegmentReader {
    pub fn new(folder: &Path, timeline: Timeline, size: SegmentSize) -> Self {
        Self {
            folder: folder.to_path_buf(),
            timeline,
            size,
            open: None,
        }
    }

    /// Fills `out` with the bytes from `lsn` on. They must lie in one segment.
    pub fn read(&mut self, lsn: Lsn, out: &mut [u8]) -> io::Result<()> {
        let start = self.size.start_of(lsn);
        let file = match self.open.take() {
            Some((open, file)) if open == start => file,
            _ => File::open(self.folder.join(self.size.file_name(self.timeline, lsn)))?,
        };
        let offset = u64::from(lsn) - u64::from(start);
        let (_, file) = self.open.insert((start, file));
        file.read_exact_at(out, offset)
    }

    /// The header of the page that starts at `lsn`.
    pub fn header(&mut self, lsn: Lsn) -> io::Result<PageHeader> {
        let mut bytes = [0; LONG_HEADER];
        self.read(lsn, &mut bytes)?;
        Ok(PageHeader::parse(&bytes))
    }

    /// The end of a record at or shortly before `at`; None if there is none in the last
    /// [`MOST_PAGES_BACK`] pages.
    pub fn record_end_before(&mut self, at: Lsn) -> Option<Lsn> {
        let at = u64::from(at);
        let mut page = at - at % PAGE;
        for _ in 0..MOST_PAGES_BACK {
            let header = self.header(Lsn::from(page)).ok()?;
            let end = match header.address == page {
                true => header.record_end(),
                false => return None,
            };
            if let Some(end) = end.filter(|&end| end <= at) {
                return Some(Lsn::from(end));
            }
            page = page.checked_sub(PAGE)?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: SegmentSize = SegmentSize(16 << 20);

    #[test]
    fn sizes_are_powers_of_two_from_1_mb_to_1_gb() {
        for bytes in [0, 1, 1 << 19, 3 << 20, 1 << 31] {
            assert_eq!(SegmentSize::new(bytes), None);
        }
        assert_eq!(SegmentSize::new(1 << 20).unwrap().shown(), "1MB");
        assert_eq!(SegmentSize::new(1 << 30).unwrap().shown(), "1GB");
    }

    #[test]
    fn names_are_as_the_server_makes_them() {
        for (bytes, timeline, lsn, name) in [
            (16 << 20, 1, "0/16B3748", "000000010000000000000001"),
            (16 << 20, 0xA, "12/FF000000", "0000000A00000012000000FF"),
            (1 << 20, 2, "1/FFFFFFFF", "000000020000000100000FFF"),
            (1 << 30, 1, "1/C0000000", "000000010000000100000003"),
        ] {
            let size = SegmentSize::new(bytes).unwrap();
            let timeline = Timeline::new(timeline).unwrap();
            let lsn: Lsn = lsn.parse().unwrap();
            assert_eq!(size.file_name(timeline, lsn), name);
            assert_eq!(size.place_of(name), Some((timeline, size.start_of(lsn))));
        }
        for name in [
            "000000010000000000000100",
            "00000000000000000000000A",
            "00000001000000000000000a",
            "0000000100000000000000",
            "00000002.history",
            "+0000001+0000000+000000A",
        ] {
            assert_eq!(SIZE.place_of(name), None, "{name}");
        }
        let starts: Vec<u64> = SIZE
            .starts(Lsn::from(0x100_0028), Lsn::from(0x300_0000))
            .map(u64::from)
            .collect();
        assert_eq!(starts, [0x100_0000, 0x200_0000]);
        assert_eq!(history_name(Timeline::new(2).unwrap()), "00000002.history");
    }

    #[test]
    fn records_end_behind_the_headers_of_the_pages_they_cross() {
        for (start, length, end) in [
            (0x100_0028, 30, 0x100_0048),
            // Up to the very end of a page, and one byte more.
            (0x100_1000, 0x1000, 0x100_2000),
            (0x100_1000, 0x1001, 0x100_2000 + 24 + 8),
            // Over a whole page.
            (0x100_1ff8, 8 + (8192 - 24) + 16, 0x100_4000 + 24 + 16),
            // Into the next segment.
            (0x1ff_fff8, 16, 0x200_0000 + 40 + 8),
        ] {
            assert_eq!(
                record_end(Lsn::from(start), length, SIZE),
                Lsn::from(end),
                "{start:x}"
            );
        }
    }

    #[test]
    fn a_page_says_where_the_record_before_it_ends() {
        let mut bytes = [0; LONG_HEADER];
        bytes[..2].copy_from_slice(&0xD110_u16.to_ne_bytes());
        bytes[8..16].copy_from_slice(&0x100_2000_u64.to_ne_bytes());
        assert_eq!(PageHeader::parse(&bytes).record_end(), Some(0x100_2000));
        bytes[16..20].copy_from_slice(&9_u32.to_ne_bytes());
        assert_eq!(
            PageHeader::parse(&bytes).record_end(),
            Some(0x100_2000 + 24 + 16)
        );
        bytes[16..20].copy_from_slice(&(8192_u32 - 24).to_ne_bytes());
        assert_eq!(PageHeader::parse(&bytes).record_end(), Some(0x100_4000));
        bytes[16..20].copy_from_slice(&(8192_u32 - 23).to_ne_bytes());
        assert_eq!(PageHeader::parse(&bytes).record_end(), None);
        bytes[2..4].copy_from_slice(&IS_LONG.to_ne_bytes());
        bytes[16..20].copy_from_slice(&8_u32.to_ne_bytes());
        bytes[24..32].copy_from_slice(&7_u64.to_ne_bytes());
        let header = PageHeader::parse(&bytes);
        assert_eq!(header.long.unwrap().system, 7);
        assert_eq!(header.record_end(), Some(0x100_2000 + 48));
    }
}
