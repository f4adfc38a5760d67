//! `lockstep relay` and two-phase commit: a slot with it is the primary's, and no prepared
//! transaction is lost or comes twice on the way there.

use std::time::Duration;

use crate::relay_support::load::Load;
use crate::relay_support::{
    Relay, allow_plugin, logical, until, until_answer, until_received, until_same,
};
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::{self, TestLab};
use lockstep_lab::server::{SUPERUSER, Server};

/// A server that publishes or subscribes prepared transactions.
fn server(lab: &Lab, name: &str) -> Server {
    let mut settings = logical();
    settings.insert("max_prepared_transactions".to_owned(), "100".to_owned());
    let mut server = lab.primary(name, None, &settings).unwrap();
    allow_plugin(&mut server);
    server.run("CREATE TABLE t (id bigint PRIMARY KEY)");
    server
}

/// Publisher and subscriber of table t, in this order.
fn servers(lab: &Lab) -> (Server, Server) {
    let primary = server(lab, "primary");
    primary.run("CREATE PUBLICATION p FOR TABLE t");
    (primary, server(lab, "subscriber"))
}

/// Creates subscription s.
fn subscribe(subscriber: &Server, conninfo: &str, options: &str) {
    let sql =
        format!("CREATE SUBSCRIPTION s CONNECTION '{conninfo}' PUBLICATION p WITH ({options})");
    subscriber.run(&sql);
}

fn until_two_phase(subscriber: &Server) {
    let state = "SELECT subtwophasestate::text FROM pg_subscription";
    until_answer(subscriber, state, "e");
}

/// Prepares the insertion of a row.
fn prepare(primary: &Server, gid: &str, id: u32) {
    let sql = format!("BEGIN; INSERT INTO t VALUES ({id}); PREPARE TRANSACTION '{gid}'");
    primary.run(&sql);
}

fn until_prepared(subscriber: &Server, transactions: u32) {
    let count = "SELECT count(*)::text FROM pg_prepared_xacts";
    until_answer(subscriber, count, &transactions.to_string());
}

fn until_passed_through(lab: &Lab, primary: &Server, relay: &Relay) {
    let two_phase = "SELECT (two_phase AND active)::text FROM pg_replication_slots \
                     WHERE slot_name = 's'";
    until_answer(primary, two_phase, "true");
    until("the relay has no slot", || {
        relay.console(lab, "SHOW SLOTS").is_empty().then_some(())
    });
}

#[test]
fn two_phase_commit_outlives_a_pause_of_the_subscription() {
    let lab = TestLab::with_extension().start().unwrap();
    let (primary, subscriber) = servers(&lab);
    primary.run("INSERT INTO t VALUES (1)");
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    subscribe(&subscriber, &relay.conninfo(), "two_phase = on");
    until_two_phase(&subscriber);
    prepare(&primary, "first", 2);
    until_prepared(&subscriber, 1);
    // The option was sent once: from here on the slot alone knows.
    subscriber.run("ALTER SUBSCRIPTION s DISABLE");
    prepare(&primary, "second", 3);
    subscriber.run("ALTER SUBSCRIPTION s ENABLE");
    until_prepared(&subscriber, 2);
    primary.run("COMMIT PREPARED 'first'");
    primary.run("ROLLBACK PREPARED 'second'");
    until_prepared(&subscriber, 0);
    until_same(&primary, &subscriber, "t");
    until_passed_through(&lab, &primary, &relay);
    drop((subscriber, relay, primary));
}

#[test]
fn a_slot_with_two_phase_commit_stays_at_the_primary() {
    let lab = TestLab::with_extension().start().unwrap();
    let (primary, subscriber) = servers(&lab);
    subscribe(&subscriber, &primary.conninfo(SUPERUSER), "two_phase = on");
    until_two_phase(&subscriber);
    prepare(&primary, "first", 1);
    until_prepared(&subscriber, 1);
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    let connection = relay.conninfo();
    subscriber.run(&format!("ALTER SUBSCRIPTION s CONNECTION '{connection}'"));
    until("the relay passes it through", || {
        relay
            .log()
            .contains("passed through to the primary")
            .then_some(())
    });
    prepare(&primary, "second", 2);
    until_prepared(&subscriber, 2);
    for gid in ["first", "second"] {
        primary.run(&format!("COMMIT PREPARED '{gid}'"));
    }
    until_prepared(&subscriber, 0);
    until_same(&primary, &subscriber, "t");
    until_passed_through(&lab, &primary, &relay);
    drop((subscriber, relay, primary));
}

/// The slot is the relay's and far behind when two-phase commit is asked for: what comes before
/// its copy on the primary comes from the relay, in sessions that do not ask again.
#[test]
fn a_slot_goes_back_for_two_phase_commit() {
    let lab = TestLab::with_extension().start().unwrap();
    let (primary, subscriber) = servers(&lab);
    let mut relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    subscribe(&subscriber, &relay.conninfo(), "enabled = true");
    primary.run("INSERT INTO t VALUES (2)");
    until_answer(&subscriber, "SELECT count(*)::text FROM t", "1");
    until("the slot is the relay's", || {
        relay
            .console(&lab, "SHOW SLOTS")
            .starts_with("s|")
            .then_some(())
    });
    prepare(&primary, "before", 1);
    subscriber.run("ALTER SUBSCRIPTION s DISABLE");
    prepare(&primary, "within", 3);
    primary.run("INSERT INTO t SELECT generate_series(1001, 2000)");
    primary.run("COMMIT PREPARED 'within'");
    until_received(&primary);
    prepare(&primary, "after", 4);
    // What ALTER SUBSCRIPTION does on 18.
    subscriber.run("UPDATE pg_subscription SET subtwophasestate = 'p'");
    subscriber.run("ALTER SUBSCRIPTION s ENABLE");
    until_two_phase(&subscriber);
    relay.restart();
    prepare(&primary, "late", 5);
    primary.run("COMMIT PREPARED 'before'");
    until_passed_through(&lab, &primary, &relay);
    for gid in ["after", "late"] {
        primary.run(&format!("COMMIT PREPARED '{gid}'"));
    }
    until_same(&primary, &subscriber, "t");
    prepare(&primary, "last", 6);
    until_prepared(&subscriber, 1);
    subscriber.run("ALTER SUBSCRIPTION s DISABLE");
    subscriber.run("ALTER SUBSCRIPTION s ENABLE");
    primary.run("COMMIT PREPARED 'last'");
    until_prepared(&subscriber, 0);
    until_same(&primary, &subscriber, "t");
    drop((subscriber, relay, primary));
}

/// From 18 on two-phase commit can be altered, both ways.
#[test]
fn two_phase_commit_is_altered() {
    let major = for_tests::major().unwrap();
    if major.get() < 18 {
        println!("ELSEWHERE: PostgreSQL {major} cannot alter two_phase");
        return;
    }
    let lab = TestLab::with_extension().start().unwrap();
    let (primary, subscriber) = servers(&lab);
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    subscribe(&subscriber, &relay.conninfo(), "disable_on_error = true");
    primary.run("INSERT INTO t VALUES (1)");
    until_same(&primary, &subscriber, "t");
    let alter = |options: &str| {
        for what in ["DISABLE", &format!("SET ({options})"), "ENABLE"] {
            let sql = format!("ALTER SUBSCRIPTION s {what}");
            // While its worker ends it cannot be altered.
            until("it is altered", || subscriber.execute(&sql).ok());
        }
    };
    for round in 0..2 {
        until("the slot is the relay's", || {
            relay
                .console(&lab, "SHOW SLOTS")
                .starts_with("s|")
                .then_some(())
        });
        let id = 10 * (round + 1);
        prepare(&primary, "before", id);
        alter("two_phase = true");
        until_two_phase(&subscriber);
        prepare(&primary, "after", id + 1);
        until_prepared(&subscriber, 1);
        for gid in ["before", "after"] {
            primary.run(&format!("COMMIT PREPARED '{gid}'"));
        }
        until_same(&primary, &subscriber, "t");
        until_passed_through(&lab, &primary, &relay);
        until_prepared(&subscriber, 0);
        alter("two_phase = false");
    }
    prepare(&primary, "whole", 100);
    primary.run("INSERT INTO t VALUES (101)");
    until_answer(
        &subscriber,
        "SELECT count(*)::text FROM t WHERE id > 99",
        "1",
    );
    until_prepared(&subscriber, 0);
    primary.run("COMMIT PREPARED 'whole'");
    until_same(&primary, &subscriber, "t");
    drop((subscriber, relay, primary));
}

/// Prepared and other transactions, for pgbench.
const SCRIPT: &str = "\\set gid random(1, 1000000000)
\\set pause random(1, 60)
BEGIN;
INSERT INTO t SELECT nextval('ids');
PREPARE TRANSACTION 'g:gid';
\\sleep :pause ms
INSERT INTO t SELECT nextval('ids');
COMMIT PREPARED 'g:gid';
";

/// Rows of a table, as a number.
fn rows(server: &Server) -> Option<u64> {
    let text = server.query_text("SELECT count(*)::text FROM t").ok()??;
    text.parse().ok()
}

/// Ends all that the load has left prepared.
fn commit_prepared(primary: &Server) {
    let left = "SELECT string_agg(gid, ' ') FROM pg_prepared_xacts";
    let left = primary.query_text(left).unwrap().unwrap_or_default();
    for gid in left.split_whitespace() {
        primary.run(&format!("COMMIT PREPARED '{gid}'"));
    }
}

/// What dies while a slot goes back.
const VICTIMS: [&str; 5] = ["primary", "relay", "subscriber", "none", "primary"];

#[test]
fn a_kill_on_the_way_back_loses_no_prepared_transaction() {
    killed_on_the_way_back(&["primary"]);
}

#[test]
#[ignore = "long: make test-bed"]
fn kills_on_the_way_back_lose_no_prepared_transaction() {
    killed_on_the_way_back(&VICTIMS);
}

fn killed_on_the_way_back(victims: &[&str]) {
    let lab = TestLab::with_extension().start().unwrap();
    let (mut primary, mut subscriber) = servers(&lab);
    primary.run("CREATE SEQUENCE ids");
    let mut relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    let options = "synchronous_commit = 'on', copy_data = false";
    let script = lab.folder().join("load.sql");
    std::fs::write(&script, SCRIPT).unwrap();
    let load = ["--client=4", "--file", script.to_str().unwrap()];
    for (round, victim) in victims.iter().enumerate() {
        subscribe(&subscriber, &relay.conninfo(), options);
        let load = Load::on(&lab, &primary, &load);
        let more = |subscriber: &Server| {
            let before = until("the subscriber answers", || rows(subscriber));
            until("rows come", || {
                rows(subscriber).filter(|&now| now > before + 20)
            });
        };
        more(&subscriber);
        subscriber.run("ALTER SUBSCRIPTION s DISABLE");
        let before = rows(&primary).unwrap();
        until("there is something to send", || {
            rows(&primary).filter(|&now| now > before + 50)
        });
        subscriber.run("UPDATE pg_subscription SET subtwophasestate = 'p'");
        subscriber.run("ALTER SUBSCRIPTION s ENABLE");
        for kill in 0..3 {
            let pause = (round * 137 + kill * 89) % 400;
            std::thread::sleep(Duration::from_millis(pause.try_into().unwrap()));
            match *victim {
                "relay" => relay.restart(),
                "subscriber" => {
                    subscriber.kill().unwrap();
                    subscriber.start().unwrap();
                }
                "primary" => {
                    // Its slots go back to what they had saved, perhaps to before what the
                    // subscriber has confirmed. The subscriber comes again sooner than the relay.
                    primary.kill().unwrap();
                    std::thread::sleep(Duration::from_secs(2));
                    primary.start().unwrap();
                }
                _ => {}
            }
        }
        until_two_phase(&subscriber);
        until_passed_through(&lab, &primary, &relay);
        more(&subscriber);
        drop(load);
        commit_prepared(&primary);
        until_same(&primary, &subscriber, "t");
        until_prepared(&subscriber, 0);
        subscriber.run("DROP SUBSCRIPTION s");
    }
    drop((subscriber, relay, primary));
}
