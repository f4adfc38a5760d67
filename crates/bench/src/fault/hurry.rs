//! A process that gets a core before all others, as if the machine had one more. It shows the
//! limit of the process itself on a machine that other processes use. Needs root.

use lockstep_lab::cluster::Lab;

use crate::Result;

/// A process of high priority. Dropping this makes it an ordinary one.
#[derive(Debug)]
pub struct Hurry {
    pid: u32,
}

impl Hurry {
    /// Why it cannot be done here, if it cannot.
    pub fn missing() -> Option<&'static str> {
        (!nix::unistd::geteuid().is_root()).then_some("only root may raise priorities")
    }

    /// Raises a process's priority: its own, and that of its scheduling group where the
    /// kernel has one for each session.
    pub fn process(lab: &Lab, pid: u32) -> Result<Self> {
        let mut renice = lab.launcher().command_as_ourselves("/usr/bin/renice");
        renice.args(["-n", "-20", "-p", &pid.to_string()]);
        lab.launcher().run(renice)?;
        let hurry = Self { pid };
        hurry.group("-20");
        Ok(hurry)
    }

    /// The kernel limits how often this may change, so a refused change is tried again.
    fn group(&self, nice: &str) {
        for _ in 0..20 {
            match std::fs::write(format!("/proc/{}/autogroup", self.pid), nice) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
                // Without such groups there is nothing to write to.
                Ok(()) | Err(_) => return,
            }
        }
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        self.group("0");
        let _ = std::process::Command::new("/usr/bin/renice")
            .args(["-n", "0", "-p", &self.pid.to_string()])
            .output();
    }
}
