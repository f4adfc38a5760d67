//! Transactions that are handed over in parts, and those before them.

use super::apply_lab::{Pair, rows, sql, until};

/// More changes than one part has. What is beyond it has room in the socket: all is sent before the
/// target has anything.
const LARGE: u32 = 20_050;

#[test]
fn what_committed_before_a_large_transaction_does_not_wait_for_its_end() {
    let mut pair = Pair::new(
        "CREATE TABLE gate (id int PRIMARY KEY); CREATE TABLE small (id int PRIMARY KEY); \
         CREATE TABLE large (id int PRIMARY KEY)",
    );
    let (mut gate, mut shut) = (sql(&pair.target), sql(&pair.target));
    gate.execute("BEGIN; LOCK TABLE gate IN EXCLUSIVE MODE")
        .unwrap();
    shut.execute("BEGIN; LOCK TABLE large IN EXCLUSIVE MODE")
        .unwrap();
    pair.start();
    // While the first waits, the second is gathered, and then the large one arrives.
    let mut source = sql(&pair.source);
    source.execute("INSERT INTO gate VALUES (1)").unwrap();
    until("that the first waits", || {
        !rows(
            &pair.target,
            "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'gate'::regclass",
        )
        .is_empty()
    });
    source.execute("INSERT INTO small VALUES (1)").unwrap();
    source
        .execute(&format!(
            "INSERT INTO large SELECT generate_series(1, {LARGE})"
        ))
        .unwrap();
    let end = pair.source.flush_lsn().unwrap();
    until("that all is sent", || {
        let sent = format!("SELECT 1 FROM pg_stat_replication WHERE sent_lsn >= '{end}'");
        !rows(&pair.source, &sent).is_empty()
    });
    drop(gate);
    until("that the small one is there", || {
        !rows(&pair.target, "SELECT id FROM small").is_empty()
    });
    assert!(rows(&pair.target, "SELECT id FROM large LIMIT 1").is_empty());
    drop(shut);
    for table in ["gate", "small", "large"] {
        pair.assert_same(&format!("SELECT count(*), sum(id) FROM {table}"));
    }
}
