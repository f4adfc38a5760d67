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

use lockstep_service::exposition::{Exposition, Family};
use lockstep_service::http::pages::{self, Pages};
use tokio::net::TcpListener;

use crate::stats::{ClientState, GroupStat, GroupState, SlotStat, Snapshot};

/// Everything as Prometheus reads it. Counters start at 0 with the relay, those of slots also
/// with a reset of their statistics.
pub fn render(snapshot: &Snapshot) -> String {
    let mut text = Exposition::new("lockstep_relay_");
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    let about = "The relay's version, as a label; always 1.";
    text.metric("build_info", about, [(version, true)]);
    let groups = snapshot.groups.iter();
    text.metric(
        "upstream_state",
        "1 for the state that a group is in, 0 for others.",
        groups.clone().flat_map(|group| {
            GroupState::ALL.map(|state| {
                let labels = [("group", group.name.as_str()), ("state", state.name())];
                (labels, group.state == state)
            })
        }),
    );
    text.families(
        &OF_GROUPS,
        groups.map(|group| ([("group", &group.name)], group)),
    );
    text.families(
        &OF_SLOTS,
        snapshot
            .slots
            .iter()
            .map(|slot| ([("group", &slot.group), ("slot", &slot.name)], slot)),
    );
    text.metric(
        "clients",
        "Sessions of clients, by what they do.",
        ClientState::ALL.map(|state| {
            let clients = snapshot.clients.iter();
            let number = clients.filter(|client| client.state == state).count();
            ([("state", state.name())], number)
        }),
    );
    text.into_text()
}

const OF_GROUPS: [Family<GroupStat>; 10] = [
    Family::new(
        "upstream_sent_position_bytes",
        "Where the primary's WAL ended when it was last heard, as a number of bytes.",
        |group| group.sent.into(),
    ),
    Family::new(
        "upstream_received_position_bytes",
        "End of the last transaction received, as a WAL position in bytes.",
        |group| group.received.into(),
    ),
    Family::new(
        "upstream_durable_position_bytes",
        "WAL position in bytes that is durable in the spool and confirmed to the primary.",
        |group| group.durable.into(),
    ),
    Family::new(
        "upstream_transactions_total",
        "Transactions received.",
        |group| group.transactions.into(),
    ),
    Family::new(
        "upstream_received_bytes_total",
        "Bytes of the stream received.",
        |group| group.received_bytes.into(),
    ),
    Family::new("cache_bytes", "Bytes of the stream in memory.", |group| {
        group.cache_bytes.into()
    }),
    Family::new(
        "cache_limit_bytes",
        "Most bytes of the stream in memory; 0 if the cache is off.",
        |group| group.cache_limit_bytes.into(),
    ),
    Family::new("spool_bytes", "Bytes of the stream on disk.", |group| {
        group.spool_bytes.into()
    }),
    Family::new(
        "spool_limit_bytes",
        "Most bytes of the stream on disk; 0 if there is no limit.",
        |group| group.spool_limit_bytes.into(),
    ),
    Family::new(
        "spool_oldest_position_bytes",
        "Oldest WAL position in bytes that is in the spool.",
        |group| group.oldest_spooled.into(),
    ),
];

const OF_SLOTS: [Family<SlotStat>; 8] = [
    Family::new(
        "slot_active",
        "1 while a subscriber uses the slot.",
        |slot| slot.active_pid.is_some().into(),
    ),
    Family::new(
        "slot_failed",
        "1 while the spool does not have what the slot needs next.",
        |slot| (!slot.reason.is_empty()).into(),
    ),
    Family::new(
        "slot_sent_position_bytes",
        "WAL position in bytes up to which the subscriber was sent the stream.",
        |slot| slot.sent.into(),
    ),
    Family::new(
        "slot_confirmed_position_bytes",
        "WAL position in bytes that the subscriber has confirmed.",
        |slot| slot.confirmed.into(),
    ),
    Family::new(
        "slot_behind_bytes",
        "Bytes of the stream that the relay has and the subscriber was not sent yet.",
        |slot| slot.behind_bytes.into(),
    ),
    Family::new(
        "slot_cache_hit_blocks_total",
        "Blocks of 8 kB served from memory.",
        |slot| slot.cache_hit.into(),
    ),
    Family::new(
        "slot_cache_miss_blocks_total",
        "Blocks of 8 kB served from the spool.",
        |slot| slot.cache_miss.into(),
    ),
    Family::new(
        "slot_stats_reset_timestamp_seconds",
        "When the slot's statistics were reset, in seconds since 1970.",
        |slot| {
            let micros = slot.last_reset_unix_us.max(0);
            format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000).into()
        },
    ),
];

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
struct OfRelay<F>(F);

impl<F: Fn() -> Snapshot + Send + Sync> Pages for OfRelay<F> {
    fn metrics(&self) -> String {
        render(&self.0())
    }

    fn health(&self) -> (bool, String) {
        health(&self.0())
    }
}

/// Serves both pages until `stop` is done, then ends what is under way.
pub async fn serve(
    listener: TcpListener,
    snapshot: impl Fn() -> Snapshot + Send + Sync + 'static,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    pages::serve(listener, Arc::new(OfRelay(snapshot)), stop).await
}
