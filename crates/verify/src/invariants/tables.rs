//! The tables that invariants are kept on.

use lockstep_lab::server::Server;

use crate::Result;

/// The schema that they are in.
pub const SCHEMA: &str = "lockstep_invariants";

/// Rows of each table at the start.
pub const ROWS: u32 = 1000;

/// Keys are from 0 to below this.
pub const KEYS: u32 = 1000;

/// What a row of `account` begins with.
pub(crate) const BALANCE: u32 = 1000;

/// A table. All have a row's identity `id`, a key `k` that is indexed together with the
/// value `v`, and a `copy` of the key that is in no index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// Whether the number of rows stays what it was.
    pub keeps_count: bool,
    /// Whether the sum of values stays what it was.
    pub keeps_sum: bool,
}

/// The tables.
pub const TABLES: [Table; 4] = [
    // Values move from one row to another.
    Table {
        name: "account",
        keeps_count: true,
        keeps_sum: true,
    },
    // Each transaction takes a row away and adds one.
    Table {
        name: "queue",
        keeps_count: true,
        keeps_sum: false,
    },
    // Rows get a new key with each version.
    Table {
        name: "versioned",
        keeps_count: true,
        keeps_sum: false,
    },
    // Rows go and come by the dozen, vacuum in between: new keys in old line pointers.
    Table {
        name: "recycled",
        keeps_count: false,
        keeps_sum: false,
    },
];

impl Table {
    /// Rows that there must be.
    pub(crate) fn count(&self) -> Option<i64> {
        self.keeps_count.then_some(i64::from(ROWS))
    }

    /// The sum of values that there must be.
    pub(crate) fn sum(&self) -> Option<i64> {
        self.keeps_sum
            .then_some(i64::from(ROWS) * i64::from(BALANCE))
    }
}

/// Makes the tables anew on a primary.
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
