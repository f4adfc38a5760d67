//! What would make a switchover fail, or its pause long: looked for before anything is changed.

use lockstep_client::{ClientError, Connection, field};
use lockstep_service::words::span;

use crate::error::{Finding, Findings};
use crate::lifecycle::fence::{self, FenceFacts};
use crate::names::{named, with_namespaces};
use crate::state::Replica;
use lockstep_apply::sessions;
use std::time::Duration;

/// What both servers say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SwitchFacts {
    pub fence: FenceFacts,
    /// What a session sees of the target, which is closed; None if it was not asked.
    pub closing: Option<FenceFacts>,
    pub source_in_recovery: bool,
    /// Replicas that apply to the source.
    pub fed: Vec<String>,
    /// Subscriptions of the source's database, which write there.
    pub subscriptions: Vec<String>,
    /// Unlogged tables of the source that have rows.
    pub unlogged: Vec<String>,
    pub large_objects: u64,
    /// What is not replicated, in words.
    pub lacks: Vec<String>,
    /// None if no way back is wanted.
    pub back: Option<BackFacts>,
}

/// Whether the source could follow the target.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BackFacts {
    pub wal_level: String,
    pub slots_free: i64,
    pub walsenders_free: i64,
    /// The role may make slots on the target.
    pub replicates: bool,
    /// The role may change the source's tables as apply does.
    pub sets_replication_role: bool,
    pub makes_origins: bool,
    pub origins_free: i64,
    /// Tables of the source that belong to others.
    pub foreign_tables: Vec<String>,
}

const SOURCE: &str = "
SELECT pg_is_in_recovery(),
    (SELECT coalesce(json_agg(s.subname), '[]') FROM pg_subscription s
        JOIN pg_database d ON d.oid = s.subdbid AND d.datname = current_database()
        WHERE s.subenabled)::text,
    (SELECT count(*) FROM pg_largeobject_metadata)";

/// An unlogged table without blocks has no rows.
const UNLOGGED: &str = "
SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relpersistence = 'u' AND pg_relation_size(c.oid) > 0 AND {namespaces}
ORDER BY 1";

const TARGET: &str = "
SELECT current_setting('wal_level'),
    current_setting('max_replication_slots')::int8 - (SELECT count(*) FROM pg_replication_slots),
    current_setting('max_wal_senders')::int8 - (SELECT count(*) FROM pg_stat_replication),
    (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user)";

const RIGHTS: &str = "
SELECT has_parameter_privilege('session_replication_role', 'SET'),
    has_function_privilege('pg_replication_origin_create(text)', 'EXECUTE'),
    coalesce((SELECT setting::int8 FROM pg_settings WHERE name = 'max_active_replication_origins'),
        current_setting('max_replication_slots')::int8) - (SELECT count(*) FROM pg_replication_origin)";

const FOREIGN: &str = "
SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND {namespaces}
    AND NOT pg_has_role(c.relowner, 'USAGE')
ORDER BY 1";

/// Sessions of others with a transaction that is older than `$1` seconds.
const LONG: &str = "
SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'
    AND pid <> pg_backend_pid() AND xact_start < clock_timestamp() - $1::float8 * interval '1 second'
ORDER BY xact_start";

/// Transactions that were prepared more than `$1` seconds ago and have not ended.
const LONG_PREPARED: &str = "
SELECT gid FROM pg_prepared_xacts WHERE database = current_database()
    AND prepared < clock_timestamp() - $1::float8 * interval '1 second'
ORDER BY prepared";

fn names(session: &mut Connection, sql: &str) -> Result<Vec<String>, ClientError> {
    let rows = session.query(&with_namespaces(sql))?;
    rows.iter().map(|row| field(row, 0)).collect()
}

fn listed(text: &str) -> Result<Vec<String>, ClientError> {
    serde_json::from_str(text)
        .map_err(|error| ClientError::Protocol(format!("\"{text}\": {error}")))
}

/// Asks the source.
pub(super) fn of_source(source: &mut Connection) -> Result<SwitchFacts, ClientError> {
    let row = source.query_one(SOURCE)?;
    Ok(SwitchFacts {
        fence: fence::look(source)?,
        source_in_recovery: field(&row, 0)?,
        subscriptions: listed(&field::<String>(&row, 1)?)?,
        large_objects: field(&row, 2)?,
        unlogged: names(source, UNLOGGED)?,
        ..SwitchFacts::default()
    })
}

/// Asks the target what the way back needs there.
pub(super) fn back_of_target(target: &mut Connection) -> Result<BackFacts, ClientError> {
    let row = target.query_one(TARGET)?;
    Ok(BackFacts {
        wal_level: field(&row, 0)?,
        slots_free: field(&row, 1)?,
        walsenders_free: field(&row, 2)?,
        replicates: field(&row, 3)?,
        ..BackFacts::default()
    })
}

/// Asks the source what the way back needs there.
pub(super) fn back_of_source(
    source: &mut Connection,
    facts: BackFacts,
) -> Result<BackFacts, ClientError> {
    let row = source.query_one(RIGHTS)?;
    Ok(BackFacts {
        sets_replication_role: field(&row, 0)?,
        makes_origins: field(&row, 1)?,
        origins_free: field(&row, 2)?,
        foreign_tables: names(source, FOREIGN)?,
        ..facts
    })
}

/// Whose transactions have been open on the source, or prepared, for longer than `patience`, in words.
pub(super) fn long_transactions(
    source: &mut Connection,
    patience: Duration,
) -> Result<Option<String>, ClientError> {
    // Behind the fence they are not waited for any longer.
    let most = patience.min(fence::PREPARED_WITHIN);
    let rows = source.query_with(LONG_PREPARED, &[&most.as_secs_f64()])?;
    let gids: Result<Vec<String>, _> = rows.iter().map(|row| field(row, 0)).collect();
    let gids = gids?;
    if !gids.is_empty() {
        return Ok(Some(format!(
            "transactions are prepared on the source for longer than {}: {} (end each with COMMIT PREPARED or \
             ROLLBACK PREPARED)",
            span::show(most),
            named(&gids)
        )));
    }
    let rows = source.query_with(LONG, &[&patience.as_secs_f64()])?;
    let pids: Result<Vec<u32>, _> = rows.iter().map(|row| field(row, 0)).collect();
    let pids = pids?;
    if pids.is_empty() {
        return Ok(None);
    }
    let who = sessions::words(source, &pids)?;
    Ok(Some(format!(
        "transactions are open on the source for longer than {}: {who}",
        span::show(patience)
    )))
}

/// What is found. No I/O.
pub fn findings(replica: &Replica, facts: &SwitchFacts) -> Vec<Finding> {
    let mut found = Findings::default();
    let of_replica = format!("replica \"{}\"", replica.name);
    if replica.paused {
        let todo = "end the pause with lockstep replica resume";
        found.error(&of_replica, "it is paused", todo);
    }
    if !replica.frequency.is_zero() {
        let says = format!("it has a cycle every {}", span::show(replica.frequency));
        let todo = "let it apply changes as they come: lockstep replica alter --frequency 0";
        found.error(&of_replica, says, todo);
    }
    let is_part = !replica.subsets.is_empty()
        || !replica.exclude_schemas.is_empty()
        || !replica.exclude_tables.is_empty();
    if is_part {
        found.error(
            &of_replica,
            "it leaves out a part of the database, which would be missing after a switchover",
            "end all writing yourself, and use lockstep replica promote",
        );
    }
    for words in &facts.lacks {
        found.error("target", words, "see lockstep replica status");
    }
    source(facts, &mut found);
    rights("source", &facts.fence, &mut found);
    let fence = FenceFacts {
        // A replica that applies to it has set that.
        is_read_only: facts.fence.is_read_only && facts.fed.is_empty(),
        ..facts.fence.clone()
    };
    in_the_way("source", &fence, &mut found);
    let closing = facts.closing.clone().map(|fence| FenceFacts {
        // No session is ended there, and the setting may be anything.
        unended: Vec::new(),
        workers: Vec::new(),
        is_read_only: false,
        ..fence
    });
    if let Some(fence) = closing {
        rights("target", &fence, &mut found);
        in_the_way("target", &fence, &mut found);
    }
    if let Some(back) = &facts.back {
        way_back(back, &mut found);
    }
    found.0
}

fn source(facts: &SwitchFacts, found: &mut Findings) {
    if facts.source_in_recovery {
        let says = "it is a standby, on which nobody can be kept from writing to its primary";
        found.error("source", says, "name the primary with --source");
    }
    named_error(
        found,
        "source",
        ("replicas apply to it", &facts.fed),
        "end their lockstep replica run and drop them there, or promote them",
    );
    named_error(
        found,
        "source",
        ("subscriptions write into it", &facts.subscriptions),
        "disable them, and create them on the target",
    );
    named_error(
        found,
        "source",
        (
            "unlogged tables have rows, which are not replicated",
            &facts.unlogged,
        ),
        "copy or truncate them, or make them logged (ALTER TABLE ... SET LOGGED) and create the replica anew",
    );
    if facts.large_objects > 0 {
        let says = "it has large objects, which are not replicated";
        found.warning("source", says, "copy them yourself");
    }
}

/// Adds an error if there are such objects.
fn named_error(
    found: &mut Findings,
    subject: &str,
    (says, objects): (&str, &[String]),
    todo: &str,
) {
    if !objects.is_empty() {
        found.error(subject, format!("{says}: {}", named(objects)), todo);
    }
}

/// What the role may not do that a fence needs.
fn rights(subject: &str, fence: &FenceFacts, found: &mut Findings) {
    if !fence.owns_database {
        found.error(
            subject,
            "this role may not set default_transaction_read_only for the database",
            "connect as its owner or as a superuser",
        );
    }
    if !fence.makes_schemas {
        let says = "this role may not create a schema in the database";
        found.error(subject, says, "GRANT CREATE ON DATABASE");
    }
    named_error(
        found,
        subject,
        ("this role may not fence tables", &fence.untriggered),
        "GRANT TRIGGER on them, or connect as their owner or as a superuser",
    );
    named_error(
        found,
        subject,
        (
            "this role may not see and end sessions of others",
            &fence.unended,
        ),
        "GRANT pg_signal_backend, pg_read_all_stats; a superuser's sessions can only be ended by a superuser",
    );
}

/// What a database has that a fence cannot be made with, or does not hold.
fn in_the_way(subject: &str, fence: &FenceFacts, found: &mut Findings) {
    named_error(
        found,
        subject,
        (
            "event triggers would fire for the statements that make its fence, and what they write would be on \
             one side only",
            &fence.event_triggers,
        ),
        "until it is over, ALTER EVENT TRIGGER ... DISABLE, or ENABLE if it is ENABLE ALWAYS or REPLICA and this role \
         may set session_replication_role",
    );
    if !fence.workers.is_empty() {
        let says = format!(
            "background workers are connected to it, which are not ended: {}",
            named(&fence.workers)
        );
        let todo = "the fence holds what they write into tables, but not their DDL and their nextval: stop them if \
                    they do that";
        found.warning(subject, says, todo);
    }
    if let Some(owner) = &fence.foreign_schema {
        let says = format!("schema lockstep belongs to role \"{owner}\"");
        let todo = "connect as that role, or have the schema dropped if it is of no use";
        found.error(subject, says, todo);
    }
    if !fence.has_plpgsql {
        let says = "it lacks PL/pgSQL, in which the fence is written";
        found.error(subject, says, "CREATE EXTENSION plpgsql");
    }
    if fence.is_read_only {
        found.error(
            subject,
            "its database is read-only by default: somebody may be moving away from it",
            "ALTER DATABASE ... RESET default_transaction_read_only, or use lockstep replica promote",
        );
    }
}

/// What would let the way back end some of these errors.
fn way_back(back: &BackFacts, found: &mut Findings) {
    let mut missing = |is_wrong: bool, subject: &str, says: &str, todo: &str| {
        if is_wrong {
            let todo = format!("{todo}; or go without a way back (--no-reverse)");
            found.error(subject, says, todo);
        }
    };
    missing(
        back.wal_level != "logical",
        "target",
        &format!("its wal_level is {}", back.wal_level),
        "set wal_level = logical there and restart it",
    );
    missing(
        back.slots_free < 1,
        "target",
        "it has no free replication slot",
        "raise max_replication_slots there",
    );
    missing(
        back.walsenders_free < 1,
        "target",
        "it has no free WAL sender",
        "raise max_wal_senders there",
    );
    missing(
        !back.replicates,
        "target",
        "this role may not make slots",
        "ALTER ROLE ... REPLICATION",
    );
    missing(
        !back.sets_replication_role,
        "source",
        "this role may not set session_replication_role",
        "GRANT SET ON PARAMETER session_replication_role",
    );
    missing(
        !back.makes_origins,
        "source",
        "this role may not call the functions of replication origins",
        "GRANT EXECUTE on pg_replication_origin_create, _drop, _session_setup, _xact_setup and the others",
    );
    missing(
        back.origins_free < 1,
        "source",
        "it has no free replication origin",
        "raise max_replication_slots there (max_active_replication_origins from 18 on)",
    );
    missing(
        !back.foreign_tables.is_empty(),
        "source",
        &format!(
            "tables belong to other roles: {}",
            named(&back.foreign_tables)
        ),
        "make this role a member of their owners",
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::promotion::tests_replica;

    fn ready() -> SwitchFacts {
        SwitchFacts {
            fence: FenceFacts {
                owns_database: true,
                makes_schemas: true,
                has_plpgsql: true,
                ..FenceFacts::default()
            },
            back: Some(BackFacts {
                wal_level: "logical".to_owned(),
                slots_free: 1,
                walsenders_free: 1,
                replicates: true,
                sets_replication_role: true,
                makes_origins: true,
                origins_free: 1,
                foreign_tables: Vec::new(),
            }),
            ..SwitchFacts::default()
        }
    }

    fn one() -> Vec<String> {
        vec!["s.t".to_owned()]
    }

    #[test]
    fn each_hindrance_is_an_error_of_its_own_with_what_to_do() {
        let replica = tests_replica();
        assert_eq!(findings(&replica, &ready()), []);
        type Change = fn(&mut SwitchFacts);
        let changes: [(&str, Change); 15] = [
            ("standby", |it| it.source_in_recovery = true),
            ("replicas apply to it: s.t", |it| it.fed = one()),
            ("subscriptions", |it| it.subscriptions = one()),
            ("unlogged tables have rows", |it| it.unlogged = one()),
            ("were not", |it| it.lacks = vec!["they were not".to_owned()]),
            ("default_transaction_read_only", |it| {
                it.fence.owns_database = false
            }),
            ("create a schema", |it| it.fence.makes_schemas = false),
            ("fence tables: s.t", |it| it.fence.untriggered = one()),
            ("sessions of others", |it| it.fence.unended = one()),
            ("event triggers would fire", |it| {
                it.fence.event_triggers = one()
            }),
            ("PL/pgSQL", |it| it.fence.has_plpgsql = false),
            ("read-only by default", |it| it.fence.is_read_only = true),
            ("wal_level is replica", |it| {
                it.back.as_mut().unwrap().wal_level = "replica".to_owned();
            }),
            ("no free replication slot", |it| {
                it.back.as_mut().unwrap().slots_free = 0
            }),
            ("no free replication origin", |it| {
                it.back.as_mut().unwrap().origins_free = 0
            }),
        ];
        for (words, change) in changes {
            let mut facts = ready();
            change(&mut facts);
            let found = findings(&replica, &facts);
            assert_eq!(found.len(), 1, "{words} {found:?}");
            assert!(
                found[0].is_error() && !found[0].todo.is_empty(),
                "{found:?}"
            );
            assert!(found[0].says.contains(words), "{words} {found:?}");
            facts.back = None;
            let is_of_way_back = found[0].todo.contains("--no-reverse");
            assert_eq!(
                findings(&replica, &facts).is_empty(),
                is_of_way_back,
                "{words}"
            );
        }
        for (words, changed) in [
            (
                "paused",
                Replica {
                    paused: true,
                    ..replica.clone()
                },
            ),
            (
                "every 1 s",
                Replica {
                    frequency: Duration::from_secs(1),
                    ..replica.clone()
                },
            ),
            (
                "a part",
                Replica {
                    exclude_tables: one(),
                    ..replica.clone()
                },
            ),
        ] {
            let found = findings(&changed, &ready());
            assert!(
                found.len() == 1 && found[0].says.contains(words),
                "{found:?}"
            );
        }
    }
}
