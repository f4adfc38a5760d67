//! psql and pgbench, either as the user who invoked us against a server of their own, or
//! through a lab's launcher against a private one.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use lockstep_lab::LabError;
use lockstep_lab::cluster::Lab;
use lockstep_lab::error::one_line;
use lockstep_lab::guard;
use lockstep_lab::launch::{Launcher, failure_line};
use lockstep_lab::package::Package;
use lockstep_lab::pinning::Side;
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use super::TpccError;
use crate::BenchError;
use crate::Result;

/// Name of our sessions, unless the user chose another.
const APPLICATION: &str = "lockstep tpcc";

/// What psql exits with when it cannot connect or lost the connection.
const PSQL_BAD_CONNECTION: i32 = 2;

/// How to run PostgreSQL's client programs.
#[derive(Debug, Clone)]
pub struct Tools {
    package: Package,
    how: How,
}

#[derive(Debug, Clone)]
enum How {
    /// This process's own account, with its environment.
    Direct(Arc<Running>),
    /// The lab's account, on the cores of one side.
    Lab { launcher: Arc<Launcher>, side: Side },
}

/// Programs that we started directly and that have not ended: they are interrupted when
/// we are.
#[derive(Debug, Default)]
struct Running(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    closing: bool,
    pids: Vec<Pid>,
}

impl Running {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// psql passes an interrupt on to the server as a cancel request, so that nothing
    /// goes on there without us.
    fn interrupt(&self) {
        let mut state = self.state();
        state.closing = true;
        for &pid in &state.pids {
            let _ = signal::kill(pid, Signal::SIGINT);
        }
    }
}

/// A script that pgbench can read as long as this value lives.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) path: PathBuf,
    /// A file without a name, read through our own descriptor: nothing to clean up,
    /// whichever way we end.
    _nameless: Option<File>,
}

/// What a program left behind.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) code: Option<i32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Tools {
    /// The programs of `package`, run as ourselves.
    pub fn direct(package: Package) -> Self {
        Self {
            package,
            how: How::Direct(Arc::default()),
        }
    }

    /// The programs of the lab's package, run as its account on the cores of `side`.
    pub fn of_lab(lab: &Lab, side: Side) -> Self {
        Self {
            package: lab.package().clone(),
            how: How::Lab {
                launcher: Arc::clone(lab.launcher()),
                side,
            },
        }
    }

    /// On SIGINT, SIGTERM or SIGHUP interrupts what runs directly, then calls `exit` with
    /// the signal's number. A lab's programs end with the lab.
    pub fn end_on_signals(&self, exit: impl FnOnce(i32) + Send + 'static) -> Result<()> {
        match &self.how {
            How::Direct(running) => {
                let running = Arc::clone(running);
                Ok(guard::on_end_signals(move || running.interrupt(), exit)?)
            }
            How::Lab { .. } => Ok(()),
        }
    }

    /// A command for one of the package's programs.
    pub(super) fn command(&self, program: &str) -> Command {
        let path = self.package.program(program);
        let mut command = match &self.how {
            How::Direct(_) => {
                let mut command = Command::new(path);
                // Reports are parsed, so they must be in English.
                command.env("LC_ALL", "C.UTF-8").env_remove("LANGUAGE");
                command.stdin(Stdio::null());
                command
            }
            How::Lab { launcher, .. } => launcher.command(path),
        };
        if std::env::var_os("PGAPPNAME").is_none() || matches!(self.how, How::Lab { .. }) {
            command.env("PGAPPNAME", APPLICATION);
        }
        command
    }

    /// Starts a command.
    pub(super) fn spawn(&self, mut command: Command) -> Result<Child> {
        match &self.how {
            How::Direct(running) => {
                let mut state = running.state();
                if state.closing {
                    return Err(LabError::Closing.into());
                }
                let child = command
                    .spawn()
                    .map_err(BenchError::io("start", Path::new(command.get_program())))?;
                state.pids.extend(pid_of(&child));
                Ok(child)
            }
            How::Lab { launcher, side } => Ok(launcher.spawn(command, *side)?),
        }
    }

    /// Feeds `input` to a started program, hands each line of its standard error to
    /// `line`, and waits for its end.
    pub(super) fn finish(
        &self,
        mut child: Child,
        input: &str,
        mut line: impl FnMut(&str),
    ) -> Result<Ended> {
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        let stderr = child.stderr.take();
        let (stdout, stderr) = thread::scope(|scope| {
            let out = scope.spawn(|| read_all(stdout));
            scope.spawn(|| {
                if let Some(mut stdin) = stdin {
                    // A program that ends early says why elsewhere.
                    let _ = stdin.write_all(input.as_bytes());
                }
            });
            let errors = read_lines(stderr, &mut line);
            (out.join().unwrap_or_default(), errors)
        });
        // Forgotten before it is collected: afterwards its process id may be another's.
        if let How::Direct(running) = &self.how {
            let pid = pid_of(&child);
            running.state().pids.retain(|&other| Some(other) != pid);
        }
        let status = child
            .wait()
            .map_err(BenchError::io("wait for", self.package.bin()))?;
        Ok(Ended {
            code: status.code(),
            stdout,
            stderr,
        })
    }

    /// Runs SQL through psql and returns what it printed: a line for each row, columns
    /// separated by `|`. `what` is for messages, e.g. "loading table item".
    pub(super) fn psql(&self, conninfo: &str, what: &str, sql: &str) -> Result<String> {
        let mut psql = self.command("psql");
        psql.args(["--no-psqlrc", "--no-password", "--quiet"]);
        psql.args(["--tuples-only", "--no-align", "--field-separator=|"]);
        psql.args(["--set", "ON_ERROR_STOP=1"]);
        psql.arg(format!("--dbname={conninfo}"));
        psql.stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let ended = self.finish(self.spawn(psql)?, sql, |_| {})?;
        match ended.code {
            Some(0) => Ok(ended.stdout),
            Some(PSQL_BAD_CONNECTION) => Err(TpccError::Unreachable {
                reason: one_line(ended.stderr.trim_start_matches("psql: error: ")),
            }
            .into()),
            _ => Err(TpccError::Statement {
                what: what.to_owned(),
                reason: failure_line(&ended.stderr)
                    .unwrap_or_else(|| "psql was ended by a signal".to_owned()),
            }
            .into()),
        }
    }

    /// Makes a script readable for pgbench.
    pub(crate) fn script(&self, name: &str, text: &str) -> Result<Script> {
        match &self.how {
            How::Direct(_) => {
                let folder = std::env::temp_dir();
                let mut file = tempfile::tempfile().map_err(BenchError::io("write in", &folder))?;
                file.write_all(text.as_bytes())
                    .map_err(BenchError::io("write in", &folder))?;
                Ok(Script {
                    path: format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into(),
                    _nameless: Some(file),
                })
            }
            How::Lab { launcher, .. } => {
                let path = launcher.folder().join(format!("tpcc-{name}.sql"));
                launcher
                    .create_file(&path)?
                    .write_all(text.as_bytes())
                    .map_err(BenchError::io("write", &path))?;
                Ok(Script {
                    path,
                    _nameless: None,
                })
            }
        }
    }
}

fn pid_of(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().map(Pid::from_raw)
}

fn read_all(source: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut source) = source {
        // What was read before an error is still worth showing.
        let _ = source.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Last characters of a program's messages that are kept.
const KEPT_MESSAGES: usize = 16_384;

fn read_lines(source: Option<impl Read>, line: &mut impl FnMut(&str)) -> String {
    use std::io::{BufRead, BufReader};
    let mut kept = String::new();
    let Some(source) = source else {
        return kept;
    };
    let mut reader = BufReader::new(source);
    let mut bytes = Vec::new();
    while matches!(reader.read_until(b'\n', &mut bytes), Ok(length) if length > 0) {
        let text = String::from_utf8_lossy(&bytes);
        line(text.trim_end());
        if lockstep_lab::progress::parse(text.trim_end()).is_none() {
            kept.push_str(&text);
        }
        if kept.len() > KEPT_MESSAGES {
            // The last messages say why something ended.
            kept = kept
                .split_once('\n')
                .map(|(_, rest)| rest.to_owned())
                .unwrap_or_default();
        }
        bytes.clear();
    }
    kept
}
