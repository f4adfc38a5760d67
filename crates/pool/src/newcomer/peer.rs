//! What the other servers say of themselves, and which of them is cloned. Only [`ask`] does I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use lockstep_client::{ClientError, Connection, Conninfo, field};

use super::error::NewcomerError;
use crate::session;

/// Name by which servers know this program.
pub const APPLICATION: &str = "lockstep pool add";

/// Oldest major that can be cloned.
const OLDEST: u32 = 15;

/// Settings of which a standby needs at least what the primary has.
pub const AT_LEAST: [&str; 5] = [
    "max_connections",
    "max_worker_processes",
    "max_wal_senders",
    "max_prepared_transactions",
    "max_locks_per_transaction",
];

/// What the role may do: pg_monitor's rights, and replication.
const RIGHTS: &str = "SELECT current_user, pg_has_role('pg_monitor', 'USAGE'), rolreplication OR rolsuper \
     FROM pg_roles WHERE rolname = current_user";

const FACTS: &str = "SELECT pg_is_in_recovery(), (SELECT system_identifier FROM pg_control_system()), \
     (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND state <> 'idle' \
        AND pid <> pg_backend_pid()), \
     (SELECT count(*) FROM pg_stat_replication WHERE state = 'backup'), \
     EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming'), \
     (SELECT setting FROM pg_settings WHERE name = 'shared_preload_libraries'), \
     (SELECT NOT starts_with(c.setting, d.setting || '/') FROM pg_settings c, pg_settings d \
        WHERE c.name = 'config_file' AND d.name = 'data_directory'), \
     (SELECT sum(pg_database_size(oid))::bigint FROM pg_database)";

/// Blocks that sessions have looked at, in memory or not.
const LOOKED_AT: &str =
    "SELECT coalesce(sum(blks_hit + blks_read), 0)::bigint FROM pg_stat_database";

/// The schema of the extension's functions about blocks in this database. A function of somebody else that
/// has their name does not count.
pub const HOT_SCHEMA: &str = "SELECT quote_ident(n.nspname) FROM pg_extension e \
     JOIN pg_namespace n ON n.oid = e.extnamespace \
     JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e' \
     JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid AND p.pronamespace = n.oid \
     WHERE e.extname = 'lockstep' AND p.proname = 'lockstep_read_blocks'";

/// A server as the nodes file has it.
#[derive(Debug, Clone)]
pub struct Place {
    pub name: String,
    pub conninfo: Conninfo,
    /// For the same readers as the new node.
    pub same_door: bool,
}

/// What a server says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    pub major: u32,
    pub in_recovery: bool,
    pub system: i64,
    /// Sessions that do something.
    pub sessions: u64,
    /// Base backups that are being taken from it.
    pub backups: u64,
    /// The walreceiver streams.
    pub streams: bool,
    pub preload: String,
    /// True if postgresql.conf is not in the data folder, so that a clone has none.
    pub settings_elsewhere: bool,
    pub data_bytes: u64,
    /// Blocks that its sessions had looked at, and when it said so.
    pub looked_at: (u64, Instant),
    /// What it has of [`AT_LEAST`].
    pub limits: BTreeMap<String, u64>,
    /// Names of the settings that can be changed.
    pub settable: BTreeSet<String>,
    /// Schema of the functions about blocks, ready for SQL.
    pub hot_schema: Option<String>,
}

/// Asks a server.
pub fn ask(place: &Place) -> Result<Facts, NewcomerError> {
    let wrong = |error: ClientError| NewcomerError::Peer {
        node: place.name.clone(),
        words: error.words(),
    };
    let mut connection = session::open(&place.conninfo, APPLICATION).map_err(wrong)?;
    let row = connection.query_one(RIGHTS).map_err(wrong)?;
    let rights = (field(&row, 0), field(&row, 1), field(&row, 2));
    let (role, monitors, replicates) = match rights {
        (Ok(role), Ok(monitors), Ok(replicates)) => (role, monitors, replicates),
        (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => return Err(wrong(error)),
    };
    may(&place.name, role, monitors, replicates)?;
    read(&mut connection).map_err(wrong)
}

fn may(node: &str, role: String, monitors: bool, replicates: bool) -> Result<(), NewcomerError> {
    let needs = match (monitors, replicates) {
        (true, true) => return Ok(()),
        (false, true) => {
            format!("the rights of pg_monitor: GRANT pg_monitor TO {role} on the primary")
        }
        (_, false) => format!("REPLICATION: ALTER ROLE {role} REPLICATION on the primary"),
    };
    Err(NewcomerError::Rights {
        node: node.to_owned(),
        role,
        needs,
    })
}

fn read(connection: &mut Connection) -> Result<Facts, ClientError> {
    let row = connection.query_one(FACTS)?;
    let names = AT_LEAST.map(|name| format!("'{name}'")).join(", ");
    let limits = connection.query(&format!(
        "SELECT name, setting FROM pg_settings WHERE name IN ({names})"
    ))?;
    let limits = limits
        .iter()
        .map(|row| Ok((field(row, 0)?, field(row, 1)?)))
        .collect::<Result<_, ClientError>>()?;
    let settable = connection.query("SELECT name FROM pg_settings WHERE context <> 'internal'")?;
    let settable = settable
        .iter()
        .map(|row| field(row, 0))
        .collect::<Result<_, ClientError>>()?;
    let hot = connection.query_opt(HOT_SCHEMA)?;
    let looked_at = field(&connection.query_one(LOOKED_AT)?, 0)?;
    Ok(Facts {
        major: connection.server_version() / 10_000,
        in_recovery: field(&row, 0)?,
        system: field(&row, 1)?,
        sessions: field(&row, 2)?,
        backups: field(&row, 3)?,
        streams: field(&row, 4)?,
        preload: field::<Option<String>>(&row, 5)?.unwrap_or_default(),
        settings_elsewhere: field::<Option<bool>>(&row, 6)?.unwrap_or_default(),
        data_bytes: field(&row, 7)?,
        looked_at: (looked_at, Instant::now()),
        limits,
        settable,
        hot_schema: hot.and_then(|row| row.into_iter().next().flatten()),
    })
}

/// Blocks that a server's sessions have looked at each second since it was asked; None if nobody knows.
pub fn looks_per_s(place: &Place, facts: &Facts) -> Option<f64> {
    let mut session = session::open(&place.conninfo, APPLICATION).ok()?;
    let now: u64 = field(&session.query_one(LOOKED_AT).ok()?, 0).ok()?;
    let (before, at) = facts.looked_at;
    // Somebody may have reset the statistics.
    Some(now.checked_sub(before)? as f64 / at.elapsed().as_secs_f64().max(0.001))
}

/// Checks what the primary says.
pub fn check_primary(node: &str, facts: &Facts) -> Result<(), NewcomerError> {
    if facts.major < OLDEST {
        return Err(NewcomerError::TooOld {
            node: node.to_owned(),
            major: facts.major,
            least: OLDEST,
        });
    }
    match facts.in_recovery {
        true => Err(NewcomerError::NoPrimary(node.to_owned())),
        false => Ok(()),
    }
}

/// A standby that may be cloned, and what it said.
pub type Asked = (Place, Result<Facts, NewcomerError>);

/// The server that is cloned: the one of a name if it is given; else the least loaded standby that streams,
/// of the new node's door if there is one; else the primary.
pub fn choose<'a>(
    primary: (&'a Place, &'a Facts),
    standbys: &'a [Asked],
    from: Option<&str>,
) -> Result<(&'a Place, &'a Facts), NewcomerError> {
    let is_meant = |place: &Place| from.is_none_or(|name| name == place.name);
    let mut candidates = Vec::from_iter(is_meant(primary.0).then_some(primary));
    for (place, facts) in standbys.iter().filter(|(place, _)| is_meant(place)) {
        match facts {
            Ok(facts) if facts.system != primary.1.system => {
                return Err(NewcomerError::OtherCluster {
                    node: place.name.clone(),
                    primary: primary.0.name.clone(),
                });
            }
            Ok(facts) if facts.streams || from.is_some() => candidates.push((place, facts)),
            Ok(_) => {}
            Err(error) if from.is_some() => return Err(NewcomerError::NoPeer(error.to_string())),
            Err(_) => {}
        }
    }
    let load = |(place, facts): &(&Place, &Facts)| {
        (
            !facts.in_recovery,
            !place.same_door,
            facts.backups,
            facts.sessions,
        )
    };
    candidates.into_iter().min_by_key(load).ok_or_else(|| {
        let name = from.unwrap_or_default();
        NewcomerError::Usage(format!("--from {name}: the nodes file has no such server"))
    })
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn facts(in_recovery: bool, sessions: u64) -> Facts {
        Facts {
            major: 17,
            in_recovery,
            system: 7,
            sessions,
            backups: 0,
            streams: in_recovery,
            preload: "lockstep".to_owned(),
            settings_elsewhere: false,
            data_bytes: 1000,
            looked_at: (0, Instant::now()),
            limits: AT_LEAST.map(|name| (name.to_owned(), 10)).into(),
            settable: (AT_LEAST.iter().chain(&["shared_preload_libraries"]))
                .map(|name| (*name).to_owned())
                .collect(),
            hot_schema: Some("public".to_owned()),
        }
    }

    fn place(name: &str, same_door: bool) -> Place {
        Place {
            name: name.to_owned(),
            conninfo: Conninfo::parse("host=x").unwrap(),
            same_door,
        }
    }

    fn chosen(
        standbys: &[(&str, bool, Result<Facts, ()>)],
        from: Option<&str>,
    ) -> Result<String, String> {
        let asked: Vec<Asked> = standbys
            .iter()
            .map(|(name, same_door, facts)| {
                let silent = |()| NewcomerError::NoPrimary("x".to_owned());
                (place(name, *same_door), facts.clone().map_err(silent))
            })
            .collect();
        let primary = (place("p", true), facts(false, 0));
        let chosen = choose((&primary.0, &primary.1), &asked, from);
        chosen
            .map(|chosen| chosen.0.name.clone())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_least_loaded_standby_is_cloned() {
        let backed_up = Facts {
            backups: 1,
            ..facts(true, 0)
        };
        let all = [
            ("busy", true, Ok(facts(true, 9))),
            ("idle", true, Ok(facts(true, 2))),
            ("reports", false, Ok(facts(true, 0))),
            ("backed-up", true, Ok(backed_up)),
            ("silent", true, Err(())),
        ];
        assert_eq!(chosen(&all, None).unwrap(), "idle");
        assert_eq!(chosen(&all, Some("busy")).unwrap(), "busy");
        assert_eq!(chosen(&all, Some("p")).unwrap(), "p");
        assert!(
            chosen(&all, Some("silent"))
                .unwrap_err()
                .contains("x is in recovery")
        );
        assert!(
            chosen(&all, Some("nobody"))
                .unwrap_err()
                .contains("--from nobody")
        );
        assert_eq!(chosen(&all[2..3], None).unwrap(), "reports");
    }

    #[test]
    fn one_that_does_not_stream_is_cloned_only_by_name() {
        let still = Facts {
            streams: false,
            ..facts(true, 0)
        };
        let all = [("still", true, Ok(still)), ("silent", true, Err(()))];
        assert_eq!(chosen(&all, None).unwrap(), "p");
        assert_eq!(chosen(&all, Some("still")).unwrap(), "still");
        let strange = [(
            "strange",
            true,
            Ok(Facts {
                system: 8,
                ..facts(true, 0)
            }),
        )];
        let error = chosen(&strange, None).unwrap_err();
        assert!(
            error.contains("strange belongs to another cluster than p"),
            "{error}"
        );
        assert_eq!(chosen(&strange, Some("p")).unwrap(), "p");
    }

    #[test]
    fn a_primary_takes_writes_and_a_role_has_rights() {
        let check = |facts: &Facts| check_primary("p", facts).map_err(|error| error.to_string());
        assert_eq!(check(&facts(false, 0)), Ok(()));
        assert!(
            check(&facts(true, 0))
                .unwrap_err()
                .contains("p is in recovery")
        );
        let mut old = facts(false, 0);
        old.major = 14;
        assert!(check(&old).unwrap_err().contains("PostgreSQL 14"));
        let words = |monitors, replicates| {
            let said = may("p", "watcher".to_owned(), monitors, replicates);
            said.map_err(|error| error.to_string())
        };
        assert_eq!(words(true, true), Ok(()));
        assert!(
            words(false, true)
                .unwrap_err()
                .contains("GRANT pg_monitor TO watcher")
        );
        assert!(
            words(true, false)
                .unwrap_err()
                .contains("ALTER ROLE watcher REPLICATION")
        );
    }
}
