//! Remedies are pasted as they are printed, where names need quotes, and where another consumer has the slot
//! of a subscription.

use std::process::{Child, Command, Stdio};

use crate::doctor_support::remedy::Pasted;
use crate::doctor_support::{Said, brief, causes, doctor, first_cause, once_right};
use crate::relay_support::{until, until_answer, until_ready, until_slots_free};
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{DATABASE, SUPERUSER, Server, Settings};
use serde_json::Value;

/// A publisher and a subscriber, whose names need quotes.
struct Pair {
    primary: Server,
    subscriber: Server,
}

/// Names with all that has to be quoted, the longest that a server keeps, and a word of SQL.
const SCHEMA: &str = "\"S.x\"";
const TABLE: &str = "\"S.x\".\"My \"\"t\"\" é\"";
const TYPE: &str = "\"S.x\".\"select\"";
const PUBLICATION: &str = "\"Pub's\"";
const SUBSCRIPTION: &str = "\"a name of sixty-three bytes, the longest one that servers keep.\"";

/// Counts workers of subscriptions. One that failed is started again after wal_retrieve_retry_interval.
const WORKERS: &str = "SELECT count(*)::text FROM pg_stat_activity WHERE backend_type LIKE 'logical replication%worker'";

fn settings(of: &[(&str, &str)]) -> Settings {
    let own = of.iter();
    own.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

impl Pair {
    fn start(lab: &Lab) -> Self {
        let primary = lab
            .primary("primary", None, &settings(&[("wal_level", "logical")]))
            .unwrap();
        let retry = settings(&[("wal_retrieve_retry_interval", "200ms")]);
        let subscriber = lab.primary("subscriber", None, &retry).unwrap();
        for server in [&primary, &subscriber] {
            server.run(&format!(
                "CREATE SCHEMA {SCHEMA}; CREATE TABLE {TABLE} (id int PRIMARY KEY)"
            ));
        }
        primary.run(&format!(
            "CREATE PUBLICATION {PUBLICATION} FOR TABLE {TABLE}"
        ));
        let pair = Self {
            primary,
            subscriber,
        };
        pair.subscriber.run(&format!(
            "CREATE SUBSCRIPTION {SUBSCRIPTION} CONNECTION {} PUBLICATION {PUBLICATION} WITH (slot_name = 'odd')",
            pair.connection()
        ));
        pair.await_copies();
        pair
    }

    /// The subscription's connection string, as SQL.
    fn connection(&self) -> String {
        let primary = &self.primary;
        format!(
            "'host={} port={} user={SUPERUSER} dbname={DATABASE}'",
            primary.sockets().display(),
            primary.port()
        )
    }

    /// Statements as they are printed, with the connection string that has to be filled in.
    fn filled(&self, statements: &[String]) -> Vec<String> {
        let own = self.connection();
        let statements = statements.iter();
        statements.map(|sql| sql.replace("'...'", &own)).collect()
    }

    fn await_copies(&self) {
        let sql = "SELECT count(*)::text FROM pg_subscription_rel WHERE srsubstate <> 'r'";
        until_answer(&self.subscriber, sql, "0");
    }

    /// Alters the subscription.
    fn turn(&self, how: &str) {
        self.subscriber
            .run(&format!("ALTER SUBSCRIPTION {SUBSCRIPTION} {how}"));
    }

    /// Disables the subscription, and waits until nobody uses its slot, or is about to.
    fn disable(&self) {
        self.turn("DISABLE");
        until_answer(&self.subscriber, WORKERS, "0");
        until_slots_free(&self.primary);
    }

    /// The subscription's slot is dropped on the publisher.
    fn lose_slot(&self) {
        self.disable();
        self.primary.run("SELECT pg_drop_replication_slot('odd')");
        self.turn("ENABLE");
    }

    fn examine(&self) -> (i32, Value) {
        let [primary, subscriber] =
            [&self.primary, &self.subscriber].map(|server| server.conninfo(SUPERUSER));
        let nodes = ["--primary", &primary, "--subscriber", &subscriber];
        let said = doctor(&[&nodes[..], &["--seconds", "2", "--output", "json"]].concat());
        let json = serde_json::from_str(&said.text).unwrap_or_else(|_| panic!("{}", said.error));
        (said.code, json)
    }

    /// Doctor finds this cause first; the remedy that has these words is pasted, and the cause is gone.
    fn mend(&self, cause: &str, words: &str) {
        let json = until("it is found", || {
            let (_, json) = self.examine();
            (first_cause(&json)? == cause).then_some(json)
        });
        let mut remedies = json["findings"][0]["remedies"].as_array().unwrap().iter();
        let remedy = remedies.find(|it| it.as_str().unwrap().contains(words));
        let remedy = remedy.unwrap_or_else(|| panic!("{}", json["findings"][0]));
        let pasted = Pasted::of(remedy.as_str().unwrap());
        let filled = self.filled(&pasted.statements);
        let server = match pasted.place.as_str() {
            "primary" => &self.primary,
            _ => &self.subscriber,
        };
        pasted.execute(server, &filled);
        until("it is healthy", || {
            let (code, json) = self.examine();
            if code == 0 && json["healthy"] == true {
                return Some(());
            }
            println!("{cause}: {} {}", json["unknown"], brief(&json));
            None
        });
    }
}

#[test]
fn remedies_quote_what_they_name() {
    let lab = TestLab::stock().start().unwrap();
    let pair = Pair::start(&lab);
    let primary = &pair.primary;
    pair.disable();
    pair.mend("apply_stopped", "ENABLE;");

    primary.run(&format!(
        "CREATE TYPE {TYPE} AS ENUM ('it''s', 'x'); ALTER TABLE {TABLE} ADD COLUMN \"C c\" {TYPE}; \
         INSERT INTO {TABLE} VALUES (1, 'it''s')"
    ));
    pair.mend("columns_missing", "ADD COLUMN");

    let other = "\"S.x\".\"table\"";
    for server in [primary, &pair.subscriber] {
        server.run(&format!("CREATE TABLE {other} (id int PRIMARY KEY)"));
    }
    primary.run(&format!(
        "ALTER PUBLICATION {PUBLICATION} ADD TABLE {other}"
    ));
    pair.mend("tables_not_followed", "REFRESH PUBLICATION");

    primary.run(&format!(
        "ALTER PUBLICATION {PUBLICATION} DROP TABLE {other}"
    ));
    pair.mend("tables_not_published", "ADD TABLE");

    primary.run(&format!("ALTER TABLE {other} RENAME TO \"Re named\""));
    pair.mend("table_renamed", "RENAME TO");

    primary.run(&format!("DROP PUBLICATION {PUBLICATION}"));
    pair.mend("publication_missing", "CREATE PUBLICATION");

    pair.lose_slot();
    pair.mend("subscription_slot_missing", "DROP SUBSCRIPTION");
    let rows = format!("SELECT count(*)::text FROM {TABLE}");
    until_answer(&pair.subscriber, &rows, "1");
}

/// A subscription that is made again is what it was, and nothing is emptied that is not followed, or
/// published on.
#[test]
fn a_subscription_is_made_again_as_it_was() {
    let lab = TestLab::stock().start().unwrap();
    let pair = Pair::start(&lab);
    let Pair {
        primary,
        subscriber,
    } = &pair;
    primary.run(&format!("INSERT INTO {TABLE} VALUES (1), (2)"));
    subscriber.run(&format!(
        "CREATE TABLE \"Child\" (own int) INHERITS ({TABLE}); INSERT INTO \"Child\" VALUES (7, 7); \
         CREATE ROLE \"The boss\" SUPERUSER LOGIN; ALTER SUBSCRIPTION {SUBSCRIPTION} OWNER TO \"The boss\""
    ));
    subscriber.run(&format!(
        "ALTER SUBSCRIPTION {SUBSCRIPTION} SET (streaming = on, binary = on, synchronous_commit = on, \
         disable_on_error = on)"
    ));
    let rows = format!("SELECT string_agg(id::text, ',' ORDER BY id) FROM {TABLE}");
    until_answer(subscriber, &rows, "1,2,7");
    let options = "SELECT (subowner::regrole, subslotname, subpublications, substream, subbinary, subsynccommit, \
                   subdisableonerr, subtwophasestate, subenabled)::text FROM pg_subscription";
    let before = subscriber.query_text(options).unwrap();
    pair.lose_slot();
    pair.mend("subscription_slot_missing", "DROP SUBSCRIPTION");
    until_answer(subscriber, &rows, "1,2,7");
    assert_eq!(subscriber.query_text(options).unwrap(), before);

    subscriber.run(&format!(
        "CREATE PUBLICATION back FOR TABLE {TABLE} WHERE (id > 5)"
    ));
    pair.lose_slot();
    primary.run(&format!("INSERT INTO {TABLE} VALUES (3)"));
    let is_missing =
        |(_, json): &(i32, Value)| first_cause(json) == Some("subscription_slot_missing");
    let said = once_right(|| pair.examine(), is_missing);
    assert!(
        is_missing(&said) && !said.1.to_string().contains("TRUNCATE"),
        "{}",
        said.1
    );
    pair.mend("subscription_slot_missing", "copy_data = off");
    primary.run(&format!("INSERT INTO {TABLE} VALUES (4)"));
    until_answer(subscriber, &rows, "1,2,4,7");
    assert_eq!(subscriber.query_text(options).unwrap(), before);
}

/// Two servers publish one table to each other, each its own rows. What is printed where the slot of one of
/// both subscriptions is dropped loses no row of either.
#[test]
fn a_slot_between_two_servers_that_publish_to_each_other_is_made_again() {
    let lab = TestLab::stock().start().unwrap();
    let own = settings(&[
        ("wal_level", "logical"),
        ("wal_retrieve_retry_interval", "200ms"),
    ]);
    let pair = Pair {
        primary: lab.primary("primary", None, &own).unwrap(),
        subscriber: lab.primary("subscriber", None, &own).unwrap(),
    };
    let Pair {
        primary,
        subscriber,
    } = &pair;
    for (server, region, rows) in [(primary, "a", 5), (subscriber, "b", 7)] {
        server.run(&format!(
            "CREATE TABLE t (region text, id int, PRIMARY KEY (region, id)); \
             INSERT INTO t SELECT '{region}', i FROM generate_series(1, {rows}) i; \
             CREATE PUBLICATION {PUBLICATION} FOR TABLE t WHERE (region = '{region}')"
        ));
    }
    let back = format!(
        "'host={} port={} user={SUPERUSER} dbname={DATABASE}'",
        subscriber.sockets().display(),
        subscriber.port()
    );
    for (server, connection) in [(subscriber, pair.connection()), (primary, back)] {
        server.run(&format!(
            "CREATE SUBSCRIPTION {SUBSCRIPTION} CONNECTION {connection} PUBLICATION {PUBLICATION} \
             WITH (slot_name = 'odd')"
        ));
        until_ready(server);
    }
    let rows = "SELECT string_agg(region || id, ' ' ORDER BY region, id) FROM t";
    let all = "a1 a2 a3 a4 a5 b1 b2 b3 b4 b5 b6 b7";
    for server in [primary, subscriber] {
        until_answer(server, rows, all);
    }
    pair.lose_slot();
    primary.run("INSERT INTO t VALUES ('a', 6)");
    subscriber.run("INSERT INTO t VALUES ('b', 8)");
    until_answer(primary, rows, "a1 a2 a3 a4 a5 a6 b1 b2 b3 b4 b5 b6 b7 b8");
    let json = until("it is found", || {
        let (_, json) = pair.examine();
        (causes(&json).first()? == "subscription_slot_missing").then_some(json)
    });
    assert!(!json.to_string().contains("TRUNCATE"), "{json}");
    pair.mend("subscription_slot_missing", "copy_data = off");
    primary.run("INSERT INTO t VALUES ('a', 7)");
    subscriber.run("INSERT INTO t VALUES ('b', 9)");
    until_answer(
        primary,
        rows,
        "a1 a2 a3 a4 a5 a6 a7 b1 b2 b3 b4 b5 b6 b7 b8 b9",
    );
    // What came while there was no slot is to be compared, as is printed.
    until_answer(
        subscriber,
        rows,
        "a1 a2 a3 a4 a5 a7 b1 b2 b3 b4 b5 b6 b7 b8 b9",
    );
}

/// Nothing fails before a row comes, and then all does: that is told, and mended, before.
#[test]
fn what_a_worker_would_refuse_is_mended_before_it_comes() {
    let lab = TestLab::stock().start().unwrap();
    let pair = Pair::start(&lab);
    let Pair {
        primary,
        subscriber,
    } = &pair;
    let table = "\"S.x\".\"table\"";
    primary.run(&format!("CREATE TABLE {table} (id int PRIMARY KEY, v int)"));
    primary.run(&format!(
        "ALTER PUBLICATION {PUBLICATION} ADD TABLE {table}"
    ));
    subscriber.run(&format!("CREATE TABLE {table} (id int, v int)"));
    subscriber.run(&format!(
        "ALTER SUBSCRIPTION {SUBSCRIPTION} REFRESH PUBLICATION"
    ));
    pair.await_copies();
    let is_risk =
        |(code, json): &(i32, Value)| *code == 0 && json["findings"][0]["severity"] == "risk";
    let said = once_right(|| pair.examine(), is_risk);
    assert!(is_risk(&said), "{} {}", said.0, said.1);
    pair.mend("key_missing", "ADD PRIMARY KEY");

    // A key that the publisher does not send.
    for sql in [
        "DROP CONSTRAINT table_pkey",
        "ADD COLUMN own int DEFAULT 0, ADD PRIMARY KEY (id, own)",
    ] {
        subscriber.run(&format!("ALTER TABLE {table} {sql}"));
    }
    pair.mend("key_missing", "USING INDEX");

    subscriber.run(&format!("ALTER TABLE {table} ADD COLUMN must int NOT NULL"));
    pair.mend("value_missing", "DROP NOT NULL");

    for sql in [
        "INSERT INTO {} VALUES (1, 1), (2, 2)",
        "UPDATE {} SET v = 3 WHERE id = 1",
        "DELETE FROM {} WHERE id = 2",
    ] {
        primary.run(&sql.replace("{}", table));
    }
    let rows = format!("SELECT string_agg(id || ' ' || v, ',') FROM {table}");
    until_answer(subscriber, &rows, "1 3");
}

/// Labels that an enum of the subscriber lacks, and a type that is another one in binary form.
#[test]
fn what_a_column_does_not_take_is_mended_as_printed() {
    let lab = TestLab::stock().start().unwrap();
    let pair = Pair::start(&lab);
    let Pair {
        primary,
        subscriber,
    } = &pair;
    let table = "\"S.x\".\"table\"";
    for (server, labels, number) in [
        (primary, "'first', 'a', 'b, c', 'it''s'", "int"),
        (subscriber, "'a'", "bigint"),
    ] {
        server.run(&format!(
            "CREATE TYPE {TYPE} AS ENUM ({labels}); \
             CREATE TABLE {table} (id int PRIMARY KEY, v {TYPE}, n {number})"
        ));
    }
    primary.run(&format!(
        "ALTER PUBLICATION {PUBLICATION} ADD TABLE {table}"
    ));
    pair.turn("REFRESH PUBLICATION");
    pair.await_copies();
    primary.run(&format!(
        "INSERT INTO {table} VALUES (1, 'first', 1), (2, 'b, c', 2), (3, 'it''s', 3)"
    ));
    pair.mend("apply_stopped", "ADD VALUE");
    let labels = format!("SELECT enum_range(NULL::{TYPE})::text");
    let there = primary.query_text(&labels).unwrap();
    assert_eq!(subscriber.query_text(&labels).unwrap(), there);

    pair.turn("SET (binary = on)");
    primary.run(&format!("INSERT INTO {table} VALUES (4, 'a', 4)"));
    pair.mend("apply_stopped", "binary = off");
    let rows = format!("SELECT string_agg(v || ' ' || n, ',' ORDER BY id) FROM {table}");
    until_answer(subscriber, &rows, "first 1,b, c 2,it's 3,a 4");
}

/// Another server has the subscription, too, as a copy of it has.
#[test]
fn a_slot_that_is_taken_is_given_back_as_printed() {
    let lab = TestLab::stock().start().unwrap();
    let pair = Pair::start(&lab);
    let other = lab.primary("other", None, &Settings::new()).unwrap();
    other.run(&format!(
        "CREATE SCHEMA {SCHEMA}; CREATE TABLE {TABLE} (id int PRIMARY KEY)"
    ));
    pair.disable();
    other.run(&format!(
        "CREATE SUBSCRIPTION {SUBSCRIPTION} CONNECTION {} PUBLICATION {PUBLICATION} \
         WITH (slot_name = 'odd', create_slot = false, copy_data = false)",
        pair.connection()
    ));
    let active = "SELECT count(*)::text FROM pg_replication_slots WHERE active";
    until_answer(&pair.primary, active, "1");
    pair.turn("ENABLE");
    pair.primary.run(&format!("INSERT INTO {TABLE} VALUES (1)"));
    until_answer(&other, &format!("SELECT count(*)::text FROM {TABLE}"), "1");
    let json = until("it is found", || {
        pair.primary.run(&format!(
            "INSERT INTO {TABLE} SELECT max(id) + 1 FROM {TABLE}"
        ));
        let (_, json) = pair.examine();
        (first_cause(&json)? == "slot_taken").then_some(json)
    });
    let first = json["findings"][0]["remedies"][0].as_str().unwrap();
    let disable = format!("ALTER SUBSCRIPTION {SUBSCRIPTION} DISABLE");
    assert!(
        first.contains(&disable) && first.contains("SET (slot_name = NONE)"),
        "{first}"
    );
    let remedy =
        |index: usize| Pasted::of(json["findings"][0]["remedies"][index].as_str().unwrap());
    let ours = remedy(1);
    ours.execute(&pair.subscriber, &ours.statements);
    // As long as the other uses the slot nothing is done.
    let free = remedy(2);
    let refused = pair.primary.query_text(&free.statements[0]).unwrap_err();
    assert!(refused.to_string().contains("is active"), "{refused}");
    other.run(&disable);
    other.run(&format!(
        "ALTER SUBSCRIPTION {SUBSCRIPTION} SET (slot_name = NONE)"
    ));
    other.run(&format!("DROP SUBSCRIPTION {SUBSCRIPTION}"));
    until_slots_free(&pair.primary);
    free.execute(&pair.primary, &free.statements);
    let last = remedy(4);
    last.execute(&pair.subscriber, &pair.filled(&last.statements));
    pair.await_copies();
    let rows = format!("SELECT count(*)::text FROM {TABLE}");
    let there = pair.primary.query_text(&rows).unwrap().unwrap();
    until_answer(&pair.subscriber, &rows, &there);
    let (code, json) = once_right(|| pair.examine(), |said| said.0 == 0);
    assert_eq!(code, 0, "{} {}", json["unknown"], brief(&json));
}

/// A worker in the middle of a transaction goes on to its end after its subscription is disabled, and would
/// write into tables that are empty already.
#[test]
fn workers_have_ended_before_tables_are_emptied() {
    let lab = TestLab::stock().start().unwrap();
    let pair = Pair::start(&lab);
    let Pair {
        primary,
        subscriber,
    } = &pair;
    primary.run(&format!(
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id); \
         CREATE TABLE parts_one PARTITION OF parts DEFAULT; \
         ALTER PUBLICATION {PUBLICATION} SET (publish_via_partition_root = true); \
         ALTER PUBLICATION {PUBLICATION} ADD TABLE parts"
    ));
    subscriber.run(&format!(
        "CREATE TABLE parts (id int PRIMARY KEY); \
         CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NEW; END'; \
         CREATE TRIGGER waits BEFORE INSERT ON {TABLE} FOR EACH ROW EXECUTE FUNCTION waits(); \
         ALTER TABLE {TABLE} ENABLE ALWAYS TRIGGER waits"
    ));
    pair.turn("REFRESH PUBLICATION");
    pair.await_copies();
    primary.run(&format!(
        "ALTER PUBLICATION {PUBLICATION} SET (publish_via_partition_root = false)"
    ));
    let mut holder = subscriber.connect(SUPERUSER, "holder").unwrap();
    holder.execute("SELECT pg_advisory_lock(7)").unwrap();
    primary.run(&format!("INSERT INTO {TABLE} VALUES (1)"));
    let waits = "SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    until_answer(subscriber, waits, "1");

    let remedies = until("it is found", || {
        let (_, json) = pair.examine();
        let mut findings = json["findings"].as_array()?.iter();
        let found = findings.find(|it| it["cause"] == "partition_root_differs")?;
        Some(found["remedies"].clone())
    });
    let remedies = remedies.as_array().unwrap().iter();
    let pasted: Vec<Pasted> = remedies
        .filter_map(|it| it.as_str().filter(|it| it.starts_with("on ")))
        .map(Pasted::of)
        .collect();
    let [switch, anew] = pasted.as_slice() else {
        panic!("{} remedies", pasted.len());
    };
    switch.execute(primary, &switch.statements);
    let is_truncate = |sql: &String| sql.starts_with("TRUNCATE ");
    let place = anew.statements.iter().position(is_truncate).unwrap();
    let (before, after) = anew.statements.split_at(place);
    anew.execute(subscriber, before);
    let workers = subscriber.query_text(WORKERS).unwrap();
    assert_eq!(workers.as_deref(), Some("0"), "{before:?}");
    holder.execute("SELECT pg_advisory_unlock(7)").unwrap();
    anew.execute(subscriber, &pair.filled(after));
    pair.await_copies();
    let rows = format!("SELECT count(*)::text FROM {TABLE}");
    until_answer(subscriber, &rows, "1");
}

/// A program that only receives WAL; killed when this is dropped.
struct Receiver(Child);

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Commits wait for pg_receivewal without `--synchronous`, which tells what it has flushed when a segment is
/// full.
#[test]
fn commits_return_that_a_connected_replica_holds() {
    let lab = TestLab::stock().start().unwrap();
    let primary = lab.primary("primary", None, &Settings::new()).unwrap();
    primary.run(
        "CREATE TABLE t (v text); SELECT pg_create_physical_replication_slot('received', true)",
    );
    let standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
    let folder = lab.folder().join("received");
    std::fs::create_dir_all(&folder).unwrap();
    let child = Command::new(lab.package().program("pg_receivewal"))
        .args([
            "-d",
            &primary.conninfo(SUPERUSER),
            "--slot",
            "received",
            "-D",
        ])
        .arg(&folder)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _receiver = Receiver(child);
    primary.run("ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (pg_receivewal, standby)'");
    primary.run("SELECT pg_reload_conf()");
    let counts =
        "SELECT string_agg(sync_state, ' ' ORDER BY application_name) FROM pg_stat_replication";
    until_answer(&primary, counts, "sync potential");
    let mut session = primary.connect(SUPERUSER, "waiting").unwrap();
    let commit = std::thread::spawn(move || session.execute("INSERT INTO t VALUES ('x')"));
    let waits = "SELECT (now() - query_start > '6s')::text FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    until_answer(&primary, waits, "true");

    let conninfos = [&primary, &standby].map(|server| server.conninfo(SUPERUSER));
    let nodes = ["--primary", &conninfos[0], "--standby", &conninfos[1]];
    let examine = |more: &[&str]| doctor(&[&nodes[..], more].concat());
    let words = "primary: commits wait for pg_receivewal, which is connected";
    let is_critical =
        |said: &Said| said.text.starts_with("LOCKSTEP CRITICAL - ") && said.text.contains(words);
    let plugin = || examine(&["--seconds", "4", "--output", "nagios"]);
    let said = once_right(plugin, is_critical);
    assert!(said.code == 2 && is_critical(&said), "{}", said.text);
    let as_json = |seconds: &str| {
        let said = examine(&["--seconds", seconds, "--output", "json"]);
        let json: Value = serde_json::from_str(&said.text).unwrap();
        (said.code, json)
    };
    let is_held = |(_, json): &(i32, Value)| first_cause(json) == Some("commits_held");
    let (code, json) = once_right(|| as_json("4"), is_held);
    assert_eq!(
        (code, first_cause(&json)),
        (6, Some("commits_held")),
        "{}",
        brief(&json)
    );
    let remedies = json["findings"][0]["remedies"].as_array().unwrap();
    let mut remedies = remedies.iter().map(|it| it.as_str().unwrap());
    let pasted = Pasted::of(remedies.find(|it| it.contains("ALTER SYSTEM")).unwrap());
    assert_eq!(
        pasted.statements[0],
        "ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (\"standby\")'"
    );
    pasted.execute(&primary, &pasted.statements);
    commit.join().unwrap().unwrap();
    primary.run("INSERT INTO t VALUES ('y')");
    // It replies every ten seconds, and is waited for.
    let (code, json) = once_right(|| as_json("1"), |(code, _)| *code == 0);
    assert_eq!(code, 0, "{} {}", json["unknown"], brief(&json));
}

/// Without a key nothing fails: each row is there twice.
#[test]
fn a_table_that_two_subscriptions_follow_is_told() {
    let lab = TestLab::stock().start().unwrap();
    let pair = Pair::start(&lab);
    for server in [&pair.primary, &pair.subscriber] {
        server.run("CREATE TABLE keyless (v text)");
    }
    pair.primary
        .run("CREATE PUBLICATION keyless FOR TABLE keyless WITH (publish = 'insert')");
    for name in ["one", "two"] {
        pair.subscriber.run(&format!(
            "CREATE SUBSCRIPTION {name} CONNECTION {} PUBLICATION keyless",
            pair.connection()
        ));
    }
    pair.await_copies();
    pair.primary.run("INSERT INTO keyless VALUES ('x')");
    until_answer(&pair.subscriber, "SELECT count(*)::text FROM keyless", "2");
    // That nothing else is published than inserts is a note on each.
    let told = [
        "table_followed_twice",
        "partly_published",
        "partly_published",
    ];
    let is_told = |(code, json): &(i32, Value)| *code == 0 && causes(json) == told;
    let (code, json) = once_right(|| pair.examine(), is_told);
    assert_eq!(
        (code, &causes(&json)[..]),
        (0, &told.map(str::to_owned)[..]),
        "{}",
        brief(&json)
    );
    assert_eq!(json["findings"][0]["at"], "subscriber (two)");
}
