//! What differs, and how it is told.

use std::fmt;

use lockstep_wire::Lsn;

use crate::oracle::files::RelationFork;
use crate::oracle::page::{Kind, Place};

/// One of the two sides, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The first.
    A,
    /// The second.
    B,
    /// Both alike.
    Both,
}

impl Side {
    /// The sides for which something holds.
    pub(crate) fn of(a: bool, b: bool) -> Option<Self> {
        match (a, b) {
            (true, true) => Some(Self::Both),
            (true, false) => Some(Self::A),
            (false, true) => Some(Self::B),
            (false, false) => None,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "A",
            Self::B => "B",
            Self::Both => "A and B",
        })
    }
}

/// In what way two sides differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The pages differ where they must not.
    Content {
        /// Offset of the first differing byte, of those beyond the LSN if there is one.
        offset: usize,
        /// A's byte, masked.
        a: u8,
        /// B's byte, masked.
        b: u8,
        /// What lies there.
        place: Place,
    },
    /// The pages are of different access methods, or one is new.
    Kind {
        /// A's.
        a: Kind,
        /// B's.
        b: Kind,
    },
    /// The page lacks the effect of a record that its side has replayed.
    Behind {
        /// Whose page.
        side: Side,
        /// Where the record ends: the LSN that the page should have at least.
        record: Lsn,
    },
    /// The page is newer than its side.
    Future {
        /// Whose page.
        side: Side,
    },
    /// Pages that one side lacks and that are not empty.
    Missing {
        /// Who lacks them.
        side: Side,
        /// How many, from the block of the difference on.
        pages: u64,
    },
    /// The file ends amid a page.
    PartialPage {
        /// Whose file.
        side: Side,
    },
    /// A file other than a relation's is different or missing.
    File,
}

/// A difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The file's path in the data folder, without segment for a relation.
    pub file: String,
    /// Which relation and fork it is, None for another file.
    pub fork: Option<RelationFork>,
    /// The relation's name, where a server could be asked.
    pub name: Option<String>,
    /// The block, from the start of the fork.
    pub block: Option<u32>,
    /// LSN of A's page, None if there is no page.
    pub lsn_a: Option<Lsn>,
    /// LSN of B's page, None if there is no page.
    pub lsn_b: Option<Lsn>,
    /// In what way.
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
            Self::Kind { a, b } => write!(f, "a page of kind {a} in A, {b} in B"),
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
