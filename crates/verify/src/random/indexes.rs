//! Index types: the columns of each, and episodes that fill, empty and rebuild them.

use crate::random::Feature;
use crate::random::generator::Session;

/// An index on `wide` or a table with the same columns.
pub(crate) struct IndexKind {
    pub(crate) feature: Feature,
    /// The part of CREATE INDEX after the table's name.
    pub(crate) definition: &'static str,
    pub(crate) unique: bool,
}

const fn kind(feature: Feature, definition: &'static str) -> IndexKind {
    IndexKind {
        feature,
        definition,
        unique: false,
    }
}

/// Every kind of index that a workload builds.
pub(crate) const KINDS: &[IndexKind] = &[
    IndexKind {
        feature: Feature::BtreeUnique,
        definition: "(id)",
        unique: true,
    },
    kind(Feature::BtreeDuplicates, "(grp)"),
    kind(Feature::BtreeMulticolumn, "(grp, at DESC)"),
    kind(Feature::BtreeExpression, "(lower(tag))"),
    kind(Feature::BtreePartial, "(num) WHERE grp < 3"),
    kind(Feature::BtreeInclude, "(id) INCLUDE (num)"),
    kind(Feature::Hash, "USING hash (tag)"),
    kind(Feature::Hash, "USING hash (grp)"),
    kind(
        Feature::GinFastUpdate,
        "USING gin (arr) WITH (fastupdate = on, gin_pending_list_limit = 64)",
    ),
    kind(
        Feature::GinDirect,
        "USING gin (body) WITH (fastupdate = off)",
    ),
    kind(
        Feature::GinDirect,
        "USING gin (arr) WITH (fastupdate = off)",
    ),
    kind(Feature::GistRange, "USING gist (span)"),
    kind(Feature::GistPoint, "USING gist (spot)"),
    kind(Feature::SpgistText, "USING spgist (tag)"),
    kind(Feature::SpgistPoint, "USING spgist (spot)"),
    kind(Feature::SpgistPoint, "USING spgist (spot kd_point_ops)"),
    kind(
        Feature::Brin,
        "USING brin (at) WITH (pages_per_range = 2, autosummarize = on)",
    ),
    kind(
        Feature::Brin,
        "USING brin (num numeric_bloom_ops, id int4_minmax_multi_ops) WITH (pages_per_range = 1)",
    ),
    kind(
        Feature::Brin,
        "USING brin (span) WITH (pages_per_range = 4)",
    ),
];

/// Columns of `wide`, and of the tables that sessions create with the same columns.
pub(crate) const WIDE_COLUMNS: &str = "id int NOT NULL, grp int NOT NULL, tag text, body tsvector, \
     arr int[], span int4range, spot point, at timestamptz, num numeric, pad text";

/// A SELECT of rows with these columns and with ids from `first` to `last`.
pub(crate) fn wide_rows(first: u32, last: u32, salt: u32) -> String {
    format!(
        "SELECT i, i % 5, \
         chr(97 + i % 7) || repeat(chr(97 + i % 3), i % 40) || md5((i::bigint * {salt})::text), \
         to_tsvector('simple', 'w' || i % 50 || ' v' || i % 7 || ' x' || i), \
         ARRAY[1, i % 10, i], int4range(i, i + i % 100), \
         point(i::bigint * {salt} % 1009, i::bigint * 7919 % 997), \
         timestamptz '2020-01-01Z' + i * interval '1 minute', \
         (i::bigint * {salt} % 1000)::numeric / 7, repeat('p', i % 90) \
         FROM generate_series({first}, {last}) i"
    )
}

/// A table of the session's own with one kind of index. Rows are inserted, deleted, vacuumed
/// away and inserted again, so that pages are split, emptied, removed and used again.
pub(crate) fn churn(session: &mut Session) {
    let Some(kind) = session.choose(KINDS) else {
        return;
    };
    let table = session.fresh("churn");
    let salt = session.between(1, 999);
    let rows = session.between(200, 3000);
    session.sql(
        Feature::CreateTable,
        format!("CREATE TABLE {table} ({WIDE_COLUMNS}) WITH (autovacuum_enabled = off)"),
    );
    let before = session.chance(25);
    if before {
        session.sql(
            Feature::InsertSelect,
            format!("INSERT INTO {table} {}", wide_rows(1, rows / 2, salt)),
        );
    }
    let unique = if kind.unique { "UNIQUE " } else { "" };
    session.sql(
        kind.feature,
        format!(
            "CREATE {unique}INDEX {table}_i ON {table} {}",
            kind.definition
        ),
    );
    let first = if before { rows / 2 + 1 } else { 1 };
    session.sql(
        Feature::IndexChurn,
        format!("INSERT INTO {table} {}", wide_rows(first, rows, salt)),
    );
    for round in 0..session.between(1, 2) {
        empty_and_refill(session, &table, rows, salt, round);
    }
    if session.chance(70) {
        session.sql(Feature::DropTable, format!("DROP TABLE {table}"));
    }
}

fn empty_and_refill(session: &mut Session, table: &str, rows: u32, salt: u32, round: u32) {
    let condition = match session.between(0, 3) {
        0 => format!("id BETWEEN {} AND {}", rows / 10, rows * 9 / 10),
        1 => "id % 3 <> 0".to_owned(),
        2 => format!("grp = {}", session.between(0, 4)),
        _ => "true".to_owned(),
    };
    session.sql(
        Feature::IndexChurn,
        format!("DELETE FROM {table} WHERE {condition}"),
    );
    // Reads mark index entries dead, and later insertions remove marked entries.
    session.sql(
        Feature::Prune,
        format!("SELECT count(*) FROM {table} WHERE grp = 1 AND id > 0"),
    );
    if session.chance(80) {
        session.sql(
            Feature::IndexChurn,
            format!("VACUUM (INDEX_CLEANUP on, TRUNCATE off) {table}"),
        );
    }
    let first = rows * (round + 1) + 1;
    session.sql(
        Feature::IndexChurn,
        format!(
            "INSERT INTO {table} {}",
            wide_rows(first, first + rows / 2, salt)
        ),
    );
    session.sql(
        Feature::IndexChurn,
        format!(
            "UPDATE {table} SET tag = tag || 'u', span = int4range(id, id + 7), \
             spot = point(id % 31, 5), arr = arr || 2, num = num + 1, grp = grp + 1, \
             at = at + interval '1 day' WHERE id % 7 = {}",
            session.between(0, 6)
        ),
    );
    // Deleted index pages can be used again only after a later vacuum.
    if session.chance(50) {
        session.sql(
            Feature::IndexChurn,
            format!("VACUUM (INDEX_CLEANUP on) {table}"),
        );
    }
}

/// Inserts texts with a long common prefix, then some that differ early in it, which splits an
/// inner tuple of the radix tree.
pub(crate) fn prefixes(session: &mut Session) {
    let table = session.fresh("prefix");
    let prefix = session.word(12);
    let kept = session.between(1, 11) as usize;
    let rows = session.between(300, 1500);
    session.sql(
        Feature::CreateTable,
        format!("CREATE TABLE {table} (tag text)"),
    );
    session.sql(
        Feature::SpgistText,
        format!("CREATE INDEX {table}_i ON {table} USING spgist (tag)"),
    );
    session.sql(
        Feature::SpgistText,
        format!(
            "INSERT INTO {table} SELECT '{prefix}' || md5(i::text) FROM generate_series(1, {rows}) i"
        ),
    );
    let early = prefix.get(..kept).unwrap_or_default();
    session.sql(
        Feature::SpgistText,
        format!("INSERT INTO {table} SELECT '{early}' || i FROM generate_series(1, 20) i"),
    );
    if session.chance(60) {
        session.sql(Feature::DropTable, format!("DROP TABLE {table}"));
    }
}

pub(crate) fn concurrently(session: &mut Session) {
    let Some(kind) = session.choose(KINDS) else {
        return;
    };
    let index = session.fresh("ci");
    // Never UNIQUE: other sessions change `wide` meanwhile and may insert equal keys.
    session.sql(
        Feature::CreateIndexConcurrently,
        format!(
            "CREATE INDEX CONCURRENTLY {index} ON wide {}",
            kind.definition
        ),
    );
    if session.chance(30) {
        session.sql(
            Feature::ReindexConcurrently,
            format!("REINDEX INDEX CONCURRENTLY {index}"),
        );
    }
    // IF EXISTS, since the creation may have failed. This also drops an invalid index.
    session.sql(
        Feature::DropIndexConcurrently,
        format!("DROP INDEX CONCURRENTLY IF EXISTS {index}"),
    );
}

/// REINDEX of a shared table.
pub(crate) fn reindex(session: &mut Session) {
    let table = session.one_of(&["heap", "recycled", "toast", "locked", "wide", "part"]);
    if session.chance(50) {
        session.sql(Feature::Reindex, format!("REINDEX TABLE {table}"));
    } else {
        session.sql(
            Feature::ReindexConcurrently,
            format!("REINDEX TABLE CONCURRENTLY {table}"),
        );
    }
}

/// Empties the pending list of a GIN index of `wide`.
pub(crate) fn clean_pending(session: &mut Session) {
    session.sql(
        Feature::GinClean,
        "SELECT gin_clean_pending_list(indexrelid) FROM pg_index i JOIN pg_class c ON c.oid = indexrelid \
         JOIN pg_am a ON a.oid = relam WHERE amname = 'gin' AND indrelid = 'wide'::regclass AND indisvalid",
    );
}

/// Summarizes BRIN ranges of `wide`, or removes a summary.
pub(crate) fn summarize(session: &mut Session) {
    let call = session.one_of(&[
        "brin_summarize_new_values(indexrelid)",
        "brin_desummarize_range(indexrelid, 0)",
        "brin_summarize_range(indexrelid, 0)",
    ]);
    session.sql(
        Feature::BrinSummarize,
        format!(
            "SELECT {call} FROM pg_index i JOIN pg_class c ON c.oid = indexrelid \
             JOIN pg_am a ON a.oid = relam WHERE amname = 'brin' AND indrelid = 'wide'::regclass AND indisvalid"
        ),
    );
}
