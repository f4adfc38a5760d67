//! Episodes of DML.

use crate::random::Feature;
use crate::random::generator::Session;
use crate::random::indexes::wide_rows;
use crate::random::script::Action;
use crate::random::setup::{HEAP_ROWS, RECYCLED_ROWS, TOAST_ROWS, WIDE_ROWS};

/// Ids of rows that sessions insert on their own start here. Each session has a range.
const OWN_IDS: u32 = 1_000_000;

/// Length of a session's range of ids.
const OWN_STRETCH: u32 = 1_000_000;

/// The first of `count` ids from the session's own range that are most likely unused.
fn own_ids(session: &mut Session, count: u32) -> u32 {
    // An episode needs far fewer ids than a step of 1000.
    let step = session.fresh_number() % (OWN_STRETCH / 1000);
    OWN_IDS
        + session.number() * OWN_STRETCH
        + step * 1000
        + session.between(0, 999 - count.min(900))
}

/// Inserts some rows into `heap`, in a transaction or without.
pub(crate) fn insert(session: &mut Session) {
    let block = session.chance(40);
    if block {
        session.begin();
    }
    for _ in 0..session.between(1, 4) {
        let id = own_ids(session, 1);
        let (k, length) = (session.between(0, 60), session.between(0, 400));
        session.sql(
            Feature::Insert,
            format!("INSERT INTO heap VALUES ({id}, {k}, 0, repeat('i', {length}))"),
        );
    }
    if block {
        session.end();
    }
}

/// Updates an indexed column.
pub(crate) fn update(session: &mut Session) {
    let first = session.between(1, HEAP_ROWS);
    let last = first + session.between(0, 20);
    let k = session.between(0, 60);
    session.sql(
        Feature::Update,
        format!("UPDATE heap SET k = {k}, v = v + 1 WHERE id BETWEEN {first} AND {last}"),
    );
}

/// Deletes rows, and in most cases inserts them again.
pub(crate) fn delete(session: &mut Session) {
    let first = session.between(1, HEAP_ROWS);
    let last = first + session.between(0, 15);
    session.begin();
    session.sql(
        Feature::Delete,
        format!("DELETE FROM heap WHERE id BETWEEN {first} AND {last}"),
    );
    if session.chance(80) {
        session.sql(
            Feature::InsertSelect,
            format!(
                "INSERT INTO heap SELECT i, i % 50, 0, repeat('d', i % 100) \
                 FROM generate_series({first}, {last}) i ON CONFLICT DO NOTHING"
            ),
        );
    }
    session.end();
}

/// INSERT ... ON CONFLICT, which inserts speculatively.
pub(crate) fn upsert(session: &mut Session) {
    let first = session.between(1, HEAP_ROWS);
    let action = session.one_of(&[
        "DO NOTHING",
        "(id) DO UPDATE SET v = heap.v + 1, k = excluded.k",
    ]);
    session.sql(
        Feature::Upsert,
        format!(
            "INSERT INTO heap SELECT i, i % 50, 0, NULL FROM generate_series({first}, {}) i ON CONFLICT {action}",
            first + session.between(0, 30)
        ),
    );
}

/// Several HOT updates of one row.
pub(crate) fn hot_chain(session: &mut Session) {
    let id = session.between(1, HEAP_ROWS);
    for _ in 0..session.between(3, 8) {
        session.sql(
            Feature::HotChain,
            format!("UPDATE heap SET v = v + 1 WHERE id = {id}"),
        );
    }
}

/// Updates that fill pages so that they must be pruned, and reads that prune.
pub(crate) fn prune(session: &mut Session) {
    let k = session.between(0, 60);
    session.sql(
        Feature::Prune,
        format!("UPDATE recycled SET pad = pad || 'p' WHERE v = {}", k % 37),
    );
    session.sql(Feature::Prune, "SELECT count(*), sum(v) FROM heap");
    session.sql(
        Feature::Prune,
        format!("SELECT count(*) FROM recycled WHERE id > {k}"),
    );
}

/// Line pointers that vacuum has freed are used again by rows with other keys.
pub(crate) fn recycle(session: &mut Session) {
    for _ in 0..session.between(1, 3) {
        let first = session.between(1, RECYCLED_ROWS);
        let last = first + session.between(5, 60);
        session.sql(
            Feature::Delete,
            format!("DELETE FROM recycled WHERE id BETWEEN {first} AND {last}"),
        );
        session.sql(
            Feature::Vacuum,
            "VACUUM (INDEX_CLEANUP on, TRUNCATE off) recycled",
        );
        let shift = session.between(0, 36);
        session.sql(
            Feature::RecycledPointers,
            format!(
                "INSERT INTO recycled SELECT i, (i + {shift}) % 37, repeat('n', i % 60) \
                 FROM generate_series({first}, {last}) i"
            ),
        );
    }
}

/// Inserts many rows, and in most cases deletes most of them again.
pub(crate) fn insert_select(session: &mut Session) {
    let first = own_ids(session, 500);
    let last = first + session.between(50, 500);
    session.sql(
        Feature::InsertSelect,
        format!(
            "INSERT INTO heap SELECT i, i % 50, 1, repeat('b', i % 300) FROM generate_series({first}, {last}) i \
             ON CONFLICT DO NOTHING"
        ),
    );
    if session.chance(70) {
        session.sql(
            Feature::Delete,
            format!("DELETE FROM heap WHERE id BETWEEN {first} AND {last} AND id % 10 <> 0"),
        );
    }
}

/// COPY, which inserts many rows with one WAL record.
pub(crate) fn copy(session: &mut Session) {
    let first = own_ids(session, 300);
    let mut data = String::new();
    for id in first..=first + session.between(20, 300) {
        data.push_str(&format!("{id}\t{}\t2\t{}\n", id % 50, session.word(12)));
    }
    session.act(
        Feature::Copy,
        Action::Copy {
            sql: "COPY heap FROM STDIN".to_owned(),
            data,
        },
    );
}

fn large_value(session: &mut Session, compressible: bool) -> String {
    let salt = session.word(5);
    if compressible {
        format!("repeat('{salt} ', {})", session.between(500, 30_000))
    } else {
        format!(
            "(SELECT string_agg(md5(i || '{salt}'), '') FROM generate_series(1, {}) i)",
            session.between(70, 1200)
        )
    }
}

/// Inserts a large value, compressible or not.
pub(crate) fn toast(session: &mut Session) {
    let compressible = session.chance(50);
    let id = own_ids(session, 1);
    let value = large_value(session, compressible);
    let (column, feature) = if compressible {
        ("packed", Feature::ToastCompressible)
    } else {
        ("plain", Feature::ToastIncompressible)
    };
    session.sql(
        feature,
        format!("INSERT INTO toast (id, {column}, n) VALUES ({id}, {value}, 0)"),
    );
}

/// Updates a row with large values without changing those.
pub(crate) fn toast_unchanged(session: &mut Session) {
    let id = session.between(1, TOAST_ROWS);
    for _ in 0..session.between(1, 3) {
        session.sql(
            Feature::ToastUnchanged,
            format!("UPDATE toast SET n = n + 1 WHERE id = {id}"),
        );
    }
}

/// Replaces or deletes large values.
pub(crate) fn toast_replaced(session: &mut Session) {
    let id = session.between(1, TOAST_ROWS);
    let compressible = session.chance(50);
    let value = large_value(session, compressible);
    let column = session.one_of(&["packed", "plain"]);
    session.sql(
        Feature::ToastReplaced,
        format!("UPDATE toast SET {column} = {value} WHERE id = {id}"),
    );
    if session.chance(30) {
        session.sql(
            Feature::ToastReplaced,
            format!(
                "DELETE FROM toast WHERE id > {TOAST_ROWS} AND id % 3 = {}",
                id % 3
            ),
        );
    }
}

/// Changes of `wide`, which has an index of every kind.
pub(crate) fn wide(session: &mut Session) {
    let first = session.between(1, WIDE_ROWS);
    let salt = session.between(1, 999);
    match session.between(0, 3) {
        0 => {
            let own = own_ids(session, 60);
            let count = session.between(1, 60);
            session.sql(
                Feature::InsertSelect,
                format!(
                    "INSERT INTO wide {} ON CONFLICT DO NOTHING",
                    wide_rows(own, own + count, salt)
                ),
            );
        }
        1 => session.sql(
            Feature::Update,
            format!(
                "UPDATE wide SET tag = 'u{salt}' || tag, grp = grp + 1, num = num + 1, \
                 span = int4range({first}, {first} + grp), spot = point({salt}, id % 100), \
                 arr = ARRAY[grp, {salt}], body = to_tsvector('simple', 'u{salt} v' || grp) \
                 WHERE id BETWEEN {first} AND {}",
                first + session.between(0, 20)
            ),
        ),
        2 => session.sql(
            Feature::HotChain,
            format!("UPDATE wide SET pad = pad || 'h' WHERE id = {first}"),
        ),
        _ => session.sql(
            Feature::Delete,
            format!(
                "DELETE FROM wide WHERE id BETWEEN {first} AND {} AND id % 4 = 0",
                first + 40
            ),
        ),
    }
}

/// Inserts rows that an exclusion constraint accepts or refuses.
pub(crate) fn exclusion(session: &mut Session) {
    let first = session.between(0, 5000);
    session.sql(
        Feature::Exclusion,
        format!(
            "INSERT INTO booked SELECT 1, int4range({first}, {}) ON CONFLICT DO NOTHING",
            first + session.between(1, 40)
        ),
    );
    if session.chance(40) {
        session.sql(
            Feature::Delete,
            format!(
                "DELETE FROM booked WHERE during && int4range({first}, {})",
                first + 200
            ),
        );
    }
}
