//! A server whose reads of data take [`LATENCY`] each, although the kernel has all of it in its
//! cache: storage with a read latency, which serves any number of reads at once.
//!
//! `slow_reads.c` is compiled into the run folder and loaded into the server by LD_PRELOAD. Its
//! header says what it takes storage to be. Server and benchmark share a file: the benchmark
//! writes the latency into it, and reads what the library has counted.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockstep_lab::LabError;
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::Server;
use serde::{Deserialize, Serialize};

use crate::replay::cache::settle_files;
use crate::{BenchError, Result};

/// How long a read of a block takes that was not asked for before.
pub const LATENCY: Duration = Duration::from_millis(1);

const SOURCE: &str = include_str!("slow_reads.c");
const COMPILER: &str = "/usr/bin/cc";

/// The environment variable that names the shared file.
const FILE_VARIABLE: &str = "LOCKSTEP_SLOW_READS";

/// A number in the shared file.
#[derive(Debug, Clone, Copy)]
enum Field {
    Latency,
    Loaded,
    Notes,
    Reads,
    Found,
    Delayed,
}

impl Field {
    /// Fields are words in the order of `SlowReads` in slow_reads.c.
    fn offset(self) -> u64 {
        let index = match self {
            Self::Latency => 0,
            Self::Loaded => 1,
            Self::Notes => 2,
            Self::Reads => 3,
            Self::Found => 4,
            Self::Delayed => 5,
        };
        index * 8
    }
}

/// What the library has counted since reads became slow, as keys of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadCounts {
    /// Blocks asked for ahead (posix_fadvise), each once until it is read.
    #[serde(rename = "prefetches")]
    pub notes: u64,
    /// Blocks read.
    #[serde(rename = "slow_reads")]
    pub reads: u64,
    /// Blocks read that had been asked for ahead.
    #[serde(rename = "prefetched_reads")]
    pub found: u64,
    /// Reads, of any number of blocks, that waited.
    #[serde(rename = "delayed_reads")]
    pub delayed: u64,
}

/// The compiled library.
#[derive(Debug)]
pub struct Library {
    path: PathBuf,
}

impl Library {
    /// Why it cannot be made here, if it cannot.
    pub fn missing() -> Option<&'static str> {
        (!Path::new(COMPILER).exists()).then_some("there is no C compiler, /usr/bin/cc")
    }

    /// Compiles it into the run folder, once.
    pub fn of(lab: &Lab) -> Result<Self> {
        let path = lab.folder().join("slow_reads.so");
        if !path.exists() {
            let source = lab.write_file("slow_reads.c", SOURCE)?;
            let mut cc = lab.launcher().command(COMPILER);
            cc.args(["-shared", "-fPIC", "-O2", "-o"]);
            cc.arg(&path).arg(source);
            lab.launcher().run(cc)?;
        }
        Ok(Self { path })
    }

    /// A shared file for one server or program. Reads are not slow yet.
    pub fn share(&self, lab: &Lab, name: &str) -> Result<SlowReads> {
        let path = lab.folder().join(format!("slow-reads-{name}"));
        lab.launcher().create_file(&path)?;
        let shared = File::options()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(BenchError::io("open", &path))?;
        shared
            .set_len(Field::Delayed.offset() + 8)
            .map_err(BenchError::io("write", &path))?;
        Ok(SlowReads {
            library: self.path.clone(),
            path,
            shared,
        })
    }
}

/// Slow reads of one server. Dropping this removes the shared file's name and changes nothing else.
#[derive(Debug)]
pub struct SlowReads {
    library: PathBuf,
    path: PathBuf,
    shared: File,
}

impl SlowReads {
    /// Readies a server that has not started: it will load the library, and its files are in the
    /// kernel's cache. Reads are not slow yet.
    pub fn prepare(lab: &Lab, server: &mut Server) -> Result<Self> {
        let slow = Library::of(lab)?.share(lab, &server.id().name)?;
        for (name, value) in slow.environment() {
            server.set_environment(name, value);
        }
        settle_files(server.data())?;
        Ok(slow)
    }

    /// What makes a program load the library and find the shared file.
    pub fn environment(&self) -> [(&'static str, &Path); 2] {
        [("LD_PRELOAD", &self.library), (FILE_VARIABLE, &self.path)]
    }

    /// From now on reads take `latency`. The server must run.
    pub fn begin(&self, latency: Duration) -> Result<()> {
        if self.field(Field::Loaded)? == 0 {
            let reason = "the server has not loaded the library that makes reads slow";
            return Err(LabError::Measurement(reason.to_owned()).into());
        }
        let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.shared
            .write_all_at(&nanoseconds.to_ne_bytes(), Field::Latency.offset())
            .map_err(BenchError::io("write", &self.path))
    }

    pub fn counts(&self) -> Result<ReadCounts> {
        Ok(ReadCounts {
            notes: self.field(Field::Notes)?,
            reads: self.field(Field::Reads)?,
            found: self.field(Field::Found)?,
            delayed: self.field(Field::Delayed)?,
        })
    }

    fn field(&self, field: Field) -> Result<u64> {
        let mut word = [0; 8];
        self.shared
            .read_exact_at(&mut word, field.offset())
            .map_err(BenchError::io("read", &self.path))?;
        Ok(u64::from_ne_bytes(word))
    }
}

impl Drop for SlowReads {
    fn drop(&mut self) {
        // What is left goes with the lab's folder.
        let _ = fs::remove_file(&self.path);
    }
}
