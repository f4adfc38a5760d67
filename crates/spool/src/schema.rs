//! The descriptions of tables and types that are in force.

use std::collections::BTreeMap;

use bytes::Bytes;
use lockstep_wire::logical::{Boundary, SchemaKey, boundary, frames};

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

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Takes over a frame. It is copied: it must not keep alive the memory around it.
    pub fn set(&mut self, key: SchemaKey, frame: &[u8]) {
        let old = self.frames.insert(key, Bytes::copy_from_slice(frame));
        self.bytes = self.bytes + frame.len() - old.map_or(0, |old| old.len());
    }

    /// Takes over all of `other`.
    pub fn merge(&mut self, other: Self) {
        for (key, frame) in other.frames {
            let length = frame.len();
            let old = self.frames.insert(key, frame);
            self.bytes = self.bytes + length - old.map_or(0, |old| old.len());
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
