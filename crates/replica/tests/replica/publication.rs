//! A publication that somebody altered, and a replica with a spool.

use lockstep_apply::{Control, Phase, SpoolConfig};
use lockstep_lab::assert_has;
use lockstep_replica::lifecycle::follow::{Following, follow};

use crate::apply_lab::{Ends, LONG};
use crate::{conninfo, copied, on, values};

/// What the replica ends with. `then` is called once it has applied what is on the source.
fn ended(what: &Following, source: &lockstep_lab::server::Server, then: impl FnOnce()) -> String {
    let control = Control::default();
    std::thread::scope(|scope| {
        let _ends = Ends(&control);
        let given = control.clone();
        let following = scope.spawn(move || follow(what, &given));
        let end = source.flush_lsn().unwrap();
        let stopped = |phase| phase == Phase::Stopped;
        let reached = control.wait_for(LONG, |it| it.applied >= end || stopped(it.phase));
        assert!(reached, "{:?}", control.stats());
        then();
        let reached = control.wait_for(LONG, |stats| stopped(stats.phase));
        assert!(reached, "{:?}", control.stats());
        following.join().unwrap().unwrap_err().to_string()
    })
}

#[test]
fn an_altered_publication_ends_a_replica_with_a_spool() {
    let table = "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1)";
    let (lab, source, target) = copied(table);
    let publication = &values(&source, "SELECT pubname FROM pg_publication")[0];
    let publish = |what: &str| {
        let alter = format!("ALTER PUBLICATION {publication} SET (publish = '{what}')");
        on(&source, &alter);
    };
    let what = Following {
        spool: Some(SpoolConfig {
            folder: lab.folder().join("spool"),
            limit: 1 << 30,
        }),
        ..crate::following(&conninfo(&target))
    };
    on(&source, "INSERT INTO t VALUES (2, 1)");
    // While it applies.
    let words = ended(&what, &source, || {
        assert_eq!(values(&target, "SELECT max(id) FROM t"), ["2"]);
        publish("insert");
        on(&source, "UPDATE t SET v = 2");
    });
    let expected = "it does not send UPDATE, DELETE, TRUNCATE";
    assert_has!(words, publication, expected);
    // When it begins: the spool takes nothing more in.
    on(&source, "INSERT INTO t VALUES (3, 1)");
    let words = ended(&what, &source, || {});
    assert!(words.contains(expected), "{words}");
    assert_eq!(values(&target, "SELECT max(id) FROM t"), ["2"]);
    publish("insert, update, delete, truncate");
    let control = Control::default();
    std::thread::scope(|scope| {
        let _ends = Ends(&control);
        let (given, what) = (control.clone(), &what);
        let following = scope.spawn(move || follow(what, &given));
        let end = source.flush_lsn().unwrap();
        let reached = control.wait_for(LONG, |stats| stats.applied >= end);
        assert!(reached, "{:?}", control.stats());
        control.stop();
        following.join().unwrap().unwrap();
    });
    // What was not sent does not come any more.
    let rows = "SELECT string_agg(id || ':' || v, ' ' ORDER BY id) FROM t";
    assert_eq!(values(&target, rows), ["1:1 2:1 3:1"]);
}
