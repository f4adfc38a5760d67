//! A random workload that moves rows in and out of row filters, with sessions killed at random moments.

use fastrand::Rng;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::number;
use lockstep_replica::lifecycle::create::create;

use crate::apply_random::transaction;
use crate::subsets::{compare, followed, lines, subsets};
use crate::{Told, options, server, sql};

const SCHEMA: &str = "
CREATE TABLE t (region int, id int, v text, large text, hidden text, PRIMARY KEY (region, id));
ALTER TABLE t ALTER large SET STORAGE EXTERNAL;
CREATE TABLE f (a int, b int, large text); ALTER TABLE f REPLICA IDENTITY FULL;
ALTER TABLE f ALTER large SET STORAGE EXTERNAL;
CREATE TABLE p (k int, side int, v text, PRIMARY KEY (k, side)) PARTITION BY RANGE (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (MINVALUE) TO (50);
CREATE TABLE p2 (v text, k int NOT NULL, side int NOT NULL);
ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (50) TO (MAXVALUE)";

/// What is replicated of each table.
const SAME: [(&str, &str); 3] = [
    (
        "SELECT region, id, v, large, NULL FROM t WHERE region = 1 OR id % 10 = 0",
        "SELECT region, id, v, large, hidden FROM t",
    ),
    ("SELECT * FROM f WHERE a < b", "SELECT * FROM f"),
    ("SELECT k, side, v FROM p WHERE side = 0", "SELECT * FROM p"),
];

fn statement(rng: &mut Rng) -> String {
    let (one, two, number) = (rng.u32(0..100), rng.u32(0..100), rng.u32(..));
    let (region, to) = (rng.u32(0..3), rng.u32(0..3));
    match rng.u32(0..20) {
        0..=3 => format!(
            "INSERT INTO t SELECT {region}, i, '{number}', repeat('l', i * 60), 'h' \
             FROM generate_series({one}, {one} + {two} % 9) i ON CONFLICT DO NOTHING"
        ),
        4..=6 => {
            format!("UPDATE t SET v = 'v{number}', hidden = 'x' WHERE id BETWEEN {one} AND {two}")
        }
        // One that may bring rows in brings their large values along.
        7..=9 => format!(
            "UPDATE t SET region = {to}, large = repeat('{to}', id * 60) WHERE region = {region} \
             AND id BETWEEN {one} AND {one} + 9 \
             AND id NOT IN (SELECT id FROM t WHERE region = {to})"
        ),
        // These take none in: the rest may stay as it is.
        10 => format!(
            "UPDATE t SET region = 2 WHERE region < 2 AND id BETWEEN {one} AND {one} + 9 \
             AND id % 10 <> 0 AND id NOT IN (SELECT id FROM t WHERE region = 2)"
        ),
        11 => format!("DELETE FROM t WHERE id BETWEEN {one} AND {one} + {two} % 5"),
        12 | 13 => format!(
            "INSERT INTO f SELECT {one} % 5, i, repeat('f', {two} * 60) FROM generate_series(1, 4) i"
        ),
        14 | 15 => format!(
            "UPDATE f SET a = {two} % 5 WHERE ctid IN (SELECT ctid FROM f WHERE a = {one} % 5 LIMIT 3)"
        ),
        16 => {
            format!("DELETE FROM f WHERE ctid IN (SELECT ctid FROM f WHERE b = {one} % 5 LIMIT 2)")
        }
        17 => format!(
            "INSERT INTO p SELECT i, {region} % 2, 'p' FROM generate_series({one}, {one} + 9) i \
             ON CONFLICT DO NOTHING"
        ),
        18 => format!(
            "UPDATE p SET k = {two}, side = {to} % 2 WHERE k = {one} AND side = {region} % 2 \
             AND NOT EXISTS (SELECT FROM p WHERE k = {two} AND side = {to} % 2)"
        ),
        _ if one < 5 => "TRUNCATE f".to_owned(),
        _ => format!("DELETE FROM p WHERE k = {one}; UPDATE p SET v = '{number}' WHERE k % 7 = 1"),
    }
}

#[test]
fn a_random_workload_moves_rows_in_and_out_of_filters() {
    let seed = number("SEED").unwrap_or(1);
    let mut rng = Rng::with_seed(seed);
    let lab = Lab::for_tests().unwrap();
    let (source, target) = (server(&lab, "source"), server(&lab, "target"));
    let mut writer = sql(&source);
    writer.execute(SCHEMA).unwrap();
    let mut change = |rng: &mut Rng, number: u32| {
        for _ in 0..number {
            transaction(rng, &mut writer, statement).unwrap();
        }
    };
    change(&mut rng, 60);
    let mut options = options(&source, &target);
    options.subsets = subsets(
        &[
            "public.t=region = 1 OR id % 10 = 0",
            "public.f=a < b",
            "public.p=side = 0",
        ],
        &["public.t=region,id,v,large"],
    );
    create(&options, &mut Told::default()).unwrap();
    for _ in 0..number("LOCKSTEP_REPLICA_ROUNDS").unwrap_or(3) {
        change(&mut rng, 40);
        let writers = rng.usize(1..5);
        followed(&source, &target, writers, |caught_up| {
            for _ in 0..4 {
                change(&mut rng, 30);
                let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                           WHERE application_name = 'r' AND backend_type = 'client backend'";
                let _ = sql(&target).execute(end);
            }
            caught_up();
            for (ours, theirs) in SAME {
                let (ours, theirs) = (lines(&source, ours), lines(&target, theirs));
                assert_eq!(ours, theirs, "seed {seed}");
            }
            assert!(compare(&target).is_equal(), "seed {seed}");
        });
    }
}
