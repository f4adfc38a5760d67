//! Removes every server and the run folder, whichever way the lab ends.
//!
//! - Normal end, error, panic: [`Guard`] is dropped and sweeps the run folder.
//! - SIGINT, SIGTERM, SIGHUP: a thread sweeps, then calls the caller's function to exit.
//! - SIGKILL: a small child process, the *reaper*, in a session of its own, holds the
//!   reading end of a pipe. If the pipe closes before the lab has written `DONE` to it,
//!   the lab's process was killed, and the reaper sweeps.

use std::fs;
use std::io::{self, BufRead, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::launch::Launcher;
use crate::sweep::sweep;
use crate::{LabError, Result};

/// The byte that tells the reaper that there is nothing to do.
const DONE: u8 = b'.';

/// The reaper's process name. It differs from the lab's own, so that killing the lab by name
/// does not kill the reaper too.
pub const REAPER_NAME: &str = "lab-reaper";

/// The first signal that asked this process to end, or 0.
static ASKED_TO_END: AtomicI32 = AtomicI32::new(0);

/// The signal that asked this process to end, if one did. Errors after it are its consequence.
pub fn asked_to_end() -> Option<i32> {
    match ASKED_TO_END.load(Ordering::SeqCst) {
        0 => None,
        signal => Some(signal),
    }
}

/// How to start the reaper: a program that calls [`run_reaper`] when given `args`.
#[derive(Debug, Clone)]
pub struct ReaperProgram {
    /// The program, usually the one that runs the lab.
    pub program: PathBuf,
    /// The arguments that make the program call [`run_reaper`].
    pub args: Vec<String>,
}

/// Sweeps the run folder at the end.
#[derive(Debug)]
pub struct Guard {
    launcher: Arc<Launcher>,
    /// Taken by the thread that ends the lab. Other threads wait for the lock until that is done.
    reaper: Mutex<Option<Child>>,
}

impl Guard {
    pub(crate) fn new(launcher: Arc<Launcher>, how: &ReaperProgram) -> Result<Self> {
        match start_reaper(how, launcher.folder()) {
            Ok(reaper) => Ok(Self {
                launcher,
                reaper: Mutex::new(Some(reaper)),
            }),
            Err(source) => {
                sweep(launcher.folder());
                Err(LabError::Io {
                    what: "start the process that cleans up,",
                    path: how.program.clone(),
                    source,
                })
            }
        }
    }

    /// Ends every process and removes the folder. Only the first call does the work, but
    /// every call returns only when it is done.
    pub(crate) fn finish(&self) {
        self.end(true);
    }

    pub(crate) fn keep(&self) {
        self.end(false);
    }

    fn end(&self, clean: bool) {
        self.launcher.close();
        let mut reaper = self.reaper.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut child) = reaper.take() else {
            return;
        };
        if clean {
            sweep(self.launcher.folder());
        }
        if let Some(mut pipe) = child.stdin.take() {
            let _ = pipe.write_all(&[DONE]);
        }
        let _ = child.wait();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.finish();
    }
}

/// On SIGINT, SIGTERM or SIGHUP ends the lab and calls `exit` with the signal's number.
pub(crate) fn end_on_signals(
    guard: Arc<Guard>,
    exit: impl FnOnce(i32) + Send + 'static,
) -> Result<()> {
    on_end_signals(move || guard.finish(), exit)
}

/// On SIGINT, SIGTERM or SIGHUP calls `finish`, then `exit` with the signal's number.
/// A signal that is ignored already (nohup) stays ignored.
pub fn on_end_signals(
    finish: impl FnOnce() + Send + 'static,
    exit: impl FnOnce(i32) + Send + 'static,
) -> Result<()> {
    let ignored = ignored_signals();
    let wanted = [SIGINT, SIGTERM, SIGHUP]
        .into_iter()
        .filter(|signal| ignored & (1 << (signal - 1)) == 0);
    let mut signals = Signals::new(wanted).map_err(LabError::io("handle", Path::new("signals")))?;
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            ASKED_TO_END.store(signal, Ordering::SeqCst);
            finish();
            exit(signal);
        }
    });
    Ok(())
}

/// Bit n-1 is set for each signal n that this process ignores.
fn ignored_signals() -> u64 {
    fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let mask = status
                .lines()
                .find_map(|line| line.strip_prefix("SigIgn:"))?;
            u64::from_str_radix(mask.trim(), 16).ok()
        })
        .unwrap_or(0)
}

fn start_reaper(how: &ReaperProgram, folder: &Path) -> io::Result<Child> {
    let mut child = Command::new(&how.program)
        .arg0(REAPER_NAME)
        .args(&how.args)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    // Wait until the reaper has left this session: before, a Ctrl-C would end it as well.
    let ready = tell_folder(&mut child, folder).and_then(|()| await_ready(&mut child));
    if let Err(error) = ready {
        let _ = child.kill();
        let _ = child.wait();
        return Err(error);
    }
    Ok(child)
}

fn tell_folder(child: &mut Child, folder: &Path) -> io::Result<()> {
    let pipe = child.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
    pipe.write_all(folder.as_os_str().as_encoded_bytes())?;
    pipe.write_all(b"\n")
}

fn await_ready(child: &mut Child) -> io::Result<()> {
    // If the reaper is a test binary, its harness prints lines of its own first and another
    // after a minute. Its output must still be open then, or the harness would end.
    let stdout = child.stdout.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
    for line in io::BufReader::new(stdout).lines() {
        if line?.ends_with(READY) {
            return Ok(());
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

/// What the reaper prints once it is in a session of its own.
const READY: &str = "reaper ready";

/// The reaper: reads the run folder from standard input, then waits for `DONE`, and
/// sweeps the folder if standard input ends without it.
pub fn run_reaper() -> io::Result<()> {
    let _ = nix::unistd::setsid();
    let _ = fs::write("/proc/self/comm", REAPER_NAME);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // Caught and ignored: only the pipe tells the reaper to end.
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let mut input = io::stdin().lock();
    let mut folder = String::new();
    input.read_line(&mut folder)?;
    let folder = Path::new(folder.trim_end_matches('\n'));
    // The reaper may be root, so it must never sweep anything but a run folder.
    let is_run_folder = folder.is_absolute()
        && folder.file_name().is_some_and(|name| {
            name.to_string_lossy()
                .starts_with(crate::run_folder::PREFIX)
        });
    if !is_run_folder {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    writeln!(io::stdout(), "{READY}")?;
    let mut word = Vec::new();
    // A pipe that cannot be read counts as closed.
    let _ = input.read_to_end(&mut word);
    if word.first() != Some(&DONE) {
        sweep(folder);
    }
    Ok(())
}
