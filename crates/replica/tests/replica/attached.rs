//! Tables that have rows when they are attached as partitions, after the copy.

use std::collections::BTreeMap;

use lockstep_client::Conninfo;
use lockstep_lab::for_tests::source_major;
use lockstep_lab::server::Server;
use lockstep_replica::status::source::Source;
use lockstep_replica::verify;

use crate::apply_lab::{LONG, catch_up, while_following};
use crate::{conninfo, copied, on, sql, state_of, to_verify, values};

const SCHEMA: &str = "
CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE own (id int PRIMARY KEY, v text);
INSERT INTO own VALUES (1, 'copied')";

/// Each table with the statements that make it a partition of p, one transaction each, `{}` being the lower
/// bound, and whether rows of it are not in the stream.
const CASES: [(&str, &[&str], bool); 12] = [
    (
        "own",
        &["ALTER TABLE p ATTACH PARTITION own FOR VALUES FROM (0) TO (100000)"],
        false,
    ),
    (
        "filled",
        &[
            "CREATE TABLE filled (LIKE p INCLUDING INDEXES)",
            "INSERT INTO filled VALUES ({}, 'before')",
            "ALTER TABLE p ATTACH PARTITION filled FOR VALUES FROM ({}) TO ({} + 100000)",
            "INSERT INTO p VALUES ({} + 1, 'after')",
        ],
        true,
    ),
    (
        "At \"once\"",
        &[
            "CREATE TABLE \"At \"\"once\"\"\" (LIKE p INCLUDING INDEXES); \
             INSERT INTO \"At \"\"once\"\"\" VALUES ({}, 'before'); \
             ALTER TABLE p ATTACH PARTITION \"At \"\"once\"\"\" FOR VALUES FROM ({}) TO ({} + 100000)",
        ],
        true,
    ),
    (
        "frozen",
        &[
            "CREATE TABLE frozen (LIKE p INCLUDING INDEXES)",
            "INSERT INTO frozen VALUES ({}, 'before')",
            "VACUUM (FREEZE) frozen",
            "ALTER TABLE p ATTACH PARTITION frozen FOR VALUES FROM ({}) TO ({} + 100000)",
        ],
        true,
    ),
    (
        "below",
        &[
            "CREATE TABLE middle (LIKE p INCLUDING INDEXES) PARTITION BY RANGE (id)",
            "CREATE TABLE below PARTITION OF middle FOR VALUES FROM ({}) TO ({} + 1000)",
            "INSERT INTO middle VALUES ({}, 'before')",
            "ALTER TABLE p ATTACH PARTITION middle FOR VALUES FROM ({}) TO ({} + 100000)",
        ],
        true,
    ),
    (
        "again",
        &[
            "CREATE TABLE again PARTITION OF p FOR VALUES FROM ({}) TO ({} + 100000)",
            "INSERT INTO p VALUES ({}, 'in the stream')",
            "ALTER TABLE p DETACH PARTITION again",
            "INSERT INTO again VALUES ({} + 1, 'before')",
            "ALTER TABLE p ATTACH PARTITION again FOR VALUES FROM ({}) TO ({} + 100000)",
        ],
        true,
    ),
    (
        "reused",
        &[
            "CREATE TABLE reused (LIKE p INCLUDING INDEXES)",
            "INSERT INTO reused SELECT g, repeat('x', 100) FROM generate_series({}, {} + 20000) g",
            "DELETE FROM reused WHERE id < {} + 15000",
            "VACUUM reused",
            "ALTER TABLE p ATTACH PARTITION reused FOR VALUES FROM ({}) TO ({} + 100000)",
            "INSERT INTO p SELECT g, repeat('y', 100) FROM generate_series({}, {} + 14999) g",
        ],
        true,
    ),
    (
        "made",
        &[
            "CREATE TABLE made PARTITION OF p FOR VALUES FROM ({}) TO ({} + 100000)",
            "INSERT INTO p VALUES ({}, 'after')",
        ],
        false,
    ),
    (
        "made_at_once",
        &[
            "CREATE TABLE made_at_once PARTITION OF p FOR VALUES FROM ({}) TO ({} + 100000); \
             INSERT INTO p VALUES ({}, 'after')",
        ],
        false,
    ),
    (
        "empty",
        &[
            "CREATE TABLE empty (LIKE p INCLUDING INDEXES)",
            "ALTER TABLE p ATTACH PARTITION empty FOR VALUES FROM ({}) TO ({} + 100000)",
            "INSERT INTO p VALUES ({}, 'after')",
        ],
        false,
    ),
    (
        "empty_at_once",
        &["CREATE TABLE empty_at_once (LIKE p INCLUDING INDEXES); \
             ALTER TABLE p ATTACH PARTITION empty_at_once FOR VALUES FROM ({}) TO ({} + 100000); \
             INSERT INTO p VALUES ({}, 'after')"],
        false,
    ),
    (
        "truncated",
        &[
            "CREATE TABLE truncated (LIKE p INCLUDING INDEXES)",
            "INSERT INTO truncated VALUES ({}, 'before')",
            "TRUNCATE truncated",
            "ALTER TABLE p ATTACH PARTITION truncated FOR VALUES FROM ({}) TO ({} + 100000)",
            "INSERT INTO p VALUES ({}, 'after')",
        ],
        false,
    ),
];

/// Makes all of them, on the target without any rows.
fn attach_all(source: &Server, target: &Server) {
    for (place, (table, statements, _)) in CASES.iter().enumerate() {
        let bound = (place * 100_000).to_string();
        if *table != "own" {
            on(
                target,
                &format!(
                    "CREATE TABLE \"{}\" PARTITION OF p FOR VALUES FROM ({bound}) TO ({bound} + 100000)",
                    table.replace('"', "\"\"")
                ),
            );
        }
        for statement in *statements {
            on(source, &statement.replace("{}", &bound));
        }
    }
    on(target, CASES[0].1[0]);
}

/// What is said of tables that are not replicated, by their names.
fn said_by(source: Option<&Conninfo>, target: &Server) -> BTreeMap<String, String> {
    let mut state = state_of(target);
    let replica = state.replica("r").unwrap().unwrap();
    let tables = state.tables("r").unwrap();
    let mut asked = match Source::ask(&replica, source, Some(&tables), None) {
        Ok(asked) => asked,
        // From 16 on a lock hides all of the publication's tables.
        Err(error) => return BTreeMap::from([("filled".to_owned(), error.to_string())]),
    };
    asked.look_at_target(&mut state, &tables).unwrap();
    let lost = asked.lost.iter();
    lost.map(|lost| (lost.table.table.clone(), lost.words()))
        .collect()
}

fn said(target: &Server) -> BTreeMap<String, String> {
    said_by(None, target)
}

#[test]
fn rows_from_before_a_table_was_attached_are_told_until_verify_finds_them() {
    let (_lab, source, target) = copied(SCHEMA);
    attach_all(&source, &target);
    let mut told: Vec<_> = CASES.iter().filter(|one| one.2).map(|one| one.0).collect();
    told.sort_unstable();
    let first = said(&target);
    assert_eq!(first.keys().collect::<Vec<_>>(), told, "{first:#?}");
    for (table, words) in &first {
        let wanted = format!(
            "rows of \"public.{table}\" from before it was attached to \"public.p\" are not replicated"
        );
        assert!(words.contains(&wanted), "{words}");
    }

    let what = crate::following(&conninfo(&target));
    let followed = while_following(&what, |control| {
        let told = control.wait_for(LONG, |stats| {
            (stats.unreplicated.as_ref()).is_some_and(|it| it.tables == told.len())
        });
        assert!(told, "{:?}", control.stats().unreplicated);
        // All rows are as new as this change, and the rows from before are known none the less.
        let rewrites = "ALTER TABLE p ADD COLUMN g int GENERATED ALWAYS AS (id) STORED";
        on(&source, rewrites);
        on(&target, rewrites);
        assert_eq!(said(&target), first);
        let compare = || verify::replica(&to_verify(conninfo(&target)), &mut |_| ()).unwrap();
        assert!(!compare().is_equal());
        assert_eq!(said(&target), first, "verify finds that they are missing");
        for words in first.values() {
            let (_, command) = words.split_once("run on the source: ").unwrap();
            let (command, _) = command.split_once("COMMIT;").unwrap();
            on(&source, &format!("{command}COMMIT;"));
        }
        catch_up(&source, control);
        let report = compare();
        assert!(report.is_equal(), "{report:?}");
        assert_eq!(said(&target), BTreeMap::new());
        assert_eq!(control.stats().missing, 0);
    });
    followed.unwrap();
    let rows = "SELECT count(*)::text FROM p";
    assert_eq!(values(&target, rows), values(&source, rows));
}

#[test]
fn what_cannot_be_seen_of_an_attached_table_is_not_known() {
    let (_lab, source, target) = copied(SCHEMA);
    on(&source, "CREATE ROLE reader LOGIN");
    for (place, statement) in CASES[1].1.iter().enumerate() {
        // The last one inserts.
        if place < 3 {
            on(&source, &statement.replace("{}", "100000"));
        }
    }
    let of_filled =
        |said: &BTreeMap<String, String>| said.get("filled").cloned().unwrap_or_default();
    let reader = conninfo(&source).with("user", "reader").unwrap();
    let mut locker = sql(&source);
    locker
        .execute("BEGIN; LOCK TABLE filled IN ACCESS EXCLUSIVE MODE")
        .unwrap();
    let locked = of_filled(&said(&target));
    locker.execute("ROLLBACK").unwrap();
    let denied = of_filled(&said_by(Some(&reader), &target));
    on(&source, "GRANT SELECT ON filled TO reader");
    on(&source, "ALTER TABLE filled ENABLE ROW LEVEL SECURITY");
    let hidden = of_filled(&said_by(Some(&reader), &target));
    on(&source, "ALTER TABLE filled DISABLE ROW LEVEL SECURITY");
    let seen = of_filled(&said_by(Some(&reader), &target));
    assert!(seen.contains("are not replicated"), "{seen}");
    on(
        &source,
        "ALTER TABLE p ADD COLUMN g int GENERATED ALWAYS AS (id) STORED",
    );
    let rewritten = of_filled(&said(&target));
    on(&source, "TRUNCATE filled");
    assert_eq!(said(&target), BTreeMap::new());
    on(
        &source,
        "INSERT INTO filled SELECT g, repeat('x', 100) FROM generate_series(100001, 120000) g",
    );
    on(&source, "DELETE FROM filled WHERE ctid <> '(200,40)'");
    on(&source, "VACUUM filled");
    let hollow = of_filled(&said(&target));
    let all_hidden = locked.contains("cannot be seen while one of its tables is locked");
    assert_eq!(all_hidden, source_major().unwrap().get() >= 16, "{locked}");
    let locked = locked.replace("cannot be seen", "is not known");
    for (words, why) in [
        (locked, "lock timeout"),
        (denied, "permission denied"),
        (hidden, "row-level security"),
        (rewritten, "rewritten"),
        (hollow, "no row in the pages"),
    ] {
        assert!(words.contains("is not known"), "{why}: {words}");
        assert!(words.contains(why), "{why}: {words}");
    }
}
