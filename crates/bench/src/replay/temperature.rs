//! Which part of a standby's data is in memory when it replays.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clap::ValueEnum;
use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::{Pinning, Side};
use lockstep_lab::server::Server;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use crate::replay::cache::files_below;
use crate::replay::slow_reads::SlowReads;
use crate::{BenchError, Result};

/// Interval at which the kernel's cache of the data files is dropped.
const EVICT_EVERY: Duration = Duration::from_millis(200);

/// Interval at which a sleeping evictor looks whether it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Least shared_buffers, in megabytes.
const LEAST_BUFFERS_MB: u64 = 16;

/// Part of the data that fits when 30 per cent are cached.
const PART_CACHED: f64 = 0.3;

/// How warm the data is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Temperature {
    /// The whole data is in shared buffers.
    Cached,
    // They are full at the start. The cache of the data files is dropped five times a second,
    // so the rest comes from storage.
    /// Shared buffers of 30 per cent of it; the kernel's cache of the rest is dropped all the time.
    #[value(name = "30pct")]
    Part,
    // As 30pct at the start. The kernel's cache keeps everything, and a library in the server makes
    // it wait, which is what makes reads slow.
    /// Shared buffers of 30 per cent of it; a read of the rest takes 1 ms from when it was asked for.
    #[value(name = "30pct-1ms")]
    PartSlow,
    // Room in shared buffers; nothing in the kernel's cache either.
    /// Nothing of it, with room for all.
    Cold,
}

impl Temperature {
    /// All, from warm to cold.
    pub const ALL: [Self; 4] = [Self::Cached, Self::Part, Self::PartSlow, Self::Cold];

    /// The name in cases.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Part => "30pct",
            Self::PartSlow => "30pct-1ms",
            Self::Cold => "cold",
        }
    }

    /// shared_buffers for `data_bytes` of data, as written in postgresql.conf.
    pub fn shared_buffers(self, data_bytes: u64) -> String {
        let data_mb = data_bytes.div_ceil(1 << 20);
        let megabytes = match self {
            // Twice the data: tables grow, and PostgreSQL does not find every free buffer.
            Self::Cached | Self::Cold => data_mb * 2,
            Self::Part | Self::PartSlow => (data_mb as f64 * PART_CACHED) as u64,
        };
        format!("{}MB", megabytes.max(LEAST_BUFFERS_MB))
    }

    /// A library makes reads slow.
    pub fn is_slow(self) -> bool {
        self == Self::PartSlow
    }

    /// Helpers with which Lockstep replays unless told otherwise. These machines have two cores;
    /// helpers that wait for storage need none.
    pub fn helpers(self) -> u32 {
        match self {
            Self::Cached | Self::Part | Self::Cold => 1,
            Self::PartSlow => 4,
        }
    }

    /// Readies a standby that has not started. Reads are slow only once they are told to be.
    pub fn prepare(self, lab: &Lab, standby: &mut Server) -> Result<Option<SlowReads>> {
        match self {
            Self::Cached | Self::Part | Self::Cold => Ok(None),
            Self::PartSlow => SlowReads::prepare(lab, standby).map(Some),
        }
    }

    /// Brings a freshly started standby to this temperature. The returned evictor keeps it there
    /// until dropped.
    pub fn settle(self, standby: &Server, pinning: &Pinning) -> Result<Option<Evictor>> {
        if self != Self::Cold {
            warm(standby)?;
        }
        match self {
            Self::Cached | Self::PartSlow => Ok(None),
            Self::Part => {
                drop_kernel_cache(standby.data(), true)?;
                Ok(Some(Evictor::start(standby.data(), pinning)))
            }
            Self::Cold => drop_kernel_cache(standby.data(), true).map(|()| None),
        }
    }
}

/// Reads every table and index into shared buffers, as far as they go.
fn warm(standby: &Server) -> Result<()> {
    Ok(standby.execute(
        "SELECT pg_prewarm(oid) FROM pg_class \
         WHERE relkind IN ('r', 'i', 't', 'm') AND relpersistence = 'p' ORDER BY relkind",
    )?)
}

/// Files with data in a data folder.
fn data_files(data: &Path) -> Result<Vec<PathBuf>> {
    let mut files = files_below(&data.join("base"))?;
    files.extend(files_below(&data.join("global"))?);
    Ok(files)
}

/// Makes the kernel forget data files. Pages not yet written stay, unless `sync`.
fn drop_kernel_cache(data: &Path, sync: bool) -> Result<()> {
    for path in data_files(data)? {
        let Ok(file) = File::open(&path) else {
            continue;
        };
        if sync {
            file.sync_data().map_err(BenchError::io("sync", &path))?;
        }
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)
            .map_err(|error| BenchError::io("drop the cache of", &path)(error.into()))?;
    }
    Ok(())
}

/// Drops the kernel's cache of data files again and again, until dropped.
#[derive(Debug)]
pub struct Evictor {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Evictor {
    fn start(data: &Path, pinning: &Pinning) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (theirs, data, pinning) = (Arc::clone(&stop), data.to_path_buf(), pinning.clone());
        let thread = thread::spawn(move || {
            pinning.pin_current_thread(Side::Primary);
            while !theirs.load(Ordering::Relaxed) {
                // A file may have been dropped meanwhile.
                let _ = drop_kernel_cache(&data, false);
                let mut slept = Duration::ZERO;
                while slept < EVICT_EVERY && !theirs.load(Ordering::Relaxed) {
                    thread::sleep(LOOK_EVERY);
                    slept += LOOK_EVERY;
                }
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Evictor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn buffers_follow_the_data() {
        let gigabyte = 1 << 30;
        assert_eq!(Temperature::Cached.shared_buffers(gigabyte), "2048MB");
        assert_eq!(Temperature::Cold.shared_buffers(gigabyte), "2048MB");
        assert_eq!(Temperature::Part.shared_buffers(gigabyte), "307MB");
        assert_eq!(Temperature::PartSlow.shared_buffers(gigabyte), "307MB");
        assert_eq!(Temperature::Part.shared_buffers(1), "16MB");
    }

    #[test]
    fn only_files_with_data_are_found() {
        let folder = tempfile::tempdir().unwrap();
        for sub in ["base/1", "global", "pg_wal"] {
            fs::create_dir_all(folder.path().join(sub)).unwrap();
            fs::write(folder.path().join(sub).join("f"), "x").unwrap();
        }
        let found = data_files(folder.path()).unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        drop_kernel_cache(folder.path(), true).unwrap();
    }
}
