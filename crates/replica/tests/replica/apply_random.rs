//! A random workload, with backends killed and servers restarted at random moments.

use std::sync::atomic::{AtomicBool, Ordering};

use fastrand::Rng;
use lockstep_client::{ClientError, Connection};
use lockstep_lab::for_tests::number;
use lockstep_lab::server::Stop;

use super::apply_lab::{Pair, sql};

pub const SCHEMA: &str = "CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE DEFERRABLE, v text, large text, \
      n numeric, a int[], ts timestamptz); \
    ALTER TABLE t ALTER large SET STORAGE EXTERNAL; \
    CREATE TABLE f (a int, b text); ALTER TABLE f REPLICA IDENTITY FULL; \
    CREATE TABLE p (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id); \
    CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (MINVALUE) TO (50); \
    CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (50) TO (MAXVALUE); \
    CREATE TABLE w (id text PRIMARY KEY, c int)";

pub fn statement(rng: &mut Rng) -> String {
    let (one, two, number) = (rng.u32(0..100), rng.u32(0..100), rng.u32(..));
    match rng.u32(0..24) {
        0..=3 => format!(
            "INSERT INTO t VALUES ({one}, {number} % 2000000000, '{number}', \
             CASE WHEN {one} % 2 = 0 THEN repeat('{number}', 500) END, {number} / 7.0, \
             ARRAY[{one}, NULL], now()) ON CONFLICT (id) DO NOTHING"
        ),
        4..=6 => format!("UPDATE t SET v = 'v{number}' WHERE id BETWEEN {one} AND {two}"),
        7 => format!("UPDATE t SET large = repeat('{number}', 400) WHERE id = {one}"),
        8 => format!("DELETE FROM t WHERE id BETWEEN {one} AND {one} + {two} % 5"),
        9 | 10 => format!(
            "UPDATE t SET id = {two} WHERE id = {one} AND NOT EXISTS (SELECT FROM t WHERE id = {two})"
        ),
        11 => format!(
            "UPDATE t SET u = (SELECT sum(u) FROM t WHERE id IN ({one}, {two})) - u \
             WHERE id IN ({one}, {two}) AND 2 = (SELECT count(*) FROM t WHERE id IN ({one}, {two}) \
             AND u < 1000000000)"
        ),
        12 | 13 => {
            format!("INSERT INTO f SELECT {one} % 5, 'b' FROM generate_series(1, {two} % 4)")
        }
        14 => format!(
            "DELETE FROM f WHERE ctid IN (SELECT ctid FROM f WHERE a = {one} % 5 LIMIT {two} % 3)"
        ),
        15 => format!(
            "UPDATE f SET b = b || '{one}', a = {two} % 5 WHERE ctid IN \
             (SELECT ctid FROM f WHERE a = {one} % 5 LIMIT 2)"
        ),
        16 | 17 => format!("INSERT INTO p VALUES ({one}, '{number}') ON CONFLICT DO NOTHING"),
        18 => format!(
            "UPDATE p SET id = {two}, v = 'm' WHERE id = {one} \
             AND NOT EXISTS (SELECT FROM p WHERE id = {two})"
        ),
        19 => format!("DELETE FROM p WHERE id = {one}"),
        20..=22 => {
            format!("INSERT INTO w VALUES ('{one}', 1) ON CONFLICT (id) DO UPDATE SET c = w.c + 1")
        }
        _ if one < 10 => "TRUNCATE w".to_owned(),
        _ if one < 15 => "TRUNCATE f, p".to_owned(),
        _ => format!(
            "INSERT INTO t SELECT i, i, 'many' FROM generate_series(200, 200 + {two}) i \
             ON CONFLICT (id) DO NOTHING"
        ),
    }
}

/// A transaction of some statements, of which some are rolled back. An error is none of the statements'.
pub fn transaction(
    rng: &mut Rng,
    source: &mut Connection,
    statement: impl Fn(&mut Rng) -> String,
) -> Result<(), ClientError> {
    source.execute("BEGIN")?;
    for _ in 0..rng.u32(1..8) {
        source.execute("SAVEPOINT a")?;
        let done = source.execute(&statement(rng));
        let failed = done.is_err();
        if let Err(error) = done {
            // Keys that exist, and partitions that a TRUNCATE of the other session has locked.
            let code = error.refusal().map(|report| report.sqlstate.clone());
            let code = code.unwrap_or_default();
            if !code.starts_with("23") && !code.starts_with("40") {
                return Err(error);
            }
        }
        if failed || rng.u32(0..6) == 0 {
            source.execute("ROLLBACK TO a")?;
        }
    }
    let end = if rng.u32(0..8) == 0 {
        "ROLLBACK"
    } else {
        "COMMIT"
    };
    source.execute(end)
}

/// Ends something that the replica needs.
pub fn disturb(rng: &mut Rng, pair: &mut Pair) {
    let who = match rng.u32(0..6) {
        0 => {
            pair.target.stop(Stop::Immediate).unwrap();
            return pair.target.start().unwrap();
        }
        1 | 2 => "SELECT pg_terminate_backend(pid) FROM pg_stat_replication",
        _ => "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'r1'",
    };
    let end = match who.contains("pg_stat_replication") {
        true => &pair.source,
        false => &pair.target,
    };
    let _ = end.execute(who);
}

fn round(seed: u64, rounds: u32, writers: usize) {
    let mut rng = Rng::with_seed(seed);
    let mut pair = Pair::new(SCHEMA);
    pair.memory = 1024 * 1024;
    pair.writers = writers.into();
    let control = pair.start();
    let mut compared = [0; 4];
    for _ in 0..rounds {
        let done = AtomicBool::new(false);
        let mut writer = sql(&pair.source);
        let mut own = Rng::with_seed(rng.u64(..));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..120 {
                    transaction(&mut own, &mut writer, statement).unwrap();
                }
                done.store(true, Ordering::SeqCst);
            });
            while !done.load(Ordering::SeqCst) {
                std::thread::sleep(std::time::Duration::from_millis(rng.u64(1..300)));
                disturb(&mut rng, &mut pair);
            }
        });
        eprintln!("seed {seed}: {:?}", control.stats());
        for (table, most) in ["t", "f", "p", "w"].into_iter().zip(&mut compared) {
            pair.catch_up();
            let query = format!("SELECT x::text FROM {table} x ORDER BY x::text COLLATE \"C\"");
            let of = |server| super::apply_lab::rows(server, &query);
            let (theirs, ours) = (of(&pair.source), of(&pair.target));
            assert_eq!(theirs, ours, "seed {seed}, table {table}");
            *most = ours.len().max(*most);
        }
        assert_eq!(control.stats().missing, 0, "seed {seed}");
    }
    assert!(compared.iter().all(|rows| *rows > 0), "{compared:?}");
    pair.stop();
}

fn random(writers: usize) {
    let seed = number("SEED").unwrap_or(1);
    let rounds = number("LOCKSTEP_REPLICA_ROUNDS").unwrap_or(3);
    round(seed, rounds, writers);
}

#[test]
#[ignore = "long: make test-bed"]
fn a_random_workload_arrives_whatever_is_killed() {
    random(1);
}

#[test]
fn a_random_workload_arrives_with_four_writers() {
    random(4);
}
