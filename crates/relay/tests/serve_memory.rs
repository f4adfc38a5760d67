//! What idle sessions cost. A program of its own: nothing else must take memory meanwhile.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

#[path = "relay/serve_lab/mod.rs"]
mod serve_lab;

use lockstep_relay::serve::Listen;
use lockstep_wire::backend::Backend;
use lockstep_wire::frontend::Frontend;
use lockstep_wire::startup::{Session, Startup};
use serve_lab::{Options, Relay};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;

/// The port in the names of sockets.
const PORT: u16 = 4711;

/// Sessions at a time.
const SESSIONS: usize = 200;

/// Most bytes for one session and both of its other ends, which are in this process as
/// well. Two buffers of 16 kB are most of it.
const MOST: usize = 64 * 1024;

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<usize>()
        .unwrap()
        * 1024
}

/// Lets everybody in and says one thing to every piece that comes.
async fn primary(listener: UnixListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let mut bytes = [0; 64];
            let mut out = Vec::new();
            Backend::AuthenticationOk.encode(&mut out);
            loop {
                if stream.read(&mut bytes).await.unwrap_or(0) == 0 {
                    return;
                }
                Backend::ReadyForQuery(b'I').encode(&mut out);
                stream.write_all(&out).await.unwrap();
                out.clear();
            }
        });
    }
}

/// A session that has been let in and has asked something.
async fn session(path: &std::path::Path) -> UnixStream {
    let mut stream = UnixStream::connect(path).await.unwrap();
    let parameters = [
        ("user", "me"),
        ("database", "db"),
        ("replication", "database"),
    ];
    let mut packet = Vec::new();
    Startup::Session(Session::new(0, &parameters)).encode(&mut packet);
    stream.write_all(&packet).await.unwrap();
    let mut welcome = [0; 9 + 6];
    stream.read_exact(&mut welcome).await.unwrap();
    let mut query = Vec::new();
    Frontend::Query("IDENTIFY_SYSTEM").encode(&mut query);
    stream.write_all(&query).await.unwrap();
    stream.read_exact(&mut welcome[..6]).await.unwrap();
    stream
}

#[test]
fn idle_sessions_are_small() {
    let folder = tempfile::tempdir().unwrap();
    let ours = tempfile::tempdir().unwrap();
    let runtime = Runtime::new().unwrap();
    {
        let _inside = runtime.enter();
        let path = folder.path().join(format!(".s.PGSQL.{PORT}"));
        runtime.spawn(primary(UnixListener::bind(path).unwrap()));
    }
    let mut options = Options::at(folder.path(), PORT);
    options.listen = Listen::new(&ours.path().display().to_string(), PORT);
    let relay = Relay::start(options);
    let path = ours.path().join(format!(".s.PGSQL.{PORT}"));
    runtime.block_on(async {
        let warm = session(&path).await;
        let before = resident();
        let mut sessions = vec![warm];
        for _ in 0..SESSIONS {
            sessions.push(session(&path).await);
        }
        let each = resident().saturating_sub(before) / SESSIONS;
        println!("{each} bytes a session");
        assert!(each < MOST, "{each} bytes a session");
    });
    drop(relay);
}
