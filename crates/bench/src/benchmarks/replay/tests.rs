//! Cases, tables and remarks of `bench replay`.

use std::collections::BTreeMap;

use super::*;
use crate::benchmarks::parsed;

/// A file with one row for each of these seconds.
fn results(rows: &[(&str, &str, &[f64])]) -> Results<ReplayFigures> {
    let facts = Facts {
        data_bytes: 1,
        records: 1,
        lead_in: None,
    };
    let row = |case: &str, variant: &str, round: usize, seconds: f64| ResultRow {
        case: case.to_owned(),
        variant: variant.to_owned(),
        round: u32::try_from(round + 1).unwrap(),
        figures: ReplayFigures {
            ready_seconds: (case == CRASH_RECOVERY).then_some(seconds * 2.0),
            ..figures(seconds, Usage::default(), 100_000_000, facts)
        },
        date: "d".to_owned(),
        commit: "c".to_owned(),
    };
    let rows = rows.iter().flat_map(|&(case, variant, seconds)| {
        let rounds = seconds.iter().enumerate();
        rounds.map(move |(round, &seconds)| row(case, variant, round, seconds))
    });
    Results::for_tests("replay", rows.collect())
}

#[test]
fn the_usual_choice_has_these_cases() {
    let args: ReplayArgs = parsed("");
    let names: Vec<String> = args.chosen().iter().map(ReplayCase::name).collect();
    assert_eq!(
        names.join(" "),
        "update-cached-one-core update-cached-streamed update-cached-local \
         tpcc-cached-one-core tpcc-cached-streamed tpcc-cached-local tpcc-30pct-local \
         tpcc-30pct-1ms-local tpcc-cached-local-busy-1 tpcc-cached-local-busy-12 tpcb-cached-one-core tpcb-cached-local insert-cached-one-core insert-cached-local \
         uuid-insert-cached-one-core uuid-insert-cached-local \
         bulk-cached-one-core bulk-cached-local crash-recovery production-cached-local \
         production-lz4-cached-local simple-update-cached-local tpcb-checkpoint-cached-local \
         sysbench-cached-local"
    );
    let args: ReplayArgs = parsed("--crash-recovery");
    assert_eq!(args.cases(), [ReplayCase::CrashRecovery]);
    assert_eq!(args.plan().len(), 3 * 12);
    let args: ReplayArgs = parsed("--memory 30pct-1ms --writes tpcc --placement local");
    let turns = args.plan();
    let variants = |round| {
        let turns = turns.iter().filter(move |turn| turn.round == round);
        joined(turns.map(|turn| turn.variant.name()))
    };
    assert_eq!(variants(1), "stock,stock-again,lockstep,stock-no-prefetch");
    assert_eq!(variants(2), "lockstep,stock-again,stock");
    let args: ReplayArgs = parsed("--writes tpcc,insert --busy-others 1,12");
    let names: Vec<String> = args.cases().iter().map(ReplayCase::name).collect();
    assert_eq!(
        names.join(" "),
        "tpcc-cached-local-busy-1 tpcc-cached-local-busy-12 \
         insert-cached-local-busy-1 insert-cached-local-busy-12"
    );
    let args: ReplayArgs = parsed("--writes tpcc --placement local --busy-others 3");
    let names: Vec<String> = args.cases().iter().map(ReplayCase::name).collect();
    assert_eq!(names, ["tpcc-cached-local", "tpcc-cached-local-busy-3"]);
    let args: ReplayArgs = parsed("--crash-recovery --writes uuid-insert --placement local");
    let names: Vec<String> = args.cases().iter().map(ReplayCase::name).collect();
    assert_eq!(names, ["uuid-insert-cached-local", "crash-recovery"]);
}

#[test]
fn sums_and_ratios_stand_in_the_table() {
    let args: ReplayArgs = parsed("");
    let results = results(&[
        ("tpcb-cached-local", "stock", &[20.0, 20.0]),
        ("tpcb-cached-local", "stock-again", &[20.2, 20.2]),
        ("tpcb-cached-local", "lockstep", &[8.0, 12.0]),
        ("crash-recovery", "stock", &[20.0, 20.0]),
        ("crash-recovery", "stock-again", &[20.0, 20.0]),
        ("crash-recovery", "lockstep", &[10.0]),
    ]);
    let report = args.report(&results);
    let words = |line: &String| line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(
        report.iter().skip(1).map(words).collect::<Vec<_>>(),
        [
            "tpcb-cached-local 100 - 2 40.00 40.40 20.00 1.010 2.000 - - - - -",
            "crash-recovery 100 - 2 40.00 40.00 10.00 1.000 - - - 80.00 20.00 -",
        ]
    );
}

#[test]
fn doubts_are_said_in_words() {
    let args: ReplayArgs = parsed("");
    let results = results(&[
        ("insert-cached-local", "stock", &[20.0, 20.0]),
        ("insert-cached-local", "stock-again", &[21.0, 21.0]),
        ("bulk-cached-local", "stock", &[29.9]),
        ("bulk-cached-local", "stock-again", &[29.9]),
        ("tpcb-cold-one-core", "stock", &[31.0]),
    ]);
    let remarks = args.remarks(&results);
    let expected = [
        ("tpcb-cold-one-core", "not measured twice"),
        (
            "insert-cached-local",
            "no ratio of this case is to be believed",
        ),
        ("bulk-cached-local", "less than 30 s"),
    ];
    assert_eq!(remarks.len(), expected.len(), "{remarks:?}");
    for (remark, (case, words)) in remarks.iter().zip(expected) {
        assert!(
            remark.starts_with(case) && remark.contains(words),
            "{remark}"
        );
    }
}

fn contents_of(image_share: f64) -> Contents {
    Contents {
        image_share,
        kinds: BTreeMap::new(),
        images: BTreeMap::new(),
        causes: BTreeMap::new(),
    }
}

#[test]
fn what_was_simulated_stands_beside_what_was_measured() {
    let args: ReplayArgs = parsed("");
    let remarks = |case: &str, images: f64, simulated: f64| {
        let rows: [(&str, &str, &[f64]); 3] = [
            (case, "stock", &[40.0]),
            (case, "stock-again", &[40.0]),
            (case, "lockstep", &[20.0]),
        ];
        let mut results = results(&rows);
        results.rows[0].figures.contents = Some(contents_of(images));
        results.rows[2].figures.simulated_speedup = Some(simulated);
        let table = args.report(&results)[1].clone();
        let figures: Vec<_> = table.split_whitespace().map(str::to_owned).collect();
        let simulated = thousandths(simulated);
        let shown = format!("{:.0} %", images * 100.0);
        assert!(
            figures
                .join(" ")
                .contains(&format!("{case} 100 {shown} 1 ")),
            "{table}"
        );
        assert!(
            figures.join(" ").contains(&format!(" 2.000 {simulated} ")),
            "{table}"
        );
        args.remarks(&results)
    };
    let none: [String; 0] = [];
    assert_eq!(remarks("tpcb-cached-local", 0.1, 2.29), none);
    assert_eq!(remarks("production-cached-local", 0.6, 1.71), none);
    assert_eq!(remarks("production-lz4-cached-local", 0.3, 2.0), none);
    let off = remarks("tpcb-cached-local", 0.1, 2.31).join("");
    assert!(off.contains("simulates 2.31 (+16 %)"), "{off}");
    let off = remarks("tpcb-cached-local", 0.1, 1.68).join("");
    assert!(off.contains("simulates 1.68 (-16 %)"), "{off}");
    for images in [0.59, 0.86] {
        let other = remarks("production-cached-local", images, 2.0).join("");
        assert!(other.contains("outside 60 to 85 %"), "{other}");
    }
}

#[test]
fn the_simulation_is_asked_only_for_what_it_has() {
    let simulated = Simulated {
        look_ahead: 1.2,
        with_helpers: 1.5,
    };
    let of = |options: &str| {
        let args: ReplayArgs = parsed(options);
        let case = args.cases()[0];
        args.simulated(&case, &simulated)
    };
    assert_eq!(of("--writes tpcb --placement local"), Some(1.5));
    assert_eq!(of("--writes tpcb --placement one-core"), Some(1.2));
    for other in ["--placement streamed", "--memory cold --placement local"] {
        assert_eq!(of(&format!("--writes tpcb {other}")), None, "{other}");
    }
    assert_eq!(of("--crash-recovery"), None);
    let with = |set: &str| of(&format!("--writes tpcb --placement local --set {set}"));
    assert_eq!(with("lockstep.replay_workers=2"), Some(1.5));
    assert_eq!(with("lockstep.replay_workers=auto"), None);
    assert_eq!(with("lockstep.replay_look_ahead=off"), None);
}

#[test]
fn production_has_half_the_writers_unless_told_otherwise() {
    let writers = |work: Work, options: &str| {
        let args: ReplayArgs = parsed(options);
        work.writers(args.size)
    };
    assert_eq!(writers(Work::Production, ""), 16);
    assert_eq!(writers(Work::TpcC, ""), 32);
    assert_eq!(writers(Work::ProductionLz4, "--writers 3"), 3);
    assert_eq!(writers(Work::Sysbench, "--writers 3"), 3);
}

#[test]
fn the_headline_is_of_updates_on_one_core_or_else_of_the_first_case() {
    let args: ReplayArgs = parsed("");
    let first: [(&str, &str, &[f64]); 2] = [
        ("tpcb-cached-local", "stock", &[2.0, 4.0]),
        ("tpcb-cached-local", "lockstep", &[1.0, 1.0]),
    ];
    let headline = args.headline(&results(&first)).unwrap();
    assert!(headline.metric.starts_with("tpcb-cached-local:"));
    assert_eq!(headline.ratio, Some(3.0));
    let updates: [(&str, &str, &[f64]); 2] = [
        ("update-cached-one-core", "stock", &[1.0]),
        ("update-cached-one-core", "lockstep", &[1.0]),
    ];
    let both = [first, updates].concat();
    let headline = args.headline(&results(&both)).unwrap();
    assert!(headline.metric.starts_with("update-cached-one-core:"));
    assert_eq!(args.headline(&results(&first[..1])), None);
}

#[test]
fn a_case_has_enough_rounds_when_stock_has_replayed_long_enough() {
    let args: ReplayArgs = parsed("--stock-seconds 30");
    let enough = |stock: &[f64]| {
        let results = results(&[
            ("tpcb-cached-local", "stock", stock),
            ("tpcb-cached-local", "stock-again", &[99.0]),
        ]);
        args.is_enough(&results.rows.iter().collect::<Vec<_>>())
    };
    assert!(!enough(&[14.0, 15.9]));
    assert!(enough(&[14.0, 16.0]));
}
