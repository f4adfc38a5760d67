//! States that doctor once called healthy, on real servers: it finds each, or says that it does not know.

use crate::doctor_support::{Said, brief, doctor, first_cause, once_right};
use crate::relay_support::{until, until_answer};
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{DATABASE, SUPERUSER, Server, Settings};
use serde_json::Value;

/// A primary, a standby and a subscriber.
struct Servers {
    primary: Server,
    standby: Server,
    subscriber: Server,
}

fn settings(of: &[(&str, &str)]) -> Settings {
    let own = of.iter();
    own.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

impl Servers {
    fn start(lab: &Lab) -> Self {
        let primary = settings(&[
            ("wal_level", "logical"),
            ("archive_mode", "on"),
            ("archive_command", "/bin/true"),
            ("wal_receiver_status_interval", "1s"),
            ("hot_standby_feedback", "on"),
            ("autovacuum", "off"),
        ]);
        let primary = lab.primary("primary", None, &primary).unwrap();
        primary.run(
            "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (LIKE t INCLUDING ALL); \
                 ALTER TABLE t ADD COLUMN length int GENERATED ALWAYS AS (length(v)) STORED; \
                 INSERT INTO t VALUES (1, 'x'); INSERT INTO u VALUES (1, 'x'); \
                 CREATE TABLE log (v text); CREATE TABLE victim (id int, v text); \
                 CREATE PUBLICATION p FOR TABLE t",
        );
        let standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
        let retry = settings(&[("wal_retrieve_retry_interval", "1s")]);
        let subscriber = lab.primary("subscriber", None, &retry).unwrap();
        let subscribe = format!(
            "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (LIKE t INCLUDING ALL)\n\
             ;CREATE SUBSCRIPTION s CONNECTION 'host={} port={} user={SUPERUSER} dbname={DATABASE}' \
             PUBLICATION p",
            primary.sockets().display(),
            primary.port()
        );
        for sql in subscribe.split("\n;") {
            subscriber.run(sql);
        }
        let servers = Self {
            primary,
            standby,
            subscriber,
        };
        servers.await_tables("0");
        servers
    }

    /// Waits until so many tables are not synchronised.
    fn await_tables(&self, number: &str) {
        let sql = "SELECT count(*)::text FROM pg_subscription_rel WHERE srsubstate <> 'r'";
        until_answer(&self.subscriber, sql, number);
    }

    /// What doctor says of all three: its exit code, and its JSON.
    fn examine(&self) -> (i32, Value) {
        let [primary, standby, subscriber] =
            [&self.primary, &self.standby, &self.subscriber].map(|it| it.conninfo(SUPERUSER));
        let args = [
            "--primary",
            &primary,
            "--standby",
            &standby,
            "--subscriber",
            &subscriber,
            "--seconds",
            "3",
        ];
        examine(&args)
    }

    /// What doctor says of all three once that is `right`.
    fn examine_until(&self, right: impl Fn(i32, &Value) -> bool) -> (i32, Value) {
        once_right(|| self.examine(), |(code, json)| right(*code, json))
    }

    /// What doctor says of primary and standby, with another option, once it has these lines.
    fn ask(&self, option: &str, lines: &[&str]) -> Said {
        let [primary, standby] = [&self.primary, &self.standby].map(|it| it.conninfo(SUPERUSER));
        let nodes = ["--primary", &primary, "--standby", &standby];
        let args = [&nodes[..], &["--seconds", "1", option]].concat();
        let has_all = |said: &Said| lines.iter().all(|line| said.text.contains(line));
        let said = once_right(|| doctor(&args), has_all);
        for line in lines {
            assert_has!(said.text, line);
        }
        said
    }

    /// Nothing is wrong, and all is known.
    fn assert_well(&self) {
        let (code, json) = self.examine_until(|code, _| code == 0);
        assert_eq!(code, 0, "{} {}", json["unknown"], brief(&json));
        assert_eq!(json["healthy"], true, "{}", json["checks"]);
    }

    /// Doctor finds this risk.
    fn assert_found_risk(&self, cause: &str) -> Value {
        let is_it = |code, json: &Value| (first_cause(json), code) == (Some(cause), 0);
        let (code, json) = self.examine_until(is_it);
        assert!(is_it(code, &json), "{code} {}", brief(&json));
        json
    }

    /// Doctor finds this cause, with this exit code, and a check is wrong.
    fn assert_found(&self, cause: &str, code: i32, check: &str) -> Value {
        let is_it = |found, json: &Value| (first_cause(json), found) == (Some(cause), code);
        let (found, json) = self.examine_until(is_it);
        assert!(is_it(found, &json), "{found} {}", brief(&json));
        assert_eq!(json["healthy"], false);
        let mut checks = json["checks"].as_array().unwrap().iter();
        let is_wrong = checks.any(|one| one["check"] == check && one["answer"] == "wrong");
        assert!(is_wrong, "{}", json["checks"]);
        json
    }
}

fn examine(args: &[&str]) -> (i32, Value) {
    let said = doctor(&[args, &["--output", "json"]].concat());
    let json = serde_json::from_str(&said.text).unwrap_or_else(|_| panic!("{}", said.error));
    (said.code, json)
}

#[test]
fn what_was_called_healthy_is_found_or_not_known() {
    let lab = TestLab::stock().start().unwrap();
    let mut servers = Servers::start(&lab);
    servers.assert_well();
    quiet(&servers);
    explained(&servers);
    ready(&mut servers);
    copy_that_fails(&servers);
    copy_that_waits(&servers);
    renamed(&servers);
    strange_state(&servers);
    identity(&servers);
    filters_and_lists(&servers);
    archiver(&servers);
    abandoned_slot(&servers);
    dead_rows(&servers);
    servers.assert_well();
    alone(&servers.subscriber);
    servers.standby.promote().unwrap();
    let json = servers.assert_found("two_primaries", 6, "one_primary");
    let said = json["findings"][0].to_string();
    assert!(said.contains("standby writes timeline 2"), "{said}");
}

/// Nobody commits, so the WAL writer flushes whole pages only, and the last record goes on behind them.
fn quiet(servers: &Servers) {
    let emit = "SELECT pg_logical_emit_message(false, 'x', repeat('x', 20000))";
    servers.primary.run(emit);
    let within = "(pg_current_wal_flush_lsn() - '0/0')::bigint % 8192 = 0 \
                  AND pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn()";
    until_answer(
        &servers.primary,
        &format!("SELECT ({within})::text"),
        "true",
    );
    servers.assert_well();
}

/// Each check is explained, with what has come of it.
fn explained(servers: &Servers) {
    let lines = [
        "one_primary: ",
        "  + all nodes: primary takes the writes",
        "  asked: ",
    ];
    let said = servers.ask("--explain", &lines);
    assert_eq!(said.code, 0, "{}", said.error);
}

/// Which standby would be promoted, what it lacks, and what would be missing on it.
fn ready(servers: &mut Servers) {
    let lines = [
        "Ready to fail over: standby is the first choice.",
        "1. standby: has received all WAL; sync_state is async; timeline 1",
        "   logical slots that are not there, so that their consumers lose changes: s",
    ];
    servers.ask("--ready-to-fail-over", &lines);
    // WAL that it has received is replayed before it is promoted.
    servers.standby.run("SELECT pg_wal_replay_pause()");
    let paused = "SELECT pg_get_wal_replay_pause_state()";
    until_answer(&servers.standby, paused, "paused");
    servers
        .primary
        .run("INSERT INTO victim VALUES (-1, 'late')");
    let received = format!(
        "SELECT (pg_last_wal_receive_lsn() >= '{}')::text",
        servers.primary.flush_lsn().unwrap()
    );
    until_answer(&servers.standby, &received, "true");
    let pieces = [
        "Not ready to fail over",
        "against it: replay is paused",
        "would be replayed first",
    ];
    servers.ask("--ready-to-fail-over", &pieces);
    servers.standby.run("SELECT pg_wal_replay_resume()");
    servers.standby.catch_up(&servers.primary).unwrap();
    servers.primary.run("TRUNCATE victim");
    servers.standby.catch_up(&servers.primary).unwrap();
}

/// A row is in the way of the copy of a table.
fn copy_that_fails(servers: &Servers) {
    servers
        .subscriber
        .run("INSERT INTO u VALUES (1, 'in the way')");
    servers.primary.run("ALTER PUBLICATION p ADD TABLE u");
    servers
        .subscriber
        .run("ALTER SUBSCRIPTION s REFRESH PUBLICATION");
    let failed = "SELECT (sync_error_count > 0)::text FROM pg_stat_subscription_stats";
    until_answer(&servers.subscriber, failed, "true");
    let json = servers.assert_found("initial_sync_fails", 6, "synchronised");
    assert_eq!(
        json["findings"][0]["names"]["tables"],
        "public.u",
        "{}",
        brief(&json)
    );
    // As the remedy says: the copy begins anew by itself.
    servers.subscriber.run("DELETE FROM u");
    servers.await_tables("0");
    servers.assert_well();
}

/// Changes how many workers of the subscriber copy tables.
fn set_copiers(servers: &Servers, change: &str) {
    let sql = format!("ALTER SYSTEM {change}");
    servers.subscriber.run(&sql);
    servers.subscriber.reload().unwrap();
}

/// The copy of a table waits for a lock: on the publisher, then at the subscriber for a row with the same
/// key.
fn copy_that_waits(servers: &Servers) {
    let (primary, subscriber) = (&servers.primary, &servers.subscriber);
    primary.run("ALTER PUBLICATION p DROP TABLE u");
    subscriber.run("ALTER SUBSCRIPTION s REFRESH PUBLICATION");
    subscriber.run("DELETE FROM u");
    for (server, hold, name) in [
        (primary, "BEGIN; LOCK TABLE u", "primary"),
        (
            subscriber,
            "BEGIN; INSERT INTO u VALUES (1, 'not committed')",
            "subscriber",
        ),
    ] {
        set_copiers(servers, "SET max_sync_workers_per_subscription = 0");
        primary.run("ALTER PUBLICATION p ADD TABLE u");
        subscriber.run("ALTER SUBSCRIPTION s REFRESH PUBLICATION");
        let mut holder = server.connect(SUPERUSER, "holder").unwrap();
        holder.execute(hold).unwrap();
        set_copiers(servers, "RESET max_sync_workers_per_subscription");
        let waits =
            "SELECT (count(*) > 0)::text FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        until_answer(server, waits, "true");
        let json = servers.assert_found("initial_sync_blocked", 6, "synchronised");
        let first = &json["findings"][0];
        let pid = holder.backend_pid().to_string();
        assert_eq!(first["names"]["pid"], pid.as_str(), "{}", brief(&json));
        assert_eq!(first["names"]["holder_node"], name, "{}", brief(&json));
        // As the remedy says.
        let end = format!("SELECT pg_terminate_backend({pid})");
        assert!(
            first["remedies"].to_string().contains(&end),
            "{}",
            first["remedies"]
        );
        server.run(&end);
        servers.await_tables("0");
        servers.assert_well();
        primary.run("ALTER PUBLICATION p DROP TABLE u");
        subscriber.run("ALTER SUBSCRIPTION s REFRESH PUBLICATION");
        subscriber.run("DELETE FROM u");
    }
    primary.run("ALTER PUBLICATION p ADD TABLE u");
    subscriber.run("ALTER SUBSCRIPTION s REFRESH PUBLICATION");
    servers.await_tables("0");
    servers.assert_well();
}

/// A table gets another name, schema or column on the publisher: what doctor prints helps as it is pasted.
fn renamed(servers: &Servers) {
    let (primary, subscriber) = (&servers.primary, &servers.subscriber);
    for (there, cause, remedy) in [
        (
            "ALTER TABLE u RENAME TO \"U 2\"",
            "table_renamed",
            "ALTER TABLE public.u RENAME TO \"U 2\"",
        ),
        (
            "CREATE SCHEMA moved; ALTER TABLE \"U 2\" SET SCHEMA moved",
            "table_renamed",
            "CREATE SCHEMA IF NOT EXISTS moved; ALTER TABLE public.\"U 2\" SET SCHEMA moved",
        ),
        (
            "ALTER TABLE moved.\"U 2\" RENAME COLUMN v TO w",
            "columns_missing",
            "ALTER TABLE moved.\"U 2\" RENAME COLUMN v TO w",
        ),
    ] {
        primary.run(there);
        let json = servers.assert_found_risk(cause);
        let mut remedies = json["findings"][0]["remedies"].as_array().unwrap().iter();
        let has_it = |it: &Value| it.as_str().unwrap().contains(remedy);
        assert!(remedies.any(has_it), "{}", json["findings"][0]);
        for sql in remedy.split("; ") {
            subscriber.run(sql);
        }
        servers.assert_well();
    }
    for server in [primary, subscriber] {
        server.run(
            "ALTER TABLE moved.\"U 2\" RENAME COLUMN w TO v; ALTER TABLE moved.\"U 2\" SET SCHEMA public; \
             ALTER TABLE \"U 2\" RENAME TO u; DROP SCHEMA moved",
        );
    }
    servers.assert_well();
}

/// A relation of the subscription is in a state that no check knows.
fn strange_state(servers: &Servers) {
    let set = |state: &str| {
        let sql = format!(
            "UPDATE pg_subscription_rel SET srsubstate = '{state}' WHERE srrelid = 't'::regclass"
        );
        servers.subscriber.run(&sql);
    };
    // A worker that copies would take it for a table to copy.
    set_copiers(servers, "SET max_sync_workers_per_subscription = 0");
    set("z");
    let (code, json) = servers.examine_until(|code, _| code == 7);
    set("r");
    set_copiers(servers, "RESET max_sync_workers_per_subscription");
    assert_eq!(
        (code, &json["healthy"]),
        (7, &false.into()),
        "{}",
        brief(&json)
    );
    let said = json["unknown"].to_string();
    assert_has!(said, "whether the copy of its tables gets on");
    servers.assert_well();
}

/// Tables whose updates are refused: without a key, with one that is deferrable, with the index of the
/// replica identity dropped; a partition of a partition that is published as its root.
fn identity(servers: &Servers) {
    let primary = &servers.primary;
    for sql in [
        "CREATE TABLE log_deferred (v text PRIMARY KEY DEFERRABLE)",
        "CREATE TABLE log_dropped (v text NOT NULL); CREATE UNIQUE INDEX one ON log_dropped (v); \
         ALTER TABLE log_dropped REPLICA IDENTITY USING INDEX one; DROP INDEX one",
        "CREATE SCHEMA \"In\"; \
         CREATE TABLE root (v text) PARTITION BY LIST (v); \
         CREATE TABLE \"In\".middle PARTITION OF root DEFAULT PARTITION BY LIST (v); \
         CREATE TABLE \"In\".leaf PARTITION OF \"In\".middle DEFAULT",
        "CREATE PUBLICATION q FOR TABLE log, log_deferred, log_dropped, root \
         WITH (publish_via_partition_root = true)",
    ] {
        primary.run(sql);
    }
    let tables = ["log", "log_deferred", "log_dropped", "\"In\".leaf"];
    for table in tables {
        let insert = format!("INSERT INTO {table} VALUES ('x')");
        primary.run(&insert);
        let update = primary.execute(&format!("UPDATE {table} SET v = 'y'"));
        assert!(update.is_err(), "{table}");
    }
    let json = servers.assert_found("no_replica_identity", 0, "replica_identity");
    assert_eq!(
        json["findings"][0]["names"]["tables"],
        "\"In\".leaf, public.log, public.log_dropped",
        "{}",
        brief(&json)
    );
    let words = brief(&json);
    assert_has!(words, "deferrable", "public.log_deferred");
    // As the remedy says.
    for table in tables {
        let full = format!("ALTER TABLE {table} REPLICA IDENTITY FULL");
        primary.run(&full);
        let update = format!("UPDATE {table} SET v = 'y'");
        primary.run(&update);
    }
    servers.assert_well();
}

/// Tables whose updates or deletes are refused for their row filter or column list, a partition among them,
/// beside others whose filter or list is in order.
fn filters_and_lists(servers: &Servers) {
    let primary = &servers.primary;
    for sql in [
        "CREATE TABLE rf (id int PRIMARY KEY, \"V\" int, w int NOT NULL); \
         CREATE TABLE rl (LIKE rf INCLUDING ALL); CREATE TABLE rb (LIKE rf INCLUDING ALL); \
         CREATE TABLE rx (LIKE rf); ALTER TABLE rx REPLICA IDENTITY FULL; CREATE TABLE rn (LIKE rf); \
         CREATE TABLE fine (LIKE rf INCLUDING ALL); \
         CREATE TABLE part (id int, v int, PRIMARY KEY (id)) PARTITION BY LIST (id); \
         CREATE TABLE leaf (v int, id int NOT NULL); ALTER TABLE part ATTACH PARTITION leaf DEFAULT",
        "CREATE PUBLICATION prf FOR TABLE rf WHERE (\"V\" > 0 AND id > 0)",
        "CREATE PUBLICATION prl FOR TABLE rl (\"V\"), rx (id), rn (id), rb (id, w) WHERE (w > 0), \
         fine (id, \"V\") WHERE (id > 0) WITH (publish = 'insert, delete')",
        "CREATE PUBLICATION pin FOR TABLE fine (w) WHERE (w > 0) WITH (publish = 'insert')",
        "CREATE PUBLICATION root FOR TABLE part WHERE (v > 0) WITH (publish_via_partition_root)",
    ] {
        primary.run(sql);
    }
    let tables = ["leaf", "rb", "rf", "rl", "rn", "rx"];
    for table in tables {
        let insert = format!("INSERT INTO {table} VALUES (1, 1, 1)")
            .replace("leaf VALUES (1, ", "leaf VALUES (");
        primary.run(&insert);
        let delete = format!("DELETE FROM {table}");
        assert!(primary.execute(&delete).is_err(), "{table}");
    }
    primary.run("INSERT INTO fine VALUES (1, 1, 1); DELETE FROM fine");
    let json = servers.assert_found("no_replica_identity", 0, "replica_identity");
    let names = &json["findings"][0]["names"];
    for (name, expected) in [
        (
            "filtered",
            "public.leaf (v, in root), public.rb (w, in prl), public.rf (\"V\", in prf)",
        ),
        ("may_be_full", "public.leaf, public.rf"),
        ("listed", "public.rl (id, in prl)"),
        ("full_listed", "public.rx"),
        ("unidentified_listed", "public.rn"),
        ("tables", ""),
    ] {
        assert_eq!(
            names[name].as_str().unwrap_or_default(),
            expected,
            "{names}"
        );
    }
    // As the remedies say.
    for sql in [
        "ALTER TABLE leaf REPLICA IDENTITY FULL; ALTER TABLE rf REPLICA IDENTITY FULL",
        "CREATE UNIQUE INDEX by_w ON rb (id, w); ALTER TABLE rb REPLICA IDENTITY USING INDEX by_w",
        "BEGIN; ALTER PUBLICATION prl DROP TABLE rl; ALTER PUBLICATION prl ADD TABLE rl (\"V\", id); COMMIT",
        "ALTER TABLE rx REPLICA IDENTITY DEFAULT; ALTER TABLE rx ADD PRIMARY KEY (id)",
        "ALTER TABLE rn ADD PRIMARY KEY (id)",
    ] {
        primary.run(sql);
    }
    for table in tables {
        let delete = format!("DELETE FROM {table}");
        primary.run(&delete);
    }
    servers.assert_well();
}

/// The command does not end, so no segment fails.
fn archiver(servers: &Servers) {
    let set = |value: &str| {
        let sql = format!("ALTER SYSTEM SET archive_command = '{value}'");
        servers.primary.run(&sql);
        servers.primary.run("SELECT pg_reload_conf()");
    };
    let ready =
        "SELECT (count(*) >= 8)::text FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'";
    let switch = "SELECT pg_logical_emit_message(false, 'x', 'x'); SELECT pg_switch_wal()";
    set("sleep 600");
    // The first ones are archived as before, until the archiver has read the setting.
    until("eight segments wait for the archiver", || {
        servers.primary.run(switch);
        let waits = servers.primary.query_text(ready).unwrap();
        (waits.as_deref() == Some("true")).then_some(())
    });
    let json = servers.assert_found("archiver_failing", 0, "archiving");
    assert!(
        json["findings"][0]["evidence"][0]["value"]
            .as_f64()
            .unwrap()
            >= 8.0
    );
    set("/bin/true");
    // As the remedy says, somebody ends the command.
    let archiver = "SELECT pid::text FROM pg_stat_activity WHERE backend_type = 'archiver'";
    let pid = servers.primary.query_text(archiver).unwrap().unwrap();
    let ended = std::process::Command::new("sh")
        .args(["-c", &format!("kill $(ps -o pid= --ppid {pid})")])
        .status();
    assert!(ended.unwrap().success());
    let none =
        "SELECT (count(*) = 0)::text FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'";
    servers.primary.run(switch);
    until_answer(&servers.primary, none, "true");
    servers.assert_well();
}

/// A slot that keeps no WAL to speak of, and the rows of many transactions.
fn abandoned_slot(servers: &Servers) {
    let make = "SELECT pg_create_logical_replication_slot('abandoned', 'pgoutput')";
    servers.primary.run(make);
    let (code, json) = servers.examine_until(|code, _| code == 7);
    assert_eq!(code, 7, "{}", brief(&json));
    assert_has!(json["unknown"].to_string(), "slot abandoned on primary");
    let spend = "DO $$ BEGIN FOR i IN 1..100001 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$";
    servers.primary.run(spend);
    let json = servers.assert_found("unused_slot", 0, "slot");
    let kept = json["findings"][0]["evidence"][0]["value"]
        .as_f64()
        .unwrap();
    assert!(kept < 64.0 * 1024.0 * 1024.0, "{}", brief(&json));
    servers
        .primary
        .run("SELECT pg_drop_replication_slot('abandoned')");
}

/// One transaction deletes many rows, which a query of the standby keeps.
fn dead_rows(servers: &Servers) {
    let fill = "INSERT INTO victim SELECT i, 'x' FROM generate_series(1, 150000) i";
    servers.primary.run(fill);
    let mut reader = servers.standby.connect(SUPERUSER, "reader").unwrap();
    reader
        .execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM t")
        .unwrap();
    servers.primary.run("DELETE FROM victim");
    let old = "SELECT bool_or(now() - xact_start > '31s')::text FROM pg_stat_activity \
               WHERE application_name = 'reader'";
    until_answer(&servers.standby, old, "true");
    let json = servers.assert_found("feedback_bloat", 0, "feedback");
    let said = json["findings"][0]["evidence"].to_string();
    assert!(said.contains("150000 dead rows"), "{said}");
    drop(reader);
    servers.primary.run("TRUNCATE victim");
}

/// A server that nobody replicates from, and none is named.
fn alone(server: &Server) {
    let conninfo = server.conninfo(SUPERUSER);
    let ask = || examine(&["--primary", &conninfo, "--seconds", "1"]);
    let (code, json) = once_right(ask, |(code, _)| *code == 7);
    assert_eq!(
        (code, &json["healthy"]),
        (7, &false.into()),
        "{}",
        brief(&json)
    );
}
