//! The page oracle on real standbys.

mod bed;
mod plants;

use std::fs;

use bed::Bed;
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::{self, TestLab};
use lockstep_lab::server::{SUPERUSER, Server, Settings, Stop, settings_of};
use lockstep_verify::oracle::{self, CompareOptions, Comparison, FreeSpace, Node, Side, Target};

fn small() -> Settings {
    settings_of([
        ("shared_buffers", "16MB"),
        ("max_connections", "20"),
        ("autovacuum", "off"),
        ("wal_keep_size", "512MB"),
        ("max_prepared_transactions", "5"),
    ])
}

/// Tables with every built-in index method, and work that leaves its traces in all forks.
const SCENE: &str = include_str!("scene.sql");

/// One session, one statement at a time: VACUUM takes no company.
fn play(server: &Server, script: &str) {
    let mut client = server.connect(SUPERUSER, "test").unwrap();
    for statement in script.split_inclusive(";\n") {
        client
            .execute(statement)
            .unwrap_or_else(|error| panic!("{statement}: {error:?}"));
    }
}

fn compare_with(lab: &Lab, a: &Server, b: &Server, free_space: FreeSpace) -> Comparison {
    let options = CompareOptions {
        free_space,
        ..CompareOptions::default()
    };
    let comparison = oracle::compare(lab.package(), a.data(), b.data(), &options).unwrap();
    for difference in &comparison.differences {
        println!("{difference}");
    }
    println!(
        "{} files, {} pages, {} bytes, {} differences at {}, WAL from {}",
        comparison.files,
        comparison.pages,
        comparison.bytes,
        comparison.found,
        comparison.position,
        comparison.wal_from
    );
    comparison
}

fn compare(lab: &Lab, a: &Server, b: &Server) -> Comparison {
    compare_with(lab, a, b, FreeSpace::Strict)
}

/// More of the same.
const MORE: &str = include_str!("more.sql");

#[test]
#[ignore = "long: make test-bed"]
fn stock_standbys_are_equal() {
    let lab = Lab::for_tests().unwrap();
    let mut primary = lab.primary("primary", None, &small()).unwrap();
    let mut early = lab.standby(&primary, "early", &Settings::new()).unwrap();
    let mut twin = lab.standby(&primary, "twin", &Settings::new()).unwrap();
    play(&primary, SCENE);
    let mut late = lab.standby(&primary, "late", &Settings::new()).unwrap();
    play(&primary, MORE);
    oracle::settle(&primary, &mut [&mut early, &mut twin, &mut late]).unwrap();
    assert!(compare(&lab, &early, &twin).equal());
    assert!(compare_with(&lab, &early, &late, FreeSpace::Ignore).equal());

    // A cleanly stopped primary against its standby.
    late.start().unwrap();
    primary.stop(Stop::Fast).unwrap();
    late.stop(Stop::Fast).unwrap();
    assert!(compare_with(&lab, &primary, &late, FreeSpace::Ignore).equal());
}

/// Faults planted one at a time, each taken back before the next. SEED chooses the places,
/// LOCKSTEP_PLANTS says how many rounds.
#[test]
#[ignore = "long: make test-bed"]
fn planted_faults_are_found() {
    let rounds = for_tests::number("LOCKSTEP_PLANTS").unwrap_or(1);
    let seed = for_tests::number("SEED").unwrap_or(1);
    let mut bed = Bed::new(seed);
    for _ in 0..rounds {
        bed.flips();
        bed.harmless_changes();
        bed.whole_pages();
        bed.lost_and_future();
        bed.files();
    }
    bed.finish();
}

/// Readers on a standby leave hints and fill its memory; they must not make a difference,
/// neither to files nor, while replay is paused, to memory that is written out.
#[test]
#[ignore = "long: make test-bed"]
fn readers_and_pauses_make_no_difference() {
    let lab = TestLab::with_extension().start().unwrap();
    let primary = lab.primary("primary", None, &small()).unwrap();
    let mut read = lab.standby(&primary, "read", &Settings::new()).unwrap();
    let mut idle = lab.standby(&primary, "idle", &Settings::new()).unwrap();
    play(&primary, SCENE);
    play(&primary, MORE);
    read.catch_up(&primary).unwrap();
    idle.catch_up(&primary).unwrap();

    let refused = |read: &Server, idle: &Server| {
        let options = CompareOptions::default();
        oracle::compare(lab.package(), read.data(), idle.data(), &options)
            .unwrap_err()
            .to_string()
    };
    assert!(
        refused(&read, &idle).contains("replay is not paused"),
        "running"
    );
    pause_together(&primary, [&mut read, &mut idle]);
    // Nothing that has the function: the library was never loaded, nor the extension made.
    assert!(refused(&read, &idle).contains("CREATE EXTENSION lockstep"));
    for standby in [&read, &idle] {
        standby.run("SELECT pg_wal_replay_resume()");
    }
    play(
        &primary,
        "CREATE EXTENSION lockstep;\nCREATE EXTENSION amcheck;\n",
    );
    read.catch_up(&primary).unwrap();
    idle.catch_up(&primary).unwrap();
    play(&read, READS);
    pause_together(&primary, [&mut read, &mut idle]);
    play(&read, READS);
    assert!(compare(&lab, &read, &idle).equal());

    let open = |side, server: &Server| {
        let target = Target::parse(&server.conninfo(SUPERUSER));
        assert!(matches!(target, Target::Conninfo(_)));
        Node::open(lab.package(), side, &target).unwrap()
    };
    let (a, b) = (open(Side::A, &read), open(Side::B, &idle));
    let rows = oracle::compare_rows(&a, &b).unwrap();
    assert!(rows.differing.is_empty() && rows.rows > 10_000, "{rows:?}");
    let check = oracle::amcheck(lab.package(), &a).unwrap();
    assert_eq!(check.databases, ["postgres"]);
    assert!(check.corruption.is_empty(), "{check:?}");

    // A change in the file of a page that only memory has otherwise: named by the server.
    let path = read
        .query_text("SELECT pg_relation_filepath('plain')")
        .unwrap()
        .unwrap();
    let path = idle.data().join(path);
    let mut bytes = fs::read(&path).unwrap();
    bytes[8192 - 5] ^= 4;
    fs::write(&path, &bytes).unwrap();
    let comparison =
        oracle::compare_nodes(lab.package(), &a, &b, &CompareOptions::default()).unwrap();
    assert_eq!(comparison.found, 1);
    let told = comparison.differences[0].to_string();
    for word in ["plain", "fork main", "block 0", "tuple 1", "8187"] {
        assert!(told.contains(word), "no {word} in: {told}");
    }
    bytes[8192 - 5] ^= 4;
    fs::write(&path, &bytes).unwrap();

    // Stopped, the first restartpoint is long ago: pages are in memory only, or were.
    for standby in [&read, &idle] {
        standby.run("SELECT pg_wal_replay_resume()");
    }
    play(
        &primary,
        "UPDATE plain SET filler = 'last' WHERE id % 7 = 0;\n",
    );
    pause_together(&primary, [&mut read, &mut idle]);
    for standby in [&mut read, &mut idle] {
        standby.stop(Stop::Fast).unwrap();
    }
    let line = refused(&read, &idle);
    assert_has!(line, "not on disk yet", "CHECKPOINT");

    read.start().unwrap();
    idle.start().unwrap();
    oracle::settle(&primary, &mut [&mut read, &mut idle]).unwrap();
    assert!(compare(&lab, &read, &idle).equal());
}

/// What a reader may leave behind: every table, by sequential and by index scans.
const READS: &str = "SET enable_seqscan = off;
SELECT count(*) FROM plain WHERE id > 0;
SELECT count(*) FROM plain WHERE filler > '0';
SELECT count(*) FROM plain WHERE filler = 'hot';
SELECT count(*) FROM shapes WHERE p <@ box '((0,0),(500,500))';
SELECT count(*) FROM shapes WHERE tags @> ARRAY[5];
RESET enable_seqscan;
SELECT sum(hashtext(p::text)) FROM plain p;
SELECT sum(hashtext(s::text)) FROM shapes s;
SELECT sum(length(data)) FROM big;
SELECT count(*) FROM locked;
SELECT count(*) FROM pg_class, pg_attribute WHERE attrelid = pg_class.oid;
";

/// Pauses replay on both standbys at the same position. The primary's background writer may
/// log something at any time, so that one of them gets further: then they try again.
fn pause_together(primary: &Server, standbys: [&mut Server; 2]) {
    let [a, b] = standbys;
    let began = std::time::Instant::now();
    loop {
        let [at_a, at_b] = [&mut *a, &mut *b].map(|standby| {
            standby.catch_up(primary).unwrap();
            pause(standby)
        });
        if at_a == at_b {
            return;
        }
        assert!(began.elapsed().as_secs() < 120, "{at_a} and {at_b}");
        for standby in [&*a, &*b] {
            standby.run("SELECT pg_wal_replay_resume()");
        }
    }
}

/// Pauses replay; where it stands then.
fn pause(standby: &Server) -> String {
    standby.run("SELECT pg_wal_replay_pause()");
    let began = std::time::Instant::now();
    let sql =
        "SELECT pg_last_wal_replay_lsn()::text WHERE pg_get_wal_replay_pause_state() = 'paused'";
    loop {
        if let Some(position) = standby.query_text(sql).unwrap() {
            return position;
        }
        assert!(began.elapsed().as_secs() < 120, "replay does not pause");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Each refusal says what to do, on two copies of a folder of which one is spoiled.
#[test]
fn what_cannot_be_compared_is_refused() {
    let lab = Lab::for_tests().unwrap();
    let mut primary = lab.primary("primary", None, &small()).unwrap();
    let mut standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
    let options = CompareOptions::default();
    let refused = |a: &std::path::Path, b: &std::path::Path, words: &[&str]| {
        let error = oracle::compare(lab.package(), a, b, &options).unwrap_err();
        let line = error.to_string();
        assert!(!line.contains('\n'), "{line}");
        for word in words {
            assert!(line.contains(word), "no \"{word}\" in: {line}");
        }
        let lockstep_verify::VerifyError::Oracle(error) = error else {
            panic!("{line}")
        };
        assert!(error.is_refusal(), "{line}");
    };
    refused(
        primary.data(),
        standby.data(),
        &["running server (a primary)", "stop it"],
    );

    oracle::settle(&primary, &mut [&mut standby]).unwrap();
    let behind = lab.folder().join("behind");
    plants::copy(standby.data(), &behind);
    standby.start().unwrap();
    play(
        &primary,
        "CREATE TABLE t AS SELECT generate_series(1, 1000);\n",
    );
    oracle::settle(&primary, &mut [&mut standby]).unwrap();
    refused(
        standby.data(),
        &behind,
        &["A is at", "B is at", "let the one behind replay"],
    );
    refused(&behind, standby.data(), &["let the one behind replay"]);

    // Another cluster, and the same with other checksums.
    let mut other = lab.primary("other", None, &small()).unwrap();
    other.stop(Stop::Fast).unwrap();
    refused(
        &behind,
        other.data(),
        &["system identifier", "standbys of one primary"],
    );
    let checked = lab.folder().join("checked");
    plants::copy(&behind, &checked);
    // initdb of 18 and later turns them on by default.
    let (change, before) = match lab.package().major().get() {
        ..18 => ("--enable", "data checksums off"),
        18.. => ("--disable", "data checksums on"),
    };
    let changed = std::process::Command::new(lab.package().program("pg_checksums"))
        .args([change, "--no-sync", "-D"])
        .arg(&checked)
        .output()
        .unwrap();
    assert!(changed.status.success(), "{changed:?}");
    refused(&behind, &checked, &[before, "pg_checksums"]);

    // No data folder, another major, a damaged control file, a crash.
    refused(
        &behind,
        lab.folder(),
        &["not a data directory", "PG_VERSION"],
    );
    refused(&behind, &lab.folder().join("nowhere"), &["no such folder"]);
    let spoiled = lab.folder().join("spoiled");
    plants::copy(&behind, &spoiled);
    fs::write(spoiled.join("PG_VERSION"), "14\n").unwrap();
    refused(&behind, &spoiled, &["PostgreSQL 14", "one major"]);
    fs::copy(behind.join("PG_VERSION"), spoiled.join("PG_VERSION")).unwrap();
    let control = spoiled.join("global/pg_control");
    let mut bytes = fs::read(&control).unwrap();
    bytes[60] ^= 1;
    fs::write(&control, &bytes).unwrap();
    refused(
        &behind,
        &spoiled,
        &["control file", "set up this standby again"],
    );
    primary.kill().unwrap();
    refused(
        primary.data(),
        standby.data(),
        &["not shut down cleanly", "start it"],
    );
}
