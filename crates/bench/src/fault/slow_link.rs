//! A Unix socket that forwards to a server's, with a bandwidth that can be set.
//!
//! Only data from the server, which is WAL, is slowed down.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lockstep_lab::port;
use lockstep_lab::server::Server;

use crate::BenchError;
use crate::Result;

/// Most bytes forwarded at once.
const PIECE: usize = 64 * 1024;

/// A link with a limit sends pieces: each is what may be sent in this many milliseconds.
const PIECE_MS: u64 = 20;

/// Interval at which the listening thread looks whether it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Most connections from start to end.
const MOST_CONNECTIONS: usize = 10_000;

#[derive(Debug, Default)]
struct State {
    /// Bytes a second; 0 for as fast as it goes.
    limit: AtomicU64,
    stop: AtomicBool,
    open: Mutex<Vec<UnixStream>>,
}

/// A forwarder. Dropping it closes its connections.
#[derive(Debug)]
pub struct SlowLink {
    state: Arc<State>,
    listener: Option<JoinHandle<()>>,
    path: PathBuf,
    port: u16,
}

impl SlowLink {
    /// Forwards to a server from a port of its own in the same folder.
    pub fn before(server: &Server) -> Result<Self> {
        let folder = server.sockets();
        let port = port::free(folder)?;
        let path = folder.join(format!(".s.PGSQL.{port}"));
        let target = folder.join(format!(".s.PGSQL.{}", server.port()));
        let listener = UnixListener::bind(&path).map_err(BenchError::io("listen on", &path))?;
        let everybody = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&path, everybody).map_err(BenchError::io("open up", &path))?;
        listener
            .set_nonblocking(true)
            .map_err(BenchError::io("listen on", &path))?;
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let thread = thread::spawn(move || accept(&listener, &target, &shared));
        Ok(Self {
            state,
            listener: Some(thread),
            path,
            port,
        })
    }

    /// The port in its socket's name.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Bytes a second from now on; None for as fast as it goes.
    pub fn limit(&self, bytes_per_s: Option<u64>) {
        self.state
            .limit
            .store(bytes_per_s.unwrap_or(0), Ordering::Relaxed);
    }
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
        for stream in self
            .state
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
        {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

fn accept(listener: &UnixListener, target: &PathBuf, state: &Arc<State>) {
    while !state.stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((client, _)) => drop(join(client, target, state)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(LOOK_EVERY),
            Err(_) => return,
        }
    }
}

/// Two threads for one connection, which end with it.
fn join(client: UnixStream, target: &PathBuf, state: &Arc<State>) -> std::io::Result<()> {
    client.set_nonblocking(false)?;
    let server = UnixStream::connect(target)?;
    let mut open = state.open.lock().unwrap_or_else(PoisonError::into_inner);
    if open.len() >= MOST_CONNECTIONS {
        return Ok(());
    }
    open.push(client.try_clone()?);
    open.push(server.try_clone()?);
    drop(open);
    let (from_client, to_server) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || forward(from_client, to_server, None));
    let state = Arc::clone(state);
    thread::spawn(move || forward(server, client, Some(&state)));
    Ok(())
}

fn forward(mut from: UnixStream, mut to: UnixStream, state: Option<&Arc<State>>) {
    let mut buffer = vec![0; PIECE];
    loop {
        let limit = state.map_or(0, |state| state.limit.load(Ordering::Relaxed));
        let piece = match limit {
            0 => PIECE,
            _ => usize::try_from(limit * PIECE_MS / 1000)
                .unwrap_or(PIECE)
                .clamp(1, PIECE),
        };
        let Some(part) = buffer.get_mut(..piece) else {
            break;
        };
        let Ok(count @ 1..) = from.read(part) else {
            break;
        };
        let Some(read) = buffer.get(..count) else {
            break;
        };
        if to.write_all(read).is_err() {
            break;
        }
        if limit > 0 {
            thread::sleep(Duration::from_secs_f64(count as f64 / limit as f64));
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
