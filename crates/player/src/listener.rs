//! The player's addresses and connections.

use std::fmt;
use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockstep_lab::port;

use super::PlayerError;
use crate::Result;

/// A place to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// TCP; with port 0 the system chooses one.
    Tcp(SocketAddr),
    /// A Unix socket. Its folder and port make its path, as in libpq.
    Socket { folder: PathBuf, port: u16 },
}

impl Address {
    /// A Unix socket in `folder` with a free port.
    pub fn free_socket(folder: &Path) -> Result<Self> {
        Ok(Self::Socket {
            folder: folder.to_path_buf(),
            port: port::free(folder)?,
        })
    }

    /// TCP on 127.0.0.1, on a port that the system chooses.
    pub fn loopback() -> Self {
        Self::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
    }

    /// The conninfo of this address. It names a user because libpq needs one, even if the
    /// system has no name for the current user. The player accepts any user and database.
    pub fn conninfo(&self) -> String {
        let (host, port) = match self {
            Self::Tcp(address) => (address.ip().to_string(), address.port()),
            Self::Socket { folder, port } => (folder.display().to_string(), *port),
        };
        format!(
            "host={} port={port} user=replicator",
            host.replace('\\', "\\\\").replace(' ', "\\ ")
        )
    }

    fn path(&self) -> Option<PathBuf> {
        match self {
            Self::Tcp(_) => None,
            Self::Socket { folder, port } => Some(folder.join(format!(".s.PGSQL.{port}"))),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Socket { folder, port } => write!(f, "{} port {port}", folder.display()),
        }
    }
}

/// A bound address. Dropping it removes its socket file.
#[derive(Debug)]
pub(crate) struct Listener {
    address: Address,
    bound: Bound,
}

#[derive(Debug)]
enum Bound {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    pub fn bind(address: &Address) -> Result<Self> {
        let refused = |error: io::Error| PlayerError::Listen {
            address: address.to_string(),
            reason: error.to_string(),
        };
        match address {
            Address::Tcp(wanted) => {
                let listener = TcpListener::bind(wanted).map_err(refused)?;
                let bound = listener.local_addr().map_err(refused)?;
                Ok(Self {
                    address: Address::Tcp(bound),
                    bound: Bound::Tcp(listener),
                })
            }
            Address::Socket { .. } => {
                let path = address.path().unwrap_or_default();
                // A socket file without a listener was left by a killed player.
                let left_over = UnixStream::connect(&path)
                    .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
                if left_over {
                    let _ = fs::remove_file(&path);
                }
                let listener = UnixListener::bind(&path).map_err(refused)?;
                // As with PostgreSQL's own sockets, the folder decides who may connect.
                fs::set_permissions(&path, Permissions::from_mode(0o777)).map_err(refused)?;
                Ok(Self {
                    address: address.clone(),
                    bound: Bound::Unix(listener),
                })
            }
        }
    }

    pub fn address(&self) -> &Address {
        &self.address
    }

    pub fn accept(&self) -> io::Result<Stream> {
        match &self.bound {
            Bound::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
            Bound::Unix(listener) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = self.address.path() {
            let _ = fs::remove_file(path);
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    pub fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                Ok(Self::Tcp(stream))
            }
            Address::Socket { .. } => {
                UnixStream::connect(address.path().unwrap_or_default()).map(Self::Unix)
            }
        }
    }

    pub fn again(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
        }
    }

    /// Shuts down both directions, for every copy of the connection.
    pub fn close(&self) {
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    pub fn set_timeouts(&self, read: Option<Duration>, write: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(read)?;
                stream.set_write_timeout(write)
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(read)?;
                stream.set_write_timeout(write)
            }
        }
    }
}

impl Read for Stream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(out),
            Self::Unix(stream) => stream.read(out),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
