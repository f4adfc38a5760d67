//! `lockstep replica alter` as a user gives it: other tables, and another part of some.

use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use lockstep_lab::assert_has;

use crate::replica::{
    Running, create_args, in_app, lockstep, on, output, pair, said, until, value,
};
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

/// What the publication has: OIDs, the columns' numbers, and filters by the names that columns have now.
const PUBLISHED: &str = "SELECT string_agg(concat_ws(' ', prrelid, prattrs, \
    pg_get_expr(prqual, prrelid)), '; ' ORDER BY prrelid) FROM pg_publication_rel";

/// Names, partitions and the session's settings may be others than when a filter or a list was given.
#[test]
fn what_stays_keeps_its_filter_and_its_columns() {
    let (lab, source, target) = pair(
        "CREATE TABLE cust (id int, region int, PRIMARY KEY (id, region));
         INSERT INTO cust SELECT n, n % 3 FROM generate_series(1, 9) n;
         CREATE TABLE a (id int, region int, PRIMARY KEY (id, region)); CREATE TABLE c (LIKE a INCLUDING ALL);
         INSERT INTO a SELECT n, n % 3 FROM generate_series(1, 9) n; INSERT INTO c SELECT * FROM a;
         CREATE TABLE staff (id int PRIMARY KEY, name text, salary text); INSERT INTO staff VALUES (1, 'n', 's');
         CREATE TABLE o (id int, region int, PRIMARY KEY (id, region)) PARTITION BY RANGE (id);
         CREATE TABLE o1 PARTITION OF o FOR VALUES FROM (0) TO (10);
         CREATE TABLE o2 PARTITION OF o FOR VALUES FROM (10) TO (20);
         INSERT INTO o SELECT n, n % 3 FROM generate_series(0, 19) n;
         CREATE TABLE o3 (id int, region int, PRIMARY KEY (id, region)); INSERT INTO o3 VALUES (20, 1), (21, 2);
         CREATE TABLE at (id int, at timestamptz, PRIMARY KEY (id, at));
         INSERT INTO at SELECT n, '2026-01-02 00:00+00'::timestamptz + n * interval '1 h'
             FROM generate_series(0, 23) n;
         CREATE TABLE leaves (id int PRIMARY KEY)",
    );
    let (from, to) = (in_app(&source), in_app(&target));
    on(&source, "ALTER DATABASE app SET TimeZone = 'UTC'");
    let mut args = create_args(&from, &to);
    for filter in [
        "public.cust=region=1",
        "public.a=region=1",
        "public.o=region=1",
        "public.at=at >= '2026-01-02 12:00'",
    ] {
        args.extend(["--where", filter]);
    }
    args.extend(["--columns", "public.staff=id,name"]);
    let created = output(&args);
    assert!(created.status.success(), "{}", said(&created));
    let renamed = "ALTER TABLE cust RENAME region TO area; ALTER TABLE cust RENAME TO customers;
        ALTER TABLE a RENAME TO b; ALTER TABLE c RENAME TO a; ALTER TABLE b RENAME TO c;
        ALTER TABLE staff RENAME name TO tmp; ALTER TABLE staff RENAME salary TO name;
        ALTER TABLE staff RENAME tmp TO salary;
        ALTER TABLE o DETACH PARTITION o1; ALTER TABLE o ATTACH PARTITION o3 FOR VALUES FROM (20) TO (30);
        ALTER TABLE o RENAME TO orders; CREATE TABLE o (id int PRIMARY KEY)";
    on(&source, renamed);
    on(&target, renamed);
    on(
        &source,
        "ALTER DATABASE app SET TimeZone = 'Asia/Tokyo'; ALTER DATABASE app SET DateStyle = 'SQL, DMY'",
    );
    let alter = |more: &[&str]| output(&[&["alter", "r", "--target", &to][..], more].concat());
    let left = value(&source, "SELECT 'leaves'::regclass::oid");
    let kept = |published: &str| {
        let entries = published.split("; ").filter(|it| **it != left);
        entries.map(str::to_owned).collect::<Vec<_>>()
    };
    let before = kept(&value(&source, PUBLISHED));
    let done = alter(&["--exclude-table", "public.leaves"]);
    assert!(done.status.success(), "{}", said(&done));
    let after = value(&source, PUBLISHED);
    assert_eq!(kept(&after), before);
    assert_eq!(before.len(), after.split("; ").count(), "{after}");
    let shown = output(&["status", "r", "--target", &to]);
    assert_has!(
        said(&shown),
        "public.customers: rows WHERE (area = 1)",
        "public.c: rows WHERE (region = 1)",
        "public.staff: columns id, salary",
        "public.orders: rows WHERE (region = 1)",
        "public.o1: rows WHERE (region = 1)",
        "public.o3: all rows and columns",
        "2026-01-02 12:00:00+00",
    );
    assert!(!said(&shown).contains("public.a: rows"), "{}", said(&shown));
    for same in ["public.customers=area=1", "public.c=region = 1"] {
        let done = alter(&["--where", same]);
        assert_has!(said(&done), "no table is copied or left");
    }

    // A table that joins has nothing of the one that had its name.
    let again = "CREATE TABLE cust (id int PRIMARY KEY, region int)";
    on(&target, again);
    on(
        &source,
        &format!("{again}; INSERT INTO cust VALUES (1, 1), (2, 2)"),
    );
    let joins = ["--include-table", "public.cust"];
    let done = alter(&[&joins[..], &["--include-table", "public.o"]].concat());
    assert_has!(said(&done), "2 rows of 2 tables copied");
    // Its name is free once both sides have renamed it, and then another part of it can be had.
    let renamed = format!("ALTER TABLE cust RENAME TO others; {again}");
    on(&source, &renamed);
    assert_has!(said(&alter(&joins)), "cannot join under this name");
    let part = ["--where", "public.others=id < 9"];
    assert_has!(said(&alter(&part)), "and not so on the target");
    on(&target, &renamed);
    let done = alter(&[joins, part].concat());
    assert_has!(
        said(&done),
        "table \"public.cust\" joins",
        "table \"public.others\" is copied anew",
        "2 rows of 2 tables copied",
    );
    let entries = kept(&value(&source, PUBLISHED));
    assert!(before.iter().all(|it| entries.contains(it)), "{entries:?}");
    let running = follows(&lab, "r", &to, &target);
    on(
        &source,
        "INSERT INTO customers VALUES (30, 1), (31, 2); INSERT INTO c VALUES (30, 1), (31, 2);
         INSERT INTO a VALUES (30, 1), (31, 2); INSERT INTO others VALUES (3, 3);
         INSERT INTO at VALUES (30, '2026-01-02 06:00+00'), (31, '2026-01-02 18:00+00')",
    );
    let equal = output(&["verify", "r", "--target", &to]);
    assert!(equal.status.success(), "{}", said(&equal));
    drop(running);
    for (table, rows) in [
        ("customers", "4 42"),
        ("c", "4 42"),
        ("a", "11 106"),
        ("others", "3 6"),
        ("at", "13 241"),
    ] {
        assert_eq!(value(&target, &format!("{ROWS}{table}")), rows, "{table}");
    }
}

/// What an earlier call has begun ends with that call's filter, whatever the settings are by then.
#[test]
fn an_alteration_goes_on_with_the_filter_that_it_began_with() {
    let (_lab, source, target) = pair(
        "CREATE TABLE at (id int, at timestamptz, PRIMARY KEY (id, at));
         INSERT INTO at SELECT n, '2026-01-02 00:00+00'::timestamptz + n * interval '1 h'
             FROM generate_series(0, 23) n",
    );
    let (from, to) = (in_app(&source), in_app(&target));
    on(&source, "ALTER DATABASE app SET TimeZone = 'UTC'");
    assert!(output(&create_args(&from, &to)).status.success());
    on(
        &target,
        "ALTER TABLE at ADD CONSTRAINT small CHECK (id < 20) NOT VALID",
    );
    let alter = |more: &[&str]| output(&[&["alter", "r", "--target", &to][..], more].concat());
    let wish = ["--where", "public.at=at >= '2026-01-02 13:00'"];
    let begun = alter(&wish);
    assert_has!(said(&begun), "--go-on");
    on(
        &source,
        "ALTER DATABASE app SET TimeZone = 'Asia/Tokyo'; ALTER DATABASE app SET DateStyle = 'SQL, DMY'",
    );
    on(&target, "ALTER TABLE at DROP CONSTRAINT small");
    let other = alter(&wish);
    assert_has!(said(&other), "is being altered in another way");
    let done = alter(&["--go-on"]);
    assert_has!(said(&done), "11 rows of 1 table copied");
    assert_eq!(value(&target, &format!("{ROWS}at")), "11 198");
}

/// At the first rate the rows would take a quarter of an hour.
#[test]
fn a_bandwidth_holds_for_what_follows_and_a_process_that_applies_takes_up_another() {
    for spooled in [false, true] {
        let (lab, source, target) = pair("CREATE TABLE t (id int PRIMARY KEY, v text)");
        let (from, to) = (in_app(&source), in_app(&target));
        let mut args = create_args(&from, &to);
        args.extend(["--bandwidth", "1kB"]);
        let created = output(&args);
        assert!(created.status.success(), "{}", said(&created));
        let mut command = lockstep(&["run", "r", "--target", &to]);
        if spooled {
            command.arg("--spool-dir").arg(lab.folder().join("spool"));
            command.args(["--spool-limit", "1GB"]);
        }
        let mut process = Running(command.stderr(Stdio::null()).spawn().unwrap());
        let state = "SELECT coalesce(apply_state, '') FROM lockstep.replica";
        until(&target, state, "applying", &mut process.0);
        let rows = "INSERT INTO t SELECT n, repeat('x', 1000) FROM generate_series(1, 1000) n";
        on(&source, rows);
        let began = Instant::now();
        let alter =
            |bandwidth: &str| output(&["alter", "r", "--target", &to, "--bandwidth", bandwidth]);
        let altered = alter("500kB");
        assert!(altered.status.success(), "{}", said(&altered));
        assert_has!(said(&altered), "replica r moves at most 500 kB/s");
        until(&target, "SELECT count(*) FROM t", "1000", &mut process.0);
        let took = began.elapsed();
        assert!(took > Duration::from_millis(1500), "{took:?}");
        assert_has!(said(&alter("0")), "replica r has no limit of bandwidth");
        let kept = "SELECT bandwidth FROM lockstep.replica";
        assert_eq!(value(&target, kept), "0");
    }
}
