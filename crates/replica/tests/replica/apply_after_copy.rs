//! A database is copied while it changes, then followed, and equal.

use std::sync::atomic::{AtomicBool, Ordering};

use lockstep_apply::Control;
use lockstep_lab::cluster::Lab;
use lockstep_replica::lifecycle::create::create;
use lockstep_replica::lifecycle::follow;
use lockstep_replica::state::ReplicaState;
use lockstep_replica::verify;

use crate::apply_lab::LONG;
use crate::{Told, conninfo, options, server, sql};

#[test]
fn a_copy_of_a_busy_database_is_followed() {
    let lab = Lab::for_tests().unwrap();
    let (source, target) = (server(&lab, "source"), server(&lab, "target"));
    let mut writer = sql(&source);
    writer
        .execute(
            "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE log (id serial PRIMARY KEY, n int); \
             INSERT INTO t SELECT i, 'v' FROM generate_series(1, 20000) i",
        ).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !done.load(Ordering::SeqCst) {
                number += 1;
                writer
                    .execute(&format!(
                        "BEGIN; UPDATE t SET v = '{number}' WHERE id % 1000 = {number} % 1000; \
                         DELETE FROM t WHERE id = {number}; INSERT INTO log (n) VALUES ({number}); COMMIT"
                    )).unwrap();
            }
        });
        let made = create(&options(&source, &target), &mut Told::default());
        if made.is_err() {
            done.store(true, Ordering::SeqCst);
        }
        made.unwrap();
        let (source, target) = (conninfo(&source), conninfo(&target));
        let replica = ReplicaState::open(&target)
            .unwrap()
            .replica("r")
            .unwrap()
            .unwrap();
        let settings = follow::settings(&replica, &source, &target).unwrap();
        let control = Control::default();
        let given = control.clone();
        let publications = settings.publications.clone();
        let following = scope.spawn(move || follow::run(&settings, None, "r", &given));
        let reports: Vec<_> = (0..2)
            .map(|_| {
                let options = verify::Options {
                    source: source.clone(),
                    target: target.clone(),
                    publications: publications.clone(),
                    starts: follow::starts(&target, "r").unwrap(),
                    listed: Vec::new(),
                    jobs: 2,
                    range_rows: 5_000,
                    patience: LONG,
                };
                verify::run(&options, &mut verify::InProcess(&control))
            })
            .collect();
        done.store(true, Ordering::SeqCst);
        let stats = control.stats();
        control.stop();
        following.join().unwrap().unwrap();
        for report in reports {
            let report = report.unwrap();
            assert!(report.is_equal(), "{report:?}");
            assert_eq!(report.tables.len(), 2);
        }
        assert_eq!(stats.missing, 0, "{stats:?}");
    });
}
