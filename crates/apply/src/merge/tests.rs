use lockstep_wire::logical::{Column, Commit, ReplicaIdentity, Value};

use super::*;
use crate::batch::{Set, Step};
use crate::table::{TargetColumn, TargetTable};

/// Whatever the source has, the target has.
struct Same;

impl Tables for Same {
    fn start(&mut self, _source: &SourceTable, _transaction: Lsn) -> Result<Start> {
        Ok(Start::At(Lsn::INVALID))
    }

    fn table(&mut self, source: &SourceTable, _transaction: Lsn) -> Result<Arc<Table>> {
        let columns = source.columns.iter().map(|column| TargetColumn {
            name: column.name.clone(),
            of: crate::types::ColumnType::default(),
            kind: "pg_catalog.int8".to_owned(),
            in_array: true,
            of_user: false,
            delimiter: b',',
            generated: false,
            always_identity: false,
        });
        let target = TargetTable {
            columns: columns.collect(),
            ..TargetTable::default()
        };
        Table::fit(source, &target).map(Arc::new)
    }
}

struct Stream {
    merger: Merger,
    /// Transactions so far, and rows.
    transactions: u64,
    rows: u64,
}

impl Stream {
    fn new(limits: Limits) -> Self {
        let mut stream = Self {
            merger: Merger::new(limits, Lsn::INVALID),
            transactions: 0,
            rows: 0,
        };
        let columns = [Column {
            flags: 1,
            name: b"id",
            kind: 20,
            modifier: -1,
        }];
        stream.take(&Message::Relation(Relation {
            id: 1,
            namespace: b"public",
            name: b"t",
            replica_identity: ReplicaIdentity::Default,
            columns: columns.to_vec(),
        }));
        stream
    }

    fn take(&mut self, message: &Message<'_>) {
        let mut bytes = Vec::new();
        message.encode(None, &mut bytes).unwrap();
        self.merger.take(&bytes, &mut Same).unwrap();
    }

    fn begin(&mut self) {
        self.transactions += 1;
        self.take(&Message::Begin {
            final_lsn: Lsn::from(self.transactions * 100),
            commit_time: Timestamp(0),
            xid: lockstep_wire::logical::Xid(1),
        });
    }

    fn insert(&mut self, rows: u64) {
        for _ in 0..rows {
            self.rows += 1;
            let mut buffer = Vec::new();
            let id = self.rows.to_string();
            let new = Tuple::new(&[Value::Text(id.as_bytes())], &mut buffer).unwrap();
            self.take(&Message::Insert { relation: 1, new });
        }
    }

    fn commit(&mut self) {
        self.take(&Message::Commit(Commit {
            commit_lsn: Lsn::from(self.transactions * 100),
            end_lsn: Lsn::from(self.transactions * 100 + 1),
            commit_time: Timestamp(0),
        }));
    }

    /// What is handed over: rows, and the transaction that the target commits.
    fn part(&mut self) -> (usize, Option<u64>) {
        match self.merger.hand_over() {
            Handed::Part(part) => {
                let rows = part.steps.iter().map(|step| match step {
                    Step::Change {
                        set: Set::Insert(rows),
                        ..
                    } => rows.len(),
                    other => panic!("not an insert: {other:?}"),
                });
                (
                    rows.sum(),
                    part.commit.map(|commit| u64::from(commit.end) / 100),
                )
            }
            Handed::Position(commit) => panic!("nothing to do up to {commit:?}"),
        }
    }
}

fn limits() -> Limits {
    Limits {
        part: usize::MAX,
        changes: 10,
        bytes: usize::MAX,
        transactions: u64::MAX,
        of_one: 20,
    }
}

#[test]
fn a_large_transaction_is_handed_over_before_its_end() {
    let mut stream = Stream::new(limits());
    stream.begin();
    stream.insert(3);
    stream.commit();
    stream.begin();
    stream.insert(19);
    assert!(!stream.merger.is_full(), "others' changes do not count");
    stream.insert(1);
    assert!(stream.merger.is_full());
    assert_eq!(stream.part(), (3, Some(1)), "it does not wait for the next");
    assert!(stream.merger.is_full());
    assert_eq!(stream.part(), (20, None));
    stream.insert(19);
    assert!(!stream.merger.is_full());
    stream.insert(1);
    assert!(stream.merger.is_full());
    assert_eq!(stream.part(), (20, None));
    stream.commit();
    assert!(stream.merger.is_full(), "the target is to commit");
    assert_eq!(stream.part(), (0, Some(2)));
    assert!(!stream.merger.is_full() && stream.merger.is_idle());
}

#[test]
fn only_later_parts_of_a_large_transaction_may_grow() {
    let mut stream = Stream::new(limits());
    stream.begin();
    stream.insert(20);
    assert!(stream.merger.is_full() && !stream.merger.may_grow());
    assert_eq!(stream.part(), (20, None));
    stream.insert(79);
    assert!(stream.merger.is_full() && stream.merger.may_grow());
    stream.insert(1);
    assert!(!stream.merger.may_grow(), "four times as many are enough");
    assert_eq!(stream.part(), (80, None));
    stream.insert(20);
    assert!(stream.merger.may_grow());
    let part = std::mem::replace(&mut stream.merger.limits.part, 50);
    assert!(!stream.merger.may_grow(), "memory is bounded all the same");
    stream.merger.limits.part = part;
    stream.commit();
    assert!(stream.merger.is_full() && !stream.merger.may_grow());
    assert_eq!(stream.part(), (20, Some(1)));
    stream.begin();
    stream.insert(1);
    stream.commit();
    stream.begin();
    stream.insert(20);
    assert!(stream.merger.is_full() && !stream.merger.may_grow());
}

#[test]
fn what_is_whole_can_go_while_another_arrives() {
    let mut stream = Stream::new(limits());
    stream.begin();
    stream.insert(3);
    stream.commit();
    stream.begin();
    stream.insert(2);
    assert!(stream.merger.can_commit());
    assert_eq!((stream.merger.rows(), stream.part()), (3, (3, Some(1))));
    assert!(!stream.merger.can_commit());
    stream.insert(2);
    stream.commit();
    assert_eq!(stream.part(), (4, Some(2)));
    // One that ends in time joins those before it.
    for _ in 0..2 {
        stream.begin();
        stream.insert(2);
        stream.commit();
    }
    assert_eq!(stream.part(), (4, Some(4)));
    assert!(stream.merger.is_idle());
    assert_eq!(stream.merger.memory(), 0);
}

#[test]
fn what_waits_beside_a_batch_counts_as_memory() {
    let mut stream = Stream::new(Limits {
        part: 10_000,
        of_one: u64::MAX,
        ..limits()
    });
    stream.begin();
    stream.insert(3);
    stream.commit();
    stream.begin();
    while !stream.merger.is_full() {
        stream.insert(1);
        assert!(stream.rows < 1_000);
    }
    assert_eq!(stream.part(), (3, Some(1)));
}

#[test]
fn the_target_commits_in_a_backlog_of_large_transactions() {
    let mut stream = Stream::new(limits());
    let mut commits = Vec::new();
    let hand_over = |stream: &mut Stream, commits: &mut Vec<u64>| {
        if stream.merger.is_full() {
            commits.extend(stream.part().1);
        }
    };
    for rows in [25, 25, 7, 15, 15, 45] {
        stream.begin();
        for _ in 0..rows {
            stream.insert(1);
            hand_over(&mut stream, &mut commits);
        }
        stream.commit();
        hand_over(&mut stream, &mut commits);
    }
    // The third and the fourth are one batch; only what is large itself is cut.
    assert_eq!(commits, [1, 2, 4, 5, 6]);
}

#[test]
fn a_transaction_that_did_not_fit_stays_whole() {
    let mut stream = Stream::new(limits());
    stream.merger.careful = Lsn::from(100);
    stream.begin();
    stream.insert(50);
    assert!(!stream.merger.is_full());
    stream.merger.limits.part = 50;
    assert!(stream.merger.is_full(), "memory is bounded all the same");
    stream.merger.limits.part = usize::MAX;
    stream.commit();
    assert_eq!(stream.part(), (50, Some(1)));
    stream.begin();
    stream.insert(20);
    assert!(stream.merger.is_full(), "the one after it is cut");
}

#[test]
fn with_several_writers_only_what_is_larger_than_all_of_their_batches_is_cut() {
    let of_one = |writers| Limits::of_memory(1 << 28, writers).of_one;
    for writers in [1, 2, 4] {
        let limits = Limits::of_memory(1 << 28, writers);
        assert!(limits.of_one >= limits.changes * writers as u64);
    }
    assert_eq!((of_one(1), of_one(4)), (20_000, 80_000));
    let of = |writers| Limits::of_memory(1 << 28, writers);
    for (from, to) in [(1, 4), (4, 1), (2, 8)] {
        let (shared, same) = (of(from).shared(from, to), of(to));
        assert_eq!((shared.changes, shared.of_one), (same.changes, same.of_one));
        assert!(shared.part.abs_diff(same.part) < 8 && shared.bytes.abs_diff(same.bytes) < 8);
    }
}

#[test]
fn binary_values_are_refused() {
    let mut stream = Stream::new(limits());
    stream.begin();
    let mut buffer = Vec::new();
    let new = Tuple::new(&[Value::Binary(&[0; 8])], &mut buffer).unwrap();
    let mut bytes = Vec::new();
    let insert = Message::Insert { relation: 1, new };
    insert.encode(None, &mut bytes).unwrap();
    let refused = stream.merger.take(&bytes, &mut Same).unwrap_err();
    assert!(refused.to_string().contains("binary"), "{refused}");
}
