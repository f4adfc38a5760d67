//! A server with a database that `lockstep replica` keeps in step.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_lab::cluster::Lab;
use lockstep_lab::launch::failure_line;
use lockstep_lab::pinning::Side;
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

/// A process of the product, which dropping kills.
#[derive(Debug)]
pub struct Running {
    child: Child,
    log: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Running {
    /// Starts a command that writes what it says into a file.
    pub fn start(lab: &Lab, mut command: Command, side: Side, log: &Path) -> Result<Self> {
        let file = fs::File::create(log).map_err(BenchError::io("write", log))?;
        let again = file.try_clone().map_err(BenchError::io("write", log))?;
        command.stdout(again).stderr(file).stdin(Stdio::null());
        Ok(Self {
            child: lab.launcher().spawn(command, side)?,
            log: log.to_path_buf(),
        })
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(i32::MAX))
    }

    /// CPU seconds so far.
    pub fn cpu_s(&self) -> f64 {
        usage::cpu_s(self.pid().as_raw()).unwrap_or(0.0)
    }

    /// An error if it has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(_)) | Err(_) => Err(self.failed("has ended")),
        }
    }

    /// Ends it with SIGTERM.
    pub fn stop(mut self) -> Result<()> {
        self.check()?;
        let _ = signal::kill(self.pid(), Signal::SIGTERM);
        let began = Instant::now();
        while let Ok(None) = self.child.try_wait() {
            if began.elapsed() > PATIENCE {
                return Err(self.failed("does not end"));
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    fn failed(&self, what: &'static str) -> BenchError {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        ConsumerError::Replica {
            what,
            reason: failure_line(&log).unwrap_or_else(|| "it logged nothing".to_owned()),
        }
        .into()
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
        let mut run = lab.launcher().command_as_ourselves(&self.program);
        run.args(["replica", "run", REPLICA]);
        run.args(["--target", &self.server.conninfo()]);
        if let Some(writers) = self.writers {
            run.args(["--writers", &writers.to_string()]);
        }
        self.running = Some(Running::start(lab, run, self.server.side(), &self.log)?);
        Ok(())
    }

    /// Ends it with SIGTERM.
    pub fn stop(&mut self) -> Result<()> {
        self.running.take().map_or(Ok(()), Running::stop)
    }

    /// Waits until it has applied the row that [`super::publisher::mark`] wrote last.
    pub fn await_mark(&mut self, primary: &Server) -> Result<()> {
        let Self {
            running, server, ..
        } = self;
        server.await_mark_while(primary, &mut || {
            running.as_mut().map_or(Ok(()), Running::check)
        })
    }

    /// The follower's server.
    pub fn server(&self) -> &Subscriber {
        &self.server
    }

    /// CPU seconds of the process that runs now.
    pub fn cpu_s(&self) -> f64 {
        self.running.as_ref().map_or(0.0, Running::cpu_s)
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
