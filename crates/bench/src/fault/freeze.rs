//! A process that is stopped, as by a debugger or a machine that hangs.

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use lockstep_lab::LabError;

use crate::Result;

/// A stopped process. Dropping this lets it go on.
#[derive(Debug)]
pub struct Frozen(Pid);

impl Frozen {
    /// Stops a process, which must be one that the lab started.
    pub fn process(pid: u32) -> Result<Self> {
        let failed = |reason: String| LabError::Program {
            program: "kill -STOP".to_owned(),
            reason,
        };
        let pid = i32::try_from(pid).map_err(|error| failed(error.to_string()))?;
        let pid = Pid::from_raw(pid);
        signal::kill(pid, Signal::SIGSTOP).map_err(|error| failed(error.to_string()))?;
        Ok(Self(pid))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // It may have been ended meanwhile.
        let _ = signal::kill(self.0, Signal::SIGCONT);
    }
}
