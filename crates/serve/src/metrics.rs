//! A state in Prometheus' text format. `docs/serve.md` lists every family; alert rules and
//! dashboards rely on the names.

use std::collections::BTreeMap;

use lockstep_lag::Role;
use lockstep_lag::monitor::{LinkState, MonitorState, NodeState};
use lockstep_lag::position::bytes_between;
use lockstep_lag::replica::Doing;
use lockstep_service::exposition::Exposition;

use crate::history::HistoryStatus;

mod parallel_replay;
mod relay;
#[cfg(test)]
mod tests;

/// Name, kind and help of a family.
struct Family(&'static str, &'static str, &'static str);

/// Name and value of a label.
type Label<'a> = (&'static str, &'a str);

/// A value of one node, if the node has one.
type OfNode = fn(&NodeState) -> Option<f64>;

fn of_primary(node: &NodeState, value: Option<f64>) -> Option<f64> {
    value.filter(|_| node.usable && node.role == Role::Primary)
}

fn of_server(node: &NodeState, value: f64) -> Option<f64> {
    (node.usable && node.role != Role::Relay).then_some(value)
}

const NODE_FAMILIES: &[(Family, OfNode)] = &[
    (
        Family(
            "round_trip_seconds",
            "gauge",
            "From question to answer, in the newest sample.",
        ),
        |node| Some(node.round_trip_ms? / 1000.0),
    ),
    (
        Family(
            "wal_position_bytes",
            "gauge",
            "End of the node's WAL, as a number of bytes: flushed on a primary, received on a \
             standby.",
        ),
        |node| Some(u64::from(node.end_lsn?) as f64),
    ),
    (
        Family(
            "replay_lag_seconds",
            "gauge",
            "Age of the oldest WAL received and not replayed, by extension lockstep.",
        ),
        |node| Some(node.extension.as_ref()?.lag_ms? / 1000.0),
    ),
    (
        Family(
            "waiting_synchronous_commits",
            "gauge",
            "Commits that wait for a synchronous replica.",
        ),
        |node| of_primary(node, Some(node.awaiting_sync as f64)),
    ),
    (
        Family(
            "oldest_transaction_seconds",
            "gauge",
            "Since the oldest open transaction began; 0 if none is open.",
        ),
        |node| of_server(node, node.oldest_transaction_ms.unwrap_or(0.0) / 1000.0),
    ),
    (
        Family(
            "oldest_prepared_seconds",
            "gauge",
            "Since the oldest prepared transaction was prepared; 0 if there is none.",
        ),
        |node| of_server(node, node.oldest_prepared_ms.unwrap_or(0.0) / 1000.0),
    ),
    (
        Family(
            "archive_failures_total",
            "counter",
            "Failures to archive a segment, since the server's statistics began.",
        ),
        |node| of_primary(node, Some(node.archive_failures as f64)),
    ),
    (
        Family(
            "archived_age_seconds",
            "gauge",
            "Since a segment was archived; missing if none was.",
        ),
        |node| of_primary(node, node.archived_age_ms.map(|ms| ms / 1000.0)),
    ),
    (
        Family(
            "wal_folder_bytes",
            "gauge",
            "Size of all files in pg_wal, some seconds ago; missing if the role may not see them.",
        ),
        |node| Some(node.wal_folder?.bytes as f64),
    ),
    (
        Family("wal_folder_files", "gauge", "Number of these files."),
        |node| Some(node.wal_folder?.files as f64),
    ),
    (
        Family(
            "throttle_waiting",
            "gauge",
            "Queries that wait at the gate of extension lockstep.",
        ),
        |node| Some(node.extension.as_ref()?.waiting as f64),
    ),
    (
        Family(
            "throttle_running",
            "gauge",
            "Queries inside the gate of extension lockstep.",
        ),
        |node| Some(node.extension.as_ref()?.running as f64),
    ),
    (
        Family(
            "throttle_limit",
            "gauge",
            "How many queries extension lockstep lets in at once.",
        ),
        |node| Some(node.extension.as_ref()?.concurrency_limit as f64),
    ),
];

type OfLink = fn(&LinkState) -> f64;

const LINK_FAMILIES: &[(Family, OfLink)] = &[
    (
        Family(
            "lag_seconds",
            "gauge",
            "How long there has been WAL upstream that the replica has not replayed or applied, as \
             far as is known.",
        ),
        |link| link.lag_ms / 1000.0,
    ),
    (
        Family(
            "lag_is_least",
            "gauge",
            "1 if the lag began before anybody watched, so that lag_seconds is a lower bound.",
        ),
        |link| flag(link.bound.lag_is_least),
    ),
    (
        Family(
            "lag_is_most",
            "gauge",
            "1 if the replica may have applied more than it reported, so that lag_seconds is an upper bound.",
        ),
        |link| flag(link.bound.lag_is_most),
    ),
    (
        Family(
            "lag_bytes",
            "gauge",
            "WAL upstream that the replica has not replayed or applied.",
        ),
        |link| link.lag_bytes as f64,
    ),
    (
        Family(
            "behind",
            "gauge",
            "1 if the replica lags by the diagnosis of the last seconds.",
        ),
        |link| flag(link.behind),
    ),
];

/// All metrics. `now_ms` is in milliseconds since 1970.
pub fn render(state: &MonitorState, now_ms: i64) -> String {
    let mut text = Exposition::new("lockstep_");
    if let Some(cluster) = cluster(state) {
        text = text.with_label("cluster", cluster);
    }
    family(
        &mut text,
        &Family(
            "build_info",
            "gauge",
            "This program's version, as a label; always 1.",
        ),
    );
    text.sample("build_info", &[("version", env!("CARGO_PKG_VERSION"))], "1");
    nodes(&mut text, state, now_ms);
    links(&mut text, state);
    causes(&mut text, state);
    slots(&mut text, state);
    conflicts(&mut text, state);
    parallel_replay::standbys(&mut text, state);
    relay::relays(&mut text, state);
    text.into_text()
}

/// Metrics of the file of `--history`.
pub fn history(status: &HistoryStatus, now_ms: i64) -> String {
    let mut text = Exposition::new("lockstep_");
    let saved = status
        .saved_ms
        .map(|ms| (now_ms - ms).max(0) as f64 / 1000.0);
    let oldest = status
        .oldest_ms
        .map(|ms| (now_ms - ms).max(0) as f64 / 1000.0);
    for (name, help, value) in [
        (
            "history_bytes",
            "Size of the history's file.",
            Some(status.bytes as f64),
        ),
        (
            "history_limit_bytes",
            "Limit of the history's file.",
            Some(status.limit_bytes as f64),
        ),
        (
            "history_reach_seconds",
            "How far the history goes back.",
            oldest,
        ),
        (
            "history_saved_age_seconds",
            "Time since the history's file was last written.",
            saved,
        ),
        (
            "history_failing",
            "1 if the history's file cannot be written or read.",
            Some(flag(status.trouble.is_some())),
        ),
    ] {
        family(&mut text, &Family(name, "gauge", help));
        if let Some(value) = value {
            text.sample(name, &[], &value.to_string());
        }
    }
    text.into_text()
}

/// What the primary calls its cluster. Standbys often have names of their own there.
fn cluster(state: &MonitorState) -> Option<&str> {
    let mut nodes = state.nodes.iter();
    let primary = nodes.find(|node| node.role == Role::Primary)?;
    primary.cluster_name.as_deref()
}

fn family(text: &mut Exposition, Family(name, kind, help): &Family) {
    text.family(name, kind, help);
}

fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

fn nodes(text: &mut Exposition, state: &MonitorState, now_ms: i64) {
    let up = Family(
        "up",
        "gauge",
        "1 if the node answers and has the role that it was named with.",
    );
    family(text, &up);
    for node in &state.nodes {
        let role = node.role.to_string();
        let labels = [("node", node.name.as_str()), ("role", &role)];
        text.sample("up", &labels, &flag(node.usable).to_string());
    }
    let unseen = Family(
        "unseen",
        "gauge",
        "Number of things that cannot be seen although nodes answer; above 0 nobody knows whether all replicas keep up.",
    );
    family(text, &unseen);
    let number = state.diagnosis.unknown.len();
    text.sample("unseen", &[], &number.to_string());
    let age = Family(
        "sample_age_seconds",
        "gauge",
        "Age of the newest sample, also of a node that does not answer.",
    );
    family(text, &age);
    let since_ms = now_ms.saturating_sub(state.at_ms).max(0) as f64;
    for node in &state.nodes {
        if let Some(age_ms) = node.sample_age_ms {
            let seconds = (age_ms + since_ms) / 1000.0;
            text.sample(
                "sample_age_seconds",
                &[("node", &node.name)],
                &seconds.to_string(),
            );
        }
    }
    for (about, value) in NODE_FAMILIES {
        family(text, about);
        for node in &state.nodes {
            if let Some(value) = value(node) {
                text.sample(about.0, &[("node", &node.name)], &value.to_string());
            }
        }
    }
}

fn of_link(link: &LinkState) -> [Label<'_>; 3] {
    [
        ("upstream", &link.upstream),
        ("replica", &link.replica),
        ("kind", link.kind.name()),
    ]
}

fn links(text: &mut Exposition, state: &MonitorState) {
    // Replicas that were not named on the command line may have equal names: the one with the
    // longest lag counts.
    let mut links: BTreeMap<_, &LinkState> = BTreeMap::new();
    for link in &state.links {
        let kept = links.entry(of_link(link)).or_insert(link);
        if (link.lag_ms, link.lag_bytes) > (kept.lag_ms, kept.lag_bytes) {
            *kept = link;
        }
    }
    for (about, value) in LINK_FAMILIES {
        family(text, about);
        for (labels, link) in &links {
            text.sample(about.0, labels, &value(link).to_string());
        }
    }
    let about = Family(
        "stage_bytes",
        "gauge",
        "Bytes of WAL in each part of the way to the replica.",
    );
    family(text, &about);
    for ([upstream, replica, kind], link) in &links {
        for stage in &link.stages {
            let labels = [*upstream, *replica, *kind, ("stage", stage.name)];
            text.sample("stage_bytes", &labels, &stage.bytes.to_string());
        }
    }
    let about = Family(
        "replica_doing",
        "gauge",
        "1 for what a replica of Lockstep does, if its target is asked.",
    );
    family(text, &about);
    for ([upstream, replica, _], link) in &links {
        let now = link.lockstep_replica.as_ref().and_then(|it| it.doing);
        let Some(now) = now else { continue };
        for doing in Doing::ALL {
            let labels = [*upstream, *replica, ("doing", doing.id())];
            text.sample("replica_doing", &labels, &flag(*doing == now).to_string());
        }
    }
    let about = Family(
        "visible_seconds",
        "gauge",
        "From a commit on the primary until it is visible on the standby, with --heartbeat.",
    );
    family(text, &about);
    for ([upstream, replica, _], link) in &links {
        if let Some(ms) = link.visible_ms {
            let value = (ms / 1000.0).to_string();
            text.sample("visible_seconds", &[*upstream, *replica], &value);
        }
    }
}

fn causes(text: &mut Exposition, state: &MonitorState) {
    let about = Family(
        "cause",
        "gauge",
        "1 for each cause that is found now; none is there otherwise.",
    );
    family(text, &about);
    let found = state
        .diagnosis
        .findings
        .iter()
        .map(|found| (found.at.as_str(), found.cause.id(), found.severity.name()));
    // Two sessions may be to blame for one cause.
    let found: std::collections::BTreeSet<_> = found.collect();
    for (at, cause, severity) in &found {
        let labels = [("at", *at), ("cause", *cause), ("severity", *severity)];
        text.sample("cause", &labels, "1");
    }
}

fn slots(text: &mut Exposition, state: &MonitorState) {
    type OfSlot = fn(&NodeState, &lockstep_lag::views::Slot) -> Option<f64>;
    let families: [(Family, OfSlot); 3] = [
        (
            Family("slot_active", "gauge", "1 while somebody uses the slot."),
            |_, slot| Some(flag(slot.active)),
        ),
        (
            Family(
                "slot_retained_bytes",
                "gauge",
                "WAL that the slot keeps: from its restart_lsn to the node's end.",
            ),
            |node, slot| Some(bytes_between(slot.restart_lsn?, node.end_lsn?) as f64),
        ),
        (
            Family(
                "slot_safe_bytes",
                "gauge",
                "Bytes that may still be written before the slot is in danger, if that is limited.",
            ),
            |_, slot| Some(slot.safe_wal_size? as f64),
        ),
    ];
    for (about, value) in &families {
        family(text, about);
        for node in &state.nodes {
            for slot in &node.slots {
                if let Some(value) = value(node, slot) {
                    let labels = [("node", node.name.as_str()), ("slot", &slot.slot_name)];
                    text.sample(about.0, &labels, &value.to_string());
                }
            }
        }
    }
}

fn conflicts(text: &mut Exposition, state: &MonitorState) {
    let about = Family(
        "recovery_conflicts_total",
        "counter",
        "Queries that replay has cancelled, since the server's statistics began.",
    );
    family(text, &about);
    let is_standby = |node: &&NodeState| node.usable && node.role == Role::Standby;
    for node in state.nodes.iter().filter(is_standby) {
        let found = &node.conflicts;
        for (kind, number) in [
            ("snapshot", found.snapshot),
            ("lock", found.lock),
            ("bufferpin", found.bufferpin),
            ("deadlock", found.deadlock),
        ] {
            let labels = [("node", node.name.as_str()), ("kind", kind)];
            text.sample("recovery_conflicts_total", &labels, &number.to_string());
        }
    }
}
