//! The simulated pipeline: bounds that hold for any WAL, and WAL of which the answer is known.

use lockstep_wal::analysis::{Analysis, Limit, Report};
use lockstep_wal::class::{Cause, Rules, Stage};
use lockstep_wal::costs::{Costs, PARTS, PipelineCosts};
use lockstep_wal::record::{Block, Header, Record, Relation};
use lockstep_wal::segment::SegmentSize;
use lockstep_wire::Lsn;

const HELPERS: [usize; 7] = [1, 2, 3, 4, 8, 16, 64];

/// Resource managers and operations of one class each: for helpers, at its turn, barrier.
const HEAP_INSERT: (u8, u8) = (10, 0x00);
const HEAP_VISIBLE: (u8, u8) = (9, 0x40);
const BTREE_INSERT: (u8, u8) = (11, 0x00);
const COMMIT: (u8, u8) = (1, 0x00);
const CHECKPOINT: (u8, u8) = (0, 0x10);
const HINT_IMAGE: (u8, u8) = (0, 0xA0);

/// Costs in which reading and the pipeline are nearly free, so that redo decides.
fn redo_only() -> Costs {
    let costs = Costs::built_in().unwrap();
    let mut parts = costs.parts();
    parts[..2].fill(0.0);
    // What a block costs depends neither on those before nor on looking ahead.
    parts[8] = 0.0;
    // Nor does a record on its length.
    parts[11] = 0.0;
    Costs {
        pipeline: PipelineCosts {
            hidden: 0.0,
            ..PipelineCosts::default().scaled(0.01)
        },
        ..costs.with_parts(parts)
    }
}

/// A record's kind, transaction, blocks and main data.
type Written = ((u8, u8), u32, Vec<Block>, [u8; 16]);

fn block(id: u8, number: u32) -> Block {
    Block {
        id,
        relation: Relation {
            tablespace: 1663,
            database: 5,
            number: 16_384,
        },
        fork: 0,
        number,
        image: None,
        will_init: false,
        data: 0,
    }
}

/// Analyzes records of 64 bytes, each of a kind and with blocks of these numbers.
fn analyzed(costs: Costs, records: &[((u8, u8), Vec<u32>)]) -> Report {
    let records: Vec<_> = records
        .iter()
        .map(|(kind, blocks)| (*kind, 0, blocks.clone()))
        .collect();
    analyzed_by(Stage::BeforeConsistency, costs, &records)
}

/// A report by the rules of a stage, each record of a transaction.
fn analyzed_by(stage: Stage, costs: Costs, records: &[((u8, u8), u32, Vec<u32>)]) -> Report {
    let records: Vec<_> = records
        .iter()
        .map(|(kind, xid, blocks)| {
            let blocks = blocks.iter().zip(0..);
            let blocks = blocks.map(|(number, id)| block(id, *number)).collect();
            (*kind, *xid, blocks, [0; 16])
        })
        .collect();
    analyzed_whole(stage, costs, &records)
}

/// A report on records with their blocks and main data.
fn analyzed_whole(stage: Stage, costs: Costs, records: &[Written]) -> Report {
    let size = SegmentSize::new(16 << 20).unwrap();
    let rules = Rules { stage, major: 15 };
    let mut analysis = Analysis::new(costs, size, rules, &HELPERS);
    for (number, (kind, xid, blocks, main)) in records.iter().enumerate() {
        let start = 0x100_0028 + 64 * number as u64;
        analysis.add(&Record {
            start: Lsn::from(start),
            end: Lsn::from(start + 64),
            header: Header {
                length: 64,
                xid: *xid,
                previous: Lsn::from(start - 64),
                info: kind.1,
                manager: kind.0,
                crc: 0,
            },
            blocks: blocks.clone(),
            main,
        });
    }
    analysis.finish().unwrap()
}

/// What no pipeline can break, and what ours must not.
fn check_bounds(report: &Report) {
    let redo = report.redo_ns / 1e9;
    for outcome in &report.outcomes {
        let processes = outcome.helpers as f64 + 1.0;
        let seconds = outcome.seconds * 1.000_001;
        assert!(seconds >= redo / processes, "{outcome:?} {redo}");
        assert!(
            seconds * 1e9 >= report.critical.ns,
            "{outcome:?} {report:?}"
        );
        assert!(seconds >= report.own_seconds, "{outcome:?} {report:?}");
        let bound = report.bound().0 * 1.000_001;
        assert!(outcome.speedup <= bound, "{outcome:?} {bound}");
        assert!((0.0..=1.0).contains(&outcome.by_helpers), "{outcome:?}");
    }
    assert!(report.critical.records <= report.all.records);
    assert!(report.critical.ns <= report.redo_ns * 1.000_001);
}

/// Rule 4 of `extension/src/replay/README.md`.
#[test]
fn what_clears_a_map_waits_only_for_what_sets_bits_of_its_page() {
    let mut clears = [0; 16];
    clears[2] = 1;
    let map = Block {
        fork: 2,
        ..block(0, 0)
    };
    let insert = |number: u32| (HEAP_INSERT, 7, vec![block(0, number)], clears);
    let held = |records: &[_]| {
        let report = analyzed_whole(Stage::HotStandby, redo_only(), records);
        report
            .held
            .get(&Cause::Map)
            .map_or(0, |held| held.share.records)
    };
    let mut records: Vec<_> = (0..2_000).map(insert).collect();
    assert_eq!(held(&records), 0);
    // It and what may be in the queue with it, on that page of the map.
    records[1_000] = (HEAP_VISIBLE, 0, vec![map, block(1, 5_000)], [0; 16]);
    assert_eq!(held(&records), 1 + 512);
    records[1_100] = insert(40_000);
    assert_eq!(held(&records), 512);
    // A record that names the page itself waits as for any block; others wait for it.
    records[1_101].2.push(Block { id: 1, ..map });
    assert_eq!(held(&records), 1 + 99 + 512);
}

/// Rule 4 again, of the other map. The image itself has its turn, and is no barrier.
#[test]
fn what_enters_free_space_waits_only_for_an_image_of_its_page() {
    let held = |relation: u32, map_block: u32| {
        let mut image = Block {
            fork: 1,
            ..block(0, map_block)
        };
        image.relation.number += relation;
        let records: Vec<Written> = (0..2_000)
            .map(|number| match number {
                1_000 => (HINT_IMAGE, 0, vec![image.clone()], [0; 16]),
                _ => (HEAP_INSERT, 0, vec![block(0, number)], [0; 16]),
            })
            .collect();
        let report = analyzed_whole(Stage::HotStandby, redo_only(), &records);
        assert_eq!(report.barriers, 0);
        report.held[&Cause::Map].share.records
    };
    assert_eq!(held(0, 2), 1 + 512);
    assert_eq!(held(0, 3), 1);
    assert_eq!(held(1, 2), 1);
}

#[test]
fn independent_records_use_every_helper() {
    // Two of these never meet in the pipeline's table, nor often in that of the chains.
    let records: Vec<_> = (0..60_000).map(|n| (BTREE_INSERT, vec![n])).collect();
    let report = analyzed(redo_only(), &records);
    check_bounds(&report);
    assert_eq!(report.ahead.records, 60_000);
    assert!(report.held.is_empty() && report.barriers == 0);
    for (outcome, least) in report.outcomes.iter().zip([1.5, 1.9, 2.5, 3.0, 4.0]) {
        assert!(outcome.speedup > least, "{outcome:?}");
    }
}

#[test]
fn records_of_one_page_run_one_after_the_other() {
    let records: Vec<_> = (0..5_000).map(|_| (HEAP_INSERT, vec![7])).collect();
    let report = analyzed(redo_only(), &records);
    check_bounds(&report);
    assert_eq!(report.critical.records, 5_000);
    assert_eq!(report.bound().1, Limit::Order);
    for outcome in &report.outcomes {
        assert!(outcome.speedup < 1.01, "{outcome:?}");
    }
}

/// The records of a page are a chain. A helper that comes to it before the startup process has done the first
/// ones goes on with it later.
#[test]
fn records_that_were_given_back_are_tried_again() {
    let speedup = |pages: u32, run: u32, helpers: usize| {
        let page = |n: u32| n / run % pages;
        let records: Vec<_> = (0..8_000).map(|n| (HEAP_INSERT, vec![page(n)])).collect();
        let report = analyzed(redo_only(), &records);
        check_bounds(&report);
        let mut outcomes = report.outcomes.iter();
        outcomes.find(|one| one.helpers == helpers).unwrap().speedup
    };
    // None would be faster than one process alone without it.
    assert!(speedup(4, 20, 1) > 1.5);
    // The startup process waits for none that two helpers have merely taken.
    assert!(speedup(4, 20, 2) > 1.2);
    assert!(speedup(4, 40, 2) > 1.7);
    assert!(speedup(16, 1, 4) > 1.8);
    // Idle helpers go on when the first of what they remember may begin.
    assert!(speedup(4, 20, 8) > 2.8);
    // What comes too early everywhere is left to the startup process, and costs it little.
    let few = speedup(4, 1, 4);
    assert!((0.95..1.0).contains(&few), "{few}");
}

#[test]
fn barriers_let_nothing_run_ahead() {
    let records: Vec<_> = (0..6_000)
        .map(|n| match n % 2 {
            0 => (CHECKPOINT, Vec::new()),
            _ => (BTREE_INSERT, vec![n]),
        })
        .collect();
    let report = analyzed(redo_only(), &records);
    check_bounds(&report);
    assert_eq!(report.barriers, 3_000);
    assert_eq!(report.held[&Cause::Checkpoint].share.records, 3_000);
    for outcome in &report.outcomes {
        assert!(
            outcome.speedup < 1.01 && outcome.by_helpers == 0.0,
            "{outcome:?}"
        );
    }
}

#[test]
fn what_startup_replays_bounds_the_speedup() {
    // Half of the cost is for helpers.
    let records: Vec<_> = (0..40_000)
        .map(|n| match n % 2 {
            0 => (COMMIT, Vec::new()),
            _ => (BTREE_INSERT, vec![n]),
        })
        .collect();
    let mut parts = [0.0; PARTS];
    (parts[4], parts[5]) = (1_000.0, 1_000.0);
    let report = analyzed(redo_only().with_parts(parts), &records);
    check_bounds(&report);
    let best = report.outcomes.last().unwrap();
    assert!((1.7..2.01).contains(&best.speedup), "{best:?}");
    assert_eq!(report.bound().1, Limit::Startup);
    assert_eq!(
        report.held[&Cause::Kind].commonest(15, 9),
        [("Transaction COMMIT".to_owned(), 20_000)]
    );
}

/// In hot standby an item of a B-tree comes after all tuples of its transaction.
#[test]
fn items_wait_for_the_tuples_of_their_transaction() {
    let written = |transactions: u32| -> Vec<_> {
        (0..20_000)
            .map(|n| {
                let kind = match n % 2 {
                    0 => HEAP_INSERT,
                    _ => BTREE_INSERT,
                };
                (kind, 3 + n / 2 % transactions, vec![n])
            })
            .collect()
    };
    let costs = redo_only();
    let best = |stage, transactions| {
        let report = analyzed_by(stage, costs.clone(), &written(transactions));
        assert_eq!(report.ahead.records, 20_000);
        let outcome = report.outcomes.iter().find(|one| one.helpers == 4);
        let first = report.outcomes.first().unwrap();
        assert!(first.seconds * 1e9 >= report.critical.ns);
        (report.critical.records, outcome.unwrap().speedup)
    };
    let (before, free) = best(Stage::BeforeConsistency, 1);
    assert_eq!(before, 1);
    // Each tuple's item may follow at once where tuples are of many transactions.
    let (many, hot) = best(Stage::HotStandby, 500);
    assert!(many > 1 && many < 20_000, "{many}");
    let (one, bound) = best(Stage::HotStandby, 1);
    // An item that cannot begin is given back, or waited for: the one or the other is a little faster.
    assert!(
        bound <= hot * 1.05 && hot <= free * 1.01,
        "{one} {bound} {hot} {free}"
    );
}

/// Where helpers find nothing to do in hot standby they rest, and cost nothing more.
#[test]
fn helpers_rest_on_a_hot_standby() {
    let records: Vec<_> = (0..100_000).map(|_| (BTREE_INSERT, 3, vec![7])).collect();
    let costs = Costs {
        pipeline: PipelineCosts::default(),
        ..redo_only()
    };
    let speedup = |stage| {
        let report = analyzed_by(stage, costs.clone(), &records);
        report.outcomes.first().unwrap().speedup
    };
    let (hot, before) = (
        speedup(Stage::HotStandby),
        speedup(Stage::BeforeConsistency),
    );
    assert!(hot > before, "{hot} {before}");
}

#[test]
fn bounds_hold_for_random_records() {
    let mut random = fastrand::Rng::with_seed(3);
    for round in 0..12 {
        let pages = [1, 3, 40, 5_000][round % 4];
        let records: Vec<_> = (0..4_000)
            .map(|_| {
                let kind = match random.u32(0..40) {
                    0 => CHECKPOINT,
                    1..4 => COMMIT,
                    4..20 => HEAP_INSERT,
                    _ => BTREE_INSERT,
                };
                let blocks = match kind {
                    CHECKPOINT | COMMIT => Vec::new(),
                    _ => (0..random.usize(1..4))
                        .map(|_| random.u32(0..pages))
                        .collect(),
                };
                (kind, blocks)
            })
            .collect();
        let costs = match round % 3 {
            0 => redo_only(),
            _ => Costs::built_in().unwrap(),
        };
        check_bounds(&analyzed(costs, &records));
    }
}

#[test]
fn a_table_of_costs_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("costs.json");
    let whole = serde_json::to_string(&Costs::built_in().unwrap()).unwrap();
    std::fs::write(&path, &whole).unwrap();
    assert_eq!(Costs::read(&path).unwrap(), Costs::built_in().unwrap());
    let machine = "\"machine\":";
    for text in [
        "",
        "{}",
        &whole.replace("\"heap_ns\":", "\"heap\":"),
        &whole.replace("\"byte_ns\":", "\"byte_ns\":-"),
        &whole.replace("\"image_ns\":", "\"image_ns\":1e300,\"x\":"),
        &whole.replace(machine, &format!("\"more\":1,{machine}")),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = Costs::read(&path).unwrap_err().to_string();
        assert!(error.contains("is no table of costs"), "{error}");
    }
}
