//! The page oracle compares two copies of a cluster at the same position, page by page.
//!
//! Both sides are data folders of the same cluster: two standbys of one primary, or the
//! primary and a standby. Each is cleanly stopped, or is a running standby with replay paused.
//! Every page of every fork must be equal, except for the places that [`mask`] masks: those
//! that a server may change without WAL. Each page is also compared with the WAL that still
//! exists ([`wal`]). A page that is older than its last record has lost that record's change,
//! even if both sides have lost it. A page with an LSN beyond its side's position is an error
//! too.
//!
//! Not compared are temporary relations, unlogged relations except for their init fork, and
//! files of no relation (transaction status, statistics, configuration). Nothing is written.

mod amcheck;
mod control;
mod difference;
mod engine;
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

pub use crate::error::OracleError;
pub use crate::side::Side;
pub use amcheck::{Amcheck, amcheck};
pub use control::{ClusterState, Control};
pub use difference::{Difference, What};
pub use files::{Fork, Relation, RelationFork};
pub use lockstep_client::target::Target;
pub use node::{Node, package_of};
pub use rows::{RowComparison, compare_rows};
pub use settle::settle;

/// How the free space map is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreeSpace {
    /// The map must be equal, except for the place where the next search begins.
    Strict,
    /// The map is not compared. It is not in the WAL, so it may differ between standbys that
    /// were copied from the primary at different times, or that crashed.
    Ignore,
}

/// What to compare, and how many differences to keep.
#[derive(Debug, Clone, Copy)]
pub struct CompareOptions {
    pub free_space: FreeSpace,
    /// How many differences are kept. All are counted.
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

#[derive(Debug, Clone)]
pub struct Comparison {
    /// The position of both sides.
    pub position: Lsn,
    /// Start of the WAL that was compared with the pages.
    pub wal_from: Lsn,
    /// Files read, of both sides together.
    pub files: u64,
    /// Pages compared; a page that only one side has counts as well.
    pub pages: u64,
    /// Bytes read, of both sides together.
    pub bytes: u64,
    /// Number of differences. A page counts once, and so does a run of pages that one side
    /// lacks.
    pub found: u64,
    /// The first differences, at most [`CompareOptions::limit`].
    pub differences: Vec<Difference>,
}

impl Comparison {
    pub fn equal(&self) -> bool {
        self.found == 0
    }
}

/// Compares the data folders `a` and `b`, which must be at the same position.
///
/// Each folder must belong to a server that is cleanly stopped, or to a standby that runs on
/// this machine with replay paused and with the extension's `lockstep_flush_buffers()`.
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
