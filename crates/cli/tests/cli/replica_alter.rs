//! `lockstep replica alter` as a user gives it: other tables, and another part of some.

use std::process::Output;

use lockstep_lab::assert_has;

use crate::replica::{create_args, in_app, on, output, pair, said, value};
use crate::replica_switchover::follows;

/// Rows of a table with their number and their sum.
const ROWS: &str = "SELECT count(*) || ' ' || coalesce(sum(id), 0) FROM ";

#[test]
fn only_what_is_wanted_otherwise_is_copied_again() {
    let (lab, source, target) = pair(
        "CREATE TABLE stays (id int PRIMARY KEY); INSERT INTO stays SELECT generate_series(1, 10);
         CREATE TABLE parted (id int PRIMARY KEY, v text, w text);
         INSERT INTO parted SELECT n, 'v', 'w' FROM generate_series(1, 10) n;
         CREATE TABLE refers (id int PRIMARY KEY REFERENCES parted); INSERT INTO refers VALUES (2), (4);
         CREATE TABLE leaves (id int PRIMARY KEY); INSERT INTO leaves VALUES (1);
         CREATE SCHEMA busy; CREATE TABLE busy.joins (id int PRIMARY KEY); INSERT INTO busy.joins VALUES (5)",
    );
    let (from, to) = (in_app(&source), in_app(&target));
    let mut args = create_args(&from, &to);
    args.extend(["--exclude-schema", "busy"]);
    assert!(output(&args).status.success());
    let alter = |more: &[&str]| output(&[&["alter", "r", "--target", &to][..], more].concat());
    let refused = |found: &Output, words: &str| {
        assert!(!found.status.success(), "{words}: {}", said(found));
        assert_has!(said(found), words);
    };
    let copied = "SELECT string_agg(table_name || start_lsn, ' ' ORDER BY table_name) \
        FROM lockstep.table_copy WHERE table_name = 'stays'";
    let before = value(&target, copied);

    refused(&alter(&[]), "required");
    let running = follows(&lab, "r", &to, &target);
    refused(
        &alter(&["--exclude-table", "public.leaves"]),
        "another lockstep works on",
    );
    drop(running);
    // What the source or the target refuses changes nothing.
    refused(
        &alter(&["--where", "public.parted=v = 'x'"]),
        "outside of its replica identity",
    );
    refused(&alter(&["--where", "public.parted=nothing > 1"]), "nothing");
    let joins = ["--include-schema", "busy"];
    refused(
        &alter(&joins),
        "the target lacks tables that are to be copied",
    );
    on(
        &target,
        "CREATE SCHEMA busy; CREATE TABLE busy.joins (id int PRIMARY KEY); INSERT INTO busy.joins VALUES (7)",
    );
    refused(&alter(&joins), "have rows on the target");
    on(
        &target,
        "TRUNCATE busy.joins; CREATE VIEW sees AS SELECT * FROM leaves",
    );
    let leaves = ["--exclude-table", "public.leaves", "--drop-tables"];
    refused(&alter(&leaves), "other objects depend on it");
    let state = "SELECT phase || ' ' || altering || ' ' || array_to_string(exclude_tables, ' ') \
        FROM lockstep.replica";
    assert_eq!(value(&target, state), "ready false ");
    refused(&alter(&["--include-table", "public.nosuch"]), "no table");
    refused(&alter(&["--include-schema", "nosuch"]), "no schema");
    refused(&alter(&["--whole", "public.nosuch"]), "no table");
    refused(
        &alter(&["--exclude-table", "public.nosuch"]),
        "no such table",
    );
    refused(
        &alter(&["--include-table", "busy.joins"]),
        "its schema is left out",
    );
    let nothing = alter(&["--include-table", "public.stays"]);
    assert_has!(said(&nothing), "no table is copied or left");

    on(&target, "DROP VIEW sees");
    on(
        &source,
        "INSERT INTO stays VALUES (11); INSERT INTO leaves VALUES (2); DELETE FROM parted WHERE id = 1",
    );
    let part = [
        "--where",
        "public.parted=id > 3",
        "--columns",
        "public.parted=id,v",
    ];
    let dangling = alter(&[&joins[..], &leaves, &part].concat());
    refused(&dangling, "refers");
    on(&source, "DELETE FROM refers WHERE id = 2");
    let done = alter(&[&joins[..], &leaves, &part].concat());
    assert!(done.status.success(), "{}", said(&done));
    assert_has!(
        said(&done),
        "table \"busy.joins\" joins",
        "table \"public.parted\" is copied anew",
        "table \"public.leaves\" is replicated no longer, and dropped on the target",
        "8 rows of 2 tables copied",
    );
    let gone = "SELECT to_regclass('public.leaves') IS NULL";
    assert_eq!(value(&target, gone), "t");
    let running = follows(&lab, "r", &to, &target);
    on(
        &source,
        "INSERT INTO parted VALUES (12, 'v', 'w'), (0, 'v', 'w'); INSERT INTO busy.joins VALUES (6)",
    );
    let equal = output(&["verify", "r", "--target", &to]);
    assert!(equal.status.success(), "{}", said(&equal));
    for (table, rows) in [
        ("stays", "11 66"),
        ("parted", "8 61"),
        ("busy.joins", "2 11"),
        ("refers", "1 4"),
    ] {
        assert_eq!(value(&target, &format!("{ROWS}{table}")), rows, "{table}");
    }
    assert_eq!(value(&target, "SELECT count(w) FROM parted"), "0");
    assert_eq!(value(&target, copied), before, "it was not copied again");
    drop(running);

    let done = alter(&["--whole", "public.parted"]);
    assert_has!(said(&done), "table \"public.parted\" is copied anew");
    assert_eq!(value(&target, "SELECT count(w) FROM parted"), "11");
}

/// What has another name than when it was copied, and what came later, is the replica's as before.
#[test]
fn tables_that_were_renamed_or_made_later_stay_as_they_are() {
    let (lab, source, target) = pair(
        "CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1);
         CREATE TABLE old (id int PRIMARY KEY); INSERT INTO old VALUES (1);
         CREATE TABLE leaves (id int PRIMARY KEY); INSERT INTO leaves VALUES (1);
         CREATE TABLE again (id int PRIMARY KEY); INSERT INTO again VALUES (1);
         CREATE SCHEMA s; CREATE TABLE s.moves (id int PRIMARY KEY);
         CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);
         CREATE TABLE part1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
         INSERT INTO parts SELECT generate_series(0, 9);
         CREATE TABLE empty (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    );
    let (from, to) = (in_app(&source), in_app(&target));
    assert!(output(&create_args(&from, &to)).status.success());
    let alter = |more: &[&str]| output(&[&["alter", "r", "--target", &to][..], more].concat());
    let verify = || output(&["verify", "r", "--target", &to]);
    let later = "CREATE TABLE part2 PARTITION OF parts FOR VALUES FROM (10) TO (20);
        CREATE TABLE empty1 PARTITION OF empty FOR VALUES FROM (0) TO (10);
        ALTER TABLE old RENAME TO young; ALTER SCHEMA s RENAME TO t;
        ALTER TABLE leaves RENAME TO left_it; CREATE TABLE leaves (id int PRIMARY KEY);
        DROP TABLE again; CREATE TABLE again (id int PRIMARY KEY)";
    on(&target, &format!("{later}; INSERT INTO leaves VALUES (7)"));
    on(&source, later);
    let rows = |n: u32| {
        let parts = n + 10;
        format!(
            "INSERT INTO young VALUES ({n}); INSERT INTO t.moves VALUES ({n}); INSERT INTO parts VALUES ({parts}); \
             INSERT INTO empty VALUES ({n}); INSERT INTO again VALUES ({n})"
        )
    };
    let running = follows(&lab, "r", &to, &target);
    on(&source, &rows(2));
    let compared = verify();
    assert_has!(said(&compared), "again");
    drop(running);

    // The table that was copied is dropped, not the one that has its name now.
    let done = alter(&["--exclude-table", "public.left_it", "--drop-tables"]);
    assert!(done.status.success(), "{}", said(&done));
    let there = "SELECT to_regclass('left_it') IS NULL AND (SELECT sum(id) = 7 FROM leaves)";
    assert_eq!(value(&target, there), "t");
    // A table that was made anew on both sides joins under its old name, with its rows from before.
    let joined = alter(&["--include-table", "public.again"]);
    assert_has!(said(&joined), "table \"public.again\" joins");
    let running = follows(&lab, "r", &to, &target);
    on(&source, &rows(3));
    let leaves = output(&["verify", "r", "--target", &to, "--output", "json"]);
    let waited = "SELECT sum(id) FROM again";
    assert_eq!(value(&target, waited), "5", "{}", said(&leaves));
    for (table, sum) in [("young", "6"), ("t.moves", "5"), ("empty", "5")] {
        let query = format!("SELECT sum(id) FROM {table}");
        assert_eq!(value(&target, &query), sum, "{table} {}", said(&leaves));
    }
    drop(running);

    // A partition that was made later is a part of what is copied anew.
    let done = alter(&["--where", "public.parts=id <> 12"]);
    assert_has!(
        said(&done),
        "table \"public.part1\" is copied anew",
        "table \"public.part2\" is copied anew",
    );
    let sum = "SELECT count(*) || ' ' || sum(id) FROM parts";
    assert_eq!(value(&target, sum), "11 58");
    let done = alter(&["--whole", "public.parts"]);
    assert!(done.status.success(), "{}", said(&done));
    let running = follows(&lab, "r", &to, &target);
    on(&source, &rows(4));
    let compared = verify();
    assert_eq!(value(&target, sum), "13 84", "{}", said(&compared));
    drop(running);

    // What somebody has taken out of the publication would not be missed any more afterwards.
    let publication = value(&target, "SELECT publication FROM lockstep.replica");
    on(
        &source,
        &format!("ALTER PUBLICATION {publication} DROP TABLE a"),
    );
    let refused = alter(&["--exclude-table", "public.young"]);
    assert_has!(said(&refused), "is not as the replica made it");
    assert!(!refused.status.success());
}
