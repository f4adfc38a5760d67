//! Random messages come back as they were.

use fastrand::Rng;
use lockstep_wire::Lsn;
use lockstep_wire::logical::{
    Aborted, Boundary, Column, Commit, Context, Message, Old, Prepared, Relation, ReplicaIdentity,
    SchemaKey, TruncateOptions, Tuple, Value, Xid, boundary,
};
use lockstep_wire::stream::Timestamp;

use crate::rng;

/// Owns the pieces that messages borrow.
pub struct Pieces {
    names: [Vec<u8>; 4],
    rows: [Vec<u8>; 2],
}

impl Pieces {
    pub fn new(rng: &mut Rng) -> Self {
        Self {
            names: std::array::from_fn(|_| (0..rng.usize(..10)).map(|_| rng.u8(1..)).collect()),
            rows: Default::default(),
        }
    }
}

fn lsn(rng: &mut Rng) -> Lsn {
    (rng.u64(1..) >> rng.u32(..64)).max(1).into()
}

fn time(rng: &mut Rng) -> Timestamp {
    Timestamp(rng.i64(..))
}

fn xid(rng: &mut Rng) -> Xid {
    Xid(rng.u32(1..))
}

fn row<'a>(rng: &mut Rng, names: &[Vec<u8>; 4], buffer: &'a mut Vec<u8>) -> Tuple<'a> {
    let values: Vec<Value<'_>> = (0..rng.usize(..6))
        .map(|_| match rng.u8(..4) {
            0 => Value::Null,
            1 => Value::Unchanged,
            2 => Value::Text(&names[rng.usize(..4)]),
            _ => Value::Binary(&names[rng.usize(..4)]),
        })
        .collect();
    Tuple::new(&values, buffer).unwrap()
}

fn relation<'a>(rng: &mut Rng, names: &'a [Vec<u8>; 4]) -> Relation<'a> {
    let identities = [
        ReplicaIdentity::Default,
        ReplicaIdentity::Nothing,
        ReplicaIdentity::Full,
        ReplicaIdentity::Index,
    ];
    Relation {
        id: rng.u32(..),
        namespace: &names[0],
        name: &names[1],
        replica_identity: identities[rng.usize(..4)],
        columns: (0..rng.usize(..5))
            .map(|_| Column {
                flags: rng.u8(..),
                name: &names[rng.usize(..4)],
                kind: rng.u32(..),
                modifier: rng.i32(..),
            })
            .collect(),
    }
}

/// A message, and the context that is needed to read it.
pub fn message<'a>(rng: &mut Rng, pieces: &'a mut Pieces) -> (Context, Option<Xid>, Message<'a>) {
    let context = Context {
        in_stream: rng.bool(),
        abort_details: rng.bool(),
    };
    let kind = rng.u8(..19);
    if kind >= CHANGES {
        return (context, None, step(rng, &pieces.names, context, kind));
    }
    let streamed = context.in_stream.then(|| xid(rng));
    (context, streamed, change(rng, pieces, kind))
}

/// Number of kinds of messages that begin with a transaction inside a stream.
const CHANGES: u8 = 7;

fn change<'a>(rng: &mut Rng, pieces: &'a mut Pieces, kind: u8) -> Message<'a> {
    let Pieces {
        names,
        rows: [one, two],
    } = pieces;
    let names = &*names;
    let relation_id = rng.u32(..);
    match kind {
        0 => Message::Relation(relation(rng, names)),
        1 => Message::Type {
            id: rng.u32(..),
            namespace: &names[0],
            name: &names[1],
        },
        2 => Message::Insert {
            relation: relation_id,
            new: row(rng, names, one),
        },
        3 => Message::Update {
            relation: relation_id,
            old: match rng.u8(..3) {
                0 => None,
                1 => Some(Old::Key(row(rng, names, two))),
                _ => Some(Old::Row(row(rng, names, two))),
            },
            new: row(rng, names, one),
        },
        4 => Message::Delete {
            relation: relation_id,
            old: match rng.bool() {
                true => Old::Key(row(rng, names, one)),
                false => Old::Row(row(rng, names, one)),
            },
        },
        5 => Message::Truncate {
            options: TruncateOptions(rng.u8(..)),
            relations: (0..rng.usize(..5)).map(|_| rng.u32(..)).collect(),
        },
        _ => Message::Message {
            transactional: rng.bool(),
            lsn: lsn(rng),
            prefix: &names[0],
            content: &names[1],
        },
    }
}

fn step<'a>(rng: &mut Rng, names: &'a [Vec<u8>; 4], context: Context, kind: u8) -> Message<'a> {
    let prepared = Prepared {
        lsn: lsn(rng),
        end_lsn: lsn(rng),
        time: time(rng),
        xid: xid(rng),
        gid: &names[0],
    };
    let commit = Commit {
        commit_lsn: lsn(rng),
        end_lsn: lsn(rng),
        commit_time: time(rng),
    };
    match kind {
        7 => Message::Begin {
            final_lsn: lsn(rng),
            commit_time: time(rng),
            xid: xid(rng),
        },
        8 => Message::Commit(commit),
        9 => Message::Origin {
            lsn: lsn(rng),
            name: &names[0],
        },
        10 => Message::BeginPrepare(prepared),
        11 => Message::Prepare(prepared),
        12 => Message::CommitPrepared(prepared),
        13 => Message::RollbackPrepared {
            prepare_end_lsn: lsn(rng),
            rollback_end_lsn: lsn(rng),
            prepare_time: time(rng),
            rollback_time: time(rng),
            xid: xid(rng),
            gid: &names[0],
        },
        14 => Message::StreamStart {
            xid: xid(rng),
            first: rng.bool(),
        },
        15 => Message::StreamStop,
        16 => Message::StreamCommit {
            xid: xid(rng),
            commit,
        },
        17 => Message::StreamAbort {
            xid: xid(rng),
            subxid: xid(rng),
            aborted: context.abort_details.then(|| Aborted {
                lsn: lsn(rng),
                time: time(rng),
            }),
        },
        _ => Message::StreamPrepare(prepared),
    }
}

/// The boundary of a message; None if [`boundary`] refuses it.
pub fn boundary_of(message: &Message<'_>) -> Option<Boundary> {
    Some(match message {
        Message::Begin { final_lsn: key, .. }
        | Message::BeginPrepare(Prepared { lsn: key, .. }) => Boundary::Begin { key: *key },
        Message::Commit(Commit {
            commit_lsn: key,
            end_lsn: end,
            ..
        })
        | Message::Prepare(Prepared {
            lsn: key,
            end_lsn: end,
            ..
        }) => Boundary::End {
            key: *key,
            end: *end,
        },
        Message::CommitPrepared(step) => Boundary::Whole {
            key: Some(step.lsn),
            end: step.end_lsn,
        },
        Message::RollbackPrepared {
            rollback_end_lsn: end,
            ..
        }
        | Message::Message {
            transactional: false,
            lsn: end,
            ..
        } => Boundary::Whole {
            key: None,
            end: *end,
        },
        Message::Relation(relation) => Boundary::Schema(SchemaKey::Relation(relation.id)),
        Message::Type { id, .. } => Boundary::Schema(SchemaKey::Type(*id)),
        Message::Origin { .. }
        | Message::Insert { .. }
        | Message::Update { .. }
        | Message::Delete { .. }
        | Message::Truncate { .. }
        | Message::Message { .. } => Boundary::Change,
        Message::StreamStart { .. }
        | Message::StreamStop
        | Message::StreamCommit { .. }
        | Message::StreamAbort { .. }
        | Message::StreamPrepare(_) => return None,
    })
}

#[test]
fn messages_come_back() {
    let mut rng = rng();
    for _ in 0..20_000 {
        let mut pieces = Pieces::new(&mut rng);
        let (context, xid, message) = message(&mut rng, &mut pieces);
        let mut out = Vec::new();
        message.encode(xid, &mut out).unwrap();
        assert_eq!(Message::parse(&out, context), Ok((xid, message.clone())));
        if xid.is_none() {
            assert_eq!(boundary(&out).ok(), boundary_of(&message), "{message:?}");
        }
        let cut = rng.usize(..out.len());
        assert!(Message::parse(&out[..cut], context).is_err());
        out.push(rng.u8(..));
        assert!(Message::parse(&out, context).is_err());
    }
}
