//! What the relay asks the primary once a minute, and soon after a stream has begun.

use std::sync::Arc;

use lockstep_client::{ClientError, field};

use crate::group::Group;
use crate::primary::Primary;
use crate::stats::ClientStat;
use crate::synchronous::{means, names};

/// Tells each group whether commits on the primary may wait for it. Returns the subscriptions
/// that the primary waits for although it cannot see them, since the relay serves them.
pub fn look(
    primary: &Primary,
    groups: &[Arc<Group>],
    clients: &[ClientStat],
) -> Result<Vec<String>, ClientError> {
    let mut upstream = primary.connect_anywhere()?;
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

fn unseen(setting: &str, groups: &[Arc<Group>], clients: &[ClientStat]) -> Vec<String> {
    let of_a_group = |name: &String| {
        let mut carried = groups
            .iter()
            .map(|group| group.synchronous.application_name());
        carried.any(|carried| means(name, carried))
    };
    let served = |name: &String| {
        let mut served = clients.iter().filter(|client| !client.slot.is_empty());
        served.any(|client| means(name, &client.application_name))
    };
    let named = names(setting).into_iter();
    named
        .filter(|name| !of_a_group(name) && served(name))
        .collect()
}
