//! A primary that waits for a relay: what each level of `synchronous_commit` means then.

use std::fs;
use std::thread;

use crate::relay_support::{Relay, logical, publisher, until, until_answer, until_same};
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{SUPERUSER, Server};

const SYNCHRONOUS: &str = "SELECT string_agg(sync_state, ',') FROM pg_stat_replication \
                           WHERE application_name = 'sub'";

const WAITING: &str = "SELECT count(*)::text FROM pg_stat_activity WHERE wait_event = 'SyncRep'";

/// Inserts a row and commits at a level.
fn insert(server: &Server, level: &str, id: u32) -> impl FnOnce() + Send + use<> {
    let address = server.config(SUPERUSER, "writer");
    let sql = format!("SET synchronous_commit = {level}; INSERT INTO t VALUES ({id})");
    move || address.connect().unwrap().execute(&sql).unwrap()
}

fn has(server: &Server, id: u32) -> bool {
    let sql = format!("SELECT v::text FROM t WHERE v = {id}");
    server.query_text(&sql).unwrap().is_some()
}

fn wait_for(primary: &mut Server, names: &str) {
    primary.set([("synchronous_standby_names", names)]).unwrap();
    primary.reload().unwrap();
}

#[test]
fn commits_wait_for_the_spool_or_for_the_slowest_subscriber() {
    let lab = TestLab::with_extension().start().unwrap();
    let mut primary = publisher(&lab);
    let subscriber = lab.primary("subscriber", None, &logical()).unwrap();
    for server in [&primary, &subscriber] {
        server
            .execute("CREATE TABLE t (v int PRIMARY KEY)")
            .unwrap();
    }
    primary
        .execute("CREATE PUBLICATION p FOR TABLE t; CREATE PUBLICATION q FOR TABLE t")
        .unwrap();
    let file = lab.folder().join("relay.toml");
    let group = "[[group]]\nname = 'g'\ndatabase = 'postgres'\npublications = ['p']\n\
                 application_name = 'sub'\n";
    fs::write(&file, group).unwrap();
    let config = ["--config", file.to_str().unwrap()];
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &config);
    until_answer(&primary, SYNCHRONOUS, "async");
    let subscribe = |name: &str, publication: &str| {
        format!(
            "CREATE SUBSCRIPTION {name} CONNECTION '{}' PUBLICATION {publication}",
            relay.conninfo()
        )
    };
    subscriber.execute(&subscribe("sub", "p")).unwrap();
    insert(&primary, "local", 1)();
    until_same(&primary, &subscriber, "t");
    let adopted = || {
        relay
            .console(&lab, "SHOW SLOTS")
            .contains("sub")
            .then_some(())
    };
    until("the relay has the slot", adopted);
    wait_for(&mut primary, "sub");
    until_answer(&primary, SYNCHRONOUS, "sync");

    // It is there when the commit returns.
    for id in 2..20 {
        insert(&primary, "remote_apply", id)();
        assert!(has(&subscriber, id), "{id}");
    }

    // Nobody applies it: durable in the spool is all that can be had.
    subscriber
        .execute("ALTER SUBSCRIPTION sub DISABLE")
        .unwrap();
    until_answer(
        &subscriber,
        "SELECT count(pid)::text FROM pg_stat_subscription",
        "0",
    );
    insert(&primary, "on", 20)();
    let commit = thread::spawn(insert(&primary, "remote_apply", 21));
    until("the commit waits", || {
        assert!(!commit.is_finished(), "nobody has applied it");
        (primary.query_text(WAITING).ok()??.as_str() == "1").then_some(())
    });
    subscriber.execute("ALTER SUBSCRIPTION sub ENABLE").unwrap();
    commit.join().unwrap();
    assert!(has(&subscriber, 21));

    // A subscription behind the relay whose name no group has.
    subscriber
        .execute("ALTER SUBSCRIPTION sub DISABLE")
        .unwrap();
    subscriber
        .execute(&format!(
            "{} WITH (copy_data = false)",
            subscribe("other", "q")
        ))
        .unwrap();
    wait_for(&mut primary, "sub, other");
    until("it is warned of", || {
        let warned = "names a subscription that it cannot see";
        let log = relay.log();
        let line = log.lines().find(|line| line.contains(warned))?;
        assert!(line.contains("subscription=\"other\""), "{line}");
        Some(())
    });
}
