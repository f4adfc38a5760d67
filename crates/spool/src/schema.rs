//! The descriptions of tables and types that are in force.

use std::collections::BTreeMap;

use bytes::Bytes;
use lockstep_wire::logical::frames::{self, FRAME_HEADER};
use lockstep_wire::logical::{Boundary, Context, Message, SchemaKey, boundary};

use super::error::{LogError, Result};

/// Most bytes of descriptions in force: some 30,000 tables of ten columns.
pub const SCHEMA_LIMIT: usize = 32 * 1024 * 1024;

/// Frames of Relation and Type messages, the last of each table and type.
///
/// Cloning shares the frames.
#[derive(Debug, Clone, Default)]
pub(super) struct Schema {
    frames: BTreeMap<SchemaKey, Bytes>,
    bytes: usize,
}

impl Schema {
    /// Bytes of all frames.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Takes over a frame. It is copied: it must not keep alive the memory around it.
    pub fn set(&mut self, key: SchemaKey, frame: &[u8]) {
        self.put(key, Bytes::copy_from_slice(frame));
    }

    fn put(&mut self, key: SchemaKey, frame: Bytes) {
        let length = frame.len();
        let old = self.frames.insert(key, frame);
        self.bytes = self.bytes + length - old.map_or(0, |old| old.len());
    }

    /// Takes a frame out.
    pub fn remove(&mut self, key: SchemaKey) -> Option<Bytes> {
        let frame = self.frames.remove(&key)?;
        self.bytes -= frame.len();
        Some(frame)
    }

    /// Takes out what describes a table: its columns' types, then the table.
    pub fn remove_table(&mut self, table: u32) -> Vec<(SchemaKey, Bytes)> {
        let key = SchemaKey::Relation(table);
        let Some(frame) = self.remove(key) else {
            return Vec::new();
        };
        let message = frame.get(FRAME_HEADER..).unwrap_or_default();
        let mut all = Vec::new();
        if let Ok((_, Message::Relation(relation))) = Message::parse(message, Context::default()) {
            for column in &relation.columns {
                let key = SchemaKey::Type(column.kind);
                all.extend(self.remove(key).map(|frame| (key, frame)));
            }
        }
        all.push((key, frame));
        all
    }

    /// Takes over all of `other`.
    pub fn merge(&mut self, other: Self) {
        for (key, frame) in other.frames {
            self.put(key, frame);
        }
    }

    /// Shares the frames that are the same in `other`.
    pub fn share(&mut self, other: &Self) {
        for (key, frame) in &mut self.frames {
            if let Some(same) = other.frames.get(key).filter(|other| *other == frame) {
                frame.clone_from(same);
            }
        }
    }

    /// Takes over those among `bytes`, whole frames.
    pub fn scan(&mut self, bytes: &[u8]) -> Result<()> {
        for frame in frames::scan(bytes) {
            let frame = frame.map_err(|_| LogError::Frames("bytes that are no frames"))?;
            if let Ok(Boundary::Schema(key)) = boundary(frame.message) {
                let whole = frame.offset..frame.offset + frame.length;
                self.set(key, bytes.get(whole).unwrap_or_default());
            }
        }
        Ok(())
    }

    /// All frames. Types first: tables refer to them.
    pub fn frames(&self) -> impl Iterator<Item = &Bytes> {
        let types = |key: &SchemaKey| matches!(key, SchemaKey::Type(_));
        let first = self.frames.iter().filter(move |(key, _)| types(key));
        let then = self.frames.iter().filter(move |(key, _)| !types(key));
        first.chain(then).map(|(_, frame)| frame)
    }
}
