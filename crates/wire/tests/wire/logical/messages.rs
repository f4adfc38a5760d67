//! Each message, decoded from bytes that were written by hand.

use lockstep_wire::logical::{
    Aborted, Boundary, Column, Commit, Context, Message, Old, Prepared, Relation, ReplicaIdentity,
    SchemaKey, TruncateOptions, Tuple, Value, Xid, boundary,
};
use lockstep_wire::stream::Timestamp;
use lockstep_wire::{Lsn, WireError};

const PLAIN: Context = Context {
    in_stream: false,
    abort_details: false,
};
const STREAM: Context = Context {
    in_stream: true,
    abort_details: false,
};
const DETAILS: Context = Context {
    in_stream: false,
    abort_details: true,
};

fn time(micros: i64) -> Timestamp {
    Timestamp(micros)
}

fn lsn(position: u64) -> Lsn {
    position.into()
}

/// A message: its bytes, its context, its transaction there, and the value to expect.
struct Case {
    bytes: &'static [u8],
    context: Context,
    xid: Option<Xid>,
    message: Message<'static>,
    /// None if it is an error.
    boundary: Option<Boundary>,
}

fn case(bytes: &'static [u8], message: Message<'static>, boundary: Boundary) -> Case {
    Case {
        bytes,
        context: PLAIN,
        xid: None,
        message,
        boundary: Some(boundary),
    }
}

/// A message that exists only in streams of transactions in progress.
fn streamed(bytes: &'static [u8], context: Context, message: Message<'static>) -> Case {
    Case {
        bytes,
        context,
        xid: None,
        message,
        boundary: None,
    }
}

/// A row that lives as long as the tests run.
fn row(values: &[Value<'_>]) -> Tuple<'static> {
    let buffer = Box::leak(Box::default());
    Tuple::new(values, buffer).unwrap()
}

fn prepared() -> Prepared<'static> {
    Prepared {
        lsn: lsn(0x16_B374_D848),
        end_lsn: lsn(0x16_B374_D900),
        time: time(0x0102_0304_0506_0708),
        xid: Xid(735),
        gid: b"gid 1",
    }
}

fn commit() -> Commit {
    Commit {
        commit_lsn: lsn(0x16_B374_D848),
        end_lsn: lsn(0x16_B374_D900),
        commit_time: time(-2),
    }
}

fn transactions() -> Vec<Case> {
    let begin = Boundary::Begin {
        key: lsn(0x16_B374_D848),
    };
    let end = Boundary::End {
        key: lsn(0x16_B374_D848),
        end: lsn(0x16_B374_D900),
    };
    vec![
        case(
            b"B\0\0\0\x16\xB3\x74\xD8\x48\x01\x02\x03\x04\x05\x06\x07\x08\0\0\x02\xDF",
            Message::Begin {
                final_lsn: lsn(0x16_B374_D848),
                commit_time: time(0x0102_0304_0506_0708),
                xid: Xid(735),
            },
            begin,
        ),
        case(
            b"C\0\0\0\0\x16\xB3\x74\xD8\x48\0\0\0\x16\xB3\x74\xD9\0\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFE",
            Message::Commit(commit()),
            end,
        ),
        case(
            b"O\0\0\0\0\0\0\0\0pg_16390\0",
            Message::Origin {
                lsn: Lsn::INVALID,
                name: b"pg_16390",
            },
            Boundary::Change,
        ),
        case(
            b"M\0\0\0\0\0\x01\0\0\0pre\0\0\0\0\x02\0\x01",
            Message::Message {
                transactional: false,
                lsn: lsn(0x100_0000),
                prefix: b"pre",
                content: b"\0\x01",
            },
            Boundary::Whole {
                key: None,
                end: lsn(0x100_0000),
            },
        ),
        case(
            b"M\x01\0\0\0\0\x01\0\0\0\0\0\0\0\0",
            Message::Message {
                transactional: true,
                lsn: lsn(0x100_0000),
                prefix: b"",
                content: b"",
            },
            Boundary::Change,
        ),
    ]
}

fn two_phase() -> Vec<Case> {
    let begin = Boundary::Begin {
        key: lsn(0x16_B374_D848),
    };
    let end = Boundary::End {
        key: lsn(0x16_B374_D848),
        end: lsn(0x16_B374_D900),
    };
    vec![
        case(
            b"b\0\0\0\x16\xB3\x74\xD8\x48\0\0\0\x16\xB3\x74\xD9\0\x01\x02\x03\x04\x05\x06\x07\x08\0\0\x02\xDFgid 1\0",
            Message::BeginPrepare(prepared()),
            begin,
        ),
        case(
            b"P\0\0\0\0\x16\xB3\x74\xD8\x48\0\0\0\x16\xB3\x74\xD9\0\x01\x02\x03\x04\x05\x06\x07\x08\0\0\x02\xDFgid 1\0",
            Message::Prepare(prepared()),
            end,
        ),
        case(
            b"K\0\0\0\0\x16\xB3\x74\xD8\x48\0\0\0\x16\xB3\x74\xD9\0\x01\x02\x03\x04\x05\x06\x07\x08\0\0\x02\xDFgid 1\0",
            Message::CommitPrepared(prepared()),
            Boundary::Whole {
                key: Some(lsn(0x16_B374_D848)),
                end: lsn(0x16_B374_D900),
            },
        ),
        case(
            b"r\0\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\x07\0",
            Message::RollbackPrepared {
                prepare_end_lsn: lsn(5),
                rollback_end_lsn: lsn(9),
                prepare_time: time(1),
                rollback_time: time(2),
                xid: Xid(7),
                gid: b"",
            },
            Boundary::Whole {
                key: None,
                end: lsn(9),
            },
        ),
    ]
}

fn schemas() -> Vec<Case> {
    vec![
        case(
            b"R\0\0\x40\x01public\0t\xE9\0d\0\x02\x01id\0\0\0\0\x17\xFF\xFF\xFF\xFF\0name\0\0\0\x04\x13\0\0\0\x18",
            Message::Relation(Relation {
                id: 16385,
                namespace: b"public",
                // Not UTF-8: the encoding is the client's.
                name: b"t\xE9",
                replica_identity: ReplicaIdentity::Default,
                columns: vec![
                    Column {
                        flags: 1,
                        name: b"id",
                        kind: 23,
                        modifier: -1,
                    },
                    Column {
                        flags: 0,
                        name: b"name",
                        kind: 1043,
                        modifier: 24,
                    },
                ],
            }),
            Boundary::Schema(SchemaKey::Relation(16385)),
        ),
        case(
            b"Y\xFF\xFF\xFF\xFE\0mood\0",
            Message::Type {
                id: u32::MAX - 1,
                namespace: b"",
                name: b"mood",
            },
            Boundary::Schema(SchemaKey::Type(u32::MAX - 1)),
        ),
    ]
}

fn changes() -> Vec<Case> {
    vec![
        case(
            b"I\0\0\x40\x01N\0\x04nut\0\0\0\x01xb\0\0\0\0",
            Message::Insert {
                relation: 16385,
                new: row(&[
                    Value::Null,
                    Value::Unchanged,
                    Value::Text(b"x"),
                    Value::Binary(b""),
                ]),
            },
            Boundary::Change,
        ),
        case(
            b"U\0\0\x40\x01N\0\0",
            Message::Update {
                relation: 16385,
                old: None,
                new: row(&[]),
            },
            Boundary::Change,
        ),
        case(
            b"U\0\0\x40\x01K\0\x01t\0\0\0\x011N\0\x01u",
            Message::Update {
                relation: 16385,
                old: Some(Old::Key(row(&[Value::Text(b"1")]))),
                new: row(&[Value::Unchanged]),
            },
            Boundary::Change,
        ),
        case(
            b"U\0\0\x40\x01O\0\x01nN\0\x01n",
            Message::Update {
                relation: 16385,
                old: Some(Old::Row(row(&[Value::Null]))),
                new: row(&[Value::Null]),
            },
            Boundary::Change,
        ),
        case(
            b"D\0\0\x40\x01O\0\x01b\0\0\0\x02\0\x01",
            Message::Delete {
                relation: 16385,
                old: Old::Row(row(&[Value::Binary(&[0, 1])])),
            },
            Boundary::Change,
        ),
        case(
            b"D\0\0\x40\x01K\0\x01t\0\0\0\x02ab",
            Message::Delete {
                relation: 16385,
                old: Old::Key(row(&[Value::Text(b"ab")])),
            },
            Boundary::Change,
        ),
        case(
            b"T\0\0\0\x02\x03\0\0\0\x01\0\0\0\x02",
            Message::Truncate {
                options: TruncateOptions(3),
                relations: vec![1, 2],
            },
            Boundary::Change,
        ),
    ]
}

fn streams() -> Vec<Case> {
    vec![
        streamed(
            b"S\0\0\x02\xDF\x01",
            PLAIN,
            Message::StreamStart {
                xid: Xid(735),
                first: true,
            },
        ),
        streamed(b"E", STREAM, Message::StreamStop),
        streamed(
            b"c\0\0\x02\xDF\0\0\0\0\x16\xB3\x74\xD8\x48\0\0\0\x16\xB3\x74\xD9\0\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFE",
            PLAIN,
            Message::StreamCommit {
                xid: Xid(735),
                commit: commit(),
            },
        ),
        streamed(
            b"A\0\0\x02\xDF\0\0\x02\xE0",
            PLAIN,
            Message::StreamAbort {
                xid: Xid(735),
                subxid: Xid(736),
                aborted: None,
            },
        ),
        streamed(
            b"A\0\0\x02\xDF\0\0\x02\xE0\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\x06",
            DETAILS,
            Message::StreamAbort {
                xid: Xid(735),
                subxid: Xid(736),
                aborted: Some(Aborted {
                    lsn: lsn(5),
                    time: time(6),
                }),
            },
        ),
        streamed(
            b"p\0\0\0\0\x16\xB3\x74\xD8\x48\0\0\0\x16\xB3\x74\xD9\0\x01\x02\x03\x04\x05\x06\x07\x08\0\0\x02\xDFgid 1\0",
            PLAIN,
            Message::StreamPrepare(prepared()),
        ),
    ]
}

/// The messages that begin with a transaction inside a stream, made from their form outside of
/// one.
fn in_stream() -> Vec<Case> {
    transactions()
        .into_iter()
        .chain(schemas())
        .chain(changes())
        .filter(|case| b"RYIUDTM".contains(&case.bytes[0]))
        .map(|case| {
            let mut bytes = case.bytes.to_vec();
            bytes.splice(1..1, [0, 0, 2, 0xE0]);
            Case {
                bytes: bytes.leak(),
                context: STREAM,
                xid: Some(Xid(736)),
                ..case
            }
        })
        .collect()
}

fn all() -> Vec<Case> {
    let mut cases = transactions();
    cases.extend(two_phase());
    cases.extend(schemas());
    cases.extend(changes());
    cases.extend(streams());
    cases.extend(in_stream());
    cases
}

#[test]
fn messages_are_read_and_written() {
    for case in all() {
        let Case { bytes, context, .. } = case;
        let expected = Ok((case.xid, case.message.clone()));
        assert_eq!(Message::parse(bytes, context), expected, "{bytes:?}");
        let mut out = Vec::new();
        case.message.encode(case.xid, &mut out).unwrap();
        assert_eq!(out, bytes, "{:?}", case.message);
    }
}

#[test]
fn every_kind_of_message_is_in_the_table() {
    let mut tags: Vec<u8> = all().iter().map(|case| case.bytes[0]).collect();
    tags.sort_unstable();
    tags.dedup();
    assert_eq!(tags, b"ABCDEIKMOPRSTUYbcpr");
}

#[test]
fn boundaries_are_told_without_the_rest() {
    for case in all().iter().filter(|case| case.xid.is_none()) {
        assert_eq!(boundary(case.bytes).ok(), case.boundary, "{:?}", case.bytes);
    }
}

#[test]
fn a_message_cut_short_or_too_long_is_an_error() {
    for case in all() {
        for length in 0..case.bytes.len() {
            let cut = &case.bytes[..length];
            assert!(Message::parse(cut, case.context).is_err(), "{cut:?}");
            // A boundary may be known from a part of the message; then it must be the same one.
            if case.xid.is_none() && boundary(cut).is_ok() {
                assert_eq!(boundary(cut).ok(), case.boundary, "{cut:?}");
                assert!(!b"BCbPKr".contains(&cut[0]), "{cut:?}");
            }
        }
        let more = [case.bytes, b"\0"].concat();
        assert!(Message::parse(&more, case.context).is_err(), "{more:?}");
        if b"BCbPKr".contains(&more[0]) {
            assert!(boundary(&more).is_err(), "{more:?}");
        }
    }
    assert!(boundary(b"").is_err());
}

#[test]
fn nonsense_is_refused() {
    for bytes in [
        // No such message.
        &b"Z"[..],
        b"\0",
        // Position 0/0.
        b"B\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01",
        b"C\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0",
        b"C\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        b"M\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
    ] {
        assert!(Message::parse(bytes, PLAIN).is_err(), "{bytes:?}");
        assert!(boundary(bytes).is_err(), "{bytes:?}");
    }
    for bytes in [
        // Flags of a later version.
        &b"C\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0"[..],
        b"P\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\x01\0",
        // No new row, no old row, an unknown one.
        b"I\0\0\0\x01K\0\0",
        b"U\0\0\0\x01K\0\0",
        b"U\0\0\0\x01K\0\0K\0\0",
        b"U\0\0\0\x01X\0\0",
        b"D\0\0\0\x01N\0\0",
        // An unknown kind of value, a negative length, a length beyond the end.
        b"I\0\0\0\x01N\0\x01x",
        b"I\0\0\0\x01N\0\x01t\xFF\xFF\xFF\xFF",
        b"I\0\0\0\x01N\0\x01t\0\0\0\x02a",
        b"I\0\0\0\x01N\0\x01t\x7F\xFF\xFF\xFFa",
        // An unknown replica identity.
        b"R\0\0\0\x01\0a\0x\0\0",
        // More tables than there are.
        b"T\xFF\xFF\xFF\xFF\0\0\0\0\x01",
        b"M\x01\0\0\0\0\0\0\0\x01\0\xFF\xFF\xFF\xFF",
    ] {
        assert!(Message::parse(bytes, PLAIN).is_err(), "{bytes:?}");
    }
    let zero = b"I\0\0\0\0\0\0\0\x01N\0\0";
    assert!(Message::parse(zero, STREAM).is_err());
}

#[test]
fn numbers_of_columns_are_limited() {
    let mut insert = b"I\0\0\0\x01N".to_vec();
    for (columns, fine) in [(1600_u16, true), (1601, false), (u16::MAX, false)] {
        insert.truncate(6);
        insert.extend(columns.to_be_bytes());
        insert.extend(vec![b'n'; columns.into()]);
        assert_eq!(Message::parse(&insert, PLAIN).is_ok(), fine, "{columns}");
        let values = vec![Value::Null; columns.into()];
        assert_eq!(Tuple::new(&values, &mut Vec::new()).is_ok(), fine);
    }
}

#[test]
fn rows_give_their_values() {
    let values = [Value::Null, Value::Text(b"a"), Value::Unchanged];
    let row = row(&values);
    assert_eq!((row.len(), row.is_empty()), (3, false));
    assert_eq!(row.values().len(), 3);
    assert!(row.values().eq(values));
}

#[test]
fn streams_that_nobody_asked_for_are_named_in_the_error() {
    for tag in *b"SEcAp" {
        let error = boundary(&[tag, 0, 0, 0, 1]).unwrap_err();
        assert!(matches!(error, WireError::Malformed(_)), "{error}");
        assert!(error.to_string().contains("in progress"), "{error}");
    }
}
