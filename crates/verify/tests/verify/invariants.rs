//! Invariants hold on standbys, stock or with helpers, and the checks find what is broken by hand.
//!
//! Scale: `LOCKSTEP_SNAPSHOTS` long-held snapshots, and 50 times as many checks by index-only
//! scans where queries are canceled.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::{self, TestLab};
use lockstep_lab::server::{Server, Settings, Stop};
use lockstep_verify::crash::{Process, Victim};
use lockstep_verify::invariants::{self, Invariants, Options, Report, Scan, What, Writers};

use crate::replay::{Backlogs, Replay};

/// How long anything here may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Commits are synchronous, which costs little without fsync: a standby is waited for to have
/// what is flushed, and vacuum marks only what is known to be committed and flushed.
fn settings(more: &[(&str, &str)]) -> Settings {
    [
        ("shared_buffers", "16MB"),
        ("max_connections", "30"),
        ("autovacuum", "off"),
        ("max_prepared_transactions", "1"),
    ]
    .iter()
    .chain(more)
    .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
    .collect()
}

fn assert_no_violation(replay: Replay, report: &Report) {
    println!("invariants, {replay}: {report}");
    let lines: Vec<_> = report.violations.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{lines:#?}");
    assert_eq!(report.violation_count, 0);
    assert_eq!(report.void, 0, "plans other than intended");
    assert!(
        report.rows_without_heap > 0,
        "the visibility map was never of use"
    );
    for scan in Scan::ALL {
        assert!(report.checks.get(&scan) > Some(&100), "{scan}: {report}");
    }
}

/// A primary that has the tables, and a standby of it.
fn primary_and_standby(lab: &Lab, replay: Replay, more: &[(&str, &str)]) -> (Server, Server) {
    let primary = lab.primary("primary", None, &settings(&[])).unwrap();
    let standby = settings(more)
        .into_iter()
        .chain(replay.settings())
        .collect();
    let mut standby = lab.standby(&primary, "standby", &standby).unwrap();
    if replay == Replay::Helpers {
        primary.run("CREATE EXTENSION lockstep");
    }
    invariants::prepare(&primary).unwrap();
    standby.catch_up(&primary).unwrap();
    (primary, standby)
}

fn lab(replay: Replay) -> Lab {
    match replay {
        Replay::Stock => TestLab::stock(),
        Replay::Helpers => TestLab::with_extension(),
    }
    .start()
    .unwrap()
}

/// Long-held snapshots wanted, and how long they may take.
fn scale() -> (u64, Duration) {
    let wanted: u32 = for_tests::number("LOCKSTEP_SNAPSHOTS").unwrap_or(1);
    (wanted.into(), PATIENCE * wanted)
}

/// Until as many long-held snapshots as wanted have seen replay go on.
fn they_hold(replay: Replay) {
    let lab = lab(replay);
    // Feedback, so that no snapshot is in the way of vacuum.
    let feedback = [
        ("hot_standby_feedback", "on"),
        ("wal_receiver_status_interval", "1s"),
        ("max_standby_streaming_delay", "-1"),
    ];
    let (primary, standby) = primary_and_standby(&lab, replay, &feedback);
    let writers = Writers::start(&primary, 1, 3).unwrap();
    let backlogs = Backlogs::start(replay, &standby, 1);
    let readers = Invariants::start(&standby, &Options::default()).unwrap();
    let (wanted, patience) = scale();
    let mut said = 0;
    let enough = readers.await_report(patience, |report| {
        if report.long_over_replay > said {
            said = report.long_over_replay;
            println!("{report}");
        }
        report.long_over_replay >= wanted
            && report.snapshots >= 10 * wanted
            && backlogs.have_worked()
    });
    let report = readers.finish();
    let written = writers.finish().unwrap();
    backlogs.finish(&primary);
    println!("{written:?}");
    assert!(enough, "{report}");
    assert!(
        written.transactions > 100 && written.vacuums > 10,
        "{written:?}"
    );
    assert_no_violation(replay, &report);
}

#[test]
#[ignore = "long: make test-bed"]
fn they_hold_on_a_stock_standby_long_held_snapshots_included() {
    they_hold(Replay::Stock);
}

#[test]
#[ignore = "long: make test-bed"]
fn they_hold_on_a_standby_with_helpers_long_held_snapshots_included() {
    they_hold(Replay::Helpers);
}

/// Replay stands at a conflict until it cancels the query, and with helpers records run ahead
/// meanwhile.
fn canceled_queries_are_no_violations(replay: Replay) {
    let lab = lab(replay);
    let impatient = [
        ("hot_standby_feedback", "off"),
        ("max_standby_streaming_delay", "300ms"),
    ];
    let (primary, standby) = primary_and_standby(&lab, replay, &impatient);
    let writers = Writers::start(&primary, 2, 3).unwrap();
    let backlogs = Backlogs::start(replay, &standby, 3);
    let readers = Invariants::start(&standby, &Options::default()).unwrap();
    let (wanted, patience) = scale();
    let checks = (50 * wanted).max(100);
    let enough = readers.await_report(patience, |report| {
        report.conflicts >= 5
            && report.checks.get(&Scan::IndexOnly) > Some(&checks)
            && backlogs.have_worked()
    });
    let report = readers.finish();
    writers.finish().unwrap();
    backlogs.finish(&primary);
    assert!(enough, "{report}");
    assert_no_violation(replay, &report);
}

#[test]
#[ignore = "long: make test-bed"]
fn canceled_queries_are_conflicts_and_not_violations() {
    canceled_queries_are_no_violations(Replay::Stock);
}

#[test]
fn with_helpers_canceled_queries_are_no_violations_either() {
    canceled_queries_are_no_violations(Replay::Helpers);
}

#[test]
fn readers_go_on_after_crashes_of_the_standby() {
    let lab = Lab::for_tests().unwrap();
    let primary = lab.primary("primary", None, &settings(&[])).unwrap();
    let feedback = settings(&[
        ("hot_standby_feedback", "on"),
        ("wal_receiver_status_interval", "1s"),
        ("max_standby_streaming_delay", "-1"),
        ("wal_retrieve_retry_interval", "100ms"),
    ]);
    let mut standby = lab.standby(&primary, "standby", &feedback).unwrap();
    invariants::prepare(&primary).unwrap();
    // After a crash a standby may show an earlier state, but none before its last restartpoint.
    primary.run("CHECKPOINT");
    standby.catch_up(&primary).unwrap();
    standby.run("CHECKPOINT");
    let writers = Writers::start(&primary, 3, 2).unwrap();
    let options = Options {
        short_readers: 2,
        long_readers: 0,
        rounds: 0,
    };
    let readers = Invariants::start(&standby, &options).unwrap();
    for victim in [Victim::Server, Victim::Process(Process::WalReceiver)] {
        let before = readers.report();
        victim.strike(&mut standby, None).unwrap();
        assert!(readers.await_report(PATIENCE, |report| {
            report.lost > before.lost && report.snapshots > before.snapshots + 15
        }));
    }
    assert_no_violation(Replay::Stock, &readers.finish());
    writers.finish().unwrap();
}

/// Checks a quiet server: two snapshots of each kind of reader.
fn look(server: &Server) -> Report {
    let options = Options {
        short_readers: 1,
        long_readers: 1,
        rounds: 3,
    };
    let readers = Invariants::start(server, &options).unwrap();
    assert!(readers.await_report(PATIENCE, |report| report.snapshots >= 4));
    let report = readers.finish();
    assert_eq!(report.void, 0);
    // A session that has not ended yet may hold a snapshot, and vacuum marks nothing all-visible.
    let readers = "SELECT count(*)::text FROM pg_stat_activity \
                   WHERE application_name = 'lockstep lab invariants'";
    let finished = Instant::now();
    while server.query_text(readers).unwrap().as_deref() != Some("0") {
        assert!(finished.elapsed() < PATIENCE, "readers do not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    report
}

/// Every violation is of this table, and these scans have found something.
fn assert_found(report: &Report, table: &str, scans: &[Scan], is: fn(&What) -> bool) {
    for violation in &report.violations {
        assert_eq!(violation.table, table, "{violation}");
    }
    for scan in Scan::ALL {
        let found = report
            .violations
            .iter()
            .any(|violation| violation.scan == scan && is(&violation.what));
        let lines: Vec<_> = report.violations.iter().map(ToString::to_string).collect();
        assert_eq!(found, scans.contains(&scan), "{scan}: {lines:#?}");
    }
}

/// A relation's file and the server stopped, so that the file can be changed.
fn stopped_file(lab: &Lab, server: &mut Server, relation: &str, fork: &str) -> PathBuf {
    let path = server
        .query_text(&format!(
            "SELECT pg_relation_filepath('{}.{relation}')",
            invariants::SCHEMA
        ))
        .unwrap()
        .unwrap();
    let checksums = server.query_text("SHOW data_checksums").unwrap();
    server.stop(Stop::Fast).unwrap();
    if checksums.as_deref() == Some("on") {
        let output = Command::new(lab.package().program("pg_checksums"))
            .args(["--disable", "--pgdata"])
            .arg(server.data())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    server.data().join(path + fork)
}

#[test]
fn what_is_broken_by_hand_is_found() {
    use Scan::{Bitmap, Index, IndexOnly, Sequential};
    let lab = Lab::for_tests().unwrap();
    let mut server = lab.primary("primary", None, &settings(&[])).unwrap();
    invariants::prepare(&server).unwrap();
    let report = look(&server);
    assert_eq!(report.violations, []);

    // Money from nowhere; a lost row; a row whose key is not what it was given.
    let all = &Scan::ALL;
    let schema = invariants::SCHEMA;
    for (sql, table, scans, is) in [
        (
            format!("UPDATE {schema}.account SET v = v + 1 WHERE k = 5"),
            "account",
            &all[..],
            (|what| {
                matches!(
                    what,
                    What::Sum {
                        expected: 1_000_000,
                        found: 1_000_001
                    }
                )
            }) as fn(&What) -> bool,
        ),
        (
            format!("DELETE FROM {schema}.queue WHERE k = 5"),
            "queue",
            &all[..],
            |what| {
                matches!(
                    what,
                    What::Count {
                        expected: 1000,
                        found: 999
                    }
                )
            },
        ),
        (
            format!("UPDATE {schema}.versioned SET copy = 7 WHERE k = 5"),
            "versioned",
            &[Sequential, Index, Bitmap][..],
            |what| matches!(what, What::WrongRows(1)),
        ),
        // An index that nothing is inserted into any more.
        (
            format!(
                "UPDATE pg_index SET indisready = false WHERE indexrelid = '{schema}.recycled_kv'::regclass; \
                 INSERT INTO {schema}.recycled (k, v, copy) VALUES (5, 5, 5)"
            ),
            "recycled",
            &[Index, Bitmap, IndexOnly][..],
            |what| matches!(what, What::Disagrees { first, now } if first.count == now.count + 1),
        ),
    ] {
        invariants::prepare(&server).unwrap();
        server.run(&sql);
        assert_found(&look(&server), table, scans, is);
    }

    another_row_in_a_line_pointer(&lab, &mut server);
    a_visibility_map_that_lies(&lab, &mut server);
    a_row_that_goes_under_a_snapshot(&server);
}

/// What a line pointer used again too early looks like: the index entry of a key leads to
/// a row with another one. The heap's bytes are changed, the index's are not.
fn another_row_in_a_line_pointer(lab: &Lab, server: &mut Server) {
    invariants::prepare(server).unwrap();
    let schema = invariants::SCHEMA;
    // k, v and copy follow each other in the row, with padding after k: found by v.
    let marked = 0x5EAD_BEEF_0BAD_CAFE_i64;
    server.run(&format!(
        "UPDATE {schema}.recycled SET v = {marked} WHERE k = 5"
    ));
    let file = stopped_file(lab, server, "recycled", "");
    let mut bytes = fs::read(&file).unwrap();
    let at: Vec<_> = (0..bytes.len() - 12)
        .filter(|&at| bytes[at..at + 8] == marked.to_le_bytes())
        .collect();
    assert_eq!(at.len(), 1);
    for key in [at[0] - 8, at[0] + 8] {
        assert_eq!(bytes[key..key + 4], 5_i32.to_le_bytes());
        bytes[key..key + 4].copy_from_slice(&6_i32.to_le_bytes());
    }
    fs::write(&file, bytes).unwrap();
    server.start().unwrap();
    let report = look(server);
    assert_found(&report, "recycled", &[Scan::Index, Scan::Bitmap], |what| {
        matches!(what, What::WrongRows(1))
    });
    // The index alone still has the old key.
    let index_only = |violation: &&invariants::Violation| violation.scan == Scan::IndexOnly;
    assert!(report.violations.iter().any(|violation| {
        index_only(&violation) && matches!(violation.what, What::Disagrees { .. })
    }));
}

/// Rows deleted, and a visibility map that says all are there: only a scan that trusts the
/// map counts them.
fn a_visibility_map_that_lies(lab: &Lab, server: &mut Server) {
    const PAGE_HEADER: u64 = 24;
    invariants::prepare(server).unwrap();
    let schema = invariants::SCHEMA;
    // An older transaction, which survives the restart: without it the first scan would
    // find the rows dead for everybody and mark their index entries so.
    server.run("BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION 'older'");
    server.run(&format!("DELETE FROM {schema}.recycled WHERE k < 10"));
    let file = stopped_file(lab, server, "recycled", "_vm");
    // All-visible for the first eight pages, and not frozen.
    fs::File::options()
        .write(true)
        .open(file)
        .unwrap()
        .write_all_at(&[0x55, 0x55], PAGE_HEADER)
        .unwrap();
    server.start().unwrap();
    assert_found(
        &look(server),
        "recycled",
        &[Scan::IndexOnly],
        |what| matches!(what, What::Disagrees { first, now } if now.count == first.count + 10),
    );
}

/// A row that a long-held snapshot has seen is gone in its next round.
fn a_row_that_goes_under_a_snapshot(server: &Server) {
    invariants::prepare(server).unwrap();
    server.run("CREATE EXTENSION IF NOT EXISTS pg_surgery");
    let options = Options {
        short_readers: 0,
        long_readers: 1,
        rounds: 1_000_000,
    };
    let readers = Invariants::start(server, &options).unwrap();
    let sequential = |report: &Report| report.checks.get(&Scan::Sequential).copied();
    // The first round is over: four tables have been read in this way.
    assert!(readers.await_report(PATIENCE, |report| sequential(report) > Some(4)));
    // Not in one statement: a page that the statement itself reads cannot be cleaned up.
    let schema = invariants::SCHEMA;
    let row = server
        .query_text(&format!(
            "SELECT ctid::text FROM {schema}.recycled WHERE k = 5"
        ))
        .unwrap()
        .unwrap();
    server.run(&format!(
        "SELECT heap_force_kill('{schema}.recycled'::regclass, ARRAY['{row}'::tid])"
    ));
    assert!(readers.await_report(PATIENCE, |report| report.violation_count >= 8));
    let report = readers.finish();
    assert_eq!(report.snapshots, 0, "the snapshot was not held");
    let changed = report.violations.iter().any(|violation| {
        violation.table == "recycled"
            && violation.round > 1
            && matches!(violation.what, What::Changed { first, now } if first.count == now.count + 1)
    });
    assert!(changed, "{:#?}", report.violations);
}
