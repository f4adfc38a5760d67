//! Slots of the relay that go back to the primary, and the databases that slots are of.

use std::fs;

use crate::relay_support::raw::{Raw, packet};
use crate::relay_support::{
    Relay, disable, slots, subscribe, table_on_both, until, until_answer, until_received,
    until_same, until_slots_free,
};
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{SUPERUSER, Server};

/// A subscription of table a, whose slot is the relay's.
struct Stage {
    subscriber: Server,
    relay: Relay,
    primary: Server,
}

impl Stage {
    /// The relay has a group for publication p, and makes no other.
    fn new(lab: &Lab) -> Self {
        let (primary, subscriber) = table_on_both(lab, "a (id int PRIMARY KEY)");
        let other = "CREATE TABLE b (id int PRIMARY KEY)";
        primary.run(other);
        subscriber.run(other);
        primary.run("CREATE PUBLICATION q FOR TABLE b");
        let file = lab.folder().join("relay.toml");
        let text = "auto_groups = false\n[[group]]\nname = 'g'\ndatabase = 'postgres'\n\
                    publications = ['p']\n";
        fs::write(&file, text).unwrap();
        let config = ["--config", file.to_str().unwrap()];
        let relay = Relay::start(lab, &primary.conninfo(SUPERUSER), &config);
        until("the group is there", || {
            (slots(&primary) == "lockstep_g").then_some(())
        });
        let sql = format!(
            "CREATE SUBSCRIPTION s CONNECTION '{}' PUBLICATION p WITH (disable_on_error = true)",
            relay.conninfo()
        );
        subscriber.run(&sql);
        let stage = Self {
            subscriber,
            relay,
            primary,
        };
        stage.insert("1");
        stage.until_all_is_there();
        stage.until_slots("lockstep_g");
        stage
    }

    fn insert(&self, ids: &str) {
        let sql = format!("INSERT INTO a SELECT {ids}");
        self.primary.run(&sql);
    }

    fn until_all_is_there(&self) {
        until_same(&self.primary, &self.subscriber, "a");
    }

    fn until_slots(&self, on_the_primary: &str) {
        until("the primary has these slots", || {
            (slots(&self.primary) == on_the_primary).then_some(())
        });
    }

    /// Takes the subscriber away while there is something for it, so that a copy of its slot on
    /// the primary is ahead of the slot.
    fn leave_behind(&self, lab: &Lab, ids: &str) {
        disable(lab, &self.subscriber, "s", &self.relay);
        self.insert(ids);
        until_received(&self.primary);
    }

    /// Asks for the slot as only the primary can serve it, and leaves.
    fn send_back(&self) {
        let mut client = logged_in(Raw::tcp(self.relay.port));
        assert!(client.refusal(&start("p, q")).is_none());
        drop(client);
        assert_eq!(slots(&self.primary), "lockstep_g s");
    }
}

fn start(publications: &str) -> String {
    format!(
        "START_REPLICATION SLOT s LOGICAL 0/0 \
         (proto_version '1', publication_names '{publications}')"
    )
}

fn logged_in(client: Raw) -> Raw {
    logged_in_as(client, SUPERUSER, "postgres")
}

fn logged_in_as(client: Raw, user: &str, database: &str) -> Raw {
    let parameters = [
        ("user", user),
        ("database", database),
        ("replication", "database"),
    ];
    client.log_in(&packet(&parameters)).unwrap()
}

/// What one stream cannot serve goes back to the primary, and nothing is lost on the way. It is
/// no error for the subscription, which would be disabled.
#[test]
fn a_slot_goes_back_to_the_primary() {
    let lab = TestLab::with_extension().start().unwrap();
    let stage = Stage::new(&lab);
    let subscriber = &stage.subscriber;
    stage.leave_behind(&lab, "generate_series(2, 1000)");
    subscriber.run("ALTER SUBSCRIPTION s SET PUBLICATION p, q WITH (refresh = false)");
    subscriber.run("ALTER SUBSCRIPTION s ENABLE");
    stage.until_slots("lockstep_g s");
    stage.insert("generate_series(1001, 2000)");
    stage.until_all_is_there();
    let log = fs::read_to_string(subscriber.log()).unwrap();
    assert!(log.contains("data stream from publisher has ended"));
    assert!(!log.contains("unexpected result"), "{log}");
    let enabled = "SELECT subenabled::text FROM pg_subscription";
    until_answer(subscriber, enabled, "true");
    until("the relay has forgotten it", || {
        let left = stage.relay.console(&lab, "SHOW SLOTS");
        left.is_empty().then_some(())
    });
    stage.insert("3000");
    stage.until_all_is_there();
    subscriber.run("DROP SUBSCRIPTION s");
    assert_eq!(slots(&stage.primary), "lockstep_g");
}

/// A slot without its place in the relay would be served from its copy, which stands further on.
#[test]
fn a_slot_is_dropped_with_its_copy_or_not_at_all() {
    const DROP: &str = "DROP_REPLICATION_SLOT s WAIT";
    let lab = TestLab::with_extension().start().unwrap();
    let stage = Stage::new(&lab);
    let Stage { primary, relay, .. } = &stage;
    stage.leave_behind(&lab, "generate_series(2, 1000)");
    stage.send_back();
    let mut other = logged_in(Raw::socket(primary.sockets(), primary.port()));
    assert!(other.refusal(&start("p")).is_none());
    let mut client = logged_in(Raw::tcp(relay.port));
    let refused = client.refusal(DROP).unwrap();
    assert_eq!(refused.sqlstate, "55006", "{refused:?}");
    assert!(relay.console(&lab, "SHOW SLOTS").starts_with("s|"));
    drop(other);
    let active = "SELECT active::text FROM pg_replication_slots WHERE slot_name = 's'";
    until_answer(primary, active, "false");
    let enable = || {
        let enable = "ALTER SUBSCRIPTION s ENABLE";
        stage.subscriber.run(enable);
    };
    enable();
    stage.until_all_is_there();

    // With nothing in its way it goes with its copy.
    until("the relay has forgotten it", || {
        relay.console(&lab, "SHOW SLOTS").is_empty().then_some(())
    });
    until_answer(primary, active, "true");
    stage.subscriber.run("ALTER SUBSCRIPTION s DISABLE");
    until_answer(primary, active, "false");
    enable();
    stage.until_slots("lockstep_g");
    stage.leave_behind(&lab, "generate_series(1001, 2000)");
    stage.send_back();
    assert_eq!(client.refusal(DROP), None);
    assert_eq!(slots(primary), "lockstep_g");
    assert_eq!(relay.console(&lab, "SHOW SLOTS"), "");
}

/// A server copies a slot into another database, where its position means nothing.
#[test]
fn a_database_that_took_anothers_name_is_another() {
    let lab = TestLab::with_extension().start().unwrap();
    let (primary, subscriber) = table_on_both(&lab, "a (id int PRIMARY KEY)");
    let make = "CREATE TABLE a (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE a; \
                CREATE PUBLICATION q FOR TABLE a";
    let in_app = |sql: &str| {
        let address = primary.config(SUPERUSER, "test").database("app");
        address.connect().unwrap().execute(sql).unwrap();
    };
    primary.run("CREATE DATABASE app");
    in_app(make);
    let mut relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    let conninfo = relay.conninfo().replace("dbname=postgres", "dbname=app");
    subscribe(&subscriber, "s", &conninfo, "p");
    in_app("INSERT INTO a VALUES (1)");
    until_answer(&subscriber, "SELECT count(*)::text FROM a", "1");
    disable(&lab, &subscriber, "s", &relay);
    relay.stop();
    primary.run("ALTER DATABASE app RENAME TO old");
    primary.run("CREATE DATABASE app");
    in_app(make);
    in_app("INSERT INTO a VALUES (2)");
    relay.restart();
    // The slot is served from rows of a database that this role may not read.
    let forbid = "REVOKE CONNECT ON DATABASE old FROM PUBLIC; CREATE ROLE copier REPLICATION LOGIN";
    primary.run(forbid);
    let refused = |relay: &Relay| {
        let mut client = logged_in_as(Raw::tcp(relay.port), "copier", "app");
        client.refusal(&start("p")).map(|refused| refused.sqlstate)
    };
    assert_eq!(refused(&relay).as_deref(), Some("55000"));
    subscriber.run("ALTER SUBSCRIPTION s SET PUBLICATION q WITH (refresh = false)");
    subscriber.run("ALTER SUBSCRIPTION s ENABLE");
    until("the subscriber is told", || {
        let log = fs::read_to_string(subscriber.log()).unwrap();
        log.contains("replication slot \"s\" was not created in this database")
            .then_some(())
    });
    let log = relay.log();
    assert_eq!(log.matches("made a group").count(), 1, "{log}");

    // The same if nothing is left of the old one.
    disable(&lab, &subscriber, "s", &relay);
    relay.stop();
    until_slots_free(&primary);
    let drop_slots = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots";
    primary.run(drop_slots);
    primary.run("DROP DATABASE old");
    relay.restart();
    assert_eq!(refused(&relay).as_deref(), Some("55000"));
    drop((subscriber, relay, primary));
}
