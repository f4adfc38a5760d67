//! The oracle's own test: standbys of stock PostgreSQL, which replay the same random WAL,
//! must be found equal, whether one of them crashed on the way or not.
//!
//! Scale: `LOCKSTEP_SEEDS` seeds without crashes, `LOCKSTEP_CRASHES` crashes, from seed
//! `SEED` on.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::thread;

use lockstep_lab::LabError;
use lockstep_lab::cluster::{Lab, LabOptions};
use lockstep_lab::crash::{Plan, PowerDisk};
use lockstep_lab::guard::{self, ReaperProgram};
use lockstep_lab::oracle::{self, CompareOptions, Comparison, FreeSpace, OracleError};
use lockstep_lab::random::{self, RandomWorkload, Size, Summary};
use lockstep_lab::server::{Server, Settings};

/// Crashes of one standby during one workload.
const CRASHES_AT_A_TIME: usize = 3;

/// The workload while a standby crashes: long enough for all the crashes.
const CRASH_SIZE: Size = Size {
    sessions: 4,
    statements: 400,
};

/// Megabytes of the disk that loses power; its file is sparse.
const DISK_MB: u64 = 6000;

/// How often standbys are settled until they stand at the same position: whoever looks at
/// a primary's catalogs may prune a page, which is logged.
const ATTEMPTS: u32 = 4;

/// The reaper of the labs below.
#[test]
fn reaper_entry() {
    if std::env::args().next().as_deref() == Some(guard::REAPER_NAME) {
        guard::run_reaper().unwrap();
    }
}

fn lab() -> Lab {
    let major = std::env::var("PG").unwrap_or_else(|_| "15".to_owned());
    Lab::new(&LabOptions {
        major: major.parse().unwrap(),
        stage: None,
        reaper: ReaperProgram {
            program: std::env::current_exe().unwrap(),
            args: ["--exact", "reaper_entry", "--nocapture"]
                .map(str::to_owned)
                .to_vec(),
        },
        space_mb: 4000,
        pinned: false,
    })
    .unwrap()
}

fn settings() -> Settings {
    let mut settings = random::settings();
    for (name, value) in [
        ("log_checkpoints", "on"),
        ("wal_retrieve_retry_interval", "100ms"),
        // Pages are held against the WAL that is still there.
        ("wal_keep_size", "256MB"),
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
        thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Settles the standbys and compares them; leaves both running.
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
        match oracle::compare(lab.package(), a.data(), b.data(), &options) {
            Err(LabError::Oracle(OracleError::Positions { .. })) if attempt < ATTEMPTS => {
                attempt += 1;
                a.start().unwrap();
                b.start().unwrap();
            }
            result => break result.unwrap(),
        }
    };
    autovacuum(primary, "on");
    a.start().unwrap();
    b.start().unwrap();
    comparison
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
    let lab = lab();
    let mut primary = lab.primary("primary", None, &settings()).unwrap();
    let mut one = lab.standby(&primary, "one", &Settings::new()).unwrap();
    let mut other = lab.standby(&primary, "other", &Settings::new()).unwrap();
    let (mut different, mut pages) = (Vec::new(), 0);
    for seed in first..first + seeds {
        let summary = run(&lab, &primary, seed, Size::default());
        let comparison = compare(&lab, &mut primary, &mut one, &mut other, FreeSpace::Strict);
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
    let lab = lab();
    let mut primary = lab.primary("primary", None, &settings()).unwrap();
    let mut steady = lab.standby(&primary, "steady", &Settings::new()).unwrap();
    let (mut shaken, disk) = match without_power {
        None => {
            let (server, disk) = lab
                .standby_on_disk(&primary, "shaken", &Settings::new(), DISK_MB)
                .unwrap();
            (server, Some(disk))
        }
        Some(_) => (
            lab.standby(&primary, "shaken", &Settings::new()).unwrap(),
            None,
        ),
    };
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
        if !comparison.equal() {
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
