//! Servers whose transactions are read-only unless they ask for more.

use lockstep_lab::server::{SUPERUSER, Server};
use lockstep_replica::error::{Finding, Severity};
use lockstep_replica::lifecycle::create::{CreateOptions, create, preflight};
use lockstep_replica::lifecycle::read_only::set;
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

/// What a new session begins with.
fn begins(server: &Server) -> Option<String> {
    let row = sql(server).query_one("SHOW default_transaction_read_only");
    row.unwrap().remove(0)
}

#[test]
fn what_a_replica_has_set_goes_with_it_and_what_others_have_set_stays() {
    for (before, wanted) in [
        ("", ["on", "off"]),
        (
            "ALTER DATABASE copy SET default_transaction_read_only = off",
            ["on", "off"],
        ),
        (
            "ALTER DATABASE copy SET default_transaction_read_only = on",
            ["on", "on"],
        ),
    ] {
        let (_lab, source, target) = pair("CREATE TABLE t (id int PRIMARY KEY)");
        on(&target, before);
        let options = CreateOptions {
            read_only: true,
            ..options(&source, &target)
        };
        let created = create(&options, &mut Told::default()).unwrap();
        assert_eq!(created.read_only, wanted[1] == "off", "{before}");
        assert_eq!(begins(&target).unwrap(), wanted[0], "{before}");
        remove("r", &conninfo(&target), None).unwrap();
        assert_eq!(begins(&target).unwrap(), wanted[1], "{before}");
    }
}

#[test]
fn a_fence_keeps_what_sessions_begin_with() {
    let (_lab, source, target) = pair("CREATE TABLE t (id int PRIMARY KEY)");
    create(&options(&source, &target), &mut Told::default()).unwrap();
    // As a switchover that comes to the target, or has left it.
    for fence in ["closed", "fence"] {
        write(
            &target,
            &format!(
                "CREATE FUNCTION lockstep.{fence}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END'; \
                 COMMENT ON FUNCTION lockstep.{fence}() IS 'default_transaction_read_only before: unset'; \
                 ALTER DATABASE copy SET default_transaction_read_only = on"
            ),
        );
        for is_read_only in [true, false] {
            let refused = set(&mut state_of(&target), "r", is_read_only).unwrap_err();
            assert!(
                refused.to_string().contains("nothing is changed"),
                "{refused}"
            );
        }
        assert_eq!(begins(&target).unwrap(), "on", "{fence}");
        write(
            &target,
            &format!(
                "DROP FUNCTION lockstep.{fence}(); ALTER DATABASE copy RESET default_transaction_read_only"
            ),
        );
    }
    assert!(set(&mut state_of(&target), "r", true).unwrap());
    assert_eq!(begins(&target).unwrap(), "on");
}

#[test]
fn a_role_that_does_not_own_the_database_copies_and_says_that_others_may_write() {
    let (_lab, source, target) = pair("CREATE TABLE t (id int PRIMARY KEY)");
    let role = "CREATE ROLE mover LOGIN REPLICATION";
    on(&source, role);
    on(&target, role);
    let own = "ALTER TABLE t OWNER TO mover; ALTER TABLE t SET SCHEMA m";
    on(
        &source,
        &format!("CREATE SCHEMA m AUTHORIZATION mover; {own}"),
    );
    let as_mover = |server| conninfo(server).with("user", "mover").unwrap();
    let options = CreateOptions {
        source: as_mover(&source),
        target: as_mover(&target),
        read_only: true,
        ..options(&source, &target)
    };
    let says = |one: &Finding| one.says.contains("others may write");
    // Each error says what mends it.
    loop {
        let (_, found) = preflight(&options).unwrap();
        assert!(found.iter().any(|one| says(one) && !one.is_error()));
        let Some(error) = found.into_iter().find(Finding::is_error) else {
            break;
        };
        let server = if error.subject == "source" {
            &source
        } else {
            &target
        };
        on(server, &error.todo);
    }
    let created = create(&options, &mut Told::default()).unwrap();
    assert!(!created.read_only);
    assert_eq!(begins(&target).unwrap(), "off");
}
