//! The primary: what was committed, and a walsender that streams it.

use std::collections::{BTreeMap, VecDeque};

use lockstep_client::SlotState;
use lockstep_wire::Lsn;
use lockstep_wire::backend::TEXT;
use lockstep_wire::batch::{Entry, put_batch, put_marker};
use lockstep_wire::logical::frames::put_frame;
use lockstep_wire::logical::{
    Boundary, Column, Commit, Context, Message, Relation, ReplicaIdentity, SchemaKey, Tuple, Value,
    Xid, boundary,
};
use lockstep_wire::stream::{FromServer, Timestamp};

/// Where the slot begins.
pub const START: u64 = 1000;

/// Tables, from 1. Those from [`TYPED`] on have a column of a type with a name.
const TABLES: u32 = 6;
const TYPED: u32 = 5;

/// A batch ends once it is so large, in bytes.
const BATCH_BYTES: usize = 64 * 1024;

/// What a subscriber asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// All tables, and messages.
    All,
    /// Some tables, and messages.
    Low,
    /// The other tables.
    High,
    /// Everything, as only the primary gives it.
    Own,
}

impl Wish {
    pub const ALL: [Self; 4] = [Self::All, Self::Low, Self::High, Self::Own];

    /// The group that gives it.
    pub fn group(self) -> Option<&'static str> {
        match self {
            Self::All => Some("all"),
            Self::Low => Some("low"),
            Self::High => Some("high"),
            Self::Own => None,
        }
    }

    /// What a group gives.
    pub fn of(group: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|wish| wish.group() == Some(group))
    }

    fn has(self, table: u32) -> bool {
        match self {
            Self::All | Self::Own => true,
            Self::Low => table <= TABLES / 2,
            Self::High => table > TABLES / 2,
        }
    }
}

/// One message of a unit.
#[derive(Debug, Clone)]
pub struct Part {
    pub lsn: u64,
    pub message: Vec<u8>,
    /// The table and its version, if it is a change of one.
    pub table: Option<(u32, u32)>,
}

/// A transaction, or a message outside of any.
#[derive(Debug, Clone)]
pub struct Unit {
    /// Where its commit record starts and ends.
    pub key: u64,
    pub end: u64,
    pub at: Timestamp,
    pub parts: Vec<Part>,
}

impl Unit {
    /// What of it one gets that asks for this. Nothing of a transaction without changes.
    pub fn parts_for(&self, wish: Wish) -> Vec<&Part> {
        let has = |part: &&Part| part.table.is_none_or(|(table, _)| wish.has(table));
        let parts: Vec<_> = self.parts.iter().filter(has).collect();
        match parts[..] {
            // A message outside of transactions.
            [_] if wish == Wish::High => Vec::new(),
            [_, _] => Vec::new(),
            _ => parts,
        }
    }

    /// A part as a walsender sends it.
    pub fn frame(&self, part: &Part) -> Vec<u8> {
        let mut out = Vec::new();
        put_frame(&mut out, Lsn::from(part.lsn), self.at, &part.message).unwrap();
        out
    }
}

/// Sizes of what is committed.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub most_changes: usize,
    pub most_bytes: usize,
    /// One change of this number is as long as that.
    pub long_one_in: u8,
    pub long_bytes: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Primary {
    sizes: Sizes,
    pub units: Vec<Unit>,
    /// End of its WAL: also of what nobody gets to see.
    pub end: u64,
    versions: BTreeMap<u32, u32>,
    /// Slots of the relay's groups, by group.
    pub upstreams: BTreeMap<String, Upstream>,
    /// Slots of subscribers, and what they have confirmed.
    pub slots: BTreeMap<String, u64>,
    /// Times that the primary was set back. Its clock goes on.
    times_set_back: u32,
}

/// What a slot has confirmed, and what of that is on the primary's disk. What is below that is
/// forgotten.
#[derive(Debug, Clone, Copy)]
pub struct Upstream {
    pub confirmed: u64,
    pub persisted: u64,
}

impl Upstream {
    /// A new one.
    pub fn at(confirmed: u64) -> Self {
        Self {
            confirmed,
            persisted: confirmed,
        }
    }
}

fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(None, &mut out).unwrap();
    out
}

/// A name that says a version.
fn name(version: u32) -> Vec<u8> {
    format!("v{version}").into_bytes()
}

/// What [`name`] says.
fn version(name: &[u8]) -> u32 {
    std::str::from_utf8(&name[1..]).unwrap().parse().unwrap()
}

/// The type that a table has.
fn type_of(table: u32) -> Option<u32> {
    (table >= TYPED).then_some(100 + table)
}

/// What describes a table.
fn schema(table: u32, version: u32) -> Vec<Vec<u8>> {
    let kind = type_of(table).map(|id| {
        encoded(&Message::Type {
            id,
            namespace: b"public",
            name: &name(version),
        })
    });
    let relation = encoded(&Message::Relation(Relation {
        id: table,
        namespace: b"public",
        name: &name(version),
        replica_identity: ReplicaIdentity::Default,
        columns: vec![Column {
            flags: 1,
            name: b"c",
            kind: type_of(table).unwrap_or(TEXT),
            modifier: -1,
        }],
    }));
    kind.into_iter().chain([relation]).collect()
}

impl Primary {
    pub fn new(sizes: Sizes) -> Self {
        Self {
            sizes,
            units: Vec::new(),
            end: START,
            versions: (1..=TABLES).map(|table| (table, 1)).collect(),
            upstreams: BTreeMap::new(),
            slots: BTreeMap::new(),
            times_set_back: 0,
        }
    }

    /// Commits something, often right behind what was before.
    pub fn commit(&mut self, random: &mut fastrand::Rng) {
        if random.bool() {
            // Of no interest to subscribers.
            self.end += random.u64(1..500);
        }
        let key = self.end;
        let end = key + random.u64(1..200);
        let number = i64::try_from(self.units.len()).unwrap();
        let at = Timestamp(number + 1 + i64::from(self.times_set_back) * 1_000_000);
        let parts = match random.u8(..8) {
            0 => {
                let content = self.bytes(random);
                vec![Part {
                    lsn: end,
                    message: encoded(&Message::Message {
                        transactional: false,
                        lsn: Lsn::from(end),
                        prefix: b"note",
                        content: &content,
                    }),
                    table: None,
                }]
            }
            _ => self.transaction(key, end, at, random),
        };
        self.units.push(Unit {
            key,
            end,
            at,
            parts,
        });
        self.end = end;
    }

    fn bytes(&self, random: &mut fastrand::Rng) -> Vec<u8> {
        let length = match random.u8(..self.sizes.long_one_in) {
            0 => self.sizes.long_bytes,
            _ => random.usize(..=self.sizes.most_bytes),
        };
        let mut bytes = vec![0; length];
        random.fill(&mut bytes);
        bytes
    }

    fn transaction(
        &mut self,
        key: u64,
        end: u64,
        at: Timestamp,
        random: &mut fastrand::Rng,
    ) -> Vec<Part> {
        let mut parts = vec![Part {
            lsn: key,
            message: encoded(&Message::Begin {
                final_lsn: Lsn::from(key),
                commit_time: at,
                xid: Xid(u32::try_from(at.0).unwrap()),
            }),
            table: None,
        }];
        for _ in 0..random.usize(1..=self.sizes.most_changes) {
            let table = random.u32(1..=TABLES);
            let version = self.versions.get_mut(&table).unwrap();
            if random.u8(..20) == 0 {
                *version += 1;
            }
            let table = (table, *version);
            let bytes = self.bytes(random);
            let mut buffer = Vec::new();
            parts.push(Part {
                lsn: 0,
                message: encoded(&Message::Insert {
                    relation: table.0,
                    new: Tuple::new(&[Value::Text(&bytes)], &mut buffer).unwrap(),
                }),
                table: Some(table),
            });
        }
        parts.push(Part {
            lsn: end,
            message: encoded(&Message::Commit(Commit {
                commit_lsn: Lsn::from(key),
                end_lsn: Lsn::from(end),
                commit_time: at,
            })),
            table: None,
        });
        parts
    }

    /// The first unit that who has confirmed `from` does not have.
    pub fn first(&self, from: u64) -> usize {
        self.units.partition_point(|unit| unit.key < from)
    }

    /// A group's slot is told.
    pub fn hear(&mut self, group: &str, confirmed: u64) {
        assert!(confirmed <= self.end, "more than there is was confirmed");
        let slot = self.upstreams.get_mut(group).unwrap();
        slot.confirmed = slot.confirmed.max(confirmed);
    }

    /// The WAL ends here from now on, as before: files were restored, or a standby took over.
    /// What comes after it is other WAL.
    pub fn end_at(&mut self, at: u64) {
        self.units.retain(|unit| unit.end <= at);
        self.end = at;
        for slot in self.upstreams.values_mut() {
            *slot = Upstream::at(slot.confirmed.min(at));
        }
        self.times_set_back += 1;
    }

    /// Commits until the WAL ends beyond this.
    pub fn write_past(&mut self, end: u64, random: &mut fastrand::Rng) {
        while self.end <= end {
            self.commit(random);
        }
    }

    /// What slots have confirmed gets to its disk.
    pub fn persist(&mut self) {
        let slots = self.upstreams.values_mut();
        slots.for_each(|slot| slot.persisted = slot.confirmed);
    }

    /// The server starts anew.
    pub fn restart(&mut self) {
        let slots = self.upstreams.values_mut();
        slots.for_each(|slot| slot.confirmed = slot.persisted);
    }
}

/// A slot as the primary shows it.
pub fn slot_state(plugin: &str, confirmed: u64) -> SlotState {
    SlotState {
        plugin: Some(plugin.to_owned()),
        database: Some("d".to_owned()),
        confirmed: Lsn::from(confirmed),
        restart: Lsn::from(START),
        ..SlotState::default()
    }
}

/// Versions of tables and types that a session has described to its subscriber.
#[derive(Debug, Default)]
pub struct Described(BTreeMap<SchemaKey, u32>);

impl Described {
    /// Notes a description. False if the message is none.
    pub fn note(&mut self, message: &[u8]) -> bool {
        let Boundary::Schema(key) = boundary(message).unwrap() else {
            return false;
        };
        let described = match Message::parse(message, Context::default()).unwrap().1 {
            Message::Relation(relation) => version(relation.name),
            Message::Type { name, .. } => version(name),
            other => panic!("{other:?}"),
        };
        self.0.insert(key, described);
        true
    }

    /// The table of a change was described as it is.
    pub fn check(&self, part: &Part) {
        let Some((table, version)) = part.table else {
            return;
        };
        let known = |key| self.0.get(&key).copied();
        assert_eq!(known(SchemaKey::Relation(table)), Some(version), "{table}");
        if let Some(id) = type_of(table) {
            assert_eq!(known(SchemaKey::Type(id)), Some(version), "type {id}");
        }
    }
}

/// One session of a walsender. What it sends comes from [`Walsender::next`].
#[derive(Debug)]
pub struct Walsender {
    wish: Wish,
    batched: bool,
    /// The next part to be decoded.
    unit: usize,
    part: usize,
    /// Versions of tables that this session has described.
    described: BTreeMap<u32, u32>,
    /// The batch, and whether a marker announced that a commit is in it.
    batch: Vec<(u64, Timestamp, Vec<u8>)>,
    batch_bytes: usize,
    held: bool,
    /// Position of the last keepalive.
    told: u64,
    ready: VecDeque<Vec<u8>>,
    /// Keepalives that were sent while a commit was held that they cover.
    pub covering: u64,
}

impl Walsender {
    /// Streams what a group's slot has not confirmed.
    pub fn new(primary: &Primary, group: &str, batched: bool) -> Self {
        let from = primary.upstreams[group].confirmed;
        Self {
            wish: Wish::of(group).unwrap(),
            batched,
            unit: primary.first(from),
            part: 0,
            described: BTreeMap::new(),
            batch: Vec::new(),
            batch_bytes: 0,
            held: false,
            told: from,
            ready: VecDeque::new(),
            covering: 0,
        }
    }

    /// The content of the next CopyData, if there is one now.
    pub fn next(&mut self, primary: &Primary, random: &mut fastrand::Rng) -> Option<Vec<u8>> {
        if let Some(ready) = self.ready.pop_front() {
            return Some(ready);
        }
        let idle = self.unit == primary.units.len();
        if random.u8(..12) == 0 || (idle && random.u8(..3) == 0) {
            return Some(self.keepalive(primary, random));
        }
        while self.ready.is_empty() {
            if self.unit == primary.units.len() {
                if self.batch.is_empty() || random.bool() {
                    return None;
                }
                self.flush();
            } else {
                self.decode(primary, random);
            }
        }
        self.ready.pop_front()
    }

    /// Says how far the WAL is read.
    fn keepalive(&mut self, primary: &Primary, random: &mut fastrand::Rng) -> Vec<u8> {
        let next = primary.units.get(self.unit);
        let most = next.map_or(primary.end, |unit| unit.key).max(self.told);
        self.told = match random.bool() {
            true => most,
            false => random.u64(self.told..=most),
        };
        self.covering += u64::from(self.held && !self.batch.is_empty());
        let mut out = Vec::new();
        FromServer::Keepalive {
            end: Lsn::from(self.told),
            sent_at: Timestamp(0),
            reply: random.u8(..4) == 0,
        }
        .encode(&mut out);
        out
    }

    fn decode(&mut self, primary: &Primary, random: &mut fastrand::Rng) {
        let unit = &primary.units[self.unit];
        let parts = unit.parts_for(self.wish);
        let Some(part) = parts.get(self.part) else {
            self.unit += 1;
            return;
        };
        if let Some((table, version)) = part.table {
            if self.described.insert(table, version) != Some(version) {
                for message in schema(table, version) {
                    self.put(0, unit.at, message);
                }
            }
        }
        self.put(part.lsn, unit.at, part.message.clone());
        self.part += 1;
        let ends = self.part == parts.len();
        if ends {
            self.part = 0;
            self.unit += 1;
        }
        if !self.batched {
            return;
        }
        if self.batch_bytes >= BATCH_BYTES || random.u8(..25) == 0 || (ends && random.u8(..4) == 0)
        {
            self.flush();
        } else if ends && !self.held {
            self.held = true;
            let mut marker = Vec::new();
            put_marker(&mut marker);
            self.send(0, Timestamp(0), &marker);
        }
    }

    fn put(&mut self, lsn: u64, at: Timestamp, message: Vec<u8>) {
        match self.batched {
            true => {
                self.batch_bytes += message.len();
                self.batch.push((lsn, at, message));
            }
            false => self.send(lsn, at, &message),
        }
    }

    fn flush(&mut self) {
        let entries: Vec<Entry<'_>> = self
            .batch
            .iter()
            .map(|(lsn, time, message)| Entry {
                lsn: Lsn::from(*lsn),
                time: *time,
                message,
            })
            .collect();
        let mut data = Vec::new();
        put_batch(&mut data, &entries).unwrap();
        self.batch.clear();
        self.batch_bytes = 0;
        self.held = false;
        self.send(0, Timestamp(0), &data);
    }

    fn send(&mut self, lsn: u64, at: Timestamp, wal: &[u8]) {
        let mut out = Vec::new();
        FromServer::XLogData {
            start: Lsn::from(lsn),
            end: Lsn::from(lsn),
            sent_at: at,
            wal,
        }
        .encode(&mut out);
        self.ready.push_back(out);
    }
}
