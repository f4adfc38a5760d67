//! Clients of a pool: writers, and readers with a new session for each read.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ScopedJoinHandle};
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
    /// When reads began that failed: no session, or no answer.
    failed: Mutex<Vec<Duration>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reads {
    pub fn all(&self) -> Vec<Read> {
        self.since(Duration::ZERO)
    }

    /// Reads whose session was asked for at this moment or later.
    pub fn since(&self, from: Duration) -> Vec<Read> {
        let reads = locked(&self.all);
        let new = reads.iter().filter(|read| read.begun >= from);
        new.cloned().collect()
    }

    /// When reads began that failed.
    pub fn failures(&self) -> Vec<Duration> {
        locked(&self.failed).clone()
    }
}

/// What a thread returned.
pub fn joined<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    let died = |_| BenchError::Unusable("a thread of the benchmark died".to_owned());
    thread.join().map_err(died)?
}

/// A reader, until the end: each read has a new session through HAProxy.
pub fn read(ledger: &Ledger, reads: &Reads, port: u16, mut pace: Pace, stop: &AtomicBool) {
    loop {
        pace.wait();
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let begun = ledger.now();
        match read_once(ledger, port, begun) {
            Some(read) => locked(&reads.all).push(read),
            None => locked(&reads.failed).push(begun),
        }
    }
}

fn read_once(ledger: &Ledger, port: u16, begun: Duration) -> Option<Read> {
    let mut session = session(port).ok()?;
    let asked = ledger.now();
    let rows = session.query(LOOK).ok()?;
    let mut row = rows.into_iter().next()?.into_iter();
    let (seen, is_standby, port) = (row.next()??, row.next()??, row.next()??);
    let seen = seen.split(' ').map(str::parse).collect::<Result<_, _>>();
    Some(Read {
        begun,
        asked,
        seen: seen.ok()?,
        is_standby: is_standby == "true",
        port: port.parse().ok()?,
    })
}
