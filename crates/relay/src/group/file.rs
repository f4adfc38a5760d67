//! A group's file: a checksum line, then JSON.

use std::fs;
use std::path::Path;

use lockstep_spool::{Folder, kept};
use serde::{Deserialize, Serialize};

use super::GroupKey;
use crate::error::{RelayError, Result};
use crate::slots;

/// What a group's file is called.
pub const FILE: &str = "group.json";

/// What the file keeps.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Kept {
    pub name: String,
    pub key: GroupKey,
    /// OID of the database. None: it was not noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database_oid: Option<u32>,
    pub upstream_slot: String,
    pub plugin: String,
    pub system: u64,
    pub timeline: u32,
    /// Timelines that this one came from, and where each ended. None: it was not noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<Vec<(u32, String)>>,
    pub start: String,
}

/// Reads the file of a group's folder.
pub fn read(folder: &Path) -> Result<Kept> {
    let path = folder.join(FILE);
    let text = fs::read_to_string(&path)
        .map_err(|source| slots::file("cannot read", path.clone(), source))?;
    kept::unchecked(&text)
        .and_then(|json| serde_json::from_str(json).map_err(|error| error.to_string()))
        .map_err(|why| RelayError::Damaged { path, why })
}

/// Replaces the file, durably.
pub fn write(folder: &Path, kept: &Kept) -> Result<()> {
    let json = serde_json::to_string_pretty(kept).map_err(|error| RelayError::Damaged {
        path: folder.join(FILE),
        why: error.to_string(),
    })?;
    kept::replace(&Folder::new(folder), FILE, &kept::checked(&json))
        .map_err(|source| slots::file("cannot write", folder.join(FILE), source))
}
