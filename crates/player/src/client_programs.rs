//! Runs PostgreSQL's client programs: as the invoking user for that user's servers, and as
//! the lab's account for private servers.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use lockstep_lab::error::one_line;
use lockstep_lab::launch::{Launcher, failure_line};
use lockstep_lab::package::Package;
use lockstep_lab::pinning::Side;

use crate::PlayerError;
use crate::Result;

/// `application_name` of the programs.
const APPLICATION: &str = "lockstep-lab wal record";

#[derive(Debug, Clone)]
pub(crate) struct ClientPrograms {
    package: Package,
    /// None: the programs run as the invoking user.
    launcher: Option<Arc<Launcher>>,
}

/// The result of a program that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub success: bool,
    pub stdout: String,
    /// What went wrong, in one line: the program's message, or its exit status.
    pub reason: String,
}

impl ClientPrograms {
    /// Programs that run as the invoking user, with the user's `PG*` variables, service files and
    /// passwords.
    pub fn of_user(package: Package) -> Self {
        Self {
            package,
            launcher: None,
        }
    }

    /// Programs that run as the account of a lab.
    pub fn of_lab(package: Package, launcher: Arc<Launcher>) -> Self {
        Self {
            package,
            launcher: Some(launcher),
        }
    }

    /// These programs of another major.
    pub fn with_package(&self, package: Package) -> Self {
        Self {
            package,
            launcher: self.launcher.clone(),
        }
    }

    pub fn package(&self) -> &Package {
        &self.package
    }

    /// A command for one of the programs. Its messages are English and its times UTC, as the
    /// parsers here expect.
    pub fn command(&self, program: &str) -> Command {
        let path = self.package.program(program);
        let mut command = match &self.launcher {
            Some(launcher) => launcher.command(path),
            None => {
                // The program gets SIGTERM when the thread that starts it ends, even by
                // SIGKILL. In a process group of its own it does not get a Ctrl-C: the
                // recorder ends it when it is time.
                let mut command = Command::new("/usr/bin/setpriv");
                command.args(["--pdeathsig", "TERM"]).arg(path);
                command.process_group(0);
                command.stdin(Stdio::null());
                command
            }
        };
        command.env("LC_ALL", "C.UTF-8");
        command.env("TZ", "UTC");
        command.env("PGAPPNAME", APPLICATION);
        command
    }

    pub fn spawn(&self, mut command: Command) -> Result<Child> {
        match &self.launcher {
            Some(launcher) => Ok(launcher.spawn(command, Side::Both)?),
            None => {
                let program = self.package.bin().to_path_buf();
                command
                    .spawn()
                    .map_err(PlayerError::io("start a program of", &program))
            }
        }
    }

    /// Runs a program and waits for its end.
    pub fn run(&self, mut command: Command) -> Result<Ended> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = self
            .spawn(command)?
            .wait_with_output()
            .map_err(PlayerError::io("wait for a program of", self.package.bin()))?;
        Ok(Ended {
            success: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            reason: reason(&String::from_utf8_lossy(&output.stderr), &output.status),
        })
    }

    /// Gives a file or folder to the account that the programs run as.
    pub fn own(&self, path: &Path) -> Result<()> {
        match &self.launcher {
            Some(launcher) => Ok(launcher.account().own(path)?),
            None => Ok(()),
        }
    }
}

/// What went wrong, in one line. psql's message about a failed connection has several lines;
/// all of them matter, so they are joined.
pub(crate) fn reason(stderr: &str, status: &std::process::ExitStatus) -> String {
    let connection = stderr.lines().position(|line| {
        line.contains("connection to server") || line.contains("connection failed")
    });
    match connection {
        Some(first) => one_line(&stderr.lines().skip(first).collect::<Vec<_>>().join(" ")),
        None => failure_line(stderr).unwrap_or_else(|| status.to_string()),
    }
}
