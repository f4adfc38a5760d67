//! What `--history FOLDER` keeps: curves and incidents, in one file.
//!
//! | module | what |
//! |---|---|
//! | [`incidents`] | what was the matter, from when to when |
//! | [`record`] | the moments of a step of time, as bytes |
//! | [`store`] | the file |
//!
//! Whoever publishes states puts them into memory here, and a thread of its own writes them. So a
//! disk that is full, slow or gone delays neither samples nor pages: what cannot be written waits,
//! up to a bound, and the page says why. One process has the folder, by a lock on a file in it. A
//! damaged file is renamed and a new one begun; nothing is ever removed but by the limits.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use lockstep_lag::monitor::{Moment, MonitorState};
use lockstep_service::clock::unix_ms;
use nix::fcntl::{Flock, FlockArg};
use serde::Serialize;
use tracing::{error, info, warn};

use crate::error::ServeError;
use incidents::{Incident, Incidents};
use record::{Moments, keep_worst};
use store::{Batch, FINE_MS, Limits, Store, StoreError};

pub mod incidents;
mod record;
mod store;

const FILE: &str = "history.redb";

/// Time between two commits.
const COMMIT_EVERY: Duration = Duration::from_secs(5);

/// Time until the next attempt after a failure.
const RETRY: Duration = Duration::from_secs(30);

/// Most steps that wait for the disk: an hour.
const MOST_WAITING: usize = 360;

/// Most damaged files in the folder; with more, somebody has to look.
const MOST_DAMAGED: usize = 8;

const DAY_MS: i64 = 86_400_000;

/// Where the history is kept, and how much of it.
#[derive(Debug, Clone)]
pub struct HistorySettings {
    /// The folder, which is made if it is missing.
    pub folder: PathBuf,
    /// Days that curves and incidents are kept.
    pub days: u32,
    /// Most megabytes of their file; the oldest go first.
    pub megabytes: u32,
}

/// What is known about the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct HistoryStatus {
    pub folder: String,
    pub bytes: u64,
    pub limit_bytes: u64,
    /// Time for which curves and incidents are kept, milliseconds.
    pub kept_ms: i64,
    /// Begin of what is kept, milliseconds since 1970.
    pub oldest_ms: Option<i64>,
    /// Curves up to this time are in the file, and incidents once a state came after it was
    /// opened.
    pub saved_ms: Option<i64>,
    /// Damaged files that were set aside in this run, by name.
    pub damaged: Vec<String>,
    /// Why it cannot be written or read.
    pub trouble: Option<String>,
}

/// Ends its thread when it is dropped, after a last commit.
#[derive(Debug)]
pub struct Keeper {
    shared: Arc<KeeperParts>,
    thread: Option<JoinHandle<()>>,
    _lock: Flock<File>,
}

#[derive(Debug)]
struct KeeperParts {
    folder: PathBuf,
    limits: Limits,
    waiting: Mutex<Waiting>,
    wake: Condvar,
    /// Held while the disk is used: only the writer and readers that may block take it.
    store: Mutex<Option<Store>>,
    status: Mutex<HistoryStatus>,
}

#[derive(Debug, Default)]
struct Waiting {
    batch: Batch,
    /// Incidents of a file that was just opened.
    former: Option<Vec<Incident>>,
    /// The incidents of this run have the numbers that they keep.
    numbered: bool,
    stopping: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keeper {
    /// Takes the folder, which one process has at a time.
    pub fn open(settings: &HistorySettings) -> Result<Self, ServeError> {
        let folder = &settings.folder;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| ServeError::MakeFolder {
            folder: folder.clone(),
            error,
        })?;
        let lock = File::create(folder.join("lock"));
        let lock = lock.map_err(|error| ServeError::WriteFolder {
            folder: folder.clone(),
            error,
        })?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock)
            .map_err(|_| ServeError::FolderInUse(folder.clone()))?;
        let limits = Limits {
            kept_ms: i64::from(settings.days) * DAY_MS,
            bytes: u64::from(settings.megabytes) << 20,
        };
        Ok(Self::new(folder, limits, lock))
    }

    fn new(folder: &Path, limits: Limits, lock: Flock<File>) -> Self {
        let shared = Arc::new(KeeperParts {
            folder: folder.to_owned(),
            limits,
            waiting: Mutex::default(),
            wake: Condvar::new(),
            store: Mutex::default(),
            status: Mutex::new(HistoryStatus {
                folder: folder.display().to_string(),
                limit_bytes: limits.bytes,
                kept_ms: limits.kept_ms,
                ..HistoryStatus::default()
            }),
        });
        Self {
            shared,
            thread: None,
            _lock: lock,
        }
    }

    /// Begins to write.
    pub fn start(&mut self) {
        let shared = Arc::clone(&self.shared);
        self.thread = Some(thread::spawn(move || shared.run()));
    }

    /// Takes a state. This never waits for the disk.
    pub fn take(&self, state: &MonitorState, incidents: &mut Incidents) {
        let mut waiting = lock(&self.shared.waiting);
        if let Some(former) = waiting.former.take() {
            if !waiting.numbered {
                incidents.add_former(former);
            }
            waiting.numbered = true;
            let all = incidents.all().map(|one| (one.id, one.clone()));
            waiting.batch.incidents.extend(all);
        }
        let changed = incidents.take(state);
        if waiting.numbered {
            let changed = changed.into_iter().map(|one| (one.id, one));
            waiting.batch.incidents.extend(changed);
        }
        let step_ms = state.at_ms.div_euclid(FINE_MS) * FINE_MS;
        let steps = &mut waiting.batch.steps;
        for link in &state.links {
            let moments = steps.entry(step_ms).or_default();
            keep_worst(moments, &link.id, &Moment::from((state.at_ms, link)));
        }
        while steps.len() > MOST_WAITING {
            steps.pop_first();
        }
    }

    /// Writes what waits and ends, if the disk does not take longer than `patience`.
    pub fn finish(&self, patience: Duration) {
        self.stop();
        let until = Instant::now() + patience;
        let finished = |keeper: &Self| keeper.thread.as_ref().is_none_or(JoinHandle::is_finished);
        while !finished(self) && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Lets its thread write what waits, and end.
    pub fn stop(&self) {
        lock(&self.shared.waiting).stopping = true;
        self.shared.wake.notify_all();
    }

    pub fn status(&self) -> HistoryStatus {
        lock(&self.shared.status).clone()
    }

    /// Moments by link, the oldest first. Waits for the disk.
    pub fn read(
        &self,
        since_ms: i64,
        until_ms: i64,
        step_ms: i64,
    ) -> BTreeMap<String, Vec<Moment>> {
        let mut links: BTreeMap<String, Vec<Moment>> = BTreeMap::new();
        let mut store = lock(&self.shared.store);
        let Some(open) = store.as_ref() else {
            return links;
        };
        let each = |id: String, moment| links.entry(id).or_default().push(moment);
        let read = caught(|| open.read(since_ms, until_ms, step_ms, each));
        if let Err(error) = read {
            self.shared.failed(&mut store, &error);
        }
        links
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A panic of the database means that what it read cannot be.
fn caught<T>(work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let damaged = |_| StoreError::Damaged("reading it ended in a panic".to_owned());
    catch_unwind(AssertUnwindSafe(work)).map_err(damaged)?
}

impl KeeperParts {
    fn run(&self) {
        let mut stopping = false;
        while !stopping {
            self.commit();
            let failed = lock(&self.status).trouble.is_some();
            stopping = self.pause(if failed { RETRY } else { COMMIT_EVERY });
        }
        self.commit();
        *lock(&self.store) = None;
    }

    /// Waits; true if this is the end.
    fn pause(&self, time: Duration) -> bool {
        let waiting = lock(&self.waiting);
        let waited = self
            .wake
            .wait_timeout_while(waiting, time, |waiting| !waiting.stopping);
        let (waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
        waiting.stopping
    }

    fn commit(&self) {
        let mut store = lock(&self.store);
        if store.is_none() {
            if let Err(error) = self.open(&mut store) {
                return self.failed(&mut store, &error);
            }
        }
        let Some(open) = store.as_mut() else {
            return;
        };
        // What was taken before this time is in the batch.
        let now_ms = unix_ms();
        let batch = std::mem::take(&mut lock(&self.waiting).batch);
        let written = caught(|| {
            open.write(&batch, now_ms)?;
            Ok((open.bytes()?, open.oldest_ms()?))
        });
        match written {
            Ok((bytes, oldest_ms)) => {
                let mut status = lock(&self.status);
                status.bytes = bytes;
                status.oldest_ms = oldest_ms;
                status.saved_ms = Some(now_ms);
                if status.trouble.take().is_some() {
                    info!("the history is written again");
                }
            }
            Err(error) => {
                self.put_back(batch);
                self.failed(&mut store, &error);
            }
        }
    }

    fn open(&self, store: &mut Option<Store>) -> Result<(), StoreError> {
        let path = self.folder.join(FILE);
        let (open, former) = caught(|| {
            let open = Store::open(&path, self.limits)?;
            let former = open.incidents()?;
            Ok((open, former))
        })?;
        *store = Some(open);
        lock(&self.waiting).former = Some(former);
        Ok(())
    }

    /// What could not be written waits again, with what has come since.
    fn put_back(&self, batch: Batch) {
        let mut waiting = lock(&self.waiting);
        let newer = std::mem::replace(&mut waiting.batch, batch);
        waiting.batch.incidents.extend(newer.incidents);
        for (step_ms, moments) in newer.steps {
            let kept: &mut Moments = waiting.batch.steps.entry(step_ms).or_default();
            for (id, moment) in moments {
                keep_worst(kept, &id, &moment);
            }
        }
    }

    /// Closes the file, sets it aside if it is damaged, and says so once.
    fn failed(&self, store: &mut Option<Store>, error: &StoreError) {
        let open = store.take();
        // Closing writes, which may fail in any way as well.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(open)));
        let words = match error {
            StoreError::Failed(words) => format!("the history cannot be written or read: {words}"),
            StoreError::Damaged(words) => match self.set_aside() {
                Ok(name) => {
                    error!(
                        "the file of the history is damaged: {words}; it is now {name}, and a new one begins"
                    );
                    let mut status = lock(&self.status);
                    status.damaged.push(name);
                    drop(status);
                    self.wake.notify_all();
                    "a new file of the history begins".to_owned()
                }
                Err(why) => format!("the file of the history is damaged ({words}), and {why}"),
            },
        };
        let mut status = lock(&self.status);
        if status.trouble.as_ref() != Some(&words) {
            warn!("{words}");
            status.trouble = Some(words);
        }
    }

    /// Renames the file; the name that it has now.
    fn set_aside(&self) -> Result<String, String> {
        let damaged = format!("{FILE}.damaged-");
        let entries = fs::read_dir(&self.folder).map_err(|error| error.to_string())?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let there = names.filter(|name| name.starts_with(&damaged)).count();
        if there >= MOST_DAMAGED {
            let folder = self.folder.display();
            return Err(format!(
                "there are {there} damaged ones already: look at them in {folder}"
            ));
        }
        let name = format!("{damaged}{}-{there}", unix_ms() / 1000);
        if self.folder.join(&name).exists() {
            return Err(format!("there is a file {name} already"));
        }
        fs::rename(self.folder.join(FILE), self.folder.join(&name))
            .map_err(|error| format!("it cannot be renamed: {error}"))?;
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example;
    use tempfile::TempDir;

    fn keeper(folder: &Path) -> Keeper {
        let settings = HistorySettings {
            folder: folder.to_owned(),
            days: 7,
            megabytes: 16,
        };
        let mut keeper = Keeper::open(&settings).unwrap();
        keeper.start();
        keeper
    }

    /// Lags of the standby that are kept.
    fn kept(keeper: &Keeper) -> Vec<f64> {
        let links = keeper.read(0, i64::MAX, 0);
        let moments = links.get("primary/standby").into_iter().flatten();
        moments.map(|moment| moment.lag_ms).collect()
    }

    fn until(mut look: impl FnMut() -> bool) {
        while !look() {
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn state(ms: f64) -> MonitorState {
        let mut state = example::state();
        state.at_ms = unix_ms();
        example::lag(&mut state, 0, ms);
        state
    }

    #[test]
    fn curves_and_incidents_are_there_after_a_restart() {
        let folder = TempDir::new().unwrap();
        let first = keeper(folder.path());
        until(|| lock(&first.shared.waiting).former.is_some());
        let mut incidents = Incidents::default();
        first.take(&state(900.0), &mut incidents);
        drop(first);
        let second = keeper(folder.path());
        until(|| lock(&second.shared.waiting).former.is_some());
        assert_eq!(kept(&second), [900.0]);
        let mut incidents = Incidents::default();
        second.take(&state(300.0), &mut incidents);
        let all: Vec<_> = incidents.all().collect();
        assert_eq!((all.len(), all[0].most_lag_ms), (1, Some(900.0)));
    }

    #[test]
    fn what_cannot_be_written_waits_and_is_bounded() {
        let folder = TempDir::new().unwrap();
        // A folder in the place of the file cannot be opened as one.
        fs::create_dir(folder.path().join(FILE)).unwrap();
        let keeper = keeper(folder.path());
        until(|| keeper.status().trouble.is_some());
        let mut incidents = Incidents::default();
        for step in 0..(MOST_WAITING as i64 + 5) {
            let mut state = state(5.0);
            state.at_ms += step * FINE_MS;
            keeper.take(&state, &mut incidents);
        }
        let waiting = lock(&keeper.shared.waiting).batch.steps.len();
        assert_eq!(waiting, MOST_WAITING);
        fs::remove_dir(folder.path().join(FILE)).unwrap();
        keeper.shared.commit();
        assert_eq!(keeper.status().trouble, None);
        assert_eq!(kept(&keeper).len(), MOST_WAITING);
    }

    #[test]
    fn a_file_that_is_damaged_later_is_set_aside() {
        let folder = TempDir::new().unwrap();
        let keeper = keeper(folder.path());
        until(|| keeper.status().saved_ms.is_some());
        let damaged = StoreError::Damaged("bits".to_owned());
        keeper
            .shared
            .failed(&mut lock(&keeper.shared.store), &damaged);
        let [name] = &keeper.status().damaged[..] else {
            panic!("{:?}", keeper.status());
        };
        assert!(folder.path().join(name).exists());
        keeper.shared.commit();
        assert!(folder.path().join(FILE).exists());
        assert_eq!(keeper.status().trouble, None);
    }
}
