//! The assembler, by tables.

use bytes::Bytes;
use lockstep_wire::Lsn;
use lockstep_wire::batch::{self, Entry};
use lockstep_wire::logical::frames;
use lockstep_wire::logical::{
    Commit, Message, Prepared, Relation, ReplicaIdentity, Tuple, Value, Xid,
};
use lockstep_wire::stream::{FromServer, Timestamp};

use crate::{Assembler, StreamError};

const AT: Timestamp = Timestamp(77);

fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(None, &mut out).unwrap();
    out
}

fn begin(key: u64) -> Vec<u8> {
    encoded(&Message::Begin {
        final_lsn: key.into(),
        commit_time: AT,
        xid: Xid(9),
    })
}

fn commit(key: u64, end: u64) -> Vec<u8> {
    encoded(&Message::Commit(Commit {
        commit_lsn: key.into(),
        end_lsn: end.into(),
        commit_time: AT,
    }))
}

fn insert() -> Vec<u8> {
    let mut buffer = Vec::new();
    encoded(&Message::Insert {
        relation: 5,
        new: Tuple::new(&[Value::Text(b"x")], &mut buffer).unwrap(),
    })
}

fn relation(id: u32) -> Vec<u8> {
    encoded(&Message::Relation(Relation {
        id,
        namespace: b"public",
        name: b"t",
        replica_identity: ReplicaIdentity::Default,
        columns: Vec::new(),
    }))
}

fn note(lsn: u64) -> Vec<u8> {
    encoded(&Message::Message {
        transactional: false,
        lsn: lsn.into(),
        prefix: b"p",
        content: b"c",
    })
}

fn commit_prepared(key: u64, end: u64) -> Vec<u8> {
    encoded(&Message::CommitPrepared(Prepared {
        lsn: key.into(),
        end_lsn: end.into(),
        time: AT,
        xid: Xid(9),
        gid: b"g",
    }))
}

fn plain(message: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    FromServer::XLogData {
        start: 3.into(),
        end: 3.into(),
        sent_at: AT,
        wal: message,
    }
    .encode(&mut out);
    out
}

fn keepalive(end: u64) -> Vec<u8> {
    let mut out = Vec::new();
    FromServer::Keepalive {
        end: end.into(),
        sent_at: AT,
        reply: false,
    }
    .encode(&mut out);
    out
}

/// The first bytes of the messages in frames.
fn kinds(frames: &Bytes) -> String {
    frames::scan(frames)
        .map(|frame| char::from(frame.unwrap().message[0]))
        .collect()
}

fn taken(assembler: &mut Assembler, messages: &[Vec<u8>]) -> Result<String, StreamError> {
    for message in messages {
        assembler.take_in(&plain(message))?;
    }
    Ok(kinds(&assembler.take_frames()))
}

#[test]
fn what_the_log_has_is_dropped_and_its_schema_is_not() {
    let mut assembler = Assembler::new(50.into(), false);
    let sent = [
        // Its commit record starts before the end of the log.
        begin(40),
        relation(1),
        insert(),
        commit(40, 50),
        note(50),
        commit_prepared(49, 50),
        // Adjacent: its record starts where the last one ended.
        begin(50),
        insert(),
        commit(50, 60),
        note(61),
        commit_prepared(61, 70),
    ];
    assert_eq!(taken(&mut assembler, &sent).unwrap(), "BRICMK");
    assert_eq!(assembler.covered(), Lsn::from(70));
    assert_eq!(assembler.take_units(), 3);
    assert!(assembler.between_units());
}

#[test]
fn keepalives_cover_only_what_has_come() {
    let mut assembler = Assembler::new(10.into(), true);
    assembler.take_in(&keepalive(20)).unwrap();
    assert_eq!(assembler.covered(), Lsn::from(20));

    // A commit is held: the position covers it, and it has not come.
    let mut marker = Vec::new();
    batch::put_marker(&mut marker);
    assembler.take_in(&plain(&marker)).unwrap();
    assembler.take_in(&keepalive(90)).unwrap();
    assert_eq!(assembler.covered(), Lsn::from(20));
    assert_eq!(assembler.sent(), Lsn::from(90));

    // The batch ends within a transaction: still not.
    let messages = [begin(30), insert(), commit(30, 40), begin(80), insert()];
    let entries: Vec<Entry<'_>> = messages
        .iter()
        .map(|message| Entry {
            lsn: 7.into(),
            time: AT,
            message,
        })
        .collect();
    let mut data = Vec::new();
    batch::put_batch(&mut data, &entries).unwrap();
    assembler.take_in(&plain(&data)).unwrap();
    assembler.take_in(&keepalive(95)).unwrap();
    assert_eq!(assembler.covered(), Lsn::from(40));
    assert!(!assembler.between_units());

    let last = [Entry {
        lsn: 7.into(),
        time: AT,
        message: &commit(80, 90),
    }];
    let mut data = Vec::new();
    batch::put_batch(&mut data, &last).unwrap();
    assembler.take_in(&plain(&data)).unwrap();
    assert_eq!(assembler.covered(), Lsn::from(90));
    assembler.take_in(&keepalive(95)).unwrap();
    assert_eq!(assembler.covered(), Lsn::from(95));
    assert_eq!(kinds(&assembler.take_frames()), "BICBIC");
}

#[test]
fn frames_keep_each_entrys_position_and_time() {
    let mut assembler = Assembler::new(Lsn::INVALID, true);
    let message = begin(30);
    let entries = [Entry {
        lsn: 0x1234.into(),
        time: Timestamp(5),
        message: &message,
    }];
    let mut data = Vec::new();
    batch::put_batch(&mut data, &entries).unwrap();
    assembler.take_in(&plain(&data)).unwrap();
    let mut expected = Vec::new();
    frames::put_frame(&mut expected, 0x1234.into(), Timestamp(5), &message).unwrap();
    assert_eq!(assembler.take_frames(), expected);
}

#[test]
fn messages_out_of_order_are_refused() {
    for sent in [
        vec![begin(20), begin(30)],
        vec![insert()],
        vec![commit(20, 30)],
        vec![begin(20), commit_prepared(20, 30)],
        vec![begin(20), note(25)],
        vec![begin(5), commit_prepared(20, 30)],
        vec![b"S\0\0\0\x09\x01".to_vec()],
        vec![b"?".to_vec()],
        vec![Vec::new()],
    ] {
        let mut assembler = Assembler::new(10.into(), false);
        assert!(taken(&mut assembler, &sent).is_err(), "{sent:?}");
    }
}
