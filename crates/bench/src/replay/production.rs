//! TPC-C as an application would have it: foreign keys, and a log of orders that is partitioned and
//! has a GIN and a GiST index. Its WAL has what the specification's tables alone do not write: row locks
//! and multixacts of foreign keys, records of GIN and GiST, images for hints on a server with
//! checksums, vacuum, and checkpoints while it is recorded.

use lockstep_lab::Role;
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{Server, Settings, settings_of};

use crate::Result;

/// Clients that write unless told otherwise.
pub const WRITERS: u32 = 16;

/// Time between two checkpoints. The load changes most pages of its data between two of them, so that most
/// bytes are images; bench/README.md says how many.
const CHECKPOINT_TIMEOUT: &str = "30s";

/// Rows of a partition of the log, and the partitions that there are; what comes after them goes into the
/// default partition.
const PARTITION_ROWS: u64 = 20_000;
const PARTITIONS: u64 = 40;

/// First major whose initdb turns data checksums on.
const CHECKSUMS_BY_DEFAULT: u32 = 18;

/// Foreign keys of clause 1.3.
const FOREIGN_KEYS: [(&str, &str, &str); 10] = [
    ("district", "d_w_id", "warehouse"),
    ("customer", "c_w_id, c_d_id", "district"),
    ("history", "h_c_w_id, h_c_d_id, h_c_id", "customer"),
    ("history", "h_w_id, h_d_id", "district"),
    ("orders", "o_w_id, o_d_id, o_c_id", "customer"),
    ("new_order", "no_w_id, no_d_id, no_o_id", "orders"),
    ("order_line", "ol_w_id, ol_d_id, ol_o_id", "orders"),
    ("order_line", "ol_supply_w_id, ol_i_id", "stock"),
    ("stock", "s_w_id", "warehouse"),
    ("stock", "s_i_id", "item"),
];

/// One row for each order: its items, and where it was delivered to.
const LOG: &str = "
CREATE SEQUENCE tpcc.log_ids;
CREATE TABLE tpcc.log (
    l_id bigint NOT NULL DEFAULT nextval('tpcc.log_ids'), l_at timestamptz NOT NULL DEFAULT now(),
    l_w_id int NOT NULL, l_d_id int NOT NULL, l_o_id int NOT NULL, l_items int[] NOT NULL,
    l_place point NOT NULL DEFAULT point(random(), random()))
PARTITION BY RANGE (l_id);
CREATE TABLE tpcc.log_rest PARTITION OF tpcc.log DEFAULT;
";

/// Indexes of the log, and the trigger that fills it.
const LOG_ORDERS: &str = "
ALTER TABLE tpcc.log ADD PRIMARY KEY (l_id);
CREATE INDEX ON tpcc.log USING gin (l_items);
CREATE INDEX ON tpcc.log USING gist (l_place);
CREATE FUNCTION tpcc.log_orders() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO tpcc.log (l_w_id, l_d_id, l_o_id, l_items)
    SELECT ol_w_id, ol_d_id, ol_o_id, array_agg(ol_i_id) FROM added GROUP BY ol_w_id, ol_d_id, ol_o_id;
    RETURN NULL;
END $$;
CREATE TRIGGER log_orders AFTER INSERT ON tpcc.order_line
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION tpcc.log_orders();
";

/// Statements that add all this to TPC-C's loaded tables.
pub fn additions() -> String {
    let mut sql = String::from(LOG);
    for number in 0..PARTITIONS {
        let (from, to) = (
            number * PARTITION_ROWS + 1,
            (number + 1) * PARTITION_ROWS + 1,
        );
        sql.push_str(&format!(
            "CREATE TABLE tpcc.log_{number} PARTITION OF tpcc.log FOR VALUES FROM ({from}) TO ({to});\n"
        ));
    }
    sql.push_str(LOG_ORDERS);
    for (table, columns, parent) in FOREIGN_KEYS {
        sql.push_str(&format!(
            "ALTER TABLE tpcc.{table} ADD FOREIGN KEY ({columns}) REFERENCES tpcc.{parent};\n"
        ));
    }
    sql
}

/// Settings of the recorded primary beside those of all kinds of writes.
pub fn settings(wal_compression: &str) -> Settings {
    settings_of([
        ("checkpoint_timeout", CHECKPOINT_TIMEOUT),
        ("autovacuum", "on"),
        ("autovacuum_naptime", "10s"),
        ("wal_compression", wal_compression),
    ])
}

/// Creates and starts a primary with data checksums, on every core.
pub fn primary(lab: &Lab, name: &str, settings: Settings) -> Result<Server> {
    let mut server = lab.server(Role::Primary, name, None)?;
    server.unpin();
    server.init()?;
    if lab.package().major().get() < CHECKSUMS_BY_DEFAULT {
        let program = lab.package().program("pg_checksums");
        let mut enable = lab.launcher().command(program);
        enable.args(["--enable", "--no-sync", "--pgdata"]);
        enable.arg(server.data());
        lab.launcher().run(enable)?;
    }
    server.set(settings)?;
    server.start()?;
    Ok(server)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tpcc::TABLES;

    #[test]
    fn foreign_keys_are_of_tables_that_exist_and_partitions_have_no_gap() {
        let sql = additions();
        for (table, _, parent) in FOREIGN_KEYS {
            assert!(
                TABLES.contains(&table) && TABLES.contains(&parent),
                "{table} {parent}"
            );
        }
        assert_eq!(sql.matches("FOREIGN KEY").count(), FOREIGN_KEYS.len());
        assert_eq!(sql.matches("PARTITION OF").count() as u64, PARTITIONS + 1);
        assert!(sql.contains("FROM (1) TO (20001)") && sql.contains("FROM (20001) TO (40001)"));
    }
}
