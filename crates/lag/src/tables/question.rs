//! The statement that asks a server for [`Tables`](super::Tables).

use super::{MOST_NAMED, MOST_TABLES, denied, parted, refused};

/// Most enums of one database that are read.
const MOST_ENUMS: usize = 500;

/// The role that initdb makes: a superuser for good.
const BOOTSTRAP: u32 = 10;

/// A table's name, quoted where SQL needs it.
const NAME: &str = "format('%I.%I', n.nspname, c.relname)";

/// True in a database that publishes or subscribes.
const REPLICATES: &str = "(EXISTS (SELECT FROM pg_publication) OR EXISTS (SELECT subname FROM pg_subscription \
     WHERE subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())))";

/// A field of [`Tables`](super::Tables), and the expression for it.
type Field = (&'static str, String);

/// The statement for [`Tables`](super::Tables). Whoever asks may read all of it.
pub fn question() -> String {
    let fields = published().into_iter().chain(sent()).chain(subscribed());
    let fields = fields.chain(asked_for()).chain(there());
    let fields: Vec<String> = fields
        .map(|(name, sql)| format!("'{name}', {sql}"))
        .collect();
    format!("SELECT json_build_object({})", fields.join(", "))
}

/// The columns of the index of a relation `c` that is such, if it can be a replica identity.
fn key(such: &str) -> String {
    format!(
        "(SELECT json_agg(quote_ident(b.attname)) FROM pg_index i JOIN pg_attribute b ON b.attrelid = c.oid \
           AND b.attnum = ANY ((i.indkey::int2[])[:i.indnkeyatts - 1]) \
         WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate AND {such})"
    )
}

/// Keys by which a server sends which row is meant, and column lists. Before 16 a list of all columns is
/// another one than none where the table has had more columns, or has generated ones.
fn sent() -> [Field; 2] {
    let keys = format!(
        "(SELECT coalesce(json_object_agg(name, columns) FILTER (WHERE columns IS NOT NULL), '{{}}') FROM (\
           SELECT DISTINCT ON (c.oid) {NAME} AS name, {} AS columns \
           FROM (SELECT * FROM pg_publication_tables LIMIT {MOST_TABLES}) t \
             JOIN pg_namespace n ON n.nspname = t.schemaname \
             JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename) k)",
        key("CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END")
    );
    let lists = format!(
        "(SELECT coalesce(json_object_agg(pubname, tables), '{{}}') FROM (SELECT p.pubname, json_object_agg({NAME}, \
             current_setting('server_version_num')::int < 160000 \
               AND cardinality(r.prattrs::int2[]) <> c.relnatts) AS tables \
           FROM (SELECT * FROM pg_publication_rel WHERE prattrs IS NOT NULL LIMIT {MOST_TABLES}) r \
             JOIN pg_publication p ON p.oid = r.prpubid JOIN pg_class c ON c.oid = r.prrelid \
             JOIN pg_namespace n ON n.oid = c.relnamespace GROUP BY 1) l)"
    );
    [("keys", keys), ("lists", lists)]
}

/// What publications have.
fn published() -> [Field; 8] {
    let tables = format!("(SELECT * FROM pg_publication_tables LIMIT {MOST_TABLES}) t");
    let classes = format!(
        "{tables} JOIN pg_namespace n ON n.nspname = t.schemaname \
         JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename"
    );
    let of_publications = format!(
        "(SELECT coalesce(json_object_agg(pubname, tables), '{{}}') FROM (\
           SELECT p.pubname, coalesce(json_agg(format('%I.%I', t.schemaname, t.tablename)) \
             FILTER (WHERE t.tablename IS NOT NULL), '[]') AS tables \
           FROM pg_publication p LEFT JOIN {tables} ON t.pubname = p.pubname GROUP BY p.pubname) p)"
    );
    let columns = format!(
        "(SELECT coalesce(json_object_agg(pubname, columns) FILTER (WHERE number <= {MOST_TABLES}), '{{}}') \
         FROM (SELECT pubname, json_object_agg({NAME}, \
             (SELECT json_object_agg(quote_ident(a.attname), format_type(a.atttypid, a.atttypmod)) \
              FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = ANY (t.attnames) \
                AND (a.attgenerated = '' OR current_setting('server_version_num')::int >= 180000))) \
             AS columns, sum(sum(cardinality(t.attnames))) OVER () AS number \
           FROM {classes} GROUP BY pubname) c)"
    );
    let actions = "(SELECT coalesce(json_object_agg(pubname, array_remove(ARRAY[\
           CASE WHEN pubinsert THEN 'insert' END, CASE WHEN pubupdate THEN 'update' END, \
           CASE WHEN pubdelete THEN 'delete' END], NULL)), '{}') FROM pg_publication)";
    let that = |option: &str| {
        format!("(SELECT coalesce(json_agg(pubname), '[]') FROM pg_publication WHERE {option})")
    };
    let filtered = format!(
        "(SELECT coalesce(json_agg(DISTINCT format('%I.%I', schemaname, tablename)), '[]') \
         FROM {tables} WHERE rowfilter IS NOT NULL)"
    );
    let full = format!(
        "(SELECT coalesce(json_agg(DISTINCT {NAME}), '[]') FROM {classes} WHERE c.relreplident = 'f')"
    );
    [
        ("publications", of_publications),
        ("columns", columns),
        ("actions", actions.to_owned()),
        ("truncating", that("pubtruncate")),
        ("via_root", that("pubviaroot")),
        ("filtered", filtered),
        ("full", full),
        ("refused", refused::expression(MOST_TABLES)),
    ]
}

/// Options of the subscription `s` other than those that CREATE SUBSCRIPTION gives it, as it takes them,
/// but for its slot. A column that this version lacks is that of `d`.
const OPTIONS: &str = "(SELECT array_to_json(array_remove(ARRAY[\
       CASE WHEN o.subbinary THEN 'binary = on' END, \
       CASE WHEN left(o.substream::text, 1) <> d.streaming THEN CASE left(o.substream::text, 1) \
         WHEN 't' THEN 'streaming = on' WHEN 'p' THEN 'streaming = parallel' ELSE 'streaming = off' END END, \
       CASE WHEN o.subsynccommit <> 'off' THEN 'synchronous_commit = ' || o.subsynccommit END, \
       CASE WHEN o.subtwophasestate <> 'd' THEN 'two_phase = on' END, \
       CASE WHEN o.subdisableonerr THEN 'disable_on_error = on' END, \
       CASE WHEN NOT o.subpasswordrequired THEN 'password_required = off' END, \
       CASE WHEN o.subrunasowner THEN 'run_as_owner = on' END, \
       CASE WHEN o.suborigin <> 'any' THEN 'origin = ' || o.suborigin END, \
       CASE WHEN o.subfailover THEN 'failover = on' END], NULL)) \
     FROM (SELECT CASE WHEN current_setting('server_version_num')::int < 180000 THEN 'f' ELSE 'p' END AS streaming, \
         true AS subpasswordrequired, false AS subrunasowner, 'any' AS suborigin, false AS subfailover) d \
       CROSS JOIN LATERAL (SELECT x.subbinary, x.substream, x.subsynccommit, x.subtwophasestate, x.subdisableonerr, \
         subpasswordrequired, subrunasowner, suborigin, subfailover FROM pg_subscription x WHERE x.oid = s.oid) o)";

/// What subscriptions follow.
fn subscribed() -> [Field; 5] {
    let classes =
        "JOIN pg_class c ON c.oid = r.srrelid JOIN pg_namespace n ON n.oid = c.relnamespace";
    let tables = format!(
        "(SELECT DISTINCT srrelid FROM pg_subscription_rel LIMIT {MOST_TABLES}) r {classes}"
    );
    let columns = format!("{tables} JOIN pg_attribute a ON a.attrelid = c.oid");
    let own = format!(
        "(SELECT * FROM pg_subscription_rel WHERE srsubid = s.oid LIMIT {MOST_TABLES}) r {classes}"
    );
    let denied = denied::expression(NAME, &own, MOST_NAMED);
    let subscriptions = format!(
        "(SELECT coalesce(json_object_agg(subname, json_build_object(\
           'publications', subpublications, 'options', {OPTIONS}, 'owner', (SELECT quote_ident(rolname) \
              FROM pg_roles WHERE oid = s.subowner AND oid <> {BOOTSTRAP}), 'tables', (SELECT coalesce(json_agg({NAME}), '[]') \
              FROM {own}), \
           'denied', {denied}, 'triggers', (SELECT coalesce(json_agg(t), '[]') FROM (\
              SELECT quote_ident(t.tgname) AS name, {NAME} AS \"table\" \
              FROM pg_subscription_rel r JOIN pg_trigger t ON t.tgrelid = r.srrelid \
                AND t.tgenabled IN ('A', 'R') AND NOT t.tgisinternal {classes} \
              WHERE r.srsubid = s.oid ORDER BY t.oid LIMIT {MOST_NAMED}) t), \
           'references', (SELECT coalesce(json_agg(f), '[]') FROM (\
              SELECT quote_ident(f.conname) AS name, {NAME} AS \"table\", \
                format('%I.%I', m.nspname, d.relname) AS \"to\" \
              FROM pg_subscription_rel r JOIN pg_constraint f ON f.confrelid = r.srrelid \
                AND f.contype = 'f' JOIN pg_class c ON c.oid = f.conrelid \
                JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_class d ON d.oid = r.srrelid \
                JOIN pg_namespace m ON m.oid = d.relnamespace \
              WHERE r.srsubid = s.oid AND NOT EXISTS (SELECT FROM pg_subscription_rel o \
                WHERE o.srsubid = s.oid AND o.srrelid = f.conrelid) \
              ORDER BY f.oid LIMIT {MOST_NAMED}) f))), '{{}}') FROM pg_subscription s \
         WHERE subdbid = (SELECT oid FROM pg_database WHERE datname = current_database()))"
    );
    let held = format!(
        "(SELECT coalesce(json_object_agg(name, columns) FILTER (WHERE number <= {MOST_TABLES}), '{{}}') FROM (\
           SELECT {NAME} AS name, json_object_agg(quote_ident(a.attname), \
             format_type(a.atttypid, a.atttypmod)) AS columns, sum(count(*)) OVER () AS number \
           FROM {columns} AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' GROUP BY 1) h)"
    );
    let generated = format!(
        "(SELECT coalesce(json_object_agg(name, columns), '{{}}') FROM (\
           SELECT {NAME} AS name, json_object_agg(quote_ident(a.attname), a.attgenerated::text) AS columns \
           FROM {columns} AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> '' GROUP BY 1) g)"
    );
    let unindexed = format!(
        "(SELECT coalesce(json_object_agg({NAME}, greatest(c.reltuples, 0)), '{{}}') FROM {tables} \
         WHERE c.relkind = 'r' AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid \
           AND CASE WHEN current_setting('server_version_num')::int < 160000 \
                 THEN i.indisprimary OR i.indisreplident ELSE i.indpred IS NULL END))"
    );
    let inherited = format!(
        "(SELECT coalesce(json_agg({NAME}), '[]') FROM {tables} WHERE c.relkind = 'r' \
           AND EXISTS (SELECT FROM pg_inherits WHERE inhparent = c.oid))"
    );
    [
        ("subscriptions", subscriptions),
        ("inherited", inherited),
        ("held", held),
        ("generated", generated),
        ("unindexed", unindexed),
    ]
}

/// What subscriptions' tables need of each row that comes: the key by which a worker finds a row, and columns
/// that must have a value.
fn asked_for() -> [Field; 2] {
    let tables = format!(
        "(SELECT DISTINCT srrelid FROM pg_subscription_rel LIMIT {MOST_TABLES}) r \
         JOIN pg_class c ON c.oid = r.srrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
    );
    let found_by = format!(
        "(SELECT coalesce(json_object_agg({NAME}, {}), '{{}}') FROM {tables})",
        key(
            "CASE WHEN c.relreplident = 'i' AND EXISTS (SELECT FROM pg_index o WHERE o.indrelid = c.oid \
               AND o.indisreplident AND o.indisvalid) THEN i.indisreplident ELSE i.indisprimary END"
        )
    );
    let demanded = format!(
        "(SELECT coalesce(json_object_agg(name, columns), '{{}}') FROM (\
           SELECT {NAME} AS name, json_object_agg(quote_ident(a.attname), EXISTS (SELECT FROM pg_index i \
               WHERE i.indrelid = c.oid AND (i.indisprimary OR i.indisreplident) \
                 AND a.attnum = ANY (i.indkey))) AS columns \
           FROM {tables} JOIN pg_attribute a ON a.attrelid = c.oid JOIN pg_type y ON y.oid = a.atttypid \
           WHERE a.attnum > 0 AND NOT a.attisdropped AND a.attnotnull AND NOT a.atthasdef \
             AND a.attidentity = '' AND a.attgenerated = '' AND y.typdefaultbin IS NULL GROUP BY 1) d)"
    );
    [("found_by", found_by), ("demanded", demanded)]
}

/// What the database has.
fn there() -> [Field; 6] {
    let enums = format!(
        "(SELECT coalesce(json_object_agg(name, labels) FILTER (WHERE number <= {MOST_ENUMS}), '{{}}') \
         FROM (SELECT format('%I.%I', n.nspname, t.typname) AS name, \
             string_agg(quote_literal(e.enumlabel), ', ' ORDER BY e.enumsortorder) AS labels, \
             count(*) OVER () AS number \
           FROM pg_enum e JOIN pg_type t ON t.oid = e.enumtypid \
             JOIN pg_namespace n ON n.oid = t.typnamespace GROUP BY 1) e)"
    );
    let ancestors = format!(
        "(SELECT coalesce(json_object_agg(name, above), '{{}}') FROM (SELECT {NAME} AS name, \
             (SELECT json_agg(format('%I.%I', m.nspname, d.relname)) \
              FROM pg_partition_ancestors(c.oid) AS a(relid) JOIN pg_class d ON d.oid = a.relid \
                JOIN pg_namespace m ON m.oid = d.relnamespace WHERE d.oid <> c.oid) AS above \
           FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
           WHERE c.relispartition AND c.relkind IN ('r', 'p') AND {REPLICATES} \
           LIMIT {MOST_TABLES}) p WHERE above IS NOT NULL)"
    );
    let there = format!(
        "(SELECT CASE WHEN count(*) < {MOST_TABLES} THEN coalesce(json_agg(name), '[]') END FROM (\
           SELECT {NAME} AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
           WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND {REPLICATES} \
             AND n.nspname NOT IN ('pg_catalog', 'information_schema') LIMIT {MOST_TABLES}) h)"
    );
    let unlogged = format!(
        "(SELECT coalesce(json_agg({NAME}), '[]') FROM (SELECT * FROM pg_class WHERE relkind = 'r' \
           AND relpersistence = 'u' LIMIT {MOST_TABLES}) c \
           JOIN pg_namespace n ON n.oid = c.relnamespace WHERE {REPLICATES})"
    );
    let number = |view: &str| {
        format!(
            "(SELECT count(*) FROM (SELECT FROM {view} LIMIT {MOST_TABLES}) a) >= {MOST_TABLES}"
        )
    };
    let (published, followed) = (
        number("pg_publication_tables"),
        number("pg_subscription_rel"),
    );
    [
        ("enums", enums),
        ("ancestors", ancestors),
        ("parted", parted::expression(NAME, MOST_TABLES, REPLICATES)),
        ("there", there),
        ("unlogged", unlogged),
        ("cut_off", format!("({published} OR {followed})")),
    ]
}
