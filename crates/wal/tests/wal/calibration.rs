//! Calibration: what a known table would have measured is predicted again.

use std::path::Path;

use lockstep_lab::assert_has;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::Stop;
use lockstep_wal::analysis::{Analysis, Report};
use lockstep_wal::calibrate::{self, Measured, Parallel, off};
use lockstep_wal::class::{Rules, Stage};
use lockstep_wal::costs::Costs;
use lockstep_wal::folder::{Range, Run};
use lockstep_wal::walk::{self, Until};
use lockstep_wire::Lsn;

use crate::bed;

/// The report of a part of the WAL with a table. None if no record begins in it.
fn report(wal: &Path, stage: Stage, (start, end): (Lsn, Lsn), costs: &Costs) -> Option<Report> {
    let range = Range {
        start: Some(start),
        ..Range::default()
    };
    let run = Run::find(wal, range).unwrap();
    let rules = Rules {
        stage,
        major: run.major,
    };
    let mut analysis = Analysis::new(costs.clone(), run.identity.size, rules, &[1]);
    let until = Until {
        lsn: Some(end),
        bytes: None,
    };
    walk::read(&mut run.reader(), until, &mut analysis).unwrap();
    analysis.finish()
}

#[test]
fn recoveries_of_a_known_machine_are_predicted() {
    let lab = TestLab::stock().space_mb(2000).start().unwrap();
    let mut primary = bed::server(&lab, "primary", &[]);
    bed::write(&primary, &mut fastrand::Rng::with_seed(9), 30);
    let wal = bed::copy_of_wal(&mut primary, Stop::Fast);
    let run = Run::find(wal.path(), Range::default()).unwrap();
    let mut before = Costs::estimates().unwrap();
    // Segments are so small here that this would be most of it.
    before.pipeline.point_ns = 0.0;

    // A machine half as fast, on which images cost more, the pipeline twice as much, and looking
    // ahead hides little.
    let mut parts = before.parts().map(|ns| ns * 2.0);
    parts[10] *= 1.3;
    let mut truth = before.clone().with_parts(parts);
    truth.pipeline = truth.pipeline.scaled(2.0);
    truth.pipeline.hidden = 0.2;
    let (first, last) = (u64::from(run.start), u64::from(run.end));
    let at = |part: u64| Lsn::from(first + (last - first) / 8 * part);
    let measured: Vec<_> = (0..7)
        .filter_map(|part| {
            let range = (at(part), at(part + 1));
            let hot_standby = part % 3 == 0;
            let stage = match hot_standby {
                true => Stage::HotStandby,
                false => Stage::BeforeConsistency,
            };
            let report = report(wal.path(), stage, range, &truth)?;
            Some(Measured {
                name: part.to_string(),
                wal: wal.path().to_path_buf(),
                start: range.0,
                end: Lsn::from(u64::from(report.end) - 1),
                hot_standby,
                seconds: report.alone_seconds,
                read_seconds: None,
                look_ahead_seconds: Some(report.look_ahead_seconds),
                parallel: Some(Parallel {
                    helpers: 1,
                    seconds: report.outcomes[0].seconds,
                }),
                held_out: part % 2 == 1,
            })
        })
        .collect();
    let (costs, comparisons) = calibrate::calibrate(&before, &measured).unwrap();
    assert_ne!(costs, before);
    assert_eq!(costs.clone().rounded(), costs);
    for one in &comparisons {
        let (measured, simulated) = (one.measured, one.simulated);
        // Speedups are simulated on some segments only, which have few records here.
        for (measured, simulated, most) in [
            (Some(measured.seconds), Some(simulated.seconds), 0.05),
            (measured.look_ahead, simulated.look_ahead, 0.05),
            (measured.speedup, simulated.speedup, 0.1),
        ] {
            let off = off(measured.unwrap(), simulated.unwrap());
            assert!(off.abs() < most, "{one:?}");
        }
        assert!(one.without.is_some());
    }
    assert!(comparisons.iter().any(|one| one.held_out));

    // A recovery of which the folder has only a part tells nothing.
    let cut = Measured {
        end: run.end,
        ..measured[0].clone()
    };
    let error = calibrate::calibrate(&before, &[cut]).unwrap_err();
    assert!(error.to_string().contains("goes on to"), "{error}");
}

#[test]
fn a_list_of_measurements_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.json");
    let one = r#"{"name":"a","wal":"/x","start":"0/10","end":"0/20","seconds":1.5,
        "parallel":{"helpers":1,"seconds":1.0}}"#;
    let read = |text: &str| {
        std::fs::write(&path, text).unwrap();
        calibrate::read(&path)
    };
    let all = read(&format!("[{one}]")).unwrap();
    assert_eq!((all[0].end, all[0].held_out), (Lsn::from(0x20), false));
    assert!(!all[0].hot_standby);
    for (from, to) in [
        ("1.5", "0"),
        ("1.5", "-1"),
        ("0/20", "0/10"),
        ("0/20", "20"),
        ("\"helpers\":1", "\"helpers\":0"),
        ("\"helpers\":1", "\"helpers\":65"),
        ("\"name\"", "\"names\""),
        ("1.5", "1.5,\"held_out\":true"),
        ("1.5", "1.5,\"look_ahead_seconds\":0"),
    ] {
        let error = read(&format!("[{}]", one.replacen(from, to, 1))).unwrap_err();
        assert_has!(error.to_string(), "no list of measured recoveries");
    }
    assert!(read("").is_err());
}
