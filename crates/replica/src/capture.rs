//! Event triggers on the source that write each command which changes the schema into the stream, as a
//! logical message. `lockstep_apply::ddl` reads it, and docs/decisions says why it is as it is.
//!
//! Six triggers and two functions for each replica, in schema `lockstep`. The first function runs as whoever
//! runs the command, and notes role and settings. The second runs as the superuser that created the replica:
//! it adds new tables to the publication and writes the message, with digits that need a key which only
//! superusers can read. An error in it is written into the stream in place of the command, and the replica
//! stops there: the user's command goes on. It fails if it cannot get a lock, if the function's owner is no
//! superuser any more, and if not even that can be written.

use std::collections::HashMap;

use lockstep_client::quote::{identifier, sql_literal};
use lockstep_client::{ClientError, Connection, field};

use crate::state::Replica;

/// Notes who runs a command, and with which settings. Whatever a user's session has defined, each name is
/// that of PostgreSQL.
const WHO: &str = r#"
BEGIN
    PERFORM pg_catalog.set_config('lockstep_ddl.who', pg_catalog.json_build_object('role', CURRENT_USER,
        'settings', (SELECT pg_catalog.json_object_agg(name, pg_catalog.current_setting(name))
            FROM pg_catalog.unnest(ARRAY['search_path', 'TimeZone', 'DateStyle', 'IntervalStyle',
                'check_function_bodies', 'default_table_access_method', 'default_toast_compression',
                'xmloption', 'array_nulls', 'standard_conforming_strings', 'transform_null_equals',
                'backslash_quote', 'bytea_output', 'extra_float_digits', 'default_text_search_config',
                'lc_monetary', 'lc_numeric', 'lc_time', 'quote_all_identifiers', 'xmlbinary',
                'timezone_abbreviations']) AS s(name)))::pg_catalog.text, true);
END
"#;

/// Whether a command that has rewritten table `one` has given its rows values that only the source knows: a
/// column of this transaction has a default that is not the same at all times. Not if the rows cannot be
/// written once more without a foreign key, a trigger, a rule or a subscriber that takes notice of it, or
/// without code of a user, which would run as a superuser, and not if a constraint might refuse them now.
const NEW_VALUES: &str = r#"
    EXISTS (SELECT FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
            LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
            CROSS JOIN LATERAL (SELECT coalesce(d.adbin, t.typdefaultbin)::text) AS e(tree)
            CROSS JOIN LATERAL (SELECT (said ->> 'xid')::int8) AS x(xid)
            CROSS JOIN LATERAL (SELECT (a.xmin::text::int8 - x.xid) & 4294967295) AS l(later)
        WHERE a.attrelid = one.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
            AND l.later < 2147483648
            AND NOT pg_visible_in_snapshot((x.xid + l.later)::text::xid8, pg_current_snapshot())
            AND (a.attidentity <> '' OR e.tree ~ 'NEXTVALUEEXPR|SQLVALUEFUNCTION' OR EXISTS (
                SELECT FROM regexp_matches(e.tree, ':(?:funcid|opfuncid) ([0-9]+)', 'g') m
                    JOIN pg_proc p ON p.oid = m[1]::oid WHERE p.provolatile <> 'i')))
    AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = one.oid)
    AND NOT EXISTS (SELECT FROM pg_constraint k
        WHERE k.contype = 'f' AND k.confrelid = one.oid AND k.conrelid <> one.oid)
    AND NOT EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = one.oid AND g.tgenabled IN ('A', 'R'))
    AND NOT EXISTS (SELECT FROM pg_rewrite w WHERE w.ev_class = one.oid AND w.ev_enabled IN ('A', 'R'))
    AND NOT EXISTS (SELECT FROM pg_publication_tables b
        WHERE b.schemaname = one.nspname AND b.tablename = one.relname AND b.pubname <> '{publication}')
    AND NOT EXISTS (SELECT FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        WHERE a.attrelid = one.oid AND NOT a.attisdropped AND t.oid >= 16384 AND t.typtype <> 'e')
    AND NOT EXISTS (SELECT FROM (SELECT k.conbin::text FROM pg_constraint k WHERE k.conrelid = one.oid
            UNION ALL SELECT concat(i.indexprs, i.indpred) FROM pg_index i WHERE i.indrelid = one.oid
            UNION ALL SELECT d.adbin::text FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid
                AND a.attnum = d.adnum WHERE d.adrelid = one.oid AND a.attgenerated <> '') AS u(tree)
        WHERE u.tree ~ 'COERCETODOMAIN|SQLVALUEFUNCTION' OR EXISTS (
            SELECT FROM regexp_matches(u.tree, ':(?:funcid|opfuncid) ([0-9]+)', 'g') m
                JOIN pg_proc p ON p.oid = m[1]::oid WHERE p.oid >= 16384 OR p.provolatile <> 'i'))
    AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = one.oid AND NOT k.convalidated)
"#;

/// Writes a command into the stream. `{schemas}` and `{tables}` are arrays of what is left out.
const WRITE: &str = r#"
DECLARE
    stack text;
    above text;
    moment text := extract(epoch FROM statement_timestamp());
    counts jsonb;
    said jsonb;
    tables jsonb := '[]';
    one record;
    has_rows boolean;
    made text;
    kept text;
    columns text := '';
    is_anew boolean;
    new_identity text;
    other_full name;
    is_given boolean;
    secret bytea;
    -- A setting that only superusers may set: it tells what this function itself runs.
    outer_mark text := current_setting('backtrace_functions');
    is_within boolean;
BEGIN
    -- The commands of an extension's script are part of the one that runs it, which sets a mark before it
    -- begins and takes it away at its end.
    IF tg_event = 'table_rewrite' THEN
        -- 2: rows get values of a default.
        IF pg_event_trigger_table_rewrite_reason() & 2 > 0 THEN
            PERFORM set_config('lockstep_ddl.rewritten', concat_ws(',', current_setting('lockstep_ddl.rewritten',
                true), pg_event_trigger_table_rewrite_oid()::int8), true);
        END IF;
        RETURN;
    ELSIF tg_event = 'ddl_command_start' THEN
        PERFORM set_config('backtrace_functions', '{mark},' || outer_mark, true);
        RETURN;
    ELSIF tg_event = 'ddl_command_end' AND tg_tag IN ('CREATE EXTENSION', 'ALTER EXTENSION')
        AND strpos(outer_mark, '{mark},') > 0
    THEN
        outer_mark := overlay(outer_mark PLACING '' FROM strpos(outer_mark, '{mark},') FOR length('{mark},'));
        PERFORM set_config('backtrace_functions', outer_mark, true);
    END IF;
    is_within := strpos(outer_mark, '{mark},') > 0;
    -- What lockstep itself does to the source is nothing for the target. Anybody may call a session so.
    IF outer_mark = 'lockstep_ddl' OR current_setting('application_name')
            IN ('lockstep replica', 'lockstep verify', 'lockstep restore') AND (session_user = current_user
        OR EXISTS (SELECT FROM pg_roles r WHERE r.rolname = session_user AND r.rolsuper))
    THEN
        RETURN;
    END IF;
    GET DIAGNOSTICS stack = PG_CONTEXT;
    above := nullif(substr(stack, strpos(stack || E'\n', E'\n') + 1), '');
    said := jsonb_build_object('replica', '{publication}', 'xid', pg_current_xact_id()::text::int8,
        'tag', tg_tag, 'query', coalesce(current_query(), ''), 'context', above);
    BEGIN
        said := said || current_setting('lockstep_ddl.who')::jsonb;
        IF above IS NULL AND NOT is_within THEN
            BEGIN
                counts := nullif(current_setting('lockstep_ddl.{publication}', true), '')::jsonb;
            EXCEPTION WHEN OTHERS THEN
                counts := NULL;
            END;
            IF counts ->> 'at' IS DISTINCT FROM moment THEN
                counts := jsonb_build_object('at', moment);
            END IF;
            said := said || jsonb_build_object('before', coalesce(counts -> tg_tag, '0'));
            IF tg_event = 'ddl_command_end' THEN
                counts := counts || jsonb_build_object(tg_tag, coalesce((counts ->> tg_tag)::int, 0) + 1);
                PERFORM set_config('lockstep_ddl.{publication}', counts::text, false);
            END IF;
        END IF;
        IF tg_tag ~ '^(CREATE|ALTER|DROP) (PUBLICATION|SUBSCRIPTION)$|^REINDEX' THEN
            RETURN;
        ELSIF tg_event = 'sql_drop' THEN
            IF is_within OR tg_tag !~ '^DROP ' OR tg_tag = 'DROP OWNED' OR NOT EXISTS (
                SELECT FROM pg_event_trigger_dropped_objects() d
                WHERE d.original AND NOT d.is_temporary AND d.object_identity !~ '\mpg_temp(_\d+)?\.'
                    AND d.schema_name IS DISTINCT FROM 'lockstep'
                    AND NOT coalesce(d.schema_name, CASE d.object_type WHEN 'schema' THEN d.object_name END,
                        d.address_names[1], '') = ANY ('{schemas}')
                    AND NOT coalesce(CASE WHEN d.object_type IN ('trigger', 'policy', 'rule',
                            'table constraint')
                        THEN format('%s.%s', d.address_names[1], d.address_names[2])
                        ELSE format('%s.%s', d.schema_name, d.object_name) END, '') = ANY ('{tables}'))
            THEN
                RETURN;
            END IF;
        ELSIF tg_tag ~ '^DROP ' AND tg_tag <> 'DROP OWNED' THEN
            RETURN;
        -- PostgreSQL does not say what a GRANT is on: the tables that this transaction has changed so far.
        ELSIF tg_tag IN ('GRANT', 'REVOKE')
            AND EXISTS (SELECT FROM pg_event_trigger_ddl_commands() d WHERE d.object_type IN ('TABLE', 'SEQUENCE'))
            AND (SELECT bool_and(c.relpersistence = 't' OR n.nspname = ANY ('{schemas}')
                    OR format('%s.%s', n.nspname, c.relname) = ANY ('{tables}'))
                FROM (SELECT oid, xmin FROM pg_class UNION ALL SELECT attrelid, xmin FROM pg_attribute)
                        AS r(oid, xid)
                    JOIN pg_class c ON c.oid = r.oid JOIN pg_namespace n ON n.oid = c.relnamespace
                    CROSS JOIN LATERAL (SELECT (said ->> 'xid')::int8) AS t(xid)
                    CROSS JOIN LATERAL (SELECT (r.xid::text::int8 - t.xid) & 4294967295) AS l(later)
                WHERE l.later < 2147483648
                    AND NOT pg_visible_in_snapshot((t.xid + l.later)::text::xid8, pg_current_snapshot()))
        THEN
            RETURN;
        ELSIF tg_tag <> 'DROP OWNED' AND NOT EXISTS (
            SELECT FROM pg_event_trigger_ddl_commands() d LEFT JOIN pg_class c ON c.oid = CASE d.classid
                    WHEN 'pg_class'::regclass THEN coalesce(
                        (SELECT i.indrelid FROM pg_index i WHERE i.indexrelid = d.objid),
                        (SELECT e.refobjid FROM pg_depend e WHERE e.classid = 'pg_class'::regclass
                            AND e.objid = d.objid AND e.refclassid = 'pg_class'::regclass
                            AND e.deptype IN ('a', 'i') AND e.refobjsubid <> 0 LIMIT 1), d.objid)
                    WHEN 'pg_trigger'::regclass
                        THEN (SELECT t.tgrelid FROM pg_trigger t WHERE t.oid = d.objid)
                    WHEN 'pg_policy'::regclass
                        THEN (SELECT p.polrelid FROM pg_policy p WHERE p.oid = d.objid)
                    WHEN 'pg_rewrite'::regclass
                        THEN (SELECT r.ev_class FROM pg_rewrite r WHERE r.oid = d.objid)
                    WHEN 'pg_constraint'::regclass
                        THEN (SELECT k.conrelid FROM pg_constraint k WHERE k.oid = d.objid)
                    WHEN 'pg_statistic_ext'::regclass
                        THEN (SELECT s.stxrelid FROM pg_statistic_ext s WHERE s.oid = d.objid) END
                LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE NOT d.in_extension AND c.relpersistence IS DISTINCT FROM 't'
                AND lower(d.object_type) NOT IN ('large object', 'publication', 'subscription')
                -- What uses a temporary table or type goes away with it.
                AND (d.classid = 'pg_class'::regclass OR NOT EXISTS (SELECT FROM pg_depend e
                    LEFT JOIN pg_class x ON e.refclassid = 'pg_class'::regclass AND x.oid = e.refobjid
                    LEFT JOIN pg_type y ON e.refclassid = 'pg_type'::regclass AND y.oid = e.refobjid
                    WHERE e.classid = d.classid AND e.objid = d.objid AND e.deptype = 'n'
                        AND coalesce(x.relnamespace, y.typnamespace) = pg_my_temp_schema()))
                AND d.schema_name IS DISTINCT FROM 'pg_temp' AND d.schema_name IS DISTINCT FROM 'lockstep'
                AND n.nspname IS DISTINCT FROM 'lockstep'
                AND (EXISTS (SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
                        WHERE p.pubname = '{publication}' AND r.prrelid = c.oid)
                    OR NOT coalesce(n.nspname, d.schema_name,
                        CASE d.object_type WHEN 'schema' THEN trim(d.object_identity, '"') END, '')
                            = ANY ('{schemas}')
                    AND NOT coalesce(format('%s.%s', n.nspname, c.relname), '') = ANY ('{tables}')))
        THEN
            RETURN;
        END IF;
        IF tg_event = 'ddl_command_end' THEN
            PERFORM set_config('backtrace_functions', 'lockstep_ddl', true);
            FOR one IN
                SELECT DISTINCT c.oid, n.nspname, c.relname, c.relkind, c.relreplident, c.relispartition,
                    format('%I.%I', n.nspname, c.relname) AS name,
                    EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary
                        AND i.indimmediate) AS has_key,
                    EXISTS (SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
                        WHERE p.pubname = '{publication}' AND r.prrelid = c.oid) AS is_published
                FROM pg_event_trigger_ddl_commands() d JOIN pg_class c ON d.classid = 'pg_class'::regclass
                    AND c.oid = d.objid JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT d.in_extension
                    AND n.nspname <> 'lockstep' AND NOT n.nspname = ANY ('{schemas}')
                    AND NOT format('%s.%s', n.nspname, c.relname) = ANY ('{tables}')
                    AND NOT EXISTS (SELECT FROM pg_partition_ancestors(c.oid) a
                        JOIN pg_class ac ON ac.oid = a.relid JOIN pg_namespace an ON an.oid = ac.relnamespace
                        WHERE format('%s.%s', an.nspname, ac.relname) = ANY ('{tables}')
                            OR an.nspname = ANY ('{schemas}'))
                ORDER BY c.oid
            LOOP
                has_rows := false;
                new_identity := NULL;
                IF NOT one.is_published AND one.relkind = 'r' THEN
                    EXECUTE format('SELECT EXISTS (SELECT FROM ONLY %s)', one.name) INTO has_rows;
                    -- The rows of CREATE TABLE AS were written before the publication had the table.
                    IF has_rows AND tg_tag IN ('CREATE TABLE AS', 'SELECT INTO') THEN
                        IF EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = one.oid)
                            OR EXISTS (SELECT FROM pg_rewrite w WHERE w.ev_class = one.oid)
                        THEN
                            RAISE 'its query has made triggers or rules of its own table';
                        END IF;
                        made := one.name;
                        kept := format('lockstep.%I', 'rows_' || one.oid);
                        EXECUTE format('CREATE UNLOGGED TABLE %s AS TABLE %s', kept, made);
                        EXECUTE format('TRUNCATE %s', made);
                        has_rows := false;
                    END IF;
                END IF;
                is_anew := false;
                IF one.is_published AND one.relkind = 'r' AND NOT one.relispartition AND tg_tag = 'ALTER TABLE'
                    AND made IS NULL
                    AND current_setting('lockstep_ddl.rewritten', true) ~ format('\m%s\M', one.oid)
                    AND {new_values}
                THEN
                    EXECUTE format('SELECT EXISTS (SELECT FROM ONLY %s)', one.name) INTO is_anew;
                END IF;
                IF is_anew THEN
                    -- The target empties its table, and gets all rows behind the command.
                    columns := (SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum)
                        FROM pg_attribute a WHERE a.attrelid = one.oid AND a.attnum > 0 AND NOT a.attisdropped
                            AND a.attgenerated = '');
                    made := one.name;
                    kept := format('lockstep.%I', 'rows_' || one.oid);
                    EXECUTE format('CREATE UNLOGGED TABLE %s AS SELECT %s FROM ONLY %s', kept, columns, made);
                    columns := format('(%s)', columns);
                    EXECUTE format('ALTER PUBLICATION {quoted} DROP TABLE ONLY %s', made);
                    EXECUTE format('TRUNCATE ONLY %s', made);
                    EXECUTE format('ALTER PUBLICATION {quoted} ADD TABLE ONLY %s', made);
                END IF;
                IF one.relkind = 'r' AND NOT one.has_key AND one.relreplident = 'd'
                    AND (NOT one.is_published OR tg_tag = 'ALTER TABLE')
                THEN
                    -- Otherwise updates and deletes would be refused once it is published.
                    EXECUTE format('ALTER TABLE ONLY %s REPLICA IDENTITY FULL', one.name);
                    INSERT INTO lockstep.{full} VALUES (one.oid) ON CONFLICT DO NOTHING;
                    new_identity := 'FULL';
                ELSIF one.has_key AND one.relreplident IN ('f', 'd') AND EXISTS (
                    SELECT FROM lockstep.{full} f WHERE f.oid = one.oid)
                THEN
                    IF one.relreplident = 'f' THEN
                        EXECUTE format('ALTER TABLE ONLY %s REPLICA IDENTITY DEFAULT', one.name);
                    END IF;
                    DELETE FROM lockstep.{full} f WHERE f.oid = one.oid;
                    new_identity := 'DEFAULT';
                ELSIF one.relkind = 'r' AND NOT one.has_key AND one.relreplident = 'f' AND NOT EXISTS (
                    SELECT FROM lockstep.{full} f WHERE f.oid = one.oid)
                THEN
                    -- The event trigger of another replica may have given it that.
                    FOR other_full IN SELECT c.relname FROM pg_class c
                        WHERE c.relnamespace = 'lockstep'::regnamespace AND c.relkind = 'r'
                            AND c.relname ~ '^lockstep_.*_full$' AND c.relname <> '{full}'
                    LOOP
                        EXECUTE format('SELECT EXISTS (SELECT FROM lockstep.%I f WHERE f.oid = $1)',
                            other_full) INTO is_given USING one.oid;
                        IF is_given AND new_identity IS NULL THEN
                            INSERT INTO lockstep.{full} VALUES (one.oid);
                            new_identity := 'FULL';
                        END IF;
                    END LOOP;
                END IF;
                IF NOT one.is_published THEN
                    BEGIN
                        EXECUTE format('ALTER PUBLICATION {quoted} ADD TABLE ONLY %s', one.name);
                    EXCEPTION WHEN duplicate_object THEN
                        RAISE serialization_failure USING MESSAGE = format('this transaction sees the database as '
                            'it was before table %s was made, so that %s cannot be replicated: roll it back and '
                            'begin it again', one.name, tg_tag);
                    END;
                END IF;
                tables := tables || jsonb_build_object('oid', one.oid::int8, 'schema', one.nspname,
                    'name', one.relname, 'joins', NOT one.is_published, 'rows', has_rows, 'identity', new_identity,
                    'anew', is_anew,
                    'bound', CASE tg_tag
                        WHEN 'CREATE TABLE' THEN (SELECT pg_get_expr(b.relpartbound, b.oid)
                            FROM pg_class b WHERE b.oid = one.oid)
                        -- The newest partition, if this transaction has attached it, and no part of it that
                        -- may be rolled back alone: those have numbers of their own.
                        WHEN 'ALTER TABLE' THEN (SELECT CASE
                                WHEN i.xmin::text::int8 = (said ->> 'xid')::int8 & 4294967295
                                THEN pg_get_expr(b.relpartbound, b.oid) END
                            FROM pg_inherits i JOIN pg_class b ON b.oid = i.inhrelid
                            WHERE i.inhparent = one.oid AND one.relkind = 'p'
                            ORDER BY age(i.xmin), i.cmin::text::int8 DESC LIMIT 1) END,
                    'missing', coalesce((SELECT jsonb_object_agg(a.attname,
                            (a.attmissingval::text::text[])[1])
                        FROM pg_attribute a WHERE a.atthasmissing AND a.attrelid IN (
                            SELECT one.oid UNION ALL SELECT p.relid FROM pg_partition_tree(one.oid) p)),
                        '{}'));
            END LOOP;
            PERFORM set_config('backtrace_functions', outer_mark, true);
            PERFORM set_config('lockstep_ddl.rewritten', '', true);
            said := said || jsonb_build_object('tables', tables);
            IF tg_tag IN ('CREATE TABLE AS', 'SELECT INTO') THEN
                said := said || jsonb_build_object('create', (
                    SELECT format('CREATE %sTABLE %I.%I (%s)',
                        CASE c.relpersistence WHEN 'u' THEN 'UNLOGGED ' END, n.nspname, c.relname,
                        (SELECT string_agg(format('%I %s%s', a.attname,
                                format_type(a.atttypid, a.atttypmod), CASE WHEN a.attcollation <> 0
                                    THEN (SELECT format(' COLLATE %I.%I', cn.nspname, co.collname)
                                        FROM pg_collation co JOIN pg_namespace cn ON cn.oid = co.collnamespace
                                        WHERE co.oid = a.attcollation) END), ', ' ORDER BY a.attnum)
                            FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0))
                    FROM pg_event_trigger_ddl_commands() d JOIN pg_class c ON d.classid = 'pg_class'::regclass
                        AND c.oid = d.objid AND c.relkind = 'r' JOIN pg_namespace n ON n.oid = c.relnamespace
                    LIMIT 1));
            END IF;
        END IF;
    EXCEPTION WHEN lock_not_available OR deadlock_detected OR serialization_failure THEN
        RAISE;
    WHEN OTHERS THEN
        said := said || jsonb_build_object('tables', '[]'::jsonb, 'create', NULL, 'failed', sqlerrm);
        made := NULL;
    END;
    secret := (SELECT k.key FROM lockstep.{key} k);
    IF secret IS NULL THEN
        RAISE 'this transaction sees the database as it was before lockstep has created a replica that follows '
            'changes of the schema, so % cannot be replicated: roll it back and begin it again', tg_tag;
    END IF;
    PERFORM pg_logical_emit_message(true, 'lockstep.ddl', convert_to(encode(sha256(secret
        || sha256(secret || convert_to(said::text, 'UTF8'))), 'hex') || said::text, 'UTF8'));
    -- Decoding puts a message at its end, where the next record begins. A change in that one may come before the
    -- message if another savepoint has made it: so one more record stands between them.
    PERFORM pg_logical_emit_message(true, 'lockstep', 'ddl');
    IF made IS NOT NULL THEN
        EXECUTE format('INSERT INTO %s %s OVERRIDING SYSTEM VALUE TABLE %s', made, columns, kept);
        EXECUTE format('DROP TABLE %s', kept);
    END IF;
END
"#;

/// Refuses a schema whose owner could put code into it, which would run with a superuser's rights.
const TRUSTED: &str = "DO $trusted$ DECLARE owner name; BEGIN \
    SELECT r.rolname INTO owner FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner \
        WHERE n.nspname = 'lockstep' AND NOT r.rolsuper; \
    IF FOUND THEN RAISE EXCEPTION 'schema lockstep belongs to role \"%\", which is no superuser: what it puts there \
        could run with the rights of one. ALTER SCHEMA lockstep OWNER TO a superuser first', owner; \
    END IF; END $trusted$";

/// Names of what a replica has for this in schema `lockstep`: the two functions, the table of the key, and
/// that of tables that were given a replica identity.
struct Names {
    who: String,
    write: String,
    key: String,
    full: String,
}

impl Names {
    fn new(replica: &Replica) -> Self {
        let name = |end: &str| format!("{}_{end}", replica.slot);
        Self {
            who: name("who"),
            write: name("write"),
            key: name("key"),
            full: name("full"),
        }
    }

    /// Event triggers of one event fire in the order of their names.
    fn triggers(replica: &Replica) -> [(String, &'static str, bool); 6] {
        let name = |end: &str| format!("{}_{end}", replica.slot);
        [
            (
                name("0e"),
                "ddl_command_start WHEN TAG IN ('CREATE EXTENSION', 'ALTER EXTENSION')",
                false,
            ),
            (name("0r"), "table_rewrite", false),
            (name("1d"), "ddl_command_end", true),
            (name("2d"), "ddl_command_end", false),
            (name("1s"), "sql_drop", true),
            (name("2s"), "sql_drop", false),
        ]
    }
}

/// An array of texts as PostgreSQL reads it, as a literal.
fn array(texts: &[String]) -> Result<String, ClientError> {
    let quoted = texts.iter().map(|text| {
        let text = text.replace('\\', "\\\\").replace('"', "\\\"");
        format!("\"{text}\"")
    });
    let quoted: Vec<_> = quoted.collect();
    sql_literal("names", &format!("{{{}}}", quoted.join(",")))
}

/// What the two functions do, in the order of `Names`: who, write.
fn bodies(replica: &Replica) -> Result<[String; 2], ClientError> {
    let names = Names::new(replica);
    let write = WRITE
        .replace("{new_values}", NEW_VALUES.trim())
        .replace("{full}", &names.full)
        .replace("{key}", &names.key)
        .replace("'{schemas}'", &array(&replica.exclude_schemas)?)
        .replace("'{tables}'", &array(&replica.exclude_tables)?)
        .replace(
            "{quoted}",
            &identifier("publication", &replica.publication)?,
        )
        .replace("{publication}", &replica.publication)
        .replace("{mark}", &format!("{}_within", replica.slot));
    Ok([WHO.to_owned(), write])
}

/// The functions, made or replaced, and these of the event triggers.
fn definitions(replica: &Replica, wanted: impl Fn(&str) -> bool) -> Result<String, ClientError> {
    let Names {
        who, write, full, ..
    } = Names::new(replica);
    let [who_body, write_body] = bodies(replica)?;
    let mut sql = format!(
        "CREATE TABLE IF NOT EXISTS lockstep.{full} (oid oid PRIMARY KEY); \
         CREATE OR REPLACE FUNCTION lockstep.{who}() RETURNS event_trigger LANGUAGE plpgsql \
             AS $lockstep${who_body}$lockstep$; \
         CREATE OR REPLACE FUNCTION lockstep.{write}() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER \
             SET search_path = pg_catalog, pg_temp SET lc_messages = 'C' \
             SET session_replication_role = replica SET DateStyle = 'ISO, YMD' \
             SET IntervalStyle = 'postgres' SET TimeZone = 'UTC' SET extra_float_digits = 3 \
             SET bytea_output = 'hex' SET row_security = off SET default_table_access_method = 'heap' \
             SET default_tablespace = '' SET standard_conforming_strings = on \
             AS $lockstep${write_body}$lockstep$; \
         ALTER FUNCTION lockstep.{who}() OWNER TO CURRENT_USER; \
         ALTER FUNCTION lockstep.{write}() OWNER TO CURRENT_USER; "
    );
    for (name, event, is_who) in Names::triggers(replica) {
        if wanted(&name) {
            let function = if is_who { &who } else { &write };
            sql.push_str(&format!(
                "CREATE EVENT TRIGGER {name} ON {event} EXECUTE FUNCTION lockstep.{function}(); \
                 ALTER EVENT TRIGGER {name} ENABLE ALWAYS; "
            ));
        }
    }
    Ok(sql)
}

/// Makes the event triggers on the source, and returns the key that proves what they write, in hexadecimal.
pub(crate) fn install(source: &mut Connection, replica: &Replica) -> Result<String, ClientError> {
    let key = Names::new(replica).key;
    let definitions = definitions(replica, |_| true)?;
    source.execute(&format!(
        "BEGIN; CREATE SCHEMA IF NOT EXISTS lockstep; {TRUSTED}; \
         CREATE TABLE lockstep.{key} (key bytea NOT NULL); \
         INSERT INTO lockstep.{key} SELECT sha256(convert_to(gen_random_uuid()::text \
             || gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8')); \
         ALTER TABLE lockstep.{key} ENABLE ROW LEVEL SECURITY; {definitions}COMMIT"
    ))?;
    let row = source.query_one(&format!("SELECT encode(key, 'hex') FROM lockstep.{key}"))?;
    field(&row, 0)
}

/// Whether table `$3` of the key is there; what the functions `$1` and `$2` do; whether they belong to
/// superusers, and the second one alone runs as its owner, with a safe search_path.
const MADE: &str = "
SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'lockstep' AND c.relname = $3),
    coalesce(max(p.prosrc) FILTER (WHERE p.proname = $1), ''),
    coalesce(max(p.prosrc) FILTER (WHERE p.proname = $2), ''),
    count(*) = 2 AND coalesce(bool_and(r.rolsuper AND p.prosecdef = (p.proname = $2)
        AND (p.proname = $1 OR 'search_path=pg_catalog, pg_temp' = ANY (p.proconfig))), false)
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace JOIN pg_roles r ON r.oid = p.proowner
WHERE n.nspname = 'lockstep' AND p.proname IN ($1, $2) AND p.pronargs = 0";

/// The event triggers of functions in schema `lockstep`: name, whether it fires in each session, event,
/// whether only some commands count, function.
const TRIGGERS: &str = "
SELECT t.evtname, t.evtenabled::text = 'A', t.evtevent, t.evttags IS NOT NULL, p.proname
FROM pg_event_trigger t JOIN pg_proc p ON p.oid = t.evtfoid JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = 'lockstep'";

/// What a source has of a replica's event triggers.
struct Made {
    has_key: bool,
    /// The functions are this release's, belong to superusers, and have the rights that they need.
    is_current: bool,
    /// Triggers that are not there, or not as they are made.
    missing: Vec<String>,
    /// Triggers that do not fire in each session.
    silent: Vec<String>,
}

impl Made {
    fn ask(source: &mut Connection, replica: &Replica) -> Result<Self, ClientError> {
        let Names {
            who, write, key, ..
        } = Names::new(replica);
        let bodies = bodies(replica)?;
        // A role that may not use the schema is refused by to_regclass() and to_regproc().
        let rows = source.query_with(MADE, &[&who, &write, &key])?;
        let row = rows.first().map_or(&[][..], Vec::as_slice);
        let had: [String; 2] = [field(row, 1)?, field(row, 2)?];
        let (has_key, is_trusted): (bool, bool) = (field(row, 0)?, field(row, 3)?);
        let mut made = Self {
            has_key,
            is_current: had == bodies && is_trusted,
            missing: Vec::new(),
            silent: Vec::new(),
        };
        let mut found = HashMap::new();
        for row in source.query(TRIGGERS)? {
            let is_as: (String, bool, String) = (field(&row, 2)?, field(&row, 3)?, field(&row, 4)?);
            found.insert(field::<String>(&row, 0)?, (field::<bool>(&row, 1)?, is_as));
        }
        for (name, event, is_who) in Names::triggers(replica) {
            let function = if is_who { &who } else { &write };
            let (event, tags) = event.split_once(' ').unwrap_or((event, ""));
            let is_as = (event.to_owned(), !tags.is_empty(), function.clone());
            match found.get(&name) {
                Some((fires, found)) if *found == is_as => {
                    made.silent.extend((!fires).then_some(name));
                }
                _ => made.missing.push(name),
            }
        }
        Ok(made)
    }

    fn is_to_be_renewed(&self) -> bool {
        self.has_key && (!self.is_current || !self.missing.is_empty())
    }
}

/// Makes the functions and event triggers of this release in place of those of another one, which the replica
/// was created with; whether that was needed. Nothing is made if the key is gone: somebody has removed them.
/// Who has disabled a trigger wanted that.
pub(crate) fn renew(source: &mut Connection, replica: &Replica) -> Result<bool, ClientError> {
    let made = Made::ask(source, replica)?;
    if !made.is_to_be_renewed() {
        return Ok(false);
    }
    // They would fire for what follows, and fail if their owner is no superuser any more. Commands on event
    // triggers fire none.
    let (mut before, mut after) = (String::new(), String::new());
    for (name, ..) in Names::triggers(replica) {
        if made.missing.contains(&name) {
            before.push_str(&format!("DROP EVENT TRIGGER IF EXISTS {name}; "));
        } else if !made.silent.contains(&name) {
            before.push_str(&format!("ALTER EVENT TRIGGER {name} DISABLE; "));
            after.push_str(&format!("ALTER EVENT TRIGGER {name} ENABLE ALWAYS; "));
        }
    }
    let definitions = definitions(replica, |name| made.missing.iter().any(|one| one == name))?;
    source.execute(&format!(
        "BEGIN; {before}{TRUSTED}; {definitions}{after}COMMIT"
    ))?;
    Ok(true)
}

/// Why not all changes of the source's schema are followed, and what to do; None if its event triggers are as
/// this release makes them.
pub(crate) fn gap(
    source: &mut Connection,
    replica: &Replica,
) -> Result<Option<String>, ClientError> {
    let made = Made::ask(source, replica)?;
    let meanwhile = "make what was changed meanwhile on the target, too, and compare with lockstep replica \
                     verify";
    let words = match () {
        () if !made.has_key => {
            "the event triggers of --ddl have been removed from the source, so changes of its \
             schema are not followed: drop the replica and create it again"
                .to_owned()
        }
        () if made.is_to_be_renewed() => format!(
            "the event triggers of --ddl on the source are not this release's, so not all changes of its schema \
             are followed: lockstep replica run makes them anew when it begins, if the source's role is a \
             superuser; {meanwhile}"
        ),
        () if !made.silent.is_empty() => {
            let remedy = made.silent.iter();
            let remedy: Vec<_> = remedy
                .map(|name| format!("ALTER EVENT TRIGGER {name} ENABLE ALWAYS;"))
                .collect();
            format!(
                "event triggers of --ddl do not fire in each session of the source, so not all changes of its \
                 schema are followed: run there {} and {meanwhile}",
                remedy.join(" ")
            )
        }
        () => return Ok(None),
    };
    Ok(Some(words))
}

/// What removes them, as far as they are there.
pub(crate) fn removal(replica: &Replica) -> String {
    let names = Names::new(replica);
    let triggers = Names::triggers(replica);
    let triggers = triggers
        .iter()
        .map(|(name, ..)| format!("DROP EVENT TRIGGER IF EXISTS {name}; "));
    let functions = [&names.who, &names.write];
    let functions = functions.map(|name| format!("DROP FUNCTION IF EXISTS lockstep.{name}(); "));
    let tables = [&names.key, &names.full];
    let tables = tables.map(|name| format!("DROP TABLE IF EXISTS lockstep.{name}; "));
    let all: Vec<_> = triggers.chain(functions).chain(tables).collect();
    all.concat().trim_end().to_owned()
}
