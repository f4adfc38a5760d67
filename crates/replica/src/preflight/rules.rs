//! What follows from the facts. No I/O.

use super::facts::{Facts, ReplicaIdentity, Server, Table, TableKind};
use super::subset_rules;
use crate::error::{Finding, Findings, Severity};
use crate::names::quoted;
use crate::schema;
use std::collections::BTreeSet;

/// Most names in one finding; the others are counted.
const MOST_NAMES: usize = 5;

/// The oldest supported version.
const OLDEST: u32 = 150_000;

/// What follows from the facts, the worst first.
pub fn findings(facts: &Facts) -> Vec<Finding> {
    let mut found = Findings::default();
    versions(facts, &mut found);
    source_limits(&facts.source, &mut found);
    source_rights(facts, &mut found);
    fences(facts, &mut found);
    nothing_to_copy(facts, &mut found);
    locks(facts, &mut found);
    target_rights(&facts.target, &mut found);
    target_state(facts, &mut found);
    encodings(&facts.source, &facts.target, &mut found);
    collations(facts, &mut found);
    extensions(facts, &mut found);
    excluded(facts, &mut found);
    subset_rules::subsets(facts, &mut found);
    identities(facts, &mut found);
    kinds_of_tables(facts, &mut found);
    columns_and_constraints(facts, &mut found);
    acting(facts, &mut found);
    event_triggers(facts, &mut found);
    row_security(facts, &mut found);
    large_objects(facts, &mut found);
    let mut findings = found.0;
    findings.sort_by_key(|finding| finding.severity);
    findings
}

/// What switchovers have left.
fn fences(facts: &Facts, found: &mut Findings) {
    for fence in &facts.fences {
        let says = format!(
            "has the fence of a switchover (function lockstep.{fence} and triggers lockstep_{fence}), which would be \
             copied"
        );
        let todo = format!(
            "give the server to which the database was moved; if this one has it again, repeat the switchover, or \
             run there: DROP FUNCTION lockstep.{fence}() CASCADE"
        );
        found.error("source", says, todo);
    }
    if facts.is_closed {
        found.error(
            "target",
            "was closed by a switchover that did not end (function lockstep.closed)",
            "create the database anew, or run there: ALTER DATABASE ... RESET default_transaction_read_only; \
             DROP FUNCTION lockstep.closed() CASCADE",
        );
    }
}

impl Findings {
    /// One finding about all tables for which `is` holds.
    pub(super) fn tables<'a>(
        &mut self,
        severity: Severity,
        tables: impl Iterator<Item = &'a Table>,
        says: &str,
        todo: &str,
    ) {
        let names: Vec<_> = tables.map(|table| table.name.to_string()).collect();
        if !names.is_empty() {
            let noun = if names.len() == 1 { "table" } else { "tables" };
            self.add(severity, format!("{noun} {}", listed(&names)), says, todo);
        }
    }
}

/// Some names, and how many others there are.
pub(super) fn listed(names: &[String]) -> String {
    let some: Vec<_> = names.iter().take(MOST_NAMES).map(String::as_str).collect();
    match names.len() - some.len() {
        0 => some.join(", "),
        others => format!("{} and {others} more", some.join(", ")),
    }
}

fn major(version: u32) -> u32 {
    version / 10_000
}

fn versions(facts: &Facts, found: &mut Findings) {
    let (source, target) = (&facts.source, &facts.target);
    for (subject, server) in [("source", source), ("target", target)] {
        if server.version < OLDEST {
            let says = format!("it is PostgreSQL {}, older than 15", major(server.version));
            found.error(subject, says, "upgrade it to 15 or later");
        }
        if server.in_recovery {
            let todo = "name the primary of its cluster";
            found.error(subject, "it is a standby", todo);
        }
    }
    let programs = schema::fitting_majors(source.version, target.version);
    let (here, there) = (major(source.version), major(target.version));
    let says = format!("it is PostgreSQL {there}, older than the source with {here}");
    if programs.is_empty() {
        let says = format!("{says}, and refuses the settings that pg_restore {here} begins with");
        found.error("target", says, format!("upgrade it to {here} or later"));
    } else if there < here {
        let todo =
            "expect errors where the schema uses newer features, or upgrade the target first";
        found.warning("target", says, todo);
    }
    if facts.lacks_programs && !programs.is_empty() {
        let says = format!("it lacks {}", schema::described(&programs));
        found.error("this machine", says, schema::how_to_get(&programs));
    }
    if let Some(program) = &facts.outdated_dump {
        let says = format!(
            "its {program} is older than the source's minor release: it does not leave out {}, which \
             columns of the source have and the target refuses",
            schema::COLUMN_VERSION
        );
        found.error(
            "this machine",
            says,
            "update it to the newest minor release",
        );
    }
    if source.system_id == target.system_id && source.database == target.database {
        let says = format!("it is the source's own database \"{}\"", source.database);
        found.error("target", says, "name another database or server");
    }
}

fn source_limits(source: &Server, found: &mut Findings) {
    // From 19 on, wal_level = replica becomes logical with the first logical slot.
    let enough = source.wal_level == "logical"
        || (source.version >= 190_000 && source.wal_level == "replica");
    if !enough {
        let says = format!("wal_level is {}", source.wal_level);
        found.error("source", says, "set wal_level = logical and restart it");
    }
    match source.slots.saturating_sub(source.slots_used) {
        0 => {
            let says = format!("all {} replication slots are in use", source.slots);
            let todo = "raise max_replication_slots and restart it, or drop a slot";
            found.error("source", says, todo);
        }
        1 => {
            let says =
                "one replication slot is free; a copy that is resumed needs a second for a time";
            found.warning("source", says, "raise max_replication_slots");
        }
        _ => {}
    }
    if source.walsenders <= source.walsenders_used {
        let says = format!("all {} WAL senders are in use", source.walsenders);
        found.error("source", says, "raise max_wal_senders and restart it");
    }
}

fn nothing_to_copy(facts: &Facts, found: &mut Findings) {
    if facts.copied().next().is_none() && !facts.ddl {
        let says = format!(
            "database \"{}\" has no table that would be copied, and tables that are made later are not \
             replicated",
            facts.source.database
        );
        let todo = "name the database that has the tables (dbname), or exclude less";
        found.warning("source", says, todo);
    }
}

/// The source's tables are locked while their definitions are read, and all that is made on the target until
/// the transaction ends that makes it.
fn locks(facts: &Facts, found: &mut Findings) {
    let is_locked =
        |table: &&Table| matches!(table.kind, TableKind::Ordinary | TableKind::Partitioned);
    let read = facts.included().filter(is_locked).count() as u64;
    let sides = [
        ("source", &facts.source, read, "reads the definitions of"),
        ("target", &facts.target, facts.relations_to_make, "makes"),
    ];
    for (subject, server, wanted, does) in sides {
        if wanted <= server.lock_room {
            continue;
        }
        let says = format!(
            "it has room for about {} locks, and one transaction {does} {wanted} tables, indexes, views and \
             sequences",
            server.lock_room
        );
        let needed = (server.locks_per_transaction * wanted).div_ceil(server.lock_room.max(1));
        let todo = format!(
            "set max_locks_per_transaction (now {}) to at least {needed} and restart it",
            server.locks_per_transaction
        );
        found.error(subject, says, todo);
    }
}

fn source_rights(facts: &Facts, found: &mut Findings) {
    let source = &facts.source;
    if source.read_only && !source.in_recovery {
        let says = "its transactions are read-only unless they ask for more \
                    (default_transaction_read_only): somebody may be moving away from it, or it is the \
                    target of another replica";
        let todo = "ask who has set that; the replica's own sessions turn it off for themselves";
        found.warning("source", says, todo);
    }
    if source.superuser {
        return;
    }
    let role = &source.role;
    if !source.replication {
        let says = format!("role \"{role}\" may not replicate");
        found.error("source", says, format!("ALTER ROLE \"{role}\" REPLICATION"));
    }
    if !source.create {
        let says = format!("role \"{role}\" may not create a publication");
        let todo = format!(
            "GRANT CREATE ON DATABASE \"{}\" TO \"{role}\"",
            source.database
        );
        found.error("source", says, todo);
    }
    let foreign = || facts.published().filter(|table| !table.owned);
    let says = format!("role \"{role}\" does not own it, so it may not publish it");
    let granted = || foreign().filter(|table| !table.owner_is_superuser);
    let owners: BTreeSet<_> = granted()
        .map(|table| format!("\"{}\"", table.owner))
        .collect();
    let owners: Vec<_> = owners.into_iter().collect();
    let todo = format!("GRANT {} TO \"{role}\"", owners.join(", "));
    found.tables(Severity::Error, granted(), &says, &todo);
    // Whoever is granted a superuser's role can become superuser.
    let of_superusers = foreign().filter(|table| table.owner_is_superuser);
    let todo = format!(
        "ALTER TABLE ... OWNER TO a role that \"{role}\" is a member of, or connect to the source as a \
         superuser: the owner is one, whose role is better not granted"
    );
    found.tables(Severity::Error, of_superusers, &says, &todo);
    let unreadable = facts.copied().filter(|table| !table.readable);
    let says = format!("role \"{role}\" may not read it");
    let todo = format!("GRANT SELECT ON it TO \"{role}\"");
    found.tables(Severity::Error, unreadable, &says, &todo);
}

fn target_rights(target: &Server, found: &mut Findings) {
    let role = &target.role;
    if !target.create && !target.superuser {
        let says = format!("role \"{role}\" may not create schemas");
        let todo = format!(
            "GRANT CREATE ON DATABASE \"{}\" TO \"{role}\"",
            target.database
        );
        found.error("target", says, todo);
    }
    if !target.origin_functions_denied.is_empty() {
        let functions = target.origin_functions_denied.join(", ");
        let says = format!("role \"{role}\" may not use replication origins");
        let todo = format!("GRANT EXECUTE ON FUNCTION {functions} TO \"{role}\"");
        found.error("target", says, todo);
    }
    if !target.sets_replication_role {
        let says = format!("role \"{role}\" may not set session_replication_role");
        let todo = format!("GRANT SET ON PARAMETER session_replication_role TO \"{role}\"");
        found.error("target", says, todo);
    }
    if target.origins <= target.origins_used {
        let setting = match target.version {
            180_000.. => "max_active_replication_origins",
            _ => "max_replication_slots",
        };
        let says = format!("all {} replication origins are in use", target.origins);
        found.error("target", says, format!("raise {setting} and restart it"));
    }
}

fn target_state(facts: &Facts, found: &mut Findings) {
    let target = &facts.target;
    if facts.target_relations > 0 {
        let says = format!(
            "database \"{}\" is not empty: it has {} tables, views or sequences",
            target.database, facts.target_relations
        );
        let todo =
            "create an empty database (CREATE DATABASE ... TEMPLATE template0) and name that";
        found.error("target", says, todo);
    }
    if !facts.roles_missing.is_empty() {
        let says = format!("roles are missing: {}", listed(&facts.roles_missing));
        let todo = "create them; pg_dumpall --roles-only on the source writes the commands";
        found.error("target", says, todo);
    }
    owners(facts, found);
    if !facts.tablespaces_missing.is_empty() {
        let says = format!(
            "tablespaces are missing: {}",
            listed(&facts.tablespaces_missing)
        );
        let todo = "create them, or do nothing: everything then goes to the default tablespace";
        found.warning("target", says, todo);
    }
}

/// What is restored is given to its owner.
fn owners(facts: &Facts, found: &mut Findings) {
    let role = &facts.target.role;
    let says = |owners| format!("role \"{role}\" cannot restore objects owned by {owners}");
    if !facts.owners_denied.is_empty() {
        let owners = listed(&facts.owners_denied);
        let granted = facts.owners_denied.iter().map(|one| quoted(one));
        let todo = format!(
            "GRANT {} TO {}",
            granted.collect::<Vec<_>>().join(", "),
            quoted(role)
        );
        found.error("target", says(owners), todo);
    }
    if !facts.superusers_denied.is_empty() {
        let owners = listed(&facts.superusers_denied);
        let todo = "connect to the target as a superuser, or give what they own on the source to roles \
                    that are none: a superuser's role is better not granted";
        found.error("target", says(owners), todo);
    }
}

fn encodings(source: &Server, target: &Server, found: &mut Findings) {
    if source.encoding == target.encoding {
        return;
    }
    let says = format!(
        "its encoding is {}, the source's {}",
        target.encoding, source.encoding
    );
    match (source.encoding.as_str(), target.encoding.as_str()) {
        ("SQL_ASCII", _) => {
            let todo = "create the target's database with ENCODING 'SQL_ASCII': the source's text may \
                        be in any encoding";
            found.error("target", says, todo);
        }
        (_, "UTF8") => found.info("target", says, "nothing: text is converted"),
        _ => {
            let todo = "create the target's database with the source's encoding or UTF8: characters \
                        that it lacks stop the copy";
            found.warning("target", says, todo);
        }
    }
}

fn collations(facts: &Facts, found: &mut Findings) {
    let (source, target) = (&facts.source, &facts.target);
    let named = |server: &Server| {
        let Server {
            collate,
            ctype,
            provider,
            ..
        } = server;
        format!("{collate}, {ctype} (provider {provider})")
    };
    let versions = source
        .collation_version_now
        .as_ref()
        .zip(target.collation_version_now.as_ref());
    if named(source) != named(target) {
        let says = format!(
            "its database sorts by {}, the source's by {}",
            named(target),
            named(source)
        );
        let todo = "create the target's database with the source's locale, if order and upper case \
                    must be the same";
        found.warning("target", says, todo);
    } else if let Some((here, there)) = versions.filter(|(here, there)| here != there) {
        let says = format!("its collation has version {there}, the source's {here}");
        let todo = "nothing for the copy, whose indexes are rebuilt; text may sort differently";
        found.info("target", says, todo);
    }
    for (subject, server) in [("source", source), ("target", target)] {
        let made = server.collation_version.as_ref();
        let now = server.collation_version_now.as_ref();
        if let Some((made, now)) = made.zip(now).filter(|(made, now)| made != now) {
            let says =
                format!("its database was made with collation version {made}, now it is {now}");
            let todo =
                "rebuild its indexes on text, then ALTER DATABASE ... REFRESH COLLATION VERSION";
            found.warning(subject, says, todo);
        }
    }
    if !facts.collations_missing.is_empty() {
        let says = format!(
            "collations are missing: {}",
            listed(&facts.collations_missing)
        );
        let todo = "install the locales, then run pg_import_system_collations";
        found.error("target", says, todo);
    }
}

fn extensions(facts: &Facts, found: &mut Findings) {
    for extension in &facts.extensions {
        let subject = format!("extension \"{}\"", extension.name);
        match &extension.available {
            None => found.error(
                subject,
                "the target's server does not have it",
                "install its package there, or drop it on the source",
            ),
            Some(available) if *available != extension.version => found.warning(
                subject,
                format!(
                    "the source has version {}, the target would have {available}",
                    extension.version
                ),
                "bring both to the same version, if its types or functions have changed",
            ),
            Some(_) => {}
        }
    }
    let of_extension = facts
        .included()
        .filter(|table| table.of_extension && table.kind == TableKind::Ordinary);
    let says = "it belongs to an extension: its rows are not copied";
    let todo = "nothing if the extension fills it; copy it by hand otherwise";
    found.tables(Severity::Info, of_extension, says, todo);
}

fn excluded(facts: &Facts, found: &mut Findings) {
    for schema in &facts.excluded.schemas {
        if !facts.schemas.contains(schema) {
            let says = "the source has no such schema";
            found.error(
                format!("schema \"{schema}\""),
                says,
                "correct --exclude-schema",
            );
        }
    }
    for name in &facts.excluded.tables {
        let known = facts
            .tables
            .iter()
            .any(|table| *name == format!("{}.{}", table.name.schema, table.name.table));
        if !known {
            let todo = "correct --exclude-table; it takes schema.table";
            found.error(
                format!("table \"{name}\""),
                "the source has no such table",
                todo,
            );
        }
    }
    let mut needs = facts.needs_excluded.as_slice();
    while let Some((_, needed)) = needs.first() {
        let same = needs
            .iter()
            .take_while(|(_, other)| other == needed)
            .count();
        let (those, rest) = needs.split_at(same);
        let those: Vec<_> = those.iter().map(|(object, _)| object.clone()).collect();
        let says = format!("it needs {needed}, which is excluded");
        let todo = "exclude it too, as a table or by its schema, or include the other";
        found.error(listed(&those), says, todo);
        needs = rest;
    }
}

fn identities(facts: &Facts, found: &mut Findings) {
    let without = |table: &&Table| table.identity == ReplicaIdentity::Nothing;
    let todo = "add a primary key, or ALTER TABLE ... REPLICA IDENTITY USING INDEX or FULL, or \
                exclude it";
    let changing = facts
        .copied()
        .filter(without)
        .filter(|table| table.changed_rows > 0);
    let says = "it has no replica identity and its rows are updated or deleted, which the source \
                would refuse once the table is published";
    found.tables(Severity::Error, changing, says, todo);
    let still = facts
        .copied()
        .filter(without)
        .filter(|table| table.changed_rows == 0);
    let says = "it has no replica identity: the source will refuse updates and deletes of its rows \
                while the replica exists";
    found.tables(Severity::Warning, still, says, todo);

    // What is not sent tells no row from another.
    let generated = |table: &&Table| match table.identity {
        ReplicaIdentity::Key => table.generated_identity,
        ReplicaIdentity::Full => table.generated_identity && facts.source.version >= 180_000,
        ReplicaIdentity::Nothing => false,
    };
    let says = "its replica identity has generated columns, which are not published: the source refuses \
                updates and deletes then from 18 on, and before would not say which row it means";
    found.tables(
        Severity::Error,
        facts.copied().filter(generated),
        says,
        "ALTER TABLE ... REPLICA IDENTITY USING INDEX of a unique index without them, or exclude it",
    );

    let full = |table: &&Table| table.identity == ReplicaIdentity::Full && !table.has_key;
    let equal = facts
        .copied()
        .filter(full)
        .filter(|table| table.equal_rows == Some(true));
    let says = "it has REPLICA IDENTITY FULL, no key, and rows that are equal: a change of one of \
                them changes any one of them on the target";
    found.tables(
        Severity::Warning,
        equal,
        says,
        "add a key if it matters which",
    );
    let unknown = facts
        .copied()
        .filter(full)
        .filter(|table| table.equal_rows.is_none());
    let says = "it has REPLICA IDENTITY FULL and no key; it is too large to look for equal rows";
    found.tables(
        Severity::Info,
        unknown,
        says,
        "add a key: rows are found faster, too",
    );
}

fn kinds_of_tables(facts: &Facts, found: &mut Findings) {
    let unlogged = facts.included().filter(|table| table.unlogged);
    let says = "it is unlogged: it is created, but its rows are neither copied nor replicated";
    found.tables(
        Severity::Info,
        unlogged,
        says,
        "ALTER TABLE ... SET LOGGED if they are needed",
    );
    let kind = |kind| facts.included().filter(move |table| table.kind == kind);
    found.tables(
        Severity::Info,
        kind(TableKind::Partitioned),
        "it is partitioned: its partitions are copied and replicated one by one",
        "create later partitions on the target as well, best before the source has rows in them: the \
         replica stops at the first row until it is there",
    );
    found.tables(
        Severity::Warning,
        facts.parted_roots(),
        "some of its partitions are excluded: partitions created later will not be replicated",
        "include or exclude the whole table if partitions will be created",
    );
    found.tables(
        Severity::Info,
        kind(TableKind::Foreign),
        "it is a foreign table: it is created, but its rows stay where they are",
        "make sure that the target can reach its server",
    );
    found.tables(
        Severity::Info,
        kind(TableKind::MaterialisedView),
        "it is a materialized view: it is filled once, at the end of the copy",
        "refresh it on the target when you need newer contents",
    );
}

fn columns_and_constraints(facts: &Facts, found: &mut Findings) {
    let with = |count: fn(&Table) -> u32| facts.copied().filter(move |table| count(table) > 0);
    found.tables(
        Severity::Info,
        with(|table| table.generated_columns),
        "it has generated columns: the target computes them",
        "nothing",
    );
    found.tables(
        Severity::Info,
        with(|table| table.identity_columns),
        "it has identity columns: their values are copied, and their sequences set at the end",
        "nothing",
    );
    found.tables(
        Severity::Warning,
        with(|table| table.deferrable_constraints),
        "it has deferrable constraints: the target may check them at another moment than the source",
        "nothing unless changes stop at one",
    );
    found.tables(
        Severity::Warning,
        with(|table| table.exclusion_constraints),
        "it has exclusion constraints: rows that change places within one transaction may stop apply",
        "drop them on the target if that happens",
    );
}

/// Apply's session has `session_replication_role = replica`, as stock's apply worker.
fn acting(facts: &Facts, found: &mut Findings) {
    let triggers = facts.copied().filter(|table| table.acting_triggers > 0);
    found.tables(
        Severity::Warning,
        triggers,
        "it has triggers that are ENABLE ALWAYS or ENABLE REPLICA: on the target they fire again, as \
         in a stock subscription, and not for changes that cancel each other out",
        "after the copy, ALTER TABLE ... DISABLE TRIGGER on the target, unless that is wanted",
    );
    let rules = facts.copied().filter(|table| table.acting_rules > 0);
    found.tables(
        Severity::Error,
        rules,
        "it has rules that are ENABLE ALWAYS or ENABLE REPLICA: on the target they would rewrite \
         what is applied",
        "ALTER TABLE ... ENABLE RULE, which lets them act on the source only, or exclude it",
    );
    if facts.ddl && !facts.source.superuser {
        let says = format!(
            "role \"{}\" is no superuser, and only superusers may create the event triggers that tell of \
             changes of the schema",
            facts.source.role
        );
        let todo = "connect to the source as a superuser, or leave --ddl out";
        found.error("source", says, todo);
    }
    if facts.ddl && !facts.target.superuser {
        let says = format!(
            "role \"{}\" is no superuser: a command of a role that it is no member of will stop the replica",
            facts.target.role
        );
        let todo =
            "connect to the target as a superuser, or GRANT it each role that changes the schema";
        found.warning("target", says, todo);
    }
    if facts.ddl && !facts.database_rights.is_empty() {
        let says = "its database lacks rights that the source's has: a command that needs one will stop the replica";
        let database = quoted(&facts.target.database);
        let grants = facts.database_rights.iter().map(|right| {
            let (what, to) = right.split_once(" TO ").unwrap_or((right, "…"));
            format!("GRANT {what} ON DATABASE {database} TO {to}")
        });
        let grants: Vec<_> = grants.take(MOST_NAMES).collect();
        found.warning("target", says, grants.join("; "));
    }
    if facts.read_only && !facts.target.owns_database {
        let says = format!(
            "role \"{}\" does not own its database, and so may not let others' sessions begin read-only there: others \
             may write",
            facts.target.role
        );
        let todo =
            "connect to the target as the database's owner or a superuser, or say --read-only off";
        found.warning("target", says, todo);
    }
    if facts.target.superuser {
        let calling = facts.copied().filter(|table| table.calls_functions);
        let says = format!(
            "a constraint, default, generated column, index or domain of it calls a function whose owner \
             is no superuser: on the target it runs with the rights of superuser \"{}\"",
            facts.target.role
        );
        let todo = "connect to the target as a role that is no superuser and owns its tables, unless all \
                    who may change the function are trusted";
        found.tables(Severity::Warning, calling, &says, todo);
    }
}

/// Event triggers of users on the target.
fn event_triggers(facts: &Facts, found: &mut Findings) {
    if !facts.login_triggers.is_empty() {
        let says = format!(
            "event triggers that fire at login fire on the target for each session, also for those of the \
             replica: {}; a row that one writes there is not the source's",
            listed(&facts.login_triggers)
        );
        let todo = "if they write, ALTER EVENT TRIGGER ... DISABLE on the source until the copy is made, and on \
                    the target as long as it is a replica";
        found.warning("source", says, todo);
    }
    // From 17 on event_triggers keeps them silent for who may set it.
    if !facts.event_triggers.is_empty() && facts.target.version < 170_000 {
        let says = format!(
            "event triggers that are ENABLE ALWAYS or ENABLE REPLICA would fire on the target for statements \
             of the replica: {}",
            listed(&facts.event_triggers)
        );
        let todo = "ALTER EVENT TRIGGER ... ENABLE on the source, or disable them on the target after the copy";
        found.warning("source", says, todo);
    }
}

/// A role that row security could stop sets `row_security` to off, so that nothing is hidden: an error then.
fn row_security(facts: &Facts, found: &mut Findings) {
    let (source, target) = (&facts.source, &facts.target);
    if !target.superuser && !target.bypass_rls {
        let says = format!(
            "its row security is forced, so that the target would refuse changes of role \"{}\"",
            target.role
        );
        let todo = format!("ALTER ROLE \"{}\" BYPASSRLS on the target", target.role);
        let forced = facts.copied();
        let forced = forced.filter(|table| table.row_security && table.row_security_forced);
        found.tables(Severity::Error, forced, &says, &todo);
    }
    if source.superuser || source.bypass_rls {
        return;
    }
    let hidden = facts
        .copied()
        .filter(|table| table.row_security && (!table.owned || table.row_security_forced));
    let says = format!("row security may hide rows from role \"{}\"", source.role);
    let todo = format!("ALTER ROLE \"{}\" BYPASSRLS", source.role);
    found.tables(Severity::Error, hidden, &says, &todo);
}

fn large_objects(facts: &Facts, found: &mut Findings) {
    if facts.large_objects == 0 {
        return;
    }
    let says = format!(
        "it has {} large objects, which PostgreSQL does not replicate",
        facts.large_objects
    );
    match facts.skip_large_objects {
        true => found.warning("source", says, "move them by hand; they are left out"),
        false => {
            let todo = "move them into columns of type bytea, or leave them out with \
                        --skip-large-objects";
            found.error("source", says, todo);
        }
    }
}
