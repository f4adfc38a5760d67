//! Transactions that go on while something else is done.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{SUPERUSER, Server};

/// Transactions of pgbench on a primary until it is dropped, whatever becomes of the primary.
/// What they leave prepared stays so.
pub struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    /// Starts a load with these arguments of pgbench.
    pub fn on(lab: &Lab, primary: &Server, args: &[&str]) -> Self {
        let mut pgbench = Command::new(lab.package().program("pgbench"));
        pgbench
            .args(["--no-vacuum", "--time=1"])
            .args(args)
            .arg(primary.conninfo(SUPERUSER))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let _ = pgbench.status();
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}
