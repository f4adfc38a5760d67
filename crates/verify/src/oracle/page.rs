//! Pages as bytes: header, line pointers, and which access method a page belongs to.
//!
//! Nothing on a page is trusted: every access is checked, and a header that contradicts
//! itself makes the page [`Kind::Invalid`], which is compared as it is.

use std::fmt;
use std::ops::Range;

use lockstep_wire::Lsn;

use crate::oracle::Fork;

/// Bytes in a page.
pub const PAGE_SIZE: usize = 8192;
/// Bytes in a page's header.
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

/// What the special area starts with in block 0 of a sequence.
const SEQUENCE_MAGIC: u32 = 0x1717;

/// Which access method a page belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Zero, or initialised and never used.
    New,
    /// A table's, TOAST included.
    Heap,
    /// A sequence's only page.
    Sequence,
    /// B-tree.
    Btree,
    /// Hash.
    Hash,
    /// GiST.
    Gist,
    /// SP-GiST.
    Spgist,
    /// GIN.
    Gin,
    /// BRIN.
    Brin,
    /// Of an access method that is not built in.
    Other,
    /// Free space map.
    FreeSpaceMap,
    /// Visibility map.
    VisibilityMap,
    /// The header contradicts itself.
    Invalid,
}

impl fmt::Display for Kind {
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

/// Up to where the last record that stamped the page reached.
pub fn lsn(page: &[u8]) -> Lsn {
    Lsn::from(u64::from(u32_at(page, 0)) << 32 | u64::from(u32_at(page, 4)))
}

/// Every byte is zero.
pub fn is_zero(page: &[u8]) -> bool {
    page.iter().all(|&byte| byte == 0)
}

/// Where the parts of a page with a plausible header are.
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

    /// How many line pointers fit below `lower`.
    pub fn line_pointers(&self) -> u16 {
        u16::try_from((self.lower - HEADER_SIZE) / 4).unwrap_or(0)
    }
}

/// A line pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinePointer {
    /// Offset of the item.
    pub offset: usize,
    /// Unused 0, normal 1, redirect 2, dead 3.
    pub flags: u8,
    /// Length of the item.
    pub length: usize,
}

impl LinePointer {
    /// Where line pointer `number` (from 1) lies.
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

    /// The item's bytes, if it has any and they lie where items may.
    pub fn item(&self, layout: &Layout) -> Option<Range<usize>> {
        let item = self.offset..self.offset + self.length;
        (self.length > 0
            && self.flags != 2
            && item.start >= layout.upper
            && item.end <= layout.special)
            .then_some(item)
    }
}

/// Which access method the page belongs to, from what the methods write into their special
/// areas.
pub fn kind(page: &[u8], fork: Fork, block: u32) -> Kind {
    if is_zero(page) {
        return Kind::New;
    }
    let Some(layout) = Layout::of(page) else {
        return Kind::Invalid;
    };
    match fork {
        Fork::FreeSpace => return Kind::FreeSpaceMap,
        Fork::Visibility => return Kind::VisibilityMap,
        Fork::Main | Fork::Init => {}
    }
    let body = page.get(HEADER_SIZE..layout.special).unwrap_or_default();
    if lsn(page) == Lsn::from(0) && layout.lower == HEADER_SIZE && is_zero(body) {
        return Kind::New;
    }
    let mark = u16_at(page, page.len() - 2);
    match (page.len() - layout.special, mark) {
        (0, _) => Kind::Heap,
        (16, 0xff80) => Kind::Hash,
        (16, 0xff81) => Kind::Gist,
        (16, 0..=0xff7f) => Kind::Btree,
        (8, 0xff82) => Kind::Spgist,
        (8, 0xf091..=0xf093) => Kind::Brin,
        // GIN's block 0 is its metapage, which has flags: no confusion.
        (8, 0) if block == 0 && u32_at(page, layout.special) == SEQUENCE_MAGIC => Kind::Sequence,
        (8, 0..=0x1ff) => Kind::Gin,
        _ => Kind::Other,
    }
}

/// What lies at a place of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A field of the header.
    Header(&'static str),
    /// A line pointer, from 1.
    LinePointer(u16),
    /// The item of a line pointer.
    Tuple(u16),
    /// The special area.
    Special,
    /// Unused space.
    Unused,
    /// Anything else.
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
    /// What lies at `offset` of this page.
    pub fn of(page: &[u8], kind: Kind, offset: usize) -> Self {
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
            Kind::FreeSpaceMap | Kind::VisibilityMap | Kind::New | Kind::Invalid
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
