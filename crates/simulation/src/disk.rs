//! A folder in memory that does to files what a machine that stops may do: forgets what was
//! not made durable, any part of it; runs full; flips bytes; fails; refuses to make data durable.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use lockstep_spool::{SpoolFile, Storage};

/// What a disk writes at once.
const SECTOR: usize = 512;

/// A file, as it is and as it would surely be after a crash.
#[derive(Debug, Clone, Default)]
struct Content {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors that could not be made durable. The system counts them as done from then on,
    /// until they are written again.
    lost: BTreeSet<usize>,
}

/// Something to happen in between.
type Hook = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    files: Vec<Content>,
    /// Names and files they stand for, now and surely after a crash.
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    /// Most bytes of all files.
    room: Option<usize>,
    /// The next attempt to make a file durable fails.
    refuse_sync: bool,
    /// A machine that has stopped answers nothing any more.
    stopped: bool,
    /// Changes that are still made before the machine stops.
    changes_left: Option<u64>,
    /// Operations that are still done before one fails.
    before_failure: Option<u64>,
    /// Something wrong in the log over it: [`Storage::forgets_headers`].
    forgets_headers: bool,
    /// What happens right after the next read, and after a file is made durable.
    after_read: Option<Hook>,
    after_sync: Option<Hook>,
}

/// The folder. Clones are the same folder.
#[derive(Clone, Default)]
pub struct Disk(Arc<Mutex<State>>);

#[derive(Debug)]
pub struct DiskFile {
    disk: Disk,
    number: usize,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Disk")
    }
}

impl Disk {
    /// A new folder, for a log with something wrong in it if `forgets_headers`.
    pub fn new(forgets_headers: bool) -> Self {
        let disk = Self::default();
        disk.state().forgets_headers = forgets_headers;
        disk
    }

    /// What another thread does right after the next read of a file.
    pub fn after_read(&self, hook: impl FnOnce() + Send + 'static) {
        self.state().after_read = Some(Box::new(hook));
    }

    /// What another thread does while a file is made durable, too late to be so.
    pub fn after_sync(&self, hook: impl FnOnce() + Send + 'static) {
        self.state().after_sync = Some(Box::new(hook));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn running(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        if state.stopped {
            return Err(io::Error::other("the machine has stopped"));
        }
        match state.fails_now() {
            true => Err(io::Error::other("the disk fails")),
            false => Ok(state),
        }
    }

    /// Fails the operation after this number of further ones; `None`: no operation.
    pub fn fail_after(&self, operations: Option<u64>) {
        self.state().before_failure = operations;
    }

    /// The machine makes this number of changes more and stops before the next.
    pub fn stop_after(&self, changes: u64) {
        self.state().changes_left = Some(changes);
    }

    pub fn has_stopped(&self) -> bool {
        self.state().stopped
    }

    /// For whoever changes something.
    fn changing(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.running()?;
        match &mut state.changes_left {
            Some(0) => {
                state.stopped = true;
                Err(io::Error::other("the machine has stopped"))
            }
            Some(left) => {
                *left -= 1;
                Ok(state)
            }
            None => Ok(state),
        }
    }

    /// The machine stops and starts again: the folder as it may be found then.
    pub fn after_crash(&self, random: &mut fastrand::Rng) -> Self {
        let mut old = self.state();
        old.stopped = true;
        let mut new = State::default();
        let all: Vec<_> = old.names.keys().chain(old.durable_names.keys()).collect();
        for name in all {
            let (now, durable) = (old.names.get(name), old.durable_names.get(name));
            let number = match now == durable || random.bool() {
                true => durable,
                false => now,
            };
            let Some(&number) = number else { continue };
            let content = survive(&old.files[number], random);
            new.names.insert(name.clone(), new.files.len());
            new.files.push(Content {
                now: content.clone(),
                durable: content,
                lost: BTreeSet::new(),
            });
        }
        new.durable_names = new.names.clone();
        new.forgets_headers = old.forgets_headers;
        Self(Arc::new(Mutex::new(new)))
    }

    /// Only the process stops.
    pub fn after_kill(&self) -> Self {
        self.clone()
    }

    /// Another folder with the same files.
    pub fn copy(&self) -> Self {
        let state = self.state();
        Self(Arc::new(Mutex::new(State {
            files: state.files.clone(),
            names: state.names.clone(),
            durable_names: state.durable_names.clone(),
            ..State::default()
        })))
    }

    /// No more than these bytes in all files from here on.
    pub fn set_room(&self, bytes: Option<usize>) {
        self.state().room = bytes;
    }

    pub fn used(&self) -> usize {
        self.state().used()
    }

    /// The next attempt to make a file durable fails, and what it was about is lost.
    pub fn refuse_sync(&self, refuse: bool) {
        self.state().refuse_sync = refuse;
    }

    /// Whether no attempt was made since.
    pub fn refuses_sync(&self) -> bool {
        self.state().refuse_sync
    }

    pub fn names(&self) -> Vec<String> {
        self.state().names.keys().cloned().collect()
    }

    /// Segments of a log, oldest first.
    pub fn segments(&self) -> Vec<String> {
        let mut names = self.names();
        names.retain(|name| name.ends_with(".spool") || name.ends_with(".spool.new"));
        names
    }

    pub fn segment_bytes(&self) -> usize {
        let names = self.segments();
        names.iter().map(|name| self.length(name)).sum()
    }

    pub fn length(&self, name: &str) -> usize {
        let state = self.state();
        state.files[state.names[name]].now.len()
    }

    /// Changes a byte for good.
    pub fn flip(&self, name: &str, offset: usize, mask: u8) {
        let mut state = self.state();
        let number = state.names[name];
        let content = &mut state.files[number];
        content.now[offset] ^= mask;
        content.durable = content.now.clone();
    }

    /// Changes a file for good; None removes it.
    pub fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>) -> bool) {
        let mut state = self.state();
        let number = state.names[name];
        let content = &mut state.files[number];
        let keep = change(&mut content.now);
        content.durable = content.now.clone();
        if !keep {
            state.names.remove(name);
            state.durable_names.remove(name);
        }
    }
}

impl State {
    fn fails_now(&mut self) -> bool {
        let left = self.before_failure.take();
        self.before_failure = left.and_then(|left| left.checked_sub(1));
        left == Some(0)
    }

    fn used(&self) -> usize {
        self.names
            .values()
            .map(|number| self.files[*number].now.len())
            .sum()
    }
}

/// A content that a file may have after a crash: of each sector either what was durable or
/// what was written since, and any length between the two.
fn survive(content: &Content, random: &mut fastrand::Rng) -> Vec<u8> {
    let Content { now, durable, .. } = content;
    if now == durable {
        return now.clone();
    }
    let (short, long) = (now.len().min(durable.len()), now.len().max(durable.len()));
    let length = match random.u8(..4) {
        0 => durable.len(),
        1 => now.len(),
        _ => random.usize(short..=long),
    };
    // Often all of what was written gets there, or a plain prefix.
    let lost_sectors = random.bool();
    let mut out = durable.clone();
    out.resize(length, 0);
    // Where it was made shorter and that was lost, what was there is there again.
    for (at, sector) in out.chunks_mut(SECTOR).enumerate() {
        let written = now.get(at * SECTOR..).unwrap_or_default();
        let written = &written[..written.len().min(sector.len())];
        if !(lost_sectors && random.bool()) {
            sector[..written.len()].copy_from_slice(written);
        }
    }
    out
}

fn not_found() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

impl Storage for Disk {
    type File = DiskFile;

    fn free(&self) -> u64 {
        let state = self.state();
        let used = state.used();
        state
            .room
            .map_or(u64::MAX, |room| room.saturating_sub(used) as u64)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.running()?.names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<DiskFile> {
        let mut state = self.changing()?;
        let number = state.files.len();
        state.files.push(Content::default());
        state.names.insert(name.to_owned(), number);
        Ok(DiskFile {
            disk: self.clone(),
            number,
        })
    }

    fn open(&self, name: &str) -> io::Result<DiskFile> {
        let number = *self.running()?.names.get(name).ok_or_else(not_found)?;
        Ok(DiskFile {
            disk: self.clone(),
            number,
        })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.changing()?;
        let number = state.names.remove(from).ok_or_else(not_found)?;
        state.names.insert(to.to_owned(), number);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let removed = self.changing()?.names.remove(name);
        removed.map(drop).ok_or_else(not_found)
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.changing()?;
        state.durable_names = state.names.clone();
        Ok(())
    }

    fn forgets_headers(&self) -> bool {
        self.state().forgets_headers
    }
}

impl SpoolFile for DiskFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.disk.running()?.files[self.number].now.len() as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let mut state = self.disk.running()?;
        let hook = state.after_read.take();
        let content = &state.files[self.number].now;
        let bytes = usize::try_from(offset)
            .ok()
            .and_then(|offset| content.get(offset..offset + into.len()))
            .ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        into.copy_from_slice(bytes);
        drop(state);
        if let Some(hook) = hook {
            hook();
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.changing()?;
        let used = state.used();
        let left = state
            .room
            .map_or(usize::MAX, |room| room.saturating_sub(used));
        let content = &mut state.files[self.number].now;
        let offset = usize::try_from(offset).unwrap();
        let grows = (offset + bytes.len()).saturating_sub(content.len());
        let fits = bytes.len() - grows.saturating_sub(left);
        if content.len() < offset + fits {
            content.resize(offset + fits, 0);
        }
        content[offset..offset + fits].copy_from_slice(&bytes[..fits]);
        let written = offset / SECTOR..(offset + fits).div_ceil(SECTOR);
        state.files[self.number]
            .lost
            .retain(|sector| !written.contains(sector));
        match fits == bytes.len() {
            true => Ok(()),
            false => Err(io::Error::from(io::ErrorKind::StorageFull)),
        }
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let mut state = self.disk.changing()?;
        let length = usize::try_from(length).unwrap();
        state.files[self.number].now.resize(length, 0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let fails = self.disk.state().fails_now();
        let mut state = self.disk.changing()?;
        let refuse = std::mem::take(&mut state.refuse_sync) || fails;
        let Content { now, durable, lost } = &mut state.files[self.number];
        if !refuse {
            durable.resize(now.len(), 0);
        }
        for (at, sector) in now.chunks(SECTOR).enumerate() {
            let place = at * SECTOR..at * SECTOR + sector.len();
            match (refuse, durable.get(place.clone()) == Some(sector)) {
                (true, false) => drop(lost.insert(at)),
                (false, false) if !lost.contains(&at) => durable[place].copy_from_slice(sector),
                _ => {}
            }
        }
        let hook = state.after_sync.take();
        drop(state);
        if let Some(hook) = hook {
            hook();
        }
        match refuse {
            true => Err(io::Error::other("the disk refuses")),
            false => Ok(()),
        }
    }
}
