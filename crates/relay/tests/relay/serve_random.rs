//! Random and mutated bytes to the front, from many connections at a time: the relay goes
//! on serving, and nothing else than an answer of the protocol comes back.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::serve_lab::{Options, Relay};
use fastrand::Rng;
use lockstep_lab::for_tests;
use lockstep_relay::serve::Listen;
use lockstep_wire::frame;
use lockstep_wire::startup::{Session, Startup};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;

/// How long to go on, unless `LOCKSTEP_FUZZ_SECONDS` says so.
const TIME: Duration = Duration::from_secs(3);

/// Rounds at least, however slow the machine is.
const LEAST: u32 = 20;

/// Connections at a time.
const TOGETHER: usize = 16;

/// The port in the names of sockets.
const PORT: u16 = 4711;

fn seed() -> u64 {
    for_tests::number("SEED").unwrap_or_else(|| fastrand::u64(..))
}

fn time() -> Duration {
    let seconds = std::env::var("LOCKSTEP_FUZZ_SECONDS");
    seconds.map_or(TIME, |text| Duration::from_secs(text.parse().unwrap()))
}

fn bytes(rng: &mut Rng, most: usize) -> Vec<u8> {
    let length = rng.usize(..most);
    std::iter::repeat_with(|| rng.u8(..)).take(length).collect()
}

/// A primary that says random things: now and then it lets somebody in.
async fn babble(listener: UnixListener, mut rng: Rng) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut rng = rng.fork();
        tokio::spawn(async move {
            let mut start = [0; 64];
            let _ = stream.read(&mut start).await;
            let mut said = Vec::new();
            if rng.u8(..4) > 0 {
                frame::put(&mut said, b'R', |out| out.extend([0; 4]));
                frame::put(&mut said, b'Z', |out| out.push(b'I'));
            }
            for _ in 0..rng.usize(..10) {
                let tags = b"RSKZTDCENGHWdc";
                let tag = tags[rng.usize(..tags.len())];
                let body = bytes(&mut rng, 60);
                frame::put(&mut said, tag, |out| out.extend(body));
            }
            if rng.u8(..8) == 0 {
                said.extend(bytes(&mut rng, 100));
            }
            let _ = stream.write_all(&said).await;
            let _ = stream.shutdown().await;
            let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
        });
    }
}

/// What a client sends.
fn packets(rng: &mut Rng) -> Vec<u8> {
    let words = [
        "user",
        "database",
        "replication",
        "lockstep",
        "me",
        "true",
        "",
        "_pq_.x",
    ];
    let mut out = Vec::new();
    for _ in 0..rng.usize(..4) {
        match rng.u8(..8) {
            0 => Startup::SslRequest.encode(&mut out),
            1 => Startup::GssEncRequest.encode(&mut out),
            2 => Startup::CancelRequest {
                process: rng.u32(..),
                secret: bytes(rng, 40),
            }
            .encode(&mut out),
            3 => out.extend(bytes(rng, 200)),
            _ => {
                let mut parameters = vec![("user", "me")];
                for _ in 0..rng.usize(..5) {
                    let mut word = || words[rng.usize(..words.len())];
                    parameters.push((word(), word()));
                }
                Startup::Session(Session::new(rng.u16(..3), &parameters)).encode(&mut out);
            }
        }
    }
    for _ in 0..rng.usize(..10) {
        let tags = b"QQPBDESHFCXpdcf?";
        let tag = tags[rng.usize(..tags.len())];
        let body = bytes(rng, 60);
        frame::put(&mut out, tag, |out| out.extend(body));
    }
    for _ in 0..rng.usize(..3) {
        match (out.len(), rng.bool()) {
            (0, _) => {}
            (length, true) => out[rng.usize(..length)] = rng.u8(..),
            (length, false) => out.truncate(rng.usize(..length)),
        }
    }
    out
}

/// One client that says its bytes and hears everything.
async fn disturb(folder: &Path, mut rng: Rng) {
    let path = folder.join(format!(".s.PGSQL.{PORT}"));
    let mut stream = UnixStream::connect(path).await.unwrap();
    let said = packets(&mut rng);
    for piece in said.chunks(rng.usize(1..=said.len().max(1))) {
        if stream.write_all(piece).await.is_err() {
            return;
        }
    }
    if rng.bool() {
        let _ = stream.shutdown().await;
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard).await;
    }
}

/// A session that is not there to disturb.
async fn works(folder: &Path) {
    let mut stream = UnixStream::connect(folder.join(format!(".s.PGSQL.{PORT}")))
        .await
        .unwrap();
    let mut packet = Vec::new();
    Startup::GssEncRequest.encode(&mut packet);
    stream.write_all(&packet).await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'N');
    // No start of anything.
    stream.write_all(b"\0\0\0\x08\0\x02\0\0").await.unwrap();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).await.unwrap();
    assert_eq!(heard[0], b'E');
}

#[test]
fn the_front_survives_anything() {
    let seed = seed();
    println!("SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let primary = tempfile::tempdir().unwrap();
    let ours = tempfile::tempdir().unwrap();
    let runtime = Runtime::new().unwrap();
    {
        let _inside = runtime.enter();
        let path = primary.path().join(format!(".s.PGSQL.{PORT}"));
        let listener = UnixListener::bind(path).unwrap();
        runtime.spawn(babble(listener, rng.fork()));
    }
    let mut options = Options::at(primary.path(), PORT);
    options.listen = Listen::new(&ours.path().display().to_string(), PORT);
    let mut relay = Relay::start(options);
    let (started, time) = (Instant::now(), time());
    let mut rounds = 0;
    while started.elapsed() < time || rounds < LEAST {
        rounds += 1;
        runtime.block_on(async {
            let mut all = tokio::task::JoinSet::new();
            for _ in 0..TOGETHER {
                let (folder, rng) = (ours.path().to_owned(), rng.fork());
                all.spawn(async move { disturb(&folder, rng).await });
            }
            works(ours.path()).await;
            while let Some(done) = all.join_next().await {
                done.unwrap();
            }
        });
    }
    relay.stop();
    println!("serve: {rounds} rounds of {TOGETHER} connections");
    // Every session that was opened was closed.
    let seen = relay.mock.seen.lock().unwrap();
    let count = |what: &str| seen.iter().filter(|seen| seen.starts_with(what)).count();
    assert_eq!(count("opened"), count("closed"));
    assert!(count("opened") > 0);
}
