//! `lockstep relay` when something dies: nothing is lost, nothing comes twice.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::relay_support::load::Load;
use crate::relay_support::{
    Relay, allow_plugin, logical, publisher, until, until_answer, until_ready, until_same,
};
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::{self, TestLab};
use lockstep_lab::server::{SUPERUSER, Server, Settings, Stop};

/// What pgbench is told.
const LOAD: [&str; 2] = ["--client=2", "--rate=300"];

const TABLES: [&str; 4] = [
    "pgbench_accounts",
    "pgbench_branches",
    "pgbench_tellers",
    "pgbench_history",
];

/// pgbench's tables on both sides, rows on the primary, everything published.
fn tables(lab: &Lab, primary: &Server, subscribers: &[&Server]) {
    let initialise = |server: &Server, steps: &str| {
        let status = Command::new(lab.package().program("pgbench"))
            .args(["--initialize", "--quiet", "--init-steps", steps])
            .arg(server.conninfo(SUPERUSER))
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
    };
    initialise(primary, "dtgp");
    primary.run("CREATE PUBLICATION everything FOR ALL TABLES");
    for subscriber in subscribers {
        initialise(subscriber, "dtp");
    }
}

/// A publisher and a subscriber, both with the tables.
fn with_tables() -> (Lab, Server, Server) {
    let lab = TestLab::with_extension().start().unwrap();
    let primary = publisher(&lab);
    let subscriber = lab.primary("subscriber", None, &logical()).unwrap();
    tables(&lab, &primary, &[&subscriber]);
    (lab, primary, subscriber)
}

fn subscribe(subscriber: &Server, name: &str, relay: &Relay) {
    subscribe_with(subscriber, name, relay, "enabled = true");
}

fn subscribe_with(subscriber: &Server, name: &str, relay: &Relay, options: &str) {
    subscriber.run(&format!(
        "CREATE SUBSCRIPTION {name} CONNECTION '{}' PUBLICATION everything WITH ({options})",
        relay.conninfo()
    ));
    until_ready(subscriber);
}

/// How many rows have come since.
fn until_more(subscriber: &Server, rows: u64) {
    let count = || {
        let text = subscriber.query_text("SELECT count(*)::text FROM pgbench_history");
        text.ok()
            .flatten()
            .and_then(|text| text.parse::<u64>().ok())
    };
    let before = until("the subscriber answers", count);
    until("transactions go on", || {
        count().filter(|&now| now >= before + rows)
    });
}

#[test]
fn kills_of_each_part_lose_nothing() {
    let lab = TestLab::with_extension().start().unwrap();
    let mut primary = publisher(&lab);
    let mut subscriber = lab.primary("subscriber", None, &logical()).unwrap();
    tables(&lab, &primary, &[&subscriber]);
    let mut relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    // By default an apply worker that reconnects confirms what its server has not flushed yet,
    // and a crash of that server then loses it: see docs/relay.md.
    let options = "synchronous_commit = 'on'";
    subscribe_with(&subscriber, "s", &relay, options);
    until_same(&primary, &subscriber, "pgbench_accounts");
    for round in 0..2 {
        let load = Load::on(&lab, &primary, &LOAD);
        until_more(&subscriber, 100);
        relay.restart();
        until_more(&subscriber, 100);
        subscriber.kill().unwrap();
        subscriber.start().unwrap();
        until_more(&subscriber, 100);
        primary.kill().unwrap();
        primary.start().unwrap();
        until_more(&subscriber, 100);
        if round == 1 {
            assert_eq!(relay.stop(), Some(0), "{}", relay.log());
            relay.restart();
        }
        drop(load);
        for table in TABLES {
            until_same(&primary, &subscriber, table);
        }
    }
    drop((subscriber, relay, primary));
}

/// A copy of a slot's state, as tools have it that keep slots on standbys before 17.
pub fn copy_slot(from: &Server, to: &Server, slot: &str) {
    let (from, to) = (
        from.data().join("pg_replslot").join(slot),
        to.data().join("pg_replslot").join(slot),
    );
    // Owner and modes as well.
    let status = Command::new("cp")
        .arg("-a")
        .args([&from, &to])
        .status()
        .unwrap();
    assert!(status.success());
}

fn upstream_slot(primary: &Server) -> String {
    until("the relay has a slot", || {
        primary
            .query_text(
                "SELECT slot_name FROM pg_replication_slots WHERE slot_name LIKE 'lockstep%'",
            )
            .unwrap()
    })
}

/// Primary, standby, subscriber and a relay that knows both servers; the primary is then
/// stopped with everything replayed, and the standby promoted.
fn failed_over(lab: &Lab, with_slot: bool) -> (Server, Server, Relay) {
    let mut primary = publisher(lab);
    let mut standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
    allow_plugin(&mut standby);
    let subscriber = lab.primary("subscriber", None, &logical()).unwrap();
    tables(lab, &primary, &[&subscriber]);
    let both = format!(
        "host={folder},{folder} port={},{} user={SUPERUSER} dbname=postgres target_session_attrs=read-write",
        primary.port(),
        standby.port(),
        folder = Path::new(lab.folder()).display(),
    );
    let relay = Relay::start(lab, &both, &[]);
    subscribe(&subscriber, "s", &relay);
    for table in TABLES {
        until_same(&primary, &subscriber, table);
    }
    let slot = upstream_slot(&primary);
    if with_slot {
        // What is on disk may be older than what was confirmed.
        primary.run("CHECKPOINT");
        standby.stop(Stop::Fast).unwrap();
        copy_slot(&primary, &standby, &slot);
        standby.start().unwrap();
    }
    primary.run("UPDATE pgbench_tellers SET tbalance = tbalance + 1");
    until_same(&primary, &subscriber, "pgbench_tellers");
    let end = primary.flush_lsn().unwrap();
    until("the standby has all", || {
        standby.replay_lsn().ok().filter(|&lsn| lsn >= end)
    });
    primary.kill().unwrap();
    standby.run("SELECT pg_promote()");
    drop(primary);
    (standby, subscriber, relay)
}

#[test]
fn a_promoted_standby_with_the_slot_is_followed() {
    let lab = TestLab::with_extension().start().unwrap();
    let (new_primary, subscriber, relay) = failed_over(&lab, true);
    new_primary.run("UPDATE pgbench_branches SET bbalance = 77");
    for table in TABLES {
        until_same(&new_primary, &subscriber, table);
    }
    drop((subscriber, relay, new_primary));
}

#[test]
fn a_promoted_standby_without_the_slot_is_refused_in_words() {
    let lab = TestLab::with_extension().start().unwrap();
    let (new_primary, subscriber, relay) = failed_over(&lab, false);
    until("the relay says why", || {
        let upstream = relay.try_console(&lab, "SHOW UPSTREAM").ok()?;
        (upstream.contains("failed") && upstream.contains("does not exist on the primary"))
            .then_some(())
    });
    until("the subscriber is told", || {
        std::fs::read_to_string(subscriber.log())
            .unwrap()
            .contains("cannot go on")
            .then_some(())
    });
    drop((subscriber, relay, new_primary));
}

/// Before 17 there are none, and the relay says so.
fn failover_slots_are_missed(lab: &Lab, primary: &Server) {
    let subscriber = lab.primary("subscriber", None, &logical()).unwrap();
    tables(lab, primary, &[&subscriber]);
    let relay = Relay::start(lab, &primary.conninfo(SUPERUSER), &["--failover"]);
    subscribe(&subscriber, "s", &relay);
    until_same(primary, &subscriber, "pgbench_tellers");
    until("the relay warns", || {
        let warned = relay.log().contains("will not survive a failover");
        warned.then_some(())
    });
    println!(
        "ELSEWHERE: PostgreSQL {} has no failover slots",
        for_tests::major().unwrap()
    );
    drop((subscriber, relay));
}

#[test]
fn failover_slots_survive_a_primary_that_dies_under_load() {
    let lab = TestLab::with_extension().start().unwrap();
    let mut primary = publisher(&lab);
    if for_tests::major().unwrap().get() < 17 {
        return failover_slots_are_missed(&lab, &primary);
    }
    let settings = [
        ("sync_replication_slots", "on"),
        ("hot_standby_feedback", "on"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let mut standby = lab
        .standby(&primary, "standby", &settings.into_iter().collect())
        .unwrap();
    allow_plugin(&mut standby);
    // The standby's slot has its name. Not on the standby, which has none of that name.
    primary
        .set([("synchronized_standby_slots", "standby")])
        .unwrap();
    primary.reload().unwrap();
    let subscriber = lab.primary("subscriber", None, &logical()).unwrap();
    tables(&lab, &primary, &[&subscriber]);
    let file = lab.folder().join("relay.toml");
    let group = "[[group]]\nname = 'made'\ndatabase = 'postgres'\npublications = ['tellers']\n";
    std::fs::write(&file, format!("failover = true\n{group}")).unwrap();
    primary.run("CREATE PUBLICATION tellers FOR TABLE pgbench_tellers");
    let both = format!(
        "host={folder},{folder} port={},{} user={SUPERUSER} dbname=postgres target_session_attrs=read-write",
        primary.port(),
        standby.port(),
        folder = Path::new(lab.folder()).display(),
    );
    let relay = Relay::start(&lab, &both, &["--config", file.to_str().unwrap()]);
    subscribe_with(&subscriber, "s", &relay, "failover = true");
    until_same(&primary, &subscriber, "pgbench_accounts");

    // One that was created so, one that is a copy, both in time on the standby.
    let load = Load::on(&lab, &primary, &LOAD);
    let ours = "SELECT count(*)::text FROM pg_replication_slots WHERE slot_name LIKE 'lockstep%' AND failover";
    until_answer(&primary, ours, "2");
    until_answer(
        &standby,
        &format!("{ours} AND synced AND NOT temporary"),
        "2",
    );
    until_more(&subscriber, 300);
    primary.kill().unwrap();
    drop(load);
    standby.promote().unwrap();
    standby.run("UPDATE pgbench_branches SET bbalance = 77");
    for table in TABLES {
        until_same(&standby, &subscriber, table);
    }
    until("both groups stream", || {
        let upstream = relay.try_console(&lab, "SHOW UPSTREAM").ok()?;
        let streaming = upstream.lines().filter(|row| row.contains("|streaming|"));
        (streaming.count() == 2).then_some(())
    });
    drop((subscriber, relay, standby, primary));
}

/// What was asked for with the subscription is not taken away.
#[test]
fn a_failover_slot_is_the_primarys_where_the_relay_has_none() {
    let lab = TestLab::with_extension().start().unwrap();
    if for_tests::major().unwrap().get() < 17 {
        println!(
            "ELSEWHERE: PostgreSQL {} has no failover slots",
            for_tests::major().unwrap()
        );
        return;
    }
    let primary = publisher(&lab);
    let subscriber = lab.primary("subscriber", None, &logical()).unwrap();
    tables(&lab, &primary, &[&subscriber]);
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    subscribe_with(&subscriber, "s", &relay, "failover = true");
    until_same(&primary, &subscriber, "pgbench_accounts");
    primary.run("UPDATE pgbench_branches SET bbalance = 77");
    until_same(&primary, &subscriber, "pgbench_branches");
    let real = "SELECT failover::text FROM pg_replication_slots WHERE slot_name = 's' AND active";
    until_answer(&primary, real, "true");
    assert!(relay.log().contains("a failover slot"));
    drop((subscriber, relay, primary));
}

#[test]
fn a_slot_that_is_dropped_behind_the_relays_back_is_noticed() {
    let (lab, primary, subscriber) = with_tables();
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    subscribe(&subscriber, "s", &relay);
    let slot = upstream_slot(&primary);
    until("the slot is dropped", || {
        primary
            .query_text(&format!(
                "SELECT pg_terminate_backend(active_pid)::text FROM pg_replication_slots WHERE slot_name = '{slot}' AND active"
            ))
            .unwrap();
        primary
            .execute(&format!("SELECT pg_drop_replication_slot('{slot}')"))
            .ok()
    });
    until("the relay says so", || {
        relay
            .console(&lab, "SHOW UPSTREAM")
            .contains("does not exist on the primary")
            .then_some(())
    });
    // What it must not do: begin anew where transactions could be missing.
    assert_eq!(
        primary
            .query_text("SELECT count(*)::text FROM pg_replication_slots")
            .unwrap()
            .as_deref(),
        Some("0")
    );
    // What the documents say is to be done then.
    subscriber.run("DROP SUBSCRIPTION s");
    assert_eq!(relay.console(&lab, "SHOW SLOTS"), "");
    subscriber.run(&format!("TRUNCATE {}", TABLES.join(", ")));
    subscribe(&subscriber, "again", &relay);
    until_same(&primary, &subscriber, "pgbench_accounts");
    primary.run("UPDATE pgbench_tellers SET tbalance = tbalance + 1");
    until_same(&primary, &subscriber, "pgbench_tellers");
    drop((subscriber, relay, primary));
}

#[test]
fn a_corrupted_spool_is_never_served() {
    let (lab, primary, subscriber) = with_tables();
    let mut relay = Relay::start(
        &lab,
        &primary.conninfo(SUPERUSER),
        &["--logical-wal-cache", "0"],
    );
    subscribe(&subscriber, "s", &relay);
    until_same(&primary, &subscriber, "pgbench_accounts");
    subscriber.run("ALTER SUBSCRIPTION s DISABLE");
    until("the slot is free", || {
        let slots = relay.console(
            &lab,
            "SELECT active_pid FROM lockstep_stat_logical_wal_cache()",
        );
        slots.is_empty().then_some(())
    });
    primary
        .run("INSERT INTO pgbench_history (tid, filler) SELECT i, 'find me' FROM generate_series(1, 20000) \
            i");
    until_spooled(&relay, &lab);
    relay.kill();
    let segment = newest_segment(&relay.spool);
    let mut bytes = std::fs::read(&segment).unwrap();
    let place = bytes
        .windows(7)
        .position(|found| found == b"find me")
        .unwrap();
    bytes[place] ^= 1;
    std::fs::write(&segment, &bytes).unwrap();
    relay.restart();
    subscriber.run("ALTER SUBSCRIPTION s ENABLE");
    // Either it was not confirmed to the primary yet and comes again, or it is refused.
    let refused = "the subscriber is refused, or gets what is right";
    until(refused, || {
        let log = std::fs::read_to_string(subscriber.log()).unwrap();
        let count = subscriber
            .query_text("SELECT count(*)::text FROM pgbench_history WHERE filler LIKE 'find me%'")
            .unwrap();
        let right = count.as_deref() == Some("20000");
        (log.contains("damaged") || log.contains("cannot go on") || right).then_some(())
    });
    until_answer(
        &subscriber,
        "SELECT count(*)::text FROM pgbench_history WHERE filler NOT LIKE 'find me%'",
        "0",
    );
    drop((subscriber, relay, primary));
}

fn until_spooled(relay: &Relay, lab: &Lab) {
    let spooled = || {
        let found = relay.console(lab, "SHOW SPOOL");
        found
            .split('|')
            .filter_map(|field| field.parse::<u64>().ok())
            .max()
    };
    until("the spool has grown", || {
        spooled().filter(|&bytes| bytes > 1_000_000)
    });
}

fn newest_segment(spool: &Path) -> std::path::PathBuf {
    let groups = std::fs::read_dir(spool.join("groups")).unwrap();
    let log = groups
        .map(|entry| entry.unwrap().path().join("log"))
        .next()
        .unwrap();
    let files = std::fs::read_dir(log)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    files
        .filter(|path| path.metadata().unwrap().len() > 1_000_000)
        .max()
        .unwrap()
}

/// CRC-32C, bit by bit: the first line of the relay's `slots.json`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0x82F6_3B78 & 0_u32.wrapping_sub(crc & 1))
        })
    })
}

#[test]
fn an_adoption_that_a_crash_cut_short_is_finished() {
    let (lab, primary, subscriber) = with_tables();
    let mut relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    subscribe(&subscriber, "s", &relay);
    until_same(&primary, &subscriber, "pgbench_tellers");
    relay.kill();
    // As if it had been killed between noting the slot and dropping it on the primary.
    primary.run("SELECT pg_create_logical_replication_slot('s', 'pgoutput')");
    let stands = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 's'";
    let stands = primary.query_text(stands).unwrap().unwrap();
    set_adopting(&relay, Some(&stands));
    relay.restart();
    until_answer(&primary, COUNT_OF_S, "0");
    primary.run("UPDATE pgbench_tellers SET tbalance = 5");
    until_same(&primary, &subscriber, "pgbench_tellers");

    // Another slot of this name: not the one that was adopted.
    relay.kill();
    primary.run("SELECT pg_create_logical_replication_slot('s', 'pgoutput')");
    set_adopting(&relay, None);
    relay.restart();
    until("the relay leaves the slot alone", || {
        let said = relay.log().contains("has another slot of this name");
        said.then_some(())
    });
    until_answer(&primary, COUNT_OF_S, "1");
    drop((subscriber, relay, primary));
}

const COUNT_OF_S: &str = "SELECT count(*)::text FROM pg_replication_slots WHERE slot_name = 's'";

/// Has a stopped relay's file say that the primary may still have slot `s`, which stood at a
/// position when it was adopted.
fn set_adopting(relay: &Relay, stood: Option<&str>) {
    let file = relay.spool.join("slots.json");
    let text = std::fs::read_to_string(&file).unwrap();
    let (sum, json) = text.split_once('\n').unwrap();
    assert_eq!(sum, format!("{:08x}", crc32c(json.as_bytes())));
    let mut slots: serde_json::Value = serde_json::from_str(json).unwrap();
    let slot = &mut slots.as_array_mut().unwrap()[0];
    assert_eq!(slot["name"], "s");
    slot["adopting"] = true.into();
    if let Some(stood) = stood {
        slot["adopted_at"] = stood.into();
    }
    let json = serde_json::to_string(&slots).unwrap();
    std::fs::write(&file, format!("{:08x}\n{json}", crc32c(json.as_bytes()))).unwrap();
}
