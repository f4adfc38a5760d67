//! A session that writes a little, all the time.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lockstep_client::Canceller;
use lockstep_lab::server::{SUPERUSER, Server};

use crate::Result;

/// A thread that runs one statement again and again until dropped.
pub struct Writer {
    stop: Arc<AtomicBool>,
    canceller: Canceller,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

impl Writer {
    /// Runs `sql` in a database, with a pause after each time. Ends at the first error.
    pub fn start(server: &Server, database: &str, sql: &str, pause: Duration) -> Result<Self> {
        Self::spawn(server, database, sql, pause, false)
    }

    /// Like [`Self::start`], but goes on after errors that leave the connection open.
    pub fn stubborn(server: &Server, database: &str, sql: &str, pause: Duration) -> Result<Self> {
        Self::spawn(server, database, sql, pause, true)
    }

    fn spawn(
        server: &Server,
        database: &str,
        sql: &str,
        pause: Duration,
        stubborn: bool,
    ) -> Result<Self> {
        let mut client = server
            .config(SUPERUSER, "lockstep writer")
            .database(database)
            .connect()
            .map_err(|error| server.refused("refused a connection", &error))?;
        let canceller = client
            .canceller()
            .map_err(|error| server.refused("refused a connection", &error))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let sql = sql.to_owned();
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                match client.execute(&sql) {
                    Err(error) if !stubborn || error.refusal().is_none() => return,
                    _ => thread::sleep(pause),
                }
            }
        });
        Ok(Self {
            stop,
            canceller,
            thread: Some(thread),
        })
    }

    /// A statement has failed, which ended the thread.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else {
            return;
        };
        // A commit may wait for a synchronous replica that a fault holds up. A cancel that
        // comes between two statements cancels nothing, but then the flag is seen.
        while !thread.is_finished() {
            let _ = self.canceller.cancel();
            thread::sleep(Duration::from_millis(50));
        }
        let _ = thread.join();
    }
}
