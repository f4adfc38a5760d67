//! A consumer of a logical slot that takes all changes, replies, and confirms nothing.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lockstep_client::stream::{Next, Stream};
use lockstep_client::{Connection, Conninfo, Purpose};
use lockstep_lab::server::{SUPERUSER, Server};
use lockstep_service::clock::unix_us;
use lockstep_wire::Lsn;
use lockstep_wire::stream::{FromStandby, Status, Timestamp};

use crate::Result;

/// Interval between two replies.
const REPLY_EVERY: Duration = Duration::from_millis(200);

/// A thread with the consumer, until dropped.
pub struct Consumer {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").finish_non_exhaustive()
    }
}

impl Consumer {
    /// Starts to consume a slot, under the slot's name.
    pub fn start(server: &Server, slot: &str, publication: &str) -> Result<Self> {
        let refused = |error| server.refused("refused a stream", &error);
        let conninfo = Conninfo::parse(&server.conninfo(SUPERUSER)).map_err(refused)?;
        let options = [
            ("proto_version", "1".to_owned()),
            ("publication_names", publication.to_owned()),
        ];
        let stream = Connection::connect(&conninfo, Purpose::Replication, slot)
            .and_then(|connection| connection.start(slot, Lsn::INVALID, &options))
            .map_err(refused)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || consume(stream, &stopped));
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

fn consume(mut stream: Stream, stopped: &AtomicBool) {
    while !stopped.load(Ordering::Relaxed) {
        loop {
            match stream.next() {
                Ok(Next::NotYet) => break,
                Ok(Next::Ended) | Err(_) => return,
                Ok(_) => {}
            }
        }
        let reply = FromStandby::Status(Status {
            sent_at: Timestamp::from_unix_micros(unix_us()),
            ..Status::default()
        });
        if stream.send(&reply).is_err() || stream.wait(None, REPLY_EVERY).is_err() {
            return;
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
