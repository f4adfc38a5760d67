//! Slow system calls of one process, or of those that it starts: strace stops the process after each
//! call. It makes storage slow without a slow disk.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use lockstep_lab::LabError;
use lockstep_lab::cluster::Lab;
use lockstep_lab::pinning::Side;
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use crate::Result;

const STRACE: &str = "/usr/bin/strace";

/// How long strace may take to detach from a process.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process whose calls are slow. Dropping this makes them as fast as before.
#[derive(Debug)]
pub struct SlowCalls {
    child: Child,
}

impl SlowCalls {
    /// Why it cannot be done here, if it cannot.
    pub fn missing() -> Option<&'static str> {
        (!Path::new(STRACE).exists()).then_some("strace is not installed")
    }

    /// Makes each of `calls` (comma-separated) of a process take `delay` longer. The process
    /// must be one that the lab started.
    pub fn of(lab: &Lab, pid: u32, calls: &str, delay: Duration) -> Result<Self> {
        Self::attach(lab, pid, calls, delay, false)
    }

    /// Like [`SlowCalls::of`], and of all processes that it starts from now on. They wait beside each
    /// other.
    pub fn of_children(lab: &Lab, pid: u32, calls: &str, delay: Duration) -> Result<Self> {
        Self::attach(lab, pid, calls, delay, true)
    }

    fn attach(lab: &Lab, pid: u32, calls: &str, delay: Duration, children: bool) -> Result<Self> {
        let mut strace = lab.launcher().command_as_ourselves(STRACE);
        strace.args(["--quiet=all", "--output=/dev/null"]);
        strace.arg(format!("--attach={pid}"));
        strace.arg(format!("--trace={calls}"));
        strace.arg("--seccomp-bpf").arg("--status=none");
        strace.arg(format!("--inject={calls}:delay_exit={}", delay.as_micros()));
        if children {
            strace.arg("--follow-forks");
        }
        strace.stdout(Stdio::null()).stderr(Stdio::null());
        let child = lab.launcher().spawn(strace, Side::Both)?;
        let mut slow = Self { child };
        slow.await_attached(pid)?;
        Ok(slow)
    }

    fn await_attached(&mut self, pid: u32) -> Result<()> {
        let failed = |reason: String| LabError::Program {
            program: "strace".to_owned(),
            reason,
        };
        let began = Instant::now();
        loop {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let tracer = status
                .lines()
                .find_map(|line| line.strip_prefix("TracerPid:"));
            if tracer.is_some_and(|tracer| tracer.trim() != "0") {
                return Ok(());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(
                    failed(format!("it cannot trace process {pid} here ({status})")).into(),
                );
            }
            if began.elapsed() > PATIENCE {
                return Err(failed(format!("it did not attach to process {pid}")).into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for SlowCalls {
    fn drop(&mut self) {
        // On SIGTERM strace detaches, and a process that it has stopped goes on.
        if let Ok(pid) = i32::try_from(self.child.id()) {
            let _ = signal::kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let began = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if began.elapsed() > PATIENCE {
                let _ = self.child.kill();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
