//! Pages as bytes: the header, line pointers, and the access method that a page belongs to.
//!
//! Nothing on a page is trusted: every access is checked. A page whose header contradicts
//! itself is [`PageKind::Invalid`] and is compared without a mask of its contents.

use std::fmt;
use std::ops::Range;

use lockstep_wire::Lsn;

use crate::oracle::Fork;

pub const PAGE_SIZE: usize = 8192;
pub const HEADER_SIZE: usize = 24;
/// Bytes in the header of a heap tuple, without its null bitmap.
pub const TUPLE_HEADER_SIZE: usize = 23;

/// Offsets in the header.
pub(crate) mod header {
    pub const CHECKSUM: usize = 8;
    pub const FLAGS: usize = 10;
    pub const LOWER: usize = 12;
    pub const UPPER: usize = 14;
    pub const SPECIAL: usize = 16;
    pub const PRUNE_XID: usize = 20;
}

/// First word of the special area in block 0 of a sequence.
const SEQUENCE_MAGIC: u32 = 0x1717;

/// The access method or kind of relation that a page belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// All zeros, or initialised and never used.
    New,
    /// A page of a table, including TOAST tables.
    Heap,
    /// A sequence's only page.
    Sequence,
    Btree,
    Hash,
    Gist,
    Spgist,
    Gin,
    Brin,
    /// A page of an access method that is not built in.
    Other,
    FreeSpaceMap,
    VisibilityMap,
    /// The header contradicts itself.
    Invalid,
}

impl fmt::Display for PageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::New => "new",
            Self::Heap => "heap",
            Self::Sequence => "sequence",
            Self::Btree => "btree",
            Self::Hash => "hash",
            Self::Gist => "gist",
            Self::Spgist => "spgist",
            Self::Gin => "gin",
            Self::Brin => "brin",
            Self::Other => "other",
            Self::FreeSpaceMap => "free space map",
            Self::VisibilityMap => "visibility map",
            Self::Invalid => "invalid",
        })
    }
}

/// The 16-bit number at `offset`, 0 beyond the page's end.
pub(crate) fn u16_at(page: &[u8], offset: usize) -> u16 {
    page.get(offset..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |bytes| u16::from_ne_bytes(*bytes))
}

/// The 32-bit number at `offset`, 0 beyond the page's end.
pub(crate) fn u32_at(page: &[u8], offset: usize) -> u32 {
    page.get(offset..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// The 64-bit number at `offset`, 0 beyond the page's end.
pub(crate) fn i64_at(page: &[u8], offset: usize) -> i64 {
    page.get(offset..)
        .and_then(|rest| rest.first_chunk())
        .map_or(0, |bytes| i64::from_ne_bytes(*bytes))
}

/// The page's LSN: the end of the last record that set it.
pub fn lsn(page: &[u8]) -> Lsn {
    Lsn::from(u64::from(u32_at(page, 0)) << 32 | u64::from(u32_at(page, 4)))
}

pub fn is_zero(page: &[u8]) -> bool {
    page.iter().all(|&byte| byte == 0)
}

/// The offsets of a page's parts, from a header that does not contradict itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Start of the unused space, end of the line pointers.
    pub lower: usize,
    /// End of the unused space, start of the items.
    pub upper: usize,
    /// Start of the special area, end of the items.
    pub special: usize,
}

impl Layout {
    /// The layout that the header states, unless it contradicts itself.
    pub fn of(page: &[u8]) -> Option<Self> {
        let layout = Self {
            lower: u16_at(page, header::LOWER).into(),
            upper: u16_at(page, header::UPPER).into(),
            special: u16_at(page, header::SPECIAL).into(),
        };
        let sound = HEADER_SIZE <= layout.lower
            && layout.lower <= layout.upper
            && layout.upper <= layout.special
            && layout.special <= page.len()
            && layout.special % 8 == 0;
        sound.then_some(layout)
    }

    /// The number of line pointers.
    pub fn line_pointers(&self) -> u16 {
        u16::try_from((self.lower - HEADER_SIZE) / 4).unwrap_or(0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinePointer {
    pub offset: usize,
    /// Unused 0, normal 1, redirect 2, dead 3.
    pub flags: u8,
    pub length: usize,
}

impl LinePointer {
    /// Offset of line pointer `number` (from 1).
    pub fn place(number: u16) -> usize {
        HEADER_SIZE + 4 * usize::from(number.saturating_sub(1))
    }

    /// Line pointer `number` (from 1).
    pub fn at(page: &[u8], number: u16) -> Self {
        let word = u32_at(page, Self::place(number));
        Self {
            offset: (word & 0x7fff) as usize,
            flags: (word >> 15 & 3) as u8,
            length: (word >> 17) as usize,
        }
    }

    /// The range of the item's bytes, if it has any and they lie between `upper` and `special`.
    pub fn item(&self, layout: &Layout) -> Option<Range<usize>> {
        let item = self.offset..self.offset + self.length;
        (self.length > 0
            && self.flags != 2
            && item.start >= layout.upper
            && item.end <= layout.special)
            .then_some(item)
    }
}

/// Finds out which access method the page belongs to, from its special area.
pub fn kind(page: &[u8], fork: Fork, block: u32) -> PageKind {
    if is_zero(page) {
        return PageKind::New;
    }
    let Some(layout) = Layout::of(page) else {
        return PageKind::Invalid;
    };
    match fork {
        Fork::FreeSpace => return PageKind::FreeSpaceMap,
        Fork::Visibility => return PageKind::VisibilityMap,
        Fork::Main | Fork::Init => {}
    }
    let body = page.get(HEADER_SIZE..layout.special).unwrap_or_default();
    if lsn(page) == Lsn::from(0) && layout.lower == HEADER_SIZE && is_zero(body) {
        return PageKind::New;
    }
    let mark = u16_at(page, page.len() - 2);
    match (page.len() - layout.special, mark) {
        (0, _) => PageKind::Heap,
        (16, 0xff80) => PageKind::Hash,
        (16, 0xff81) => PageKind::Gist,
        (16, 0..=0xff7f) => PageKind::Btree,
        (8, 0xff82) => PageKind::Spgist,
        (8, 0xf091..=0xf093) => PageKind::Brin,
        // Block 0 of a GIN index is its metapage. Its flags differ from a sequence's mark.
        (8, 0) if block == 0 && u32_at(page, layout.special) == SEQUENCE_MAGIC => {
            PageKind::Sequence
        }
        (8, 0..=0x1ff) => PageKind::Gin,
        _ => PageKind::Other,
    }
}

/// A part of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A field of the header.
    Header(&'static str),
    /// The line pointer with this number, from 1.
    LinePointer(u16),
    /// The item of the line pointer with this number, from 1.
    Tuple(u16),
    Special,
    Unused,
    Contents,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(field) => write!(f, "header, {field}"),
            Self::LinePointer(number) => write!(f, "line pointer {number}"),
            Self::Tuple(number) => write!(f, "tuple {number}"),
            Self::Special => f.write_str("special area"),
            Self::Unused => f.write_str("unused space"),
            Self::Contents => f.write_str("contents"),
        }
    }
}

impl Place {
    /// The part of this page at `offset`.
    pub fn of(page: &[u8], kind: PageKind, offset: usize) -> Self {
        const FIELDS: [(usize, &str); 8] = [
            (8, "pd_lsn"),
            (10, "pd_checksum"),
            (12, "pd_flags"),
            (14, "pd_lower"),
            (16, "pd_upper"),
            (18, "pd_special"),
            (20, "pd_pagesize_version"),
            (24, "pd_prune_xid"),
        ];
        if let Some((_, field)) = FIELDS.iter().find(|(end, _)| offset < *end) {
            return Self::Header(field);
        }
        let Some(layout) = Layout::of(page) else {
            return Self::Contents;
        };
        let items = !matches!(
            kind,
            PageKind::FreeSpaceMap | PageKind::VisibilityMap | PageKind::New | PageKind::Invalid
        );
        if offset >= layout.special {
            return Self::Special;
        }
        if !items {
            return Self::Contents;
        }
        if offset < layout.lower {
            return Self::LinePointer(u16::try_from((offset - HEADER_SIZE) / 4 + 1).unwrap_or(0));
        }
        if offset < layout.upper {
            return Self::Unused;
        }
        (1..=layout.line_pointers())
            .find(|&number| {
                LinePointer::at(page, number)
                    .item(&layout)
                    .is_some_and(|item| item.contains(&offset))
            })
            .map_or(Self::Contents, Self::Tuple)
    }
}
