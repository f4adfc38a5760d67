//! The queries that find the facts. They only read.

use std::collections::BTreeSet;

use lockstep_client::{ClientError, Connection, field};

use super::facts::{Extension, Facts, ReplicaIdentity, Server, Table, TableKind};
use super::{excluded, references, subsets};
use crate::error::{ReplicaError, Result};
use crate::names::{Excluded, TableName, tables_of, with_namespaces};
use crate::publication::subset::Subset;
use crate::schema;
use crate::state::json_array;

/// Largest table in which equal rows are looked for, in bytes.
const MOST_LOOKED_AT: u64 = 1024 * 1024 * 1024;

const SERVER: &str = "
SELECT current_setting('server_version_num'), current_database(), pg_is_in_recovery(),
    pg_encoding_to_char(d.encoding), d.datcollate, d.datctype, d.datlocprovider,
    d.datcollversion, pg_database_collation_actual_version(d.oid),
    current_user, r.rolsuper, r.rolreplication, r.rolbypassrls,
    has_database_privilege(d.oid, 'CREATE'),
    coalesce(current_setting('effective_wal_level', true), current_setting('wal_level')),
    current_setting('max_replication_slots'), (SELECT count(*) FROM pg_replication_slots),
    current_setting('max_wal_senders'),
    (SELECT count(*) FROM pg_stat_replication),
    coalesce(current_setting('max_active_replication_origins', true),
        current_setting('max_replication_slots')),
    has_parameter_privilege('session_replication_role', 'SET'),
    (SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_read_only'),
    current_setting('max_locks_per_transaction'),
    current_setting('max_locks_per_transaction')::int8 * (1
        + current_setting('max_connections')::int8 + current_setting('max_worker_processes')::int8
        + current_setting('max_wal_senders')::int8 + current_setting('max_prepared_transactions')::int8
        + coalesce(current_setting('autovacuum_worker_slots', true),
            current_setting('autovacuum_max_workers'))::int8),
    pg_has_role(d.datdba, 'USAGE')
FROM pg_database d, pg_roles r
WHERE d.datname = current_database() AND r.rolname = current_user";

const TABLES: &str = "
SELECT n.nspname, c.relname, c.oid, c.relkind, c.relpersistence = 'u',
    EXISTS (SELECT FROM pg_depend e WHERE e.classid = 'pg_class'::regclass AND e.objid = c.oid
        AND e.deptype = 'e'),
    pg_has_role(c.relowner, 'USAGE'), pg_get_userbyid(c.relowner),
    has_table_privilege(c.oid, 'SELECT'), c.relrowsecurity, c.relforcerowsecurity,
    c.relreplident,
    EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate),
    EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisreplident),
    EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid
        AND i.indpred IS NULL AND i.indexprs IS NULL
        AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid
            AND a.attnum = ANY (i.indkey) AND NOT a.attnotnull)),
    coalesce((SELECT s.n_tup_upd + s.n_tup_del FROM pg_stat_all_tables s WHERE s.relid = c.oid), 0),
    CASE WHEN c.relkind IN ('r', 'm') THEN pg_relation_size(c.oid) ELSE 0 END,
    (SELECT count(*) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated <> ''),
    (SELECT count(*) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attidentity <> ''),
    (SELECT count(*) FROM pg_constraint k WHERE k.conrelid = c.oid AND k.condeferrable),
    (SELECT count(*) FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'x'),
    (SELECT coalesce(json_agg(json_build_array(pn.nspname, pc.relname)), '[]')
        FROM pg_partition_ancestors(c.oid) p
        JOIN pg_class pc ON pc.oid = p.relid JOIN pg_namespace pn ON pn.oid = pc.relnamespace
        WHERE p.relid <> c.oid),
    (SELECT count(*) FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal
        AND t.tgenabled IN ('A', 'R')),
    (SELECT count(*) FROM pg_rewrite r WHERE r.ev_class = c.oid AND r.rulename <> '_RETURN'
        AND r.ev_enabled IN ('A', 'R')),
    (SELECT r.rolsuper FROM pg_roles r WHERE r.oid = c.relowner),
    EXISTS (SELECT FROM pg_depend d JOIN pg_proc f ON f.oid = d.refobjid
            JOIN pg_roles r ON r.oid = f.proowner AND NOT r.rolsuper
        WHERE d.refclassid = 'pg_proc'::regclass AND (
            (d.classid = 'pg_class'::regclass AND d.objid IN
                (SELECT i.indexrelid FROM pg_index i WHERE i.indrelid = c.oid))
            OR (d.classid = 'pg_attrdef'::regclass AND d.objid IN
                (SELECT e.oid FROM pg_attrdef e WHERE e.adrelid = c.oid))
            OR (d.classid = 'pg_constraint'::regclass AND d.objid IN
                (SELECT k.oid FROM pg_constraint k WHERE k.conrelid = c.oid
                    OR k.contypid IN (SELECT a.atttypid FROM pg_attribute a
                        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped))))),
    EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND NOT a.attisdropped
        AND a.attgenerated <> '' AND (c.relreplident = 'f'
            OR EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND a.attnum = ANY (i.indkey)
                AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END)))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f', 'm') AND c.relpersistence <> 't' AND {namespaces}
ORDER BY 1, 2";

/// Roles that own objects of the database or have rights on some.
const ROLES: &str = "
SELECT DISTINCT r.rolname FROM pg_shdepend s JOIN pg_roles r ON r.oid = s.refobjid
WHERE s.refclassid = 'pg_authid'::regclass AND s.deptype IN ('o', 'a')
    AND s.dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND s.classid <> 'pg_default_acl'::regclass AND r.rolname NOT LIKE 'pg\\_%'";

/// Owners of what is copied. Objects that the server came with are not, and keep no record of their
/// owner in pg_shdepend, nor does anything that its first superuser owns.
const OWNERS: &str = "
SELECT DISTINCT pg_get_userbyid(o.owner)
FROM (SELECT relowner, relnamespace, 'pg_class'::regclass::oid, oid, relname FROM pg_class
        WHERE relkind IN ('r', 'p', 'f', 'm', 'v', 'S')
    UNION ALL SELECT proowner, pronamespace, 'pg_proc'::regclass, oid, NULL FROM pg_proc
    UNION ALL SELECT typowner, typnamespace, 'pg_type'::regclass, oid, NULL FROM pg_type
        WHERE typtype IN ('d', 'e', 'r')
    UNION ALL SELECT nspowner, oid, 'pg_namespace'::regclass, oid, NULL FROM pg_namespace
) o (owner, namespace, classid, objid, relation) JOIN pg_namespace n ON n.oid = o.namespace
WHERE {namespaces} AND pg_get_userbyid(o.owner) NOT LIKE 'pg\\_%'
    AND n.nspname <> ALL (ARRAY(SELECT json_array_elements_text($1::json)))
    AND coalesce(n.nspname || '.' || o.relation <> ALL
        (ARRAY(SELECT json_array_elements_text($2::json))), true)
    AND NOT EXISTS (SELECT FROM pg_depend e WHERE (e.classid, e.objid) = (o.classid, o.objid)
        AND e.deptype = 'e')";

/// Roles to which ours may not give what it owns, and if they are superusers: from 16 on being a member
/// is not enough.
const NOT_OURS: &str = "SELECT rolname, rolsuper FROM pg_roles WHERE NOT pg_has_role(oid, \
    CASE WHEN current_setting('server_version_num')::int < 160000 THEN 'MEMBER' ELSE 'SET' END)";

const TABLESPACES: &str = "
SELECT DISTINCT t.spcname FROM pg_class c JOIN pg_tablespace t ON t.oid = c.reltablespace
WHERE t.spcname NOT LIKE 'pg\\_%'";

const EXTENSIONS: &str =
    "SELECT extname, extversion FROM pg_extension WHERE extname <> 'plpgsql' ORDER BY 1";

/// Built-in collations that columns name.
const COLLATIONS: &str = "
SELECT DISTINCT k.collname FROM pg_attribute a JOIN pg_collation k ON k.oid = a.attcollation
JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_namespace kn ON kn.oid = k.collnamespace
WHERE kn.nspname = 'pg_catalog' AND {namespaces}";

/// Relations of users that belong to no extension.
const TARGET_RELATIONS: &str = "
SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f', 'm', 'v', 'S') AND c.relpersistence <> 't' AND {namespaces}
    AND NOT EXISTS (SELECT FROM pg_depend e WHERE e.classid = 'pg_class'::regclass
        AND e.objid = c.oid AND e.deptype = 'e')";

/// Relations that are made before the rows are copied: with a table that has large values come a table for
/// those, and its index.
const TO_MAKE: &str = "
SELECT count(*) + 2 * count(*) FILTER (WHERE c.reltoastrelid <> 0)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f', 'm', 'v', 'S') AND c.relpersistence <> 't' AND {namespaces}
    AND n.nspname <> ALL (ARRAY(SELECT json_array_elements_text($1::json)))";

/// Functions of replication origins that apply calls.
const ORIGIN_FUNCTIONS: &str = "
SELECT f FROM unnest(ARRAY['pg_replication_origin_create(text)',
    'pg_replication_origin_drop(text)', 'pg_replication_origin_oid(text)',
    'pg_replication_origin_progress(text,boolean)',
    'pg_replication_origin_session_setup(text)', 'pg_replication_origin_session_progress(boolean)',
    'pg_replication_origin_session_reset()',
    'pg_replication_origin_xact_setup(pg_lsn,timestamptz)']) f
WHERE NOT coalesce(has_function_privilege(to_regprocedure(f), 'EXECUTE'), true)";

/// Everything that the rules need. The system identifiers come from elsewhere: `IDENTIFY_SYSTEM`
/// for the source, which needs a session for replication.
pub fn facts(
    source: &mut Connection,
    target: &mut Connection,
    excluded: Excluded,
    subsets: Vec<Subset>,
    skip_large_objects: bool,
) -> Result<Facts> {
    let mut facts = Facts {
        excluded,
        subsets,
        skip_large_objects,
        ..Facts::default()
    };
    of_source(source, &mut facts).map_err(ReplicaError::Source)?;
    let needed = needs(source, &facts.excluded).map_err(ReplicaError::Source)?;
    of_target(target, &mut facts, needed).map_err(ReplicaError::Target)?;
    equal_rows(source, &mut facts).map_err(ReplicaError::Source)?;
    Ok(facts)
}

/// Rights on the session's database that are not its owner's, each with whose it is.
const DATABASE_RIGHTS: &str = "SELECT x.privilege_type || ' TO '
        || CASE x.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(x.grantee)) END
    FROM pg_database d, aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) x
    WHERE d.datname = current_database() AND x.grantee <> d.datdba";

/// Functions of fences of switchovers.
const FENCES: &str = "SELECT p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = 'lockstep' AND p.proname IN ('fence', 'closed')";

fn of_source(source: &mut Connection, facts: &mut Facts) -> Result<(), ClientError> {
    facts.source = server(source)?;
    facts.tables = tables(source)?;
    facts.fences = texts(source, FENCES)?.into_iter().collect();
    facts.schemas = schemas(source)?;
    facts.database_rights = texts(source, DATABASE_RIGHTS)?;
    facts.needs_excluded = excluded::needs(source, &facts.excluded)?;
    if !facts.subsets.is_empty() {
        facts.looked_at = subsets::look(source, facts)?;
        facts.foreign_keys = references::look(source, facts)?;
    }
    let row = source.query_one("SELECT count(*) FROM pg_largeobject_metadata")?;
    facts.large_objects = field(&row, 0)?;
    let acting = "SELECT evtname FROM pg_event_trigger WHERE evtenabled IN ('A', 'R') \
                  AND evtfoid NOT IN (SELECT p.oid FROM pg_proc p JOIN pg_namespace n \
                      ON n.oid = p.pronamespace WHERE n.nspname = 'lockstep')";
    facts.event_triggers = texts(source, acting)?.into_iter().collect();
    let at_login =
        "SELECT evtname FROM pg_event_trigger WHERE evtevent = 'login' AND evtenabled <> 'D'";
    facts.login_triggers = texts(source, at_login)?.into_iter().collect();
    let schemas = json_array(&facts.excluded.schemas);
    let to_make = source.query_with(&with_namespaces(TO_MAKE), &[&schemas])?;
    facts.relations_to_make = field(to_make.first().map_or(&[][..], Vec::as_slice), 0)?;
    Ok(())
}

pub fn schemas(source: &mut Connection) -> Result<BTreeSet<String>, ClientError> {
    texts(source, "SELECT nspname FROM pg_namespace")
}

pub fn tables(source: &mut Connection) -> Result<Vec<Table>, ClientError> {
    let rows = source.query(&with_namespaces(TABLES))?;
    rows.iter().map(|row| table(row)).collect()
}

/// How many tables, views and sequences of users the target has.
pub fn target_relations(target: &mut Connection) -> Result<u64, ClientError> {
    let row = target.query_one(&with_namespaces(TARGET_RELATIONS))?;
    field(&row, 0)
}

/// Columns have an option that newer minor releases keep for themselves, and that pg_dump has to know to
/// leave it out.
pub fn has_column_versions(source: &mut Connection) -> Result<bool, ClientError> {
    let sql = format!(
        "SELECT EXISTS (SELECT FROM pg_attribute a, unnest(a.attoptions) o \
         WHERE a.attrelid >= 16384 AND starts_with(o, '{}='))",
        schema::COLUMN_VERSION
    );
    field(&source.query_one(&sql)?, 0)
}

/// Tablespaces that relations of the source are in.
pub fn tablespaces_in_use(source: &mut Connection) -> Result<BTreeSet<String>, ClientError> {
    texts(source, TABLESPACES)
}

pub fn tablespaces(target: &mut Connection) -> Result<BTreeSet<String>, ClientError> {
    texts(target, "SELECT spcname FROM pg_tablespace")
}

/// What the target must have.
struct Needed {
    roles: BTreeSet<String>,
    owners: BTreeSet<String>,
    tablespaces: BTreeSet<String>,
    collations: BTreeSet<String>,
    extensions: Vec<(String, String)>,
}

fn needs(source: &mut Connection, excluded: &Excluded) -> Result<Needed, ClientError> {
    let extensions = source.query(EXTENSIONS)?;
    let (schemas, tables) = (json_array(&excluded.schemas), json_array(&excluded.tables));
    let owners = source.query_with(&with_namespaces(OWNERS), &[&schemas, &tables])?;
    let owners = owners.iter().map(|row| field(row, 0));
    let owners = owners.collect::<Result<BTreeSet<String>, ClientError>>()?;
    Ok(Needed {
        roles: &texts(source, ROLES)? | &owners,
        owners,
        tablespaces: tablespaces_in_use(source)?,
        collations: texts(source, &with_namespaces(COLLATIONS))?,
        extensions: extensions
            .iter()
            .map(|row| Ok((field(row, 0)?, field(row, 1)?)))
            .collect::<Result<_, ClientError>>()?,
    })
}

fn of_target(
    target: &mut Connection,
    facts: &mut Facts,
    needed: Needed,
) -> Result<(), ClientError> {
    facts.target = server(target)?;
    facts.is_closed = texts(target, FENCES)?.contains("closed");
    facts.target.origin_functions_denied = texts(target, ORIGIN_FUNCTIONS)?.into_iter().collect();
    // Only those who may read origins can count them; others are told of that right first.
    let origins = "SELECT CASE WHEN has_table_privilege('pg_replication_origin_status', 'SELECT') \
                   THEN (SELECT count(*) FROM pg_show_replication_origin_status()) ELSE 0 END";
    if facts.target.superuser {
        facts.target.origins_used = field(&target.query_one(origins)?, 0)?;
    }
    facts.target_relations = target_relations(target)?;
    let there = texts(target, DATABASE_RIGHTS)?;
    facts.database_rights.retain(|right| !there.contains(right));
    let lacks = |needed: BTreeSet<String>, there: BTreeSet<String>| -> Vec<String> {
        needed.difference(&there).cloned().collect()
    };
    let there = texts(target, "SELECT rolname FROM pg_roles")?;
    facts.roles_missing = lacks(needed.roles, there);
    for row in target.query(NOT_OURS)? {
        let (role, is_superuser): (String, bool) = (field(&row, 0)?, field(&row, 1)?);
        match needed.owners.contains(&role) {
            true if is_superuser => facts.superusers_denied.push(role),
            true => facts.owners_denied.push(role),
            false => (),
        }
    }
    let there = tablespaces(target)?;
    facts.tablespaces_missing = lacks(needed.tablespaces, there);
    let there = texts(target, "SELECT collname FROM pg_collation")?;
    facts.collations_missing = lacks(needed.collations, there);
    let available = target.query("SELECT name, default_version FROM pg_available_extensions")?;
    for (name, version) in needed.extensions {
        let here = available
            .iter()
            .find(|row| row.first().cloned().flatten().as_ref() == Some(&name));
        facts.extensions.push(Extension {
            available: here.map(|row| field(row, 1)).transpose()?,
            name,
            version,
        });
    }
    Ok(())
}

fn texts(connection: &mut Connection, sql: &str) -> Result<BTreeSet<String>, ClientError> {
    let rows = connection.query(sql)?;
    rows.iter().map(|row| field(row, 0)).collect()
}

fn name(row: &[Option<String>], place: usize) -> Result<TableName, ClientError> {
    Ok(TableName {
        schema: field(row, place)?,
        table: field(row, place + 1)?,
    })
}

fn server(connection: &mut Connection) -> Result<Server, ClientError> {
    let row = connection.query_one(SERVER)?;
    Ok(Server {
        version: field(&row, 0)?,
        system_id: String::new(),
        database: field(&row, 1)?,
        in_recovery: field(&row, 2)?,
        encoding: field(&row, 3)?,
        collate: field::<Option<String>>(&row, 4)?.unwrap_or_default(),
        ctype: field::<Option<String>>(&row, 5)?.unwrap_or_default(),
        provider: field(&row, 6)?,
        collation_version: field(&row, 7)?,
        collation_version_now: field(&row, 8)?,
        role: field(&row, 9)?,
        superuser: field(&row, 10)?,
        replication: field(&row, 11)?,
        bypass_rls: field(&row, 12)?,
        create: field(&row, 13)?,
        wal_level: field(&row, 14)?,
        slots: field(&row, 15)?,
        slots_used: field(&row, 16)?,
        walsenders: field(&row, 17)?,
        walsenders_used: field(&row, 18)?,
        origins: field(&row, 19)?,
        origins_used: 0,
        origin_functions_denied: Vec::new(),
        sets_replication_role: field(&row, 20)?,
        read_only: field::<String>(&row, 21)? == "on",
        locks_per_transaction: field(&row, 22)?,
        lock_room: field(&row, 23)?,
        owns_database: field(&row, 24)?,
    })
}

fn table(row: &[Option<String>]) -> Result<Table, ClientError> {
    let kind: String = field(row, 3)?;
    let identity: String = field(row, 11)?;
    let (primary, chosen): (bool, bool) = (field(row, 12)?, field(row, 13)?);
    Ok(Table {
        name: name(row, 0)?,
        oid: field(row, 2)?,
        kind: match kind.as_str() {
            "p" => TableKind::Partitioned,
            "f" => TableKind::Foreign,
            "m" => TableKind::MaterialisedView,
            _ => TableKind::Ordinary,
        },
        unlogged: field(row, 4)?,
        of_extension: field(row, 5)?,
        owned: field(row, 6)?,
        owner: field(row, 7)?,
        readable: field(row, 8)?,
        row_security: field(row, 9)?,
        row_security_forced: field(row, 10)?,
        identity: match identity.as_str() {
            "f" => ReplicaIdentity::Full,
            "d" if primary => ReplicaIdentity::Key,
            "i" if chosen => ReplicaIdentity::Key,
            _ => ReplicaIdentity::Nothing,
        },
        has_key: field(row, 14)?,
        changed_rows: field(row, 15)?,
        bytes: field(row, 16)?,
        generated_columns: field(row, 17)?,
        identity_columns: field(row, 18)?,
        deferrable_constraints: field(row, 19)?,
        exclusion_constraints: field(row, 20)?,
        acting_triggers: field(row, 22)?,
        acting_rules: field(row, 23)?,
        owner_is_superuser: field(row, 24)?,
        calls_functions: field(row, 25)?,
        generated_identity: field(row, 26)?,
        equal_rows: None,
        ancestors: tables_of(row, 21)?,
    })
}

/// Looks for equal rows where nothing else tells two rows apart. `ROW(t.*)`, as the table's owner can
/// make a cast from the table's own row type, which would be called here.
fn equal_rows(source: &mut Connection, facts: &mut Facts) -> Result<(), ClientError> {
    let excluded = facts.excluded.clone();
    for table in &mut facts.tables {
        let looked_at = table.identity == ReplicaIdentity::Full
            && table.kind == TableKind::Ordinary
            && !table.has_key
            && table.readable
            && table.bytes <= MOST_LOOKED_AT
            && !table.is_left_out(&excluded);
        if !looked_at {
            continue;
        }
        let sql = format!(
            "SELECT EXISTS (SELECT FROM ONLY {} t GROUP BY ROW(t.*)::text HAVING count(*) > 1)",
            table.name.sql()
        );
        table.equal_rows = Some(field(&source.query_one(&sql)?, 0)?);
    }
    Ok(())
}
