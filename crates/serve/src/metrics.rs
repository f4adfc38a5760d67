//! A state in Prometheus' text format. `docs/serve.md` lists every family; alert rules and
//! dashboards rely on the names.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_lag::Role;
use lockstep_lag::monitor::{LinkState, MonitorState, NodeState};
use lockstep_lag::replica::Doing;
use lockstep_lag::states::WalStatus;
use lockstep_lag::views::{Extension, Slot};
use lockstep_service::exposition::{Exposition, Family, NO_LABELS, Value};

use crate::forecast::{Folder, Forecast, Room};
use crate::history::HistoryStatus;

mod parallel_replay;
mod relay;
#[cfg(test)]
mod tests;

fn of_primary(node: &NodeState, value: impl Into<Value>) -> Value {
    let is_primary = node.usable && node.role == Role::Primary;
    is_primary.then_some(value).into()
}

fn of_server(node: &NodeState, value_ms: Option<f64>) -> Value {
    let is_server = node.usable && node.role != Role::Relay;
    is_server.then_some(value_ms.unwrap_or(0.0) / 1000.0).into()
}

fn seconds(ms: Option<f64>) -> Value {
    ms.map(|ms| ms / 1000.0).into()
}

/// A value of the gate of extension lockstep.
fn of_gate(node: &NodeState, value: fn(&Extension) -> u64) -> Value {
    node.extension.as_ref().map(value).into()
}

const OF_NODES: &[Family<NodeState>] = &[
    Family::new(
        "round_trip_seconds",
        "From question to answer, in the newest sample.",
        |node| seconds(node.round_trip_ms),
    ),
    Family::new(
        "wal_position_bytes",
        "End of the node's WAL, as a number of bytes: flushed on a primary, received on a \
             standby.",
        |node| node.end_lsn.into(),
    ),
    Family::new(
        "replay_lag_seconds",
        "Age of the oldest WAL received and not replayed, by extension lockstep.",
        |node| seconds(node.extension.as_ref().and_then(|found| found.lag_ms)),
    ),
    Family::new(
        "waiting_synchronous_commits",
        "Commits that wait for a synchronous replica.",
        |node| of_primary(node, node.awaiting_sync),
    ),
    Family::new(
        "waiting_synchronous_commit_seconds",
        "Since the oldest statement began whose commit waits for a synchronous replica; 0 if none waits.",
        |node| of_primary(node, node.awaiting_sync_ms.unwrap_or(0.0) / 1000.0),
    ),
    Family::new(
        "oldest_transaction_seconds",
        "Since the oldest open transaction began; 0 if none is open.",
        |node| of_server(node, node.oldest_transaction_ms),
    ),
    Family::new(
        "oldest_prepared_seconds",
        "Since the oldest prepared transaction was prepared; 0 if there is none.",
        |node| of_server(node, node.oldest_prepared_ms),
    ),
    Family::new(
        "archive_failures_total",
        "Failures to archive a segment, since the server's statistics began.",
        |node| of_primary(node, node.archive_failures),
    ),
    Family::new(
        "archived_age_seconds",
        "Since a segment was archived; missing if none was.",
        |node| of_primary(node, seconds(node.archived_age_ms)),
    ),
    Family::new(
        "wal_folder_bytes",
        "Size of all files in pg_wal, some seconds ago; missing if the role may not see them.",
        |node| node.wal_folder.map(|folder| folder.bytes).into(),
    ),
    Family::new("wal_folder_files", "Number of these files.", |node| {
        node.wal_folder.map(|folder| folder.files).into()
    }),
    Family::new(
        "throttle_waiting",
        "Queries that wait at the gate of extension lockstep.",
        |node| of_gate(node, |found| found.waiting),
    ),
    Family::new(
        "throttle_running",
        "Queries inside the gate of extension lockstep.",
        |node| of_gate(node, |found| found.running),
    ),
    Family::new(
        "throttle_limit",
        "How many queries extension lockstep lets in at once.",
        |node| of_gate(node, |found| found.concurrency_limit),
    ),
];

/// The age of a replica's data behind the primary, in milliseconds, and whether that is a lower bound: its
/// lag, unless its upstream is behind as well.
fn age(link: &LinkState) -> (f64, bool) {
    let all = link.behind_primary.filter(|all| all.lag_ms > link.lag_ms);
    all.map_or((link.lag_ms, link.bound.lag_is_least), |all| {
        (all.lag_ms, all.lag_is_least)
    })
}

const OF_LINKS: &[Family<LinkState>] = &[
    Family::new(
        "lag_seconds",
        "How long there has been WAL upstream that the replica has not replayed or applied, as \
             far as is known.",
        |link| (link.lag_ms / 1000.0).into(),
    ),
    Family::new(
        "lag_is_least",
        "1 if the lag began before anybody watched, so that lag_seconds is a lower bound.",
        |link| link.bound.lag_is_least.into(),
    ),
    Family::new(
        "lag_is_most",
        "1 if the replica may have applied more than it reported, so that lag_seconds is an upper bound.",
        |link| link.bound.lag_is_most.into(),
    ),
    Family::new(
        "lag_bytes",
        "WAL upstream that the replica has not replayed or applied.",
        |link| link.lag_bytes.into(),
    ),
    Family::new(
        "data_age_seconds",
        "How old the data is that the replica's readers see, from end to end, as far as is known.",
        |link| (age(link).0 / 1000.0).into(),
    ),
    Family::new(
        "data_age_is_least",
        "1 if that age is a lower bound.",
        |link| age(link).1.into(),
    ),
    Family::new(
        "behind",
        "1 if the replica lags by the diagnosis of the last seconds.",
        |link| link.behind.into(),
    ),
];

const OF_FOLDERS: &[Family<Folder>] = &[
    Family::new(
        "wal_folder_growth_bytes_per_second",
        "How fast pg_wal grows; missing before five minutes were seen.",
        |folder| folder.growth_bytes_per_s.into(),
    ),
    Family::new(
        "wal_folder_limit_bytes",
        "The size that pg_wal can have, as --wal-disk says.",
        |folder| folder.limit_bytes.into(),
    ),
    Family::new(
        "wal_folder_full_seconds",
        "Until pg_wal has that size, if it goes on to grow so; 0 if it has, missing if later than 30 days.",
        |folder| seconds(folder.full_ms),
    ),
];

const OF_ROOMS: &[Family<Room>] = &[Family::new(
    "slot_danger_seconds",
    "Until the slot may lose WAL, if its room goes on to shrink so; 0 if it may, missing if later than 30 \
        days.",
    |room| seconds(room.danger_ms),
)];

/// A text in which every sample has the cluster's name.
fn exposition(state: &MonitorState) -> Exposition {
    let text = Exposition::new("lockstep_");
    match cluster(state) {
        Some(cluster) => text.with_label("cluster", cluster),
        None => text,
    }
}

/// Metrics of what is to come.
pub fn forecast(state: &MonitorState, forecast: &Forecast) -> String {
    let mut text = exposition(state);
    let folders = forecast.nodes.iter();
    text.families(
        OF_FOLDERS,
        folders.map(|folder| ([("node", &folder.node)], folder)),
    );
    let rooms = forecast.slots.iter();
    text.families(
        OF_ROOMS,
        rooms.map(|room| ([("node", &room.node), ("slot", &room.slot)], room)),
    );
    text.into_text()
}

/// All metrics. `now_ms` is in milliseconds since 1970.
pub fn render(state: &MonitorState, now_ms: i64) -> String {
    let mut text = exposition(state);
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    let about = "This program's version, as a label; always 1.";
    text.metric("build_info", about, [(version, true)]);
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
pub fn history(state: &MonitorState, status: &HistoryStatus, now_ms: i64) -> String {
    let mut text = exposition(state);
    let age = |since_ms: Option<i64>| seconds(since_ms.map(|ms| (now_ms - ms).max(0) as f64));
    for (name, help, value) in [
        (
            "history_bytes",
            "Size of the history's file.",
            status.bytes.into(),
        ),
        (
            "history_limit_bytes",
            "Limit of the history's file.",
            status.limit_bytes.into(),
        ),
        (
            "history_reach_seconds",
            "How far the history goes back.",
            age(status.oldest_ms),
        ),
        (
            "history_saved_age_seconds",
            "Time since the history's file was last written.",
            age(status.saved_ms),
        ),
        (
            "history_failing",
            "1 if the history's file cannot be written or read.",
            status.trouble.is_some().into(),
        ),
    ] {
        text.metric(name, help, [(NO_LABELS, value)]);
    }
    text.into_text()
}

/// The name that the nodes file gives, or what the primary calls its cluster. Standbys often have names of
/// their own there.
fn cluster(state: &MonitorState) -> Option<&str> {
    if state.cluster.is_some() {
        return state.cluster.as_deref();
    }
    let mut nodes = state.nodes.iter();
    let primary = nodes.find(|node| node.role == Role::Primary)?;
    primary.cluster_name.as_deref()
}

fn nodes(text: &mut Exposition, state: &MonitorState, now_ms: i64) {
    let nodes = state.nodes.iter();
    text.metric(
        "up",
        "1 if the node answers and has the role that it was named with.",
        nodes.clone().map(|node| {
            let labels = [("node", node.name.clone()), ("role", node.role.to_string())];
            (labels, node.usable)
        }),
    );
    text.metric(
        "unseen",
        "Number of things that cannot be seen although nodes answer; above 0 nobody knows whether all \
         replicas keep up.",
        [(NO_LABELS, state.diagnosis.unknown.len())],
    );
    let since_ms = now_ms.saturating_sub(state.at_ms).max(0) as f64;
    text.metric(
        "sample_age_seconds",
        "Age of the newest sample, also of a node that does not answer.",
        nodes.clone().map(|node| {
            let age = seconds(node.sample_age_ms.map(|ms| ms + since_ms));
            ([("node", &node.name)], age)
        }),
    );
    text.families(OF_NODES, nodes.map(|node| ([("node", &node.name)], node)));
}

/// Name and value of a label.
type Label<'a> = (&'static str, &'a str);

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
    text.families(
        OF_LINKS,
        links.iter().map(|(labels, link)| (*labels, *link)),
    );
    text.metric(
        "stage_bytes",
        "Bytes of WAL in each part of the way to the replica.",
        links.iter().flat_map(|([upstream, replica, kind], link)| {
            link.stages.iter().map(|stage| {
                let labels = [*upstream, *replica, *kind, ("stage", stage.name)];
                (labels, stage.bytes)
            })
        }),
    );
    let doing = links.iter().filter_map(|([upstream, replica, _], link)| {
        let now = link.lockstep_replica.as_ref()?.doing?;
        Some((*upstream, *replica, now))
    });
    text.metric(
        "replica_doing",
        "1 for what a replica of Lockstep does, if its target is asked.",
        doing.flat_map(|(upstream, replica, now)| {
            Doing::ALL
                .iter()
                .map(move |doing| ([upstream, replica, ("doing", doing.id())], *doing == now))
        }),
    );
    text.metric(
        "visible_seconds",
        "From a commit on the primary until it is visible on the standby, with --heartbeat.",
        links.iter().map(|([upstream, replica, _], link)| {
            ([*upstream, *replica], seconds(link.visible_ms))
        }),
    );
}

fn causes(text: &mut Exposition, state: &MonitorState) {
    // Two sessions may be to blame for one cause.
    let found: BTreeSet<_> = state
        .diagnosis
        .findings
        .iter()
        .map(|found| (found.at.as_str(), found.cause.id(), found.severity.name()))
        .collect();
    text.metric(
        "cause",
        "1 for each cause that is found now; none is there otherwise.",
        found.into_iter().map(|(at, cause, severity)| {
            let labels = [("at", at), ("cause", cause), ("severity", severity)];
            (labels, true)
        }),
    );
}

fn slots(text: &mut Exposition, state: &MonitorState) {
    let families: [Family<(&NodeState, &Slot)>; 4] = [
        Family::new(
            "slot_active",
            "1 while somebody uses the slot.",
            |(_, slot)| slot.active.into(),
        ),
        Family::new(
            "slot_retained_bytes",
            "WAL that the slot keeps: from its restart_lsn to the node's end.",
            |(node, slot)| {
                let ends = slot.restart_lsn.zip(node.end_lsn);
                ends.map(|(from, to)| to.bytes_since(from)).into()
            },
        ),
        Family::new(
            "slot_safe_bytes",
            "Bytes that may still be written before the slot is in danger, if that is limited.",
            |(_, slot)| slot.safe_wal_size.into(),
        ),
        Family::new(
            "slot_lost",
            "1 if WAL is removed that the slot's consumer needs.",
            |(_, slot)| (slot.wal_status == Some(WalStatus::Lost)).into(),
        ),
    ];
    let nodes = state.nodes.iter();
    let slots: Vec<_> = nodes
        .flat_map(|node| node.slots.iter().map(move |slot| (node, slot)))
        .collect();
    text.families(
        &families,
        slots.iter().map(|of| {
            let (node, slot) = of;
            ([("node", &node.name), ("slot", &slot.slot_name)], of)
        }),
    );
}

fn conflicts(text: &mut Exposition, state: &MonitorState) {
    let nodes = state.nodes.iter();
    let standbys = nodes.filter(|node| node.usable && node.role == Role::Standby);
    text.metric(
        "recovery_conflicts_total",
        "Queries that replay has cancelled, since the server's statistics began.",
        standbys.flat_map(|node| {
            let found = &node.conflicts;
            [
                ("snapshot", found.snapshot),
                ("lock", found.lock),
                ("bufferpin", found.bufferpin),
                ("deadlock", found.deadlock),
            ]
            .map(|(kind, number)| ([("node", node.name.as_str()), ("kind", kind)], number))
        }),
    );
}
