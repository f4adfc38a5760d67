//! Metrics of replay by several processes, from extension lockstep.

use lockstep_lag::monitor::MonitorState;
use lockstep_lag::parallel_replay::ParallelReplay;
use lockstep_service::exposition::{Exposition, Family};

const FAMILIES: &[Family<ParallelReplay>] = &[
    Family::new(
        "replay_parallel",
        "1 while several processes replay.",
        |said| said.is_parallel().into(),
    ),
    Family::new(
        "replay_helpers",
        "Replay helpers that are there, at work or asleep.",
        |said| said.helpers.into(),
    ),
    Family::new(
        "replay_records_total",
        "Records replayed, by extension lockstep.",
        |said| said.records.into(),
    ),
    Family::new(
        "replay_dispatched_records_total",
        "Records that helpers might execute before their turn.",
        |said| said.dispatched.into(),
    ),
    Family::new(
        "replay_helper_records_total",
        "Records that a helper had done when their turn came.",
        |said| said.done_by_helpers.into(),
    ),
    Family::new(
        "replay_given_back_records_total",
        "Records that helpers took and left to the startup process.",
        |said| said.given_back.into(),
    ),
    Family::new(
        "replay_retired_records_total",
        "Records retired, in the order of the WAL, while records could run ahead.",
        |said| said.retired.into(),
    ),
    Family::new(
        "replay_helper_wal_bytes_total",
        "WAL of the records that helpers executed.",
        |said| said.helper_bytes.into(),
    ),
    Family::new(
        "replay_ahead_records",
        "Records in the queue after the one that is being replayed.",
        |said| said.record_distance.into(),
    ),
    Family::new(
        "replay_ahead_bytes",
        "WAL from the replay position to the end of the records in the queue.",
        |said| said.wal_distance.into(),
    ),
    Family::new(
        "replay_helper_queue_records",
        "Records that helpers have taken and not executed, or will try again.",
        |said| said.queue_depth.into(),
    ),
];

/// Metrics with a further label: name and help, the label, and a value for each of the label's values.
type Labelled = (
    &'static str,
    &'static str,
    &'static str,
    &'static [(&'static str, fn(&ParallelReplay) -> f64)],
);

const LABELLED: &[Labelled] = &[
    (
        "replay_inline_records_total",
        "Records that the startup process replayed at their turn, by what kept them from helpers.",
        "reason",
        &[
            ("kind", |said| said.inline_kind as f64),
            ("missing", |said| said.inline_missing as f64),
            ("map", |said| said.inline_map as f64),
            ("large", |said| said.inline_large as f64),
            ("late", |said| said.inline_late as f64),
            ("ddl", |said| said.barriers_ddl as f64),
            ("checkpoint", |said| said.barriers_checkpoint as f64),
            ("other", |said| said.barriers_other as f64),
        ],
    ),
    (
        "replay_wait_seconds_total",
        "Time that the startup process slept for helpers, or helpers waited for an earlier record.",
        "process",
        &[
            ("startup", |said| said.startup_wait_ms / 1000.0),
            ("helper", |said| said.helper_wait_ms / 1000.0),
        ],
    ),
    (
        "replay_startup_wait_seconds_total",
        "Time that the startup process slept for helpers, by what the helper did.",
        "cause",
        &[
            ("cpu", |said| said.startup_wait_cpu_ms / 1000.0),
            ("io", |said| said.startup_wait_io_ms / 1000.0),
            ("lock", |said| said.startup_wait_lock_ms / 1000.0),
        ],
    ),
];

/// Standbys that tell it.
fn told(state: &MonitorState) -> impl Iterator<Item = (&str, &ParallelReplay)> + Clone {
    state
        .nodes
        .iter()
        .filter_map(|node| Some((node.name.as_str(), &node.parallel_replay.as_ref()?.now)))
}

pub fn standbys(text: &mut Exposition, state: &MonitorState) {
    text.families(
        FAMILIES,
        told(state).map(|(node, said)| ([("node", node)], said)),
    );
    text.metric(
        "replay_parallel_reason",
        "Why several processes replay, or do not, in words; always 1.",
        told(state).map(|(node, said)| {
            let labels = [("node", node.to_owned()), ("reason", said.reason())];
            (labels, true)
        }),
    );
    for (name, help, label, values) in LABELLED {
        let samples = told(state).flat_map(|(node, said)| {
            values.iter().map(move |(of, value)| {
                let labels = [("node", node), (*label, *of)];
                (labels, value(said))
            })
        });
        text.metric(name, help, samples);
    }
}
