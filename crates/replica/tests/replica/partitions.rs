//! Partitions that are made after the copy.

use lockstep_lab::assert_has;
use lockstep_replica::lifecycle::create::{create, preflight};
use lockstep_replica::status::lost::Why;
use lockstep_replica::status::source::Source;
use lockstep_replica::verify::{self, DifferenceKind};

use crate::apply_lab::{blocked, catch_up, while_following};
use crate::{Told, conninfo, copied, on, options, pair, state_of, to_verify, values};

const PARTITIONED: &str = "
CREATE TABLE p (k int PRIMARY KEY, v text) PARTITION BY RANGE (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100);
INSERT INTO p VALUES (1, 'copied')";

const SECOND: &str = "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (200)";

#[test]
fn a_partition_that_is_made_later_arrives_once_the_target_has_it() {
    let (_lab, source, target) = copied(PARTITIONED);
    let what = crate::following(&conninfo(&target));
    let followed = while_following(&what, |control| {
        on(&source, SECOND);
        on(&source, "INSERT INTO p VALUES (2, 'old'), (102, 'new')");
        let words = blocked(control);
        let expected = "has made this partition after the copy";
        assert_has!(words, expected, "public.p2");

        on(&target, SECOND);
        control.resume();
        catch_up(&source, control);
        let keys = "SELECT k FROM p ORDER BY k";
        assert_eq!(values(&target, keys), ["1", "2", "102"]);

        // One that is detached is still replicated, and the others' TRUNCATE does not touch it.
        let detach = "ALTER TABLE p DETACH PARTITION p1; INSERT INTO p1 VALUES (3)";
        on(&source, detach);
        on(&source, "TRUNCATE p");
        catch_up(&source, control);
        assert_eq!(values(&target, keys), ["1", "2", "3"]);
        assert_eq!(control.stats().missing, 0);
    });
    followed.unwrap();
}

#[test]
fn a_later_partition_that_is_another_table_on_the_target_is_told_of() {
    let (_lab, source, target) = copied(PARTITIONED);
    on(&source, SECOND);
    let lost = || {
        let mut state = state_of(&target);
        let replica = state.replica("r").unwrap().unwrap();
        let tables = state.tables("r").unwrap();
        let mut found = Source::ask(&replica, None, Some(&tables), None).unwrap();
        found.look_at_target(&mut state, &tables).unwrap();
        (found.unreplicated(&replica).tables, found.lost)
    };
    assert_eq!(lost(), (0, Vec::new()), "the first row stops the replica");
    on(&target, "CREATE TABLE p2 (k int PRIMARY KEY, v text)");
    let (tables, found) = lost();
    assert_eq!((tables, found[0].why.clone()), (1, Why::NoPartition));
    let what = to_verify(conninfo(&target));
    let report = verify::replica(&what, &mut |_| ()).unwrap();
    let differs = report.tables.iter().flat_map(|table| &table.differences);
    let differs: Vec<_> = differs.map(|one| one.kind).collect();
    assert_eq!(differs, [DifferenceKind::NoPartition]);
    let attach = "ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (100) TO (200)";
    on(&target, attach);
    assert_eq!(lost().0, 0);
}

#[test]
fn a_partitioned_table_of_which_something_is_excluded_is_published_by_its_partitions() {
    let (_lab, source, target) = pair(PARTITIONED);
    on(&source, SECOND);
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

#[test]
fn a_partition_that_is_detached_on_the_target_is_told_of() {
    let (_lab, _source, target) = copied(PARTITIONED);
    let lost = || {
        let mut state = state_of(&target);
        let replica = state.replica("r").unwrap().unwrap();
        let tables = state.tables("r").unwrap();
        let mut found = Source::ask(&replica, None, Some(&tables), None).unwrap();
        found.look_at_target(&mut state, &tables).unwrap();
        let words = found.lost.iter().map(|lost| lost.words());
        words.collect::<Vec<_>>()
    };
    let verify = || {
        let mut told = Vec::new();
        let what = to_verify(conninfo(&target));
        let report = verify::replica(&what, &mut |words| told.push(words.to_owned())).unwrap();
        assert!(report.is_equal(), "its rows are there");
        told.join("; ")
    };
    assert_eq!(lost(), [""; 0]);
    assert!(!verify().contains("ATTACH PARTITION"));
    on(&target, "ALTER TABLE p DETACH PARTITION p1");
    let expected = "on the source it is a partition of \"public.p\", and on the target of no table of that name";
    assert_has!(lost().join("; "), expected);
    assert_has!(verify(), "table \"public.p1\": ", expected);
    // It need not be right below it.
    on(
        &target,
        "CREATE TABLE middle PARTITION OF p FOR VALUES FROM (0) TO (1000) PARTITION BY RANGE (k); \
         ALTER TABLE middle ATTACH PARTITION p1 FOR VALUES FROM (0) TO (100)",
    );
    assert_eq!(lost(), [""; 0]);
}
