//! Metrics of replay by several processes, from extension lockstep.

use lockstep_lag::monitor::{MonitorState, NodeState};
use lockstep_lag::parallel_replay::ParallelReplay;
use lockstep_service::exposition::Exposition;

use super::{Family, family, flag};

type OfNode = fn(&ParallelReplay) -> f64;

const FAMILIES: &[(Family, OfNode)] = &[
    (
        Family(
            "replay_parallel",
            "gauge",
            "1 while several processes replay.",
        ),
        |said| flag(said.is_parallel()),
    ),
    (
        Family(
            "replay_helpers",
            "gauge",
            "Replay helpers that are there, at work or asleep.",
        ),
        |said| said.helpers as f64,
    ),
    (
        Family(
            "replay_records_total",
            "counter",
            "Records replayed, by extension lockstep.",
        ),
        |said| said.records as f64,
    ),
    (
        Family(
            "replay_dispatched_records_total",
            "counter",
            "Records that helpers might execute before their turn.",
        ),
        |said| said.dispatched as f64,
    ),
    (
        Family(
            "replay_helper_records_total",
            "counter",
            "Records that a helper had done when their turn came.",
        ),
        |said| said.done_by_helpers as f64,
    ),
    (
        Family(
            "replay_given_back_records_total",
            "counter",
            "Records that helpers took and left to the startup process.",
        ),
        |said| said.given_back as f64,
    ),
    (
        Family(
            "replay_retired_records_total",
            "counter",
            "Records retired, in the order of the WAL, while records could run ahead.",
        ),
        |said| said.retired as f64,
    ),
    (
        Family(
            "replay_helper_wal_bytes_total",
            "counter",
            "WAL of the records that helpers executed.",
        ),
        |said| said.helper_bytes as f64,
    ),
    (
        Family(
            "replay_ahead_records",
            "gauge",
            "Records in the queue after the one that is being replayed.",
        ),
        |said| said.record_distance as f64,
    ),
    (
        Family(
            "replay_ahead_bytes",
            "gauge",
            "WAL from the replay position to the end of the records in the queue.",
        ),
        |said| said.wal_distance as f64,
    ),
    (
        Family(
            "replay_helper_queue_records",
            "gauge",
            "Records that helpers have taken and not executed, or will try again.",
        ),
        |said| said.queue_depth as f64,
    ),
];

/// Metrics with a further label: its name, and a value for each of its values.
struct Labelled {
    about: Family,
    label: &'static str,
    values: &'static [(&'static str, OfNode)],
}

const LABELLED: &[Labelled] = &[
    Labelled {
        about: Family(
            "replay_inline_records_total",
            "counter",
            "Records that the startup process replayed at their turn, by what kept them from helpers.",
        ),
        label: "reason",
        values: &[
            ("kind", |said| said.inline_kind as f64),
            ("missing", |said| said.inline_missing as f64),
            ("map", |said| said.inline_map as f64),
            ("large", |said| said.inline_large as f64),
            ("late", |said| said.inline_late as f64),
            ("ddl", |said| said.barriers_ddl as f64),
            ("checkpoint", |said| said.barriers_checkpoint as f64),
            ("other", |said| said.barriers_other as f64),
        ],
    },
    Labelled {
        about: Family(
            "replay_wait_seconds_total",
            "counter",
            "Time that the startup process slept for helpers, or helpers waited for an earlier record.",
        ),
        label: "process",
        values: &[
            ("startup", |said| said.startup_wait_ms / 1000.0),
            ("helper", |said| said.helper_wait_ms / 1000.0),
        ],
    },
    Labelled {
        about: Family(
            "replay_startup_wait_seconds_total",
            "counter",
            "Time that the startup process slept for helpers, by what the helper did.",
        ),
        label: "cause",
        values: &[
            ("cpu", |said| said.startup_wait_cpu_ms / 1000.0),
            ("io", |said| said.startup_wait_io_ms / 1000.0),
            ("lock", |said| said.startup_wait_lock_ms / 1000.0),
        ],
    },
];

/// Standbys that tell it.
fn told(state: &MonitorState) -> impl Iterator<Item = (&NodeState, &ParallelReplay)> {
    state
        .nodes
        .iter()
        .filter_map(|node| Some((node, &node.parallel_replay.as_ref()?.now)))
}

pub fn standbys(text: &mut Exposition, state: &MonitorState) {
    for (about, value) in FAMILIES {
        family(text, about);
        for (node, said) in told(state) {
            text.sample(about.0, &[("node", &node.name)], &value(said).to_string());
        }
    }
    let about = Family(
        "replay_parallel_reason",
        "gauge",
        "Why several processes replay, or do not, in words; always 1.",
    );
    family(text, &about);
    for (node, said) in told(state) {
        let labels = [("node", node.name.as_str()), ("reason", &said.reason())];
        text.sample(about.0, &labels, "1");
    }
    for Labelled {
        about,
        label,
        values,
    } in LABELLED
    {
        family(text, about);
        for (node, said) in told(state) {
            for (of, value) in *values {
                let labels = [("node", node.name.as_str()), (*label, *of)];
                text.sample(about.0, &labels, &value(said).to_string());
            }
        }
    }
}
