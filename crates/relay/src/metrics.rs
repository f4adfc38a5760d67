//! Metrics for Prometheus and a health check, over HTTP.
//!
//! `GET /metrics` answers in Prometheus' text format 0.0.4, `GET /healthz` with 200 while
//! every configured group streams, none is damaged and every slot can go on, else with 503 and
//! the reasons. Nothing is changed here, and no rows
//! of tables are shown; there is no login, so it listens on the loopback unless told
//! otherwise.

#[cfg(test)]
mod tests;

use std::future::Future;
use std::io;
use std::sync::Arc;

use lockstep_service::exposition::Exposition;
use lockstep_service::http::pages::{self, Pages};
use tokio::net::TcpListener;

use crate::stats::{ClientStat, ClientState, GroupStat, GroupState, SlotStat, Snapshot, Source};

/// Everything as Prometheus reads it. Counters start at 0 with the relay, those of slots also
/// with a reset of their statistics.
pub fn render(snapshot: &Snapshot) -> String {
    let mut text = Exposition::new("lockstep_relay_");
    text.family(
        "build_info",
        "gauge",
        "The relay's version, as a label; always 1.",
    );
    text.sample("build_info", &[("version", env!("CARGO_PKG_VERSION"))], "1");
    groups(&mut text, &snapshot.groups);
    slots(&mut text, &snapshot.slots);
    clients(&mut text, &snapshot.clients);
    text.into_text()
}

/// A metric of each group: its name, kind, help and value.
type GroupFamily = (
    &'static str,
    &'static str,
    &'static str,
    fn(&GroupStat) -> u64,
);

const GROUP_FAMILIES: [GroupFamily; 10] = [
    (
        "upstream_sent_position_bytes",
        "gauge",
        "Where the primary's WAL ended when it was last heard, as a number of bytes.",
        |group| group.sent.into(),
    ),
    (
        "upstream_received_position_bytes",
        "gauge",
        "End of the last transaction received, as a WAL position in bytes.",
        |group| group.received.into(),
    ),
    (
        "upstream_durable_position_bytes",
        "gauge",
        "WAL position in bytes that is durable in the spool and confirmed to the primary.",
        |group| group.durable.into(),
    ),
    (
        "upstream_transactions_total",
        "counter",
        "Transactions received.",
        |group| group.transactions,
    ),
    (
        "upstream_received_bytes_total",
        "counter",
        "Bytes of the stream received.",
        |group| group.received_bytes,
    ),
    (
        "cache_bytes",
        "gauge",
        "Bytes of the stream in memory.",
        |group| group.cache_bytes,
    ),
    (
        "cache_limit_bytes",
        "gauge",
        "Most bytes of the stream in memory; 0 if the cache is off.",
        |group| group.cache_limit_bytes,
    ),
    (
        "spool_bytes",
        "gauge",
        "Bytes of the stream on disk.",
        |group| group.spool_bytes,
    ),
    (
        "spool_limit_bytes",
        "gauge",
        "Most bytes of the stream on disk; 0 if there is no limit.",
        |group| group.spool_limit_bytes,
    ),
    (
        "spool_oldest_position_bytes",
        "gauge",
        "Oldest WAL position in bytes that is in the spool.",
        |group| group.oldest_spooled.into(),
    ),
];

fn groups(text: &mut Exposition, groups: &[GroupStat]) {
    let name = "upstream_state";
    text.family(
        name,
        "gauge",
        "1 for the state that a group is in, 0 for others.",
    );
    for group in groups {
        for state in GroupState::ALL {
            let value = flag(group.state == state);
            let labels = [("group", group.name.as_str()), ("state", state.name())];
            text.sample(name, &labels, value);
        }
    }
    for (name, kind, help, value) in GROUP_FAMILIES {
        text.family(name, kind, help);
        for group in groups {
            let value = value(group).to_string();
            text.sample(name, &[("group", &group.name)], &value);
        }
    }
}

/// Name, type and help of a metric, and its value for a slot.
type SlotFamily = (
    &'static str,
    &'static str,
    &'static str,
    fn(&SlotStat) -> String,
);

const SLOT_FAMILIES: [SlotFamily; 8] = [
    (
        "slot_active",
        "gauge",
        "1 while a subscriber uses the slot.",
        |slot| flag(slot.active_pid.is_some()).to_owned(),
    ),
    (
        "slot_failed",
        "gauge",
        "1 while the spool does not have what the slot needs next.",
        |slot| flag(!slot.reason.is_empty()).to_owned(),
    ),
    (
        "slot_sent_position_bytes",
        "gauge",
        "WAL position in bytes up to which the subscriber was sent the stream.",
        |slot| u64::from(slot.sent).to_string(),
    ),
    (
        "slot_confirmed_position_bytes",
        "gauge",
        "WAL position in bytes that the subscriber has confirmed.",
        |slot| u64::from(slot.confirmed).to_string(),
    ),
    (
        "slot_behind_bytes",
        "gauge",
        "Bytes of the stream that the relay has and the subscriber was not sent yet.",
        |slot| slot.behind_bytes.to_string(),
    ),
    (
        "slot_cache_hit_blocks_total",
        "counter",
        "Blocks of 8 kB served from memory.",
        |slot| slot.cache_hit.to_string(),
    ),
    (
        "slot_cache_miss_blocks_total",
        "counter",
        "Blocks of 8 kB served from the spool.",
        |slot| slot.cache_miss.to_string(),
    ),
    (
        "slot_stats_reset_timestamp_seconds",
        "gauge",
        "When the slot's statistics were reset, in seconds since 1970.",
        |slot| {
            let micros = slot.last_reset_unix_us;
            format!(
                "{}.{:06}",
                micros.max(0) / 1_000_000,
                micros.max(0) % 1_000_000
            )
        },
    ),
];

fn slots(text: &mut Exposition, slots: &[SlotStat]) {
    for (name, kind, help, value) in SLOT_FAMILIES {
        text.family(name, kind, help);
        for slot in slots {
            let labels = [("group", slot.group.as_str()), ("slot", &slot.name)];
            text.sample(name, &labels, &value(slot));
        }
    }
}

fn clients(text: &mut Exposition, clients: &[ClientStat]) {
    text.family("clients", "gauge", "Sessions of clients, by what they do.");
    for state in ClientState::ALL {
        let number = clients
            .iter()
            .filter(|client| client.state == state)
            .count();
        text.sample("clients", &[("state", state.name())], &number.to_string());
    }
}

fn flag(is: bool) -> &'static str {
    match is {
        true => "1",
        false => "0",
    }
}

/// What `/healthz` says: true if every group that is configured streams, none is damaged and
/// every slot can go on, and JSON for people who ask why not. Anybody who may log in can ask for
/// a group that cannot stream, so the others only show in the metrics.
pub fn health(snapshot: &Snapshot) -> (bool, String) {
    let groups = snapshot.groups.iter();
    let groups = groups
        .filter(|group| group.watched && group.state != GroupState::Streaming)
        .map(|group| {
            serde_json::json!({
                "group": group.name,
                "state": group.state.name(),
                "reason": group.reason,
            })
        });
    let slots = snapshot.slots.iter();
    let slots = slots
        .filter(|slot| !slot.reason.is_empty())
        .map(|slot| serde_json::json!({ "slot": slot.name, "reason": slot.reason }));
    let reasons: Vec<_> = groups.chain(slots).collect();
    let healthy = reasons.is_empty();
    let status = match healthy {
        true => "ok",
        false => "not streaming",
    };
    let body = serde_json::json!({ "status": status, "reasons": reasons });
    (healthy, format!("{body}\n"))
}

/// The pages of a relay.
struct OfRelay(Arc<dyn Source>);

impl Pages for OfRelay {
    fn metrics(&self) -> String {
        render(&self.0.snapshot())
    }

    fn health(&self) -> (bool, String) {
        health(&self.0.snapshot())
    }
}

/// Serves both pages until `stop` is done, then ends what is under way.
pub async fn serve(
    listener: TcpListener,
    source: Arc<dyn Source>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    pages::serve(listener, Arc::new(OfRelay(source)), stop).await
}
