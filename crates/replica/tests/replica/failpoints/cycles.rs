//! A replica with a frequency dies in a cycle, and begins that cycle again.

use lockstep_apply::SpoolConfig;
use lockstep_apply::failpoint::{
    APPLY_COMMITTED, APPLY_PART, APPLY_WRITTEN, CYCLE_BEGUN, CYCLE_KEPT,
};
use lockstep_spool::failpoint::Failpoint;

use super::Scene;
use super::apply;
use super::process::Death;
use crate::values;

/// Failpoints of a cycle; those of each commit among them.
pub const COVERED: [Failpoint; 5] = [
    CYCLE_BEGUN,
    APPLY_PART,
    CYCLE_KEPT,
    APPLY_WRITTEN,
    APPLY_COMMITTED,
];

/// Each cycle that is committed has its position, no number is there twice or left out.
fn assert_cycles(scene: &Scene) {
    let wrong = "SELECT count(*) FROM (SELECT cycle - row_number() OVER (ORDER BY cycle) AS off, lsn \
         FROM lockstep.cycle WHERE state = 'done') c \
         WHERE off <> 0 OR lsn > (SELECT max(lsn) FROM lockstep.apply_position)";
    assert_eq!(values(&scene.target, wrong), ["0"], "{}", scene.said());
}

#[test]
fn a_cycle_goes_on_from_every_failpoint() {
    let mut scene = Scene::new();
    scene.spool = Some(SpoolConfig {
        folder: scene.lab.folder().join("spool"),
        limit: 1 << 30,
    });
    let frequency = "UPDATE lockstep.replica SET frequency_ms = 1000";
    scene.target.rows_in("copy", frequency).unwrap();
    for at in COVERED {
        for before in [0, 1] {
            let death = Death::at(at, before);
            let provoke = |scene: &Scene| match at == APPLY_PART {
                true => apply::large(scene),
                false => scene.write(""),
            };
            scene.dies(1, death, provoke);
            assert_cycles(&scene);
            scene.goes_on(1);
            assert_cycles(&scene);
        }
    }
}
