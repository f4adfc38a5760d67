//! Wakes a thread that waits for a socket, through a socket of its own.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// The side that waits.
#[derive(Debug)]
pub struct Sleeper(UnixStream);

/// The side that wakes; any number of them.
#[derive(Debug, Clone)]
pub struct Waker(Arc<UnixStream>);

pub fn pair() -> io::Result<(Sleeper, Waker)> {
    let (sleeper, waker) = UnixStream::pair()?;
    sleeper.set_nonblocking(true)?;
    waker.set_nonblocking(true)?;
    Ok((Sleeper(sleeper), Waker(Arc::new(waker))))
}

impl Waker {
    /// Wakes the sleeper. A socket that is full has enough in it to wake it.
    pub fn wake(&self) {
        let _ = (&*self.0).write(&[1]);
    }
}

impl Sleeper {
    /// What to poll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Forgets all wake-ups so far.
    pub fn drain(&self) {
        let mut bytes = [0; 64];
        while matches!((&self.0).read(&mut bytes), Ok(n) if n > 0) {}
    }
}
