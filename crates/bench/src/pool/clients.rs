//! Clients of a pool: writers, and readers with a new session for each read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::ClientError;
use lockstep_lab::address::ServerAddress;

use super::ledger::{LOOK, Ledger, Read};
use super::proxy::session;
use crate::{BenchError, Result};

/// When a client does something: at set times, however long the last one took, unless that was longer.
#[derive(Debug)]
pub struct Pace {
    next: Instant,
    every: Duration,
}

impl Pace {
    /// One of `clients`, the `number`th, that together do `rate` things a second.
    pub fn of(number: usize, clients: usize, rate: f64) -> Self {
        let every = Duration::from_secs_f64(clients as f64 / rate);
        Self {
            next: Instant::now() + every.mul_f64(number as f64 / clients as f64),
            every,
        }
    }

    /// Waits for the next time. What was missed is not made up for.
    pub fn wait(&mut self) {
        let now = Instant::now();
        thread::sleep(self.next.saturating_duration_since(now));
        self.next = self.next.max(now) + self.every;
    }
}

/// A writer, until the end: it commits to the primary, and the ledger knows when.
pub fn write(
    ledger: &Ledger,
    primary: &ServerAddress,
    writer: usize,
    rate: f64,
    stop: &AtomicBool,
) -> Result<()> {
    let failed = |error: ClientError| BenchError::Unusable(format!("a writer failed: {error}"));
    let mut session = primary.connect().map_err(failed)?;
    let mut pace = Pace::of(writer, ledger.writers(), rate);
    while !stop.load(Ordering::Relaxed) {
        pace.wait();
        session.execute(&ledger.next(writer).1).map_err(failed)?;
        ledger.acknowledge(writer);
    }
    Ok(())
}

/// What readers have seen.
#[derive(Debug, Default)]
pub struct Reads {
    all: Mutex<Vec<Read>>,
    /// Reads that failed: no session, or no answer.
    pub failed: AtomicU64,
}

impl Reads {
    pub fn push(&self, read: Read) {
        self.all
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(read);
    }

    pub fn take(&self) -> Vec<Read> {
        std::mem::take(&mut self.all.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A reader, until the end: each read has a new session through HAProxy.
pub fn read(ledger: &Ledger, reads: &Reads, port: u16, mut pace: Pace, stop: &AtomicBool) {
    loop {
        pace.wait();
        if stop.load(Ordering::Relaxed) {
            return;
        }
        match read_once(ledger, port) {
            Some(read) => reads.push(read),
            None => {
                reads.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

fn read_once(ledger: &Ledger, port: u16) -> Option<Read> {
    let begun = ledger.now();
    let mut session = session(port).ok()?;
    let asked = ledger.now();
    let rows = session.query(LOOK).ok()?;
    let mut row = rows.into_iter().next()?.into_iter();
    let (seen, is_standby) = (row.next()??, row.next()??);
    let seen = seen.split(' ').map(str::parse).collect::<Result<_, _>>();
    Some(Read {
        begun,
        asked,
        seen: seen.ok()?,
        is_standby: is_standby == "true",
    })
}
