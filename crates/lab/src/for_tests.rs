//! Labs for tests: [`Lab::for_tests`], or a [`TestLab`] with more than that.
//!
//! A test binary says `lockstep_lab::reaper_entry!();` once, at its root. The environment says
//! which PostgreSQL (`PG`) and where the extension is staged (`LOCKSTEP_EXTENSION_STAGE`);
//! `make test` sets both. Tests with a source and a target have a source of another major if
//! `LOCKSTEP_SOURCE_PG` names one; `make test-majors` does.
//!
//! Their servers have fsync off unless a test turns it on, and jit off, since LLVM would
//! compile queries that run once. They do not fill new WAL segments with zeros (wal_init_zero). Their data
//! folders are copies of templates: initdb runs once, and once more for each further cluster that some lab
//! has. The templates are in the folder `LOCKSTEP_TEMPLATES`, which scripts/test-rust makes for all processes
//! of a run, or in a folder of this process alone.

use std::fmt::Debug;
use std::fs::{self, File};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};

use crate::cluster::{Lab, LabOptions};
use crate::data_folder::{self, Origin};
use crate::guard::{self, ReaperProgram};
use crate::launch::Launcher;
use crate::package::{Major, Package};
use crate::server::Settings;
use crate::{LabError, Result, port};

/// The PostgreSQL that tests use when the environment names none.
const USUAL_MAJOR: &str = "15";

/// Megabytes that a test's lab needs, unless it says so itself.
const USUAL_SPACE_MB: u64 = 1000;

/// Time between two looks at what a test waits for. Most looks start a session, which takes the servers some
/// milliseconds of CPU.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// The test that [`reaper_entry!`](crate::reaper_entry) makes, run alone.
const REAPER_ARGS: [&str; 3] = ["--exact", "reaper_entry", "--nocapture"];

/// The lab whose folder has this process's own templates. Nobody drops it: its reaper removes it when
/// the process ends.
static TEMPLATES: Mutex<Option<Lab>> = Mutex::new(None);

/// Locks of the ports that this process has, until it ends.
static PORTS_HELD: Mutex<Vec<Flock<File>>> = Mutex::new(Vec::new());

/// What a test's lab has.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct TestLab {
    extension: bool,
    pinned: bool,
    space_mb: u64,
}

impl TestLab {
    /// Stock servers that may use every core.
    pub fn stock() -> Self {
        Self {
            extension: false,
            pinned: false,
            space_mb: USUAL_SPACE_MB,
        }
    }

    /// Servers that find the staged extension.
    pub fn with_extension() -> Self {
        Self {
            extension: true,
            ..Self::stock()
        }
    }

    /// The lab with a core for each side.
    pub fn pinned(self) -> Self {
        Self {
            pinned: true,
            ..self
        }
    }

    /// Refuses to start a lab where less disk space is free.
    pub fn space_mb(self, space_mb: u64) -> Self {
        Self { space_mb, ..self }
    }

    pub fn start(self) -> Result<Lab> {
        let mut lab = Lab::new(&self.options()?)?;
        lab.origin = Origin::templates(template).into();
        lab.settings = Settings::from(
            [("fsync", "off"), ("jit", "off"), ("wal_init_zero", "off")]
                .map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        Ok(lab)
    }

    /// Options for [`Lab::new`]: a lab as users have it.
    pub fn options(self) -> Result<LabOptions> {
        Ok(LabOptions {
            major: major()?,
            stage: self.extension.then(stage).transpose()?,
            reaper: ReaperProgram {
                program: std::env::current_exe()
                    .map_err(LabError::io("find", "the program that runs".as_ref()))?,
                args: REAPER_ARGS.map(str::to_owned).to_vec(),
            },
            space_mb: self.space_mb,
            pinned: self.pinned,
        })
    }
}

/// Asserts that a text has some parts; shows the text if it lacks one.
#[macro_export]
macro_rules! assert_has {
    ($text:expr, $($part:expr),+ $(,)?) => {{
        let text = &$text;
        $(assert!(text.contains($part), "no {:?} in: {text}", $part);)+
    }};
}

impl Lab {
    /// A lab of stock servers.
    pub fn for_tests() -> Result<Self> {
        TestLab::stock().start()
    }
}

/// Which PostgreSQL is tested.
pub fn major() -> Result<Major> {
    std::env::var("PG")
        .unwrap_or_else(|_| USUAL_MAJOR.to_owned())
        .parse()
}

/// Which PostgreSQL a source has whose target is of the tested major.
pub fn source_major() -> Result<Major> {
    match std::env::var("LOCKSTEP_SOURCE_PG") {
        Ok(major) => major.parse(),
        Err(_) => major(),
    }
}

/// Where the build has staged the extension.
pub fn stage() -> Result<PathBuf> {
    std::env::var_os("LOCKSTEP_EXTENSION_STAGE")
        .map(PathBuf::from)
        .ok_or(LabError::NoStage)
}

/// The template of that major and number, made by the launcher's initdb if it is not there yet.
fn template(launcher: &Launcher, package: &Package, number: usize) -> Result<PathBuf> {
    let folder = templates()?;
    let data = folder.join(format!("{}-{number}", package.major()));
    // Several threads and processes come here at once.
    let lock = File::create(folder.join("lock")).map_err(LabError::io("lock", &folder))?;
    let _locked = Flock::lock(lock, FlockArg::LockExclusive)
        .map_err(|(_, error)| LabError::io("lock", &folder)(error.into()))?;
    if !data.exists() {
        let new = data.with_extension("new");
        if new.exists() {
            // Whoever made it was killed.
            fs::remove_dir_all(&new).map_err(LabError::io("remove", &new))?;
        }
        launcher.account().own(&folder)?;
        data_folder::initdb(launcher, package, &new)?;
        fs::rename(&new, &data).map_err(LabError::io("rename", &new))?;
    }
    Ok(data)
}

/// The folder of the templates.
fn templates() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("LOCKSTEP_TEMPLATES") {
        return Ok(folder.into());
    }
    let mut templates = TEMPLATES.lock().unwrap_or_else(PoisonError::into_inner);
    let lab = match &mut *templates {
        Some(lab) => lab,
        none => none.insert(Lab::new(&TestLab::stock().options()?)?),
    };
    Ok(lab.folder().to_path_buf())
}

/// A port for a program that a test starts. No other test of the run gets it, nor does a connection: it is
/// still free when the program comes to listen, or comes back.
pub fn free_port() -> Result<u16> {
    let folder = templates()?;
    loop {
        let port = port::free_for_tcp();
        let path = folder.join(format!("port-{port}"));
        let file = File::create(&path).map_err(LabError::io("lock", &path))?;
        if let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            let mut held = PORTS_HELD.lock().unwrap_or_else(PoisonError::into_inner);
            held.push(lock);
            return Ok(port);
        }
    }
}

/// A number from the environment; None if the variable is not set, or empty.
#[allow(clippy::expect_used)]
pub fn number<N: FromStr<Err: Debug>>(name: &str) -> Option<N> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().expect(name))
}

/// The seeds of a test that runs `usual` of them: `SEED` names one, `LOCKSTEP_SEEDS` says N or FROM-TO.
#[allow(clippy::expect_used)]
pub fn seeds(usual: u64) -> RangeInclusive<u64> {
    if let Some(seed) = number("SEED") {
        return seed..=seed;
    }
    let range = std::env::var("LOCKSTEP_SEEDS").unwrap_or_default();
    let (from, to) = range.split_once('-').unwrap_or(("1", &range));
    let number = |text: &str| text.parse().expect("LOCKSTEP_SEEDS is N or FROM-TO");
    match range.is_empty() {
        true => 1..=usual,
        false => number(from)..=number(to),
    }
}

/// Waits until what a test waits for is worth another look.
pub fn pause() {
    thread::sleep(BETWEEN_LOOKS);
}

/// Asserts that a text is what the file holds; `UPDATE_SNAPSHOTS` records it.
#[allow(clippy::unwrap_used)]
pub fn assert_recorded(path: &Path, text: &str) {
    let again = "UPDATE_SNAPSHOTS=1 records it";
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(path, text).unwrap();
    }
    let recorded = fs::read_to_string(path).unwrap_or_default();
    let mut lines = text.lines().zip(recorded.lines());
    let changed = lines.find(|(now, then)| now != then);
    assert_eq!(changed, None, "{} has changed; {again}", path.display());
    assert_eq!(text, recorded, "{} has changed; {again}", path.display());
}

/// What the test of [`reaper_entry!`](crate::reaper_entry) does: it is the reaper if this
/// program was started under the reaper's name, and nothing otherwise.
pub fn reap() -> std::io::Result<()> {
    match std::env::args().next().as_deref() {
        Some(guard::REAPER_NAME) => guard::run_reaper(),
        _ => Ok(()),
    }
}

/// The reaper of a test binary's labs: each lab starts the binary again, with this test alone.
/// Once in each binary that has labs, at its root.
#[macro_export]
macro_rules! reaper_entry {
    () => {
        #[test]
        fn reaper_entry() -> std::io::Result<()> {
            $crate::for_tests::reap()
        }
    };
}
