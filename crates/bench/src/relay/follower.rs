//! A server with a database that `lockstep replica` keeps in step.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_lab::cluster::Lab;
use lockstep_lab::launch::failure_line;
use lockstep_lab::server::Server;
use lockstep_lab::usage;
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use super::subscriber::Subscriber;
use super::{ConsumerError, Endpoint};
use crate::{BenchError, Result};

/// The replica's name; its slot and publication are named after it.
pub const REPLICA: &str = "bench";

/// How long the process may take to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Interval at which the process is looked at until it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The server, and the process that follows while it runs. Dropping it ends both.
#[derive(Debug)]
pub struct Follower {
    // First: it ends before its server does.
    running: Option<Running>,
    server: Subscriber,
    program: PathBuf,
    log: PathBuf,
    /// Number of writers, unless it is the program's default.
    writers: Option<u32>,
}

/// A process that dropping kills.
#[derive(Debug)]
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

impl Running {
    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.0.id()).unwrap_or(i32::MAX))
    }
}

impl Follower {
    /// Copies the database behind an endpoint to a server whose own is empty. `writers` change it
    /// afterwards.
    pub fn create(
        lab: &Lab,
        program: &Path,
        source: &Endpoint,
        server: Subscriber,
        writers: Option<u32>,
    ) -> Result<Self> {
        let mut create = lab.launcher().command_as_ourselves(program);
        create.args(["replica", "create", REPLICA, "--jobs", "2"]);
        create.args(["--source", &source.conninfo()]);
        create.args(["--target", &server.conninfo()]);
        lab.launcher().run(create)?;
        Ok(Self {
            server,
            program: program.to_path_buf(),
            log: lab.folder().join("replica.log"),
            running: None,
            writers,
        })
    }

    /// Starts `lockstep replica run`.
    pub fn start(&mut self, lab: &Lab) -> Result<()> {
        let log = fs::File::create(&self.log).map_err(BenchError::io("write", &self.log))?;
        let again = log
            .try_clone()
            .map_err(BenchError::io("write", &self.log))?;
        let mut run = lab.launcher().command_as_ourselves(&self.program);
        run.args(["replica", "run", REPLICA]);
        run.args(["--target", &self.server.conninfo()]);
        if let Some(writers) = self.writers {
            run.args(["--writers", &writers.to_string()]);
        }
        run.stdout(again).stderr(log).stdin(Stdio::null());
        self.running = Some(Running(lab.launcher().spawn(run, self.server.side())?));
        Ok(())
    }

    /// Ends it with SIGTERM.
    pub fn stop(&mut self) -> Result<()> {
        check(&mut self.running, &self.log)?;
        let Some(mut running) = self.running.take() else {
            return Ok(());
        };
        let _ = signal::kill(running.pid(), Signal::SIGTERM);
        let began = Instant::now();
        while let Ok(None) = running.0.try_wait() {
            if began.elapsed() > PATIENCE {
                return Err(failed(&self.log, "does not end"));
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Waits until it has applied the row that [`super::publisher::mark`] wrote last.
    pub fn await_mark(&mut self, primary: &Server) -> Result<()> {
        let Self {
            running,
            server,
            log,
            ..
        } = self;
        server.await_mark_while(primary, &mut || check(running, log))
    }

    /// The follower's server.
    pub fn server(&self) -> &Subscriber {
        &self.server
    }

    /// CPU seconds of the process that runs now.
    pub fn cpu_s(&self) -> f64 {
        let pid = self.running.as_ref().map(Running::pid);
        pid.and_then(|pid| usage::cpu_s(pid.as_raw()))
            .unwrap_or(0.0)
    }

    /// The follower's server, to be changed while nothing follows.
    pub fn server_mut(&mut self) -> &mut Subscriber {
        &mut self.server
    }

    /// Stops the server and removes its data.
    pub fn remove(mut self) -> Result<()> {
        self.stop()?;
        self.server.remove()
    }
}

/// An error if the process has ended by itself.
fn check(running: &mut Option<Running>, log: &Path) -> Result<()> {
    match running.as_mut().map(|it| it.0.try_wait()) {
        None | Some(Ok(None)) => Ok(()),
        Some(Ok(Some(_)) | Err(_)) => Err(failed(log, "has ended")),
    }
}

fn failed(log: &Path, what: &'static str) -> BenchError {
    let log = fs::read_to_string(log).unwrap_or_default();
    ConsumerError::Replica {
        what,
        reason: failure_line(&log).unwrap_or_else(|| "it logged nothing".to_owned()),
    }
    .into()
}
