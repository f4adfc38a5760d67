//! TCP connections with two limits: how many are open, and how long each may be idle.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// A connection that has neither sent nor received for this long is closed.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A listener that limits the number of open connections.
#[derive(Debug)]
pub struct Limited {
    listener: TcpListener,
    free: Arc<Semaphore>,
}

impl Limited {
    /// Accepts at most `most` connections at once; further ones wait to be accepted.
    pub fn new(listener: TcpListener, most: usize) -> Self {
        Self {
            listener,
            free: Arc::new(Semaphore::new(most)),
        }
    }
}

impl Listener for Limited {
    type Io = Guarded;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Guarded, SocketAddr) {
        // The semaphore is never closed. If it were, connections would not be limited.
        let permit = Arc::clone(&self.free).acquire_owned().await.ok();
        // `accept` waits for a second when the system has no file descriptors left.
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let guarded = Guarded {
            stream,
            silence: Box::pin(tokio::time::sleep(PATIENCE)),
            _permit: permit,
        };
        (guarded, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that fails when nothing has been sent or received for [`PATIENCE`].
#[derive(Debug)]
pub struct Guarded {
    stream: TcpStream,
    silence: Pin<Box<Sleep>>,
    /// Given back when the connection is dropped.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Guarded {
    /// Passes on a result that is ready and starts the time limit anew. Otherwise fails if the
    /// limit has passed.
    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match poll {
            Poll::Ready(result) => {
                self.silence.as_mut().reset(Instant::now() + PATIENCE);
                Poll::Ready(result)
            }
            Poll::Pending => self
                .silence
                .as_mut()
                .poll(context)
                .map(|()| Err(io::ErrorKind::TimedOut.into())),
        }
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

    #[tokio::test]
    async fn connections_over_the_limit_wait_for_a_free_place() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut limited = Limited::new(listener, 1);
        let _first = TcpStream::connect(address).await.unwrap();
        let _second = TcpStream::connect(address).await.unwrap();
        let (first, _) = limited.accept().await;
        // Waits however long it is given.
        let a_while = Duration::from_millis(50);
        let second = tokio::time::timeout(a_while, limited.accept()).await;
        assert!(second.is_err());
        drop(first);
        limited.accept().await;
    }

    #[tokio::test]
    async fn a_silent_connection_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (client, accepted) = tokio::join!(client, listener.accept());
        let mut client = client.unwrap();
        let mut guarded = Guarded {
            stream: accepted.unwrap().0,
            silence: Box::pin(tokio::time::sleep(Duration::ZERO)),
            _permit: None,
        };
        let error = guarded.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        // What moves begins the silence anew.
        client.write_all(b"ab").await.unwrap();
        guarded.stream.readable().await.unwrap();
        assert_eq!(guarded.read_u8().await.unwrap(), b'a');
        assert!(guarded.silence.deadline() > Instant::now());
    }
}
