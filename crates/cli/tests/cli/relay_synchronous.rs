//! A primary that waits for a relay: what each level of `synchronous_commit` means then.

use std::fs;
use std::thread::{self, JoinHandle};

use crate::doctor_support::doctor;
use crate::relay_support::{
    Relay, disable, subscribe, table_on_both, until, until_answer, until_same,
};
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
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

/// Publications p and q of one table, and a subscription to p whose group has its name.
struct Stage {
    lab: Lab,
    subscriber: Server,
    relay: Relay,
    primary: Server,
}

impl Stage {
    fn new() -> Self {
        let lab = TestLab::with_extension().start().unwrap();
        let (mut primary, subscriber) = table_on_both(&lab, "t (v int PRIMARY KEY)");
        primary.run("CREATE PUBLICATION q FOR TABLE t");
        let file = lab.folder().join("relay.toml");
        let group = "[[group]]\nname = 'g'\ndatabase = 'postgres'\npublications = ['p']\n\
                     application_name = 'sub'\n";
        fs::write(&file, group).unwrap();
        // The name of all its connections, as it may come from the environment.
        let conninfo = format!("{} application_name=relay", primary.conninfo(SUPERUSER));
        let relay = Relay::start(&lab, &conninfo, &["--config", file.to_str().unwrap()]);
        until_answer(&primary, SYNCHRONOUS, "async");
        subscribe(&subscriber, "sub", &relay.conninfo(), "p");
        insert(&primary, "local", 1)();
        until_same(&primary, &subscriber, "t");
        until("the relay has the slot", || {
            let slots = relay.console(&lab, "SHOW SLOTS");
            slots.contains("sub").then_some(())
        });
        wait_for(&mut primary, "sub");
        until_answer(&primary, SYNCHRONOUS, "sync");
        Self {
            lab,
            subscriber,
            relay,
            primary,
        }
    }

    /// Takes the subscriber away.
    fn disable(&self) {
        disable(&self.lab, &self.subscriber, "sub", &self.relay);
    }

    /// A commit that waits for the subscriber.
    fn waiting_commit(&self, id: u32) -> JoinHandle<()> {
        let commit = thread::spawn(insert(&self.primary, "remote_apply", id));
        until("the commit waits", || {
            assert!(!commit.is_finished(), "nobody has applied it");
            (self.primary.query_text(WAITING).ok()??.as_str() == "1").then_some(())
        });
        commit
    }
}

#[test]
fn commits_wait_for_the_spool_or_for_the_slowest_subscriber() {
    let stage = Stage::new();
    let Stage {
        primary,
        subscriber,
        ..
    } = &stage;
    // It is there when the commit returns.
    for id in 2..20 {
        insert(primary, "remote_apply", id)();
        assert!(has(subscriber, id), "{id}");
    }
    // Nobody applies it: durable in the spool is all that can be had.
    stage.disable();
    insert(primary, "on", 20)();
    let commit = stage.waiting_commit(21);
    subscriber.run("ALTER SUBSCRIPTION sub ENABLE");
    commit.join().unwrap();
    assert!(has(subscriber, 21));
}

/// A subscription behind the relay whose name no group has.
#[test]
fn a_name_that_the_primary_cannot_see_is_warned_of() {
    let mut stage = Stage::new();
    stage.disable();
    let sql = format!(
        "CREATE SUBSCRIPTION other CONNECTION '{}' PUBLICATION q WITH (copy_data = false)",
        stage.relay.conninfo()
    );
    stage.subscriber.run(&sql);
    wait_for(&mut stage.primary, "other");
    until("it is warned of", || {
        let warned = "names a subscription that it cannot see";
        let log = stage.relay.log();
        let line = log.lines().find(|line| line.contains(warned))?;
        assert!(line.contains("subscription=\"other\""), "{line}");
        Some(())
    });

    // And doctor, where commits wait for it.
    let commit = stage.waiting_commit(30);
    let console = format!("host=127.0.0.1 port={} user={SUPERUSER}", stage.relay.port);
    let said = doctor(&[
        "--primary",
        &stage.primary.conninfo(SUPERUSER),
        "--relay",
        &console,
        "--subscriber",
        &stage.subscriber.conninfo(SUPERUSER),
        "--seconds",
        "2",
        "--output",
        "json",
    ]);
    assert_has!(said.text, "application_name = \\\"other\\\"");
    wait_for(&mut stage.primary, "");
    commit.join().unwrap();
}
