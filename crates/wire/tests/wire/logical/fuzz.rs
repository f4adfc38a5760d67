//! No bytes make a parser panic, or take more memory than the bytes themselves.

use std::time::{Duration, Instant};

use fastrand::Rng;
use lockstep_wire::backend::Backend;
use lockstep_wire::batch::{Entry, Payload, put_batch};
use lockstep_wire::command::Command;
use lockstep_wire::frame::{self, LOGICAL_LIMIT};
use lockstep_wire::frontend::Frontend;
use lockstep_wire::logical::frames::{self, put_frame, scan};
use lockstep_wire::logical::{Context, Message, Tuple, boundary};
use lockstep_wire::publication_names;
use lockstep_wire::startup::Startup;
use lockstep_wire::stream::{FromServer, FromStandby, Timestamp};

use super::random::{Pieces, boundary_of, message};
use crate::rng;

/// When a fuzz test ends.
enum Until {
    Rounds(u32),
    Then(Instant),
}

impl Until {
    fn new(rounds: u32) -> Self {
        match std::env::var("LOCKSTEP_FUZZ_SECONDS") {
            Ok(text) => Self::Then(Instant::now() + Duration::from_secs(text.parse().unwrap())),
            Err(_) => Self::Rounds(rounds),
        }
    }

    fn go_on(&mut self) -> bool {
        match self {
            Self::Rounds(left) => {
                *left = left.saturating_sub(1);
                *left > 0
            }
            Self::Then(end) => Instant::now() < *end,
        }
    }
}

/// Bytes that begin like a message, a batch or frames.
fn valid(rng: &mut Rng) -> Vec<u8> {
    let messages: Vec<Vec<u8>> = (0..rng.usize(1..4))
        .map(|_| {
            let mut pieces = Pieces::new(rng);
            let (_, xid, message) = message(rng, &mut pieces);
            let mut out = Vec::new();
            message.encode(xid, &mut out).unwrap();
            out
        })
        .collect();
    let mut out = Vec::new();
    match rng.u8(..3) {
        0 => out.extend_from_slice(&messages[0]),
        1 => {
            let entries: Vec<Entry<'_>> = messages
                .iter()
                .map(|message| Entry {
                    lsn: rng.u64(..).into(),
                    time: Timestamp(rng.i64(..)),
                    message,
                })
                .collect();
            put_batch(&mut out, &entries).unwrap();
        }
        _ => {
            for message in &messages {
                put_frame(&mut out, rng.u64(..).into(), Timestamp(0), message).unwrap();
            }
        }
    }
    out
}

/// Changes random bytes.
fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.usize(..4) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.usize(..bytes.len());
        match rng.u8(..7) {
            0 => bytes[at] = rng.u8(..),
            1 => bytes[at] ^= 1 << rng.u8(..8),
            // The largest and the smallest values of numbers.
            2 => bytes[at] = *rng.choice(&[0, 1, 0x7F, 0x80, 0xFF]).unwrap(),
            3 => bytes.truncate(at),
            4 => bytes.insert(at, rng.u8(..)),
            5 => drop(bytes.remove(at)),
            _ => bytes.extend_from_within(at..),
        }
    }
}

fn random(rng: &mut Rng) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..rng.usize(..80)).map(|_| rng.u8(..)).collect();
    if let Some(first) = bytes.first_mut() {
        *first = *rng.choice(b"BCORYIUDTMbPKrSEcApdwkh").unwrap();
    }
    // Lengths and counts are in these places, so small numbers get further.
    for byte in bytes.iter_mut().skip(1) {
        if rng.bool() {
            *byte = rng.u8(..4);
        }
    }
    bytes
}

fn check_tuple(tuple: Tuple<'_>) {
    assert_eq!(tuple.values().count(), tuple.len());
}

fn check_message(bytes: &[u8]) {
    for (in_stream, abort_details) in [(false, false), (false, true), (true, false), (true, true)] {
        let context = Context {
            in_stream,
            abort_details,
        };
        let Ok((xid, message)) = Message::parse(bytes, context) else {
            continue;
        };
        match &message {
            Message::Relation(relation) => {
                assert!(relation.columns.len() * 10 <= bytes.len());
            }
            Message::Truncate { relations, .. } => {
                // A vector starts with a few elements and grows by doubling.
                assert!(relations.capacity() * 4 <= (bytes.len() * 2).max(16));
            }
            Message::Insert { new, .. } => check_tuple(*new),
            Message::Update { old, new, .. } => {
                check_tuple(*new);
                old.iter().for_each(|old| check_tuple(old.tuple()));
            }
            Message::Delete { old, .. } => check_tuple(old.tuple()),
            _ => {}
        }
        let mut again = Vec::new();
        message.encode(xid, &mut again).unwrap();
        assert_eq!(again.len(), bytes.len());
        if !in_stream {
            assert_eq!(boundary(bytes).ok(), boundary_of(&message));
        }
        assert_eq!(Message::parse(&again, context), Ok((xid, message)));
    }
}

fn check_carried(bytes: &[u8]) {
    if let Ok(Payload::Batch(entries)) = Payload::parse(bytes, true) {
        let mut seen = 0;
        let mut failed = false;
        for entry in entries {
            assert!(!failed, "something after an error");
            match entry {
                Ok(entry) => {
                    seen += 20 + entry.message.len();
                    check_message(entry.message);
                }
                Err(_) => failed = true,
            }
        }
        assert!(seen + 5 <= bytes.len());
        assert!(failed || seen + 5 == bytes.len());
    }
    let mut end = 0;
    let mut frames = scan(bytes);
    for frame in frames.by_ref().take_while(Result::is_ok).flatten() {
        assert_eq!(frame.offset, end);
        end += frame.length;
        let mut again = Vec::new();
        put_frame(&mut again, frame.lsn, frame.sent_at, frame.message).unwrap();
        assert_eq!(again, bytes[frame.offset..end]);
    }
    assert!(frames.offset() == end && end <= bytes.len());
    assert!(frames.next().is_none());
    let _ = frames::first(bytes);
}

fn check(bytes: &[u8]) {
    let _ = boundary(bytes);
    check_message(bytes);
    check_carried(bytes);
    let _ = FromServer::parse(bytes);
    let _ = FromStandby::parse(bytes);
    let _ = Startup::parse(bytes);
    if let Ok(Some((frame, used))) = frame::first(bytes, LOGICAL_LIMIT) {
        assert!(used <= bytes.len());
        let _ = Frontend::parse(frame);
        let _ = Backend::parse(frame);
    }
    let text = String::from_utf8_lossy(bytes);
    let _ = Command::parse(&text);
    let _ = publication_names::parse(&text);
}

#[test]
fn random_bytes_are_errors_or_values() {
    let mut rng = rng();
    let mut until = Until::new(40_000);
    while until.go_on() {
        check(&random(&mut rng));
    }
}

#[test]
fn changed_bytes_are_errors_or_values() {
    let mut rng = rng();
    let mut until = Until::new(40_000);
    while until.go_on() {
        let mut bytes = valid(&mut rng);
        mutate(&mut rng, &mut bytes);
        check(&bytes);
    }
}

#[test]
fn bytes_cut_short_are_errors_or_values() {
    let mut rng = rng();
    let mut until = Until::new(1_000);
    while until.go_on() {
        let bytes = valid(&mut rng);
        for length in 0..=bytes.len() {
            check(&bytes[..length]);
        }
    }
}
