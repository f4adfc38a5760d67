//! Ending every process of a run folder and removing the folder.
//!
//! A sweep needs nothing but the folder's path, so that the reaper ([`crate::guard`]) can do
//! it too. It unmounts file systems that are mounted inside the folder (the power-loss tests
//! mount some) and frees their loop devices. A process belongs to the folder if the lab started it or
//! one of its parents: then its HOME is the folder ([`crate::launch`]). A server writes its state over its
//! environment, so one of the distribution's PostgreSQL programs belongs to it, too, if its working directory
//! is inside. A user's shell in the folder is left alone.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_service::postgres::PACKAGES;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub const UMOUNT: &str = "/usr/bin/umount";

/// How long servers may take for an immediate shutdown before they are killed.
const PATIENCE: Duration = Duration::from_secs(5);

const LOSETUP: &str = "/usr/sbin/losetup";

/// Pause between two looks for processes of the folder, and between two tries to remove it.
const POLL: Duration = Duration::from_millis(20);

/// The folder counts as quiet when no process was found this many times in a row: a program
/// that is being started during one look is found by the next.
const QUIET_LOOKS: u32 = 2;

/// Ends all processes of the folder, at once, and removes it.
pub fn sweep(folder: &Path) {
    end_processes(folder);
    remove_shared_memory(folder);
    remove(folder);
}

fn end_processes(folder: &Path) {
    let started = Instant::now();
    let mut quiet = 0;
    let mut told: Vec<i32> = Vec::new();
    let mut segments: Vec<PathBuf> = Vec::new();
    while quiet < QUIET_LOOKS && started.elapsed() < 2 * PATIENCE {
        let found = processes(folder);
        quiet = if found.is_empty() { quiet + 1 } else { 0 };
        let postmasters = postmasters(folder);
        let late = started.elapsed() > PATIENCE;
        for pid in found {
            // On SIGQUIT a postmaster ends its children itself and removes their shared
            // memory. Killing them all would leave it behind.
            let signal = if late {
                Signal::SIGKILL
            } else if postmasters.contains(&pid) {
                Signal::SIGQUIT
            } else if has_parent_among(pid, &postmasters) {
                continue;
            } else {
                Signal::SIGKILL
            };
            if late {
                segments.extend(shared_segments(pid));
            }
            if late || !told.contains(&pid) {
                told.push(pid);
                let _ = kill(Pid::from_raw(pid), signal);
            }
        }
        thread::sleep(POLL);
    }
    for segment in segments {
        let _ = fs::remove_file(segment);
    }
}

/// POSIX shared memory of PostgreSQL that a process has mapped. A server that is killed leaves
/// it in /dev/shm.
pub fn shared_segments(pid: i32) -> Vec<PathBuf> {
    fs::read_to_string(format!("/proc/{pid}/maps"))
        .unwrap_or_default()
        .lines()
        .filter_map(|line| {
            line.split_whitespace()
                .find(|word| word.starts_with("/dev/shm/PostgreSQL."))
        })
        .map(PathBuf::from)
        .collect()
}

/// Live processes that belong to the folder.
pub fn processes(folder: &Path) -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&pid: &i32| belongs(pid, folder))
        .collect()
}

fn belongs(pid: i32, folder: &Path) -> bool {
    let link = |name: &str| fs::read_link(format!("/proc/{pid}/{name}"));
    // A zombie does not belong: its links cannot be read, and its environment is empty.
    let is_server = || {
        link("cwd").is_ok_and(|cwd| cwd.starts_with(folder))
            && link("exe").is_ok_and(|exe| exe.starts_with(PACKAGES))
    };
    let is_own = i64::from(pid) == i64::from(std::process::id());
    !is_own && (is_server() || home(pid).is_some_and(|home| home.starts_with(folder)))
}

/// HOME as a process was started with it.
fn home(pid: i32) -> Option<PathBuf> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut settings = environment.split(|byte| *byte == 0);
    let home = settings.find_map(|setting| setting.strip_prefix(b"HOME="))?;
    Some(PathBuf::from(OsStr::from_bytes(home)))
}

/// The parent of a process, if it still exists.
pub fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name, in parentheses, may hold any character, so count from its end.
    stat.rsplit(')')
        .next()?
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

fn has_parent_among(pid: i32, postmasters: &[i32]) -> bool {
    parent(pid).is_some_and(|parent| postmasters.contains(&parent))
}

fn pid_files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    entries
        .flatten()
        .map(|entry| entry.path().join("postmaster.pid"))
        .filter(|path| path.is_file())
        .collect()
}

fn postmasters(folder: &Path) -> Vec<i32> {
    pid_files(folder)
        .iter()
        .filter_map(|path| {
            fs::read_to_string(path)
                .ok()?
                .lines()
                .next()?
                .trim()
                .parse()
                .ok()
        })
        .collect()
}

/// Identifier of the System V segment of a server, by its postmaster.pid.
fn segment_of(pid_file: &Path) -> Option<String> {
    let text = fs::read_to_string(pid_file).ok()?;
    let key_and_id = text.lines().nth(6)?;
    key_and_id.split_whitespace().nth(1).map(str::to_owned)
}

/// Whether a process has the System V segment of this data folder's server. A process that was killed keeps
/// it for a moment after it seems to be gone, and PostgreSQL does not start meanwhile.
pub fn is_segment_attached(data: &Path) -> bool {
    let Some(id) = segment_of(&data.join("postmaster.pid")) else {
        return false;
    };
    let segments = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let mut fields = (segments.lines()).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let found = fields.find(|fields| fields.get(1) == Some(&id.as_str()));
    found.is_some_and(|fields| fields.get(6).is_some_and(|attached| *attached != "0"))
}

/// Removes the System V segment that a killed postmaster leaves; the seventh line of
/// postmaster.pid names it. (POSIX segments are found while it runs: [`shared_segments`].)
fn remove_shared_memory(folder: &Path) {
    for path in pid_files(folder) {
        let id = segment_of(&path);
        if let Some(id) = id {
            let _ = Command::new("/usr/bin/ipcrm")
                .args(["-m", &id])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
        }
    }
}

/// Mount points in the folder, innermost first.
pub fn mounts(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_to_string("/proc/self/mountinfo")
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|point| PathBuf::from(unescape(point)))
        .filter(|point| point.starts_with(folder))
        .collect();
    found.sort_by_key(|point| std::cmp::Reverse(point.components().count()));
    found
}

/// The kernel writes blanks and backslashes in paths as `\` and three octal digits.
fn unescape(point: &str) -> String {
    [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ]
    .into_iter()
    .fold(point.to_owned(), |text, (code, plain)| {
        text.replace(code, plain)
    })
}

fn unmount(folder: &Path) {
    for point in mounts(folder) {
        if !quietly(UMOUNT, |command| command.arg(&point)) {
            // A process still has a file open. A lazy unmount hides the file system now and
            // ends it when the file is closed.
            quietly(UMOUNT, |command| command.arg("--lazy").arg(&point));
        }
    }
}

/// Loop devices and the files behind them.
pub fn loop_devices() -> Vec<(String, PathBuf)> {
    let listed = Command::new(LOSETUP)
        .args([
            "--list",
            "--noheadings",
            "--raw",
            "--output",
            "NAME,BACK-FILE",
        ])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let Ok(listed) = listed else {
        return Vec::new();
    };
    String::from_utf8_lossy(&listed.stdout)
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(device, file)| (device.to_owned(), PathBuf::from(file)))
        .collect()
}

/// Frees loop devices that were never mounted; the others go with their mount.
fn free_loop_devices(folder: &Path) {
    for (device, file) in loop_devices() {
        if file.starts_with(folder) {
            quietly(LOSETUP, |command| command.args(["--detach", &device]));
        }
    }
}

fn quietly(program: &str, with: impl FnOnce(&mut Command) -> &mut Command) -> bool {
    let mut command = Command::new(program);
    with(&mut command)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn remove(folder: &Path) {
    let started = Instant::now();
    while folder.exists() && started.elapsed() < PATIENCE {
        // Each time: a mount that was under way at one look is found by the next.
        unmount(folder);
        free_loop_devices(folder);
        if fs::remove_dir_all(folder).is_err() {
            thread::sleep(POLL);
        }
    }
}
