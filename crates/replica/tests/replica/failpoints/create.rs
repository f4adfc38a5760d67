//! A creation that dies at each failpoint, one after the other, and then ends.

use lockstep_client::Connection;
use lockstep_replica::state::failpoint::{
    COPY_ENDED, COPY_RANGE, COPY_TABLE, CREATE_BEGUN, CREATE_FINISHED, CREATE_INDEXED,
    CREATE_INDEXING, CREATE_LISTED, CREATE_PUBLISHED, CREATE_RESTORED, CREATE_RESTORING,
    CREATE_SEQUENCES, CREATE_SLOT_MADE, CREATE_START_KEPT,
};
use lockstep_spool::failpoint::Failpoint;

use super::Scene;
use super::process::{Death, Does};
use crate::apply_lab::until;
use crate::{on, sql, values};

/// Failpoints in the order in which a creation comes there, and how often it goes on there before.
pub const ORDER: [(Failpoint, u32); 14] = [
    (CREATE_BEGUN, 0),
    (CREATE_PUBLISHED, 0),
    (CREATE_SLOT_MADE, 0),
    (CREATE_START_KEPT, 0),
    (CREATE_RESTORING, 0),
    (CREATE_RESTORED, 0),
    (CREATE_LISTED, 0),
    (COPY_RANGE, 1),
    (COPY_TABLE, 0),
    (COPY_ENDED, 0),
    (CREATE_INDEXING, 0),
    (CREATE_INDEXED, 0),
    (CREATE_SEQUENCES, 0),
    (CREATE_FINISHED, 0),
];

/// A table that is copied in ranges, and all sorts of indexes and constraints.
const MORE: &str = "
    CREATE TABLE wide (n int PRIMARY KEY, v text); ALTER TABLE wide ALTER v SET STORAGE PLAIN;
    INSERT INTO wide SELECT n, repeat(md5(n::text), 60) FROM generate_series(1, 10000) n;
    CREATE INDEX ON wide (left(v, 9)); ALTER TABLE k ADD FOREIGN KEY (c) REFERENCES wide;
    INSERT INTO wide VALUES (0); CREATE SEQUENCE s; SELECT setval('s', 7);
    CREATE MATERIALIZED VIEW m AS SELECT count(*) FROM wide; CREATE STATISTICS st ON id, v FROM k";

/// What keeps pg_restore waiting, on the target.
fn obstacle(at: Failpoint) -> Option<&'static str> {
    match at {
        CREATE_RESTORING => Some("BEGIN; LOCK TABLE pg_class IN SHARE MODE"),
        CREATE_INDEXING => Some("BEGIN; LOCK TABLE public.k IN ACCESS SHARE MODE"),
        _ => None,
    }
}

/// Backends that wait for the session's locks, or for each other.
fn waiting(session: &mut Connection) -> Vec<String> {
    let sql = "SELECT DISTINCT pid FROM pg_locks WHERE NOT granted";
    let rows = session.query(sql).unwrap();
    let pids = rows.into_iter().map(|row| row[0].clone().unwrap());
    pids.collect()
}

#[test]
fn a_creation_goes_on_from_every_failpoint() {
    let scene = Scene::bare();
    on(&scene.source, MORE);
    // What a creation that died has left waiting.
    let mut left: Option<Connection> = None;
    for (at, before) in ORDER {
        let began = std::time::Instant::now();
        let mut session = obstacle(at).map(|lock| {
            let mut session = sql(&scene.target);
            session.execute(lock).unwrap();
            session
        });
        let mut process = scene.start(Does::Create, 1, Some(Death::at(at, before)));
        if let Some(mut session) = left.take() {
            // Whether the new creation ends it, or waits for the same: then both go on.
            let before = waiting(&mut session);
            until("that the new creation comes there", || {
                let now = waiting(&mut session);
                now.len() > before.len() || !before.iter().all(|pid| now.contains(pid))
            });
        }
        process.dies_at(at, || {});
        if let Some(session) = &mut session {
            until("that pg_restore waits", || !waiting(session).is_empty());
        }
        left = session;
        // What is committed meanwhile is copied or applied.
        scene.write("");
        eprintln!("{}: {:?}", at.name(), began.elapsed());
    }
    let created = scene.start(Does::Create, 1, None).succeeds();
    assert!(created, "{}", scene.said());
    scene.goes_on(1);

    let [source, target] = [&scene.source, &scene.target];
    for same in [
        "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1",
        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint \
         WHERE connamespace = 'public'::regnamespace AND contype <> 'n' ORDER BY 1",
        "SELECT last_value FROM s",
        "SELECT stxname FROM pg_statistic_ext",
        "SELECT count(*) || ' ' || sum(hashtext(t::text)) FROM wide t",
        "SELECT count FROM m",
    ] {
        assert_eq!(values(source, same), values(target, same), "{same}");
    }
    for one in ["pg_replication_slots", "pg_publication"] {
        let count = format!("SELECT count(*) FROM {one}");
        assert_eq!(values(source, &count), ["1"], "{one}");
    }
}
