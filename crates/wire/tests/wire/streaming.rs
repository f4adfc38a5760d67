//! Values come back as they were, and no bytes make a parser panic.

use fastrand::Rng;
use lockstep_wire::backend::{Backend, Column, Report};
use lockstep_wire::command::Command;
use lockstep_wire::frame::{self, FRONTEND_LIMIT, Frame};
use lockstep_wire::frontend::Frontend;
use lockstep_wire::startup::{self, Session, Startup};
use lockstep_wire::stream::{
    FromServer, FromStandby, HotStandbyFeedback, Status, Timestamp, XLOG_DATA_HEADER,
    xlog_data_header,
};
use lockstep_wire::{Lsn, Timeline};

use crate::rng;

const ROUNDS: usize = 20_000;

fn bytes(rng: &mut Rng, most: usize) -> Vec<u8> {
    let length = rng.usize(..=most);
    (0..length).map(|_| rng.u8(..)).collect()
}

/// Text without zero bytes, because a zero byte ends text in messages.
fn text(rng: &mut Rng) -> String {
    let length = rng.usize(..12);
    (0..length).map(|_| rng.char('\u{1}'..'\u{3000}')).collect()
}

fn lsn(rng: &mut Rng) -> Lsn {
    (rng.u64(..) >> rng.u32(..64)).into()
}

fn status(rng: &mut Rng) -> Status {
    Status {
        written: lsn(rng),
        flushed: lsn(rng),
        applied: lsn(rng),
        sent_at: Timestamp(rng.i64(..)),
        reply: rng.bool(),
    }
}

#[test]
fn streaming_messages_come_back() {
    let mut rng = rng();
    for _ in 0..ROUNDS {
        let wal = bytes(&mut rng, 40);
        let (start, end, sent_at) = (lsn(&mut rng), lsn(&mut rng), Timestamp(rng.i64(..)));
        let piece = FromServer::XLogData {
            start,
            end,
            sent_at,
            wal: &wal,
        };
        let alive = FromServer::Keepalive {
            end,
            sent_at,
            reply: rng.bool(),
        };
        for message in [piece, alive] {
            let mut out = Vec::new();
            message.encode(&mut out);
            assert_eq!(FromServer::parse(&out), Ok(message));
        }
        let mut out = Vec::new();
        piece.encode(&mut out);
        assert_eq!(
            out[..XLOG_DATA_HEADER],
            xlog_data_header(start, end, sent_at)
        );

        let feedback = HotStandbyFeedback {
            sent_at,
            xmin: rng.u32(..),
            xmin_epoch: rng.u32(..),
            catalog_xmin: rng.u32(..),
            catalog_xmin_epoch: rng.u32(..),
        };
        for message in [
            FromStandby::Status(status(&mut rng)),
            FromStandby::Feedback(feedback),
        ] {
            let mut out = Vec::new();
            message.encode(&mut out);
            assert_eq!(FromStandby::parse(&out), Ok(message));
            assert!(FromStandby::parse(&out[..out.len() - 1]).is_err());
            out.push(0);
            assert!(FromStandby::parse(&out).is_err());
        }
    }
}

fn some_text(rng: &mut Rng) -> Option<String> {
    rng.bool().then(|| text(rng))
}

#[test]
fn server_messages_come_back() {
    let mut rng = rng();
    for _ in 0..ROUNDS / 4 {
        let (name, value, data) = (text(&mut rng), text(&mut rng), bytes(&mut rng, 30));
        let report = Report {
            severity: "ERROR".to_owned(),
            sqlstate: "XX000".to_owned(),
            message: text(&mut rng),
            detail: some_text(&mut rng),
            hint: some_text(&mut rng),
        };
        let column = Column {
            name: &name,
            kind: rng.u32(..),
        };
        let values: Vec<Option<&[u8]>> = (0..rng.usize(..5))
            .map(|_| rng.bool().then_some(data.as_slice()))
            .collect();
        for message in [
            Backend::AuthenticationOk,
            Backend::Authentication(rng.u32(1..)),
            Backend::NegotiateProtocolVersion {
                minor: rng.u32(..),
                unknown: vec![&name, &value],
            },
            Backend::ParameterStatus {
                name: &name,
                value: &value,
            },
            Backend::BackendKeyData {
                process: rng.u32(..),
                secret: &data,
            },
            Backend::ReadyForQuery(rng.u8(..)),
            Backend::RowDescription(vec![column; rng.usize(..4)]),
            Backend::DataRow(values),
            Backend::CommandComplete(&value),
            Backend::EmptyQueryResponse,
            Backend::ErrorResponse(report.clone()),
            Backend::NoticeResponse(report),
            Backend::CopyBothResponse,
            Backend::CopyData(&data),
            Backend::CopyDone,
        ] {
            let mut out = Vec::new();
            message.encode(&mut out);
            let (frame, used) = frame::first(&out, 10_000).unwrap().unwrap();
            assert_eq!(used, out.len());
            assert_eq!(Backend::parse(frame), Ok(message));
        }
    }
}

#[test]
fn client_messages_come_back() {
    let mut rng = rng();
    for _ in 0..ROUNDS / 4 {
        let (words, data) = (text(&mut rng), bytes(&mut rng, 30));
        for message in [
            Frontend::Query(&words),
            Frontend::CopyData(&data),
            Frontend::CopyDone,
            Frontend::CopyFail(&words),
            Frontend::Terminate,
        ] {
            let mut out = Vec::new();
            message.encode(&mut out);
            let (frame, used) = frame::first(&out, 10_000).unwrap().unwrap();
            assert_eq!(used, out.len());
            assert_eq!(Frontend::parse(frame), Ok(message));
        }
        let parameters: Vec<_> = (0..rng.usize(..4))
            .map(|number| (format!("n{number}{}", text(&mut rng)), text(&mut rng)))
            .collect();
        let parameters: Vec<_> = parameters.iter().map(|(n, v)| (&**n, &**v)).collect();
        let packet = Startup::Session(Session::new(rng.u16(..), &parameters));
        let mut out = Vec::new();
        packet.encode(&mut out);
        assert_eq!(Startup::parse(&out[startup::HEADER..]), Ok(packet));
    }
}

#[test]
fn commands_come_back() {
    let mut rng = rng();
    for _ in 0..ROUNDS / 4 {
        let slot = format!("s{}", text(&mut rng));
        let timeline = Timeline::new(rng.u32(1..)).unwrap();
        for command in [
            Command::IdentifySystem,
            Command::Show {
                name: "wal_segment_size".to_owned(),
            },
            Command::ReadReplicationSlot { slot: slot.clone() },
            Command::CreatePhysicalSlot {
                slot: slot.clone(),
                temporary: rng.bool(),
                reserve_wal: rng.bool(),
            },
            Command::DropReplicationSlot {
                slot: slot.clone(),
                wait: rng.bool(),
            },
            Command::TimelineHistory { timeline },
            Command::StartReplication {
                slot: rng.bool().then(|| slot.clone()),
                start: lsn(&mut rng),
                timeline: rng.bool().then_some(timeline),
            },
        ] {
            assert_eq!(Command::parse(&command.to_string()), Ok(command));
        }
    }
}

/// Bytes that begin like a message, so that parsers get beyond their first check.
fn likely(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = bytes(rng, 60);
    let tags = b"QdcfXRvSKZTDCIENWkwrh";
    if let Some(first) = bytes.first_mut() {
        *first = tags[rng.usize(..tags.len())];
    }
    // Lengths and counts are in these places, so small numbers get further.
    for byte in bytes.iter_mut().skip(1) {
        if rng.u8(..3) == 0 {
            *byte = rng.u8(..4);
        }
    }
    bytes
}

#[test]
fn no_bytes_make_a_parser_panic() {
    let mut rng = rng();
    for _ in 0..ROUNDS * 4 {
        let input = likely(&mut rng);
        let _ = frame::first(&input, FRONTEND_LIMIT);
        let _ = Startup::parse(&input);
        let _ = FromServer::parse(&input);
        let _ = FromStandby::parse(&input);
        let _ = Command::parse(&String::from_utf8_lossy(&input));
        let Some((&tag, body)) = input.split_first() else {
            continue;
        };
        let frame = Frame { tag, body };
        let _ = Frontend::parse(frame);
        // A parsed value is never larger than the bytes that it was parsed from.
        match Backend::parse(frame) {
            Ok(Backend::DataRow(values)) => assert!(values.len() * 4 <= body.len()),
            Ok(Backend::RowDescription(columns)) => assert!(columns.len() * 19 <= body.len()),
            _ => {}
        }
    }
}

#[test]
fn random_commands_are_errors_or_commands() {
    let mut rng = rng();
    let words = [
        "START_REPLICATION",
        "SLOT",
        "\"a\"",
        "PHYSICAL",
        "0/1",
        "TIMELINE",
        "1",
        "(",
        ")",
        ";",
        "'x'",
        "CREATE_REPLICATION_SLOT",
        "TEMPORARY",
        "RESERVE_WAL",
        "SHOW",
        "a",
        ".",
        "\"",
        "/",
        "DROP_REPLICATION_SLOT",
        "WAIT",
        "TIMELINE_HISTORY",
        "LOGICAL",
        "IDENTIFY_SYSTEM",
        "é",
    ];
    for _ in 0..ROUNDS {
        let line: Vec<&str> = (0..rng.usize(1..8))
            .map(|_| words[rng.usize(..words.len())])
            .collect();
        if let Ok(command) = Command::parse(&line.join(" ")) {
            let again = command.to_string();
            if !matches!(command, Command::Other(_) | Command::Sql) {
                assert_eq!(Command::parse(&again), Ok(command), "{again}");
            }
        }
    }
}
