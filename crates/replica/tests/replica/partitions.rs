//! Partitions that are made after the copy.

use lockstep_apply::{Control, Phase};
use lockstep_lab::cluster::Lab;
use lockstep_replica::lifecycle::create::{create, preflight};
use lockstep_replica::lifecycle::follow::follow;
use lockstep_replica::status::lost::Why;
use lockstep_replica::status::source::Source;
use lockstep_replica::verify::{self, DifferenceKind};

use crate::apply_lab::{Ends, LONG};
use crate::{Told, conninfo, copied, options, server, sql, state_of, to_verify, values};

const PARTITIONED: &str = "
CREATE TABLE p (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100);
INSERT INTO p VALUES (1, 'copied')";

const SECOND: &str = "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (200)";

#[test]
fn a_partition_that_is_made_later_arrives_once_the_target_has_it() {
    let (_lab, source, target) = copied(PARTITIONED);
    let control = Control::default();
    std::thread::scope(|scope| {
        let _ends = Ends(&control);
        let (given, to) = (control.clone(), conninfo(&target));
        let following = scope.spawn(move || follow(&crate::following(&to), &given));
        let caught_up = || {
            let end = source.flush_lsn().unwrap();
            let reached = control.wait_for(LONG, |stats| stats.applied >= end);
            assert!(reached, "{:?}", control.stats());
        };
        sql(&source).execute(SECOND).unwrap();
        let insert = "INSERT INTO p VALUES (2, 'old'), (102, 'new')";
        sql(&source).execute(insert).unwrap();
        let blocked = control.wait_for(LONG, |stats| stats.phase == Phase::Blocked);
        assert!(blocked, "{:?}", control.stats());
        let words = control.stats().error.unwrap();
        let expected = "has made this partition after the copy";
        assert!(
            words.contains(expected) && words.contains("public.p2"),
            "{words}"
        );

        sql(&target).execute(SECOND).unwrap();
        control.resume();
        caught_up();
        let keys = "SELECT k FROM p ORDER BY k";
        assert_eq!(values(&target, keys), ["1", "2", "102"]);

        // One that is detached is still replicated, and the others' TRUNCATE does not touch it.
        let detach = "ALTER TABLE p DETACH PARTITION p1; INSERT INTO p1 VALUES (3)";
        sql(&source).execute(detach).unwrap();
        sql(&source).execute("TRUNCATE p").unwrap();
        caught_up();
        assert_eq!(values(&target, keys), ["1", "2", "3"]);
        assert_eq!(control.stats().missing, 0);
        control.stop();
        following.join().unwrap().unwrap();
    });
}

#[test]
fn a_later_partition_that_is_another_table_on_the_target_is_told_of() {
    let (_lab, source, target) = copied(PARTITIONED);
    sql(&source).execute(SECOND).unwrap();
    let lost = || {
        let mut state = state_of(&target);
        let replica = state.replica("r").unwrap().unwrap();
        let tables = state.tables("r").unwrap();
        let mut found = Source::ask(&replica, None, Some(&tables), None).unwrap();
        found.look_at_target(&mut state, &tables).unwrap();
        (found.unreplicated(&replica).tables, found.lost)
    };
    assert_eq!(lost(), (0, Vec::new()), "the first row stops the replica");
    let plain = "CREATE TABLE p2 (k int PRIMARY KEY, v text)";
    sql(&target).execute(plain).unwrap();
    let (tables, found) = lost();
    assert_eq!((tables, found[0].why.clone()), (1, Why::NoPartition));
    let what = to_verify(conninfo(&target));
    let report = verify::replica(&what, &mut |_| ()).unwrap();
    let differs = report.tables.iter().flat_map(|table| &table.differences);
    let differs: Vec<_> = differs.map(|one| one.kind).collect();
    assert_eq!(differs, [DifferenceKind::NoPartition]);
    let attach = "ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (100) TO (200)";
    sql(&target).execute(attach).unwrap();
    assert_eq!(lost().0, 0);
}

#[test]
fn a_partitioned_table_of_which_something_is_excluded_is_published_by_its_partitions() {
    let lab = Lab::for_tests().unwrap();
    let (source, target) = (server(&lab, "source"), server(&lab, "target"));
    sql(&source).execute(PARTITIONED).unwrap();
    sql(&source).execute(SECOND).unwrap();
    let mut options = options(&source, &target);
    options.excluded.tables = vec!["public.p1".to_owned()];
    let (_, findings) = preflight(&options).unwrap();
    let warned = findings
        .iter()
        .any(|one| one.says.contains("partitions created later"));
    assert!(warned, "{findings:#?}");
    create(&options, &mut Told::default()).unwrap();
    let published = "SELECT tablename FROM pg_publication_tables";
    assert_eq!(values(&source, published), ["p2"]);
}
