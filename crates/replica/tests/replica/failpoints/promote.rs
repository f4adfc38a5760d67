//! A promotion that dies at each failpoint, and ends the same.

use lockstep_lab::assert_has;
use lockstep_replica::state::failpoint::{
    PROMOTE_BEGUN, PROMOTE_CLEANED, PROMOTE_FENCED, PROMOTE_HELD, PROMOTE_SEQUENCES,
};
use lockstep_spool::failpoint::Failpoint;

use super::Scene;
use super::process::{Death, Does};
use crate::apply_lab::until;
use crate::{on, values};

/// Failpoints in the order in which a promotion comes there.
pub const ORDER: [Failpoint; 5] = [
    PROMOTE_HELD,
    PROMOTE_BEGUN,
    PROMOTE_FENCED,
    PROMOTE_SEQUENCES,
    PROMOTE_CLEANED,
];

#[test]
fn a_promotion_goes_on_from_every_failpoint() {
    let scene = Scene::bare();
    on(&scene.source, "CREATE SEQUENCE s");
    let scene = Scene::of(scene);
    let follower = scene.start(Does::Follow, 1, None);
    until("that it applies", || scene.is_applied_to());
    scene.write("");
    on(&scene.source, "SELECT setval('s', 70)");

    let dies = |at| {
        let mut process = scene.start(Does::Promote, 1, Some(Death::at(at, 0)));
        process.dies_at(at, || {});
    };
    dies(PROMOTE_HELD);
    // Nobody waits for the hold any more: changes flow.
    scene.write("");
    scene.assert_applied();
    let written = scene.next() - 1;

    // What is committed from here on is not promised; the process that applies sees the end, and none begins.
    let rows = [written.to_string()];
    let log = "SELECT count(*) FROM log";
    for at in [PROMOTE_BEGUN, PROMOTE_FENCED, PROMOTE_SEQUENCES] {
        dies(at);
        if at == PROMOTE_BEGUN {
            let holders = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
            until("that the process ends", || {
                values(&scene.target, holders) == ["0"]
            });
        }
        on(&scene.source, "INSERT INTO log VALUES (-1, 'later')");
        assert_eq!(values(&scene.target, log), rows, "{}", scene.said());
    }
    assert_has!(scene.said(), "is being promoted");
    // The slot has what came later, so it stays until that is read.
    let ended = scene.start(Does::Promote, 1, None).succeeds();
    assert!(ended, "{}", scene.said());
    // The target is open: what its users take of a sequence is not taken back.
    let taken = "SELECT nextval('s') FROM generate_series(1, 9) n ORDER BY 1 DESC LIMIT 1";
    assert_eq!(values(&scene.target, taken), ["79"]);
    let kept = "SELECT phase || ' ' || promote_left FROM lockstep.replica";
    assert_eq!(values(&scene.target, kept), ["promoted true"]);
    let read = "SELECT pg_replication_slot_advance(slot_name, pg_current_wal_flush_lsn()) IS NULL \
        FROM pg_replication_slots";
    assert_eq!(values(&scene.source, read), ["f"]);
    on(
        &scene.source,
        "CREATE TABLE unpublished (id int); INSERT INTO unpublished VALUES (1)",
    );
    dies(PROMOTE_CLEANED);
    assert!(
        scene.start(Does::Promote, 1, None).succeeds(),
        "{}",
        scene.said()
    );
    drop(follower);

    assert_eq!(values(&scene.target, "SELECT nextval('s')"), ["80"]);
    assert_eq!(values(&scene.target, log), rows);
    let state = "SELECT phase || ' ' || (promoted_lsn >= promote_lsn) || ' ' || promote_loses || ' ' \
        || promote_left || ' ' || (applied_commit < promoted_at) FROM lockstep.replica";
    assert_eq!(
        values(&scene.target, state),
        ["promoted true false false true"]
    );
    for (server, what) in [
        (&scene.source, "pg_replication_slots"),
        (&scene.source, "pg_publication"),
        (&scene.target, "pg_replication_origin"),
    ] {
        let count = format!("SELECT count(*) FROM {what}");
        assert_eq!(values(server, &count), ["0"], "{what}");
    }
    assert!(
        scene.start(Does::Drop, 1, None).succeeds(),
        "{}",
        scene.said()
    );
}
