//! A record of the WAL: its header, the blocks that it registers, its main data.
//!
//! [`Record::parse`] takes the bytes of a whole record and checks what the server checks when it
//! decodes one. No I/O, and nothing is allocated but the list of blocks, of which there are at
//! most 33.

use lockstep_wire::Lsn;

use crate::segment::PAGE;

/// Bytes of a record's header, and where its checksum is.
pub const HEADER: usize = 24;
const CRC_AT: usize = 20;

/// Highest number of a block in a record.
pub const MAX_BLOCK_ID: u8 = 32;

/// What stands in place of a block's number.
const MAIN_DATA_SHORT: u8 = 255;
const MAIN_DATA_LONG: u8 = 254;
const ORIGIN: u8 = 253;
const TOPLEVEL_XID: u8 = 252;

/// Flags of a block.
const FORK: u8 = 0x0F;
const HAS_IMAGE: u8 = 0x10;
const HAS_DATA: u8 = 0x20;
const WILL_INIT: u8 = 0x40;
const SAME_RELATION: u8 = 0x80;

/// Flags of an image.
const HAS_HOLE: u8 = 0x01;
const APPLY: u8 = 0x02;
const PGLZ: u8 = 0x04;
const LZ4: u8 = 0x08;
const ZSTD: u8 = 0x10;

/// Highest number of a built-in resource manager, and lowest of an extension's.
const LAST_BUILT_IN: u8 = 22;
const FIRST_CUSTOM: u8 = 128;

/// What is wrong with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("its length is {0}")]
    Length(u32),
    #[error("it names resource manager {0}, which does not exist")]
    Manager(u8),
    #[error("it names {0} as the record before it")]
    Previous(Lsn),
    #[error("its checksum is wrong")]
    Checksum,
    #[error("the lengths of its blocks and data do not add up")]
    Content,
}

/// A relation's files: tablespace, database, number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Relation {
    pub tablespace: u32,
    pub database: u32,
    pub number: u32,
}

/// A fork by its number: 0 is the main fork, 1 the free space map, 2 the visibility map.
pub type ForkNumber = u8;

/// How an image of a page is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    None,
    Pglz,
    Lz4,
    Zstd,
}

/// An image of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image {
    /// Bytes of it in the record.
    pub length: u16,
    pub hole_offset: u16,
    pub hole_length: u16,
    /// Replay restores it; else it is only compared (`wal_consistency_checking`).
    pub apply: bool,
    pub compression: Compression,
}

/// A block that a record registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    pub id: u8,
    pub relation: Relation,
    pub fork: ForkNumber,
    pub number: u32,
    pub image: Option<Image>,
    /// Replay begins with an empty page.
    pub will_init: bool,
    /// Bytes of the block's own data.
    pub data: u16,
}

impl Block {
    /// Replay reads the page as it is.
    pub fn is_read(&self) -> bool {
        !self.will_init && !self.is_restored()
    }

    /// Replay replaces the page by its image.
    pub fn is_restored(&self) -> bool {
        self.image.is_some_and(|image| image.apply)
    }
}

/// The fields of a record's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the record, this header included.
    pub length: u32,
    pub xid: u32,
    pub previous: Lsn,
    pub info: u8,
    pub manager: u8,
    pub crc: u32,
}

/// What is known of the record before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// The record before begins here.
    At(Lsn),
    /// Nothing, so any earlier position is right.
    Unknown,
}

impl Header {
    /// Parses the first [`HEADER`] bytes of a record that begins at `start`.
    pub fn parse(bytes: &[u8], start: Lsn, before: Before) -> Result<Self, Fault> {
        let mut cursor = Cursor(bytes);
        let mut fields = || {
            let header = Self {
                length: cursor.u32()?,
                xid: cursor.u32()?,
                previous: Lsn::from(u64::from_ne_bytes(cursor.take()?)),
                info: cursor.u8()?,
                manager: cursor.u8()?,
                crc: {
                    cursor.take::<2>()?;
                    cursor.u32()?
                },
            };
            Some(header)
        };
        let header = fields().ok_or(Fault::Content)?;
        if (header.length as usize) < HEADER {
            return Err(Fault::Length(header.length));
        }
        if header.manager > LAST_BUILT_IN && header.manager < FIRST_CUSTOM {
            return Err(Fault::Manager(header.manager));
        }
        let right = match before {
            Before::At(lsn) => header.previous == lsn,
            Before::Unknown => header.previous < start,
        };
        match right {
            true => Ok(header),
            false => Err(Fault::Previous(header.previous)),
        }
    }
}

/// A record that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record<'a> {
    pub start: Lsn,
    /// Where the next record may begin.
    pub end: Lsn,
    pub header: Header,
    /// Block references in the order of their numbers.
    pub blocks: Vec<Block>,
    pub main: &'a [u8],
}

impl<'a> Record<'a> {
    /// Parses the bytes of a whole record, whose header has been parsed.
    pub fn parse(header: Header, bytes: &'a [u8], start: Lsn, end: Lsn) -> Result<Self, Fault> {
        let body = bytes.get(HEADER..).ok_or(Fault::Content)?;
        let head = bytes.get(..CRC_AT).ok_or(Fault::Content)?;
        if crc32c::crc32c_append(crc32c::crc32c(body), head) != header.crc {
            return Err(Fault::Checksum);
        }
        let (blocks, main) = parts(body).ok_or(Fault::Content)?;
        Ok(Self {
            start,
            end,
            header,
            blocks,
            main,
        })
    }

    /// The operation: the part of `info` that belongs to the resource manager.
    pub fn operation(&self) -> u8 {
        self.header.info & 0xF0
    }

    pub fn image_bytes(&self) -> u32 {
        let images = self.blocks.iter().filter_map(|block| block.image);
        images.map(|image| u32::from(image.length)).sum()
    }

    /// Highest number of a block.
    pub fn max_block_id(&self) -> Option<u8> {
        self.blocks.last().map(|block| block.id)
    }
}

/// The blocks and the main data of a record without its header. Headers come first, each with the
/// length of what comes later; nothing may be left over.
fn parts(body: &[u8]) -> Option<(Vec<Block>, &[u8])> {
    let mut cursor = Cursor(body);
    let mut blocks: Vec<Block> = Vec::new();
    let mut relation = None;
    let mut main = 0_usize;
    let mut payload = 0_usize;
    while cursor.left() > payload {
        match cursor.u8()? {
            MAIN_DATA_SHORT => {
                main = usize::from(cursor.u8()?);
                payload = payload.checked_add(main)?;
                break;
            }
            MAIN_DATA_LONG => {
                main = usize::try_from(cursor.u32()?).ok()?;
                payload = payload.checked_add(main)?;
                break;
            }
            ORIGIN => {
                cursor.take::<2>()?;
            }
            TOPLEVEL_XID => {
                cursor.take::<4>()?;
            }
            id if id <= MAX_BLOCK_ID && blocks.last().is_none_or(|last| last.id < id) => {
                let block = block(&mut cursor, id, &mut relation)?;
                let image = block.image.map_or(0, |image| usize::from(image.length));
                payload = payload
                    .checked_add(image)?
                    .checked_add(usize::from(block.data))?;
                blocks.push(block);
            }
            _ => return None,
        }
    }
    if cursor.left() != payload {
        return None;
    }
    let begin = body.len().checked_sub(main)?;
    Some((blocks, body.get(begin..)?))
}

fn block(cursor: &mut Cursor, id: u8, last: &mut Option<Relation>) -> Option<Block> {
    let flags = cursor.u8()?;
    let data = cursor.u16()?;
    if (flags & HAS_DATA != 0) != (data != 0) {
        return None;
    }
    let image = match flags & HAS_IMAGE != 0 {
        true => Some(image(cursor)?),
        false => None,
    };
    if flags & SAME_RELATION == 0 {
        *last = Some(Relation {
            tablespace: cursor.u32()?,
            database: cursor.u32()?,
            number: cursor.u32()?,
        });
    }
    Some(Block {
        id,
        relation: (*last)?,
        fork: flags & FORK,
        number: cursor.u32()?,
        image,
        will_init: flags & WILL_INIT != 0,
        data,
    })
}

fn image(cursor: &mut Cursor) -> Option<Image> {
    let length = cursor.u16()?;
    let hole_offset = cursor.u16()?;
    let flags = cursor.u8()?;
    let compression = match flags & (PGLZ | LZ4 | ZSTD) {
        0 => Compression::None,
        PGLZ => Compression::Pglz,
        LZ4 => Compression::Lz4,
        _ => Compression::Zstd,
    };
    let is_compressed = compression != Compression::None;
    let page = PAGE as u16;
    let hole = flags & HAS_HOLE != 0;
    let hole_length = match (is_compressed, hole) {
        (true, true) => cursor.u16()?,
        (true, false) => 0,
        (false, _) => page.checked_sub(length)?,
    };
    let right = match hole {
        true => hole_offset != 0 && hole_length != 0 && length != page,
        false => hole_offset == 0 && hole_length == 0 && (is_compressed || length == page),
    };
    (right && !(is_compressed && length == page)).then_some(Image {
        length,
        hole_offset,
        hole_length,
        apply: flags & APPLY != 0,
        compression,
    })
}

/// Reads numbers in the machine's byte order, as the server writes them.
struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn left(&self) -> usize {
        self.0.len()
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }
}
