//! `lockstep relay` between real servers: the life of subscriptions.

use std::process::Command;

use crate::relay_support::{
    Relay, disable, logical, publisher, slots, subscribe, table_on_both, until, until_answer,
    until_same,
};
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{SUPERUSER, Server};

const STATISTICS: &str = "SELECT name, blks_read FROM lockstep_stat_logical_wal_cache()";

#[test]
fn a_subscription_lives_through_the_relay() {
    let lab = TestLab::with_extension().start().unwrap();
    let primary = publisher(&lab);
    primary.run(
        "CREATE TABLE a (id int PRIMARY KEY, v text); \
             INSERT INTO a SELECT i, 'old ' || i FROM generate_series(1, 1000) i; \
             CREATE TABLE b (id int PRIMARY KEY, secret text, v int); \
             INSERT INTO b SELECT i, 'secret', i FROM generate_series(1, 100) i; \
             CREATE PUBLICATION pa FOR TABLE a; \
             CREATE PUBLICATION pb FOR TABLE b (id, v) WHERE (id > 50)",
    );
    let subscriber = lab.primary("subscriber", None, &logical()).unwrap();
    subscriber.run(
        "CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY, v int)",
    );
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    let connection = relay.conninfo();

    // Create, initial copy, streaming.
    subscriber.run(&format!(
        "CREATE SUBSCRIPTION s CONNECTION '{connection}' PUBLICATION pa"
    ));
    until_same(&primary, &subscriber, "a");
    primary.run(
        "INSERT INTO a SELECT i, 'new' FROM generate_series(1001, 2000) i; \
             UPDATE a SET v = 'changed' WHERE id % 7 = 0; DELETE FROM a WHERE id % 11 = 0",
    );
    until_same(&primary, &subscriber, "a");
    let upstream = slots(&primary);
    assert!(upstream.starts_with("lockstep_auto_"), "{upstream}");
    assert!(!upstream.contains(' '), "{upstream}");

    set_publications(&primary, &subscriber);

    // Disable and enable: nothing is lost meanwhile.
    disable(&lab, &subscriber, "s", &relay);
    primary.run("UPDATE a SET v = 'while disabled' WHERE id < 100");
    until("what is left to send to it is told", || {
        let shown = relay.console(&lab, "SHOW SLOTS");
        let columns: Vec<&str> = shown.split('|').collect();
        (columns[3].is_empty() && columns[6] != "0").then_some(())
    });
    subscriber.run("ALTER SUBSCRIPTION s ENABLE");
    until_same(&primary, &subscriber, "a");

    refresh(&primary, &subscriber);
    let second = share(&lab, (&primary, &subscriber), &relay);

    // Drop.
    for (server, name) in [(&subscriber, "s"), (&second, "s2")] {
        server.run(&format!("DROP SUBSCRIPTION {name}"));
    }
    assert_eq!(relay.console(&lab, STATISTICS), "");
    // The relay's own are all that is left.
    assert!(
        slots(&primary)
            .split(' ')
            .all(|slot| slot.starts_with("lockstep_"))
    );
    drop((subscriber, second, relay, primary));
}

/// Another publication, with a row filter and a column list.
fn set_publications(primary: &Server, subscriber: &Server) {
    subscriber.run("ALTER SUBSCRIPTION s SET PUBLICATION pa, pb");
    until_answer(subscriber, "SELECT count(*)::text FROM b", "50");
    primary.run(
        "INSERT INTO b SELECT i, 'secret', i FROM generate_series(101, 200) i; \
             INSERT INTO b VALUES (0, 's', 0); UPDATE a SET v = 'again'",
    );
    until_answer(subscriber, "SELECT count(*)::text FROM b", "150");
    until_same(primary, subscriber, "a");
}

/// A table that comes later, and one that changes.
fn refresh(primary: &Server, subscriber: &Server) {
    for server in [primary, subscriber] {
        server.run("CREATE TABLE c (id int PRIMARY KEY, v text)");
    }
    primary.run(
        "INSERT INTO c SELECT i, 'c' FROM generate_series(1, 10) i; \
             ALTER PUBLICATION pa ADD TABLE c",
    );
    subscriber.run("ALTER SUBSCRIPTION s REFRESH PUBLICATION");
    until_same(primary, subscriber, "c");
    for server in [subscriber, primary] {
        server.run("ALTER TABLE a ADD w int DEFAULT 5");
    }
    primary.run("UPDATE a SET w = id");
    until_same(primary, subscriber, "a");
}

/// A second subscriber shares the upstream slot.
fn share(lab: &Lab, (primary, subscriber): (&Server, &Server), relay: &Relay) -> Server {
    let before = slots(primary);
    let second = lab.primary("second", None, &logical()).unwrap();
    second
        .run("CREATE TABLE a (id int PRIMARY KEY, v text, w int); \
             CREATE TABLE b (id int PRIMARY KEY, v int); CREATE TABLE c (id int PRIMARY KEY, v text)");
    second.run(&format!(
        "CREATE SUBSCRIPTION s2 CONNECTION '{}' PUBLICATION pb, pa",
        relay.conninfo()
    ));
    until_same(primary, &second, "a");
    primary.run("UPDATE a SET v = 'for both'");
    until_same(primary, &second, "a");
    until_same(primary, subscriber, "a");
    assert_eq!(slots(primary), before);
    let rows = relay.console(lab, STATISTICS);
    assert!(rows.contains("s|") && rows.contains("s2|"), "{rows}");
    second
}

#[test]
fn pg_recvlogical_works_through_the_relay() {
    let lab = TestLab::with_extension().start().unwrap();
    let primary = publisher(&lab);
    primary.run("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t");
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    let receive = |args: &[&str]| {
        let output = Command::new(lab.package().program("pg_recvlogical"))
            .args(["--dbname", &relay.conninfo(), "--slot", "r"])
            .args(args)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {said}");
        output.stdout
    };
    receive(&["--create-slot", "--plugin", "pgoutput"]);
    primary.run("INSERT INTO t VALUES (1)");
    primary.run("INSERT INTO t VALUES (2)");
    let end = primary.flush_lsn().unwrap().to_string();
    // So that there is a commit beyond the end.
    primary.run("INSERT INTO t VALUES (3)");
    let options = [
        "--start",
        "--no-loop",
        "--file",
        "-",
        "--endpos",
        &end,
        "--option",
        "proto_version=1",
        "--option",
        "publication_names=p",
    ];
    let stream = receive(&options);
    let inserts = stream
        .split(|&byte| byte == b'\n')
        .filter(|message| message.first() == Some(&b'I'))
        .count();
    assert_eq!(inserts, 2, "{:?}", String::from_utf8_lossy(&stream));
    until("the slot is the relay's", || {
        (!slots(&primary).split(' ').any(|slot| slot == "r")).then_some(())
    });
    // It ends as soon as it is told that the stream is as far as it asks for.
    let end = primary.flush_lsn().unwrap().to_string();
    let began = std::time::Instant::now();
    let options = options.map(|option| {
        if option.contains('/') {
            end.as_str()
        } else {
            option
        }
    });
    receive(&options);
    println!("an idle slot's end was told after {:?}", began.elapsed());
    receive(&["--drop-slot"]);
    drop((relay, primary));
}

/// What the README does with a subscription that is there already.
#[test]
fn a_subscription_moves_to_the_relay_with_its_connection() {
    let lab = TestLab::with_extension().start().unwrap();
    let (primary, subscriber) = table_on_both(&lab, "a (id int PRIMARY KEY)");
    primary.run("INSERT INTO a VALUES (1)");
    subscribe(&subscriber, "s", &primary.conninfo(SUPERUSER), "p");
    until_same(&primary, &subscriber, "a");
    assert_eq!(slots(&primary), "s");
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    primary.run("INSERT INTO a SELECT generate_series(2, 1000)");
    subscriber.run(&format!(
        "ALTER SUBSCRIPTION s CONNECTION '{}'",
        relay.conninfo()
    ));
    primary.run("INSERT INTO a SELECT generate_series(1001, 2000)");
    until_same(&primary, &subscriber, "a");
    until("the slot is the relay's", || {
        let only = slots(&primary);
        let ours = only.starts_with("lockstep_auto_") && !only.contains(' ');
        (ours && relay.console(&lab, "SHOW SLOTS").starts_with("s|")).then_some(())
    });
    drop((subscriber, relay, primary));
}

/// A group whose slot waits for an open transaction holds up no slot that does not need it.
#[test]
fn a_group_that_waits_holds_up_no_other() {
    let lab = TestLab::with_extension().start().unwrap();
    let (primary, subscriber) = table_on_both(&lab, "a (id int PRIMARY KEY)");
    primary.run("CREATE PUBLICATION pb");
    subscribe(&subscriber, "s", &primary.conninfo(SUPERUSER), "p");
    primary.run("INSERT INTO a VALUES (1)");
    until_same(&primary, &subscriber, "a");
    let mut open = primary.connect(SUPERUSER, "open").unwrap();
    open.query("BEGIN").unwrap();
    open.query("SELECT pg_current_xact_id()").unwrap();
    let file = lab.folder().join("relay.toml");
    let text = "[[group]]\nname = \"gb\"\ndatabase = \"postgres\"\npublications = [\"pb\"]\n";
    std::fs::write(&file, text).unwrap();
    let config = file.display().to_string();
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &["--config", &config]);
    until("the group's slot is being made", || {
        slots(&primary).contains("lockstep_gb").then_some(())
    });
    subscriber.run(&format!(
        "ALTER SUBSCRIPTION s CONNECTION '{}'",
        relay.conninfo()
    ));
    until("the slot is the relay's", || {
        let log = relay.log();
        (log.contains("adopted") && !log.contains("group=\"gb\"")).then_some(())
    });
    primary.run("INSERT INTO a VALUES (2)");
    until_same(&primary, &subscriber, "a");
    drop(open);
    until("the group is made", || {
        relay
            .log()
            .contains("made a group group=\"gb\"")
            .then_some(())
    });
    drop((subscriber, relay, primary));
}
