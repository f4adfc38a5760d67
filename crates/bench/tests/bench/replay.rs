//! Rounds of `bench replay` with tiny recordings.

use std::collections::BTreeMap;
use std::time::Duration;

use lockstep_bench::replay::local::{self, StagedWal};
use lockstep_bench::replay::round::StandbySpec;
use lockstep_bench::replay::temperature::Temperature;
use lockstep_bench::replay::wal_contents::{self, Contents};
use lockstep_bench::replay::work::{self, Amount, Work, WorkSize};
use lockstep_bench::replay::{crash, shelf, sysbench};
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::Settings;
use lockstep_player::Recording;

const SIZE: WorkSize = WorkSize {
    scale: 1,
    warehouses: 1,
    rows: 500,
    clients: Some(2),
};

const AMOUNT: Amount = Amount {
    lead_in: None,
    bytes: 300_000,
    longest: Duration::from_secs(120),
};

#[test]
#[ignore = "long: make test-bed"]
fn a_kept_recording_is_replayed_from_pg_wal_again_and_again() {
    let lab = TestLab::stock().start().unwrap();
    let kept = tempfile::tempdir().unwrap();
    let recorded = work::record(&lab, Work::Update, SIZE, AMOUNT).unwrap();
    assert!(recorded.recording.bytes() >= AMOUNT.bytes);
    let facts = recorded.facts();
    let made_for = shelf::MadeFor::new(&lab, Work::Update, SIZE, AMOUNT).unwrap();
    let shelf = shelf::Shelf::open(kept.path()).unwrap();
    let from = recorded.recording.folder();
    shelf.keep("update", made_for.clone(), facts, from).unwrap();
    let (folder, found) = shelf.find("update", &made_for).unwrap();
    assert_eq!(found, facts);
    let recording = Recording::open(&folder).unwrap();
    let staged = StagedWal::copy(&lab, &recording).unwrap();
    let spec = StandbySpec {
        recording: &recording,
        data_bytes: facts.data_bytes,
        temperature: Temperature::Cached,
        settings: Settings::new(),
    };
    // The second round has the same segments: the first one must have left them as they were.
    for name in ["one", "two"] {
        let outcome = local::run(&lab, name, &spec, &staged, 0).unwrap();
        assert!(outcome.seconds > 0.0, "{outcome:?}");
    }
    // A server with slow reads has loaded the library, and counts.
    let spec = StandbySpec {
        temperature: Temperature::PartSlow,
        ..spec
    };
    let outcome = local::run(&lab, "slow", &spec, &staged, 0).unwrap();
    let reads = outcome.reads.unwrap();
    assert!(reads.found <= reads.reads, "{reads:?}");
    // Nothing is left but the segments that further rounds get.
    let left = std::fs::read_dir(lab.folder()).unwrap().flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    assert!(left.contains(&"staged-wal".into()), "{left:?}");
    for gone in ["one", "two", "slow", "slow-reads-slow", "incoming-wal"] {
        assert!(!left.contains(&gone.into()), "{left:?}");
    }
}

#[test]
#[ignore = "long: make test-bed"]
fn every_kind_of_writes_that_a_procedure_makes_can_be_recorded() {
    let lab = TestLab::stock().start().unwrap();
    for work in [
        Work::TpcB,
        Work::SimpleUpdate,
        Work::Insert,
        Work::UuidInsert,
    ] {
        contents_of(&lab, work);
    }
}

/// What a tiny recording of this kind is made of.
fn contents_of(lab: &Lab, work: Work) -> Contents {
    let recorded = work::record(lab, work, SIZE, AMOUNT).unwrap();
    assert!(recorded.records > 100, "{recorded:?}");
    let (contents, simulated) = wal_contents::read(&recorded.recording, 1).unwrap();
    recorded.remove().unwrap();
    assert!(
        simulated.look_ahead > 0.5 && simulated.with_helpers > 0.5,
        "{simulated:?}"
    );
    for shares in [&contents.kinds, &contents.causes] {
        let all: f64 = shares.values().sum();
        assert!(all > 0.0 && all < 1.01, "{contents:?}");
    }
    contents
}

fn has(shares: &BTreeMap<String, f64>, manager: &str) -> bool {
    shares.keys().any(|name| name.starts_with(manager))
}

#[test]
fn a_recording_from_a_checkpoint_on_is_mostly_images() {
    let lab = TestLab::stock().start().unwrap();
    let contents = contents_of(&lab, Work::TpcBCheckpoint);
    assert!(contents.image_share > 0.5, "{contents:?}");
    assert!(has(&contents.images, "Heap ") && has(&contents.kinds, "Transaction COMMIT"));
    let sum: f64 = contents.images.values().sum();
    assert!((0.95..1.01).contains(&sum), "{contents:?}");
}

/// Images for hints are only written with checksums.
#[test]
#[ignore = "long: make test-bed"]
fn production_has_records_of_keys_indexes_and_checksums() {
    let lab = TestLab::stock().space_mb(3000).start().unwrap();
    for work in [Work::Production, Work::ProductionLz4] {
        let contents = contents_of(&lab, work);
        for kind in ["Gin ", "Gist ", "Heap LOCK"] {
            assert!(has(&contents.kinds, kind), "{kind} is not in {contents:?}");
        }
        assert!(has(&contents.images, "XLOG FPI_FOR_HINT"), "{contents:?}");
    }
}

#[test]
#[ignore = "long: make test-bed"]
fn sysbench_writes_where_it_is_installed() {
    if !sysbench::is_there() {
        eprintln!("{}", sysbench::left_out());
        return;
    }
    let lab = TestLab::stock().start().unwrap();
    let contents = contents_of(&lab, Work::Sysbench);
    assert!(has(&contents.kinds, "Heap DELETE"), "{contents:?}");
}

#[test]
fn each_recovery_from_the_same_crash_replays_the_same_wal() {
    let lab = TestLab::stock().start().unwrap();
    let crashed = crash::crash(&lab, SIZE, AMOUNT.bytes).unwrap();
    let recover = |name| crash::recover(&lab, name, &crashed, Settings::new()).unwrap();
    let (one, two) = (recover("one"), recover("two"));
    assert!(one.redo.bytes >= AMOUNT.bytes, "{one:?}");
    assert_eq!(one.redo.bytes, two.redo.bytes);
    assert!(one.ready_seconds >= one.redo.seconds, "{one:?}");
}
