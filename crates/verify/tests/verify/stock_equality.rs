//! The oracle's own test: standbys of stock PostgreSQL, which replay the same random WAL,
//! must be found equal, whether one of them crashed on the way or not.
//!
//! Scale: `LOCKSTEP_SEEDS` seeds without crashes, `LOCKSTEP_CRASHES` crashes, from seed
//! `SEED` on.

use std::fs::{self, File};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{Server, Settings};
use lockstep_verify::VerifyError;
use lockstep_verify::crash::{Plan, PowerDisk, standby_on_disk};
use lockstep_verify::oracle::{
    self, CompareOptions, Comparison, FreeSpace, Node, OracleError, Side, Target,
};
use lockstep_verify::random::{self, RandomWorkload, Size, Summary};

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

/// How often standbys are settled until they stand at the same position: whoever looks at
/// a primary's catalogs may prune a page, which is logged.
const ATTEMPTS: u32 = 4;

fn settings() -> Settings {
    let mut settings = random::settings();
    for (name, value) in [
        ("log_checkpoints", "on"),
        ("wal_retrieve_retry_interval", "100ms"),
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

/// A number from the environment.
fn number(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {text}")),
        Err(_) => otherwise,
    }
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
        server.execute("SELECT pg_wal_replay_pause()").unwrap();
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
        server.execute("SELECT pg_wal_replay_resume()").unwrap();
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

#[test]
fn seeds_leave_two_stock_standbys_equal() {
    let (first, seeds) = (number("SEED", 1), number("LOCKSTEP_SEEDS", 2));
    let lab = TestLab::stock().space_mb(SPACE_MB).start().unwrap();
    let mut primary = lab.primary("primary", None, &settings()).unwrap();
    let mut one = lab.standby(&primary, "one", &Settings::new()).unwrap();
    let mut other = lab.standby(&primary, "other", &Settings::new()).unwrap();
    autovacuum(&mut primary, "on");
    let (mut different, mut pages) = (Vec::new(), 0);
    for seed in first..first + seeds {
        let summary = run(&lab, &primary, seed, Size::default());
        let comparison = compare(&lab, &mut primary, &mut one, &mut other, FreeSpace::Strict);
        autovacuum(&mut primary, "on");
        report(&format!("seed {seed}: {summary}"), &comparison);
        pages += comparison.pages;
        if !comparison.equal() {
            different.push(seed);
        }
    }
    println!(
        "stock equality: {seeds} seeds from {first}, {pages} pages compared, {} seeds with differences",
        different.len()
    );
    assert!(
        different.is_empty(),
        "seeds with differences: {different:?}"
    );
    assert!(pages > 0 || seeds == 0);
}

#[test]
fn a_standby_that_crashes_stays_equal() {
    let (first, crashes) = (number("SEED", 1), number("LOCKSTEP_CRASHES", 2));
    let without_power = PowerDisk::unavailable();
    if let Some(reason) = &without_power {
        println!("SKIP power cuts: {reason}");
    }
    // For the function that writes pages out, which the comparison of rows asks for. The
    // library is preloaded nowhere: these are stock standbys.
    let lab = TestLab::with_extension()
        .space_mb(SPACE_MB)
        .start()
        .unwrap();
    let mut primary = lab.primary("primary", None, &settings()).unwrap();
    primary
        .execute("CREATE EXTENSION lockstep; CREATE EXTENSION amcheck")
        .unwrap();
    let mut steady = lab.standby(&primary, "steady", &Settings::new()).unwrap();
    let (mut shaken, disk) = match without_power {
        None => {
            let (server, disk) =
                standby_on_disk(&lab, &primary, "shaken", &Settings::new(), DISK_MB).unwrap();
            (server, Some(disk))
        }
        Some(_) => (
            lab.standby(&primary, "shaken", &Settings::new()).unwrap(),
            None,
        ),
    };
    autovacuum(&mut primary, "on");
    let mut plan = Plan::new(first, disk.is_some());
    let (mut left, mut seed, mut different) = (crashes, first, Vec::new());
    while left > 0 {
        thread::scope(|scope| {
            let workload = scope.spawn(|| run(&lab, &primary, seed, CRASH_SIZE));
            for crash in plan.by_ref().take(CRASHES_AT_A_TIME.min(left as usize)) {
                let (victim, moment) = (crash.victim, crash.moment.to_string());
                let replayed = crash
                    .run(&primary, &mut shaken, disk.as_ref())
                    .unwrap_or_else(|error| panic!("seed {seed}, {victim} {moment}: {error}"));
                let replayed = replayed.map_or("nothing".to_owned(), |lsn| lsn.to_string());
                println!("seed {seed}: {victim} {moment}, {replayed} replayed");
                left -= 1;
            }
            println!("seed {seed}: {}", workload.join().unwrap());
        });
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
        "crashes: {crashes} in {} seeds from {first}, {} seeds with differences",
        seed - first,
        different.len()
    );
    assert!(
        different.is_empty(),
        "seeds with differences: {different:?}"
    );
}
