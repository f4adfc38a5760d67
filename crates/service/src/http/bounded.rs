//! TCP connections with two limits: how many are open, and how long each may be idle.
//!
//! Where too many are open, the one ends that has been idle longest. So connections that say
//! nothing, or half of a request, keep nobody out.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

/// A connection that has neither sent nor received for this long is closed.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A listener that limits the number of open connections.
#[derive(Debug)]
pub struct Limited {
    listener: TcpListener,
    most: usize,
    open: Arc<Mutex<Open>>,
}

/// The connections that are open and have not been told to end.
#[derive(Debug, Default)]
struct Open {
    next: u64,
    connections: BTreeMap<u64, Known>,
}

#[derive(Debug)]
struct Known {
    /// When it last sent or received.
    moved: Instant,
    /// Dropped when it has to end.
    _stays: oneshot::Sender<()>,
}

impl Limited {
    /// Keeps at most `most` connections open at once.
    pub fn new(listener: TcpListener, most: usize) -> Self {
        Self {
            listener,
            most,
            open: Arc::default(),
        }
    }

    fn admit(&self, stream: TcpStream) -> Guarded {
        let mut open = lock(&self.open);
        while open.connections.len() >= self.most.max(1) {
            open.end_most_silent();
        }
        let (stays, told) = oneshot::channel();
        let number = open.next;
        open.next += 1;
        let moved = Instant::now();
        let known = Known {
            moved,
            _stays: stays,
        };
        open.connections.insert(number, known);
        Guarded {
            stream,
            moved,
            silence: Box::pin(tokio::time::sleep(PATIENCE)),
            told: Some(told),
            number,
            open: Arc::clone(&self.open),
        }
    }
}

impl Open {
    fn end_most_silent(&mut self) {
        let connections = self.connections.iter();
        let most_silent = connections.min_by_key(|(_, known)| known.moved);
        if let Some(number) = most_silent.map(|(number, _)| *number) {
            self.connections.remove(&number);
        }
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Listener for Limited {
    type Io = Guarded;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Guarded, SocketAddr) {
        // `accept` waits for a second when the system has no file descriptors left.
        let (stream, address) = Listener::accept(&mut self.listener).await;
        (self.admit(stream), address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that fails when nothing has been sent or received for [`PATIENCE`], or for
/// longer than on any other where there are too many.
#[derive(Debug)]
pub struct Guarded {
    stream: TcpStream,
    /// When it last sent or received.
    moved: Instant,
    /// Looks at that. It is set only while somebody waits: most connections end before.
    silence: Pin<Box<Sleep>>,
    /// Resolves when the connection has to end; None once it has been.
    told: Option<oneshot::Receiver<()>>,
    number: u64,
    open: Arc<Mutex<Open>>,
}

impl Guarded {
    fn has_to_end(&mut self, context: &mut Context<'_>) -> bool {
        if let Some(told) = &mut self.told {
            if Pin::new(told).poll(context).is_pending() {
                return false;
            }
            self.told = None;
        }
        true
    }

    /// Whether nothing has moved for too long.
    fn is_silent(&mut self, context: &mut Context<'_>) -> bool {
        let until = self.moved + PATIENCE;
        while self.silence.as_mut().poll(context).is_ready() {
            if Instant::now() >= until {
                return true;
            }
            self.silence.as_mut().reset(until);
        }
        false
    }

    /// Passes on a result that is ready and starts the time limit anew. Otherwise fails if the
    /// limit has passed, or if the connection has to end.
    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match poll {
            Poll::Ready(result) => {
                self.moved = Instant::now();
                if let Some(known) = lock(&self.open).connections.get_mut(&self.number) {
                    known.moved = self.moved;
                }
                Poll::Ready(result)
            }
            Poll::Pending if self.has_to_end(context) => {
                Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
            }
            Poll::Pending if self.is_silent(context) => {
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        lock(&self.open).connections.remove(&self.number);
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.watch(context, poll)
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, poll)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::timeout;

    async fn connected(limited: &mut Limited) -> (TcpStream, Guarded) {
        let client = TcpStream::connect(limited.local_addr().unwrap());
        let (client, (guarded, _)) = tokio::join!(client, limited.accept());
        (client.unwrap(), guarded)
    }

    async fn limited(most: usize) -> Limited {
        Limited::new(TcpListener::bind("127.0.0.1:0").await.unwrap(), most)
    }

    #[tokio::test]
    async fn over_the_limit_the_connection_ends_that_is_silent_longest() {
        let mut limited = limited(2).await;
        let (mut first, mut first_guarded) = connected(&mut limited).await;
        let (mut second, mut second_guarded) = connected(&mut limited).await;
        first.write_all(b"GET").await.unwrap();
        assert_eq!(first_guarded.read_u8().await.unwrap(), b'G');
        let (mut third, mut third_guarded) = connected(&mut limited).await;
        let error = second_guarded.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        drop(second_guarded);
        assert_eq!(second.read(&mut [0]).await.unwrap(), 0);
        for (client, guarded) in [
            (&mut first, &mut first_guarded),
            (&mut third, &mut third_guarded),
        ] {
            guarded.write_all(b"x").await.unwrap();
            assert_eq!(client.read_u8().await.unwrap(), b'x');
        }
        // Who leaves makes room.
        drop(third_guarded);
        let _fourth = connected(&mut limited).await;
        assert_eq!(lock(&limited.open).connections.len(), 2);
        first_guarded.write_all(b"x").await.unwrap();
    }

    #[tokio::test]
    async fn a_silent_connection_ends() {
        let mut limited = limited(1).await;
        let (mut client, mut guarded) = connected(&mut limited).await;
        guarded.moved = Instant::now() - PATIENCE;
        guarded.silence.as_mut().reset(Instant::now());
        let error = guarded.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        // What moves begins the silence anew.
        client.write_all(b"a").await.unwrap();
        guarded.stream.readable().await.unwrap();
        assert_eq!(guarded.read_u8().await.unwrap(), b'a');
        let silent = timeout(Duration::from_millis(10), guarded.read_u8());
        assert!(silent.await.is_err(), "it waits on");
        assert!(guarded.silence.deadline() > Instant::now());
    }
}
