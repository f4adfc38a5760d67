//! What else dies at a failpoint: the process that follows while it is held or reconfigured, `verify`,
//! `drop`.

use lockstep_replica::state::failpoint::{
    DAEMON_RELOADED, DROP_ORIGINS, DROP_SLOT, DROP_SOURCE, HOLD_ANSWERED, VERIFY_HOLDS,
};
use lockstep_replica::verify::{self};
use lockstep_spool::failpoint::Failpoint;

use super::Scene;
use super::process::{Death, Does};
use crate::apply_lab::until;
use crate::subsets::compare;
use crate::{conninfo, to_verify, values};

pub const COVERED: [Failpoint; 6] = [
    DAEMON_RELOADED,
    HOLD_ANSWERED,
    VERIFY_HOLDS,
    DROP_SLOT,
    DROP_SOURCE,
    DROP_ORIGINS,
];

#[test]
fn the_rest_goes_on_from_every_failpoint() {
    let mut scene = Scene::new();
    scene.write("");

    // Another number of writers: the first session has ended, and the second has not begun.
    let death = Death::at(DAEMON_RELOADED, 1);
    let mut process = scene.start(Does::Reload, 1, Some(death));
    process.dies_at(DAEMON_RELOADED, || scene.write(""));
    scene.assert_prefix();
    scene.goes_on(2);

    a_held_process_dies(&mut scene);

    // Nobody waits for the hold any more: changes flow.
    let follower = scene.start(Does::Follow, 1, None);
    let death = Death::at(VERIFY_HOLDS, 0);
    let mut process = scene.start(Does::Verify, 1, Some(death));
    process.dies_at(VERIFY_HOLDS, || scene.write(""));
    scene.write("");
    scene.assert_applied();
    assert!(compare(&scene.target).is_equal());
    let holds = "SELECT count(*) FROM lockstep.hold";
    assert_eq!(values(&scene.target, holds), ["0"]);
    drop(follower);

    for at in [DROP_SLOT, DROP_SOURCE, DROP_ORIGINS] {
        let mut process = scene.start(Does::Drop, 1, Some(Death::at(at, 0)));
        process.dies_at(at, || {});
    }
    let rows = values(&scene.target, "SELECT count(*) FROM log");
    assert_ne!(rows, ["0"]);
    let dropped = scene.start(Does::Drop, 1, None).succeeds();
    assert!(dropped, "{}", scene.said());
    assert_eq!(values(&scene.target, "SELECT count(*) FROM log"), rows);
    for (server, what) in [
        (&scene.source, "pg_replication_slots"),
        (&scene.source, "pg_publication"),
        (&scene.target, "pg_replication_origin"),
        (&scene.target, "lockstep.replica"),
        (&scene.target, "lockstep.table_copy"),
    ] {
        let count = format!("SELECT count(*) FROM {what}");
        assert_eq!(values(server, &count), ["0"], "{what}");
    }
}

/// A comparison during which the process that applies is killed compares nothing, or what is equal.
fn a_held_process_dies(scene: &mut Scene) {
    let what = to_verify(conninfo(&scene.target));
    let mut process = scene.start(Does::Follow, 1, Some(Death::at(HOLD_ANSWERED, 0)));
    // The process applies before verify looks whether one does.
    until("that it applies", || scene.is_applied_to());
    let compared = std::thread::scope(|scope| {
        let comparing = scope.spawn(|| verify::replica(&what, &mut |_| {}));
        process.dies_at(HOLD_ANSWERED, || {});
        scene.assert_prefix();
        let _next = scene.start(Does::Follow, 1, None);
        comparing.join().unwrap()
    });
    match compared {
        Ok(report) => assert!(report.is_equal(), "{report:?}"),
        Err(error) => {
            let words = error.to_string();
            assert!(words.contains("did not hold it any longer"), "{words}");
        }
    }
    scene.goes_on(1);
}
