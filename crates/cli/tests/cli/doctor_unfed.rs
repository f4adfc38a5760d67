//! Doctor on a standby that does not stream, and on one that restores all its WAL from an archive.

use crate::doctor_support::remedy::Pasted;
use crate::doctor_support::{brief, causes, doctor, first_cause, once_right};
use crate::relay_support::{until_answer, until_slots_free};
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{SUPERUSER, Server, Settings, Stop};
use serde_json::Value;

struct Pair {
    primary: Server,
    standby: Server,
    archive: String,
}

impl Pair {
    fn start(lab: &Lab) -> Self {
        let archive = lab.folder().join("archive");
        std::fs::create_dir(&archive).unwrap();
        lab.account().own(&archive).unwrap();
        let archive = archive.display().to_string();
        let settings = |of: &[(&str, &str)]| -> Settings {
            let own = of.iter();
            own.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect()
        };
        let command = format!("cp %p {archive}/%f");
        let primary = settings(&[
            ("archive_mode", "on"),
            ("archive_command", &command),
            ("autovacuum", "off"),
        ]);
        let primary = lab.primary("primary", None, &primary).unwrap();
        primary
            .run("CREATE TABLE t (id int, v text); INSERT INTO t SELECT i FROM generate_series(1, 1000) i");
        let standby = settings(&[
            ("wal_retrieve_retry_interval", "200ms"),
            ("max_standby_archive_delay", "-1"),
        ]);
        let mut standby = lab.standby(&primary, "standby", &standby).unwrap();
        standby.catch_up(&primary).unwrap();
        Self {
            primary,
            standby,
            archive,
        }
    }

    /// Changes a setting of the standby.
    fn set(&self, name: &str, value: &str) {
        let value = value.replace('\'', "''");
        self.standby
            .run(&format!("ALTER SYSTEM SET {name} = '{value}'"));
        self.standby.reload().unwrap();
    }

    /// Waits until a walreceiver has got WAL, or none has. One that is refused calls itself streaming, too.
    fn await_receivers(&self, number: &str) {
        let sql = "SELECT count(written_lsn)::text FROM pg_stat_wal_receiver";
        until_answer(&self.standby, sql, number);
    }

    /// Fills segments of WAL, and waits until they are archived.
    fn archive(&self, segments: usize) {
        for _ in 0..segments {
            for sql in ["INSERT INTO t VALUES (0)", "SELECT pg_switch_wal()"] {
                self.primary.run(sql);
            }
        }
        let waits =
            "SELECT count(*)::text FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'";
        until_answer(&self.primary, waits, "0");
    }

    fn examine(&self) -> (i32, Value) {
        let [primary, standby] = [&self.primary, &self.standby].map(|it| it.conninfo(SUPERUSER));
        let said = doctor(&[
            "--primary",
            &primary,
            "--standby",
            &standby,
            "--seconds",
            "3",
            "--output",
            "json",
        ]);
        let json = serde_json::from_str(&said.text).unwrap_or_else(|_| panic!("{}", said.error));
        (said.code, json)
    }

    /// What doctor says once this cause is the first one.
    fn assert_first(&self, cause: &str) -> Value {
        let unlike = "not_streaming".to_owned();
        let is_it = |(_, json): &(i32, Value)| {
            first_cause(json) == Some(cause) && !causes(json).contains(&unlike)
        };
        let said = once_right(|| self.examine(), is_it);
        assert!(is_it(&said), "{}", brief(&said.1));
        said.1
    }

    /// Waits until the standby has all rows that were archived.
    fn await_rows(&self) {
        let rows = "SELECT count(*)::text FROM t WHERE id = 0";
        let there = self.primary.query_text(rows).unwrap().unwrap();
        until_answer(&self.standby, rows, &there);
    }
}

#[test]
fn why_a_standby_does_not_stream_is_told() {
    let lab = TestLab::stock().start().unwrap();
    let pair = Pair::start(&lab);
    let conninfo = pair.standby.query_text("SHOW primary_conninfo");
    let conninfo = conninfo.unwrap().unwrap();

    pair.set("primary_slot_name", "gone");
    pair.await_receivers("0");
    let json = pair.assert_first("slot_missing");
    // As the remedy says.
    let remedy = json["findings"][0]["remedies"][0].as_str().unwrap();
    let sql = remedy.strip_prefix("on primary: ").unwrap();
    let (sql, _) = sql.split_once(';').unwrap();
    pair.primary.run(sql);
    pair.await_receivers("1");

    pair.set("primary_conninfo", &format!("{conninfo} port=1"));
    pair.await_receivers("0");
    pair.assert_first("upstream_elsewhere");
    pair.set("primary_conninfo", &conninfo);
    pair.await_receivers("1");
    diverged(pair);
}

/// A standby that was promoted and is a standby again, and a primary that knows nothing of that.
fn diverged(mut pair: Pair) {
    pair.standby.promote().unwrap();
    pair.standby.run("INSERT INTO t VALUES (-1)");
    pair.standby.stop(Stop::Fast).unwrap();
    let signal = pair.standby.data().join("standby.signal");
    std::fs::write(&signal, "").unwrap();
    pair.standby.start().unwrap();
    pair.await_receivers("0");
    let json = pair.assert_first("timeline_diverged");
    let said = json["findings"][0]["evidence"].to_string();
    assert_has!(said, "timeline 2", "timeline 1");
}

#[test]
fn a_standby_that_restores_from_an_archive_is_late_only_if_more_is_there() {
    let lab = TestLab::stock().start().unwrap();
    let pair = Pair::start(&lab);
    pair.set("restore_command", &format!("cp {}/%f %p", pair.archive));
    pair.set("primary_conninfo", "");
    pair.set("primary_slot_name", "");
    pair.await_receivers("0");
    until_slots_free(&pair.primary);
    let slots = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots";
    pair.primary.run(slots);
    let examine_archived = || {
        // What the server's own processes write meanwhile is not archived, and no lag.
        pair.archive(3);
        pair.await_rows();
        pair.examine()
    };
    let is_well = |(code, json): &(i32, Value)| *code == 0 && causes(json).is_empty();
    let (code, json) = once_right(examine_archived, is_well);
    assert_eq!(causes(&json), [""; 0], "{}", brief(&json));
    assert_eq!(json["links"][0]["behind"], false, "{}", brief(&json));
    assert_eq!(code, 0, "{}", json["unknown"]);

    // What is not archived yet is not there, and with the remedy that is bounded.
    pair.primary.run("INSERT INTO t VALUES (7)");
    let is_late = |(code, json): &(i32, Value)| {
        (*code, json["healthy"] == true) == (0, false) && causes(json) == ["not_archived_yet"]
    };
    let (code, json) = once_right(|| pair.examine(), is_late);
    assert!(is_late(&(code, json.clone())), "{code} {}", brief(&json));
    let mut remedies = json["findings"][0]["remedies"].as_array().unwrap().iter();
    let remedy = remedies.find(|it| it.to_string().contains("archive_timeout = '60s'"));
    let pasted = Pasted::of(remedy.unwrap().as_str().unwrap());
    pasted.execute(&pair.primary, &pasted.statements);
    until_answer(&pair.primary, "SHOW archive_timeout", "1min");
    let is_well = |(code, json): &(i32, Value)| *code == 0 && json["healthy"] == true;
    let said = once_right(|| pair.examine(), is_well);
    assert!(is_well(&said), "{}", brief(&said.1));
    pair.archive(1);
    until_answer(
        &pair.standby,
        "SELECT count(*)::text FROM t WHERE id = 7",
        "2",
    );

    // A conflict is one here, too.
    let mut reader = pair.standby.connect(SUPERUSER, "reader").unwrap();
    reader
        .execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM t")
        .unwrap();
    for sql in ["DELETE FROM t WHERE id > 500", "VACUUM t"] {
        pair.primary.run(sql);
    }
    pair.archive(4);
    let waits = "SELECT wait_event FROM pg_stat_activity WHERE backend_type = 'startup'";
    until_answer(&pair.standby, waits, "RecoveryConflictSnapshot");
    let json = pair.assert_first("recovery_conflict");
    let remedies = json["findings"][0]["remedies"].to_string();
    assert_has!(
        remedies,
        "max_standby_archive_delay (now -1, which means for ever)"
    );
    drop(reader);
    until_answer(
        &pair.standby,
        "SELECT count(*)::text FROM t WHERE id > 500",
        "0",
    );

    // Segments that are full: replay does not wait until those after them are there, too. All are there
    // before the standby gets the first.
    pair.set("restore_command", "/bin/false");
    for _ in 0..20 {
        let fill = "SELECT pg_logical_emit_message(false, 'x', repeat('x', 16000000))";
        pair.primary.run(fill);
    }
    pair.archive(1);
    let slow = format!("sleep 1; cp {}/%f %p", pair.archive);
    pair.set("restore_command", &slow);
    pair.assert_first("restore_slow");
    pair.set("restore_command", &format!("cp {}/%f %p", pair.archive));
    pair.await_rows();

    // One segment that stays away is enough.
    pair.set("restore_command", "/bin/false");
    pair.archive(1);
    pair.assert_first("restore_fails");
    pair.archive(3);
    let json = pair.assert_first("restore_fails");
    // As the remedy says, with a command that works.
    let mut remedies = json["findings"][0]["remedies"].as_array().unwrap().iter();
    let remedy = remedies.find_map(|it| it.as_str()?.strip_prefix("on standby: "));
    for sql in remedy.unwrap().split(';').take(2) {
        let sql = sql.replace("...", &format!("cp {}/%f %p", pair.archive));
        pair.standby.execute(&sql).unwrap();
    }
    pair.await_rows();
}
