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

/// The server works on some rows while the next ones are written, and what it refuses ends them all.
#[test]
fn a_long_update_or_delete_is_several_statements_that_count_as_one() {
    let mut pair = Pair::new(
        "CREATE TABLE t (id int PRIMARY KEY, v int, large text); \
         ALTER TABLE t ALTER large SET STORAGE EXTERNAL",
    );
    let mut source = sql(&pair.source);
    let mut target = sql(&pair.target);
    source
        .execute(
            "INSERT INTO t SELECT i, 1, CASE WHEN i % 700 = 0 THEN repeat(i::text, 3000) END \
             FROM generate_series(1, 7000) i",
        )
        .unwrap();
    let control = pair.start();
    pair.catch_up();
    target
        .execute(
            "CREATE TABLE statements (verb text); \
             CREATE FUNCTION count_them() RETURNS trigger LANGUAGE plpgsql AS \
               $$ BEGIN INSERT INTO public.statements VALUES (tg_op); RETURN NULL; END $$; \
             CREATE TRIGGER counted AFTER UPDATE OR DELETE ON t EXECUTE FUNCTION count_them(); \
             ALTER TABLE t ENABLE ALWAYS TRIGGER counted; \
             ALTER TABLE t ADD CONSTRAINT late CHECK (id < 6500 OR v = 1)",
        )
        .unwrap();
    let statements = |verb: &str| {
        let counted = format!("SELECT count(*) FROM statements WHERE verb = '{verb}'");
        rows(&pair.target, &counted)
    };
    source.execute("UPDATE t SET v = 2").unwrap();
    let words = pair.blocked();
    assert!(words.contains("late"), "{words}");
    let changed = "SELECT count(*) FROM t WHERE v = 2";
    assert_eq!(rows(&pair.target, changed), [[Some("0".to_owned())]]);
    // Rows that are not there count in whichever statement they are.
    target
        .execute("ALTER TABLE t DROP CONSTRAINT late; DELETE FROM t WHERE id IN (1, 3000, 6999)")
        .unwrap();
    target.execute("DELETE FROM statements").unwrap();
    control.resume();
    pair.catch_up();
    assert_eq!(control.stats().missing, 3);
    assert_eq!(statements("UPDATE"), [[Some("3".to_owned())]]);
    pair.assert_same("SELECT * FROM t WHERE id NOT IN (1, 3000, 6999) ORDER BY id");
    source.execute("DELETE FROM t WHERE id < 6000").unwrap();
    pair.catch_up();
    assert_eq!(control.stats().missing, 5);
    assert_eq!(statements("DELETE"), [[Some("3".to_owned())]]);
    pair.assert_same("SELECT * FROM t WHERE id <> 6999 ORDER BY id");
    pair.stop();
}
