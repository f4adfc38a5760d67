//! The page oracle on real standbys.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod bed;
mod plants;

use bed::Bed;
use lockstep_lab::cluster::{Lab, LabOptions};
use lockstep_lab::guard::{self, ReaperProgram};
use lockstep_lab::oracle::{self, CompareOptions, Comparison, FreeSpace};
use lockstep_lab::server::{SUPERUSER, Server, Settings, Stop};

/// The reaper of the labs below; see tests/servers.rs.
#[test]
fn reaper_entry() {
    if std::env::args().next().as_deref() == Some(guard::REAPER_NAME) {
        guard::run_reaper().unwrap();
    }
}

fn lab() -> Lab {
    let major = std::env::var("PG").unwrap_or_else(|_| "15".to_owned());
    let options = LabOptions {
        major: major.parse().unwrap(),
        stage: None,
        reaper: ReaperProgram {
            program: std::env::current_exe().unwrap(),
            args: ["--exact", "reaper_entry", "--nocapture"]
                .map(str::to_owned)
                .to_vec(),
        },
        space_mb: 500,
        pinned: false,
    };
    Lab::new(&options).unwrap()
}

fn small() -> Settings {
    [
        ("shared_buffers", "16MB"),
        ("max_connections", "20"),
        ("fsync", "off"),
        ("autovacuum", "off"),
        ("wal_keep_size", "512MB"),
        ("max_prepared_transactions", "5"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

/// Tables with every built-in index method, and work that leaves its traces in all forks.
const SCENE: &str = include_str!("scene.sql");

/// One session, one statement at a time: VACUUM takes no company.
fn play(server: &Server, script: &str) {
    let mut client = server.connect(SUPERUSER, "test").unwrap();
    for statement in script.split_inclusive(";\n") {
        client
            .batch_execute(statement)
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
fn stock_standbys_are_equal() {
    let lab = lab();
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
fn planted_faults_are_found() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    let rounds = number("LOCKSTEP_PLANTS").unwrap_or(1);
    let seed = number("SEED").unwrap_or(1);
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
