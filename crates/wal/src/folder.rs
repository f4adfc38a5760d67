//! WAL in a folder: `pg_wal`, an archive, or what a recording holds.
//!
//! A *run* is segments of one timeline without a gap. A segment counts as one of a run if one of its
//! first two pages is of its place: a file that was made ahead, or recycled, ends the run before it, and
//! whether one page is damaged is for the reader. An archive's `NAME.partial` stands for a segment of which there
//! is no other file.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use lockstep_wire::{Lsn, SystemId, Timeline};

use crate::reader::{Identity, Pages, Reader};
use crate::segment::{LONG_HEADER, LongPart, PAGE, PageHeader, SegmentSize, major_of, name_parts};
use crate::{Result, WalError};

/// Most files of one folder that are looked at.
const MOST_FILES: usize = 1_000_000;

/// What archives are often packed with.
const PACKED: [&str; 5] = ["gz", "zst", "lz4", "bz2", "xz"];

/// What to read of a folder.
#[derive(Debug, Clone, Copy, Default)]
pub struct Range {
    /// None: the newest that has a segment.
    pub timeline: Option<Timeline>,
    /// None: the beginning of the oldest run.
    pub start: Option<Lsn>,
}

/// Segments without a gap.
#[derive(Debug, Clone)]
pub struct Run {
    pub folder: PathBuf,
    pub timeline: Timeline,
    pub major: u32,
    pub identity: Identity,
    /// From here on.
    pub start: Lsn,
    /// Where the last segment ends.
    pub end: Lsn,
    /// Where the next run of this timeline begins, if there is one.
    pub next_run: Option<Lsn>,
    files: BTreeMap<u64, PathBuf>,
}

/// Reads the pages of a run.
#[derive(Debug)]
pub struct RunPages {
    run: Run,
    open: Option<(Lsn, File)>,
}

/// Files of segments by timeline and name.
type Names = BTreeMap<(u32, u32, u32), PathBuf>;

impl Run {
    /// The run of a folder that holds the range's start. The folder may also be a data folder or a
    /// recording, whose WAL is in a folder of it.
    pub fn find(folder: &Path, range: Range) -> Result<Self> {
        let folder = &wal_folder(folder);
        let names = segments_in(folder)?;
        let newest = names.keys().next_back().map(|name| name.0);
        let timeline = match range.timeline {
            Some(timeline) => timeline,
            None => newest
                .and_then(Timeline::new)
                .ok_or_else(|| no_wal(folder, "has no WAL segments"))?,
        };
        let of_timeline: Vec<_> = names
            .into_iter()
            .filter(|(name, _)| name.0 == timeline.get())
            .collect();
        if of_timeline.is_empty() {
            let reason = format!("has no WAL segments of timeline {timeline}");
            return Err(no_wal(folder, &reason));
        }
        let (identity, major) = identity_of(folder, of_timeline.iter().map(|(_, path)| path))?;
        let mut files = BTreeMap::new();
        for ((_, high, low), path) in of_timeline {
            let name = format!("{:08X}{high:08X}{low:08X}", timeline.get());
            if let Some((_, start)) = identity.size.place_of(&name) {
                files.insert(u64::from(start), path);
            }
        }
        Self::of_files(folder, timeline, major, identity, range.start, files)
    }

    fn of_files(
        folder: &Path,
        timeline: Timeline,
        major: u32,
        identity: Identity,
        wanted: Option<Lsn>,
        files: BTreeMap<u64, PathBuf>,
    ) -> Result<Self> {
        let size = identity.size.bytes();
        let missing = |at: Lsn| WalError::Missing {
            folder: folder.to_path_buf(),
            name: identity.size.file_name(timeline, at),
            timeline,
        };
        let fits = |at: u64, path: &Path| belongs(path, at, &identity);
        let first = match wanted {
            Some(lsn) => {
                let first = u64::from(identity.size.start_of(lsn));
                let path = files.get(&first).ok_or_else(|| missing(lsn))?;
                fits(first, path)
                    .then_some(first)
                    .ok_or_else(|| missing(lsn))?
            }
            None => oldest(folder, &files, fits)?,
        };
        let mut end = first;
        while files.get(&end).is_some_and(|path| fits(end, path)) {
            end = end.saturating_add(size);
        }
        let next_run = files
            .range(end..)
            .find(|(at, path)| fits(**at, path))
            .map(|(at, _)| Lsn::from(*at));
        Ok(Self {
            folder: folder.to_path_buf(),
            timeline,
            major,
            identity,
            start: wanted.unwrap_or(Lsn::from(first)),
            end: Lsn::from(end),
            next_run,
            files,
        })
    }

    /// A reader of this run.
    pub fn reader(&self) -> Reader<RunPages> {
        let pages = RunPages {
            run: self.clone(),
            open: None,
        };
        Reader::new(pages, self.identity, self.start)
    }

    /// The error for a range that goes on behind the run, up to `end`.
    pub fn missing_before(&self, end: Lsn) -> WalError {
        WalError::Gap {
            folder: self.folder.clone(),
            name: self.missing(),
            at: self.end,
            end,
        }
    }

    /// The name of the segment that is missing where the run ends.
    pub fn missing(&self) -> String {
        self.identity.size.file_name(self.timeline, self.end)
    }
}

impl Pages for RunPages {
    fn read(&mut self, at: Lsn, page: &mut [u8]) -> io::Result<usize> {
        let start = self.run.identity.size.start_of(at);
        let file = match self.open.take() {
            Some((open, file)) if open == start => file,
            _ => {
                // A run ends with its last segment, even if files come behind a gap.
                let path = self.run.files.get(&u64::from(start));
                let Some(path) = path.filter(|_| start < self.run.end) else {
                    return Ok(0);
                };
                match File::open(path) {
                    Ok(file) => file,
                    // The server has removed or recycled it meanwhile.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
                    Err(error) => return Err(error),
                }
            }
        };
        let (_, file) = self.open.insert((start, file));
        let mut offset = u64::from(at) - u64::from(start);
        let mut done = 0;
        while let Some(rest) = page.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, offset)? {
                0 => break,
                read => {
                    done += read;
                    offset += read as u64;
                }
            }
        }
        Ok(done)
    }

    fn name(&self, at: Lsn) -> String {
        let start = self.run.identity.size.start_of(at);
        match self.run.files.get(&u64::from(start)) {
            Some(path) => path.display().to_string(),
            None => self.run.identity.size.file_name(self.run.timeline, at),
        }
    }
}

fn no_wal(folder: &Path, reason: &str) -> WalError {
    WalError::NoWal {
        folder: folder.to_path_buf(),
        reason: reason.to_owned(),
    }
}

/// The folder itself, or the one of a data folder or a recording that has the WAL.
fn wal_folder(folder: &Path) -> PathBuf {
    let parts = [("PG_VERSION", "pg_wal"), ("recording.json", "wal")];
    for (sign, wal) in parts {
        if folder.join(sign).is_file() && folder.join(wal).is_dir() {
            return folder.join(wal);
        }
    }
    folder.to_path_buf()
}

fn segments_in(folder: &Path) -> Result<Names> {
    let read = |source| WalError::Read {
        file: folder.display().to_string(),
        source,
    };
    let mut names = Names::new();
    let mut packed = None;
    let mut seen = 0_usize;
    for entry in fs::read_dir(folder).map_err(read)? {
        let path = entry.map_err(read)?.path();
        seen += 1;
        if seen > MOST_FILES {
            let reason = format!("has more than {MOST_FILES} files");
            return Err(no_wal(folder, &reason));
        }
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        let (stem, ending) = match name.split_once('.') {
            Some((stem, ending)) => (stem, Some(ending)),
            None => (name, None),
        };
        let Some((timeline, high, low)) = name_parts(stem) else {
            continue;
        };
        // Opening a pipe would wait for who writes into it.
        if !fs::metadata(&path).is_ok_and(|found| found.is_file()) {
            continue;
        }
        let key = (timeline.get(), high, low);
        match ending {
            None => {
                names.insert(key, path);
            }
            Some("partial") => {
                names.entry(key).or_insert(path);
            }
            Some(ending) if PACKED.contains(&ending) => packed = Some(name.to_owned()),
            Some(_) => {}
        }
    }
    match (names.is_empty(), packed) {
        (false, _) => Ok(names),
        (true, Some(packed)) => {
            let reason = format!("has only packed segments, such as {packed}; unpack them first");
            Err(no_wal(folder, &reason))
        }
        (true, None) => Err(no_wal(
            folder,
            "has no WAL segments; name a folder such as pg_wal or an archive of it",
        )),
    }
}

/// Where the oldest segment begins. Files that a server has created in advance or kept for later
/// use bear the names of later segments, so one that comes first is a damaged segment.
fn oldest(
    folder: &Path,
    files: &BTreeMap<u64, PathBuf>,
    fits: impl Fn(u64, &Path) -> bool,
) -> Result<u64> {
    let found = files.iter().find(|(at, path)| fits(**at, path));
    // A server that runs may have removed or recycled the oldest meanwhile.
    let first = files.iter().find(|(_, path)| path.exists());
    match (found, first) {
        (Some((at, _)), Some((first, _))) if at == first => Ok(*at),
        (Some((at, _)), Some((_, path))) => Err(WalError::FirstDamaged {
            file: path.display().to_string(),
            next: Lsn::from(*at),
        }),
        _ => Err(no_wal(folder, "has no segment with WAL of its own place")),
    }
}

/// The [`LONG_HEADER`] bytes of a file at `offset` as a page's header, and the file's length.
fn header_at(path: &Path, offset: u64) -> Option<(PageHeader, u64)> {
    let file = File::open(path).ok()?;
    let mut bytes = [0; LONG_HEADER];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some((PageHeader::parse(&bytes), file.metadata().ok()?.len()))
}

/// What the first segment says that can be read.
fn identity_of<'a>(
    folder: &Path,
    paths: impl Iterator<Item = &'a PathBuf>,
) -> Result<(Identity, u32)> {
    let mut other = None;
    for path in paths {
        let Some((header, length)) = header_at(path, 0) else {
            continue;
        };
        let Some(LongPart {
            system,
            segment_bytes,
            page_bytes,
        }) = header.long
        else {
            continue;
        };
        let size = SegmentSize::new(segment_bytes).filter(|size| size.bytes() == length);
        match (major_of(header.magic), size) {
            (Some(major), Some(size)) if u64::from(page_bytes) == PAGE => {
                let identity = Identity {
                    magic: header.magic,
                    size,
                    system: SystemId::from(system),
                };
                return Ok((identity, major));
            }
            (None, Some(_)) => {
                other = Some(format!(
                    "holds WAL of a PostgreSQL that is not supported (its pages begin with {:04X}, \
                     and 15 to 19 are supported)",
                    header.magic
                ));
            }
            _ => {}
        }
    }
    let reason = other.unwrap_or_else(|| {
        "has files with names of WAL segments, but none begins as a segment does".to_owned()
    });
    Err(no_wal(folder, &reason))
}

/// One of the file's first two pages is of its place. A segment of another cluster has no such page, as
/// long as its first page is not damaged.
fn belongs(path: &Path, at: u64, identity: &Identity) -> bool {
    [0, PAGE].into_iter().any(|offset| {
        header_at(path, offset).is_some_and(|(header, _)| {
            let is_ours = header
                .long
                .is_none_or(|long| long.system == u64::from(identity.system));
            header.magic == identity.magic
                && Some(header.address) == at.checked_add(offset)
                && is_ours
        })
    })
}
