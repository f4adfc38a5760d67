//! Starting programs: as the right account, on the right cores, in their own session,
//! and never once the lab is closing.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{PoisonError, RwLock};
use std::thread;

use crate::account::Account;
use crate::error::one_line;
use crate::pinning::{Pinning, Side};
use crate::{LabError, Result};

#[derive(Debug)]
pub struct Launcher {
    account: Account,
    pinning: Pinning,
    folder: PathBuf,
    /// True once no program may start any more. A thread that starts a program holds the lock
    /// shared: closing waits for it, so the sweep that follows finds the program.
    closing: RwLock<bool>,
}

impl Launcher {
    pub(crate) fn new(account: Account, pinning: Pinning, folder: PathBuf) -> Self {
        Self {
            account,
            pinning,
            folder,
            closing: RwLock::new(false),
        }
    }

    pub fn account(&self) -> &Account {
        &self.account
    }

    pub fn pinning(&self) -> &Pinning {
        &self.pinning
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Refuses to start any program from now on.
    pub(crate) fn close(&self) {
        *self.closing.write().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// A command for `program` as the account. It inherits nothing that could lead it to
    /// another server or folder: no PG* variables, no TMPDIR.
    ///
    /// The program runs in a session of its own, for two reasons. Ctrl-C reaches only the
    /// lab's process. And the kernel's autogroups (one scheduling group a session) let
    /// servers and clients compete as when started by hand, not within the lab's group.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.plain_command(program);
        self.account.run_as(&mut command);
        command
    }

    fn plain_command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("/usr/bin/setsid");
        command.arg(program);
        command.env_clear();
        command.env("PATH", "/usr/bin:/bin");
        command.env("LC_ALL", "C.UTF-8");
        command.env("TZ", "UTC");
        command.env("HOME", &self.folder);
        command.env("TMPDIR", &self.folder);
        command.current_dir(&self.folder);
        command.stdin(Stdio::null());
        command
    }

    /// Like [`Launcher::command`], but as this process's own account: for what only root may do.
    pub fn command_as_ourselves(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.plain_command(program);
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command
    }

    /// Starts `command` on the cores of `side`.
    pub fn spawn(&self, mut command: Command, side: Side) -> Result<Child> {
        let closing = self.closing.read().unwrap_or_else(PoisonError::into_inner);
        if *closing {
            return Err(LabError::Closing);
        }
        let program = program_name(&command);
        // A child inherits the affinity of the thread that forks it. A thread made for this
        // leaves the caller's own affinity alone.
        let spawned = thread::scope(|scope| {
            scope
                .spawn(|| {
                    self.pinning.pin_current_thread(side);
                    command.spawn()
                })
                .join()
        });
        match spawned {
            Ok(result) => result.map_err(LabError::io("start", Path::new(&program))),
            Err(_) => Err(LabError::Program {
                program,
                reason: "the thread that starts it died".to_owned(),
            }),
        }
    }

    /// Runs `command` on every core and waits for it.
    pub fn run(&self, command: Command) -> Result<()> {
        self.finish(command, Stdio::null()).map(drop)
    }

    /// Like [`Launcher::run`], and returns what the program printed.
    pub fn output(&self, command: Command) -> Result<String> {
        self.finish(command, Stdio::piped())
    }

    fn finish(&self, mut command: Command, stdout: Stdio) -> Result<String> {
        let program = program_name(&command);
        command.stdout(stdout).stderr(Stdio::piped());
        let output = self
            .spawn(command, Side::Both)?
            .wait_with_output()
            .map_err(LabError::io("wait for", Path::new(&program)))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(LabError::Program {
            program,
            reason: failure_line(&String::from_utf8_lossy(&output.stderr))
                .unwrap_or_else(|| output.status.to_string()),
        })
    }

    /// Copies folder `from`, with its modes and times, as this process's own account: that of the
    /// servers may not be able to enter it. The copy, `to`, belongs to the servers' account.
    pub fn copy_folder(&self, from: &Path, to: &Path) -> Result<()> {
        let from = std::path::absolute(from).map_err(LabError::io("find", from))?;
        let mut cp = self.command_as_ourselves("/usr/bin/cp");
        cp.args([
            "--recursive",
            "--reflink=auto",
            "--preserve=mode,timestamps",
        ]);
        cp.arg("--no-target-directory").arg(from).arg(to);
        self.run(cp)?;
        if self.account.is_other() {
            let mut chown = self.command_as_ourselves("/usr/bin/chown");
            chown.arg("--recursive").arg(self.account.name()).arg(to);
            self.run(chown)?;
        }
        Ok(())
    }

    /// Creates a file in the run folder that belongs to the account.
    pub fn create_file(&self, path: &Path) -> Result<File> {
        let file = File::create(path).map_err(LabError::io("create", path))?;
        self.account.own(path)?;
        Ok(file)
    }
}

/// The name of the program that `command` runs through setsid.
fn program_name(command: &Command) -> String {
    let program = command
        .get_args()
        .next()
        .unwrap_or_else(|| command.get_program());
    Path::new(program)
        .file_name()
        .unwrap_or(program)
        .to_string_lossy()
        .into_owned()
}

/// The line of a client program's output that says what went wrong: the last line with an
/// error, since lines after it often only say that the program gave up.
pub fn failure_line(output: &str) -> Option<String> {
    let lines = || output.lines().filter(|line| !line.trim().is_empty());
    lines()
        .rev()
        .find(|line| {
            ["error:", "FATAL:", "ERROR:"]
                .iter()
                .any(|word| line.contains(word))
        })
        .or_else(|| lines().next_back())
        .map(one_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_found_among_other_lines() {
        let output = "waiting\npg_basebackup: error: connection failed: no\npg_basebackup: removing data directory\n";
        assert_eq!(
            failure_line(output).unwrap(),
            "pg_basebackup: error: connection failed: no"
        );
        assert_eq!(failure_line("one\ntwo\n\n").unwrap(), "two");
        assert_eq!(failure_line("  \n"), None);
    }
}
