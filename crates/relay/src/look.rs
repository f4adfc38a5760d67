//! What the relay asks the primary once a minute, and soon after a stream has begun.

use std::sync::Arc;

use lockstep_client::{ClientError, field};
use lockstep_wire::standby_names::StandbyNames;

use crate::group::Group;
use crate::primary::Primary;
use crate::stats::ClientStat;

/// Tells each group whether commits on the primary may wait for it. Returns the subscriptions
/// that the primary waits for although it cannot see them, since the relay serves them.
pub fn look(
    primary: &Primary,
    groups: &[Arc<Group>],
    clients: &[ClientStat],
) -> Result<Vec<String>, ClientError> {
    let mut upstream = primary.look()?;
    let rows =
        upstream.query("SELECT pid FROM pg_catalog.pg_stat_replication WHERE sync_priority > 0")?;
    let awaited: Vec<u32> = rows.iter().filter_map(|row| field(row, 0).ok()).collect();
    for group in groups {
        let synchronous = &group.synchronous;
        synchronous.set_awaited(
            synchronous
                .walsender()
                .is_some_and(|pid| awaited.contains(&pid)),
        );
    }
    let row = upstream.query_one("SHOW synchronous_standby_names")?;
    let setting: String = field(&row, 0)?;
    Ok(unseen(&setting, groups, clients))
}

/// Names of the setting that are those of sessions which stream from the relay, and of no group.
fn unseen(setting: &str, groups: &[Arc<Group>], clients: &[ClientStat]) -> Vec<String> {
    // A primary takes no other value.
    let Ok(Some(waited_for)) = StandbyNames::parse(setting) else {
        return Vec::new();
    };
    let carried = |name: &str| {
        let mut groups = groups.iter().map(|group| &group.synchronous);
        groups.any(|group| group.application_name().eq_ignore_ascii_case(name))
    };
    let mut unseen: Vec<String> = clients
        .iter()
        .filter(|client| !client.slot.is_empty())
        .map(|client| client.application_name.clone())
        .filter(|name| {
            waited_for
                .names
                .iter()
                .any(|named| named.eq_ignore_ascii_case(name))
        })
        .filter(|name| !carried(name))
        .collect();
    unseen.sort();
    unseen.dedup();
    unseen
}
