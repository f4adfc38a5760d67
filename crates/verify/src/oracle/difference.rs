//! Differences, and how they are displayed.

use std::fmt;

use lockstep_wire::Lsn;

use crate::oracle::files::RelationFork;
use crate::oracle::page::{PageKind, Place};
use crate::side::Side;

/// How two sides differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The pages differ where they must not.
    Content {
        /// Offset of the first differing byte after the page's LSN, or in the LSN if no other
        /// byte differs.
        offset: usize,
        /// A's byte, after masking.
        a: u8,
        /// B's byte, after masking.
        b: u8,
        /// The part of the page at this offset.
        place: Place,
    },
    /// The pages belong to different access methods, or only one of them is new.
    PageKind { a: PageKind, b: PageKind },
    /// The page lacks the change of a record that its side has replayed.
    Behind {
        side: Side,
        /// End of the record: the page's LSN should be this or higher.
        record: Lsn,
    },
    /// The page's LSN is beyond the position of its side.
    Future { side: Side },
    /// One side lacks pages that are not empty on the other.
    Missing {
        side: Side,
        /// How many pages, from the difference's block on.
        pages: u64,
    },
    /// The file ends in the middle of a page.
    PartialPage { side: Side },
    /// A file that belongs to no relation is different or missing.
    File,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The file's path in the data folder; for a relation without the segment number.
    pub file: String,
    /// The relation and fork; None for another file.
    pub fork: Option<RelationFork>,
    /// The relation's name, if a running server could be asked.
    pub name: Option<String>,
    /// The block number in the fork.
    pub block: Option<u32>,
    /// LSN of A's page, None if there is no page.
    pub lsn_a: Option<Lsn>,
    /// LSN of B's page, None if there is no page.
    pub lsn_b: Option<Lsn>,
    pub what: What,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Content {
                offset,
                a,
                b,
                place,
            } => {
                write!(f, "byte {offset} ({place}) is {a:02x} in A, {b:02x} in B")
            }
            Self::PageKind { a, b } => write!(f, "a page of kind {a} in A, {b} in B"),
            Self::Behind { side, record } => {
                write!(
                    f,
                    "{side} lacks the effect of the record that ends at {record}"
                )
            }
            Self::Future { side } => write!(f, "from the future in {side}"),
            Self::Missing { side, pages: 1 } => write!(f, "missing in {side}"),
            Self::Missing { side, pages } => {
                write!(f, "missing in {side}, with all {pages} pages from here on")
            }
            Self::PartialPage { side } => write!(f, "the file ends amid a page in {side}"),
            Self::File => f.write_str("the file differs"),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(name) = &self.name {
            write!(f, " ({name})")?;
        }
        if let Some(fork) = &self.fork {
            write!(f, ", fork {}", fork.fork)?;
        }
        if let Some(block) = self.block {
            write!(f, ", block {block}")?;
            let lsn = |lsn: &Option<Lsn>| lsn.map_or("none".to_owned(), |lsn| lsn.to_string());
            write!(
                f,
                ", LSN {} in A, {} in B",
                lsn(&self.lsn_a),
                lsn(&self.lsn_b)
            )?;
        }
        write!(f, ": {}", self.what)
    }
}
