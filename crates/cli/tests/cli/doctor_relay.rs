//! `lockstep doctor` where a relay stands between the primary and its subscribers, on real
//! servers.

use crate::doctor_support::{brief, causes, doctor, first_cause, once_right, untroubled};
use crate::relay_support::{Relay, logical, publisher, until, until_answer, until_same};
use lockstep_bench::fault::Writer;
use lockstep_client::{Connection, Conninfo, Purpose};
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{DATABASE, SUPERUSER, Server};
use lockstep_lag::monitor::{LEAST_WINDOW, Monitor, Settings};
use lockstep_lag::{Node, Role};
use serde_json::Value;
use std::time::Duration;

/// A primary, a relay and a subscriber, and somebody who writes.
struct Scene {
    lab: Lab,
    primary: Server,
    subscriber: Server,
    relay: Relay,
    writer: Option<Writer>,
}

impl Scene {
    fn start(args: &[&str]) -> Self {
        let lab = TestLab::with_extension().start().unwrap();
        let primary = publisher(&lab);
        let subscriber = lab.primary("subscriber", None, &logical()).unwrap();
        for server in [&primary, &subscriber] {
            server.run("CREATE TABLE t (id bigserial PRIMARY KEY, v text)");
        }
        primary.run("CREATE PUBLICATION p FOR TABLE t");
        let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), args);
        subscriber.run(&format!(
            "CREATE SUBSCRIPTION s CONNECTION '{}' PUBLICATION p",
            relay.conninfo()
        ));
        let mut scene = Self {
            lab,
            primary,
            subscriber,
            relay,
            writer: None,
        };
        scene.write("repeat('x', 100)");
        scene.stop_writing();
        until("the relay has the slot", || {
            let slots = scene.relay.console(&scene.lab, "SHOW SLOTS");
            slots.starts_with("s|").then_some(())
        });
        scene
    }

    fn write(&mut self, value: &str) {
        let sql = format!("INSERT INTO t (v) VALUES ({value})");
        let pause = Duration::from_millis(100);
        self.writer = Some(Writer::start(&self.primary, DATABASE, &sql, pause).unwrap());
    }

    /// Waits until the subscriber has all.
    fn stop_writing(&mut self) {
        self.writer = None;
        until_same(&self.primary, &self.subscriber, "t");
    }

    fn console(&self, role: &str) -> String {
        format!("host=127.0.0.1 port={} user={role}", self.relay.port)
    }

    /// What doctor says of the three.
    fn examine(&self, seconds: u32) -> (i32, Value) {
        ask(
            &[
                ("--primary", &self.primary.conninfo(SUPERUSER)),
                ("--relay", &self.console(SUPERUSER)),
                ("--subscriber", &self.subscriber.conninfo(SUPERUSER)),
            ],
            seconds,
        )
    }

    /// What doctor says of the three once that is `right`.
    fn examine_until(&self, seconds: u32, right: impl Fn(i32, &Value) -> bool) -> (i32, Value) {
        once_right(|| self.examine(seconds), |(code, json)| right(*code, json))
    }
}

fn ask(nodes: &[(&str, &str)], seconds: u32) -> (i32, Value) {
    let seconds = seconds.to_string();
    let mut args = vec!["--seconds", &seconds, "--output", "json"];
    for (option, conninfo) in nodes {
        args.extend([*option, *conninfo]);
    }
    let said = doctor(&args);
    let json = serde_json::from_str(&said.text).unwrap_or_else(|_| panic!("{}", said.error));
    (said.code, json)
}

fn trouble_of(json: &Value, node: &str) -> String {
    let nodes = json["nodes"].as_array().unwrap();
    let node = nodes.iter().find(|one| one["name"] == node).unwrap();
    node["troubles"].to_string()
}

fn link<'j>(json: &'j Value, upstream: &str) -> &'j Value {
    let links = json["links"].as_array().unwrap();
    let found = links.iter().find(|link| link["upstream"] == upstream);
    found.unwrap_or_else(|| panic!("nothing from {upstream}: {}", brief(json)))
}

#[test]
fn the_way_through_a_relay_is_watched() {
    let mut scene = Scene::start(&[]);
    healthy(&mut scene);
    monitored(&mut scene);
    blocked(&mut scene);
    late_flush(&mut scene);
    rights(&scene);
    wrong_roles(&scene);
    away(&mut scene);
}

fn healthy(scene: &mut Scene) {
    scene.write("repeat('x', 100)");
    let is_usual = |json: &Value| {
        let mut causes = causes(json).into_iter();
        causes.all(|cause| cause == "asynchronous_apply_commit")
    };
    let (code, json) = scene.examine_until(3, |code, json| code == 0 && is_usual(json));
    scene.stop_writing();
    assert_eq!(code, 0, "{}", brief(&json));
    assert_eq!(json["healthy"], true, "{}", brief(&json));
    assert!(untroubled(&json), "{}", json["nodes"]);
    assert_eq!(json["links"].as_array().unwrap().len(), 2, "{json}");
    let first = link(&json, "primary");
    assert!(first["replica"].as_str().unwrap().starts_with("relay ("));
    assert_eq!(link(&json, "relay")["replica"], "subscriber");
    assert!(json["nodes"][1]["relay_version"].is_string(), "{json}");
    assert!(is_usual(&json), "{}", brief(&json));
}

/// The core of `top` and `serve` shows both legs, the cache and the slots; it outlives a restart
/// of the relay.
fn monitored(scene: &mut Scene) {
    let node = |name: &str, role, conninfo: &str| Node {
        name: name.to_owned(),
        role,
        conninfo: Conninfo::parse(conninfo).unwrap(),
    };
    let console = format!("{} dbname=lockstep", scene.console(SUPERUSER));
    let monitor = Monitor::start(
        vec![
            node("primary", Role::Primary, &scene.primary.conninfo(SUPERUSER)),
            node("relay", Role::Relay, &console),
            node(
                "shop",
                Role::Subscriber,
                &scene.subscriber.conninfo(SUPERUSER),
            ),
        ]
        .into(),
        Settings {
            application_name: "test".to_owned(),
            every: Duration::from_millis(200),
            window: LEAST_WINDOW,
            heartbeat: false,
        },
    );
    scene.write("repeat('x', 10000)");
    let streams = |after: u64| {
        until("both legs are shown", || {
            let state = monitor.state_after(after, Duration::from_secs(1));
            let relay = state.nodes[1].relay.clone()?;
            let [first, second] = &state.links[..] else {
                return None;
            };
            let group = relay.groups.first()?;
            let whole = first.id == format!("primary/relay ({})", group.name)
                && second.id == "relay/shop"
                && group.is_streaming()
                && relay.slot("s")?.active_pid.is_some()
                && second.replay_lsn.is_some();
            whole.then_some((state.number, relay))
        })
    };
    let (number, relay) = streams(0);
    assert_eq!(relay.groups[0].cache_limit_bytes, 16 * 1024 * 1024);
    let blocks = |relay: &lockstep_lag::relay::Relay| {
        let slot = relay.slot("s").unwrap();
        slot.cache_hit + slot.cache_miss
    };
    until("blocks are counted", || {
        let relay = monitor.state().nodes[1].relay.clone()?;
        (blocks(&relay) > 3).then_some(())
    });
    scene.relay.kill();
    until("the relay is away", || {
        let state = monitor.state();
        (!state.nodes[1].usable && state.nodes[2].usable).then_some(())
    });
    scene.relay.restart();
    streams(number);
    assert!(
        monitor
            .history(0)
            .iter()
            .any(|link| link.id == "relay/shop")
    );
    scene.stop_writing();
}

/// Somebody holds a lock at the subscriber: blamed there, and not at the relay.
fn blocked(scene: &mut Scene) {
    // With names and words that a terminal would obey.
    scene
        .subscriber
        .run("CREATE ROLE \"evil\x1b[31m\" LOGIN SUPERUSER");
    let conninfo = scene.subscriber.conninfo("'evil\x1b[31m'");
    let conninfo = Conninfo::parse(&conninfo).unwrap();
    let mut holder = Connection::connect(&conninfo, Purpose::Sql, "holder").unwrap();
    holder
        .query("BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE /* \x1b]0;owned\x07 */")
        .unwrap();
    let pid = holder.backend_pid().to_string();
    scene.write("repeat('x', 100)");
    let (code, json) = scene.examine_until(4, |_, json| {
        first_cause(json) == Some("apply_blocked") && link(json, "primary")["behind"] == false
    });
    let as_text = || {
        doctor(&[
            "--primary",
            &scene.primary.conninfo(SUPERUSER),
            "--relay",
            &scene.console(SUPERUSER),
            "--subscriber",
            &scene.subscriber.conninfo(SUPERUSER),
            "--seconds",
            "2",
        ])
    };
    let waits = "apply worker waits for a lock";
    let said = once_right(as_text, |said| said.error.contains(waits));
    holder.query("ROLLBACK").unwrap();
    scene.stop_writing();
    assert_eq!(code, 6, "{}", brief(&json));
    assert_eq!(causes(&json)[0], "apply_blocked", "{}", brief(&json));
    let first = &json["findings"][0];
    assert_eq!(first["at"], "subscriber");
    assert_eq!(first["names"]["upstream"], "relay");
    assert_eq!(first["names"]["pid"], pid.as_str());
    assert_eq!(link(&json, "primary")["behind"], false, "{}", brief(&json));
    assert_eq!(link(&json, "relay")["behind"], true);
    assert!(link(&json, "relay")["lag_bytes"].as_f64().unwrap() > 0.0);
    assert_has!(said.text, "evil", "owned");
    for text in [&said.text, &said.error] {
        let acts = |c: char| c.is_control() && c != '\n';
        assert!(!text.contains(acts), "{}", text.escape_debug());
    }
    assert!(said.error.contains(waits), "{}", said.error);
}

/// The default of subscriptions costs nobody anything behind a relay; it is said all the same,
/// and with the remedy in force no more.
fn late_flush(scene: &mut Scene) {
    for (commit, expected) in [("off", 1), ("on", 0)] {
        scene.subscriber.run(&format!(
            "ALTER SUBSCRIPTION s SET (synchronous_commit = {commit})"
        ));
        let worker = format!(
            "SELECT (subsynccommit = '{commit}')::text FROM pg_subscription s \
             JOIN pg_stat_subscription a ON a.subid = s.oid AND a.pid IS NOT NULL"
        );
        until_answer(&scene.subscriber, &worker, "true");
        scene.write("repeat('x', 100)");
        let (code, json) =
            scene.examine_until(3, |code, json| code == 0 && causes(json).len() == expected);
        scene.stop_writing();
        assert_eq!(code, 0, "{commit}: {}", brief(&json));
        let found = causes(&json);
        assert_eq!(found.len(), expected, "{commit}: {}", brief(&json));
        assert!(found.iter().all(|c| c == "asynchronous_apply_commit"));
    }
}

fn rights(scene: &Scene) {
    scene
        .primary
        .run("CREATE ROLE poor LOGIN; CREATE ROLE watcher LOGIN; GRANT pg_monitor TO watcher");
    scene.subscriber.run("CREATE ROLE poor LOGIN");
    let primary = scene.primary.conninfo(SUPERUSER);
    let poor = scene.subscriber.conninfo("poor");
    let nodes = [
        ("--primary", primary),
        ("--relay", scene.console("poor")),
        ("--relay", scene.console("watcher")),
        ("--subscriber", poor),
    ];
    let nodes: Vec<_> = nodes
        .iter()
        .map(|(option, it)| (*option, it.as_str()))
        .collect();
    let (code, json) = once_right(|| ask(&nodes, 1), |(code, _)| *code == 7);
    assert_eq!(code, 7, "{}", brief(&json));
    let said = trouble_of(&json, "relay1");
    assert_has!(said, "groups and slots", "GRANT pg_monitor TO poor");
    assert_eq!(trouble_of(&json, "relay2"), "[]");
    let said = trouble_of(&json, "subscriber");
    assert!(said.contains("pg_monitor"), "{said}");
}

fn wrong_roles(scene: &Scene) {
    let primary = scene.primary.conninfo(SUPERUSER);
    let console = format!("{} dbname=lockstep", scene.console(SUPERUSER));
    let (code, json) = ask(&[("--primary", &console)], 1);
    assert_eq!(code, 3);
    let said = trouble_of(&json, "primary");
    assert_has!(said, "wrong_role", "--relay");

    // A server, without the console's database and with one of that name.
    for database in ["", "CREATE DATABASE lockstep"] {
        if !database.is_empty() {
            scene.subscriber.run(database);
        }
        let server = scene.subscriber.conninfo(SUPERUSER);
        let (code, json) = ask(&[("--primary", &primary), ("--relay", &server)], 1);
        assert_eq!(code, 4);
        let said = trouble_of(&json, "relay");
        assert_has!(said, "wrong_role", "no relay");
    }

    // A relay of somebody else's primary.
    let (code, json) = ask(
        &[
            ("--primary", &scene.subscriber.conninfo(SUPERUSER)),
            ("--relay", &scene.console(SUPERUSER)),
        ],
        1,
    );
    assert_eq!(code, 4);
    let said = trouble_of(&json, "relay");
    assert!(said.contains("another primary"), "{said}");
}

/// A group that cannot go on is named with its reason; a relay that has gone hides no other.
fn away(scene: &mut Scene) {
    // The group's slot is taken away.
    scene.primary.run(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots; \
             DO $$ BEGIN LOOP BEGIN \
               PERFORM pg_drop_replication_slot(slot_name) FROM pg_replication_slots; \
               EXIT WHEN NOT EXISTS (SELECT FROM pg_replication_slots); \
             EXCEPTION WHEN object_in_use THEN \
               PERFORM pg_terminate_backend(active_pid) FROM pg_replication_slots; \
             END; PERFORM pg_sleep(0.01); END LOOP; END $$",
    );
    until("the group has failed", || {
        let upstream = scene.relay.console(&scene.lab, "SHOW UPSTREAM");
        upstream.contains("|failed|").then_some(())
    });
    let (code, json) = scene.examine_until(2, |_, json| {
        first_cause(json) == Some("relay_not_streaming")
    });
    assert_eq!(code, 6, "{}", brief(&json));
    assert_eq!(causes(&json)[0], "relay_not_streaming", "{}", brief(&json));
    let reason = json["findings"][0]["names"]["reason"].as_str().unwrap();
    assert!(reason.contains("does not exist"), "{reason}");

    scene.relay.kill();
    let (code, json) = scene.examine_until(1, |code, json| {
        code == 4
            && ["primary", "subscriber"]
                .iter()
                .all(|it| trouble_of(json, it) == "[]")
    });
    assert_eq!(code, 4, "{}", brief(&json));
    assert!(trouble_of(&json, "relay").contains("unreachable"));
    assert_eq!(trouble_of(&json, "primary"), "[]");
    assert_eq!(trouble_of(&json, "subscriber"), "[]");
}

/// The spool fills, because its only reader is away: the slot is named.
#[test]
fn a_spool_near_its_limit_is_found() {
    let mut scene = Scene::start(&["--spool-limit", "8MB", "--logical-wal-cache", "64kB"]);
    scene.subscriber.run("ALTER SUBSCRIPTION s DISABLE");
    until("the slot is free", || {
        let pids = "SELECT active_pid FROM lockstep_stat_logical_wal_cache()";
        let pid = scene.relay.console(&scene.lab, pids);
        pid.is_empty().then_some(())
    });
    scene.primary.run(
        "DO $$ BEGIN FOR i IN 1..24 LOOP \
               INSERT INTO t (v) SELECT repeat('x', 1000) FROM generate_series(1, 950); COMMIT; \
             END LOOP; END $$",
    );
    until("the relay waits", || {
        let upstream = scene.relay.console(&scene.lab, "SHOW UPSTREAM");
        upstream.contains("|waiting|").then_some(())
    });
    let is_near = "relay_spool_near_limit".to_owned();
    let (code, json) = scene.examine_until(2, |_, json| causes(json).contains(&is_near));
    assert_eq!(code, 6, "{}", brief(&json));
    let found = causes(&json);
    assert!(found.contains(&is_near), "{}", brief(&json));
    assert!(!found.contains(&"relay_not_streaming".to_owned()));
    let findings = json["findings"].as_array().unwrap();
    let spool = findings
        .iter()
        .find(|finding| finding["cause"] == "relay_spool_near_limit")
        .unwrap();
    assert_eq!(spool["names"]["slot"], "s");
    assert_eq!(spool["names"]["spool_limit"], "8.0 MB");
    scene.subscriber.run("ALTER SUBSCRIPTION s ENABLE");
    scene.stop_writing();
}
