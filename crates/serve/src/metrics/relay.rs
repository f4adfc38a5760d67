//! Metrics of relays, from their consoles. Names, meanings and units are those of a relay's own
//! metrics (`crates/relay/src/metrics.rs`). Label `node` tells which relay it is.

use lockstep_lag::monitor::MonitorState;
use lockstep_lag::relay::{Group, RelaySlot};
use lockstep_lag::states::GroupState;
use lockstep_service::exposition::{Exposition, Family};

const OF_GROUPS: &[Family<Group>] = &[
    Family::new(
        "relay_cache_bytes",
        "Bytes of the stream in the relay's memory.",
        |group| group.cache_bytes.into(),
    ),
    Family::new(
        "relay_cache_limit_bytes",
        "Most bytes of the stream in the relay's memory; 0 if the cache is off.",
        |group| group.cache_limit_bytes.into(),
    ),
    Family::new(
        "relay_spool_bytes",
        "Bytes of the stream on the relay's disk.",
        |group| group.spool_bytes.into(),
    ),
    Family::new(
        "relay_spool_limit_bytes",
        "Most bytes of the stream on the relay's disk; 0 if there is no limit.",
        |group| group.spool_limit_bytes.into(),
    ),
];

const OF_SLOTS: &[Family<RelaySlot>] = &[
    Family::new(
        "relay_slot_behind_bytes",
        "Bytes of the stream that the relay has and the subscriber was not sent yet.",
        |slot| slot.behind_bytes.into(),
    ),
    Family::new(
        "relay_slot_cache_hit_blocks_total",
        "Blocks of 8 kB that the relay served from memory.",
        |slot| slot.cache_hit.into(),
    ),
    Family::new(
        "relay_slot_cache_miss_blocks_total",
        "Blocks of 8 kB that the relay served from its spool.",
        |slot| slot.cache_miss.into(),
    ),
];

pub fn relays(text: &mut Exposition, state: &MonitorState) {
    let relays = state
        .nodes
        .iter()
        .filter_map(|node| Some((node.name.as_str(), node.relay.as_ref()?)));
    let groups = relays
        .clone()
        .flat_map(|(node, relay)| relay.groups.iter().map(move |group| (node, group)));
    text.metric(
        "relay_upstream_state",
        "1 for the state that a relay's group is in, 0 for others.",
        groups.clone().flat_map(|(node, group)| {
            GroupState::KNOWN.iter().map(move |state| {
                let labels = [
                    ("node", node),
                    ("group", &group.name),
                    ("state", state.name()),
                ];
                (labels, group.state == *state)
            })
        }),
    );
    text.families(
        OF_GROUPS,
        groups.map(|(node, group)| ([("node", node), ("group", &group.name)], group)),
    );
    let slots = relays.flat_map(|(node, relay)| relay.slots.iter().map(move |slot| (node, slot)));
    text.families(
        OF_SLOTS,
        slots.map(|(node, slot)| {
            let labels = [("node", node), ("group", &slot.group), ("slot", &slot.name)];
            (labels, slot)
        }),
    );
}
