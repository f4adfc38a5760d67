//! Each rule, by a fact that breaks it.

use super::facts::*;
use super::rules::findings;
use crate::error::Severity;
use crate::names::TableName;
use crate::publication::subset::Subset;

fn table(name: &str) -> Table {
    Table {
        name: TableName {
            schema: "s".to_owned(),
            table: name.to_owned(),
        },
        owned: true,
        owner: "owner".to_owned(),
        readable: true,
        has_key: true,
        ..Table::default()
    }
}

fn server(database: &str) -> Server {
    Server {
        version: 150_018,
        system_id: database.to_owned(),
        database: database.to_owned(),
        encoding: "UTF8".to_owned(),
        collate: "C".to_owned(),
        ctype: "C".to_owned(),
        provider: "c".to_owned(),
        role: "me".to_owned(),
        replication: true,
        create: true,
        wal_level: "logical".to_owned(),
        lock_room: 7_000,
        locks_per_transaction: 64,
        slots: 10,
        walsenders: 10,
        origins: 10,
        sets_replication_role: true,
        ..Server::default()
    }
}

/// Two servers that fit, with a table, and one that is always copied.
fn facts() -> Facts {
    Facts {
        source: server("from"),
        target: server("to"),
        tables: vec![table("t"), table("copied")],
        schemas: ["s".to_owned()].into(),
        ..Facts::default()
    }
}

/// Severities and subjects of what is found after a change of the facts.
fn found(change: impl FnOnce(&mut Facts)) -> Vec<(Severity, String, String, String)> {
    let mut facts = facts();
    change(&mut facts);
    findings(&facts)
        .into_iter()
        .map(|one| (one.severity, one.subject, one.says, one.todo))
        .collect()
}

#[test]
fn servers_that_fit_have_no_findings() {
    assert_eq!(found(|_| {}), []);
}

type Case = (
    Severity,
    &'static str,
    &'static str,
    &'static str,
    fn(&mut Facts),
);

/// Each case breaks one rule, and nothing else is found.
fn check(cases: &[Case]) {
    for (severity, subject, says, todo, change) in cases {
        let found = found(change);
        assert_eq!(found.len(), 1, "{says}: {found:?}");
        let (is, about, words, advice) = &found[0];
        assert_eq!(is, severity, "{says}");
        assert!(about.contains(subject), "{about}: {subject}");
        assert!(words.contains(says), "{words}: {says}");
        assert!(advice.contains(todo), "{advice}: {todo}");
    }
}

use Severity::{Error, Info, Warning};

#[test]
fn servers_are_looked_at() {
    check(&[
        (Error, "source", "PostgreSQL 14", "upgrade", |f| {
            f.source.version = 140_000
        }),
        (Error, "source", "standby", "primary", |f| {
            f.source.in_recovery = true
        }),
        (
            Error,
            "source",
            "triggers lockstep_fence",
            "DROP FUNCTION",
            |f| f.fences = vec!["fence".to_owned()],
        ),
        (Error, "target", "was closed", "lockstep.closed()", |f| {
            f.is_closed = true
        }),
        (Error, "target", "standby", "primary", |f| {
            f.target.in_recovery = true;
            f.target.read_only = true
        }),
        (
            Warning,
            "source",
            "no table that would be copied",
            "dbname",
            |f| f.tables.clear(),
        ),
        (
            Error,
            "target",
            "room for about 7000 locks",
            "max_locks_per_transaction (now 64) to at least 129",
            |f| f.relations_to_make = 14_001,
        ),
        (
            Error,
            "source",
            "room for about 0 locks",
            "max_locks_per_transaction",
            |f| f.source.lock_room = 0,
        ),
        (
            Warning,
            "source",
            "default_transaction_read_only",
            "ask who has set that",
            |f| {
                f.source.read_only = true;
                // Good for a target: nobody else writes there.
                f.target.read_only = true;
            },
        ),
        (Warning, "target", "older than the source", "upgrade", |f| {
            f.source.version = 160_000
        }),
        (Warning, "target", "older than the source", "upgrade", |f| {
            f.source.version = 180_000;
            f.target.version = 170_000
        }),
        (
            Error,
            "target",
            "older than the source with 17, and refuses",
            "upgrade it to 17",
            |f| f.source.version = 170_000,
        ),
        (
            Error,
            "this machine",
            "lacks pg_dump and pg_restore of PostgreSQL 17 or later",
            "postgresql-client-17",
            |f| {
                f.target.version = 170_000;
                f.lacks_programs = true
            },
        ),
        (
            Error,
            "this machine",
            "/a/pg_dump is older",
            "update",
            |f| f.outdated_dump = Some("/a/pg_dump".to_owned()),
        ),
        // Nothing to install would help.
        (Error, "target", "older than the source", "upgrade", |f| {
            f.source.version = 170_000;
            f.lacks_programs = true
        }),
        (Error, "target", "own database", "another", |f| {
            f.target = f.source.clone()
        }),
    ]);
}

#[test]
fn wal_level_is_looked_at() {
    check(&[
        (
            Error,
            "source",
            "wal_level is replica",
            "wal_level = logical",
            |f| {
                f.source.wal_level = "replica".to_owned();
            },
        ),
        (
            Error,
            "source",
            "wal_level is minimal",
            "wal_level = logical",
            |f| {
                f.source.version = 190_000;
                f.target.version = 190_000;
                f.source.wal_level = "minimal".to_owned();
            },
        ),
    ]);
    // On 19 a slot raises wal_level by itself.
    let nineteen = found(|f| {
        f.source.version = 190_000;
        f.target.version = 190_000;
        f.source.wal_level = "replica".to_owned();
    });
    assert_eq!(nineteen, []);
}

#[test]
fn slots_walsenders_and_origins_are_counted() {
    check(&[
        (
            Error,
            "source",
            "all 10 replication slots",
            "max_replication_slots",
            |f| {
                f.source.slots_used = 10;
            },
        ),
        (
            Warning,
            "source",
            "one replication slot is free",
            "max_replication_slots",
            |f| {
                f.source.slots_used = 9;
            },
        ),
        (
            Error,
            "source",
            "all 10 WAL senders",
            "max_wal_senders",
            |f| {
                f.source.walsenders_used = 10;
            },
        ),
        (
            Error,
            "target",
            "origins are in use",
            "max_replication_slots",
            |f| {
                f.target.origins_used = 10;
            },
        ),
        (
            Error,
            "target",
            "origins are in use",
            "max_active_replication_origins",
            |f| {
                f.target.version = 180_000;
                f.target.origins_used = 10;
            },
        ),
    ]);
}

#[test]
fn what_the_target_lacks_is_named() {
    check(&[
        (
            Error,
            "target",
            "not empty: it has 3",
            "CREATE DATABASE",
            |f| f.target_relations = 3,
        ),
        (
            Error,
            "target",
            "roles are missing: bob",
            "pg_dumpall",
            |f| {
                f.roles_missing = vec!["bob".to_owned()];
            },
        ),
        (
            Error,
            "target",
            "cannot restore objects owned by Bob, eve",
            "GRANT \"Bob\", \"eve\" TO",
            |f| f.owners_denied = vec!["Bob".to_owned(), "eve".to_owned()],
        ),
        (
            Error,
            "target",
            "cannot restore objects owned by postgres",
            "as a superuser",
            |f| f.superusers_denied = vec!["postgres".to_owned()],
        ),
        (
            Warning,
            "target",
            "tablespaces are missing: fast",
            "default",
            |f| {
                f.tablespaces_missing = vec!["fast".to_owned()];
            },
        ),
    ]);
}

#[test]
fn a_right_missing_on_the_source_is_named_with_the_grant() {
    check(&[
        (
            Error,
            "source",
            "may not replicate",
            "ALTER ROLE \"me\" REPLICATION",
            |f| {
                f.source.replication = false;
            },
        ),
        (
            Error,
            "source",
            "publication",
            "GRANT CREATE ON DATABASE \"from\" TO \"me\"",
            |f| {
                f.source.create = false;
            },
        ),
        (
            Error,
            "table \"s.t\"",
            "does not own",
            "GRANT \"owner\" TO \"me\"",
            |f| {
                f.tables[0].owned = false;
            },
        ),
        (
            Error,
            "table \"s.t\"",
            "does not own",
            "whose role is better not granted",
            |f| {
                f.tables[0].owned = false;
                f.tables[0].owner_is_superuser = true;
            },
        ),
        (
            Error,
            "table \"s.t\"",
            "may not read",
            "GRANT SELECT",
            |f| f.tables[0].readable = false,
        ),
        (Error, "table \"s.t\"", "row security", "BYPASSRLS", |f| {
            f.target.bypass_rls = true;
            f.tables[0].row_security = true;
            f.tables[0].row_security_forced = true;
        }),
    ]);
    // A superuser needs none of them, and an owner sees all rows unless row security is forced.
    let all = found(|f| {
        f.source.superuser = true;
        f.source.replication = false;
        f.source.create = false;
        f.tables[0].owned = false;
        f.tables[0].row_security = true;
    });
    assert_eq!(all, []);
    assert_eq!(found(|f| f.tables[0].row_security = true), []);
    // Row security that is forced would stop the role on the target as well.
    let forced = |bypass_rls| {
        found(|f| {
            f.source.superuser = true;
            (f.target.superuser, f.target.bypass_rls) = (false, bypass_rls);
            f.tables[0].row_security = true;
            f.tables[0].row_security_forced = true;
        })
    };
    let on_target = |bypass_rls| {
        let mut found = forced(bypass_rls).into_iter();
        found
            .any(|(severity, _, says, _)| severity == Error && says.contains("target would refuse"))
    };
    assert_eq!([false, true].map(on_target), [true, false]);
}

#[test]
fn a_right_missing_on_the_target_is_named_with_the_grant() {
    check(&[
        (
            Error,
            "target",
            "schemas",
            "GRANT CREATE ON DATABASE \"to\" TO \"me\"",
            |f| {
                f.target.create = false;
            },
        ),
        (
            Error,
            "target",
            "origins",
            "GRANT EXECUTE ON FUNCTION f(text) TO \"me\"",
            |f| {
                f.target.origin_functions_denied = vec!["f(text)".to_owned()];
            },
        ),
        (
            Error,
            "target",
            "session_replication_role",
            "GRANT SET ON PARAMETER",
            |f| {
                f.target.sets_replication_role = false;
            },
        ),
    ]);
}

#[test]
fn text_is_looked_at() {
    check(&[
        (Error, "target", "SQL_ASCII", "SQL_ASCII", |f| {
            f.source.encoding = "SQL_ASCII".to_owned()
        }),
        (Info, "target", "LATIN1", "converted", |f| {
            f.source.encoding = "LATIN1".to_owned()
        }),
        (Warning, "target", "its encoding is LATIN1", "UTF8", |f| {
            f.target.encoding = "LATIN1".to_owned();
        }),
        (Warning, "target", "sorts by de_DE", "locale", |f| {
            f.target.collate = "de_DE".to_owned()
        }),
        (Warning, "target", "provider i", "locale", |f| {
            f.target.provider = "i".to_owned()
        }),
        (
            Info,
            "target",
            "version 2.36, the source's 2.31",
            "rebuilt",
            |f| {
                f.source.collation_version_now = Some("2.31".to_owned());
                f.target.collation_version_now = Some("2.36".to_owned());
            },
        ),
        (
            Warning,
            "source",
            "version 1, now it is 2",
            "REFRESH COLLATION VERSION",
            |f| {
                f.source.collation_version = Some("1".to_owned());
                f.source.collation_version_now = Some("2".to_owned());
            },
        ),
        (
            Error,
            "target",
            "collations are missing: fr_FR",
            "pg_import_system_collations",
            |f| {
                f.collations_missing = vec!["fr_FR".to_owned()];
            },
        ),
    ]);
}

#[test]
fn objects_that_are_missing_are_named() {
    check(&[
        (
            Error,
            "extension \"gis\"",
            "does not have it",
            "package",
            |f| {
                f.extensions = vec![Extension {
                    name: "gis".to_owned(),
                    version: "3".to_owned(),
                    available: None,
                }];
            },
        ),
        (
            Warning,
            "extension \"gis\"",
            "would have 4",
            "same version",
            |f| {
                f.extensions = vec![Extension {
                    name: "gis".to_owned(),
                    version: "3".to_owned(),
                    available: Some("4".to_owned()),
                }];
            },
        ),
        (Info, "\"s.t\"", "extension", "by hand", |f| {
            f.tables[0].of_extension = true
        }),
        (
            Error,
            "schema \"x\"",
            "no such schema",
            "--exclude-schema",
            |f| {
                f.excluded.schemas = vec!["x".to_owned()];
            },
        ),
        (
            Error,
            "table \"x.y\"",
            "no such table",
            "--exclude-table",
            |f| {
                f.excluded.tables = vec!["x.y".to_owned()];
            },
        ),
        (
            Error,
            "view s.v, table s.w",
            "needs table out.t",
            "exclude it too",
            |f| {
                f.needs_excluded = ["view s.v", "table s.w"]
                    .map(|object| (object.to_owned(), "table out.t".to_owned()))
                    .into();
            },
        ),
    ]);
}

#[test]
fn identities_are_looked_at() {
    check(&[
        (
            Error,
            "table \"s.t\"",
            "updated or deleted",
            "primary key",
            |f| {
                f.tables[0].identity = ReplicaIdentity::Nothing;
                f.tables[0].changed_rows = 1;
            },
        ),
        (
            Warning,
            "table \"s.t\"",
            "will refuse updates",
            "primary key",
            |f| {
                f.tables[0].identity = ReplicaIdentity::Nothing;
            },
        ),
        (
            Warning,
            "table \"s.t\"",
            "rows that are equal",
            "key",
            |f| {
                f.tables[0].identity = ReplicaIdentity::Full;
                f.tables[0].has_key = false;
                f.tables[0].equal_rows = Some(true);
            },
        ),
        (Info, "table \"s.t\"", "too large", "key", |f| {
            f.tables[0].identity = ReplicaIdentity::Full;
            f.tables[0].has_key = false;
        }),
    ]);
}

#[test]
fn kinds_of_tables_are_looked_at() {
    check(&[
        (Info, "table \"s.t\"", "unlogged", "LOGGED", |f| {
            f.tables[0].unlogged = true
        }),
        (
            Info,
            "table \"s.t\"",
            "partitioned",
            "later partition",
            |f| {
                f.tables[0].kind = TableKind::Partitioned;
            },
        ),
        (Info, "table \"s.t\"", "foreign table", "server", |f| {
            f.tables[0].kind = TableKind::Foreign;
        }),
        (Info, "table \"s.t\"", "materialized view", "refresh", |f| {
            f.tables[0].kind = TableKind::MaterialisedView;
        }),
        (Info, "table \"s.t\"", "generated", "nothing", |f| {
            f.tables[0].generated_columns = 1
        }),
        (
            Error,
            "table \"s.t\"",
            "are not published",
            "USING INDEX",
            |f| {
                f.tables[0].identity = ReplicaIdentity::Key;
                f.tables[0].generated_identity = true;
            },
        ),
        (
            Error,
            "table \"s.t\"",
            "are not published",
            "USING INDEX",
            |f| {
                (f.source.version, f.target.version) = (180_000, 180_000);
                f.tables[0].identity = ReplicaIdentity::Full;
                f.tables[0].generated_identity = true;
            },
        ),
        (Info, "table \"s.t\"", "identity columns", "nothing", |f| {
            f.tables[0].identity_columns = 1
        }),
        (Warning, "table \"s.t\"", "deferrable", "nothing", |f| {
            f.tables[0].deferrable_constraints = 1;
        }),
        (Warning, "table \"s.t\"", "exclusion", "drop", |f| {
            f.tables[0].exclusion_constraints = 1
        }),
    ]);
}

#[test]
fn what_acts_or_is_left_out_is_looked_at() {
    check(&[
        (Warning, "table \"s.t\"", "ENABLE ALWAYS", "TRIGGER", |f| {
            f.tables[0].acting_triggers = 1
        }),
        (
            Error,
            "table \"s.t\"",
            "ENABLE ALWAYS",
            "ENABLE RULE",
            |f| f.tables[0].acting_rules = 1,
        ),
        (
            Error,
            "source",
            "7 large objects",
            "--skip-large-objects",
            |f| f.large_objects = 7,
        ),
        (Warning, "source", "REPLICA would fire", "TRIGGER", |f| {
            f.event_triggers = vec!["et".to_owned()]
        }),
        (Warning, "source", "at login fire", "DISABLE", |f| {
            f.login_triggers = vec!["et".to_owned()]
        }),
        (Error, "source", "is no superuser", "leave --ddl out", |f| {
            (f.ddl, f.source.superuser, f.target.superuser) = (true, false, true);
        }),
        (Warning, "target", "will stop the replica", "GRANT", |f| {
            f.ddl = true;
            f.source.superuser = true;
        }),
        (Warning, "target", "others may write", "off", |f| {
            f.read_only = true
        }),
        (Warning, "source", "7 large objects", "left out", |f| {
            (f.large_objects, f.skip_large_objects) = (7, true);
        }),
    ]);
    // What is excluded is not looked at, nor what is below it.
    let out = found(|f| {
        f.tables[0].identity = ReplicaIdentity::Nothing;
        f.tables[0].ancestors = vec![table("root").name];
        f.tables.push(table("root"));
        f.excluded.tables = vec!["s.root".to_owned()];
    });
    assert_eq!(out, []);
}

/// Table t has a list, and this is what the source says of it.
fn listed(facts: &mut Facts, looked: SubsetFacts) {
    facts.subsets = vec![Subset {
        table: table("t").name,
        filter: None,
        columns: Some(vec!["id".to_owned()]),
    }];
    facts.looked_at = vec![SubsetFacts {
        table: table("t").name,
        identity_columns: vec!["id".to_owned()],
        ..looked
    }];
}

/// Servers show the rest. That a list may name generated columns is new in 18.
#[test]
fn generated_columns_of_a_list_are_named_unless_the_source_does() {
    check(&[
        (
            Error,
            "\"s.t\"",
            "generated columns",
            "leave them out",
            |f| {
                listed(
                    f,
                    SubsetFacts {
                        generated_listed: vec!["g".to_owned()],
                        ..SubsetFacts::default()
                    },
                );
            },
        ),
        (Error, "\"s.t\"", "refuses to publish", "--columns", |f| {
            listed(
                f,
                SubsetFacts {
                    generated_listed: vec!["g".to_owned()],
                    refused: Some("it is generated".to_owned()),
                    ..SubsetFacts::default()
                },
            );
        }),
    ]);
}

#[test]
fn an_index_over_what_is_left_out_needs_something_that_tells_rows_apart() {
    let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
    for (keys, used, filled, nulls_equal, refused) in [
        (&["id"][..], &[][..], Filled::ByDefault, false, false),
        (&["id", "out"], &[], Filled::ByDefault, false, true),
        (&["id", "out"], &[], Filled::WithNull, false, false),
        (&["id", "out"], &[], Filled::WithNull, true, true),
        (&["out"], &["out"], Filled::BySequence, true, false),
        (&["id"], &["out"], Filled::WithNull, false, true),
        (&["out"], &["id", "out"], Filled::WithNull, false, false),
        (&[], &["out"], Filled::BySequence, false, true),
    ] {
        let found = found(|f| {
            let looked = SubsetFacts {
                left_out: vec![LeftOut {
                    name: "out".to_owned(),
                    not_null: false,
                    filled,
                }],
                uniques: vec![UniqueFacts {
                    name: "index".to_owned(),
                    nulls_equal,
                    keys: texts(keys),
                    used: texts(used),
                }],
                ..SubsetFacts::default()
            };
            listed(f, looked);
        });
        let said = found.iter().filter(|one| one.2.ends_with("satisfy: index"));
        assert_eq!(
            (said.count(), found.len()),
            (refused.into(), refused.into())
        );
    }
}

#[test]
fn the_worst_comes_first_and_names_are_counted() {
    let found = found(|f| {
        f.tables = (1..=7)
            .map(|number| Table {
                unlogged: true,
                ..table(&format!("t{number}"))
            })
            .collect();
        f.tables.push(table("copied"));
        f.source.in_recovery = true;
    });
    assert_eq!(found[0].0, Error);
    assert!(
        found[1].1.ends_with("\"s.t5\" and 2 more"),
        "{}",
        found[1].1
    );
    assert!(found[1].1.starts_with("tables "), "{}", found[1].1);
}
