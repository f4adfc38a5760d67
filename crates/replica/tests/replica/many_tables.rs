//! Many tables at once: the catalogs are asked for all of them, not for each.

use lockstep_client::{Connection, Purpose};
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::major;
use lockstep_lab::server::{SUPERUSER, Server};
use lockstep_replica::lifecycle::create::create;
use lockstep_replica::verify::{self, Replicated};

use crate::apply_lab::{Ends, LONG};
use crate::{Told, conninfo, on, options, settings, values};

const PARTITIONS: usize = 100;

/// Most blocks that a question about partitions reads for each of them.
const BLOCKS: u64 = 40;

/// A server that counts statements, with an empty database `copy`.
fn counting(lab: &Lab, name: &str) -> Server {
    let mut settings = settings();
    let library = "pg_stat_statements".to_owned();
    settings.insert("shared_preload_libraries".to_owned(), library);
    let server = lab.primary_of(major().unwrap(), name, &settings).unwrap();
    server
        .execute("CREATE EXTENSION pg_stat_statements")
        .unwrap();
    server.execute("CREATE DATABASE copy").unwrap();
    server
}

fn forget(server: &Server) {
    server.execute("SELECT pg_stat_statements_reset()").unwrap();
}

/// Times that the server was asked for columns, indexes, or partitions since [`forget`]. None of these
/// questions reads the catalogs again for each partition: then it would take minutes for thousands of them.
fn questions(server: &Server) -> u64 {
    let info = lockstep_client::Conninfo::parse(&server.conninfo(SUPERUSER)).unwrap();
    let mut session = Connection::connect(&info, Purpose::Sql, "test").unwrap();
    let sql = "SELECT calls, shared_blks_hit + shared_blks_read, query FROM pg_stat_statements \
               WHERE query ~ 'pg_(attribute|index|inherits|partition_tree|publication_tables)'";
    let mut asked = 0;
    for row in session.query(sql).unwrap() {
        let number = |place: usize| row[place].as_ref().unwrap().parse::<u64>().unwrap();
        let each = number(1) / (number(0) * PARTITIONS as u64);
        assert!(each < BLOCKS, "{each} blocks for each partition: {row:?}");
        asked += number(0);
    }
    asked
}

#[test]
fn the_catalogs_are_asked_for_many_tables_at_once() {
    let lab = Lab::for_tests().unwrap();
    let (source, target) = (counting(&lab, "source"), counting(&lab, "target"));
    let partitioned = format!(
        "CREATE TABLE p (k int, v text, PRIMARY KEY (k, v)) PARTITION BY LIST (k);
         DO $$BEGIN FOR i IN 1..{PARTITIONS} LOOP
             EXECUTE format('CREATE TABLE p%s PARTITION OF p FOR VALUES IN (%s)', i, i);
         END LOOP; END$$;
         INSERT INTO p SELECT i, 'copied' FROM generate_series(1, {PARTITIONS}) i"
    );
    on(&source, &partitioned);
    create(&options(&source, &target), &mut Told::default()).unwrap();
    let control = lockstep_apply::Control::default();
    std::thread::scope(|scope| {
        let _ends = Ends(&control);
        let (given, to) = (control.clone(), conninfo(&target));
        let following = crate::following(&to);
        scope.spawn(move || lockstep_replica::lifecycle::follow::follow(&following, &given));
        let caught_up = || {
            let end = source.flush_lsn().unwrap();
            let reached = control.wait_for(LONG, |stats| stats.applied >= end);
            assert!(reached, "{:?}", control.stats());
        };
        caught_up();
        forget(&target);
        // The partitions' first changes come in no order.
        let insert = format!(
            "INSERT INTO p SELECT i * 37 % {PARTITIONS} + 1, 'followed' \
             FROM generate_series(1, {PARTITIONS}) i"
        );
        on(&source, &insert);
        caught_up();
        let asked = questions(&target);
        assert!(asked < 100, "{asked} questions for {PARTITIONS} partitions");
        let rows = values(&target, "SELECT count(*) FROM p WHERE v = 'followed'");
        assert_eq!(rows, [PARTITIONS.to_string()]);

        forget(&source);
        forget(&target);
        let what = Replicated {
            name: "r".to_owned(),
            target: conninfo(&target),
            source: None,
            jobs: 1,
            patience: LONG,
        };
        let report = verify::replica(&what, &mut |_| ()).unwrap();
        assert!(report.is_equal(), "{report:?}");
        let compared: u64 = report.tables.iter().map(|table| table.rows).sum();
        assert_eq!(compared, 2 * PARTITIONS as u64);
        for server in [&source, &target] {
            let asked = questions(server);
            assert!(asked < 50, "{asked} questions for {PARTITIONS} partitions");
        }
        control.stop();
    });
}
