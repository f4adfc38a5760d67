//! Random workloads on real servers: nothing fails that must not, and together some seeds
//! do everything that the generator promises.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{SUPERUSER, Server};
use lockstep_verify::random::{self, Feature, RandomWorkload, Size, Summary};

fn run(lab: &Lab, primary: &Server, seed: u64, size: Size) -> Summary {
    let summary = random::run(lab, primary, &RandomWorkload::new(seed, size)).unwrap();
    println!("seed {seed}: {summary}");
    let unexpected: Vec<_> = summary.unexpected.iter().map(ToString::to_string).collect();
    assert!(unexpected.is_empty(), "seed {seed}: {unexpected:#?}");
    summary
}

/// WAL records without which a workload would not cover what it says it covers. Names as
/// pg_waldump prints them, by resource manager; those that depend on the moment
/// (a page found full of dead entries, say) are left out.
const RECORDS: &[&str] = &[
    "Heap/INSERT",
    "Heap/DELETE",
    "Heap/UPDATE",
    "Heap/HOT_UPDATE",
    "Heap/LOCK",
    "Heap/HEAP_CONFIRM",
    "Heap/INPLACE",
    "Heap/TRUNCATE",
    "Heap2/MULTI_INSERT",
    "Heap2/VISIBLE",
    "Heap2/LOCK_UPDATED",
    "Btree/INSERT_LEAF",
    "Btree/INSERT_UPPER",
    "Btree/SPLIT_L",
    "Btree/SPLIT_R",
    "Btree/INSERT_POST",
    "Btree/DEDUP",
    "Btree/VACUUM",
    "Btree/MARK_PAGE_HALFDEAD",
    "Btree/UNLINK_PAGE",
    "Btree/NEWROOT",
    "Hash/INSERT",
    "Hash/ADD_OVFL_PAGE",
    "Hash/SPLIT_PAGE",
    "Hash/DELETE",
    "Hash/SQUEEZE_PAGE",
    "Gin/INSERT",
    "Gin/SPLIT",
    "Gin/CREATE_PTREE",
    "Gin/VACUUM_PAGE",
    "Gin/UPDATE_META_PAGE",
    "Gin/INSERT_LISTPAGE",
    "Gin/DELETE_LISTPAGE",
    "Gist/PAGE_UPDATE",
    "Gist/PAGE_SPLIT",
    "SPGist/ADD_LEAF",
    "SPGist/PICKSPLIT",
    "SPGist/SPLIT_TUPLE",
    "SPGist/VACUUM_LEAF",
    "BRIN/INSERT",
    "BRIN/SAMEPAGE_UPDATE",
    "BRIN/DESUMMARIZE",
    "SPGist/ADD_NODE",
    "SPGist/MOVE_LEAFS",
    "Gist/PAGE_DELETE",
    "BRIN/UPDATE",
    "BRIN/REVMAP_EXTEND",
    "Heap2/NEW_CID",
    "Database/CREATE_FILE_COPY",
    "Database/CREATE_WAL_LOG",
    "ReplicationOrigin/SET",
    "XLOG/SWITCH",
    "Sequence/LOG",
    "MultiXact/CREATE_ID",
    "Transaction/COMMIT",
    "Transaction/ABORT",
    "Transaction/PREPARE",
    "Transaction/COMMIT_PREPARED",
    "Transaction/ABORT_PREPARED",
    "Transaction/ASSIGNMENT",
    "Storage/CREATE",
    "Storage/TRUNCATE",
    "RelMap/UPDATE",
    "Standby/LOCK",
    "Tablespace/CREATE",
    "Tablespace/DROP",
    "Database/DROP",
    "LogicalMessage/MESSAGE",
    "ReplicationOrigin/DROP",
];

/// Where a new server's WAL begins.
const FIRST_WAL: &str = "0/1000000";

/// Record types in the server's WAL.
fn records(lab: &Lab, server: &Server) -> BTreeSet<String> {
    let wal = server.data().join("pg_wal");
    let end = server.flush_lsn().unwrap().to_string();
    let output = Command::new(lab.package().program("pg_waldump"))
        .args(["--stats=record", "--path"])
        .arg(&wal)
        .args(["--start", FIRST_WAL, "--end", &end])
        .env("LC_ALL", "C")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let name = words.next()?.trim_end_matches("+INIT");
            let count: u64 = words.next()?.parse().ok()?;
            (count > 0).then(|| name.to_owned())
        })
        .collect()
}

#[test]
#[ignore = "long: make test-bed"]
fn some_seeds_together_do_everything_and_nothing_fails_that_must_not() {
    let lab = TestLab::stock().space_mb(2000).start().unwrap();
    let mut settings = random::settings();
    // All WAL is kept, to be looked through at the end.
    settings.insert("wal_keep_size".to_owned(), "4GB".to_owned());
    let primary = lab.primary("primary", None, &settings).unwrap();
    let mut all = Summary::default();
    let mut seeds = 0;
    // Which statements fail depends on how sessions meet, so the number of seeds does too.
    for seed in 1..=20 {
        let size = Size {
            sessions: 4,
            statements: 400,
        };
        all.merge(run(&lab, &primary, seed, size));
        seeds = seed;
        if seed >= 3 && all.missing().is_empty() && missing_records(&lab, &primary).is_empty() {
            break;
        }
    }
    println!("{seeds} seeds: {all}");
    println!("WAL records: {:?}", records(&lab, &primary));
    for (state, count) in &all.failed {
        println!("  {state}: {count}");
    }
    let names: Vec<_> = all.missing().into_iter().map(Feature::name).collect();
    assert!(names.is_empty(), "never succeeded: {names:?}");
    let missing = missing_records(&lab, &primary);
    assert!(missing.is_empty(), "never in the WAL: {missing:?}");
    // Not a row of zeros: most of what sessions try works.
    assert!(all.successes() * 10 > all.statements() * 7, "{all}");
}

fn missing_records(lab: &Lab, primary: &Server) -> Vec<&'static str> {
    let found = records(lab, primary);
    RECORDS
        .iter()
        .copied()
        .filter(|name| !found.contains(*name))
        .collect()
}

#[test]
fn an_error_that_must_not_happen_is_reported() {
    let lab = TestLab::stock().space_mb(2000).start().unwrap();
    let primary = lab.primary("primary", None, &random::settings()).unwrap();
    primary.run(
        "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS \
             $$BEGIN RAISE EXCEPTION 'could not read block 0' USING ERRCODE = 'XX001'; END$$; \
             CREATE EVENT TRIGGER refuse ON ddl_command_start \
             WHEN TAG IN ('REFRESH MATERIALIZED VIEW') EXECUTE FUNCTION refuse()",
    );
    let workload = RandomWorkload::new(1, Size::default());
    let summary = random::run(&lab, &primary, &workload).unwrap();
    assert!(summary.unexpected_count > 0, "{summary}");
    for error in &summary.unexpected {
        assert_eq!(error.state, "XX001");
        assert_has!(error.to_string(), "could not read block 0");
        assert!(error.sql.starts_with("REFRESH"), "{error}");
    }
}

#[test]
fn a_session_that_ends_early_is_reported() {
    let lab = TestLab::stock().space_mb(2000).start().unwrap();
    let primary = lab.primary("primary", None, &random::settings()).unwrap();
    let size = Size {
        sessions: 2,
        statements: 20_000,
    };
    let workload = RandomWorkload::new(1, size);
    let over = AtomicBool::new(false);
    let ended = thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = primary.connect(SUPERUSER, "test").unwrap();
            // A session shows itself by what set-up does not do. Then every other one ends as
            // well, also one that comes later: it would go on for long.
            let mut which = "query LIKE 'UPDATE heap%'";
            while !over.load(Ordering::SeqCst) {
                let rows = client
                    .query(&format!(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                         WHERE application_name = 'psql' AND {which}"
                    ))
                    .unwrap();
                if !rows.is_empty() {
                    which = "true";
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        let ended = random::run(&lab, &primary, &workload);
        over.store(true, Ordering::SeqCst);
        ended
    });
    let error = ended.unwrap_err();
    let line = error.to_string();
    assert_has!(line, "of 20", "statements");
    assert!(!line.contains('\n'), "{line}");
}
