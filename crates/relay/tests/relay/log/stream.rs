//! Units as an upstream would send them, and what readers of them must get.

use std::collections::BTreeMap;

use lockstep_wire::Lsn;
use lockstep_wire::logical::frames::{put_frame, scan};
use lockstep_wire::logical::{Boundary, Context, Message, SchemaKey, boundary};
use lockstep_wire::stream::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Key of the unit, also of one that only knows its end.
    pub key: u64,
    pub end: u64,
    /// Frames of the unit.
    pub frames: Vec<Vec<u8>>,
    /// An upstream session begins with it.
    pub session: bool,
}

impl Unit {
    pub fn bytes(&self) -> Vec<u8> {
        self.frames.concat()
    }
}

pub fn frame(lsn: u64, message: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_frame(&mut out, Lsn::from(lsn), Timestamp(7), message).unwrap();
    out
}

fn message(tag: u8, fields: &[&[u8]]) -> Vec<u8> {
    let mut out = vec![tag];
    out.extend(fields.concat());
    out
}

/// A message that describes a table, of about this number of bytes; its column is of type
/// `version % 6`.
pub fn relation(id: u32, version: u8, bytes: usize) -> Vec<u8> {
    let name = vec![b'a' + version % 26; bytes];
    message(
        b'R',
        &[
            &id.to_be_bytes(),
            b"public\0",
            &name,
            b"\0d",
            &1u16.to_be_bytes(),
            b"\0c\0",
            &u32::from(version % 6).to_be_bytes(),
            &(-1i32).to_be_bytes(),
        ],
    )
}

/// A message that empties these tables.
pub fn truncate(tables: &[u32]) -> Vec<u8> {
    let number = u32::try_from(tables.len()).unwrap().to_be_bytes();
    let tables: Vec<u8> = tables
        .iter()
        .flat_map(|table| table.to_be_bytes())
        .collect();
    message(b'T', &[&number, &[0], &tables])
}

/// A change of a table that may be described, or of none.
fn change(bytes: usize, random: &mut fastrand::Rng) -> Vec<u8> {
    if random.u8(..10) == 0 {
        let tables: Vec<u32> = (0..random.usize(..4)).map(|_| random.u32(1..9)).collect();
        return truncate(&tables);
    }
    let mut content = vec![0; bytes];
    random.fill(&mut content);
    if random.bool() {
        content.splice(..0, random.u32(1..9).to_be_bytes());
    }
    message(*random.choice(b"IUDO").unwrap(), &[&content])
}

/// The tables that a message changes.
fn changed(bytes: &[u8]) -> Vec<u32> {
    let table = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
    match bytes[0] {
        b'I' | b'U' | b'D' if bytes.len() >= 5 => vec![table(&bytes[1..5])],
        b'T' => bytes[6..].chunks_exact(4).map(table).collect(),
        _ => Vec::new(),
    }
}

/// An ordinary transaction of these messages.
pub fn transaction(key: u64, end: u64, messages: &[Vec<u8>]) -> Unit {
    let (k, e) = (key.to_be_bytes(), end.to_be_bytes());
    let mut frames = vec![frame(key, &message(b'B', &[&k, &[0; 8], &[0; 4]]))];
    frames.extend(messages.iter().map(|message| frame(0, message)));
    frames.push(frame(end, &message(b'C', &[&[0], &k, &e, &[0; 8]])));
    Unit {
        key,
        end,
        frames,
        session: false,
    }
}

/// Sizes of what is made.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub most_changes: usize,
    pub most_bytes: usize,
    /// Once in a while a change is this long.
    pub long_bytes: usize,
}

/// A unit whose key is at or after `from`.
pub fn unit(from: u64, sizes: Sizes, random: &mut fastrand::Rng) -> Unit {
    // Often it follows without a gap.
    let key = from + random.u64(..3).saturating_sub(1) * random.u64(1..500);
    let end = key + random.u64(1..200);
    let (k, e) = (key.to_be_bytes(), end.to_be_bytes());
    let (time, xid) = ([0; 8], [0; 4]);
    let long = match random.u8(..100) {
        0 => sizes.long_bytes,
        _ => sizes.most_bytes,
    };
    let mut frames = Vec::new();
    let (mut first, mut whole) = (key, false);
    match random.u8(..20) {
        0 => {
            whole = true;
            frames.push(frame(
                end,
                &message(b'K', &[&[0], &k, &e, &time, &xid, b"gid\0"]),
            ));
        }
        1 => {
            (first, whole) = (end - 1, true);
            let fields: [&[u8]; 7] = [&[0], &k, &e, &time, &time, &xid, b"gid\0"];
            frames.push(frame(end, &message(b'r', &fields)));
        }
        2 => {
            (first, whole) = (end - 1, true);
            let mut content = vec![0; random.usize(..=long)];
            random.fill(&mut content);
            let length = u32::try_from(content.len()).unwrap().to_be_bytes();
            let fields: [&[u8]; 5] = [&[0], &e, b"prefix\0", &length, &content];
            frames.push(frame(end, &message(b'M', &fields)));
        }
        3 => frames.push(frame(key, &message(b'b', &[&k, &e, &time, &xid, b"gid\0"]))),
        _ => frames.push(frame(key, &message(b'B', &[&k, &time, &xid]))),
    }
    if !whole {
        for _ in 0..random.usize(..=sizes.most_changes) {
            let most = match random.u8(..50) {
                0 => long,
                _ => sizes.most_bytes,
            };
            let bytes = random.usize(..=most);
            let content = match random.u8(..12) {
                0 => relation(random.u32(1..9), random.u8(..), bytes.min(2000)),
                1 => message(b'Y', &[&random.u32(1..5).to_be_bytes(), b"s\0t\0"]),
                2 => message(b'M', &[&[1], &k, b"prefix\0", &0u32.to_be_bytes()]),
                _ => change(bytes, random),
            };
            frames.push(frame(0, &content));
        }
        let fields: [&[u8]; 6] = [&[0], &k, &e, &time, &xid, b"gid\0"];
        frames.push(match frames[0][30] {
            b'b' => frame(end, &message(b'P', &fields)),
            _ => frame(end, &message(b'C', &fields[..4])),
        });
    }
    Unit {
        key: first,
        end,
        frames,
        session: false,
    }
}

/// What came out of the upstream: whole units, and one that may be arriving.
#[derive(Debug, Clone, Default)]
pub struct Model {
    pub units: Vec<Unit>,
    /// What has come of the open unit.
    pub open: Option<Unit>,
    /// The next unit begins a session.
    pub session: bool,
}

impl Model {
    /// What a reader that asks for `from` gets until now, and where in it units end.
    pub fn expected(&self, from: u64) -> Expected {
        let mut expected = Expected::default();
        // In force, and not told by what the reader gets.
        let mut schema: BTreeMap<SchemaKey, Vec<u8>> = BTreeMap::new();
        for (number, unit) in self.units.iter().chain(&self.open).enumerate() {
            if unit.session {
                schema.clear();
            }
            if unit.key >= from {
                for bytes in &unit.frames {
                    for table in changed(&bytes[30..]) {
                        let Some(table) = schema.remove(&SchemaKey::Relation(table)) else {
                            continue;
                        };
                        let told = Message::parse(&table[30..], Context::default());
                        let Ok((_, Message::Relation(relation))) = told else {
                            panic!("{told:?}");
                        };
                        let kind = SchemaKey::Type(relation.columns[0].kind);
                        for frame in schema.remove(&kind).iter().chain([&table]) {
                            expected.bytes.extend(frame);
                            expected.schema_bytes += frame.len() as u64;
                        }
                    }
                    expected.bytes.extend(bytes);
                    let message = scan(bytes).next().unwrap().unwrap().message;
                    if let Boundary::Schema(key) = boundary(message).unwrap() {
                        schema.remove(&key);
                    }
                }
                if number < self.units.len() {
                    expected.ends.push((expected.bytes.len(), unit.end));
                }
            }
            let passed = if unit.key < from {
                &unit.frames[..]
            } else {
                &[]
            };
            for bytes in passed {
                let message = scan(bytes).next().unwrap().unwrap().message;
                if let Boundary::Schema(key) = boundary(message).unwrap() {
                    schema.insert(key, bytes.clone());
                }
            }
        }
        expected
    }

    /// End of the last whole unit; `start` if there is none.
    pub fn received(&self, start: u64) -> u64 {
        self.units.last().map_or(start, |unit| unit.end)
    }
}

/// A stream for one reader.
#[derive(Debug, Default)]
pub struct Expected {
    pub bytes: Vec<u8>,
    /// Lengths of it at which a whole unit ends, and that unit's end.
    pub ends: Vec<(usize, u64)>,
    pub schema_bytes: u64,
}
