//! Several writers: what runs ahead, what waits, and that every commit is a state of the source.
//!
//! Most tests hold the first batch up: it changes row 1 of table `gate`, which a session on the
//! target has locked. What follows is larger, so that it goes to a writer of its own.

use lockstep_apply::{self as apply, Control, Starts};
use lockstep_client::Connection;
use lockstep_lab::assert_has;
use lockstep_lab::for_tests;
use lockstep_lab::server::Stop;

use super::apply_lab::{LONG, NAME, Pair, opened, rows, run, sql, until};

/// Changes that are worth a writer of their own.
const WORTH: u32 = 600;

const GATE: &str = "CREATE TABLE gate (id int PRIMARY KEY, n int); INSERT INTO gate VALUES (1, 0); \
    CREATE TABLE t (id int PRIMARY KEY, u text UNIQUE, e text); \
    CREATE TABLE filler (id int PRIMARY KEY, n int)";

/// A pair with four writers, and the tables above besides others.
fn pair(schema: &str) -> Pair {
    let mut pair = Pair::new(&format!("{GATE}; {schema}"));
    pair.writers = 4.into();
    pair
}

/// A transaction that does this, and is large enough for a writer of its own.
fn large(pair: &Pair, first: u32, statements: &str) {
    run(
        pair,
        &[&format!(
            "BEGIN; {statements}; INSERT INTO filler SELECT i, 0 FROM generate_series({first}, \
             {first} + {WORTH} - 1) AS i; COMMIT"
        )],
    );
}

/// Row 1 of `gate` is locked on the target while this lives.
fn shut(pair: &Pair) -> Connection {
    let mut gate = sql(&pair.target);
    gate.execute("BEGIN; SELECT FROM gate WHERE id = 1 FOR UPDATE")
        .unwrap();
    gate
}

/// Changes row 1 of `gate` on the source, and does this as well; waits until the first writer waits
/// for the row.
fn blocked(pair: &Pair, statements: &str) {
    run(
        pair,
        &[&format!(
            "BEGIN; UPDATE gate SET n = n + 1; {statements}; COMMIT"
        )],
    );
    until("that the first batch waits for the gate", || {
        writers(pair, "wait_event_type = 'Lock'") == 1
    });
}

/// Number of writers' backends of which this is true.
fn writers(pair: &Pair, condition: &str) -> usize {
    rows(
        &pair.target,
        &format!(
            "SELECT pid FROM pg_stat_activity WHERE application_name = '{NAME}' AND {condition}"
        ),
    )
    .len()
}

/// Waits until so many writers have changed something and wait for their turn.
fn ahead(pair: &Pair, number: usize) {
    until("that batches run ahead", || {
        writers(
            pair,
            "state = 'idle in transaction' AND backend_xid IS NOT NULL",
        ) == number
    });
}

fn count(pair: &Pair, query: &str) -> String {
    rows(&pair.target, query)[0][0].clone().unwrap()
}

/// Everything arrives, and so many batches were done again.
fn assert_all_same(pair: &Pair, control: &Control, again: u64) {
    for table in ["gate", "t", "filler"] {
        pair.assert_same(&format!(
            "SELECT count(*), md5(string_agg(x::text, ',' ORDER BY x::text COLLATE \"C\")) FROM {table} x"
        ));
    }
    let stats = control.stats();
    assert_eq!((stats.missing, stats.again), (0, again), "{stats:?}");
}

#[test]
fn batches_run_ahead_and_commit_in_the_sources_order() {
    let mut pair = pair("");
    let control = pair.start();
    let gate = shut(&pair);
    blocked(&pair, "SELECT");
    for batch in 0..3 {
        large(&pair, batch * 1000, "SELECT");
        ahead(&pair, batch as usize + 1);
    }
    assert_eq!(count(&pair, "SELECT count(*) FROM filler"), "0");
    // More would be memory without end: the next batch waits for a writer, with the first half of it.
    large(&pair, 3000, "SELECT");
    drop(gate);
    assert_all_same(&pair, &control, 0);
}

#[test]
fn a_batch_makes_its_changes_before_the_one_before_it_has_committed() {
    let mut pair = pair("");
    let control = pair.start();
    pair.catch_up();
    let gate = shut(&pair);
    blocked(&pair, "SELECT");
    let at = "SELECT coalesce(max(lsn), '0/0') FROM lockstep.apply_position";
    let stood = count(&pair, at);
    // All writers that have changed the table: whether one waits for a lock, and whether it has ended.
    let changers = format!(
        "SELECT coalesce(wait_event_type, '') = 'Lock', backend_xid IS NULL, state \
         FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid) \
         WHERE application_name = '{NAME}' AND l.relation = 'filler'::regclass \
           AND l.mode = 'RowExclusiveLock' AND l.granted"
    );
    let is_ahead = ["f", "f", "idle in transaction"].map(|of| Some(of.to_owned()));
    let mut size = 0;
    for batch in 0..3 {
        large(&pair, batch * 1000, "SELECT");
        ahead(&pair, batch as usize + 1);
        // Whoever has just made its changes may not be idle yet.
        let all_ahead = vec![is_ahead.to_vec(); batch as usize + 1];
        until("that all are ahead", || {
            rows(&pair.target, &changers) == all_ahead
        });
        // Its rows are in the table, and nobody sees them.
        let grown = count(&pair, "SELECT pg_relation_size('filler')");
        let grown: u64 = grown.parse().unwrap();
        assert!(grown > size, "{grown} after {size}");
        size = grown;
        assert_eq!(count(&pair, "SELECT count(*) FROM filler"), "0");
        assert_eq!(count(&pair, at), stood);
    }
    assert_eq!(writers(&pair, "wait_event_type = 'Lock'"), 1);
    drop(gate);
    assert_all_same(&pair, &control, 0);
}

#[test]
fn a_row_that_an_earlier_batch_changes_is_waited_for() {
    let mut pair = pair("");
    run(
        &pair,
        &["INSERT INTO t SELECT i, 'u' || i FROM generate_series(1, 9) AS i"],
    );
    let control = pair.start();
    pair.catch_up();
    let gate = shut(&pair);
    blocked(
        &pair,
        "DELETE FROM t WHERE id = 1; UPDATE t SET id = 20 WHERE id = 2; INSERT INTO t VALUES (30)",
    );
    large(
        &pair,
        0,
        "INSERT INTO t VALUES (1, 'new'), (2, 'two'); UPDATE t SET e = 'x' WHERE id IN (20, 30)",
    );
    ahead(&pair, 1);
    large(&pair, 1000, "DELETE FROM t WHERE id IN (1, 20, 30)");
    ahead(&pair, 2);
    assert_eq!(
        writers(&pair, "wait_event_type = 'Lock'"),
        1,
        "none waits for another"
    );
    drop(gate);
    assert_all_same(&pair, &control, 0);
}

#[test]
fn a_unique_value_that_an_earlier_batch_takes_is_waited_for() {
    let mut pair = pair("");
    // An index that only the target has.
    pair.target.run("CREATE UNIQUE INDEX ON t (e)");
    let control = pair.start();
    let gate = shut(&pair);
    blocked(&pair, "INSERT INTO t VALUES (1, 'x', 'y')");
    large(&pair, 0, "UPDATE t SET u = 'b', e = 'b' WHERE id = 1");
    ahead(&pair, 1);
    large(
        &pair,
        1000,
        "INSERT INTO t VALUES (2, 'x', 'q'), (3, 'p', 'y')",
    );
    ahead(&pair, 2);
    drop(gate);
    assert_all_same(&pair, &control, 0);
}

#[test]
fn a_unique_value_that_an_earlier_batch_gives_up_is_found_taken_or_free() {
    let mut pair = pair("");
    run(&pair, &["INSERT INTO t VALUES (1, 'x'), (2, 'y')"]);
    let control = pair.start();
    pair.catch_up();
    let gate = shut(&pair);
    // Nothing says that the rows had x and y.
    blocked(
        &pair,
        "UPDATE t SET u = 'a' WHERE id = 1; DELETE FROM t WHERE id = 2",
    );
    large(
        &pair,
        0,
        "INSERT INTO t VALUES (3, 'x'), (4, 'y'); \
         INSERT INTO t SELECT i, 'r' || i FROM generate_series(10, 100) AS i",
    );
    // It was refused, rolled back, and waits for its turn without a lock.
    until("that the second batch has given up", || {
        writers(&pair, "query = 'ROLLBACK' AND state = 'idle'") == 1
    });
    drop(gate);
    assert_all_same(&pair, &control, 1);
}

/// Three batches of which the third takes what the first has had, in a column that `column` names.
fn handed_on(pair: &Pair, column: &str, first: u32) -> Connection {
    let gate = shut(pair);
    let (one, two) = (first, first + 1);
    blocked(
        pair,
        &format!("INSERT INTO t (id, {column}) VALUES ({one}, 'x{first}')"),
    );
    large(
        pair,
        first * 1000,
        &format!("UPDATE t SET {column} = 'y{first}' WHERE id = {one}"),
    );
    ahead(pair, 1);
    large(
        pair,
        (first + 1) * 1000,
        &format!("INSERT INTO t (id, {column}) VALUES ({two}, 'x{first}')"),
    );
    ahead(pair, 2);
    gate
}

#[test]
fn an_index_that_is_made_meanwhile_makes_a_later_batch_give_way_and_is_known_then() {
    let mut pair = pair("");
    let control = pair.start();
    run(&pair, &["INSERT INTO t VALUES (100)"]);
    pair.catch_up();
    pair.target.run("CREATE UNIQUE INDEX ON t (e)");
    // The third batch has the value; the first one waits for it, and it waits for the first one.
    // The second finds in its turn that the index is not what it was planned with.
    drop(handed_on(&pair, "e", 1));
    assert_all_same(&pair, &control, 2);
    drop(handed_on(&pair, "e", 5));
    assert_all_same(&pair, &control, 2);
}

#[test]
fn a_session_that_waits_to_lock_a_table_does_not_hold_the_replica_up() {
    let mut pair = pair("");
    let control = pair.start();
    let gate = shut(&pair);
    blocked(&pair, "INSERT INTO t VALUES (1)");
    large(&pair, 0, "INSERT INTO t VALUES (2)");
    ahead(&pair, 1);
    std::thread::scope(|scope| {
        let mut other = sql(&pair.target);
        let locked = scope.spawn(move || {
            other.execute("BEGIN; LOCK TABLE t IN SHARE MODE").unwrap();
            let seen = other.query("SELECT id FROM t").unwrap();
            other.execute("COMMIT").unwrap();
            seen
        });
        until("that a session waits to lock the table", || {
            let waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND mode = 'ShareLock' \
                         AND locktype = 'relation'";
            !rows(&pair.target, waits).is_empty()
        });
        drop(gate);
        let nothing: Vec<Vec<Option<String>>> = Vec::new();
        assert_eq!(locked.join().unwrap(), nothing, "no batch is committed yet");
    });
    assert_all_same(&pair, &control, 1);
}

#[test]
fn unique_values_of_a_partition_are_waited_for_under_each_name() {
    for through_root in [false, true] {
        let mut pair = pair(
            "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); \
             CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100)",
        );
        pair.target.run("CREATE UNIQUE INDEX ON p1 (v)");
        let set = format!(
            "ALTER PUBLICATION everything SET (publish_via_partition_root = {through_root})"
        );
        pair.source.run(&set);
        let control = pair.start();
        let gate = shut(&pair);
        blocked(&pair, "INSERT INTO p VALUES (1, 'x')");
        large(&pair, 0, "UPDATE p SET v = 'y'");
        ahead(&pair, 1);
        large(&pair, 1000, "INSERT INTO p VALUES (2, 'x')");
        ahead(&pair, 2);
        drop(gate);
        pair.assert_same("SELECT * FROM p ORDER BY id");
        assert_all_same_but_t(&pair, &control, 0);
    }
}

fn assert_all_same_but_t(pair: &Pair, control: &Control, again: u64) {
    pair.assert_same("SELECT count(*), sum(id) FROM filler");
    let stats = control.stats();
    assert_eq!((stats.missing, stats.again), (0, again), "{stats:?}");
}

#[test]
fn values_that_are_equal_and_not_the_same_keep_their_order() {
    let collation = "CREATE COLLATION anycase (provider = icu, locale = 'und-u-ks-level2', \
         deterministic = false); CREATE TABLE c (id int PRIMARY KEY, v text COLLATE anycase UNIQUE); \
         CREATE TABLE n (id numeric PRIMARY KEY, v int); \
         CREATE TABLE f (id int PRIMARY KEY, v float8 UNIQUE)";
    let mut pair = pair(collation);
    let control = pair.start();
    let gate = shut(&pair);
    blocked(
        &pair,
        "INSERT INTO c VALUES (1, 'abc'); INSERT INTO n VALUES (1.0, 1); \
         INSERT INTO f VALUES (1, 0)",
    );
    large(
        &pair,
        0,
        "UPDATE c SET v = 'def'; DELETE FROM n; UPDATE f SET v = 1",
    );
    ahead(&pair, 1);
    large(
        &pair,
        1000,
        "INSERT INTO c VALUES (2, 'ABC'); INSERT INTO n VALUES (1.00, 2); \
         INSERT INTO f VALUES (2, '-0')",
    );
    ahead(&pair, 2);
    drop(gate);
    for table in ["c", "n", "f"] {
        pair.assert_same(&format!("SELECT * FROM {table} ORDER BY id"));
    }
    assert_all_same_but_t(&pair, &control, 0);
}

#[test]
fn a_large_unique_value_that_stays_is_no_new_one() {
    let mut pair = pair("");
    for server in [&pair.source, &pair.target] {
        server.run("ALTER TABLE t ALTER u SET STORAGE EXTERNAL");
    }
    run(&pair, &["INSERT INTO t VALUES (1, repeat('x', 2500), 'a')"]);
    let control = pair.start();
    pair.catch_up();
    let gate = shut(&pair);
    blocked(&pair, "SELECT");
    large(&pair, 0, "UPDATE t SET e = 'b' WHERE id = 1");
    ahead(&pair, 1);
    large(
        &pair,
        1000,
        "DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (2, repeat('x', 2500), 'c')",
    );
    until(
        "that the value waits for the batch that changes its row",
        || writers(&pair, "wait_event_type = 'Lock'") == 2,
    );
    drop(gate);
    assert_all_same(&pair, &control, 1);
}

#[test]
fn triggers_that_always_act_see_what_came_before() {
    // Each row of t is logged with what the trigger sees.
    let log = "CREATE TABLE log (id int, gate int, fill int); \
        CREATE FUNCTION log() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
          INSERT INTO public.log VALUES (new.id, (SELECT n FROM public.gate), \
            (SELECT count(*) FROM public.filler)); \
          RETURN NULL; END $$; \
        CREATE TRIGGER log AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION log()";
    let mut pair = pair("");
    pair.target.run(log);
    let control = pair.start();
    run(&pair, &["INSERT INTO t VALUES (100)"]);
    pair.catch_up();
    // It is not known yet that it acts: the batch finds out when its turn comes.
    pair.target.run("ALTER TABLE t ENABLE ALWAYS TRIGGER log");
    for again in 0..2 {
        let gate = shut(&pair);
        blocked(&pair, "SELECT");
        large(
            &pair,
            2000 * again,
            &format!("INSERT INTO t VALUES ({again})"),
        );
        match again {
            0 => ahead(&pair, 1),
            _ => large(&pair, 9000, "SELECT"),
        }
        drop(gate);
        assert_all_same(&pair, &control, 1);
    }
    let expected = [["0", "1", "0"], ["1", "2", "600"]];
    let expected = expected.map(|row| row.map(|of| Some(of.to_owned())).to_vec());
    assert_eq!(
        rows(&pair.target, "SELECT * FROM log ORDER BY id"),
        expected
    );
}

#[test]
fn a_change_that_does_not_fit_stops_right_before_it_whatever_ran_ahead() {
    let mut pair = pair("");
    let control = pair.start();
    pair.target.run("INSERT INTO t VALUES (1, 'in the way')");
    let gate = shut(&pair);
    blocked(&pair, "SELECT");
    large(&pair, 0, "SELECT");
    ahead(&pair, 1);
    large(&pair, 1000, "INSERT INTO t VALUES (1, 'x')");
    until("that the third batch was refused", || {
        writers(&pair, "query = 'ROLLBACK' AND state = 'idle'") == 1
    });
    large(&pair, 2000, "SELECT");
    ahead(&pair, 2);
    drop(gate);
    let error = pair.blocked();
    assert_has!(
        error,
        "table \"public.t\" on the target refused a change of the transaction that",
        "Key (id)=(1) already exists"
    );
    assert_eq!(
        count(&pair, "SELECT count(*) FROM filler"),
        WORTH.to_string()
    );
    assert_eq!(count(&pair, "SELECT n FROM gate"), "1");
    pair.target.run("DELETE FROM t");
    control.resume();
    pair.assert_same("SELECT count(*), sum(id) FROM filler");
    pair.assert_same("SELECT * FROM t");
}

#[test]
fn batches_that_ran_ahead_are_gone_when_the_target_or_a_backend_ends() {
    let mut pair = pair("");
    let control = pair.start();
    for round in 0..4 {
        let gate = shut(&pair);
        blocked(&pair, &format!("INSERT INTO t VALUES ({round})"));
        let first = round * 10_000;
        for batch in 0..2 {
            large(
                &pair,
                first + batch * 1000,
                &format!("UPDATE t SET e = 'r{round}b{batch}'"),
            );
            ahead(&pair, batch as usize + 1);
        }
        let one = |condition: &str| {
            let condition = format!("application_name = '{NAME}' AND {condition} LIMIT 1");
            let kill =
                format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {condition}");
            assert_eq!(rows(&pair.target, &kill).len(), 1);
        };
        match round {
            0 => one("wait_event_type = 'Lock'"),
            1 => one("state = 'idle in transaction'"),
            2 => {
                drop(gate);
                pair.target.stop(Stop::Immediate).unwrap();
                pair.target.start().unwrap();
                assert_all_same(&pair, &control, 0);
                continue;
            }
            _ => one("state = 'active'"),
        }
        drop(gate);
        pair.assert_same("SELECT count(*), sum(id) FROM filler");
        assert_all_same(&pair, &control, 0);
    }
}

#[test]
fn a_row_that_is_not_there_is_looked_for_again_in_turn() {
    let mut pair = pair("");
    run(&pair, &["INSERT INTO t VALUES (1), (2)"]);
    let control = pair.start();
    pair.catch_up();
    pair.target.run("DELETE FROM t");
    let gate = shut(&pair);
    blocked(&pair, "SELECT");
    large(
        &pair,
        0,
        "UPDATE t SET e = 'x' WHERE id = 1; DELETE FROM t WHERE id = 2",
    );
    until("that the second batch has given up", || {
        writers(&pair, "query = 'ROLLBACK' AND state = 'idle'") == 1
    });
    pair.target.run("INSERT INTO t VALUES (1), (2)");
    drop(gate);
    assert_all_same(&pair, &control, 1);
}

#[test]
fn what_the_target_shows_is_always_a_state_of_the_source() {
    let mut pair = pair(
        "CREATE TABLE a (id serial PRIMARY KEY, n int); CREATE TABLE b (n int, x int); \
         CREATE FUNCTION step() RETURNS void LANGUAGE sql AS $$ \
           UPDATE gate SET n = n + 1; \
           INSERT INTO a (n) SELECT n FROM gate, generate_series(1, 5); \
           INSERT INTO b SELECT n, x FROM gate, generate_series(1, 5) AS x; \
           UPDATE a SET n = n + 1 WHERE id = 5 * (SELECT n FROM gate) $$",
    );
    // The least memory: the batches are small, and many.
    pair.memory = 1;
    let mut source = sql(&pair.source);
    let steps = 1500;
    for _ in 0..steps {
        source.execute("SELECT step()").unwrap();
    }
    let control = pair.start();
    let mut target = sql(&pair.target);
    let mut seen = 0;
    while seen < steps {
        let now = "SELECT n, (SELECT count(*) / 5 FROM a), (SELECT count(*) / 5 FROM b), \
                   (SELECT coalesce(sum(n), 0) FROM a), (SELECT coalesce(sum(n), 0) FROM b) FROM gate";
        let row = target.query_one(now).unwrap();
        let numbers: Vec<u32> = row
            .iter()
            .map(|of| of.as_ref().unwrap().parse().unwrap())
            .collect();
        let n = numbers[0];
        let sum = 5 * n * (n + 1) / 2;
        assert_eq!(numbers, [n, n, n, sum + n, sum]);
        assert!(n >= seen, "{n} after {seen}");
        seen = n;
    }
    let stats = control.stats();
    assert!(stats.batches > 20, "{stats:?}");
    pair.assert_same("SELECT count(*), sum(n) FROM a");
}

/// The positions of all origins, the highest first.
fn origins(pair: &Pair) -> Vec<(String, String)> {
    let found = rows(
        &pair.target,
        "SELECT external_id, remote_lsn FROM pg_replication_origin_status ORDER BY remote_lsn DESC",
    );
    let text = |of: &Option<String>| of.clone().unwrap_or_default();
    found
        .iter()
        .map(|row| (text(&row[0]), text(&row[1])))
        .collect()
}

#[test]
fn the_highest_origin_says_where_the_target_stands_however_many_writers_there_are() {
    let mut pair = pair("");
    let mut last = 0;
    for writers in [4, 2, 3, 1] {
        pair.writers = writers.into();
        pair.start();
        for _ in 0..5 {
            large(&pair, last * 1000, "UPDATE gate SET n = n + 1");
            last += 1;
        }
        pair.assert_same("SELECT n, (SELECT count(*) FROM filler) FROM gate");
        pair.stop();
        let names: Vec<_> = origins(&pair).into_iter().map(|(name, _)| name).collect();
        let all = rows(&pair.target, "SELECT count(*) FROM pg_replication_origin");
        assert_eq!(
            (all[0][0].as_deref(), names.len()),
            (Some(&*writers.to_string()), writers)
        );
    }
}

#[test]
fn a_commit_whose_answer_was_lost_is_waited_for() {
    let mut pair = pair("");
    pair.start();
    large(&pair, 0, "INSERT INTO t VALUES (1)");
    pair.catch_up();
    pair.stop();
    // What a writer that was killed has sent: the server has not ended it yet.
    let mut lost = sql(&pair.target);
    lost.execute("SELECT pg_replication_origin_create('replica_r1_7')")
        .unwrap();
    lost.execute(
        "SELECT pg_replication_origin_session_setup('replica_r1_7'); \
         BEGIN; UPDATE gate SET n = 1; INSERT INTO t VALUES (2)",
    )
    .unwrap();
    run(
        &pair,
        &["BEGIN; UPDATE gate SET n = n + 1; INSERT INTO t VALUES (2); COMMIT"],
    );
    let end = pair.source.flush_lsn().unwrap();
    let control = pair.start();
    until("that the replica finds the origin in use", || {
        control
            .stats()
            .error
            .is_some_and(|error| error.contains("replica_r1_7") || error.contains("already active"))
    });
    assert_eq!(control.stats().sessions, 0, "it has not begun");
    lost.execute(&format!(
        "INSERT INTO lockstep.apply_position VALUES ('{NAME}', '{end}'); \
         SELECT pg_replication_origin_xact_setup('{end}', now()); COMMIT"
    ))
    .unwrap();
    drop(lost);
    assert_all_same(&pair, &control, 0);
    run(&pair, &["UPDATE gate SET n = 7"]);
    assert_all_same(&pair, &control, 0);
}

#[test]
fn a_target_without_room_for_an_origin_of_each_writer_says_so() {
    let mut pair = pair("");
    let setting = match for_tests::major()
        .unwrap()
        .to_string()
        .parse::<u32>()
        .unwrap()
    {
        18.. => "max_active_replication_origins",
        _ => "max_replication_slots",
    };
    pair.target.set([(setting, "3")]).unwrap();
    pair.target.stop(Stop::Fast).unwrap();
    pair.target.start().unwrap();
    let settings = pair.settings();
    let mut open = || opened(&settings, &Starts::default());
    let error = apply::run(&settings, None, &Control::default(), &mut open);
    let error = error.unwrap_err().to_string();
    assert_has!(error, "4 writers", setting);
    pair.writers = 3.into();
    run(&pair, &["INSERT INTO t VALUES (1)"]);
    let control = pair.start();
    pair.assert_same("SELECT * FROM t");
    assert_eq!(control.stats().missing, 0);
}

/// A target that takes 1 ms for each row, with room for this many origins.
fn slow_pair(origins: u32) -> Pair {
    let table =
        "CREATE TABLE w (id int PRIMARY KEY, v text); CREATE TABLE one (id int PRIMARY KEY, n int)";
    let slow = "CREATE FUNCTION slow() RETURNS bool LANGUAGE sql AS                 $$SELECT pg_catalog.pg_sleep(0.001) IS NOT NULL$$";
    let checks = "ALTER TABLE w ADD CHECK (slow()); ALTER TABLE one ADD CHECK (slow())";
    let mut pair = Pair::apart(table, &format!("{slow}; {table}; {checks}"));
    let setting = match pair.target.query_text("SHOW server_version_num").unwrap() {
        Some(version) if &*version >= "180000" => "max_active_replication_origins",
        _ => "max_replication_slots",
    };
    pair.target.set([(setting, &*origins.to_string())]).unwrap();
    pair.target.stop(Stop::Fast).unwrap();
    pair.target.start().unwrap();
    pair.writers = apply::Writers::Auto;
    // Batches are small, so that there are many.
    pair.memory = apply::LEAST_MEMORY;
    pair
}

/// Many transactions, each of one row.
const BACKLOG: &str = "DO $$BEGIN FOR i IN 1..3000 LOOP     INSERT INTO w VALUES (i, repeat(md5(i::text), 30)); COMMIT; END LOOP; END$$";

#[test]
fn a_backlog_on_a_target_that_waits_gets_more_writers_and_the_same_rows() {
    let mut pair = slow_pair(10);
    run(&pair, &[BACKLOG]);
    let control = pair.start();
    let used = |stats: &apply::Stats| stats.writers.as_ref().map_or(0, |it| it.0);
    let more = control.wait_for(LONG, |stats| used(stats) > 1);
    assert!(more, "{:?}", control.stats());
    // Each with an origin of its own.
    assert!(origins(&pair).len() > 1);
    let backends = control.stats().backends;
    assert!(backends.len() > 2, "{backends:?}");
    pair.assert_same("SELECT count(*), md5(string_agg(w::text, ',' ORDER BY id)) FROM w");
    run(
        &pair,
        &["UPDATE w SET v = id", "DELETE FROM w WHERE id % 3 = 0"],
    );
    pair.assert_same("SELECT count(*), md5(string_agg(w::text, ',' ORDER BY id)) FROM w");
    assert_eq!(control.stats().missing, 0);
    // The next session begins with one, and the others' origins go.
    pair.stop();
    let _control = pair.start();
    pair.assert_same("SELECT count(*) FROM w");
    assert_eq!(origins(&pair).len(), 1);
}

#[test]
fn a_target_without_origins_to_spare_is_left_with_one_writer() {
    let mut pair = slow_pair(3);
    run(&pair, &[BACKLOG]);
    let control = pair.start();
    let tried = |stats: &apply::Stats| {
        let why = stats.writers.as_ref().map(|it| it.1.to_string());
        why.is_some_and(|why| {
            why.contains("no room for more") && why.contains("2 are left to others")
        })
    };
    assert!(control.wait_for(LONG, tried), "{:?}", control.stats());
    pair.assert_same("SELECT count(*), md5(string_agg(w::text, ',' ORDER BY id)) FROM w");
    assert_eq!(origins(&pair).len(), 1);
}
