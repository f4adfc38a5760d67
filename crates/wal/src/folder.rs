//! WAL in a folder: `pg_wal`, an archive, or what a recording holds.
//!
//! A *run* is segments of one timeline without a gap. A segment counts as one of a run if one of its
//! first two pages is of its place: a file that was made ahead, or recycled, ends the run before it, and
//! whether one page is damaged is for the reader. A segment that is there without such a page is damaged, and
//! belongs to the run all the same, if another of its pages or a later segment is of its place. So does a
//! file that cannot be read: the reader finds that out. An archive's `NAME.partial` stands for a segment of
//! which there is no other file.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use lockstep_wire::{Lsn, SystemId, Timeline};

use crate::reader::{Identity, Pages, Reader};
use crate::segment::{LONG_HEADER, PAGE, PageHeader, SegmentSize, major_of, name_parts};
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
    /// The run's last segment, if it does not begin as it should and a later one does.
    broken: Option<Lsn>,
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
        let paths = of_timeline.iter().map(|(_, path)| path);
        let (identity, major) = identity_of(folder, timeline, paths)?;
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
        let missing = |at: Lsn| WalError::Missing {
            folder: folder.to_path_buf(),
            name: identity.size.file_name(timeline, at),
            timeline,
        };
        let first = match wanted {
            Some(lsn) => {
                let first = u64::from(identity.size.start_of(lsn));
                let path = files.get(&first).ok_or_else(|| missing(lsn))?;
                match may_belong(path, first, &identity) {
                    true => first,
                    false => return Err(not_its_own(path, first, &identity, &files, missing(lsn))),
                }
            }
            None => oldest(folder, &files, &identity)?,
        };
        let (end, next_run, broken) = extent(first, &identity, &files);
        Ok(Self {
            folder: folder.to_path_buf(),
            timeline,
            major,
            identity,
            start: wanted.unwrap_or(Lsn::from(first)),
            end: Lsn::from(end),
            next_run: next_run.map(Lsn::from),
            broken: broken.map(Lsn::from),
            files,
        })
    }

    pub fn reader(&self) -> Reader<RunPages> {
        Reader::new(self.pages(), self.identity, self.start)
    }

    pub fn pages(&self) -> RunPages {
        RunPages {
            run: self.clone(),
            open: None,
        }
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

    /// The file of the segment that begins at `start`. A run ends with its last segment, even if files come
    /// behind a gap.
    fn path_at(&self, start: Lsn) -> Option<&Path> {
        let path = self.files.get(&u64::from(start));
        path.filter(|_| start < self.end).map(PathBuf::as_path)
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
                // None: the server has removed or recycled it meanwhile.
                let file = self.run.path_at(start).map(open).transpose()?.flatten();
                let Some(file) = file else {
                    return Ok(0);
                };
                file
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

    fn timeline(&self) -> Option<Timeline> {
        Some(self.run.timeline)
    }

    fn look_again(&mut self) -> bool {
        self.open = None;
        true
    }

    fn is_gone(&self, at: Lsn) -> bool {
        let start = self.run.identity.size.start_of(at);
        self.run.path_at(start).is_some_and(is_gone)
    }

    fn is_broken(&self, at: Lsn) -> bool {
        self.run.broken == Some(self.run.identity.size.start_of(at))
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
    let read = |source| WalError::ReadFolder {
        folder: folder.to_path_buf(),
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
        // Removed meanwhile, or a link to nothing. What else cannot be read is found when it is read.
        if is_gone(&path) {
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

/// The file, open. None: there is none.
fn open(path: &Path) -> io::Result<Option<File>> {
    let there = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Ok(None),
        _ => Err(error),
    };
    match fs::metadata(path) {
        Ok(found) if found.is_file() => File::open(path).map(Some).or_else(there),
        // Opening a pipe would wait for who writes into it.
        Ok(_) => Err(io::Error::other("it is no ordinary file")),
        Err(error) => there(error),
    }
}

fn is_gone(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn cannot_read(path: &Path) -> impl FnOnce(io::Error) -> WalError {
    let file = path.display().to_string();
    move |source| WalError::ReadWal { file, source }
}

/// Where the oldest segment begins. Files that a server has created in advance or kept for later
/// use bear the names of later segments, so one that comes first is a damaged segment.
fn oldest(folder: &Path, files: &BTreeMap<u64, PathBuf>, identity: &Identity) -> Result<u64> {
    // A server that runs may have removed or recycled the oldest meanwhile.
    let first = files.iter().find(|(_, path)| !is_gone(path));
    let none = no_wal(folder, "has no segment with WAL of its own place");
    match first {
        Some((at, path)) if may_belong(path, *at, identity) => Ok(*at),
        Some((at, path)) => Err(not_its_own(path, *at, identity, files, none)),
        None => Err(none),
    }
}

/// The error for a first segment without WAL of its own: `otherwise` if none behind it has some.
fn not_its_own(
    path: &Path,
    at: u64,
    identity: &Identity,
    files: &BTreeMap<u64, PathBuf>,
    otherwise: WalError,
) -> WalError {
    match next_own(at, identity, files) {
        Some(next) => WalError::FirstDamaged {
            file: path.display().to_string(),
            next: Lsn::from(next),
        },
        None => otherwise,
    }
}

/// The first segment at or behind `from` that has WAL of its own place, or cannot be read.
fn next_own(from: u64, identity: &Identity, files: &BTreeMap<u64, PathBuf>) -> Option<u64> {
    let mut behind = files.range(from..);
    let next = behind.find(|(at, path)| may_belong(path, **at, identity));
    next.map(|(at, _)| *at)
}

/// Where the run that begins at `first` ends, where the next one begins, and the last segment of the run
/// if it is broken.
fn extent(
    first: u64,
    identity: &Identity,
    files: &BTreeMap<u64, PathBuf>,
) -> (u64, Option<u64>, Option<u64>) {
    let size = identity.size.bytes();
    let mut end = first;
    loop {
        while let Some(path) = files.get(&end) {
            if !may_belong(path, end, identity) {
                break;
            }
            end = end.saturating_add(size);
        }
        let next = next_own(end, identity, files);
        let path = files.get(&end).filter(|path| !is_gone(path));
        let goes_on = |path| next.is_some() || has_own_page(path, end, size);
        let Some(path) = path.filter(|path| goes_on(path)) else {
            return (end, next, None);
        };
        // A server writes in order: it may have begun this one before what is behind, and after we looked.
        if !may_belong(path, end, identity) && !is_gone(path) {
            return (end.saturating_add(size), None, Some(end));
        }
    }
}

/// The [`LONG_HEADER`] bytes of a file at `offset` as a page's header, and the file's length. None: there is
/// no file, or it ends before.
fn header_at(path: &Path, offset: u64) -> io::Result<Option<(PageHeader, u64)>> {
    let Some(file) = open(path)? else {
        return Ok(None);
    };
    let mut bytes = [0; LONG_HEADER];
    match file.read_exact_at(&mut bytes, offset) {
        Ok(()) => Ok(Some((PageHeader::parse(&bytes), file.metadata()?.len()))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// What one file says of the WAL that it holds.
enum Says {
    /// Identity and size in the header, and whether the second page is of the same version and of its place.
    Identity(Identity, u32, bool),
    /// The size that it says is not its own.
    CutOff(WalError),
    OtherVersion(u16),
    Nothing,
}

fn said_by(path: &Path) -> io::Result<Says> {
    let Some((header, length)) = header_at(path, 0)? else {
        return Ok(Says::Nothing);
    };
    let long = header
        .long
        .filter(|long| u64::from(long.page_bytes) == PAGE);
    let Some((long, size)) =
        long.and_then(|long| Some((long, SegmentSize::new(long.segment_bytes)?)))
    else {
        return Ok(Says::Nothing);
    };
    let is_whole = size.bytes() == length;
    let second = header_at(path, PAGE)?.map(|(second, _)| second);
    let second = second.filter(|second| Some(second.address) == header.address.checked_add(PAGE));
    let magic = match (major_of(header.magic), second) {
        // The second page belongs here and is of a version that is known: the first is damaged.
        (None, Some(second)) if is_whole => second.magic,
        _ => header.magic,
    };
    let Some(major) = major_of(magic) else {
        return Ok(match is_whole {
            true => Says::OtherVersion(magic),
            false => Says::Nothing,
        });
    };
    if !is_whole {
        return Ok(Says::CutOff(WalError::CutOff {
            file: path.display().to_string(),
            segment: size.bytes(),
            length,
        }));
    }
    let identity = Identity {
        magic,
        size,
        system: SystemId::from(long.system),
    };
    let is_sure = second.is_some_and(|second| second.magic == header.magic);
    Ok(Says::Identity(identity, major, is_sure))
}

/// What the first segment says that can be read, and whose second page says the same if there is one.
fn identity_of<'a>(
    folder: &Path,
    timeline: Timeline,
    paths: impl Iterator<Item = &'a PathBuf>,
) -> Result<(Identity, u32)> {
    let mut unsure = None;
    let mut cut_off = None;
    let mut other = None;
    let mut failed = None;
    for path in paths {
        match said_by(path) {
            Ok(Says::Identity(identity, major, true)) => return Ok((identity, major)),
            Ok(Says::Identity(identity, major, false)) => {
                unsure.get_or_insert((identity, major));
            }
            Ok(Says::CutOff(error)) => {
                cut_off.get_or_insert(error);
            }
            Ok(Says::OtherVersion(magic)) => other = Some(magic),
            Ok(Says::Nothing) => {}
            Err(error) => {
                failed.get_or_insert_with(|| cannot_read(path)(error));
            }
        }
    }
    if let Some(found) = unsure {
        return Ok(found);
    }
    if let Some(error) = failed.or(cut_off) {
        return Err(error);
    }
    let reason = match other {
        Some(magic) => format!(
            "holds WAL of a PostgreSQL that is not supported (its pages begin with {magic:04X}, \
             and 15 to 19 are supported)"
        ),
        None => format!(
            "has files with names of WAL segments of timeline {timeline}, but none begins as a segment \
             does; --timeline chooses another timeline"
        ),
    };
    Err(no_wal(folder, &reason))
}

/// One of the file's first two pages is of its place.
fn belongs(path: &Path, at: u64, identity: &Identity) -> io::Result<bool> {
    for offset in [0, PAGE] {
        let belongs = header_at(path, offset)?.is_some_and(|(header, _)| {
            let is_ours = header
                .long
                .is_none_or(|long| long.system == u64::from(identity.system));
            header.magic == identity.magic
                && Some(header.address) == at.checked_add(offset)
                && is_ours
        });
        if belongs {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Some page of the file is of its place, of whatever version: WAL was written there.
fn has_own_page(path: &Path, at: u64, size: u64) -> bool {
    let Ok(Some(file)) = open(path) else {
        return false;
    };
    let mut bytes = [0; LONG_HEADER];
    (0..size / PAGE).any(|number| {
        let page = at.saturating_add(number * PAGE);
        let read = file.read_exact_at(&mut bytes, number * PAGE);
        read.is_ok() && page > 0 && PageHeader::parse(&bytes).address == page
    })
}

/// Whether a file belongs there, or cannot be read, which the reader finds out.
fn may_belong(path: &Path, at: u64, identity: &Identity) -> bool {
    belongs(path, at, identity).unwrap_or(true)
}
