//! Episodes with subtransactions, two-phase commit and row locks.

use crate::random::generator::{MOST_PREPARED, Session};
use crate::random::setup::{HEAP_ROWS, LOCKED_ROWS};
use crate::random::{Feature, PREFIX};

/// Subtransactions that a backend keeps in shared memory (PGPROC_MAX_CACHED_SUBXIDS). More
/// overflow that cache.
const CACHED_SUBTRANSACTIONS: u32 = 64;

/// Savepoints that are nested, released or rolled back to.
pub(crate) fn savepoints(session: &mut Session) {
    session.begin();
    for level in 0..session.between(1, 4) {
        session.sql(Feature::Savepoint, format!("SAVEPOINT p{level}"));
        let id = session.between(1, HEAP_ROWS);
        session.sql(
            Feature::Update,
            format!("UPDATE heap SET k = k + 1 WHERE id = {id}"),
        );
        match session.between(0, 2) {
            0 => session.sql(
                Feature::RollbackTo,
                format!("ROLLBACK TO SAVEPOINT p{level}"),
            ),
            1 => session.sql(Feature::Savepoint, format!("RELEASE SAVEPOINT p{level}")),
            _ => {}
        }
    }
    session.end();
}

/// A transaction with more than 64 subtransactions. The primary then logs their parent already
/// during the transaction, for standbys.
pub(crate) fn many_subtransactions(session: &mut Session) {
    let first = CACHED_SUBTRANSACTIONS + session.between(1, 40);
    let rolled_back = session.between(2, 9);
    session.begin();
    session.sql(
        Feature::ManySubtransactions,
        format!(
            "DO $$BEGIN FOR i IN 1..{first} LOOP BEGIN \
             INSERT INTO recycled VALUES (i, i % 37, 's'); \
             IF i % {rolled_back} = 0 THEN RAISE division_by_zero; END IF; \
             EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END$$"
        ),
    );
    session.sql(
        Feature::Prune,
        "SELECT count(*) FROM recycled WHERE pad = 's'",
    );
    session.end();
    session.sql(
        Feature::Delete,
        "DELETE FROM recycled WHERE pad = 's' AND id % 2 = 0",
    );
}

/// Prepares a transaction, and in half of the cases finishes the oldest prepared one at once.
/// Others are finished by later episodes.
pub(crate) fn two_phase(session: &mut Session) {
    if session.prepared.len() >= MOST_PREPARED {
        finish_prepared(session);
    }
    let name = format!(
        "{PREFIX}_xact_{}_{}",
        session.number(),
        session.fresh_number()
    );
    let chain = session.between(1, LOCKED_ROWS);
    let what = session.between(0, 4);
    session.begin();
    match what {
        0 => {
            let id = session.between(1, LOCKED_ROWS);
            session.sql(
                Feature::MultiXact,
                format!("SELECT v FROM locked WHERE id = {id} FOR KEY SHARE"),
            );
        }
        1 => session.sql(
            Feature::MultiXact,
            format!("UPDATE locked SET v = v + 1 WHERE id = {chain}"),
        ),
        2 => {
            let table = session.fresh("prepared");
            session.sql(
                Feature::CreateTable,
                format!("CREATE TABLE {table} AS SELECT i FROM generate_series(1, 50) i"),
            );
        }
        3 => {
            session.sql(Feature::Savepoint, "SAVEPOINT inner_part");
            let id = session.between(1, HEAP_ROWS);
            session.sql(Feature::Delete, format!("DELETE FROM heap WHERE id = {id}"));
        }
        _ => {
            let id = session.between(1, HEAP_ROWS);
            session.sql(
                Feature::HotChain,
                format!("UPDATE heap SET v = v + 1 WHERE id = {id}"),
            );
        }
    }
    session.sql(
        Feature::Insert,
        "INSERT INTO recycled VALUES (1, 1, 'two-phase')",
    );
    session.sql(Feature::Prepare, format!("PREPARE TRANSACTION '{name}'"));
    session.prepared.push(name);
    if what == 1 {
        // Locks the row, whose new version is not committed yet.
        session.sql(
            Feature::MultiXact,
            format!("SELECT v FROM locked WHERE id = {chain} FOR KEY SHARE"),
        );
    }
    if session.chance(50) {
        finish_prepared(session);
    }
}

/// Commits or rolls back the oldest prepared transaction of the session.
pub(crate) fn finish_prepared(session: &mut Session) {
    if session.prepared.is_empty() {
        return;
    }
    let name = session.prepared.remove(0);
    let (feature, verb) = if session.chance(60) {
        (Feature::CommitPrepared, "COMMIT")
    } else {
        (Feature::RollbackPrepared, "ROLLBACK")
    };
    session.sql(feature, format!("{verb} PREPARED '{name}'"));
}

/// Rows locked by several transactions. A lock by a transaction and a change by its own
/// subtransaction always make a multixact; sessions that lock the same rows make others.
pub(crate) fn multixact(session: &mut Session) {
    let id = session.between(1, LOCKED_ROWS);
    let strength = session.one_of(&["FOR KEY SHARE", "FOR KEY SHARE", "FOR SHARE"]);
    session.begin();
    session.sql(
        Feature::MultiXact,
        format!("SELECT v FROM locked WHERE id = {id} {strength}"),
    );
    if session.chance(60) {
        session.sql(Feature::Transaction, "SELECT pg_sleep(0.005)");
    }
    if session.chance(70) {
        session.sql(Feature::Savepoint, "SAVEPOINT changing");
        session.sql(
            Feature::MultiXact,
            format!("UPDATE locked SET v = v + 1 WHERE id = {id}"),
        );
        if session.chance(30) {
            session.sql(Feature::RollbackTo, "ROLLBACK TO SAVEPOINT changing");
        }
    }
    if session.chance(30) {
        let other = session.between(1, LOCKED_ROWS);
        session.sql(
            Feature::MultiXact,
            format!("SELECT v FROM locked WHERE id = {other} FOR NO KEY UPDATE"),
        );
    }
    session.end();
}

/// Inserts rows with foreign keys, whose checks lock the referenced rows.
pub(crate) fn foreign_key(session: &mut Session) {
    session.begin();
    for _ in 0..session.between(1, 3) {
        let parent = session.between(1, LOCKED_ROWS);
        session.sql(
            Feature::ForeignKey,
            format!("INSERT INTO locked_child (parent) VALUES ({parent})"),
        );
    }
    session.end();
    if session.chance(20) {
        let parent = session.between(1, LOCKED_ROWS);
        session.begin();
        session.sql(
            Feature::ForeignKey,
            format!("DELETE FROM locked WHERE id = {parent}"),
        );
        session.sql(
            Feature::Insert,
            format!("INSERT INTO locked VALUES ({parent}, 0) ON CONFLICT DO NOTHING"),
        );
        session.end();
    }
}
