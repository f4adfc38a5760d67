//! A publication that somebody altered on the source, and a slot that the source has given up: what
//! `lockstep replica run`, `status` and `verify` make of them.

use std::process::Output;
use std::time::{Duration, Instant};

use lockstep_lab::assert_has;

use serde_json::Value;

use crate::replica::{Followed, on, output, sql, text, value};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(120);

fn publication(followed: &Followed) -> String {
    value(&followed.source, "SELECT pubname FROM pg_publication")
}

fn status(followed: &Followed) -> Value {
    let shown = output(&["status", "r", "--target", &followed.to, "--output", "json"]);
    assert!(shown.status.success(), "{shown:?}");
    let mut shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    shown["replicas"][0].take()
}

/// What `status` says of the publication, if something.
fn altered(followed: &Followed) -> Option<String> {
    status(followed)["publication_altered"]
        .as_str()
        .map(str::to_owned)
}

fn verify(followed: &Followed) -> Output {
    output(&["verify", "r", "--target", &followed.to])
}

/// Waits until `replica run` has ended, and returns its exit code.
fn ended(followed: &mut Followed) -> Option<i32> {
    let started = Instant::now();
    loop {
        if let Some(status) = followed.running.0.try_wait().unwrap() {
            return status.code();
        }
        assert!(started.elapsed() < LONG, "it goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_altered_publication_ends_run_and_is_no_equality() {
    let table =
        "CREATE TABLE t (id int PRIMARY KEY, v text, n int); INSERT INTO t VALUES (1, 'a', 1)";
    let mut followed = Followed::with(table);
    followed.status_until(&[], |status| status["lag_bytes"] == 0);
    let publication = publication(&followed);
    assert_eq!(altered(&followed), None);
    let alter = format!(
        "BEGIN; ALTER PUBLICATION {publication} DROP TABLE t; ALTER PUBLICATION {publication} ADD TABLE t \
         (id, n); COMMIT; UPDATE t SET v = 'b', n = 2"
    );
    on(&followed.source, &alter);
    let difference = "table \"public.t\": it sends columns id, n, not all columns";
    for words in [
        altered(&followed),
        status(&followed)["error"].as_str().map(str::to_owned),
    ] {
        let words = words.unwrap();
        assert!(
            words.contains(&publication) && words.contains(difference),
            "{words}"
        );
        assert_has!(words, "compare with lockstep replica verify");
    }
    let shown = output(&["status", "r", "--target", &followed.to]);
    let shown = text(&shown.stdout);
    let shown: Vec<_> = shown.split_whitespace().collect();
    assert!(shown.join(" ").contains(difference), "{shown:?}");
    // Its rows may be equal as far as they are sent, or `run` may have ended by now.
    let compared = verify(&followed);
    assert_eq!(compared.status.code(), Some(5), "{compared:?}");
    let printed = text(&compared.stdout);
    assert!(
        printed.contains(difference) && !printed.contains("are equal"),
        "{printed}"
    );

    assert_eq!(ended(&mut followed), Some(1));
    let log = std::fs::read_to_string(&followed.log).unwrap();
    assert_has!(log, "is not as the replica made it", difference);
    // The next one does not begin.
    let again = output(&["run", "r", "--target", &followed.to]);
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    assert!(text(&again.stderr).contains(difference), "{again:?}");
    let json = output(&["verify", "r", "--target", &followed.to, "--output", "json"]);
    assert_eq!(json.status.code(), Some(5), "{json:?}");
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["equal"], false, "{json}");
    assert_has!(json["publication"].as_str().unwrap(), difference);

    altered_back(&mut followed, &publication);
}

/// Altered back, it goes on, and what is lost shows.
fn altered_back(followed: &mut Followed, publication: &str) {
    let back = format!(
        "BEGIN; ALTER PUBLICATION {publication} DROP TABLE t; ALTER PUBLICATION {publication} ADD TABLE \
         ONLY t; COMMIT"
    );
    on(&followed.source, &back);
    assert_eq!(altered(followed), None);
    followed.running = Followed::run(&followed.to, &followed.log, "1");
    followed.status_until(&[], |status| status["lag_bytes"] == 0);
    let compared = verify(followed);
    assert_eq!(compared.status.code(), Some(5), "{compared:?}");
    let printed = text(&compared.stdout);
    assert_has!(printed, "public.t (id) = (1): its values differ");
    let mend = "SET session_replication_role = replica; UPDATE t SET v = 'b'";
    on(&followed.target, mend);
    let compared = verify(followed);
    assert_eq!(compared.status.code(), Some(0), "{compared:?}");
}

/// Tables with and without parts, and what is done to the publication: `SQL => words => SQL that undoes it`.
const TABLES: &str = "CREATE TABLE t (id int PRIMARY KEY, v text, n int);
    CREATE TABLE part (id int PRIMARY KEY, v text, hidden text);
    CREATE TABLE p (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
    CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
    CREATE TABLE w (k int PRIMARY KEY) PARTITION BY RANGE (k);
    CREATE TABLE w1 PARTITION OF w FOR VALUES FROM (0) TO (10)";

const ALTERED: [(&str, &str, &str); 12] = [
    (
        "SET (publish = 'insert')",
        "it does not send UPDATE, DELETE, TRUNCATE",
        "SET (publish = \
      'insert, update, delete, truncate')",
    ),
    (
        "SET (publish_via_partition_root)",
        "publish_via_partition_root",
        "SET \
      (publish_via_partition_root = false)",
    ),
    (
        "DROP TABLE a",
        "it does not have table \"public.a\" any more",
        "ADD TABLE ONLY a",
    ),
    (
        "DROP TABLE ONLY w",
        "it does not have partitioned table \"public.w\" any more",
        "ADD TABLE ONLY w",
    ),
    (
        "DROP TABLE t; ADD TABLE t WHERE (id > 7)",
        "table \"public.t\": it sends only rows with (id > 7), \
      not all",
        "DROP TABLE t; ADD TABLE t",
    ),
    (
        "DROP TABLE part; ADD TABLE part (id, v)",
        "it sends all rows, not those with (id > 5)",
        "DROP TABLE \
      part; ADD TABLE part (id, v) WHERE (id>5)",
    ),
    (
        "DROP TABLE part; ADD TABLE part (id, v) WHERE (id > 6)",
        "it sends rows with (id > 6), not those \
      with (id > 5)",
        "DROP TABLE part; ADD TABLE part (v, id) WHERE (id > 5)",
    ),
    (
        "DROP TABLE part; ADD TABLE part WHERE (id > 5)",
        "it sends all columns, not columns id, v",
        "DROP TABLE part; ADD TABLE part (id, v) WHERE ((id > 5))",
    ),
    (
        "DROP TABLE p1; ADD TABLE p1",
        "it sends all rows, not those with ((k % 2) = 0)",
        "DROP TABLE p1; ADD TABLE p1 WHERE (k % 2 = 0)",
    ),
    (
        "ADD TABLE ONLY p",
        "it has partitioned table \"public.p\"",
        "DROP TABLE ONLY p",
    ),
    (
        "ADD TABLE p2",
        "table \"public.p2\", which was added, has not the row filter",
        "DROP TABLE p2",
    ),
    (
        "ADD TABLE w2 WHERE (k > 12)",
        "table \"public.w2\": it sends only rows with (k > 12), not all",
        "DROP TABLE w2",
    ),
];

fn alter(followed: &Followed, what: &str) {
    let publication = publication(followed);
    let parts = what.split("; ");
    let parts: Vec<_> = parts
        .map(|part| format!("ALTER PUBLICATION {publication} {part}"))
        .collect();
    let altered = sql(&followed.source).execute(&parts.join("; "));
    altered.unwrap_or_else(|error| panic!("{what}: {error}"));
}

fn with_parts() -> Followed {
    let options = [
        "--where",
        "public.part=id > 5",
        "--columns",
        "public.part=id,v",
        "--where",
        "public.p=k % 2 = 0",
    ];
    let mut followed = Followed::created(TABLES, &[], &options, "1");
    followed.kill();
    // Partitions that are made later.
    let later = "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20); \
                 CREATE TABLE w2 PARTITION OF w FOR VALUES FROM (10) TO (20)";
    on(&followed.source, later);
    followed
}

#[test]
fn whatever_is_altered_is_said_until_it_is_altered_back() {
    let followed = with_parts();
    assert_eq!(altered(&followed), None);
    for (what, expected, undo) in ALTERED {
        alter(&followed, what);
        let words = altered(&followed).unwrap_or_else(|| panic!("{what}: nothing is said"));
        assert!(words.contains(expected), "{what}: {words}");
        alter(&followed, undo);
        assert_eq!(altered(&followed), None, "{undo}");
    }
    let publication = publication(&followed);
    let run = |sql_text: &str| sql(&followed.source).execute(sql_text).unwrap();
    run("CREATE SCHEMA more");
    run(&format!(
        "ALTER PUBLICATION {publication} DROP TABLE part; \
                  ALTER PUBLICATION {publication} ADD TABLES IN SCHEMA more"
    ));
    let words = altered(&followed).unwrap();
    assert!(words.contains("all tables of schema \"more\""), "{words}");
    run(&format!(
        "DROP PUBLICATION {publication}; CREATE PUBLICATION {publication} FOR ALL TABLES"
    ));
    let words = altered(&followed).unwrap();
    assert!(words.contains("it is for all tables"), "{words}");
    run(&format!("ALTER PUBLICATION {publication} RENAME TO other"));
    let words = altered(&followed).unwrap();
    assert_has!(words, "no longer has a publication of its name");
    assert_ne!(verify(&followed).status.code(), Some(0));
}

#[test]
fn what_changes_by_itself_is_no_alteration() {
    let followed = with_parts();
    let publication = publication(&followed);
    let run = |sql_text: &str| sql(&followed.source).execute(sql_text).unwrap();
    run(
        "ALTER TABLE p DETACH PARTITION p1; ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (10)",
    );
    for change in [
        "ADD TABLE p2 WHERE (k%2=0)",
        "ADD TABLE ONLY w2",
        "OWNER TO CURRENT_USER",
    ] {
        alter(&followed, change);
        assert_eq!(altered(&followed), None, "{change}");
    }
    for change in [
        "ALTER TABLE part RENAME v TO renamed; ALTER TABLE part RENAME id TO number",
        "ALTER TABLE p DETACH PARTITION p1",
        "ALTER TABLE t ADD later int; ALTER TABLE t DROP n; ALTER TABLE part ADD later int",
        "CREATE TABLE unknown (id int PRIMARY KEY, v text)",
        "CREATE SCHEMA elsewhere; ALTER TABLE a SET SCHEMA elsewhere; ALTER TABLE w RENAME TO whole",
        "DROP TABLE b, p1, p",
    ] {
        run(change);
        assert_eq!(altered(&followed), None, "{change}");
    }
    run(&format!(
        "ALTER PUBLICATION {publication} ADD TABLE unknown (id) WHERE (id > 0)"
    ));
    assert_eq!(altered(&followed), None, "apply leaves it out");
}

/// The state that an older version made does not hold the publication.
#[test]
fn of_an_older_replica_only_what_cannot_be_right_is_said() {
    let followed = with_parts();
    let forget = "DELETE FROM lockstep.publication";
    on(&followed.target, forget);
    assert_eq!(altered(&followed), None);
    let rename = "ALTER TABLE part RENAME v TO renamed; ALTER TABLE part RENAME id TO number; \
                  ALTER TABLE p DETACH PARTITION p1; DROP TABLE a";
    on(&followed.source, rename);
    assert_eq!(altered(&followed), None);
    for (what, expected, undo) in [
        (
            "SET (publish = 'delete')",
            "it does not send INSERT, UPDATE, TRUNCATE",
            "SET (publish = \
          'insert, update, delete, truncate')",
        ),
        (
            "DROP TABLE part; ADD TABLE part (number, renamed)",
            "it sends all rows, not those of the row \
          filter",
            "DROP TABLE part; ADD TABLE part (number, renamed) WHERE (number > 5)",
        ),
        (
            "DROP TABLE part; ADD TABLE part (number) WHERE (number > 5)",
            "it sends columns number, not id, \
          v",
            "DROP TABLE part; ADD TABLE part (number, renamed) WHERE (number > 5)",
        ),
    ] {
        alter(&followed, what);
        let words = altered(&followed).unwrap_or_else(|| panic!("{what}: nothing is said"));
        assert!(words.contains(expected), "{what}: {words}");
        assert!(words.contains("since it was altered"), "{what}: {words}");
        alter(&followed, undo);
        assert_eq!(altered(&followed), None, "{undo}");
    }
}

#[test]
fn a_slot_that_the_source_has_given_up_is_the_replicas_error() {
    let mut followed = Followed::with("");
    followed.status_until(&[], |status| status["lag_bytes"] == 0);
    assert_eq!(status(&followed)["slot_invalidation"], Value::Null);
    followed.kill();
    let limit = "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'";
    on(&followed.source, limit);
    on(&followed.source, "SELECT pg_reload_conf()");
    let started = Instant::now();
    let lost = "SELECT coalesce(wal_status, '') FROM pg_replication_slots";
    while value(&followed.source, lost) != "lost" {
        assert!(started.elapsed() < LONG, "the slot is not lost");
        let mut session = sql(&followed.source);
        session
            .execute("INSERT INTO b SELECT coalesce(max(id), 0) + 1 FROM b")
            .unwrap();
        session.execute("SELECT pg_switch_wal()").unwrap();
        session.execute("CHECKPOINT").unwrap();
    }
    let shown = status(&followed);
    assert_eq!(shown["slot_invalidation"], "wal_removed", "{shown}");
    let error = shown["error"].as_str().unwrap();
    for words in ["is lost", "max_slot_wal_keep_size", "create it again"] {
        assert!(error.contains(words), "{error}");
    }
    let printed = output(&["status", "r", "--target", &followed.to]);
    let printed = text(&printed.stdout);
    let printed: Vec<_> = printed.split_whitespace().collect();
    assert!(printed.join(" ").contains(error), "{printed:?}");
    for command in ["run", "verify"] {
        let refused = output(&[command, "r", "--target", &followed.to]);
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        let said = text(&refused.stderr);
        assert_has!(said, "is lost", "create it again");
    }
}
