//! A subscriber: applies whole transactions, and knows what they should be.

use std::collections::BTreeMap;

use lockstep_wire::frame::{self, LOGICAL_LIMIT};
use lockstep_wire::logical::frames::scan;
use lockstep_wire::logical::{Boundary, Context, Message, SchemaKey, boundary};
use lockstep_wire::stream::FromServer;

use super::primary::{Primary, Unit, type_of, version};

/// Its end of a connection.
#[derive(Debug, Default)]
pub struct Link {
    /// What was sent to it, and how many bytes of that have arrived.
    pub pipe: Vec<u8>,
    arrived: usize,
    /// Versions of tables and types that this session has described.
    described: BTreeMap<SchemaKey, u32>,
    /// Parts of the next unit that have come.
    parts: usize,
    /// Positions on the way to the relay.
    pub feedback: Vec<u64>,
    /// Its side of the copy is ended.
    pub done: bool,
    /// The relay has said that it is over.
    over: bool,
}

impl Link {
    /// Whether what was sent ends between two messages.
    pub fn is_between_messages(&self) -> bool {
        let mut left = self.pipe.as_slice();
        while let Some((_, length)) = frame::first(left, LOGICAL_LIMIT).unwrap() {
            left = &left[length..];
        }
        left.is_empty()
    }
}

/// See the module. Units are counted as the primary has them.
#[derive(Debug)]
pub struct Subscriber {
    /// Units that are applied, and those of them that are durable.
    pub applied: usize,
    pub durable: usize,
    /// Everything before this position was received, and the origin that its progress
    /// begins with.
    position: u64,
    origin: u64,
    first: usize,
    pub link: Option<Link>,
    /// How much of what is on the way it takes at once.
    pub most: usize,
    /// Steps that it stays away.
    pub away: u32,
}

impl Subscriber {
    /// Has a copy of everything before `origin`.
    pub fn new(primary: &Primary, origin: u64, most: usize) -> Self {
        let first = primary.first(origin);
        Self {
            applied: first,
            durable: first,
            position: origin,
            origin,
            first,
            link: None,
            most,
            away: 0,
        }
    }

    /// End of the last unit, of this number of units.
    fn end_of(&self, units: usize, primary: &Primary) -> u64 {
        match units > self.first {
            true => primary.units[units - 1].end,
            false => self.origin,
        }
    }

    /// Where it asks to go on.
    pub fn start(&self, primary: &Primary) -> u64 {
        self.end_of(self.applied, primary)
    }

    /// What it says is durable: all it has heard of, if that is.
    pub fn flushed(&self, primary: &Primary) -> u64 {
        match self.durable == self.applied {
            true => self.position,
            false => self.end_of(self.durable, primary),
        }
    }

    /// The primary has sent it everything itself, and it has confirmed that.
    pub fn catch_up(&mut self, primary: &Primary) {
        self.applied = primary.units.len();
        self.durable = self.applied;
        self.position = primary.end;
    }

    /// The connection is gone.
    pub fn disconnect(&mut self, primary: &Primary) {
        self.link = None;
        self.position = self.start(primary);
    }

    /// It stops, and comes back with what was durable.
    pub fn crash(&mut self, primary: &Primary) {
        self.applied = self.durable;
        self.disconnect(primary);
    }

    /// Takes at most `most` bytes of what is on the way.
    pub fn receive(&mut self, most: usize, primary: &Primary) {
        let Some(link) = &mut self.link else { return };
        let mut used = 0;
        let pipe = std::mem::take(&mut link.pipe);
        let take = link.arrived.saturating_add(most).min(pipe.len());
        while let Some((found, length)) = frame::first(&pipe[used..take], LOGICAL_LIMIT).unwrap() {
            let whole = &pipe[used..used + length];
            used += length;
            let link = self.link.as_mut().unwrap();
            assert!(!link.over, "something comes after the end");
            link.over = matches!(found.tag, b'E' | b'c');
            if link.over {
                continue;
            }
            assert_eq!(found.tag, b'd');
            match FromServer::parse(found.body).unwrap() {
                FromServer::XLogData { .. } => self.message(whole, primary),
                FromServer::Keepalive { end, .. } => {
                    let next = primary.units.get(self.applied);
                    assert!(
                        next.is_none_or(|unit| u64::from(end) <= unit.key),
                        "a keepalive says {end}, unit {} was not sent",
                        self.applied
                    );
                    self.position = self.position.max(end.into());
                }
            }
        }
        let link = self.link.as_mut().unwrap();
        link.pipe = pipe[used..].to_vec();
        link.arrived = take - used;
    }

    fn message(&mut self, whole: &[u8], primary: &Primary) {
        let link = self.link.as_mut().unwrap();
        let message = scan(whole).next().unwrap().unwrap().message;
        if let Boundary::Schema(key) = boundary(message).unwrap() {
            assert!(link.parts > 0, "a description outside of a transaction");
            link.described.insert(key, described_version(message));
            return;
        }
        let unit: &Unit = primary
            .units
            .get(self.applied)
            .expect("more comes than was committed");
        let part = &unit.parts[link.parts];
        assert!(
            unit.frame(part) == whole,
            "unit {} ({} to {}), part {}: another message comes",
            self.applied,
            unit.key,
            unit.end,
            link.parts
        );
        if let Some((table, version)) = part.table {
            let known = |key| link.described.get(&key).copied();
            assert_eq!(known(SchemaKey::Relation(table)), Some(version), "{table}");
            if let Some(id) = type_of(table) {
                assert_eq!(known(SchemaKey::Type(id)), Some(version), "type {id}");
            }
        }
        link.parts += 1;
        if link.parts == unit.parts.len() {
            link.parts = 0;
            self.applied += 1;
            self.position = self.position.max(unit.end);
        }
    }
}

fn described_version(message: &[u8]) -> u32 {
    match Message::parse(message, Context::default()).unwrap().1 {
        Message::Relation(relation) => version(relation.name),
        Message::Type { name, .. } => version(name),
        other => panic!("{other:?}"),
    }
}
