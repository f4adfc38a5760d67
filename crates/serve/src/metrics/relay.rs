//! Metrics of relays, from their consoles. Names, meanings and units are those of a relay's own
//! metrics (`crates/relay/src/metrics.rs`). Label `node` tells which relay it is.

use lockstep_lag::monitor::MonitorState;
use lockstep_lag::relay::{Group, RelaySlot};
use lockstep_lag::states::GroupState;
use lockstep_service::exposition::Exposition;

use super::{Family, family, flag};

type OfGroup = fn(&Group) -> u64;

const GROUP_FAMILIES: &[(Family, OfGroup)] = &[
    (
        Family(
            "relay_cache_bytes",
            "gauge",
            "Bytes of the stream in the relay's memory.",
        ),
        |group| group.cache_bytes,
    ),
    (
        Family(
            "relay_cache_limit_bytes",
            "gauge",
            "Most bytes of the stream in the relay's memory; 0 if the cache is off.",
        ),
        |group| group.cache_limit_bytes,
    ),
    (
        Family(
            "relay_spool_bytes",
            "gauge",
            "Bytes of the stream on the relay's disk.",
        ),
        |group| group.spool_bytes,
    ),
    (
        Family(
            "relay_spool_limit_bytes",
            "gauge",
            "Most bytes of the stream on the relay's disk; 0 if there is no limit.",
        ),
        |group| group.spool_limit_bytes,
    ),
];

type OfSlot = fn(&RelaySlot) -> u64;

const SLOT_FAMILIES: &[(Family, OfSlot)] = &[
    (
        Family(
            "relay_slot_behind_bytes",
            "gauge",
            "Bytes of the stream that the relay has and the subscriber was not sent yet.",
        ),
        |slot| slot.behind_bytes,
    ),
    (
        Family(
            "relay_slot_cache_hit_blocks_total",
            "counter",
            "Blocks of 8 kB that the relay served from memory.",
        ),
        |slot| slot.cache_hit,
    ),
    (
        Family(
            "relay_slot_cache_miss_blocks_total",
            "counter",
            "Blocks of 8 kB that the relay served from its spool.",
        ),
        |slot| slot.cache_miss,
    ),
];

pub fn relays(text: &mut Exposition, state: &MonitorState) {
    let relays = || {
        let nodes = state.nodes.iter();
        nodes.filter_map(|node| Some((node.name.as_str(), node.relay.as_ref()?)))
    };
    let about = Family(
        "relay_upstream_state",
        "gauge",
        "1 for the state that a relay's group is in, 0 for others.",
    );
    family(text, &about);
    for (node, relay) in relays() {
        for group in &relay.groups {
            for state in GroupState::KNOWN {
                let labels = [
                    ("node", node),
                    ("group", &group.name),
                    ("state", state.name()),
                ];
                text.sample(about.0, &labels, &flag(group.state == *state).to_string());
            }
        }
    }
    for (about, value) in GROUP_FAMILIES {
        family(text, about);
        for (node, relay) in relays() {
            for group in &relay.groups {
                let labels = [("node", node), ("group", group.name.as_str())];
                text.sample(about.0, &labels, &value(group).to_string());
            }
        }
    }
    for (about, value) in SLOT_FAMILIES {
        family(text, about);
        for (node, relay) in relays() {
            for slot in &relay.slots {
                let labels = [
                    ("node", node),
                    ("group", slot.group.as_str()),
                    ("slot", &slot.name),
                ];
                text.sample(about.0, &labels, &value(slot).to_string());
            }
        }
    }
}
