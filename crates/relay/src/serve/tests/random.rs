//! Random sessions: whatever the two sides say arrives byte for byte, however it is cut.

use std::time::{Duration, Instant};

use fastrand::Rng;
use lockstep_lab::for_tests;
use tokio::io::{AsyncRead, AsyncWrite};

use super::*;

/// How long to go on.
const TIME: Duration = Duration::from_secs(2);

/// Sessions at least, however slow the machine is.
const LEAST: u64 = 20;

/// Pieces of a byte or ten, after which the rest of what a side says goes in larger ones.
const SMALL_PIECES: u32 = 5000;

fn seed() -> u64 {
    for_tests::number("SEED").unwrap_or_else(|| fastrand::u64(..))
}

fn bytes(rng: &mut Rng, length: usize) -> Vec<u8> {
    std::iter::repeat_with(|| rng.u8(..)).take(length).collect()
}

/// Messages of one side: framed, sometimes not.
fn messages(rng: &mut Rng, tags: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..rng.usize(..40) {
        if rng.u8(..) == 0 {
            let length = rng.usize(..100);
            out.extend(bytes(rng, length));
            continue;
        }
        let longest = if rng.u8(..20) == 0 { 100_000 } else { 40 };
        let length = rng.usize(..longest);
        let body = bytes(rng, length);
        out.extend(other(tags[rng.usize(..tags.len())], &body));
    }
    out
}

async fn say<W: AsyncWrite + Unpin>(mut rng: Rng, mut writer: W, bytes: Vec<u8>) -> W {
    let mut left = &bytes[..];
    let mut most = [1, 10, 1000, 100_000][rng.usize(..4)];
    let mut pieces = 0;
    while !left.is_empty() {
        pieces += 1;
        if pieces == SMALL_PIECES {
            most = most.max(1000);
        }
        let (piece, rest) = left.split_at(rng.usize(1..=most).min(left.len()));
        writer.write_all(piece).await.unwrap();
        left = rest;
        if rng.bool() {
            tokio::task::yield_now().await;
        }
    }
    writer
}

async fn hear(mut reader: impl AsyncRead + Unpin) -> Vec<u8> {
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).await.unwrap();
    bytes
}

#[tokio::test]
async fn both_sides_hear_what_the_other_said() {
    all_is_heard(seed(), TIME).await;
}

/// A query was half taken out when the primary's messages stopped to make sense.
#[tokio::test]
async fn a_seed_that_found_something_stays_mended() {
    all_is_heard(23, Duration::ZERO).await;
}

async fn all_is_heard(seed: u64, time: Duration) {
    println!("SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let started = Instant::now();
    let mut sessions = 0;
    while started.elapsed() < time || sessions < LEAST {
        sessions += 1;
        let parameters = if rng.bool() { USUAL } else { LOGICAL };
        let scene = Scene::ready(parameters).await;
        // The relay lets everything pass: no query ends in a word that it knows.
        let up = messages(&mut rng, b"QQQdcfPBESFHp?");
        let down = messages(&mut rng, b"ZZTDCENSAd?");
        let (client_reader, client_writer) = tokio::io::split(scene.client);
        let (primary_reader, primary_writer) = tokio::io::split(scene.primary);
        let (one, two) = (rng.fork(), rng.fork());
        let both = async {
            tokio::join!(
                async {
                    let mut writer = say(one, client_writer, up.clone()).await;
                    writer.shutdown().await.unwrap();
                },
                async {
                    // The primary's end is the end of the session: the client goes first.
                    let (mut writer, heard) =
                        tokio::join!(say(two, primary_writer, down.clone()), hear(primary_reader));
                    writer.shutdown().await.unwrap();
                    heard
                },
                hear(client_reader),
            )
        };
        let ((), heard_up, heard_down) = comes(async { Ok(both.await) }).await;
        assert!(heard_up == up, "up, session {sessions}");
        assert!(heard_down == down, "down, session {sessions}");
        ended(scene.session).await;
    }
}
