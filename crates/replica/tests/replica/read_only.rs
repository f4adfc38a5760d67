//! Servers whose transactions are read-only unless they ask for more.

use lockstep_apply::Control;
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{SUPERUSER, Server};
use lockstep_replica::error::Severity;
use lockstep_replica::lifecycle::create::{create, preflight};
use lockstep_replica::lifecycle::follow::follow;
use lockstep_replica::lifecycle::remove::remove;
use lockstep_replica::verify::{self};

use crate::apply_lab::{Ends, LONG};
use crate::{Told, conninfo, options, server, sql, state_of, to_verify, values};

fn write(server: &Server, statements: &str) {
    let mut session = sql(server);
    let may_write = "SET default_transaction_read_only = off";
    session.execute(may_write).unwrap();
    session.execute(statements).unwrap();
}

#[test]
fn a_replica_lives_on_servers_where_others_shall_only_read() {
    let lab = Lab::for_tests().unwrap();
    let (source, target) = (server(&lab, "source"), server(&lab, "target"));
    let tables = "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); \
                  CREATE MATERIALIZED VIEW m AS SELECT count(*) FROM t; CREATE SEQUENCE s";
    sql(&source).execute(tables).unwrap();
    for server in [&source, &target] {
        let read_only = format!("ALTER ROLE {SUPERUSER} SET default_transaction_read_only = on");
        sql(server).execute(&read_only).unwrap();
        let refused = sql(server).execute("CREATE TABLE x (id int)").unwrap_err();
        assert!(refused.to_string().contains("read-only"), "{refused}");
    }
    let (_, found) = preflight(&options(&source, &target)).unwrap();
    let found = found
        .iter()
        .filter(|it| it.says.contains("default_transaction_read_only"));
    let found: Vec<_> = found.map(|it| (it.severity, it.subject.as_str())).collect();
    assert_eq!(found, [(Severity::Warning, "source")]);
    create(&options(&source, &target), &mut Told::default()).unwrap();
    let mut state = state_of(&target);
    for paused in [true, false] {
        assert!(state.set_paused("r", paused).unwrap());
    }
    let control = Control::default();
    std::thread::scope(|scope| {
        let _ends = Ends(&control);
        let (given, to) = (control.clone(), conninfo(&target));
        let following = scope.spawn(move || follow(&crate::following(&to), &given));
        write(&source, "INSERT INTO t VALUES (2)");
        let end = source.flush_lsn().unwrap();
        assert!(control.wait_for(LONG, |stats| stats.applied >= end));
        let what = to_verify(conninfo(&target));
        assert!(verify::replica(&what, &mut |_| ()).unwrap().is_equal());
        control.stop();
        following.join().unwrap().unwrap();
    });
    assert_eq!(values(&target, "SELECT id FROM t ORDER BY 1"), ["1", "2"]);
    remove("r", &conninfo(&target), None).unwrap();
    assert_eq!(
        values(
            &source,
            "SELECT 1 FROM pg_replication_slots UNION ALL SELECT 1 FROM pg_publication"
        ),
        [""; 0]
    );
    assert_eq!(values(&target, "SELECT 1 FROM lockstep.replica"), [""; 0]);
}
