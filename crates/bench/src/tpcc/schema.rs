//! The nine tables (clause 1.3), in a schema of their own so that nothing else can be
//! overwritten.

/// The schema of all tables.
pub const SCHEMA: &str = "tpcc";

/// The nine tables. `warehouse` is last: its key is made when all else is done and
/// says that loading is complete.
pub const TABLES: [&str; 9] = [
    "item",
    "stock",
    "customer",
    "history",
    "orders",
    "new_order",
    "order_line",
    "district",
    "warehouse",
];

/// Creates the tables without keys: they are made after the data.
pub(super) const CREATE: &str = "
CREATE SCHEMA IF NOT EXISTS tpcc;
CREATE TABLE tpcc.warehouse (
    w_id int NOT NULL, w_name varchar(10), w_street_1 varchar(20), w_street_2 varchar(20),
    w_city varchar(20), w_state char(2), w_zip char(9), w_tax numeric(4,4) NOT NULL,
    w_ytd numeric(12,2) NOT NULL);
CREATE TABLE tpcc.district (
    d_id int NOT NULL, d_w_id int NOT NULL, d_name varchar(10), d_street_1 varchar(20),
    d_street_2 varchar(20), d_city varchar(20), d_state char(2), d_zip char(9),
    d_tax numeric(4,4) NOT NULL, d_ytd numeric(12,2) NOT NULL, d_next_o_id int NOT NULL);
CREATE TABLE tpcc.customer (
    c_id int NOT NULL, c_d_id int NOT NULL, c_w_id int NOT NULL, c_first varchar(16),
    c_middle char(2), c_last varchar(16), c_street_1 varchar(20), c_street_2 varchar(20),
    c_city varchar(20), c_state char(2), c_zip char(9), c_phone char(16), c_since timestamptz,
    c_credit char(2), c_credit_lim numeric(12,2), c_discount numeric(4,4) NOT NULL,
    c_balance numeric(12,2) NOT NULL, c_ytd_payment numeric(12,2) NOT NULL,
    c_payment_cnt int NOT NULL, c_delivery_cnt int NOT NULL, c_data varchar(500));
CREATE TABLE tpcc.history (
    h_c_id int NOT NULL, h_c_d_id int NOT NULL, h_c_w_id int NOT NULL, h_d_id int NOT NULL,
    h_w_id int NOT NULL, h_date timestamptz, h_amount numeric(6,2) NOT NULL, h_data varchar(24));
CREATE TABLE tpcc.new_order (
    no_o_id int NOT NULL, no_d_id int NOT NULL, no_w_id int NOT NULL);
CREATE TABLE tpcc.orders (
    o_id int NOT NULL, o_d_id int NOT NULL, o_w_id int NOT NULL, o_c_id int NOT NULL,
    o_entry_d timestamptz NOT NULL, o_carrier_id int, o_ol_cnt int NOT NULL,
    o_all_local int NOT NULL);
CREATE TABLE tpcc.order_line (
    ol_o_id int NOT NULL, ol_d_id int NOT NULL, ol_w_id int NOT NULL, ol_number int NOT NULL,
    ol_i_id int NOT NULL, ol_supply_w_id int NOT NULL, ol_delivery_d timestamptz,
    ol_quantity int NOT NULL, ol_amount numeric(6,2) NOT NULL, ol_dist_info char(24));
CREATE TABLE tpcc.item (
    i_id int NOT NULL, i_im_id int, i_name varchar(24), i_price numeric(5,2) NOT NULL,
    i_data varchar(50));
CREATE TABLE tpcc.stock (
    s_i_id int NOT NULL, s_w_id int NOT NULL, s_quantity int NOT NULL,
    s_dist_01 char(24), s_dist_02 char(24), s_dist_03 char(24), s_dist_04 char(24),
    s_dist_05 char(24), s_dist_06 char(24), s_dist_07 char(24), s_dist_08 char(24),
    s_dist_09 char(24), s_dist_10 char(24), s_ytd int NOT NULL, s_order_cnt int NOT NULL,
    s_remote_cnt int NOT NULL, s_data varchar(50));
";

/// Keys and indexes of one table, by one session after the data. `history` has none.
pub(super) fn indexes(table: &str) -> &'static str {
    match table {
        "warehouse" => "ALTER TABLE tpcc.warehouse ADD PRIMARY KEY (w_id);",
        "district" => "ALTER TABLE tpcc.district ADD PRIMARY KEY (d_w_id, d_id);",
        "customer" => {
            "ALTER TABLE tpcc.customer ADD PRIMARY KEY (c_w_id, c_d_id, c_id);
             CREATE INDEX customer_by_last_name ON tpcc.customer (c_w_id, c_d_id, c_last, c_first);"
        }
        "new_order" => "ALTER TABLE tpcc.new_order ADD PRIMARY KEY (no_w_id, no_d_id, no_o_id);",
        "orders" => {
            "ALTER TABLE tpcc.orders ADD PRIMARY KEY (o_w_id, o_d_id, o_id);
             CREATE INDEX orders_by_customer ON tpcc.orders (o_w_id, o_d_id, o_c_id, o_id);"
        }
        "order_line" => {
            "ALTER TABLE tpcc.order_line ADD PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number);"
        }
        "item" => "ALTER TABLE tpcc.item ADD PRIMARY KEY (i_id);",
        "stock" => "ALTER TABLE tpcc.stock ADD PRIMARY KEY (s_w_id, s_i_id);",
        _ => "",
    }
}

/// One row: the first of our tables that exists, whether loading is complete, whether
/// the server is in recovery, and whether the session is read-only.
pub(super) fn probe() -> String {
    let names = TABLES.map(|table| format!("'{table}'")).join(", ");
    format!(
        "SELECT coalesce((SELECT min(relname::text) FROM pg_catalog.pg_class c
                          JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                          WHERE n.nspname = '{SCHEMA}' AND c.relname IN ({names})), ''),
                EXISTS (SELECT FROM pg_catalog.pg_constraint k
                        JOIN pg_catalog.pg_class c ON c.oid = k.conrelid
                        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                        WHERE n.nspname = '{SCHEMA}' AND c.relname = 'warehouse' AND k.contype = 'p'),
                pg_catalog.pg_is_in_recovery(),
                pg_catalog.current_setting('transaction_read_only') = 'on';"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_is_created_and_all_but_history_have_a_key() {
        for table in TABLES {
            assert!(CREATE.contains(&format!("CREATE TABLE tpcc.{table} (")));
            let keyed = indexes(table).contains("PRIMARY KEY");
            assert_eq!(keyed, table != "history", "{table}");
        }
        assert_eq!(CREATE.matches("CREATE TABLE").count(), TABLES.len());
        assert_eq!(TABLES.last(), Some(&"warehouse"));
    }
}
