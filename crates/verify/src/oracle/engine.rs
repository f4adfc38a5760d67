//! The comparison. Both files of a segment are read side by side in large pieces. Pages are
//! masked only if their raw bytes differ.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;

use lockstep_lab::package::Package;
use lockstep_wire::Lsn;

use crate::error::oracle::{OracleError, Result};
use crate::oracle::difference::{Difference, What};
use crate::oracle::files::{Fork, RelationFork};
use crate::oracle::folder::FolderFiles;
use crate::oracle::mask;
use crate::oracle::node::Node;
use crate::oracle::page::{self, PAGE_SIZE, PageKind, Place};
use crate::oracle::wal::{Needed, Required};
use crate::oracle::{CompareOptions, Comparison, FreeSpace};
use crate::side::Side;

/// Pages that are read from each side at a time.
const PIECE_PAGES: usize = 128;

type Page = [u8; PAGE_SIZE];

/// Compares two open sides.
pub(crate) fn run(
    package: &Package,
    a: &Node,
    b: &Node,
    options: &CompareOptions,
) -> Result<Comparison> {
    let position = check_alike(a, b)?;
    // Both sides have replayed the same WAL, so that of the side that still has more is used
    // for both.
    let sources = [a, b].map(|node| (node, node.wal.oldest(node.position)));
    let [first, second] = &sources;
    let (source, wal_from) = if second.1 < first.1 { second } else { first };
    let mut engine = Engine {
        a,
        b,
        options,
        required: source.wal.required(*wal_from, source.position)?,
        comparison: Comparison {
            position,
            wal_from: *wal_from,
            files: 0,
            pages: 0,
            bytes: 0,
            found: 0,
            differences: Vec::new(),
        },
        not_on_disk: [None, None],
        pieces: (
            vec![0; PIECE_PAGES * PAGE_SIZE],
            vec![0; PIECE_PAGES * PAGE_SIZE],
        ),
    };
    engine.folders(package)?;
    engine.check_on_disk()?;
    a.check_unchanged(package)?;
    b.check_unchanged(package)?;
    let mut comparison = engine.comparison;
    for difference in &mut comparison.differences {
        if let Some(fork) = &difference.fork {
            difference.name = a.name_of(fork).or_else(|| b.name_of(fork));
        }
    }
    Ok(comparison)
}

/// Checks what must be the same before pages can be compared. Returns the common position.
fn check_alike(a: &Node, b: &Node) -> Result<Lsn> {
    let (of_a, of_b) = (&a.control, &b.control);
    let unlike = |what, a: &dyn ToString, b: &dyn ToString, advice| {
        Err(OracleError::Unlike {
            what,
            a: a.to_string(),
            b: b.to_string(),
            advice,
        })
    };
    if of_a.system != of_b.system {
        return unlike(
            "system identifier",
            &of_a.system,
            &of_b.system,
            "they are not copies of one cluster; name two standbys of one primary",
        );
    }
    if of_a.page_size != of_b.page_size || of_a.segment_pages != of_b.segment_pages {
        return unlike(
            "page size",
            &of_a.page_size,
            &of_b.page_size,
            "use copies made by pg_basebackup",
        );
    }
    if of_a.checksums != of_b.checksums {
        let word = |on| if on { "on" } else { "off" };
        return unlike(
            "data checksums",
            &word(of_a.checksums),
            &word(of_b.checksums),
            "make them the same with pg_checksums on the stopped standby, or set it up again",
        );
    }
    if of_a.timeline != of_b.timeline {
        return unlike(
            "timeline",
            &of_a.timeline,
            &of_b.timeline,
            "let both follow the same primary, and compare again",
        );
    }
    let (from, to) = (a.position.min(b.position), a.position.max(b.position));
    let ahead = if a.position < b.position { b } else { a };
    if from == to || ahead.wal.is_quiet(from, to).unwrap_or(false) {
        return Ok(to);
    }
    Err(OracleError::Positions {
        a: a.position,
        b: b.position,
    })
}

/// Pages of a side whose newest changes need not be on disk yet.
struct NotOnDisk {
    pages: u64,
    first: String,
}

struct Engine<'a> {
    a: &'a Node,
    b: &'a Node,
    options: &'a CompareOptions,
    required: Required,
    comparison: Comparison,
    not_on_disk: [Option<NotOnDisk>; 2],
    /// Buffers for both sides' pages, used by one segment at a time.
    pieces: (Vec<u8>, Vec<u8>),
}

/// A segment's file on one side.
struct Source {
    file: Option<File>,
    path: PathBuf,
}

impl Source {
    fn open(path: Option<&PathBuf>) -> Result<Self> {
        let Some(path) = path else {
            return Ok(Self {
                file: None,
                path: PathBuf::new(),
            });
        };
        let file = match File::open(path) {
            // A restartpoint has removed the file since the folder was listed.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            file => Some(file.map_err(OracleError::io("open", path))?),
        };
        Ok(Self {
            file,
            path: path.clone(),
        })
    }

    /// Reads until `buffer` is full or the file ends.
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let Some(file) = &mut self.file else {
            return Ok(0);
        };
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match file.read(rest) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(OracleError::io("read", &self.path)(error)),
            }
        }
        Ok(filled)
    }
}

/// A run of pages that one side lacks.
struct Lacking {
    side: Side,
    first: u32,
    pages: u64,
    lsn: Lsn,
}

impl Engine<'_> {
    fn folders(&mut self, package: &Package) -> Result<()> {
        let a = FolderFiles::walk(self.a.folder(), package.major())?;
        let b = FolderFiles::walk(self.b.folder(), package.major())?;
        let names: BTreeSet<&String> = a.whole.keys().chain(b.whole.keys()).collect();
        for name in names {
            self.whole_file(name, a.whole.get(name), b.whole.get(name))?;
        }
        let mut unlogged = a.unlogged();
        unlogged.extend(b.unlogged());
        let forks: BTreeSet<&RelationFork> = a.forks.keys().chain(b.forks.keys()).collect();
        for fork in forks {
            let skipped = match fork.fork {
                Fork::Init => false,
                Fork::FreeSpace if self.options.free_space == FreeSpace::Ignore => true,
                _ => unlogged.contains(&fork.relation),
            };
            if skipped {
                continue;
            }
            let (of_a, of_b) = (a.forks.get(fork), b.forks.get(fork));
            let segments: BTreeSet<u32> = [of_a, of_b]
                .into_iter()
                .flatten()
                .flat_map(|segments| segments.keys().copied())
                .collect();
            let required = self.required.take(fork);
            for segment in segments {
                let path = |segments: Option<&std::collections::BTreeMap<u32, PathBuf>>| {
                    segments.and_then(|segments| segments.get(&segment).cloned())
                };
                let sources = (
                    Source::open(path(of_a).as_ref())?,
                    Source::open(path(of_b).as_ref())?,
                );
                self.segment(fork, segment, sources, &required)?;
            }
        }
        Ok(())
    }

    fn whole_file(&mut self, name: &str, a: Option<&PathBuf>, b: Option<&PathBuf>) -> Result<()> {
        let read = |path: Option<&PathBuf>| match path {
            Some(path) => fs::read(path)
                .map(Some)
                .map_err(OracleError::io("read", path)),
            None => Ok(None),
        };
        let (a, b) = (read(a)?, read(b)?);
        self.comparison.files += [&a, &b].into_iter().flatten().count() as u64;
        if a != b {
            self.report(Difference {
                file: name.to_owned(),
                fork: None,
                name: None,
                block: None,
                lsn_a: None,
                lsn_b: None,
                what: What::File,
            });
        }
        Ok(())
    }

    /// Compares one segment's pages, piece by piece.
    fn segment(
        &mut self,
        fork: &RelationFork,
        segment: u32,
        mut sources: (Source, Source),
        required: &HashMap<u32, Needed>,
    ) -> Result<()> {
        let files = [&sources.0, &sources.1];
        self.comparison.files += files.iter().filter(|source| source.file.is_some()).count() as u64;
        let mut block = segment.saturating_mul(self.a.control.segment_pages);
        let (mut a, mut b) = std::mem::take(&mut self.pieces);
        let mut lacking: Option<Lacking> = None;
        loop {
            let (read_a, read_b) = (sources.0.read(&mut a)?, sources.1.read(&mut b)?);
            self.comparison.bytes += (read_a + read_b) as u64;
            for index in 0..read_a.max(read_b) / PAGE_SIZE {
                self.comparison.pages += 1;
                match (page_at(&a, read_a, index), page_at(&b, read_b, index)) {
                    (Some(a), Some(b)) => self.page(fork, block, a, b, required.get(&block)),
                    (Some(page), None) => lack(&mut lacking, Side::B, fork, block, page),
                    (None, Some(page)) => lack(&mut lacking, Side::A, fork, block, page),
                    (None, None) => {}
                }
                block = block.saturating_add(1);
            }
            let part = |read: usize| read % PAGE_SIZE != 0;
            if let Some(side) = Side::of(part(read_a), part(read_b)) {
                self.report(difference(
                    fork,
                    block,
                    (None, None),
                    What::PartialPage { side },
                ));
            }
            if read_a.max(read_b) < a.len() {
                break;
            }
        }
        self.pieces = (a, b);
        if let Some(Lacking {
            side,
            first,
            pages,
            lsn,
        }) = lacking
        {
            let lsns = match side {
                Side::A => (None, Some(lsn)),
                _ => (Some(lsn), None),
            };
            self.report(difference(fork, first, lsns, What::Missing { side, pages }));
        }
        Ok(())
    }

    /// Compares a page that both sides have.
    fn page(
        &mut self,
        fork: &RelationFork,
        block: u32,
        a: &Page,
        b: &Page,
        needed: Option<&Needed>,
    ) {
        let lsns = (page::lsn(a), page::lsn(b));
        let known = (Some(lsns.0), Some(lsns.1));
        let what = if let Some(side) = Side::of(lsns.0 > self.a.position, lsns.1 > self.b.position)
        {
            Some(What::Future { side })
        } else if let Some(what) = needed.and_then(|needed| {
            let reached = |page: &Page, lsn: Lsn| match needed.or_zero && page::is_zero(page) {
                true => needed.lsn,
                false => lsn,
            };
            let reached = (reached(a, lsns.0), reached(b, lsns.1));
            self.behind(fork, block, reached, needed.lsn)
        }) {
            Some(what)
        } else if a == b {
            None
        } else {
            content(fork.fork, block, a, b)
        };
        if let Some(what) = what {
            self.report(difference(fork, block, known, what));
        }
    }

    /// Checks whether a page is older than the last record that changed it. If its side need not
    /// have written that change to disk yet, the page is only noted: [`Self::check_on_disk`]
    /// then refuses the comparison.
    fn behind(
        &mut self,
        fork: &RelationFork,
        block: u32,
        lsns: (Lsn, Lsn),
        record: Lsn,
    ) -> Option<What> {
        let mut lost = [false, false];
        let sides = [(self.a, lsns.0), (self.b, lsns.1)];
        for ((node, lsn), (lost, noted)) in sides
            .into_iter()
            .zip(lost.iter_mut().zip(self.not_on_disk.iter_mut()))
        {
            if lsn >= record {
                continue;
            }
            if record <= node.durable {
                *lost = true;
            } else {
                noted
                    .get_or_insert_with(|| NotOnDisk {
                        pages: 0,
                        first: format!("{fork}, block {block}"),
                    })
                    .pages += 1;
            }
        }
        let [in_a, in_b] = lost;
        Side::of(in_a, in_b).map(|side| What::Behind { side, record })
    }

    fn check_on_disk(&self) -> Result<()> {
        for (node, noted) in [self.a, self.b].into_iter().zip(&self.not_on_disk) {
            if let Some(noted) = noted {
                return Err(OracleError::NotOnDisk {
                    side: node.side,
                    pages: noted.pages,
                    checkpoint: node.control.checkpoint,
                    first: noted.first.clone(),
                });
            }
        }
        Ok(())
    }

    fn report(&mut self, difference: Difference) {
        self.comparison.found += 1;
        if self.comparison.differences.len() < self.options.limit {
            self.comparison.differences.push(difference);
        }
    }
}

fn difference(
    fork: &RelationFork,
    block: u32,
    lsns: (Option<Lsn>, Option<Lsn>),
    what: What,
) -> Difference {
    Difference {
        file: fork.to_string(),
        fork: Some(*fork),
        name: None,
        block: Some(block),
        lsn_a: lsns.0,
        lsn_b: lsns.1,
        what,
    }
}

/// Page `index` of the buffer, if its first `read` bytes hold the whole page.
fn page_at(buffer: &[u8], read: usize, index: usize) -> Option<&Page> {
    let start = index * PAGE_SIZE;
    buffer.get(start..read)?.first_chunk()
}

/// Notes a page beyond the end of the other side's file. Empty pages are ignored: files are
/// extended without WAL, and the file of an empty fork need not exist.
fn lack(lacking: &mut Option<Lacking>, side: Side, fork: &RelationFork, block: u32, page: &Page) {
    let (kind, masked) = mask::masked(page, fork.fork, block);
    let map = matches!(kind, PageKind::FreeSpaceMap | PageKind::VisibilityMap);
    if kind == PageKind::New || map && mask::is_empty_map(&masked) {
        return;
    }
    let lacking = lacking.get_or_insert(Lacking {
        side,
        first: block,
        pages: 0,
        lsn: page::lsn(page),
    });
    lacking.pages = u64::from(block - lacking.first) + 1;
}

/// How two pages with different bytes differ; None if only in places where they may.
fn content(fork: Fork, block: u32, a: &Page, b: &Page) -> Option<What> {
    let (kind_a, mut masked_a) = mask::masked(a, fork, block);
    let (kind_b, mut masked_b) = mask::masked(b, fork, block);
    mask::reconcile((kind_a, kind_b), &mut masked_a, &mut masked_b);
    if masked_a == masked_b {
        return None;
    }
    if kind_a != kind_b {
        return Some(What::PageKind {
            a: kind_a,
            b: kind_b,
        });
    }
    let differing = |from: usize| {
        let pairs = masked_a.iter().zip(masked_b.iter()).enumerate().skip(from);
        pairs
            .filter(|(_, (a, b))| a != b)
            .map(|(offset, (&a, &b))| (offset, a, b))
            .next()
    };
    // Bytes of the LSN come last: they rarely show what differs.
    let (offset, a_byte, b_byte) = differing(8).or_else(|| differing(0))?;
    Some(What::Content {
        offset,
        a: a_byte,
        b: b_byte,
        place: Place::of(a, kind_a, offset),
    })
}
