//! The source: a history of transactions, each with its messages and the rows after it.

use std::collections::BTreeMap;

use fastrand::Rng;
use lockstep_apply::ddl::PREFIX;
use lockstep_wire::Lsn;
use lockstep_wire::logical::{
    Column, Commit, Message, Old, Relation, ReplicaIdentity, TruncateOptions, Tuple, Value, Xid,
};
use lockstep_wire::stream::{FromServer, Timestamp};

/// A table with a key and a unique value, one with a key, and one with neither.
pub const UNIQUE: u32 = 1;
pub const KEYED: u32 = 2;
pub const LOG: u32 = 3;
pub const TABLES: [u32; 3] = [UNIQUE, KEYED, LOG];

/// The rows of a database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows {
    /// Rows by table and key.
    pub keyed: BTreeMap<(u32, String), String>,
    /// Rows of the table without a key, and how often each is there.
    pub log: BTreeMap<String, u32>,
    /// Number of commands that have changed the shape of all tables.
    pub version: u32,
}

impl Rows {
    /// Another row of the table with this value.
    pub fn has_value(&self, table: u32, value: &str) -> bool {
        self.keyed
            .iter()
            .any(|((of, _), has)| *of == table && has == value)
    }
}

/// A transaction of the source.
#[derive(Debug)]
pub struct Transaction {
    /// Where its commit record starts and ends.
    pub commit: Lsn,
    pub end: Lsn,
    pub messages: Vec<Vec<u8>>,
    pub after: Rows,
}

/// Where the source's WAL ends when so many transactions have committed: some of it is of no table.
pub fn wal_end(transactions: usize) -> Lsn {
    Lsn::from(transactions as u64 * 1_000 + 450)
}

fn message(message: &Message<'_>, at: Lsn) -> Vec<u8> {
    let mut wal = Vec::new();
    message.encode(None, &mut wal).unwrap();
    let mut out = Vec::new();
    FromServer::XLogData {
        start: at,
        end: at,
        sent_at: Timestamp(0),
        wal: &wal,
    }
    .encode(&mut out);
    out
}

pub fn keepalive(end: Lsn, reply: bool) -> Vec<u8> {
    let mut out = Vec::new();
    FromServer::Keepalive {
        end,
        sent_at: Timestamp(0),
        reply,
    }
    .encode(&mut out);
    out
}

/// What a session's stream says of the tables.
pub fn relations() -> Vec<Vec<u8>> {
    let relation = |id: u32| {
        let column = |name: &'static [u8], key| Column {
            flags: u8::from(key),
            name,
            kind: 25,
            modifier: -1,
        };
        let columns = match id {
            LOG => vec![column(b"n", true)],
            _ => vec![column(b"id", true), column(b"v", false)],
        };
        let name: &[u8] = match id {
            UNIQUE => b"u",
            KEYED => b"k",
            _ => b"log",
        };
        let replica_identity = match id {
            LOG => ReplicaIdentity::Full,
            _ => ReplicaIdentity::Default,
        };
        message(
            &Message::Relation(Relation {
                id,
                namespace: b"public",
                name,
                replica_identity,
                columns,
            }),
            Lsn::INVALID,
        )
    };
    TABLES.map(relation).to_vec()
}

/// Makes a history.
pub struct Writer<'a> {
    pub rng: &'a mut Rng,
    pub rows: Rows,
    pub history: Vec<Transaction>,
    logged: u32,
    /// Says where commands are, if there are some.
    commands: Option<Rng>,
}

impl<'a> Writer<'a> {
    pub fn new(rng: &'a mut Rng, commands: Option<Rng>) -> Self {
        Self {
            rng,
            rows: Rows::default(),
            history: Vec::new(),
            logged: 0,
            commands,
        }
    }

    /// Adds a transaction, now and then a large one.
    pub fn transaction(&mut self) {
        let number = self.history.len() as u64 + 1;
        let (commit, end) = (Lsn::from(number * 1_000), Lsn::from(number * 1_000 + 100));
        let changes = match self.rng.u32(0..12) {
            0 => self.rng.usize(12..40),
            1 => 0,
            _ => self.rng.usize(1..6),
        };
        let mut messages = vec![message(
            &Message::Begin {
                final_lsn: commit,
                commit_time: Timestamp(0),
                xid: Xid(1),
            },
            commit,
        )];
        for _ in 0..changes {
            messages.extend(self.command(commit));
            messages.extend(self.change(commit));
        }
        messages.extend(self.command(commit));
        messages.push(message(
            &Message::Commit(Commit {
                commit_lsn: commit,
                end_lsn: end,
                commit_time: Timestamp(0),
            }),
            end,
        ));
        self.history.push(Transaction {
            commit,
            end,
            messages,
            after: self.rows.clone(),
        });
    }

    /// Now and then a command.
    fn command(&mut self, at: Lsn) -> Option<Vec<u8>> {
        let commands = self.commands.as_mut()?;
        if commands.u32(0..12) > 0 {
            return None;
        }
        self.rows.version += 1;
        Some(message(
            &Message::Message {
                transactional: true,
                lsn: at,
                prefix: PREFIX,
                content: b"",
            },
            at,
        ))
    }

    fn change(&mut self, at: Lsn) -> Option<Vec<u8>> {
        match self.rng.u32(0..40) {
            0 => {
                self.rows.keyed.retain(|(table, _), _| *table != KEYED);
                let relations = vec![KEYED];
                let options = TruncateOptions::default();
                Some(message(&Message::Truncate { options, relations }, at))
            }
            1..=9 => Some(self.log(at)),
            _ => self.keyed(at),
        }
    }

    fn log(&mut self, at: Lsn) -> Vec<u8> {
        let mut buffer = Vec::new();
        let old = self
            .rng
            .bool()
            .then(|| self.rows.log.keys().next().cloned());
        if let Some(row) = old.flatten() {
            match self.rows.log.get_mut(&row) {
                Some(times) if *times > 1 => *times -= 1,
                _ => drop(self.rows.log.remove(&row)),
            }
            let tuple = Tuple::new(&[Value::Text(row.as_bytes())], &mut buffer).unwrap();
            let old = Old::Row(tuple);
            return message(&Message::Delete { relation: LOG, old }, at);
        }
        self.logged += 1;
        let row = format!("{}{}", self.logged / 2, "-".repeat(self.rng.usize(0..200)));
        *self.rows.log.entry(row.clone()).or_default() += 1;
        let new = Tuple::new(&[Value::Text(row.as_bytes())], &mut buffer).unwrap();
        message(&Message::Insert { relation: LOG, new }, at)
    }

    fn keyed(&mut self, at: Lsn) -> Option<Vec<u8>> {
        let table = if self.rng.bool() { UNIQUE } else { KEYED };
        let id = self.rng.u32(0..8).to_string();
        let value = self.rng.u32(0..8).to_string();
        let is_there = self.rows.keyed.contains_key(&(table, id.clone()));
        let mut buffer = Vec::new();
        if is_there && self.rng.u32(0..3) == 0 {
            self.rows.keyed.remove(&(table, id.clone()));
            let key = [Value::Text(id.as_bytes()), Value::Null];
            let old = Old::Key(Tuple::new(&key, &mut buffer).unwrap());
            let relation = table;
            return Some(message(&Message::Delete { relation, old }, at));
        }
        if table == UNIQUE && self.rows.has_value(table, &value) {
            return None;
        }
        let other = self.rng.u32(0..8).to_string();
        let moves = is_there
            && self.rng.u32(0..3) == 0
            && !self.rows.keyed.contains_key(&(table, other.clone()));
        let to = if moves { &other } else { &id };
        if moves {
            self.rows.keyed.remove(&(table, id.clone()));
        }
        self.rows.keyed.insert((table, to.clone()), value.clone());
        let row = [Value::Text(to.as_bytes()), Value::Text(value.as_bytes())];
        let new = Tuple::new(&row, &mut buffer).unwrap();
        let relation = table;
        let mut keys = Vec::new();
        let key = [Value::Text(id.as_bytes()), Value::Null];
        let key = Tuple::new(&key, &mut keys).unwrap();
        Some(match is_there {
            true => {
                let old = moves.then_some(Old::Key(key));
                message(&Message::Update { relation, old, new }, at)
            }
            false => message(&Message::Insert { relation, new }, at),
        })
    }
}
