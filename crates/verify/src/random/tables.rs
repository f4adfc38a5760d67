//! Episodes with partitions, maintenance and DDL on tables.

use crate::random::Feature;
use crate::random::generator::Session;
use crate::random::indexes::{WIDE_COLUMNS, wide_rows};
use crate::random::setup::{PARTITION_SIZE, PARTITIONS};

/// Shared tables that are vacuumed.
const SHARED: &[&str] = &[
    "heap",
    "recycled",
    "toast",
    "wide",
    "locked",
    "part_1",
    "locked_child",
];

/// Inserts rows that are routed to partitions, and moves a row to another partition.
pub(crate) fn partition_rows(session: &mut Session) {
    let last = PARTITIONS * PARTITION_SIZE - 1;
    let id = session.between(0, last);
    session.sql(
        Feature::PartitionRows,
        format!(
            "INSERT INTO part SELECT i, i % 9, 'r' FROM generate_series({id}, {}, 3) i ON CONFLICT DO NOTHING",
            (id + session.between(1, 90)).min(last)
        ),
    );
    let (from, to) = (session.between(0, last), session.between(0, last));
    session.sql(
        Feature::PartitionMove,
        format!(
            "UPDATE part SET id = {to}, note = 'moved' WHERE id = (SELECT min(id) FROM part WHERE id >= {from}) \
             AND NOT EXISTS (SELECT FROM part WHERE id = {to})"
        ),
    );
    session.sql(
        Feature::PartitionRows,
        format!("INSERT INTO hashed VALUES ({from}, 1), ({to}, 2)"),
    );
    if session.chance(30) {
        session.sql(
            Feature::Delete,
            format!("DELETE FROM part WHERE id BETWEEN {from} AND {}", from + 60),
        );
    }
}

/// Attaches a partition of the session's own, and in some cases detaches, attaches again or
/// drops it.
pub(crate) fn partition_life(session: &mut Session) {
    let table = session.fresh("part");
    let first = 100_000 + session.number() * 100_000 + session.fresh_number() * 20;
    let last = first + 20;
    session.sql(
        Feature::CreateTable,
        format!("CREATE TABLE {table} (LIKE part INCLUDING ALL)"),
    );
    session.sql(
        Feature::InsertSelect,
        format!(
            "INSERT INTO {table} SELECT i, 0, 'own' FROM generate_series({first}, {}) i",
            last - 1
        ),
    );
    let attach =
        format!("ALTER TABLE part ATTACH PARTITION {table} FOR VALUES FROM ({first}) TO ({last})");
    session.sql(Feature::PartitionAttach, attach.clone());
    session.sql(
        Feature::PartitionRows,
        format!("UPDATE part SET k = k + 1 WHERE id >= {first} AND id < {last}"),
    );
    if session.chance(70) {
        if session.chance(50) {
            session.sql(
                Feature::PartitionDetach,
                format!("ALTER TABLE part DETACH PARTITION {table}"),
            );
        } else {
            session.sql(
                Feature::PartitionDetachConcurrently,
                format!("ALTER TABLE part DETACH PARTITION {table} CONCURRENTLY"),
            );
        }
        if session.chance(30) {
            session.sql(Feature::PartitionAttach, attach);
        }
    }
    if session.chance(70) {
        session.sql(Feature::PartitionDrop, format!("DROP TABLE {table}"));
    }
}

/// TRUNCATE, committed or rolled back.
pub(crate) fn truncate(session: &mut Session) {
    let table = session.one_of(&[
        "recycled",
        "locked_child",
        "booked",
        "hashed",
        "unlogged",
        "part_3",
    ]);
    if session.chance(50) {
        session.sql(Feature::Transaction, "BEGIN");
        if session.chance(50) {
            session.sql(Feature::Savepoint, "SAVEPOINT before_truncation");
        }
        session.sql(Feature::TruncateRolledBack, format!("TRUNCATE {table}"));
        session.sql(Feature::Transaction, "ROLLBACK");
    } else {
        session.begin();
        let restart = session.one_of(&["", " RESTART IDENTITY"]);
        session.sql(Feature::Truncate, format!("TRUNCATE {table}{restart}"));
        session.end();
    }
}

/// VACUUM of a shared table, in several forms.
pub(crate) fn vacuum(session: &mut Session) {
    let table = session.one_of(SHARED);
    match session.between(0, 5) {
        0 => session.sql(Feature::VacuumFull, format!("VACUUM FULL {table}")),
        1 | 2 => session.sql(
            Feature::VacuumFreeze,
            format!("VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) {table}"),
        ),
        3 => session.sql(
            Feature::Vacuum,
            format!("VACUUM (PARALLEL 2, ANALYZE) {table}"),
        ),
        _ => session.sql(Feature::Vacuum, format!("VACUUM {table}")),
    }
}

/// VACUUM FULL of catalogs whose file numbers are in a relation map. Some of them are shared by
/// all databases.
pub(crate) fn vacuum_catalog(session: &mut Session) {
    let catalog = session.one_of(&[
        "pg_class",
        "pg_attribute",
        "pg_type",
        "pg_authid",
        "pg_shdepend",
    ]);
    session.sql(
        Feature::VacuumCatalog,
        format!("VACUUM FULL pg_catalog.{catalog}"),
    );
}

/// Deletes the rows at the end of a table, so that vacuum truncates it.
pub(crate) fn vacuum_truncates(session: &mut Session) {
    let table = session.fresh("cut");
    let rows = session.between(2000, 8000);
    session.sql(
        Feature::CreateTable,
        format!("CREATE TABLE {table} AS SELECT i, repeat('t', 60) AS pad FROM generate_series(1, {rows}) i"),
    );
    session.sql(
        Feature::Delete,
        format!("DELETE FROM {table} WHERE i > {}", session.between(1, rows)),
    );
    session.sql(
        Feature::VacuumTruncates,
        format!("VACUUM (TRUNCATE on) {table}"),
    );
    if session.chance(60) {
        session.sql(
            Feature::InsertSelect,
            format!("INSERT INTO {table} SELECT i, 'again' FROM generate_series(1, 3000) i"),
        );
    }
    if session.chance(50) {
        session.sql(Feature::DropTable, format!("DROP TABLE {table}"));
    }
}

pub(crate) fn cluster(session: &mut Session) {
    let what = session.one_of(&[
        "heap USING heap_pkey",
        "heap USING heap_k",
        "recycled USING recycled_id",
        "toast USING toast_pkey",
    ]);
    session.sql(Feature::Cluster, format!("CLUSTER {what}"));
}

/// Creates and fills a table of the session's own, and drops it in some cases.
pub(crate) fn private_life(session: &mut Session) {
    let table = session.fresh("own");
    let salt = session.between(1, 999);
    let block = session.chance(50);
    if block {
        session.begin();
    }
    session.sql(
        Feature::CreateTable,
        format!("CREATE TABLE {table} ({WIDE_COLUMNS}, PRIMARY KEY (id))"),
    );
    session.sql(
        Feature::InsertSelect,
        format!(
            "INSERT INTO {table} {}",
            wide_rows(1, session.between(10, 400), salt)
        ),
    );
    session.sql(
        Feature::Update,
        format!("UPDATE {table} SET grp = grp + 1 WHERE id % 2 = 0"),
    );
    if block {
        session.end();
    }
    if session.chance(60) {
        session.sql(Feature::DropTable, format!("DROP TABLE {table}"));
    }
}

/// Creates a table in a transaction that is rolled back: its files never become visible.
pub(crate) fn create_rolled_back(session: &mut Session) {
    let table = session.fresh("never");
    session.sql(Feature::Transaction, "BEGIN");
    session.sql(
        Feature::CreateRolledBack,
        format!("CREATE TABLE {table} AS SELECT * FROM heap WHERE id < 100"),
    );
    session.sql(
        Feature::CreateRolledBack,
        format!("CREATE INDEX ON {table} (k)"),
    );
    session.sql(Feature::Transaction, "ROLLBACK");
}

/// ALTER TABLE that changes only the table's definition.
pub(crate) fn alter(session: &mut Session) {
    let column = session.fresh("col");
    session.sql(
        Feature::AlterTable,
        format!(
            "ALTER TABLE altered ADD COLUMN {column} int DEFAULT {}",
            session.between(0, 99)
        ),
    );
    session.sql(
        Feature::Update,
        format!(
            "UPDATE altered SET {column} = v WHERE id % 5 = {}",
            session.between(0, 4)
        ),
    );
    if session.chance(80) {
        session.sql(
            Feature::AlterTable,
            format!("ALTER TABLE altered DROP COLUMN {column}"),
        );
    }
    if session.chance(20) {
        session.sql(
            Feature::AlterTable,
            format!(
                "ALTER TABLE heap SET (fillfactor = {})",
                session.between(30, 100)
            ),
        );
    }
}

/// ALTER TABLE that rewrites the table.
pub(crate) fn rewrite(session: &mut Session) {
    match session.between(0, 2) {
        0 => {
            let kind = session.one_of(&["bigint", "int", "numeric"]);
            session.sql(
                Feature::Rewrite,
                format!("ALTER TABLE altered ALTER v TYPE {kind} USING v::{kind}"),
            );
        }
        1 => {
            let column = session.fresh("vol");
            session.sql(
                Feature::Rewrite,
                format!(
                    "ALTER TABLE altered ADD COLUMN {column} timestamptz DEFAULT clock_timestamp()"
                ),
            );
            session.sql(
                Feature::AlterTable,
                format!("ALTER TABLE altered DROP COLUMN {column}"),
            );
        }
        _ => {
            session.begin();
            session.sql(
                Feature::Rewrite,
                "ALTER TABLE recycled ALTER id TYPE bigint, ALTER v TYPE bigint",
            );
            session.sql(
                Feature::Rewrite,
                "ALTER TABLE recycled ALTER id TYPE int, ALTER v TYPE int",
            );
            session.end();
        }
    }
}

/// Refreshes the shared materialized view, and creates and drops another.
pub(crate) fn materialized_view(session: &mut Session) {
    session.sql(
        Feature::MaterializedView,
        "REFRESH MATERIALIZED VIEW summary",
    );
    session.sql(
        Feature::RefreshConcurrently,
        "REFRESH MATERIALIZED VIEW CONCURRENTLY summary",
    );
    if session.chance(40) {
        let view = session.fresh("view");
        session.sql(
            Feature::MaterializedView,
            format!("CREATE MATERIALIZED VIEW {view} AS SELECT id, lower(tag) AS tag FROM wide"),
        );
        session.sql(
            Feature::MaterializedView,
            format!("DROP MATERIALIZED VIEW {view}"),
        );
    }
}

/// Unlogged tables, of which a standby has only the init fork, and their change to logged
/// tables and back.
pub(crate) fn unlogged(session: &mut Session) {
    session.sql(
        Feature::Unlogged,
        format!(
            "INSERT INTO unlogged (v) SELECT 'u' || i FROM generate_series(1, {}) i",
            session.between(1, 300)
        ),
    );
    let table = session.fresh("unlogged");
    session.sql(
        Feature::Unlogged,
        format!("CREATE UNLOGGED TABLE {table} (id int PRIMARY KEY, v text)"),
    );
    session.sql(
        Feature::Unlogged,
        format!(
            "INSERT INTO {table} SELECT i, repeat('u', i % 500) FROM generate_series(1, 400) i"
        ),
    );
    session.sql(
        Feature::SetLogged,
        format!("ALTER TABLE {table} SET LOGGED"),
    );
    session.sql(
        Feature::Update,
        format!("UPDATE {table} SET v = 'logged' WHERE id % 3 = 0"),
    );
    if session.chance(40) {
        session.sql(
            Feature::SetLogged,
            format!("ALTER TABLE {table} SET UNLOGGED"),
        );
    }
    if session.chance(60) {
        session.sql(Feature::DropTable, format!("DROP TABLE {table}"));
    }
}

/// Temporary tables: a standby sees only their catalog rows.
pub(crate) fn temporary(session: &mut Session) {
    let table = session.fresh("temp");
    let ends = session.one_of(&["", " ON COMMIT DROP", " ON COMMIT DELETE ROWS"]);
    session.sql(Feature::Transaction, "BEGIN");
    session.sql(
        Feature::Temporary,
        format!("CREATE TEMPORARY TABLE {table} (id int PRIMARY KEY, v text){ends}"),
    );
    session.sql(
        Feature::Temporary,
        format!("INSERT INTO {table} SELECT i, repeat('t', i) FROM generate_series(1, 100) i"),
    );
    session.sql(Feature::Transaction, "COMMIT");
    session.sql(Feature::Temporary, format!("DROP TABLE IF EXISTS {table}"));
}
