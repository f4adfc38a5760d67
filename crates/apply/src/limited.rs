//! The source's stream, of which no more is received a second than the replica may take.
//!
//! What is not received waits in the source's WAL, as if the network were slower. Who reads hears nothing for
//! a moment at most, so that all else goes on.

use std::os::fd::BorrowedFd;
use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::{ClientError, Next, Ready, Stream};
use lockstep_intake::driver::SourceStream;
use lockstep_wire::stream::{FromStandby, Status};

use crate::bandwidth::Schedule;
use crate::control::Control;

/// Longest time for which a reader of the stream sleeps.
const NAP: Duration = Duration::from_millis(20);

/// A stream with the limit that its replica has now.
pub(crate) struct LimitedStream {
    stream: Stream,
    control: Control,
    schedule: Option<Schedule>,
    began: Instant,
    /// Nothing is received before.
    until: Instant,
}

impl LimitedStream {
    pub fn new(stream: Stream, control: &Control) -> Self {
        let began = Instant::now();
        Self {
            stream,
            control: control.clone(),
            schedule: None,
            began,
            until: began,
        }
    }

    /// The next message, if it has arrived and may be received.
    pub fn next(&mut self) -> Result<Next, ClientError> {
        let bandwidth = self.control.bandwidth();
        if self.schedule.as_ref().map(Schedule::bytes_per_s) != bandwidth {
            self.schedule = bandwidth.map(Schedule::new);
            self.until = self.began;
        }
        let Some(schedule) = &mut self.schedule else {
            return self.stream.next();
        };
        let left = self.until.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            thread::sleep(left.min(NAP));
            return Ok(Next::NotYet);
        }
        let next = self.stream.next()?;
        if let Next::Data(data) = &next {
            let now = Instant::now();
            self.until = now + schedule.wait(now - self.began, data.len() as u64);
        }
        Ok(next)
    }

    pub fn wait(
        &mut self,
        wake: Option<BorrowedFd<'_>>,
        most: Duration,
    ) -> Result<Ready, ClientError> {
        self.stream.wait(wake, most)
    }

    pub fn send(&mut self, message: &FromStandby) -> Result<(), ClientError> {
        self.stream.send(message)
    }

    pub fn finish(self, patience: Duration) -> Result<(), ClientError> {
        self.stream.finish(patience)
    }
}

impl SourceStream for LimitedStream {
    type Data = lockstep_client::CopyData;

    fn next_message(&mut self) -> Result<Next, ClientError> {
        self.next()
    }

    fn confirm(&mut self, status: Status) -> Result<(), ClientError> {
        self.stream.confirm(status)
    }

    fn leave(self, patience: Duration) {
        self.stream.leave(patience);
    }
}
