//! What the preflight knows about source and target.

use std::collections::{BTreeSet, HashMap};

use crate::names::{Excluded, TableName};
use crate::publication::subset::Subset;

/// All that the rules decide on.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    pub source: Server,
    pub target: Server,
    pub tables: Vec<Table>,
    /// Functions of fences of switchovers, whole or not, on the source.
    pub fences: Vec<String>,
    /// A switchover that did not end has closed the target, wholly or not.
    pub is_closed: bool,
    /// Schemas of the source.
    pub schemas: BTreeSet<String>,
    /// Objects that need something that is left out, each with that.
    pub needs_excluded: Vec<(String, String)>,
    pub large_objects: u64,
    /// Collations that columns of the source use and that the target does not have.
    pub collations_missing: Vec<String>,
    /// Roles that own something, or have rights, on the source and that the target does not have.
    pub roles_missing: Vec<String>,
    /// Owners of what is copied to which our role on the target may not give it: those that are no
    /// superusers there, and those that are.
    pub owners_denied: Vec<String>,
    pub superusers_denied: Vec<String>,
    /// Tablespaces in use on the source that the target does not have.
    pub tablespaces_missing: Vec<String>,
    pub extensions: Vec<Extension>,
    /// Tables, views and sequences of users on the target.
    pub target_relations: u64,
    /// Event triggers that are `ENABLE ALWAYS` or `REPLICA`.
    pub event_triggers: Vec<String>,
    /// Event triggers of the source that fire at each login.
    pub login_triggers: Vec<String>,
    /// Relations that are made on the target in one transaction, which locks each of them.
    pub relations_to_make: u64,
    /// What the user excluded.
    pub excluded: Excluded,
    /// Row filters and column lists that the user asked for.
    pub subsets: Vec<Subset>,
    /// The tables that are copied and have one.
    pub looked_at: Vec<SubsetFacts>,
    /// Foreign keys that one of them touches.
    pub foreign_keys: Vec<ForeignKey>,
    /// Rights on the source's database that others than its owner have, and that nobody has on the target's.
    pub database_rights: BTreeSet<String>,
    /// Large objects may be left out.
    pub skip_large_objects: bool,
    /// Changes of the source's schema are to be followed.
    pub ddl: bool,
    /// Sessions of others are to begin read-only on the target.
    pub read_only: bool,
    /// This machine has no pg_dump and pg_restore that know both servers.
    pub lacks_programs: bool,
    /// The pg_dump that would write options of the source's columns that the target refuses.
    pub outdated_dump: Option<String>,
}

/// A server, its database and our role there.
#[derive(Debug, Clone, Default)]
pub struct Server {
    /// The server's version, as `server_version_num` gives it.
    pub version: u32,
    pub system_id: String,
    pub database: String,
    pub in_recovery: bool,
    /// `default_transaction_read_only` is on for the role, the database or the server. Our own sessions turn
    /// it off.
    pub read_only: bool,
    /// Our role may set it for the database.
    pub owns_database: bool,
    pub encoding: String,
    pub collate: String,
    pub ctype: String,
    /// `c`, `i` or `b`.
    pub provider: String,
    /// The version of the database's collation when it was made, and as the system has it now.
    pub collation_version: Option<String>,
    pub collation_version_now: Option<String>,
    pub role: String,
    pub superuser: bool,
    pub replication: bool,
    pub bypass_rls: bool,
    /// The role may create schemas and publications in the database.
    pub create: bool,
    /// `wal_level`, from 19 on `effective_wal_level` if that is higher.
    pub wal_level: String,
    /// Locks for which there is room at once, roughly.
    pub lock_room: u64,
    pub locks_per_transaction: u64,
    pub slots: u32,
    pub slots_used: u32,
    pub walsenders: u32,
    pub walsenders_used: u32,
    pub origins: u32,
    pub origins_used: u32,
    /// Functions of replication origins that our role may not call.
    pub origin_functions_denied: Vec<String>,
    /// The role may set `session_replication_role`.
    pub sets_replication_role: bool,
}

/// A table of the source, of any kind.
#[derive(Debug, Clone, Default)]
pub struct Table {
    pub name: TableName,
    pub oid: u32,
    pub kind: TableKind,
    pub unlogged: bool,
    /// Belongs to an extension.
    pub of_extension: bool,
    /// Our role owns it.
    pub owned: bool,
    pub owner: String,
    pub owner_is_superuser: bool,
    /// A constraint, default, generated column, index or a domain of its columns calls a function whose
    /// owner is no superuser.
    pub calls_functions: bool,
    pub readable: bool,
    pub row_security: bool,
    /// Row security also for the owner.
    pub row_security_forced: bool,
    pub identity: ReplicaIdentity,
    /// Has a key that makes equal rows impossible.
    pub has_key: bool,
    /// Rows updated and deleted since statistics were reset.
    pub changed_rows: u64,
    pub bytes: u64,
    pub generated_columns: u32,
    /// The replica identity has a generated column, which is not sent; all columns are in one that is FULL.
    pub generated_identity: bool,
    pub identity_columns: u32,
    pub deferrable_constraints: u32,
    pub exclusion_constraints: u32,
    /// Triggers that are `ENABLE ALWAYS` or `REPLICA`.
    pub acting_triggers: u32,
    /// Rules that are.
    pub acting_rules: u32,
    /// Equal rows were found; only looked for under REPLICA IDENTITY FULL without a key. None if
    /// the table was not looked at.
    pub equal_rows: Option<bool>,
    /// Partitioned tables above it.
    pub ancestors: Vec<TableName>,
}

impl Table {
    /// Whether the table, or a partitioned table above it, is left out.
    pub fn is_left_out(&self, excluded: &Excluded) -> bool {
        std::iter::once(&self.name)
            .chain(&self.ancestors)
            .any(|name| excluded.names(name))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TableKind {
    #[default]
    Ordinary,
    Partitioned,
    Foreign,
    MaterialisedView,
}

/// What rows of an UPDATE or DELETE are identified by in the WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReplicaIdentity {
    /// The primary key, or an index that was chosen.
    #[default]
    Key,
    Full,
    /// Nothing: the source refuses updates and deletes of a published table.
    Nothing,
}

/// A table of which only a part is replicated.
#[derive(Debug, Clone, Default)]
pub struct SubsetFacts {
    pub table: TableName,
    /// Why the source refuses to publish it.
    pub refused: Option<String>,
    /// Columns that the filter names.
    pub filter_columns: Vec<String>,
    /// Columns of the replica identity, if that is an index.
    pub identity_columns: Vec<String>,
    /// Columns that the list leaves out, without generated ones.
    pub left_out: Vec<LeftOut>,
    /// Generated columns that the list names.
    pub generated_listed: Vec<String>,
    /// Generated columns that are NOT NULL and use a column that is left out.
    pub generated_not_null: Vec<String>,
    /// Columns that are replicated, not of the identity, and whose values can be stored out of line.
    pub large_columns: Vec<String>,
    pub uniques: Vec<UniqueFacts>,
    /// CHECK constraints that use a column that is left out.
    pub checks: Vec<String>,
    /// Columns that are left out and by which a table above is partitioned.
    pub partitioned_by: Vec<String>,
}

/// A column that is not replicated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    pub name: String,
    pub not_null: bool,
    pub filled: Filled,
}

/// What the target puts into a column that is not replicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filled {
    WithNull,
    /// Values of an identity or serial column's sequence.
    BySequence,
    ByDefault,
}

/// A unique index or an exclusion constraint.
#[derive(Debug, Clone, Default)]
pub struct UniqueFacts {
    pub name: String,
    /// `NULLS NOT DISTINCT`
    pub nulls_equal: bool,
    /// Columns that are keys as such, not within an expression.
    pub keys: Vec<String>,
    /// Columns within expressions or a predicate, and perhaps keys.
    pub used: Vec<String>,
}

/// A foreign key of which a side is replicated in part.
#[derive(Debug, Clone)]
pub struct ForeignKey {
    pub name: String,
    pub table: TableName,
    pub referenced: TableName,
    pub reference: Reference,
}

/// Whether the target can have a foreign key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// Rows that are replicated refer to rows that are not.
    Dangles,
    /// The constraint holds with the rows as they are now.
    Holds,
    /// A list leaves out this column of it, which is filled in another way than with null.
    LeavesOut(String),
    /// The referenced table's list leaves out this column.
    LeavesOutReferenced(String),
}

#[derive(Debug, Clone, Default)]
pub struct Extension {
    pub name: String,
    pub version: String,
    /// The version that the target would install; None if it has none.
    pub available: Option<String>,
}

impl Facts {
    /// Tables that are not left out.
    pub fn included(&self) -> impl Iterator<Item = &Table> {
        self.tables
            .iter()
            .filter(|table| !table.is_left_out(&self.excluded))
    }

    /// Tables whose rows are copied and replicated.
    pub fn copied(&self) -> impl Iterator<Item = &Table> {
        self.included().filter(|table| {
            table.kind == TableKind::Ordinary && !table.unlogged && !table.of_extension
        })
    }

    /// Partitioned tables of which nothing is left out, without those that are partitions: they are
    /// published as such, so that partitions that are made later are replicated.
    pub fn whole_roots(&self) -> impl Iterator<Item = &Table> {
        let is_whole = |root: &&Table| self.is_whole(root) && !self.has_subset(root);
        self.roots().filter(is_whole)
    }

    /// Partitioned tables of which something is left out.
    pub fn parted_roots(&self) -> impl Iterator<Item = &Table> {
        self.roots().filter(|root| !self.is_whole(root))
    }

    /// Partitioned tables that have a subset, or one below has. A publication cannot have it but for
    /// their partitions, and would have all of a partition that is made later.
    pub fn subset_roots(&self) -> impl Iterator<Item = &Table> {
        self.roots().filter(|root| self.has_subset(root))
    }

    fn has_subset(&self, root: &Table) -> bool {
        let within = |table: &&Table| {
            table.kind == TableKind::Partitioned
                && (table.name == root.name || table.ancestors.contains(&root.name))
        };
        let mut within = self.tables.iter().filter(within);
        within.any(|table| self.subsets.iter().any(|subset| subset.table == table.name))
    }

    /// What of a table is replicated: its own subset, or that of a partitioned table above it. None if
    /// all is.
    pub fn subset_of(&self, table: &Table) -> Option<&Subset> {
        let mut names = std::iter::once(&table.name).chain(&table.ancestors);
        names.find_map(|name| self.subsets.iter().find(|subset| subset.table == *name))
    }

    /// The OIDs of the tables that have a subset of their own.
    pub fn subset_oids(&self) -> HashMap<TableName, u32> {
        let has_one = |table: &&Table| self.subsets.iter().any(|it| it.table == table.name);
        let tables = self.tables.iter().filter(has_one);
        tables
            .map(|table| (table.name.clone(), table.oid))
            .collect()
    }

    /// What the source says of a table that has a subset.
    pub fn looked_at(&self, table: &Table) -> Option<&SubsetFacts> {
        let mut looked_at = self.looked_at.iter();
        looked_at.find(|looked| looked.table == table.name)
    }

    fn roots(&self) -> impl Iterator<Item = &Table> {
        self.included().filter(|table| {
            table.kind == TableKind::Partitioned
                && table.ancestors.is_empty()
                && !table.of_extension
        })
    }

    fn is_whole(&self, root: &Table) -> bool {
        let below = |table: &&Table| table.ancestors.contains(&root.name);
        let mut below = self.tables.iter().filter(below);
        !below.any(|table| table.is_left_out(&self.excluded))
    }

    /// Tables that the publication names.
    pub fn published(&self) -> impl Iterator<Item = &Table> {
        self.copied().chain(self.whole_roots())
    }
}
