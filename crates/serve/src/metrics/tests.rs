//! The text is as recorded and can be parsed, and the documentation names every family.

use std::collections::BTreeSet;
use std::path::Path;

use lockstep_lag::link::BehindPrimary;
use lockstep_lag::point::Bound;
use lockstep_lag::replica::ReplicaReport;
use lockstep_lag::rules::{Cause, Severity};

use super::*;
use crate::example::{self, AT_MS};
use crate::forecast::Forecaster;

fn full() -> MonitorState {
    let mut state = example::state();
    example::lag(&mut state, 0, 1_400.0);
    state.links[0].bound = Bound::LEAST;
    state.links[1].bound = Bound::MOST;
    state.links[1].behind_primary = Some(BehindPrimary {
        behind: true,
        lag_ms: 82_000.0,
        lag_is_least: true,
        lag_most_ms: None,
        lag_bytes: 1e6,
    });
    (
        state.nodes[0].awaiting_sync,
        state.nodes[0].awaiting_sync_ms,
    ) = (2, Some(7_500.0));
    let copy = LinkState {
        replica: "copy".to_owned(),
        lockstep_replica: Some(ReplicaReport {
            doing: Some(Doing::Paused),
            ..ReplicaReport::unasked("copy")
        }),
        ..state.links[1].clone()
    };
    state.links.push(copy);
    for cause in [Cause::ReplayPaused, Cause::ReplayPaused, Cause::IdlePrimary] {
        let severity = match cause {
            Cause::IdlePrimary => Severity::Note,
            _ => Severity::Lag,
        };
        let found = example::finding(cause, severity, "standby");
        state.diagnosis.findings.push(found);
    }
    state
}

#[test]
fn the_text_is_as_recorded() {
    let status = HistoryStatus {
        bytes: 3 << 20,
        limit_bytes: 100 << 20,
        oldest_ms: Some(AT_MS - 60_000),
        saved_ms: Some(AT_MS - 2_000),
        ..HistoryStatus::default()
    };
    let text = render(&full(), AT_MS + 500) + &history(&full(), &status, AT_MS + 500);
    let text = text.replace(env!("CARGO_PKG_VERSION"), "VERSION");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/metrics/example.txt");
    lockstep_lab::for_tests::assert_recorded(&path, &text);
}

#[test]
fn every_sample_has_the_cluster_s_name_if_it_has_one() {
    let mut state = full();
    assert!(!render(&state, AT_MS).contains("cluster="));
    state.nodes[0].cluster_name = Some("shop \"1\"".to_owned());
    // A standby's own name is no cluster's.
    state.nodes[1].cluster_name = Some("standby".to_owned());
    for line in render(&state, AT_MS).lines() {
        let named = line.contains("cluster=\"shop \\\"1\\\"\"");
        assert_eq!(named, !line.starts_with('#'), "{line}");
    }
}

#[test]
fn what_is_to_come_is_told_with_the_cluster_s_name() {
    let mut state = full();
    state.nodes[0].cluster_name = Some("shop".to_owned());
    let limits = [("primary".to_owned(), 1 << 30)].into();
    let mut forecaster = Forecaster::new(limits);
    let mut told = String::new();
    for step in 0..40 {
        state.at_ms = AT_MS + step * 15_000;
        state.nodes[0].wal_folder.as_mut().unwrap().bytes = step as u64 * 15_000_000;
        state.nodes[0].slots[0].safe_wal_size = Some(1_000_000_000 - step * 15_000_000);
        told = forecast(&state, &forecaster.take(&state));
    }
    for line in [
        "lockstep_wal_folder_growth_bytes_per_second{node=\"primary\",cluster=\"shop\"} 1",
        "lockstep_wal_folder_limit_bytes{node=\"primary\",cluster=\"shop\"} 1073741824\n",
        "lockstep_wal_folder_full_seconds{node=\"primary\",cluster=\"shop\"} 4",
        "lockstep_slot_danger_seconds{node=\"primary\",slot=",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
    assert!(!told.contains("limit_bytes{node=\"standby\""), "{told}");
}

/// Names of the families in a text.
fn families(text: &str) -> BTreeSet<String> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect()
}

#[test]
fn the_documentation_names_every_family_and_no_other() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/serve.md");
    let documented: BTreeSet<String> = std::fs::read_to_string(path)
        .unwrap()
        .lines()
        .filter_map(|line| line.strip_prefix("| `lockstep_"))
        .map(|line| {
            let name = line.split(['`', '{']).next().unwrap();
            format!("lockstep_{name}")
        })
        .collect();
    let text = render(&full(), AT_MS)
        + &forecast(&full(), &Forecast::default())
        + &history(&example::state(), &HistoryStatus::default(), AT_MS);
    assert_eq!(families(&text), documented);
}

#[test]
fn no_sample_appears_twice_and_each_follows_its_family() {
    let mut state = full();
    // Two walreceivers that were not named on the command line, and have equal names.
    let mut double = state.links[0].clone();
    double.lag_ms = 9_000.0;
    state.links.push(double);
    let text = render(&state, AT_MS);
    let mut family = String::new();
    let mut seen = BTreeSet::new();
    for line in text.lines() {
        if let Some(line) = line.strip_prefix("# TYPE ") {
            family = line.split(' ').next().unwrap().to_owned();
        } else if !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').unwrap();
            assert!(series.starts_with(&format!("{family}{{")), "{line}");
            assert!(value.parse::<f64>().unwrap().is_finite(), "{line}");
            assert!(seen.insert(series.to_owned()), "{line}");
        }
    }
    // The one with the longer lag counts.
    assert!(text.contains(
        "lockstep_lag_seconds{upstream=\"primary\",replica=\"standby\",kind=\"physical\"} 9\n"
    ));
}

#[test]
fn what_is_not_known_has_no_sample() {
    let mut state = example::state();
    example::lose(&mut state, "standby");
    state.nodes[1].round_trip_ms = None;
    state.nodes[1].extension = None;
    state.nodes[1].parallel_replay = None;
    let text = render(&state, AT_MS);
    assert!(text.contains("lockstep_up{node=\"standby\",role=\"standby\"} 0\n"));
    for family in [
        "round_trip_seconds",
        "recovery_conflicts_total",
        "throttle_limit",
        "replay_parallel",
        "replay_parallel_reason",
        "replay_records_total",
        "replay_inline_records_total",
        "replay_wait_seconds_total",
    ] {
        assert!(
            !text.contains(&format!("lockstep_{family}{{node=\"standby\"")),
            "{text}"
        );
    }
    assert!(text.contains("lockstep_sample_age_seconds{node=\"standby\"} 0.25\n"));
}
