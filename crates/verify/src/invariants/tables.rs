//! The tables whose invariants are checked.

use lockstep_lab::server::Server;

use crate::Result;

pub const SCHEMA: &str = "lockstep_invariants";

/// Rows of each table at the start.
pub const ROWS: u32 = 1000;

/// Keys are 0 to `KEYS - 1`.
pub const KEYS: u32 = 1000;

/// The value that each row of `account` starts with.
pub(crate) const BALANCE: u32 = 1000;

/// A table. Each has a primary key `id`, a key `k` that is indexed together with the value `v`,
/// and a `copy` of the key that is in no index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    pub name: &'static str,
    /// Every transaction keeps the number of rows.
    pub keeps_count: bool,
    /// Every transaction keeps the sum of values.
    pub keeps_sum: bool,
}

pub const TABLES: [Table; 4] = [
    // Values move from one row to another.
    Table {
        name: "account",
        keeps_count: true,
        keeps_sum: true,
    },
    // Each transaction removes a row and adds one.
    Table {
        name: "queue",
        keeps_count: true,
        keeps_sum: false,
    },
    // Each new version of a row has a new key.
    Table {
        name: "versioned",
        keeps_count: true,
        keeps_sum: false,
    },
    // 24 rows at a time are deleted or inserted, with vacuum in between: rows with new keys
    // take old line pointers.
    Table {
        name: "recycled",
        keeps_count: false,
        keeps_sum: false,
    },
];

impl Table {
    /// The number of rows that there must be; None if it may change.
    pub(crate) fn count(&self) -> Option<i64> {
        self.keeps_count.then_some(i64::from(ROWS))
    }

    /// The sum of values that there must be; None if it may change.
    pub(crate) fn sum(&self) -> Option<i64> {
        self.keeps_sum
            .then_some(i64::from(ROWS) * i64::from(BALANCE))
    }
}

/// Drops and creates the tables on a primary.
pub fn prepare(primary: &Server) -> Result<()> {
    let mut sql = format!("DROP SCHEMA IF EXISTS {SCHEMA} CASCADE; CREATE SCHEMA {SCHEMA};");
    for Table { name, .. } in TABLES {
        sql.push_str(&format!(
            "CREATE TABLE {SCHEMA}.{name} (id bigserial PRIMARY KEY, k int NOT NULL, \
             v bigint NOT NULL, copy int NOT NULL, pad text) WITH (autovacuum_enabled = off); \
             INSERT INTO {SCHEMA}.{name} (k, v, copy, pad) SELECT i, {BALANCE}, i, repeat('p', i % 80) \
             FROM generate_series(0, {}) i; \
             CREATE INDEX {name}_kv ON {SCHEMA}.{name} (k, v);",
            ROWS - 1
        ));
    }
    primary.execute(&sql)?;
    for Table { name, .. } in TABLES {
        primary.execute(&format!("VACUUM ANALYZE {SCHEMA}.{name}"))?;
    }
    Ok(())
}
