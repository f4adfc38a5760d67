//! A connection's bytes, whatever carries them.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use lockstep_wire::backend::{Backend, Report};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsStream;

use crate::session::Client;

/// Longest time that a connection is read on after its last error: closing one with bytes
/// unread resets it, and the other side might never see the error.
const LINGER: Duration = Duration::from_secs(1);

/// Most bytes that are read on.
const LINGER_BYTES: usize = 256 * 1024;

/// One half of a connection, what it sends.
pub(crate) type Reader = Box<dyn AsyncRead + Send + Unpin>;

/// The other half, what it is sent.
pub(crate) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// Both halves in one.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection, from either side.
pub enum Transport {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// TLS over one of the others.
    Tls(Box<TlsStream<Prefixed>>),
    /// Anything else, as pipes in tests.
    Other(Box<dyn Duplex>),
}

impl Transport {
    /// The two halves. What is buffered for writing is not lost.
    pub(crate) fn halves(self) -> (Reader, Writer) {
        match self {
            Self::Tcp(stream) => {
                let (reader, writer) = stream.into_split();
                (Box::new(reader), Box::new(writer))
            }
            Self::Unix(stream) => {
                let (reader, writer) = stream.into_split();
                (Box::new(reader), Box::new(writer))
            }
            Self::Tls(stream) => {
                let (reader, writer) = tokio::io::split(stream);
                (Box::new(reader), Box::new(writer))
            }
            Self::Other(stream) => {
                let (reader, writer) = tokio::io::split(stream);
                (Box::new(reader), Box::new(writer))
            }
        }
    }

    /// The two ends of a client's connection: to read from and to write to.
    pub(crate) fn client(self) -> Client {
        let (reader, writer) = self.halves();
        Client { reader, writer }
    }

    /// Runs over TLS, from either side.
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    fn stream(&mut self) -> Pin<&mut dyn Duplex> {
        Pin::new(match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
            Self::Tls(stream) => &mut **stream,
            Self::Other(stream) => &mut **stream,
        })
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.get_mut().stream().poll_read(cx, out)
    }
}

impl AsyncWrite for Transport {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().stream().poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().stream().poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
            Self::Other(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().stream().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().stream().poll_shutdown(cx)
    }
}

/// A connection some bytes of which were already read.
pub struct Prefixed {
    read: BytesMut,
    inner: Transport,
}

impl Prefixed {
    /// `read` comes before what `inner` still has.
    pub(crate) fn new(read: &[u8], inner: Transport) -> Self {
        Self {
            read: read.into(),
            inner,
        }
    }
}

impl AsyncRead for Prefixed {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.read.is_empty() {
            return Pin::new(&mut this.inner).poll_read(cx, out);
        }
        let length = this.read.len().min(out.remaining());
        out.put_slice(this.read.get(..length).unwrap_or_default());
        this.read.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Prefixed {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

/// A reader that first gives `left`, what an earlier one had read too much.
pub(crate) fn after(left: BytesMut, reader: Reader) -> Reader {
    match left.is_empty() {
        true => reader,
        false => Box::new(AsyncReadExt::chain(io::Cursor::new(left), reader)),
    }
}

pub(crate) fn message(report: Report) -> Vec<u8> {
    let mut bytes = Vec::new();
    Backend::ErrorResponse(report).encode(&mut bytes);
    bytes
}

/// Writes a last message and closes, so that the other side gets to see it.
pub(crate) async fn close_with(mut client: Client, last: &[u8]) {
    // Nobody is left to tell if this fails.
    let _ = timeout(LINGER, async {
        client.writer.write_all(last).await?;
        client.writer.shutdown().await?;
        let mut thrown_away = client.reader.take(LINGER_BYTES as u64);
        tokio::io::copy(&mut thrown_away, &mut tokio::io::sink()).await
    })
    .await;
}
