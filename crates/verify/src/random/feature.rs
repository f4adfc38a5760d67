//! The features that a workload covers. Every statement belongs to one feature. A run counts
//! how many statements of each feature were tried and how many succeeded.

use std::fmt;

macro_rules! features {
    ($($variant:ident => $name:literal, $doc:literal;)*) => {
        /// A part of PostgreSQL that a random workload covers.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Feature {
            $(#[doc = $doc] $variant,)*
        }

        impl Feature {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The feature's name in messages and summaries.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

features! {
    Transaction => "transaction", "BEGIN, COMMIT and ROLLBACK.";
    Insert => "insert", "Rows inserted one statement at a time.";
    Upsert => "upsert", "INSERT … ON CONFLICT, a speculative insertion.";
    Update => "update", "Updates that change an indexed column.";
    Delete => "delete", "Deleted rows.";
    HotChain => "hot-chain", "Updates of one row that touch no indexed column.";
    Prune => "prune", "Reads and updates of pages full of dead row versions.";
    RecycledPointers => "recycled-pointers", "Insertion into line pointers that vacuum freed.";
    InsertSelect => "insert-select", "INSERT … SELECT of many rows.";
    Copy => "copy", "COPY FROM STDIN.";
    ToastCompressible => "toast-compressible", "Large values that compress.";
    ToastIncompressible => "toast-incompressible", "Large values that do not compress.";
    ToastUnchanged => "toast-unchanged", "Updates of a row whose large value stays.";
    ToastReplaced => "toast-replaced", "Updates and deletes of large values.";
    BtreeUnique => "btree-unique", "Unique B-tree indexes.";
    BtreeDuplicates => "btree-duplicates", "B-tree indexes with many equal keys.";
    BtreeMulticolumn => "btree-multicolumn", "B-tree indexes over several columns.";
    BtreeExpression => "btree-expression", "B-tree indexes over an expression.";
    BtreePartial => "btree-partial", "B-tree indexes with a predicate.";
    BtreeInclude => "btree-include", "B-tree indexes with INCLUDE.";
    Hash => "hash", "Hash indexes.";
    GinFastUpdate => "gin-fastupdate", "GIN indexes with a pending list.";
    GinDirect => "gin-direct", "GIN indexes without a pending list.";
    GinClean => "gin-clean", "Emptying of GIN pending lists.";
    GistRange => "gist-range", "GiST indexes on ranges.";
    GistPoint => "gist-point", "GiST indexes on points.";
    SpgistText => "spgist-text", "SP-GiST radix trees.";
    SpgistPoint => "spgist-point", "SP-GiST quad and k-d trees.";
    Brin => "brin", "BRIN indexes: minmax, multi-minmax, bloom, inclusion.";
    BrinSummarize => "brin-summarize", "BRIN ranges summarized and taken back.";
    Exclusion => "exclusion", "Exclusion constraints.";
    IndexChurn => "index-churn", "Insertion, deletion and vacuum under an index of each kind.";
    CreateIndexConcurrently => "create-index-concurrently", "CREATE INDEX CONCURRENTLY.";
    DropIndexConcurrently => "drop-index-concurrently", "DROP INDEX CONCURRENTLY.";
    Reindex => "reindex", "REINDEX.";
    ReindexConcurrently => "reindex-concurrently", "REINDEX CONCURRENTLY.";
    PartitionRows => "partition-rows", "Rows routed to partitions.";
    PartitionMove => "partition-move", "Updates that move a row to another partition.";
    PartitionAttach => "partition-attach", "ATTACH PARTITION.";
    PartitionDetach => "partition-detach", "DETACH PARTITION.";
    PartitionDetachConcurrently => "partition-detach-concurrently", "DETACH PARTITION CONCURRENTLY.";
    PartitionDrop => "partition-drop", "Partitions dropped.";
    Sequence => "sequence", "nextval and setval.";
    SequenceCycle => "sequence-cycle", "Sequences that cycle.";
    SequenceAlter => "sequence-alter", "ALTER SEQUENCE, creation and removal.";
    Savepoint => "savepoint", "Savepoints.";
    RollbackTo => "rollback-to", "ROLLBACK TO SAVEPOINT.";
    ManySubtransactions => "many-subtransactions", "More than 64 subtransactions in one transaction.";
    Prepare => "prepare", "PREPARE TRANSACTION.";
    CommitPrepared => "commit-prepared", "COMMIT PREPARED.";
    RollbackPrepared => "rollback-prepared", "ROLLBACK PREPARED.";
    MultiXact => "multixact", "Row locks held by several transactions.";
    ForeignKey => "foreign-key", "Foreign keys, which lock referenced rows.";
    Truncate => "truncate", "TRUNCATE.";
    TruncateRolledBack => "truncate-rolled-back", "TRUNCATE in a transaction that is rolled back.";
    Vacuum => "vacuum", "VACUUM.";
    VacuumTruncates => "vacuum-truncates", "VACUUM after the end of a table became empty.";
    VacuumFull => "vacuum-full", "VACUUM FULL.";
    VacuumFreeze => "vacuum-freeze", "VACUUM FREEZE.";
    VacuumCatalog => "vacuum-catalog", "VACUUM FULL of mapped catalogs.";
    Cluster => "cluster", "CLUSTER.";
    CreateTable => "create-table", "Tables created.";
    DropTable => "drop-table", "Tables dropped.";
    CreateRolledBack => "create-rolled-back", "Tables created in a transaction that is rolled back.";
    AlterTable => "alter-table", "ALTER TABLE that leaves the rows alone.";
    Rewrite => "rewrite", "ALTER TABLE that rewrites the table.";
    MaterializedView => "materialized-view", "Materialized views.";
    RefreshConcurrently => "refresh-concurrently", "REFRESH MATERIALIZED VIEW CONCURRENTLY.";
    Unlogged => "unlogged", "Unlogged tables.";
    SetLogged => "set-logged", "ALTER TABLE SET LOGGED and SET UNLOGGED.";
    Temporary => "temporary", "Temporary tables.";
    LargeObject => "large-object", "Large objects.";
    DatabaseWalLog => "database-wal-log", "CREATE DATABASE with STRATEGY wal_log.";
    DatabaseFileCopy => "database-file-copy", "CREATE DATABASE with STRATEGY file_copy.";
    DatabaseUse => "database-use", "Work in a database that was just created.";
    DatabaseDrop => "database-drop", "DROP DATABASE.";
    Tablespace => "tablespace", "CREATE TABLESPACE and DROP TABLESPACE.";
    TablespaceMove => "tablespace-move", "Tables and indexes moved between tablespaces.";
    Checkpoint => "checkpoint", "CHECKPOINT.";
    SwitchWal => "switch-wal", "pg_switch_wal and restore points.";
    Message => "message", "Logical messages and notifications.";
    Origin => "origin", "Replication origins.";
    Catalog => "catalog", "Functions, types, comments, rights and statistics.";
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_distinct() {
        let names: BTreeSet<_> = Feature::ALL.iter().map(|feature| feature.name()).collect();
        assert_eq!(names.len(), Feature::ALL.len());
    }
}
