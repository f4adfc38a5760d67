//! Keys that are equal and not the same, and databases that sort in different ways.

use fastrand::Rng;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::{major, number, source_major};
use lockstep_replica::lifecycle::create::create;

use crate::apply_random::transaction;
use crate::subsets::{compare, followed, lines};
use crate::{Told, options, primary, server, sql};

/// Keys that have no regard to case, by a collation and by a type; one that is padded; one that the two
/// databases sort in different ways; rows that are identified by all their values.
const SCHEMA: &str = "
CREATE EXTENSION citext;
CREATE COLLATION anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE a (id text COLLATE anycase PRIMARY KEY, v int);
CREATE TABLE b (id citext PRIMARY KEY, v int);
CREATE TABLE c (id char(6) PRIMARY KEY, v int);
CREATE TABLE d (id text PRIMARY KEY, v int);
CREATE TABLE e (x text COLLATE anycase, y varchar(9), v int, PRIMARY KEY (x, y));
CREATE TABLE f (id text COLLATE anycase, v int); ALTER TABLE f REPLICA IDENTITY FULL;
CREATE TABLE g (id citext, c char(6), v int); ALTER TABLE g REPLICA IDENTITY FULL;
CREATE TABLE u (id int PRIMARY KEY, v text COLLATE anycase UNIQUE);
CREATE TABLE p (id text COLLATE anycase PRIMARY KEY, v int) PARTITION BY HASH (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE p2 PARTITION OF p FOR VALUES WITH (MODULUS 2, REMAINDER 1)";

const TABLES: [&str; 9] = ["a", "b", "c", "d", "e", "f", "g", "u", "p"];

/// Words of which several are equal without regard to case, or to spaces at the end.
const WORDS: [&str; 14] = [
    "ab", "AB", "Ab", "ab ", "b", "B", "ä", "Ä", "a-b", "z", "Z", "_", "ss", "ß",
];

fn statement(rng: &mut Rng) -> String {
    let (one, two) = (rng.choice(WORDS).unwrap(), rng.choice(WORDS).unwrap());
    let (number, id) = (rng.u32(0..1000), rng.u32(0..9));
    let table = rng.choice(TABLES).unwrap();
    let key = if table == "e" { "x" } else { "id" };
    match (table, rng.u32(0..10)) {
        ("e", 0..=4) => format!("INSERT INTO e VALUES ('{one}', '{two}', {number})"),
        ("g", 0..=4) => format!("INSERT INTO g VALUES ('{one}', '{two}', {id})"),
        ("f", 0..=4) => format!("INSERT INTO f VALUES ('{one}', {id} % 2)"),
        ("u", 0..=4) => format!("INSERT INTO u VALUES ({id}, '{one}')"),
        ("u", 5 | 6) => format!("UPDATE u SET v = '{two}' WHERE id = {id}"),
        ("u", 7) => format!("UPDATE u SET id = {number} WHERE id = {id}"),
        ("u", _) => format!("DELETE FROM u WHERE v = '{one}'"),
        (_, 0..=4) => format!("INSERT INTO {table} VALUES ('{one}', {number})"),
        ("f" | "g", 5) => format!(
            "DELETE FROM {table} WHERE ctid IN (SELECT ctid FROM {table} WHERE id = '{one}' LIMIT 1)"
        ),
        ("f" | "g", 6) => format!(
            "UPDATE {table} SET id = '{two}' WHERE ctid IN \
             (SELECT ctid FROM {table} WHERE id = '{one}' LIMIT 1)"
        ),
        (_, 5) => format!("UPDATE {table} SET v = {number} WHERE {key} = '{one}'"),
        (_, 6) => format!("UPDATE {table} SET {key} = '{two}' WHERE {key} = '{one}'"),
        (_, 7) => format!("UPDATE {table} SET {key} = upper({key}::text) WHERE {key} = '{one}'"),
        (_, 8) => format!("DELETE FROM {table} WHERE {key} = '{one}'"),
        _ => format!("DELETE FROM {table} WHERE {key} > '{one}' AND v < 500"),
    }
}

#[test]
fn keys_that_are_equal_and_not_the_same_arrive_as_they_are() {
    let seed = number("SEED").unwrap_or(1);
    let mut rng = Rng::with_seed(seed);
    let lab = Lab::for_tests().unwrap();
    let (source, target) = (server(&lab, "source"), primary(&lab, "target"));
    // Upper case before lower case there, and not here.
    target
        .execute(
            "CREATE DATABASE copy TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER icu \
             ICU_LOCALE 'und' LC_COLLATE 'C' LC_CTYPE 'C'",
        )
        .unwrap();
    let mut session = sql(&source);
    // Servers with different releases of ICU hash such keys in different ways, so a partition's rows are not
    // those of the same partition there.
    let schema = match source_major().unwrap() == major().unwrap() {
        true => SCHEMA,
        false => SCHEMA.split_once(" PARTITION BY").unwrap().0,
    };
    session.execute(schema).unwrap();
    let mut change = |rng: &mut Rng, number: u32| {
        for _ in 0..number {
            transaction(rng, &mut session, statement).unwrap();
        }
    };
    change(&mut rng, 60);
    create(&options(&source, &target), &mut Told::default()).unwrap();
    for round in 0..number("LOCKSTEP_REPLICA_ROUNDS").unwrap_or(3) {
        // Most arrive at once, so that they are applied in sets.
        change(&mut rng, 100);
        let writers = [1, 4, 2][round as usize % 3];
        followed(&source, &target, writers, |caught_up| {
            for _ in 0..3 {
                change(&mut rng, 40);
            }
            caught_up();
            for table in TABLES {
                let query = format!("SELECT * FROM {table}");
                let (theirs, ours) = (lines(&source, &query), lines(&target, &query));
                assert_eq!(theirs, ours, "seed {seed}, table {table}");
            }
            let report = compare(&target);
            assert!(report.is_equal(), "seed {seed}: {report:?}");
        });
    }
}
