//! Processes that use all the CPU that they get, as other programs of a machine do.

use std::process::{Child, Stdio};

use crate::Result;
use crate::cluster::Lab;
use crate::pinning::Side;

/// Running busy processes. Dropping the value ends them.
#[derive(Debug, Default)]
pub struct BusyProcesses {
    children: Vec<Child>,
}

impl Lab {
    /// Starts `count` busy processes on the cores of `side`, each in a session of its own, as
    /// programs started one by one are.
    pub fn start_busy_processes(&self, count: u32, side: Side) -> Result<BusyProcesses> {
        let mut busy = BusyProcesses::default();
        for _ in 0..count {
            let mut command = self.launcher().command("/bin/sh");
            command.args(["-c", "while :; do :; done"]);
            command.stdout(Stdio::null()).stderr(Stdio::null());
            busy.children.push(self.launcher().spawn(command, side)?);
        }
        Ok(busy)
    }
}

impl Drop for BusyProcesses {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
        }
        for child in &mut self.children {
            let _ = child.wait();
        }
    }
}
