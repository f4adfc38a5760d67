//! A primary that has too few walsenders or slots for what a client wants: the relay gives up
//! what it can spare.

use std::fs;

use crate::relay_support::raw::{Raw, packet};
use crate::relay_support::{
    Relay, disable, logical, subscribe, table_on_both, tail, until, until_answer, until_same,
};
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{SUPERUSER, Server};

fn publish_as(primary: &Server, names: &[&str]) {
    for name in names {
        let sql = format!("CREATE PUBLICATION {name} FOR TABLE t");
        primary.run(&sql);
    }
}

fn gifts(relay: &Relay) -> usize {
    relay.log().matches("gave up what nobody needs now").count()
}

#[test]
fn idle_groups_give_up_walsenders_and_lose_nothing() {
    let lab = TestLab::with_extension().start().unwrap();
    let (mut primary, first) = table_on_both(&lab, "t (v int)");
    let others = [("second", "q"), ("third", "r")].map(|(name, publication)| {
        let server = lab.primary(name, None, &logical()).unwrap();
        server.run("CREATE TABLE t (v int)");
        publish_as(&primary, &[publication]);
        server
    });
    let [second, third] = &others;
    // One that commits may wait for: it must stay.
    let file = lab.folder().join("relay.toml");
    let group = "[[group]]\nname = 'g'\ndatabase = 'postgres'\npublications = ['p', 'q']\n\
                 application_name = 'waited_for'\n";
    fs::write(&file, group).unwrap();
    let config = ["--config", file.to_str().unwrap()];
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &config);
    for (subscriber, name, publication) in [(&first, "s1", "p"), (second, "s2", "q")] {
        subscribe(subscriber, name, &relay.conninfo(), publication);
        primary.run("INSERT INTO t VALUES (1)");
        until_same(&primary, subscriber, "t");
        disable(&lab, subscriber, name, &relay);
    }
    primary.set([("max_wal_senders", "3")]).unwrap();
    primary.restart().unwrap();
    let walsenders = "SELECT count(*)::text FROM pg_stat_replication WHERE state = 'streaming'";
    until_answer(&primary, walsenders, "3");
    assert_eq!(gifts(&relay), 0);
    let waited_for = "SELECT pid::text FROM pg_stat_replication \
                      WHERE application_name = 'waited_for'";
    let pid = primary.query_text(waited_for).unwrap();

    // Its login needs one, and so does the group that is made for it.
    subscribe(third, "s3", &relay.conninfo(), "r");
    primary.run("INSERT INTO t VALUES (2)");
    until_same(&primary, third, "t");
    assert!(gifts(&relay) >= 1, "{}", relay.log());
    assert_eq!(primary.query_text(waited_for).unwrap(), pid);

    // What the primary kept for a group meanwhile comes with its subscriber.
    disable(&lab, third, "s3", &relay);
    for (subscriber, name) in [(&first, "s1"), (second, "s2")] {
        let enable = format!("ALTER SUBSCRIPTION {name} ENABLE");
        subscriber.run(&enable);
        primary.run("INSERT INTO t VALUES (3)");
        until_same(&primary, subscriber, "t");
    }
    assert_eq!(primary.query_text(waited_for).unwrap(), pid);
    // Nothing is left to give: the client is told what the primary said.
    third.run("ALTER SUBSCRIPTION s3 ENABLE");
    until("the subscriber is told", || {
        let log = fs::read_to_string(third.log()).unwrap();
        // 17 writes the setting in quotation marks.
        log.contains("standby connections exceeds").then_some(())
    });
    drop((first, others, relay, primary));
}

#[test]
fn a_group_that_no_slot_uses_gives_up_its_slot() {
    let lab = TestLab::with_extension().start().unwrap();
    let (mut primary, subscriber) = table_on_both(&lab, "t (v int)");
    publish_as(&primary, &["q"]);
    primary.set([("max_replication_slots", "3")]).unwrap();
    primary.restart().unwrap();
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    let adopted = |name: &str| {
        let slot =
            format!("SELECT count(*)::text FROM pg_replication_slots WHERE slot_name = '{name}'");
        until("it is the relay's", || {
            let slots = relay.console(&lab, "SHOW SLOTS");
            let begins = format!("{name}|");
            let has = slots.lines().any(|line| line.starts_with(&begins));
            has.then_some(())
        });
        until_answer(&primary, &slot, "0");
    };
    let on_primary = |sql: &str| primary.run(sql);
    subscribe(&subscriber, "s1", &relay.conninfo(), "p");
    adopted("s1");
    on_primary("INSERT INTO t VALUES (1)");
    until_same(&primary, &subscriber, "t");
    subscriber.run("DROP SUBSCRIPTION s1");
    on_primary("SELECT pg_create_physical_replication_slot('a')");
    on_primary("SELECT pg_create_physical_replication_slot('b')");

    // The client has its error, and the next try finds a place.
    let create = |publication: &str| {
        let sql = format!(
            "CREATE SUBSCRIPTION s2 CONNECTION '{}' PUBLICATION {publication} \
             WITH (copy_data = false)",
            relay.conninfo()
        );
        subscriber.execute(&sql)
    };
    let refused = create("q").unwrap_err().to_string();
    let expected = "all replication slots are in use";
    assert!(refused.contains(expected), "{refused}");
    until("a slot is given up", || (gifts(&relay) == 1).then_some(()));
    on_primary("SELECT pg_drop_replication_slot('b')");
    create("q").unwrap();
    adopted("s2");
    subscriber.run("DROP SUBSCRIPTION s2");

    // A group that the relay makes for a client finds one at once.
    create("p").unwrap();
    adopted("s2");
    assert_eq!(gifts(&relay), 2, "{}", relay.log());
    let log = tail(subscriber.log());
    assert!(!log.contains("cannot serve this slot"), "{log}");
    on_primary("INSERT INTO t VALUES (2)");
    until_same(&primary, &subscriber, "t");
    drop((subscriber, relay, primary));
}

/// Whoever has not said a password yet gets one walsender of an idle group at most.
#[test]
fn logins_that_are_not_done_share_what_is_given_up() {
    let lab = TestLab::with_extension().start().unwrap();
    let (mut primary, first) = table_on_both(&lab, "t (v int)");
    publish_as(&primary, &["q"]);
    let second = lab.primary("second", None, &logical()).unwrap();
    second.run("CREATE TABLE t (v int)");
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    for (subscriber, name, publication) in [(&first, "s1", "p"), (&second, "s2", "q")] {
        subscribe(subscriber, name, &relay.conninfo(), publication);
        primary.run("INSERT INTO t VALUES (1)");
        until_same(&primary, subscriber, "t");
        disable(&lab, subscriber, name, &relay);
    }
    primary.run("SET password_encryption = 'scram-sha-256'; CREATE ROLE plain LOGIN PASSWORD 'x'");
    let rules = "local all plain scram-sha-256\nlocal all,replication all trust\n";
    fs::write(primary.data().join("pg_hba.conf"), rules).unwrap();
    primary.set([("max_wal_senders", "2")]).unwrap();
    primary.restart().unwrap();
    let walsenders = "SELECT count(*)::text FROM pg_stat_replication WHERE state = 'streaming'";
    until_answer(&primary, walsenders, "2");
    assert_eq!(gifts(&relay), 0);

    let parameters = [
        ("user", "plain"),
        ("database", "postgres"),
        ("replication", "database"),
    ];
    let endless: Vec<_> = (0..4)
        .map(|_| {
            let mut client = Raw::tcp(relay.port);
            client.send(&packet(&parameters));
            // It is asked for its password, or has had to go.
            if let Some((tag, _)) = client.message() {
                assert_eq!(tag, b'R');
            }
            client
        })
        .collect();
    assert_eq!(gifts(&relay), 1, "{}", relay.log());
    until_answer(&primary, walsenders, "1");
    drop(endless);
    // Somebody who is let in gets what the others had.
    first.run("ALTER SUBSCRIPTION s1 ENABLE");
    primary.run("INSERT INTO t VALUES (2)");
    until_same(&primary, &first, "t");
    drop((first, second, relay, primary));
}
