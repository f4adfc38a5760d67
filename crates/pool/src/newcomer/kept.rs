//! What was done already, in a file beside the new data folder.
//!
//! The file is `FOLDER.lockstep-pool-add`. Its first line says in JSON which node it is about; each further
//! line is a step that is done. A line counts once it ends; what a crash leaves of one does not. The first
//! line is on disk before anything is made: so a clone and a slot that are there with it were made for this
//! node, and without it were not.
//!
//! Whoever works on the folder holds a lock on the file. pg_basebackup, whose process that receives WAL would
//! outlive a killed caller for ever, gets the file as its standard input: the next call knows it by that, and
//! ends it before it touches the folder.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::error::NewcomerError;

/// Most bytes of the file.
const MOST_FILE: u64 = 64 * 1024;

/// How long a killed program may take to end, and the time between two looks.
const STRAY_PATIENCE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Which node is added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    pub node: String,
    /// The cluster's system identifier.
    pub system: i64,
    pub slot: String,
}

/// How far it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Set before the slot and the clone are made. Left once the clone is whole; until then it is made anew.
    Begun,
    /// The clone and its settings are on disk. The server may have been started.
    Cloned,
    /// What a peer has in memory was read; only joining is left.
    Warm,
}

impl Step {
    const ALL: [Self; 3] = [Self::Begun, Self::Cloned, Self::Warm];

    fn name(self) -> &'static str {
        match self {
            Self::Begun => "begun",
            Self::Cloned => "cloned",
            Self::Warm => "warm",
        }
    }
}

/// What is in the new data folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Folder {
    /// There is no folder, or nothing in it.
    Empty,
    Filled,
}

/// What is to be done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Todo {
    /// Nothing of this node is there yet.
    Begin,
    /// A clone that is not whole is removed and made anew.
    CloneAnew,
    /// The clone is whole.
    GoOn(Step),
}

/// Decides what is to be done.
pub fn decide(
    kept: Option<&(About, Step)>,
    wanted: &About,
    folder: Folder,
    (path, file): (&Path, &Path),
) -> Result<Todo, NewcomerError> {
    match (kept, folder) {
        (Some((about, _)), _) if about != wanted => Err(NewcomerError::OtherNode {
            file: file.to_path_buf(),
            found: words(about),
            wanted: words(wanted),
        }),
        (None, Folder::Empty) => Ok(Todo::Begin),
        (None, Folder::Filled) => Err(NewcomerError::NotEmpty(path.to_path_buf())),
        (Some((_, step)), Folder::Filled) if *step >= Step::Cloned => Ok(Todo::GoOn(*step)),
        // Also if somebody has removed a clone that was whole.
        (Some(_), _) => Ok(Todo::CloneAnew),
    }
}

fn words(about: &About) -> String {
    format!(
        "node {} with slot {} of cluster {}",
        about.node, about.slot, about.system
    )
}

fn parse(text: &str) -> Option<(About, Step)> {
    // What a crash has left of a line has no end.
    let (whole, _) = text.rsplit_once('\n')?;
    let mut lines = whole.lines();
    let head: Value = serde_json::from_str(lines.next()?).ok()?;
    let of = |name: &str| head.get(name)?.as_str().map(str::to_owned);
    let about = About {
        node: of("node")?,
        system: of("system")?.parse().ok()?,
        slot: of("slot")?,
    };
    let step = |line: &str| Step::ALL.into_iter().find(|step| step.name() == line);
    Some((
        about,
        lines.next_back().and_then(step).unwrap_or(Step::Begun),
    ))
}

/// The file, locked.
#[derive(Debug)]
pub struct Kept {
    path: PathBuf,
    file: Flock<File>,
}

impl Kept {
    /// The file beside a data folder.
    pub fn beside(data: &Path) -> PathBuf {
        let mut name = data.as_os_str().to_owned();
        name.push(".lockstep-pool-add");
        name.into()
    }

    /// Opens the file, or makes an empty one, and locks it. Says what it holds.
    pub fn open(data: &Path) -> Result<(Self, Option<(About, Step)>), NewcomerError> {
        let path = Self::beside(data);
        let io = |what| NewcomerError::io(what, &path);
        let file = File::options()
            .read(true)
            .append(true)
            .create(true)
            .open(&path)
            .map_err(io("write"))?;
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock);
        let busy = |pid| NewcomerError::Busy {
            data: data.to_path_buf(),
            pid,
        };
        let mut file = file.map_err(|(file, errno)| match errno {
            Errno::EWOULDBLOCK => busy(who_holds(&file)),
            errno => io("lock")(io::Error::from(errno)),
        })?;
        // Who had the lock before may have finished, and removed the file.
        if file.metadata().map_err(io("read"))?.nlink() == 0 {
            return Err(busy(None));
        }
        end_strays(&file).map_err(io("end the programs that have"))?;
        let mut text = String::new();
        Read::take(&mut *file, MOST_FILE)
            .read_to_string(&mut text)
            .map_err(io("read"))?;
        let kept = parse(&text);
        Ok((Self { path, file }, kept))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Begins: what a crash left of a first line goes away.
    pub fn begin(&mut self, about: &About) -> Result<(), NewcomerError> {
        let head = json!({
            "schema": 1,
            "node": about.node,
            "system": about.system.to_string(),
            "slot": about.slot,
        });
        let emptied = self.file.set_len(0).and_then(|()| self.file.rewind());
        emptied.map_err(NewcomerError::io("write", &self.path))?;
        self.line(&head.to_string())?;
        // The name must last as well.
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        let synced = File::open(parent).and_then(|folder| folder.sync_all());
        synced.map_err(NewcomerError::io("write", parent))
    }

    /// Says that a step is done.
    pub fn done(&mut self, step: Step) -> Result<(), NewcomerError> {
        self.line(step.name())
    }

    fn line(&mut self, line: &str) -> Result<(), NewcomerError> {
        let written = self.file.write_all(format!("{line}\n").as_bytes());
        let synced = written.and_then(|()| self.file.sync_all());
        synced.map_err(NewcomerError::io("write", &self.path))
    }

    /// The file as the standard input of a program that works on the folder.
    pub fn mark(&self) -> Result<File, NewcomerError> {
        File::open(&self.path).map_err(NewcomerError::io("open", &self.path))
    }

    /// Removes the file: the node serves, or nothing was begun.
    pub fn remove(self) -> Result<(), NewcomerError> {
        fs::remove_file(&self.path).map_err(NewcomerError::io("remove", &self.path))
    }
}

/// The process that holds the lock on a file, as far as the kernel says.
fn who_holds(file: &File) -> Option<u32> {
    let inode = file.metadata().ok()?.ino();
    holder(&fs::read_to_string("/proc/locks").ok()?, inode)
}

/// The process with a lock on an inode. Reads `1: FLOCK  ADVISORY  WRITE 4711 08:01:99 0 EOF`.
fn holder(locks: &str, inode: u64) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (kind, pid, place) = (words.next()?, words.nth(2)?, words.next()?);
        let (_, found) = place.rsplit_once(':')?;
        (kind == "FLOCK" && found.parse() == Ok(inode)).then(|| pid.parse().ok())?
    })
}

/// Ends what a killed call has left: the programs whose standard input is this file.
fn end_strays(file: &File) -> io::Result<()> {
    let ours = file.metadata()?;
    let began = Instant::now();
    loop {
        let mut left = false;
        for entry in fs::read_dir("/proc")? {
            let Ok(entry) = entry else { continue };
            let Some(pid) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            // What has ended meanwhile, or is another user's, is none of ours.
            let Ok(input) = fs::metadata(entry.path().join("fd/0")) else {
                continue;
            };
            if (input.dev(), input.ino()) == (ours.dev(), ours.ino()) {
                left = true;
                let _ = signal::kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        if !left {
            return Ok(());
        }
        if began.elapsed() > STRAY_PATIENCE {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(LOOK_EVERY);
    }
}

pub fn look(data: &Path) -> Result<Folder, NewcomerError> {
    let mut entries = match fs::read_dir(data) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Folder::Empty),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(NewcomerError::NoFolder(data.to_path_buf()));
        }
        Err(error) => return Err(NewcomerError::io("read", data)(error)),
    };
    Ok(match entries.next() {
        None => Folder::Empty,
        Some(_) => Folder::Filled,
    })
}

/// Gives a folder that is there the rights that PostgreSQL asks for; pg_basebackup does so only for one that
/// it makes.
pub fn close(data: &Path) -> Result<(), NewcomerError> {
    match fs::set_permissions(data, fs::Permissions::from_mode(0o700)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(NewcomerError::io(
            "take the rights of others from",
            data,
        )(error)),
        _ => Ok(()),
    }
}

/// Removes what a half-made clone has in its folder, which may be a mount point and stays.
pub fn clear(data: &Path) -> Result<(), NewcomerError> {
    if look(data)? == Folder::Empty {
        return Ok(());
    }
    // pg_basebackup copies none.
    if data.join("postmaster.pid").exists() {
        return Err(NewcomerError::InUse(data.to_path_buf()));
    }
    for entry in fs::read_dir(data).map_err(NewcomerError::io("read", data))? {
        let entry = entry.map_err(NewcomerError::io("read", data))?;
        let path = entry.path();
        let kind = entry
            .file_type()
            .map_err(NewcomerError::io("read", &path))?;
        let removed = match kind.is_dir() {
            true => fs::remove_dir_all(&path),
            false => fs::remove_file(&path),
        };
        removed.map_err(NewcomerError::io("remove", &path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use lockstep_lab::assert_has;
    use std::process::{Command, Stdio};

    use super::*;

    fn about(node: &str) -> About {
        About {
            node: node.to_owned(),
            system: i64::MIN,
            slot: "s".to_owned(),
        }
    }

    #[test]
    fn a_lock_names_its_process() {
        let locks = "1: POSIX  ADVISORY  WRITE 5 08:01:99 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 6 08:01:99 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 4711 08:01:99 0 EOF\n";
        assert_eq!(holder(locks, 99), Some(4711));
        assert_eq!(holder(locks, 9), None);
    }

    #[test]
    fn a_file_is_no_folder() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "x").unwrap();
        assert!(matches!(look(&file), Err(NewcomerError::NoFolder(_))));
    }

    #[test]
    fn what_is_there_says_what_is_to_be_done() {
        let paths = (Path::new("/data"), Path::new("/data.x"));
        let todo = |kept: Option<(About, Step)>, folder| {
            let todo = decide(kept.as_ref(), &about("a"), folder, paths);
            todo.map_err(|error| error.to_string())
        };
        assert_eq!(todo(None, Folder::Empty), Ok(Todo::Begin));
        assert_has!(
            todo(None, Folder::Filled).unwrap_err(),
            "/data is not empty"
        );
        for (step, folder, expected) in [
            (Step::Begun, Folder::Empty, Todo::CloneAnew),
            (Step::Begun, Folder::Filled, Todo::CloneAnew),
            (Step::Cloned, Folder::Filled, Todo::GoOn(Step::Cloned)),
            (Step::Warm, Folder::Filled, Todo::GoOn(Step::Warm)),
            (Step::Warm, Folder::Empty, Todo::CloneAnew),
        ] {
            assert_eq!(
                todo(Some((about("a"), step)), folder),
                Ok(expected),
                "{step:?} {folder:?}"
            );
            let other = todo(Some((about("b"), step)), folder).unwrap_err();
            assert!(other.contains("/data.x is about node b"), "{other}");
        }
    }

    #[test]
    fn a_file_is_read_as_it_was_written_whatever_a_crash_left() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let (mut kept, found) = Kept::open(&data).unwrap();
        assert_eq!(found, None);
        assert!(
            matches!(Kept::open(&data), Err(NewcomerError::Busy { pid: Some(pid), .. }) if pid == std::process::id())
        );
        kept.begin(&about("a")).unwrap();
        kept.done(Step::Cloned).unwrap();
        let whole = fs::read_to_string(kept.path()).unwrap();
        let path = kept.path().to_path_buf();
        // What a killed call has left is ended, and nothing else.
        let sleep = |input: Stdio| {
            Command::new("sleep")
                .arg("600")
                .stdin(input)
                .spawn()
                .unwrap()
        };
        let mut stray = sleep(kept.mark().unwrap().into());
        let mut other = sleep(Stdio::null());
        drop(kept);
        // It is a zombie until it is waited for, and has no input any more.
        drop(Kept::open(&data).unwrap());
        assert!(!stray.wait().unwrap().success());
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();

        let first = whole.find('\n').unwrap();
        for length in 0..=whole.len() {
            let expected = match length {
                length if length == whole.len() => Some((about("a"), Step::Cloned)),
                length if length > first => Some((about("a"), Step::Begun)),
                _ => None,
            };
            assert_eq!(parse(&whole[..length]), expected, "{length}");
        }
        fs::write(&path, &whole[..first]).unwrap();
        let torn = folder.path().join("torn");
        fs::write(Kept::beside(&torn), &whole[..first]).unwrap();
        let (mut kept, found) = Kept::open(&torn).unwrap();
        assert_eq!(found, None);
        kept.begin(&about("b")).unwrap();
        drop(kept);
        let (kept, found) = Kept::open(&torn).unwrap();
        assert_eq!(found, Some((about("b"), Step::Begun)));
        kept.remove().unwrap();
        assert!(!Kept::beside(&torn).exists());
    }

    #[test]
    fn a_half_made_clone_goes_away_and_a_server_stays() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        assert_eq!(look(&data.join("none")).unwrap(), Folder::Empty);
        fs::create_dir(data.join("base")).unwrap();
        fs::write(data.join("base/1"), "").unwrap();
        assert_eq!(look(data).unwrap(), Folder::Filled);
        fs::write(data.join("postmaster.pid"), "1").unwrap();
        assert!(matches!(clear(data), Err(NewcomerError::InUse(_))));
        fs::remove_file(data.join("postmaster.pid")).unwrap();
        clear(data).unwrap();
        assert_eq!(look(data).unwrap(), Folder::Empty);
        fs::set_permissions(data, fs::Permissions::from_mode(0o755)).unwrap();
        close(data).unwrap();
        assert_eq!(
            fs::metadata(data).unwrap().permissions().mode() & 0o777,
            0o700
        );
        close(&data.join("none")).unwrap();
    }
}
