//! What the relay asks the primary once a minute, and soon after a stream has begun.

use std::sync::Arc;

use lockstep_client::{ClientError, field};
use lockstep_wire::backend::Report;
use lockstep_wire::standby_names::StandbyNames;

use crate::group::Group;
use crate::primary::Primary;
use crate::stats::ClientStat;

/// What was seen.
#[derive(Debug)]
pub struct Seen {
    /// Subscriptions that the primary waits for although it cannot see them, since the relay
    /// serves them.
    pub unseen: Vec<String>,
    /// Sessions whose role may not replicate any more, and what they are told.
    pub lost: Vec<(u64, Report)>,
}

/// Tells each group whether commits on the primary may wait for it, and looks at the sessions
/// that stream: their own connections to the primary are closed, so that nothing else would
/// tell that a role was dropped or has lost a right.
pub fn look(
    primary: &Primary,
    groups: &[Arc<Group>],
    clients: &[ClientStat],
) -> Result<Seen, ClientError> {
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
    let roles = upstream.query(
        "SELECT rolname FROM pg_catalog.pg_roles WHERE rolcanlogin AND (rolreplication OR rolsuper) \
         AND coalesce(rolvaliduntil > pg_catalog.now(), true)",
    )?;
    let may_replicate = |user: &str| {
        let mut roles = roles.iter().filter_map(|row| row.first()?.as_deref());
        roles.any(|role| role == user)
    };
    let streaming = clients.iter().filter(|client| !client.slot.is_empty());
    let lost = streaming.filter(|client| !may_replicate(&client.user));
    Ok(Seen {
        unseen: unseen(&setting, groups, clients),
        lost: lost
            .map(|client| (client.id, no_right(&client.user)))
            .collect(),
    })
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

fn no_right(user: &str) -> Report {
    let message = format!("terminating connection: role \"{user}\" may not replicate any more");
    Report::fatal("42501", message)
}
