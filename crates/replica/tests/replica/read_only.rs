//! Servers whose transactions are read-only unless they ask for more.

use lockstep_lab::server::{SUPERUSER, Server};
use lockstep_replica::error::Severity;
use lockstep_replica::lifecycle::create::{create, preflight};
use lockstep_replica::lifecycle::remove::remove;
use lockstep_replica::verify::{self};

use crate::apply_lab::{catch_up, while_following};
use crate::{Told, conninfo, on, options, pair, sql, state_of, to_verify, values};

fn write(server: &Server, statements: &str) {
    let mut session = sql(server);
    let may_write = "SET default_transaction_read_only = off";
    session.execute(may_write).unwrap();
    session.execute(statements).unwrap();
}

#[test]
fn a_replica_lives_on_servers_where_others_shall_only_read() {
    let tables = "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); \
                  CREATE MATERIALIZED VIEW m AS SELECT count(*) FROM t; CREATE SEQUENCE s";
    let (_lab, source, target) = pair(tables);
    for server in [&source, &target] {
        let read_only = format!("ALTER ROLE {SUPERUSER} SET default_transaction_read_only = on");
        on(server, &read_only);
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
    let what = crate::following(&conninfo(&target));
    let followed = while_following(&what, |control| {
        write(&source, "INSERT INTO t VALUES (2)");
        catch_up(&source, control);
        let what = to_verify(conninfo(&target));
        assert!(verify::replica(&what, &mut |_| ()).unwrap().is_equal());
    });
    followed.unwrap();
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
