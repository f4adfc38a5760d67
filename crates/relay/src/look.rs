//! What the relay asks the primary once a minute, and soon after a stream has begun.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockstep_client::{ClientError, field};
use lockstep_wire::backend::Report;
use lockstep_wire::standby_names::StandbyNames;

use crate::group::Group;
use crate::primary::Primary;
use crate::stats::ClientStat;

/// How soon the primary is asked again once others stream than before, or after a failure.
pub const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Interval at which the primary is asked what may have changed while groups stream.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// Who streams: what the primary says depends on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Streaming {
    /// The primary's processes that stream to groups.
    pub walsenders: Vec<u32>,
    /// Sessions that stream from the relay.
    pub sessions: Vec<u64>,
}

/// When the primary is asked, decided without a clock.
#[derive(Debug, Default)]
pub struct Looks(Option<Looked>);

#[derive(Debug)]
struct Looked {
    about: Streaming,
    answered: bool,
    at: Instant,
}

impl Looks {
    /// Whether it is time to ask.
    pub fn is_due(&self, about: &Streaming, now: Instant) -> bool {
        let is_over = |last: &Looked| {
            let same = last.answered && last.about == *about;
            now.saturating_duration_since(last.at) >= if same { ASK_AGAIN } else { LOOK_AGAIN }
        };
        !about.walsenders.is_empty() && self.0.as_ref().is_none_or(is_over)
    }

    /// The primary was asked, and has answered or not.
    pub fn asked(&mut self, about: Streaming, answered: bool, at: Instant) {
        let looked = Looked {
            about,
            answered,
            at,
        };
        self.0 = Some(looked);
    }
}

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
    let rows = upstream.query(
        "SELECT oid FROM pg_catalog.pg_roles WHERE rolcanlogin AND (rolreplication OR rolsuper) \
         AND coalesce(rolvaliduntil > pg_catalog.now(), true)",
    )?;
    let roles: Vec<u32> = rows.iter().filter_map(|row| field(row, 0).ok()).collect();
    Ok(Seen {
        unseen: unseen(&setting, groups, clients),
        lost: lost(clients, &roles),
    })
}

/// Sessions with a slot whose role is none of those that may replicate. The role is known from
/// START_REPLICATION on: a session without one has the slot only while it drops it.
fn lost(clients: &[ClientStat], may_replicate: &[u32]) -> Vec<(u64, Report)> {
    let has_lost = |client: &&ClientStat| {
        let role = client.role_oid.as_ref();
        !client.slot.is_empty() && role.is_some_and(|role| !may_replicate.contains(role))
    };
    let clients = clients.iter().filter(has_lost);
    clients
        .map(|client| (client.id, no_right(&client.user)))
        .collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::ClientState;

    #[test]
    fn a_session_that_drops_a_slot_is_not_ended() {
        let client = |id, slot: &str, role_oid| ClientStat {
            id,
            pid: 1,
            user: "u".to_owned(),
            database: "d".to_owned(),
            application_name: String::new(),
            address: String::new(),
            state: ClientState::PassedThrough,
            slot: slot.to_owned(),
            role_oid,
            since_unix_us: 0,
        };
        let clients = [
            client(1, "streams", Some(10)),
            client(2, "lost its role", Some(11)),
            client(3, "drops it", None),
            client(4, "", Some(11)),
        ];
        let lost = lost(&clients, &[10]);
        assert_eq!(lost.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn a_look_that_failed_is_made_again_soon() {
        let start = Instant::now();
        let streaming = |walsenders: &[u32], sessions: &[u64]| Streaming {
            walsenders: walsenders.to_vec(),
            sessions: sessions.to_vec(),
        };
        let usual = streaming(&[7], &[1]);
        for (about, answered, after, due) in [
            (&usual, true, LOOK_AGAIN, false),
            (&usual, true, ASK_AGAIN, true),
            (&usual, false, LOOK_AGAIN / 2, false),
            (&usual, false, LOOK_AGAIN, true),
            (&streaming(&[7], &[1, 2]), true, LOOK_AGAIN, true),
            (&streaming(&[8], &[1]), true, LOOK_AGAIN / 2, false),
            (&streaming(&[], &[1]), false, ASK_AGAIN, false),
        ] {
            let mut looks = Looks::default();
            assert!(looks.is_due(&usual, start));
            looks.asked(usual.clone(), answered, start);
            let said = looks.is_due(about, start + after);
            assert_eq!(said, due, "{about:?} {answered} {after:?}");
        }
    }
}
