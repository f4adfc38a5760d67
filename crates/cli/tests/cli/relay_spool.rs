//! `lockstep relay` and its spool: whose a slot is, what is damaged, what was left half made.

use std::fs;
use std::path::PathBuf;

use crate::relay_support::{
    Relay, logical, page, publisher, until, until_answer, until_ready, until_received, until_same,
    until_slots_free,
};
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::{self, TestLab, free_port};
use lockstep_lab::server::{SUPERUSER, Server};

/// Tables `orders` and `items` on both sides, each with a publication and a configured group of
/// its name.
struct Scene {
    subscriber: Server,
    primary: Server,
    config: PathBuf,
    lab: Lab,
}

impl Scene {
    fn new(groups: &[&str]) -> Self {
        let lab = TestLab::with_extension().start().unwrap();
        let primary = publisher(&lab);
        let subscriber = lab.primary("subscriber", None, &logical()).unwrap();
        for table in ["orders", "items"] {
            for server in [&primary, &subscriber] {
                server.run(&format!("CREATE TABLE {table} (id int PRIMARY KEY)"));
            }
            primary.run(&format!("CREATE PUBLICATION {table} FOR TABLE {table}"));
        }
        let config = lab.folder().join("relay.toml");
        let text: String = groups
            .iter()
            .map(|name| {
                format!(
                    "[[group]]\nname = '{name}'\ndatabase = 'postgres'\npublications = ['{name}']\n"
                )
            })
            .collect();
        fs::write(&config, text).unwrap();
        Self {
            subscriber,
            primary,
            config,
            lab,
        }
    }

    fn relay(&self, more: &[&str]) -> Relay {
        let config = self.config.display().to_string();
        let arguments = [&["--config", &config], more].concat();
        Relay::start(&self.lab, &self.primary.conninfo(SUPERUSER), &arguments)
    }

    fn subscribe(&self, relay: &Relay, publication: &str) {
        self.subscriber.run(&format!(
            "CREATE SUBSCRIPTION s_{publication} CONNECTION '{}' PUBLICATION {publication}",
            relay.conninfo()
        ));
    }

    /// Waits until a row has come by way of the relay's own slot.
    fn until_served(&self, relay: &Relay, table: &str) {
        until_ready(&self.subscriber);
        until_same(&self.primary, &self.subscriber, table);
        until("the slot is the relay's", || {
            let slots = relay.try_console(&self.lab, "SHOW SLOTS").ok()?;
            slots.contains(&format!("s_{table}|")).then_some(())
        });
        self.insert(table);
        until_same(&self.primary, &self.subscriber, table);
    }

    fn insert(&self, table: &str) {
        self.primary.run(&format!(
            "INSERT INTO {table} SELECT coalesce(max(id), 0) + 1 FROM {table}"
        ));
    }

    /// The relay's slots on the primary.
    fn slots(&self) -> Vec<String> {
        let sql = "SELECT string_agg(slot_name, ' ' ORDER BY slot_name) FROM pg_replication_slots \
             WHERE slot_name LIKE 'lockstep%'";
        let slots = self.primary.query_text(sql).unwrap().unwrap_or_default();
        slots.split_whitespace().map(str::to_owned).collect()
    }

    /// A row of `SHOW UPSTREAM`, once it has this in it.
    fn until_group(&self, relay: &Relay, group: &str, what: &str) -> String {
        until(&format!("group {group}: {what}"), || {
            let upstream = relay.try_console(&self.lab, "SHOW UPSTREAM").ok()?;
            let mut rows = upstream.lines();
            let row = rows.find(|row| row.starts_with(&format!("{group}|")))?;
            row.contains(what).then(|| row.to_owned())
        })
    }
}

#[test]
fn an_empty_spool_takes_no_slot_of_another() {
    let scene = Scene::new(&["orders"]);
    let mut relay = scene.relay(&[]);
    scene.until_group(&relay, "orders", "|streaming|");
    scene.subscribe(&relay, "orders");
    scene.until_served(&relay, "orders");
    let slots = scene.slots();
    assert_eq!(slots.len(), 1, "{slots:?}");

    // The spool's volume is not mounted: nothing is lost by it.
    assert_eq!(relay.stop(), Some(0));
    let away = relay.spool.with_extension("away");
    fs::rename(&relay.spool, &away).unwrap();
    relay.restart();
    let row = scene.until_group(&relay, "orders", "|failed|");
    assert!(row.contains(&slots[0]) && row.contains("mount it"), "{row}");
    until("the new spool is noticed", || {
        relay.log().contains("the spool is new").then_some(())
    });
    assert_eq!(scene.slots(), slots);
    assert_eq!(relay.stop(), Some(0));
    fs::remove_dir_all(&relay.spool).unwrap();
    fs::rename(&away, &relay.spool).unwrap();
    relay.restart();
    scene.insert("orders");
    until_same(&scene.primary, &scene.subscriber, "orders");
    scene.until_group(&relay, "orders", "|streaming|");

    // A second relay with the same configuration has a slot of its own beside that one.
    let second = scene.relay(&[]);
    scene.until_group(&second, "orders", "|streaming|");
    assert_eq!(scene.slots().len(), 2, "{:?}", scene.slots());
    scene.insert("orders");
    until_same(&scene.primary, &scene.subscriber, "orders");
    drop((second, relay, scene));
}

/// A spool of an earlier version has no identity, and its slot's name has none.
#[test]
fn a_spool_from_before_there_were_identities_continues() {
    let scene = Scene::new(&["orders"]);
    let mut relay = scene.relay(&[]);
    scene.until_group(&relay, "orders", "|streaming|");
    scene.subscribe(&relay, "orders");
    scene.until_served(&relay, "orders");
    assert_eq!(relay.stop(), Some(0));
    let slot = scene.slots().remove(0);
    until_slots_free(&scene.primary);
    scene.primary.run(&format!(
        "SELECT pg_copy_logical_replication_slot('{slot}', 'lockstep_orders'); \
             SELECT pg_drop_replication_slot('{slot}')"
    ));
    fs::remove_file(relay.spool.join("identity.json")).unwrap();
    let file = relay.spool.join("groups/orders/group.json");
    let text = fs::read_to_string(&file).unwrap();
    let (_, json) = text.split_once('\n').unwrap();
    let mut kept: serde_json::Value = serde_json::from_str(json).unwrap();
    kept["upstream_slot"] = "lockstep_orders".into();
    kept.as_object_mut().unwrap().remove("history").unwrap();
    let json = serde_json::to_string(&kept).unwrap();
    let sum = crate::relay_survives::crc32c(json.as_bytes());
    fs::write(&file, format!("{sum:08x}\n{json}")).unwrap();
    relay.restart();
    scene.insert("orders");
    until_same(&scene.primary, &scene.subscriber, "orders");
    scene.until_group(&relay, "orders", "|streaming|");
    assert_eq!(scene.slots(), ["lockstep_orders"]);
    assert!(!relay.log().contains("the spool is new"), "{}", relay.log());
    drop((relay, scene));
}

#[test]
fn a_damaged_group_does_not_stop_the_others() {
    let scene = Scene::new(&["orders", "items"]);
    let metrics = free_port().unwrap();
    let at = format!("127.0.0.1:{metrics}");
    let mut relay = scene.relay(&["--metrics", &at]);
    for group in ["orders", "items"] {
        scene.until_group(&relay, group, "|streaming|");
        scene.subscribe(&relay, group);
        scene.until_served(&relay, group);
    }
    assert!(page(metrics, "/healthz").starts_with("HTTP/1.1 200 "));
    let slots = scene.slots();
    assert_eq!(relay.stop(), Some(0));
    let file = relay.spool.join("groups/orders/group.json");
    let good = fs::read(&file).unwrap();
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    fs::write(&file, &bad).unwrap();
    relay.restart();

    scene.insert("items");
    scene.insert("orders");
    until_same(&scene.primary, &scene.subscriber, "items");
    scene.until_group(&relay, "items", "|streaming|");
    let row = scene.until_group(&relay, "orders", "|failed|");
    assert!(row.contains("group.json is damaged"), "{row}");
    let health = page(metrics, "/healthz");
    assert!(health.starts_with("HTTP/1.1 503 "), "{health}");
    assert!(health.contains("group.json is damaged"), "{health}");
    let failed = "lockstep_relay_upstream_state{group=\"orders\",state=\"failed\"} 1";
    assert!(page(metrics, "/metrics").contains(failed));
    until("its subscriber is told", || {
        let log = fs::read_to_string(scene.subscriber.log()).unwrap();
        log.contains("of replication slot \"s_orders\" cannot go on")
            .then_some(())
    });
    assert_eq!(scene.slots(), slots, "its slot waits for it");

    assert_eq!(relay.stop(), Some(0));
    fs::write(&file, &good).unwrap();
    relay.restart();
    until_same(&scene.primary, &scene.subscriber, "orders");
    drop((relay, scene));
}

/// A part of the spool that a slot still needs is damaged: the slot stands as failed.
#[test]
fn a_slot_that_can_never_go_on_says_so() {
    let scene = Scene::new(&["orders"]);
    let metrics = free_port().unwrap();
    let at = format!("127.0.0.1:{metrics}");
    let mut relay = scene.relay(&["--metrics", &at]);
    scene.until_group(&relay, "orders", "|streaming|");
    scene.subscribe(&relay, "orders");
    scene.until_served(&relay, "orders");
    scene.subscriber.run("ALTER SUBSCRIPTION s_orders DISABLE");
    until("nobody uses the slot", || {
        let active = "SELECT active_pid FROM lockstep_stat_logical_wal_cache()";
        let active = relay.try_console(&scene.lab, active).ok()?;
        active.is_empty().then_some(())
    });
    // More than a segment, so that an older one is damaged.
    for begin in (1_000..400_000).step_by(10_000) {
        let last = begin + 9_999;
        scene.primary.run(&format!(
            "INSERT INTO orders SELECT generate_series({begin}, {last})"
        ));
    }
    let log = relay.spool.join("groups/orders/log");
    let segments = || {
        let mut found: Vec<PathBuf> = fs::read_dir(&log)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.metadata().is_ok_and(|found| found.len() > 1_000_000))
            .collect();
        found.sort();
        found
    };
    until("the spool has two segments", || {
        (segments().len() > 1).then_some(())
    });
    scene.insert("orders");
    assert_eq!(relay.stop(), Some(0));
    let oldest = segments().remove(0);
    let mut bytes = fs::read(&oldest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&oldest, &bytes).unwrap();
    relay.restart();
    scene.subscriber.run("ALTER SUBSCRIPTION s_orders ENABLE");
    until("the slot stands as failed", || {
        let slots = relay.try_console(&scene.lab, "SHOW SLOTS").ok()?;
        slots.contains("is damaged at byte").then_some(())
    });
    let health = page(metrics, "/healthz");
    assert!(health.starts_with("HTTP/1.1 503 "), "{health}");
    assert!(health.contains("\"slot\":\"s_orders\""), "{health}");
    let failed = "lockstep_relay_slot_failed{group=\"orders\",slot=\"s_orders\"} 1";
    assert!(page(metrics, "/metrics").contains(failed));
    drop((relay, scene));
}

/// Bytes of the newest segment that were confirmed to the primary are damaged: nothing is cut,
/// the slot that needs them stands as failed, and the others go on.
#[test]
fn damage_of_what_was_confirmed_is_no_unwritten_end() {
    let scene = Scene::new(&["orders"]);
    let second = scene.lab.primary("second", None, &logical()).unwrap();
    second.run("CREATE TABLE orders (id int PRIMARY KEY)");
    let mut relay = scene.relay(&[]);
    scene.until_group(&relay, "orders", "|streaming|");
    scene.subscribe(&relay, "orders");
    scene.until_served(&relay, "orders");
    second.run(&format!(
        "CREATE SUBSCRIPTION s_second CONNECTION '{}' PUBLICATION orders",
        relay.conninfo()
    ));
    until_ready(&second);
    scene.subscriber.run("ALTER SUBSCRIPTION s_orders DISABLE");
    until("nobody uses the slot", || {
        let active = "SELECT * FROM lockstep_stat_logical_wal_cache()";
        let slots = relay.try_console(&scene.lab, active).ok()?;
        slots.contains("s_orders||").then_some(())
    });
    for begin in (1_000..11_000).step_by(1_000) {
        let last = begin + 999;
        scene.primary.run(&format!(
            "INSERT INTO orders SELECT generate_series({begin}, {last})"
        ));
    }
    until_same(&scene.primary, &second, "orders");
    until_received(&scene.primary);
    assert_eq!(relay.stop(), Some(0));

    let log = relay.spool.join("groups/orders/log");
    let mut segments: Vec<PathBuf> = fs::read_dir(&log)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "spool"))
        .collect();
    segments.sort();
    let newest = segments.pop().unwrap();
    let mut bytes = fs::read(&newest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 4].copy_from_slice(b"ruin");
    fs::write(&newest, &bytes).unwrap();
    relay.restart();

    scene.until_group(&relay, "orders", "|streaming|");
    assert_eq!(fs::read(&newest).unwrap(), bytes, "nothing is cut");
    let said = relay.log();
    assert_has!(said, "are lost to these slots", "s_orders");
    assert!(!said.contains("the primary sends it again"), "{said}");
    scene.insert("orders");
    until_same(&scene.primary, &second, "orders");
    scene.subscriber.run("ALTER SUBSCRIPTION s_orders ENABLE");
    until("the slot stands as failed", || {
        let slots = relay.try_console(&scene.lab, "SHOW SLOTS").ok()?;
        let mut failed = slots.lines().filter(|row| row.contains("is damaged"));
        failed.next()?.starts_with("s_orders|").then_some(())
    });
    let slots = relay.try_console(&scene.lab, "SHOW SLOTS").unwrap();
    let failed = slots.lines().filter(|row| row.contains("is damaged"));
    assert_eq!(failed.count(), 1, "{slots}");
    drop((relay, scene, second));
}

#[test]
fn a_missing_publication_is_said_once() {
    if for_tests::major().unwrap().get() >= 18 {
        println!("ELSEWHERE: from PostgreSQL 18 on a missing publication is no error");
        return;
    }
    let scene = Scene::new(&["nowhere"]);
    let metrics = free_port().unwrap();
    let at = format!("127.0.0.1:{metrics}");
    let relay = scene.relay(&["--metrics", &at]);
    let refusals = || {
        let log = fs::read_to_string(scene.primary.log()).unwrap();
        log.matches("publication \"nowhere\" does not exist")
            .count()
    };
    until("the group is made", || scene.slots().first().cloned());
    scene.insert("orders");
    until("it is tried again and again", || {
        (refusals() >= 3).then_some(())
    });
    let said = relay.log().matches("cannot go on").count();
    assert_eq!(said, 1, "{}", relay.log());
    let health = page(metrics, "/healthz");
    assert!(health.starts_with("HTTP/1.1 503 "), "{health}");
    drop(relay);

    // A group that nobody configured is no reason for an alarm of its own.
    fs::write(&scene.config, "").unwrap();
    let at = format!("127.0.0.1:{}", free_port().unwrap());
    let relay = scene.relay(&["--metrics", &at]);
    scene.subscriber.run(&format!(
        "CREATE SUBSCRIPTION s CONNECTION '{}' PUBLICATION elsewhere",
        relay.conninfo()
    ));
    until("its group is there", || {
        let upstream = relay.try_console(&scene.lab, "SHOW UPSTREAM").ok()?;
        upstream.starts_with("auto_").then_some(())
    });
    scene.insert("orders");
    let row = scene.until_group(&relay, &automatic(&scene, &relay), "|failed|");
    assert!(row.contains("\"elsewhere\" does not exist"), "{row}");
    // The subscriber's log has the cause in the message, as a client shows it that shows no detail.
    until("its subscriber is told why", || {
        let log = fs::read_to_string(scene.subscriber.log()).unwrap();
        let mut told = log.lines().filter(|line| line.contains("cannot go on: "));
        told.any(|line| line.contains("publication \"elsewhere\" does not exist"))
            .then_some(())
    });
    let port = at.rsplit(':').next().unwrap().parse().unwrap();
    let health = page(port, "/healthz");
    assert!(health.starts_with("HTTP/1.1 200 "), "{health}");
    drop((relay, scene));
}

/// The name of the first group.
fn automatic(scene: &Scene, relay: &Relay) -> String {
    let upstream = relay.console(&scene.lab, "SHOW UPSTREAM");
    upstream.split('|').next().unwrap().to_owned()
}

/// A crash leaves such slots while a group is made.
#[test]
fn slots_of_the_spool_that_no_group_has_are_dropped() {
    let scene = Scene::new(&["orders"]);
    let mut relay = scene.relay(&[]);
    scene.until_group(&relay, "orders", "|streaming|");
    assert_eq!(relay.stop(), Some(0));
    let slots = scene.slots();
    let identity = slots[0].rsplit('_').next().unwrap();
    let left = format!("lockstep_left_{identity}");
    let others = ["lockstep_left_ffffffffffff", "lockstep_left"];
    for slot in [&left, others[0], others[1]] {
        scene.primary.run(&format!(
            "SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"
        ));
    }
    relay.restart();
    let count =
        format!("SELECT count(*)::text FROM pg_replication_slots WHERE slot_name = '{left}'");
    until_answer(&scene.primary, &count, "0");
    scene.until_group(&relay, "orders", "|streaming|");
    let mut expected = vec![slots[0].clone(), others[0].to_owned(), others[1].to_owned()];
    expected.sort();
    assert_eq!(scene.slots(), expected);
    drop((relay, scene));
}
