//! The page oracle: two copies of a cluster at the same position, compared page by page.
//!
//! Both sides are data folders of the same cluster: standbys of one primary, or the
//! primary and a standby, cleanly stopped or (standbys) running with replay paused.
//! Every page of every fork must be equal once what may differ is taken away ([`mask`]):
//! what a server may change without WAL, and nothing else. Beside the comparison of the
//! two, each page is held against the WAL still present ([`wal`]): a page older than its
//! last record is a record's lost effect even when both sides lost it, and a page beyond
//! its side's position comes from the future.
//!
//! Not compared: temporary relations, unlogged ones but for their init fork, and what is
//! no relation (transaction status, statistics, configuration). Nothing is written.

mod amcheck;
mod control;
mod difference;
mod engine;
mod error;
mod files;
mod folder;
pub mod mask;
mod node;
pub mod page;
mod psql;
mod rows;
mod settle;
mod wal;

use std::path::Path;

use lockstep_lab::package::Package;
use lockstep_wire::Lsn;

use crate::Result;

pub use amcheck::{Amcheck, amcheck};
pub use control::{ClusterState, Control, SystemIdentifier, Timeline};
pub use difference::{Difference, Side, What};
pub use error::OracleError;
pub use files::{Fork, Relation, RelationFork};
pub use node::{Node, Target, package_of};
pub use rows::{RowComparison, compare_rows};
pub use settle::settle;

/// How the free space map is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreeSpace {
    /// Equal but for the place where the next search begins.
    Strict,
    /// Not at all. The map is not in the WAL: standbys that were copied from the primary
    /// at different times, or that crashed, may each have their own.
    Ignore,
}

/// What to compare, and how much of it to tell.
#[derive(Debug, Clone, Copy)]
pub struct CompareOptions {
    /// The free space map.
    pub free_space: FreeSpace,
    /// How many differences are kept; all are counted.
    pub limit: usize,
}

impl Default for CompareOptions {
    fn default() -> Self {
        Self {
            free_space: FreeSpace::Strict,
            limit: 100,
        }
    }
}

/// What a comparison found.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// The position that both sides stand at.
    pub position: Lsn,
    /// From where on the WAL was held against the pages.
    pub wal_from: Lsn,
    /// Files read, of both sides.
    pub files: u64,
    /// Pages compared; a page that only one side has counts as well.
    pub pages: u64,
    /// Bytes read, of both sides.
    pub bytes: u64,
    /// Differences found. A page counts once, and so does a run of pages that one side
    /// lacks.
    pub found: u64,
    /// The first differences, at most as many as asked for.
    pub differences: Vec<Difference>,
}

impl Comparison {
    /// No difference was found.
    pub fn equal(&self) -> bool {
        self.found == 0
    }
}

/// Compares the data folders `a` and `b`, which stand at the same position.
///
/// Each is cleanly stopped, or the folder of a standby running on this machine with
/// replay paused and the extension's `lockstep_flush_buffers()` at hand.
pub fn compare(
    package: &Package,
    a: &Path,
    b: &Path,
    options: &CompareOptions,
) -> Result<Comparison> {
    let a = Node::open(package, Side::A, &Target::Folder(a.to_path_buf()))?;
    let b = Node::open(package, Side::B, &Target::Folder(b.to_path_buf()))?;
    compare_nodes(package, &a, &b, options)
}

/// Compares two sides that are already open.
pub fn compare_nodes(
    package: &Package,
    a: &Node,
    b: &Node,
    options: &CompareOptions,
) -> Result<Comparison> {
    Ok(engine::run(package, a, b, options)?)
}
