//! Standbys that replay the same random WAL must be equal, whether one of them crashed on the
//! way or not. Two stock standbys are the oracle's own test; a stock one beside one with
//! helpers is that of parallel replay.
//!
//! Scale: `LOCKSTEP_SEEDS` seeds without crashes, `LOCKSTEP_CRASHES` crashes, from seed
//! `SEED` on.

use std::fs::{self, File};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::{TestLab, number};
use lockstep_lab::server::{Server, Settings};
use lockstep_verify::VerifyError;
use lockstep_verify::crash::{
    Crash, CrashError, Moment, Plan, PowerDisk, Process, Victim, standby_on_disk,
};
use lockstep_verify::oracle::{
    self, CompareOptions, Comparison, FreeSpace, Node, OracleError, Side, Target,
};
use lockstep_verify::random::{self, RandomWorkload, Size, Summary};

use crate::replay::{Backlogs, Replay, Work};

/// Crashes of one standby during one workload.
const CRASHES_AT_A_TIME: usize = 3;

/// The workload while a standby crashes: long enough for all the crashes.
const CRASH_SIZE: Size = Size {
    sessions: 4,
    statements: 400,
};

/// Megabytes of the disk that loses power; its file is sparse.
const DISK_MB: u64 = 6000;

/// Megabytes that these labs need.
const SPACE_MB: u64 = 4000;

/// Rounds in which standbys are settled until they stand at one position: whoever looks at
/// a primary's catalogs may prune a page, which is logged.
const ATTEMPTS: u32 = 4;

fn settings() -> Settings {
    let mut settings = random::settings();
    for (name, value) in [
        ("log_checkpoints", "on"),
        ("wal_retrieve_retry_interval", "100ms"),
        // A standby that is half a minute behind, on a slow machine, must still take sessions:
        // it waits for those who ask it how far it is, and does not cancel them.
        ("max_standby_streaming_delay", "-1"),
        ("max_standby_archive_delay", "-1"),
        // Pages are held against the WAL that is still there.
        ("wal_keep_size", "256MB"),
        // Until the standbys are made: what vacuum writes to free space maps is not in the
        // WAL, so a standby that was copied before it keeps another map than one copied
        // after it.
        ("autovacuum", "off"),
    ] {
        settings.insert(name.to_owned(), value.to_owned());
    }
    settings
}

fn run(lab: &Lab, primary: &Server, seed: u64, size: Size) -> Summary {
    let summary = random::run(lab, primary, &RandomWorkload::new(seed, size)).unwrap();
    let unexpected: Vec<_> = summary.unexpected.iter().map(ToString::to_string).collect();
    assert!(unexpected.is_empty(), "seed {seed}: {unexpected:#?}");
    summary
}

/// Autovacuum writes whenever it likes, also while the standbys are stopped one by one.
fn autovacuum(primary: &mut Server, on: &str) {
    primary.set([("autovacuum", on)]).unwrap();
    primary.reload().unwrap();
    let busy =
        "SELECT count(*)::text FROM pg_stat_activity WHERE backend_type = 'autovacuum worker'";
    while on == "off" && primary.query_text(busy).unwrap().as_deref() != Some("0") {
        thread::sleep(Duration::from_millis(20));
    }
}

/// How the free space maps of these standbys are compared. With checksums a standby that changes a map
/// without WAL does not mark the page as changed (`MarkBufferDirtyHint` in recovery), so the change stays
/// only if something else writes the page: that differs between two stock standbys as well.
fn of_free_space(primary: &Server) -> FreeSpace {
    let checksums = primary.query_text("SHOW data_checksums").unwrap();
    match checksums.as_deref() {
        Some("off") => FreeSpace::Strict,
        _ => FreeSpace::Ignore,
    }
}

/// Empty segments of WAL as a standby makes them before it needs them, more of them than
/// of others: which file of a folder comes first is up to the file system.
fn make_segments_ahead(server: &Server) -> Vec<PathBuf> {
    const SEGMENT: u64 = 16 << 20;
    let wal = server.data().join("pg_wal");
    (0..100)
        .map(|number| wal.join(format!("00000001000000FE000000{number:02X}")))
        .inspect(|path| File::create_new(path).unwrap().set_len(SEGMENT).unwrap())
        .collect()
}

/// Settles the standbys and compares them; leaves both running, autovacuum off.
fn compare(
    lab: &Lab,
    primary: &mut Server,
    a: &mut Server,
    b: &mut Server,
    free_space: FreeSpace,
) -> Comparison {
    autovacuum(primary, "off");
    let options = CompareOptions {
        free_space,
        limit: 20,
    };
    let mut attempt = 1;
    let comparison = loop {
        oracle::settle(primary, &mut [a, b]).unwrap();
        let ahead = make_segments_ahead(a);
        let compared = oracle::compare(lab.package(), a.data(), b.data(), &options);
        for segment in ahead {
            fs::remove_file(segment).unwrap();
        }
        match compared {
            Err(VerifyError::Oracle(OracleError::Positions { .. })) if attempt < ATTEMPTS => {
                attempt += 1;
                a.start().unwrap();
                b.start().unwrap();
            }
            result => break result.unwrap(),
        }
    };
    a.start().unwrap();
    b.start().unwrap();
    comparison
}

/// Compares what SQL sees on both, and checks the second one's heaps against its indexes;
/// what is wrong.
fn compare_rows(lab: &Lab, primary: &Server, a: &mut Server, b: &mut Server) -> Vec<String> {
    let open = |side, server: &mut Server| {
        server.catch_up(primary).unwrap();
        server.run("SELECT pg_wal_replay_pause()");
        let state = "SELECT pg_get_wal_replay_pause_state()";
        while server.query_text(state).unwrap().as_deref() != Some("paused") {
            thread::sleep(Duration::from_millis(5));
        }
        let target = Target::Folder(server.data().to_path_buf());
        Node::open(lab.package(), side, &target).unwrap()
    };
    let (node_a, node_b) = (open(Side::A, a), open(Side::B, b));
    let rows = oracle::compare_rows(&node_a, &node_b).unwrap();
    assert!(rows.tables > 100 && rows.rows > 1000, "{rows:?}");
    let check = oracle::amcheck(lab.package(), &node_b).unwrap();
    assert!(!check.databases.is_empty());
    println!(
        "  {} rows of {} tables, {} tables differ; pg_amcheck: {} complaints",
        rows.rows,
        rows.tables,
        rows.differing.len(),
        check.corruption.len()
    );
    for server in [a, b] {
        server.run("SELECT pg_wal_replay_resume()");
    }
    let mut wrong = rows.differing;
    wrong.extend(check.corruption);
    for line in &wrong {
        println!("  {line}");
    }
    wrong
}

fn report(what: &str, comparison: &Comparison) {
    println!(
        "{what}: {} files, {} pages, {} differences at {}",
        comparison.files, comparison.pages, comparison.found, comparison.position
    );
    for difference in &comparison.differences {
        println!("  {difference}");
    }
}

/// A lab and its primary, which may have standbys of any kind. The comparison of rows asks for
/// a function of the extension, which stock standbys do not preload.
fn lab_and_primary() -> (Lab, Server) {
    let lab = TestLab::with_extension()
        .space_mb(SPACE_MB)
        .start()
        .unwrap();
    let primary = lab.primary("primary", None, &settings()).unwrap();
    primary.run("CREATE EXTENSION lockstep; CREATE EXTENSION amcheck");
    (lab, primary)
}

/// Runs seeds beside a stock standby and one with this replay.
fn seeds_leave_equal(replay: Replay) {
    let (first, seeds) = (
        number("SEED").unwrap_or(1),
        number("LOCKSTEP_SEEDS").unwrap_or(1),
    );
    let (lab, mut primary) = lab_and_primary();
    let mut one = lab.standby(&primary, "one", &Settings::new()).unwrap();
    let ours = replay.settings();
    let mut other = lab.standby(&primary, "other", &ours).unwrap();
    autovacuum(&mut primary, "on");
    let (mut different, mut pages, mut work) = (Vec::new(), 0, Work::default());
    for seed in first..first + seeds {
        let backlogs = Backlogs::start(replay, &other, seed);
        let summary = run(&lab, &primary, seed, Size::default());
        work.add(backlogs.finish(&primary));
        let free_space = of_free_space(&primary);
        let comparison = compare(&lab, &mut primary, &mut one, &mut other, free_space);
        report(&format!("seed {seed}: {summary}"), &comparison);
        let wrong = compare_rows(&lab, &primary, &mut one, &mut other);
        autovacuum(&mut primary, "on");
        pages += comparison.pages;
        if !comparison.equal() || !wrong.is_empty() {
            different.push(seed);
        }
    }
    println!(
        "equality, {replay}: {seeds} seeds from {first}, {pages} pages compared, {work}, {} seeds with differences",
        different.len()
    );
    assert!(
        different.is_empty(),
        "seeds with differences: {different:?}"
    );
    assert!(pages > 0 || seeds == 0);
}

#[test]
#[ignore = "long: make test-bed"]
fn seeds_leave_two_stock_standbys_equal() {
    seeds_leave_equal(Replay::Stock);
}

#[test]
fn seeds_leave_a_standby_with_helpers_equal_to_a_stock_one() {
    seeds_leave_equal(Replay::Helpers);
}

/// The crashes of a standby with this replay.
fn plan(replay: Replay, seed: u64, power: bool) -> impl Iterator<Item = Crash> {
    let helper = Victim::Process(Process::ReplayHelper);
    let mut plan = Plan::new(seed);
    if power {
        // It loses data that no other crash loses, so it comes in a third of the crashes.
        plan = plan.and(Victim::Power, 4);
    }
    let mut first = None;
    if replay == Replay::Helpers {
        plan = plan.and(helper, 2);
        // Also where few crashes are asked for.
        first = Some(Crash {
            victim: helper,
            moment: Moment::Further(1_000_000),
        });
    }
    first.into_iter().chain(plan)
}

/// A standby with this replay, on a disk that can lose power if there can be one.
fn on_disk(lab: &Lab, primary: &Server, replay: Replay) -> (Server, Option<PowerDisk>) {
    let settings = replay.settings();
    if let Some(reason) = PowerDisk::unavailable() {
        println!("SKIP power cuts: {reason}");
        return (lab.standby(primary, "shaken", &settings).unwrap(), None);
    }
    let (server, disk) = standby_on_disk(lab, primary, "shaken", &settings, DISK_MB).unwrap();
    (server, Some(disk))
}

/// Crashes the standby; false if there was nothing to kill.
fn crash(crash: &Crash, primary: &Server, shaken: &mut Server, disk: Option<&PowerDisk>) -> bool {
    let what = format!("{} {}", crash.victim, crash.moment);
    let done = crash.run(primary, shaken, disk);
    println!(
        "  {what}, {}",
        match &done {
            Ok(Some(replayed)) => format!("{replayed} replayed"),
            Ok(None) => "nothing replayed".to_owned(),
            Err(error) => error.to_string(),
        }
    );
    match done {
        // Not every process is there soon after a start.
        Err(VerifyError::Crash(CrashError::NoProcess { .. })) => false,
        done => done.is_ok() || panic!("{what}: {}", done.unwrap_err()),
    }
}

/// Crashes a standby with this replay, and compares it with a stock one that never crashed.
fn crashes_leave_equal(replay: Replay) {
    let (first, crashes) = (
        number("SEED").unwrap_or(1),
        number("LOCKSTEP_CRASHES").unwrap_or(2),
    );
    let (lab, mut primary) = lab_and_primary();
    let mut steady = lab.standby(&primary, "steady", &Settings::new()).unwrap();
    let (mut shaken, disk) = on_disk(&lab, &primary, replay);
    autovacuum(&mut primary, "on");
    let mut plan = plan(replay, first, disk.is_some());
    let (mut left, mut seed, mut different) = (crashes, first, Vec::new());
    let mut work = Work::default();
    while left > 0 {
        println!("seed {seed}");
        let backlogs = Backlogs::start(replay, &shaken, seed);
        thread::scope(|scope| {
            let workload = scope.spawn(|| run(&lab, &primary, seed, CRASH_SIZE));
            for next in plan.by_ref().take(CRASHES_AT_A_TIME.min(left as usize)) {
                left -= u64::from(crash(&next, &primary, &mut shaken, disk.as_ref()));
            }
            println!("  {}", workload.join().unwrap());
        });
        work.add(backlogs.finish(&primary));
        // The free space map is not in the WAL and may be behind after a crash.
        let comparison = compare(
            &lab,
            &mut primary,
            &mut steady,
            &mut shaken,
            FreeSpace::Ignore,
        );
        report(&format!("seed {seed}"), &comparison);
        let wrong = compare_rows(&lab, &primary, &mut steady, &mut shaken);
        autovacuum(&mut primary, "on");
        if !comparison.equal() || !wrong.is_empty() {
            different.push(seed);
        }
        seed += 1;
    }
    println!(
        "crashes, {replay}: {crashes} in {} seeds from {first}, {work}, {} seeds with differences",
        seed - first,
        different.len()
    );
    assert!(
        different.is_empty(),
        "seeds with differences: {different:?}"
    );
}

#[test]
#[ignore = "long: make test-bed"]
fn a_stock_standby_that_crashes_stays_equal() {
    crashes_leave_equal(Replay::Stock);
}

#[test]
#[ignore = "long: make test-bed"]
fn a_standby_with_helpers_that_crashes_stays_equal() {
    crashes_leave_equal(Replay::Helpers);
}
