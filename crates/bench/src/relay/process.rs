//! A relay: `lockstep relay` as a child process.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_lab::cluster::Lab;
use lockstep_lab::launch::failure_line;
use lockstep_lab::pinning::Side;
use lockstep_lab::usage;
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use super::{ConsumerError, Endpoint};
use crate::BenchError;
use crate::Result;

/// How long a relay may take to accept connections, and to end.
const PATIENCE: Duration = Duration::from_secs(120);

/// Interval at which the relay is asked whether it accepts connections or has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How a relay is started.
#[derive(Debug, Clone)]
pub struct RelayOptions {
    /// The program `lockstep`.
    pub program: PathBuf,
    /// Size of its cache, as `--logical-wal-cache` takes it: `0`, `16MB`.
    pub cache: String,
    /// The relay's slots on the primary are failover slots, so that it takes over a replica's, which are
    /// such slots; from 17 on.
    pub failover: bool,
}

/// A running relay. Dropping this kills the process and removes its spool.
#[derive(Debug)]
pub struct Relay {
    child: Child,
    port: u16,
    folder: PathBuf,
}

impl Relay {
    /// Starts a relay in front of a primary, on the cores of the standby's side, and waits
    /// until it accepts connections. One at a time in a lab.
    pub fn start(lab: &Lab, primary: &Endpoint, options: &RelayOptions) -> Result<Self> {
        let folder = lab.folder().join("relay");
        // The spool of an earlier relay does not fit this primary.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).map_err(BenchError::io("create", &folder))?;
        let port = free_port().map_err(BenchError::io("listen on", Path::new("127.0.0.1")))?;
        let log = fs::File::create(folder.join("log")).map_err(BenchError::io("write", &folder))?;
        let mut command = lab.launcher().command_as_ourselves(&options.program);
        command.arg("relay");
        command.args(["--listen", &format!("127.0.0.1:{port}")]);
        command.args(["--primary", &primary.conninfo()]);
        command.arg("--spool").arg(folder.join("spool"));
        command.args(["--logical-wal-cache", &options.cache]);
        if options.failover {
            command.args(["--failover", "true"]);
        }
        command.stdout(Stdio::null()).stderr(log);
        let child = lab.launcher().spawn(command, Side::Standby)?;
        let mut relay = Self {
            child,
            port,
            folder,
        };
        relay.await_listening()?;
        Ok(relay)
    }

    fn await_listening(&mut self) -> Result<()> {
        let began = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err() {
            self.check()?;
            if began.elapsed() > PATIENCE {
                return Err(self.failed("does not accept connections"));
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// An error if it has ended.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(_)) | Err(_) => Err(self.failed("has ended")),
        }
    }

    fn failed(&self, what: &'static str) -> BenchError {
        let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        ConsumerError::Relay {
            what,
            reason: failure_line(&log).unwrap_or_else(|| "it logged nothing".to_owned()),
        }
        .into()
    }

    /// Where its consumers connect.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint {
            name: "relay",
            port: self.port,
        }
    }

    /// The relay's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn process(&self) -> i32 {
        i32::try_from(self.pid()).unwrap_or(i32::MAX)
    }

    /// CPU seconds so far.
    pub fn cpu_s(&self) -> f64 {
        usage::cpu_s(self.process()).unwrap_or(0.0)
    }

    /// The most memory that it has had so far, in megabytes.
    pub fn most_rss_mb(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()));
        status
            .unwrap_or_default()
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok())
            .map_or(0.0, |kb| kb / 1024.0)
    }

    /// Ends it with SIGTERM.
    pub fn stop(mut self) -> Result<()> {
        let _ = signal::kill(Pid::from_raw(self.process()), Signal::SIGTERM);
        let began = Instant::now();
        while let Ok(None) = self.child.try_wait() {
            if began.elapsed() > PATIENCE {
                return Err(self.failed("does not end"));
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A port that is free at the moment.
fn free_port() -> std::io::Result<u16> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
        .local_addr()
        .map(|address| address.port())
}
