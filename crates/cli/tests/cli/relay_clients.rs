//! Programs that ask SQL for their slot, with the statements that they send: at each start they
//! find it, after restarts of their own and of the relay, and none is left on the primary.

use crate::relay_support::raw::{Message, Raw, error, packet};
use crate::relay_support::{Relay, publisher, slots, until, until_answer};
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{SUPERUSER, Server};
use lockstep_wire::Lsn;
use lockstep_wire::backend::{Backend, Report};
use lockstep_wire::frame::{self, Frame};
use std::process::Command;

/// Debezium's statements, as its driver sends them.
const DEBEZIUM_LOOKS: &str =
    "select * from pg_replication_slots where slot_name = $1 and database = $2 and plugin = $3";
/// Airbyte's, which leaves the making of the slot to its user.
const AIRBYTE_LOOKS: &str =
    "SELECT * FROM pg_replication_slots WHERE slot_name = $1 AND plugin = $2 AND database = $3";
/// Sequin's.
const SEQUIN_CHECKS: &str = "select 1 from pg_replication_slots where slot_name = $1";
const SEQUIN_CREATES: &str = "select pg_create_logical_replication_slot($1, 'pgoutput')::text";
const SEQUIN_LOOKS: &str =
    "    SELECT confirmed_flush_lsn\n    FROM pg_replication_slots\n    WHERE slot_name = $1\n";

/// Columns of the view by which a client knows its slot.
const ACTIVE: &str = "active";
const CONFIRMED: &str = "confirmed_flush_lsn";

/// A row by its columns' names.
type Row = Vec<(String, Option<String>)>;

fn value<'a>(row: &'a Row, column: &str) -> Option<&'a str> {
    let found = row.iter().find(|(name, _)| name == column);
    found
        .unwrap_or_else(|| panic!("{column} in {row:?}"))
        .1
        .as_deref()
}

struct Stage {
    primary: Server,
    relay: Relay,
    lab: Lab,
}

impl Stage {
    fn new() -> Self {
        Self::with(&[])
    }

    /// A stage whose relay has more arguments.
    fn with(arguments: &[&str]) -> Self {
        let lab = TestLab::with_extension().start().unwrap();
        let primary = publisher(&lab);
        primary.run(
            "CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t; \
                 CREATE ROLE plain LOGIN",
        );
        let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), arguments);
        Self {
            primary,
            relay,
            lab,
        }
    }

    fn log_in(&self, parameters: &[(&str, &str)]) -> Raw {
        Raw::tcp(self.relay.port)
            .log_in(&packet(parameters))
            .ok()
            .unwrap()
    }

    fn sql(&self) -> Raw {
        self.log_in(&[("user", SUPERUSER), ("database", "postgres")])
    }

    fn replication(&self) -> Raw {
        let database = ("database", "postgres");
        self.log_in(&[("user", SUPERUSER), database, ("replication", "database")])
    }

    /// Streams from a slot: gets the rows inserted now, confirms them, and leaves.
    fn stream(&self, mut client: Raw, slot: &str, from: &str, row: u32) -> String {
        let start = format!(
            "START_REPLICATION SLOT \"{slot}\" LOGICAL {from} (\"proto_version\" '1', \
             \"publication_names\" 'p', \"messages\" 'true')"
        );
        let answer = client.query(&start);
        assert_eq!(answer.last().unwrap().0, b'W', "{answer:?}");
        self.primary.run(&format!("INSERT INTO t VALUES ({row})"));
        let end = commit_of(&mut client, row);
        let mut status = vec![b'r'];
        for position in [end, end, end, 0] {
            status.extend(position.to_be_bytes());
        }
        status.push(0);
        client.send(&message(b'd', &status));
        let end = Lsn::from(end).to_string();
        until("the slot has confirmed it", || {
            let found = self.slot(slot);
            (value(&found, CONFIRMED) == Some(&*end)).then_some(())
        });
        drop(client);
        until("nobody uses the slot", || {
            (value(&self.slot(slot), ACTIVE) == Some("f")).then_some(())
        });
        end
    }

    /// The slot as Debezium finds it.
    fn slot(&self, slot: &str) -> Row {
        let mut found = found(&mut self.sql(), slot);
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    /// The relay is the only one that has slots on the primary.
    fn assert_no_slot_left(&self) {
        let left = slots(&self.primary);
        let others = left
            .split_whitespace()
            .filter(|slot| !slot.starts_with("lockstep_"));
        assert_eq!(others.count(), 0, "{left}");
    }
}

/// What Debezium is answered.
fn found(client: &mut Raw, slot: &str) -> Vec<Row> {
    ask(client, "", DEBEZIUM_LOOKS, &[slot, "postgres", "pgoutput"]).unwrap()
}

pub fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put(&mut out, tag, |out| out.extend_from_slice(body));
    out
}

fn c_strings(texts: &[&str]) -> Vec<u8> {
    let text = |text: &&str| [text.as_bytes(), &[0]].concat();
    texts.iter().flat_map(text).collect()
}

pub fn parse(name: &str, text: &str) -> Vec<u8> {
    message(b'P', &[&c_strings(&[name, text])[..], &[0, 0]].concat())
}

/// Bind, Describe and Execute of the unnamed portal.
pub fn execute(name: &str, parameters: &[&str]) -> Vec<u8> {
    let mut bind = c_strings(&["", name]);
    bind.extend([0, 0]);
    bind.extend(u16::try_from(parameters.len()).unwrap().to_be_bytes());
    for parameter in parameters {
        bind.extend(u32::try_from(parameter.len()).unwrap().to_be_bytes());
        bind.extend(parameter.as_bytes());
    }
    bind.extend([0, 0]);
    let parts = [
        message(b'B', &bind),
        message(b'D', b"P\0"),
        message(b'E', &[0; 5]),
    ];
    parts.concat()
}

pub fn sync() -> Vec<u8> {
    message(b'S', &[])
}

/// A statement in the extended protocol, prepared and executed at once.
pub fn ask(
    client: &mut Raw,
    name: &str,
    text: &str,
    parameters: &[&str],
) -> Result<Vec<Row>, Report> {
    client.send(&[parse(name, text), execute(name, parameters), sync()].concat());
    rows(client.answer())
}

/// The rows of an answer, or its error.
pub fn rows(answer: Vec<Message>) -> Result<Vec<Row>, Report> {
    let mut columns = Vec::new();
    let mut rows = Vec::new();
    for (tag, body) in answer {
        match Backend::parse(Frame { tag, body: &body }) {
            Ok(Backend::RowDescription(described)) => {
                columns = described
                    .iter()
                    .map(|column| column.name.to_owned())
                    .collect();
            }
            Ok(Backend::DataRow(row)) => {
                let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
                let values = row.into_iter().map(|value| value.map(text));
                rows.push(columns.iter().cloned().zip(values).collect());
            }
            Ok(Backend::ErrorResponse(_)) => return Err(error((tag, body)).unwrap()),
            _ => {}
        }
    }
    Ok(rows)
}

/// Reads a stream up to the commit after this row; where that ends.
fn commit_of(client: &mut Raw, row: u32) -> u64 {
    let mut seen = false;
    loop {
        let (tag, body) = client.message().unwrap();
        assert_eq!(tag, b'd', "{}", String::from_utf8_lossy(&body));
        if body[0] != b'w' {
            continue;
        }
        // Behind the header of a piece of WAL.
        let payload = &body[25..];
        match payload[0] {
            b'I' => seen |= payload.ends_with(row.to_string().as_bytes()),
            b'C' if seen => return u64::from_be_bytes(payload[10..18].try_into().unwrap()),
            _ => {}
        }
    }
}

#[test]
fn debezium_finds_its_slot_at_each_start() {
    let mut stage = Stage::new();
    assert_eq!(found(&mut stage.sql(), "dbz"), Vec::<Row>::new());
    let mut first = stage.replication();
    let create = "CREATE_REPLICATION_SLOT \"dbz\" LOGICAL pgoutput";
    assert_eq!(first.refusal(create), None);
    let mut at = stage.stream(first, "dbz", "0/0", 100);
    for (start, restart) in [(101, false), (102, true), (103, false)] {
        if restart {
            stage.relay.restart();
        }
        let slot = stage.slot("dbz");
        // After a crash it may be older than what the client knows.
        let confirmed: Lsn = value(&slot, CONFIRMED).unwrap().parse().unwrap();
        assert!(confirmed.to_string() == at || restart && confirmed < at.parse().unwrap());
        assert_eq!(value(&slot, ACTIVE), Some("f"));
        assert_eq!(value(&slot, "wal_status"), Some("reserved"));
        assert!(value(&slot, "restart_lsn").is_some());
        let mut client = stage.replication();
        assert_eq!(client.refusal("IDENTIFY_SYSTEM"), None);
        let seek = format!("SELECT pg_replication_slot_advance('dbz', '{at}')");
        let advanced = rows(client.query(&seek)).unwrap();
        let answer = format!("(dbz,{at})");
        assert_eq!(
            value(&advanced[0], "pg_replication_slot_advance"),
            Some(&*answer)
        );
        at = stage.stream(client, "dbz", &at, start);
        stage.assert_no_slot_left();
    }
    let mut client = stage.sql();
    let dropped = ask(
        &mut client,
        "",
        "select pg_drop_replication_slot('dbz')",
        &[],
    )
    .unwrap();
    assert_eq!(value(&dropped[0], "pg_drop_replication_slot"), Some(""));
    assert_eq!(found(&mut client, "dbz"), Vec::<Row>::new());
    assert_eq!(stage.relay.console(&stage.lab, "SHOW SLOTS"), "");
    let again = client
        .refusal("select pg_drop_replication_slot('dbz')")
        .unwrap();
    assert_eq!(again.sqlstate, "42704", "{again:?}");
    stage.assert_no_slot_left();
}

#[test]
fn airbyte_finds_the_slot_that_its_user_made() {
    let mut stage = Stage::new();
    let create = "SELECT pg_create_logical_replication_slot('airbyte_slot', 'pgoutput');";
    assert_eq!(stage.sql().refusal(create), None);
    let looks = |stage: &Stage| {
        let parameters = ["airbyte_slot", "pgoutput", "postgres"];
        let found = ask(&mut stage.sql(), "", AIRBYTE_LOOKS, &parameters).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        value(&found[0], CONFIRMED).unwrap().to_owned()
    };
    let mut at = looks(&stage);
    for (row, restart) in [(1, false), (2, false), (3, true)] {
        if restart {
            assert_eq!(stage.relay.stop(), Some(0));
            stage.relay.restart();
        }
        assert_eq!(looks(&stage), at);
        at = stage.stream(stage.replication(), "airbyte_slot", &at, row);
        // A user who makes it once more is told so, and none is made.
        let twice = stage.sql().refusal(create).unwrap();
        assert_eq!(twice.sqlstate, "42710", "{twice:?}");
        stage.assert_no_slot_left();
    }
    // Another slot that the primary has of this name is none that a client can reach.
    stage.primary.run(create);
    assert_eq!(looks(&stage), at);
}

#[test]
fn sequin_makes_its_slot_once_and_sees_it_move() {
    let mut stage = Stage::new();
    let mut watch = stage.sql();
    let checks = |client: &mut Raw| ask(client, "", SEQUIN_CHECKS, &["sequin"]).unwrap().len();
    assert_eq!(checks(&mut watch), 0);
    ask(&mut watch, "create", SEQUIN_CREATES, &["sequin"]).unwrap();
    assert_eq!(checks(&mut watch), 1);
    watch.send(&[parse("look", SEQUIN_LOOKS), sync()].concat());
    assert_eq!(rows(watch.answer()), Ok(Vec::new()));
    let looks = |watch: &mut Raw| {
        watch.send(&[execute("look", &["sequin"]), sync()].concat());
        let found = rows(watch.answer()).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        value(&found[0], CONFIRMED).unwrap().to_owned()
    };
    let mut at = looks(&mut watch);
    for row in [1, 2] {
        // A prepared statement shows what is so when it is executed.
        at = stage.stream(stage.replication(), "sequin", &at, row);
        assert_eq!(looks(&mut watch), at);
    }
    // Once prepared it was for the primary's; now the relay has the slot.
    watch.send(&[execute("create", &["sequin"]), sync()].concat());
    let twice = rows(watch.answer()).unwrap_err();
    assert_eq!(twice.sqlstate, "42710", "{twice:?}");
    stage.assert_no_slot_left();
    stage.relay.restart();
    let mut client = stage.sql();
    assert_eq!(checks(&mut client), 1);
    stage.stream(stage.replication(), "sequin", &at, 3);
    let dropped = ask(
        &mut client,
        "",
        "select pg_drop_replication_slot($1)",
        &["sequin"],
    );
    let refused = dropped.unwrap_err();
    assert_eq!(refused.sqlstate, "0A000", "{refused:?}");
    assert_eq!(checks(&mut client), 1);
}

/// What clients do with a session whose copy has ended.
#[test]
fn a_session_goes_on_after_its_copy() {
    let stage = Stage::new();
    let mut client = stage.replication();
    assert_eq!(
        client.refusal("CREATE_REPLICATION_SLOT s LOGICAL pgoutput"),
        None
    );
    let before = rows(client.query("IDENTIFY_SYSTEM")).unwrap();
    let shown = |client: &mut Raw| {
        let names = [
            "wal_level",
            "timezone",
            "server_version_num",
            "is_superuser",
        ];
        names.map(|name| rows(client.query(&format!("SHOW {name}"))).unwrap())
    };
    let settings = shown(&mut client);
    let start = "START_REPLICATION SLOT s LOGICAL 0/0 (proto_version '1', publication_names 'p')";
    for _ in 0..2 {
        assert_eq!(client.query(start).last().unwrap().0, b'W');
        client.send(&message(b'c', &[]));
        let answer = client.answer();
        assert_eq!(answer.last().unwrap().0, b'Z', "{answer:?}");
        let after = rows(client.query("IDENTIFY_SYSTEM")).unwrap();
        for column in ["systemid", "timeline", "dbname"] {
            assert_eq!(value(&after[0], column), value(&before[0], column));
        }
        assert_eq!(shown(&mut client), settings);
        assert_eq!(client.query("-- ping")[0].0, b'I');
        let position: Lsn = value(&after[0], "xlogpos").unwrap().parse().unwrap();
        assert!(position >= value(&stage.slot("s"), CONFIRMED).unwrap().parse().unwrap());
    }
    // SQL needs a connection to the primary, which only a login gets.
    assert_eq!(client.refusal("SELECT 1").unwrap().sqlstate, "55000");
    assert_eq!(client.refusal("DROP_REPLICATION_SLOT s"), None);
}

/// libpq's own functions, as psycopg 3 has them: a session that streams, ends its copy and executes
/// SQL, three times.
const REUSES_ITS_SESSION: &str = r#"
import sys
try:
    from psycopg import pq
except ImportError:
    sys.exit("no psycopg")
session = pq.PGconn.connect(sys.argv[1].encode() + b" replication=database")
assert session.status == pq.ConnStatus.OK, session.error_message
def run(text, status):
    result = session.exec_(text)
    assert result.status == status, (text, result.error_message)
    return result
run(b"CREATE_REPLICATION_SLOT s LOGICAL pgoutput", pq.ExecStatus.TUPLES_OK)
start = b"START_REPLICATION SLOT s LOGICAL 0/0 (proto_version '1', publication_names 'p')"
for rows in range(1, 4):
    run(start, pq.ExecStatus.COPY_BOTH)
    session.put_copy_end()
    session.flush()
    while session.get_copy_data(0)[0] > 0:
        pass
    while (result := session.get_result()) is not None:
        assert result.status == pq.ExecStatus.COMMAND_OK, result.error_message
    run(b"BEGIN; INSERT INTO t VALUES (%d); COMMIT" % rows, pq.ExecStatus.COMMAND_OK)
    answer = run(b"SELECT count(*) FROM t", pq.ExecStatus.TUPLES_OK)
    assert answer.get_value(0, 0) == b"%d" % rows
    run(b"IDENTIFY_SYSTEM", pq.ExecStatus.TUPLES_OK)
    slot = run(b"SELECT * FROM pg_replication_slots WHERE slot_name = 's'", pq.ExecStatus.TUPLES_OK)
    assert slot.ntuples == 1
run(b"DROP_REPLICATION_SLOT s", pq.ExecStatus.COMMAND_OK)
session.finish()
"#;

#[test]
fn a_session_that_keeps_its_connection_executes_sql_after_its_copy() {
    let stage = Stage::with(&["--keep-connections"]);
    let output = Command::new("/usr/bin/python3") // Debian's, which has the package
        .args(["-c", REUSES_ITS_SESSION, &stage.relay.conninfo()])
        .output();
    let output = match output {
        Ok(output) => output,
        Err(_) => return println!("SKIP: there is no python3"),
    };
    let said = String::from_utf8_lossy(&output.stderr);
    if said.trim() == "no psycopg" {
        return println!("SKIP: there is no psycopg (Debian's python3-psycopg)");
    }
    assert!(output.status.success(), "{said}");
    stage.assert_no_slot_left();
    // It has left the primary as a client leaves a server.
    let log = std::fs::read_to_string(stage.primary.log()).unwrap();
    assert!(!log.contains("unexpected EOF"), "{log}");

    // Only while it streams is the connection idle; a primary that closes it is not needed.
    let mut client = stage.replication();
    let create = "CREATE_REPLICATION_SLOT s LOGICAL pgoutput";
    assert_eq!(client.refusal(create), None);
    let start = "START_REPLICATION SLOT s LOGICAL 0/0 (proto_version '1', publication_names 'p')";
    assert_eq!(client.query(start).last().unwrap().0, b'W');
    let kept = "SELECT count(*)::text FROM pg_stat_activity WHERE backend_type = 'walsender' \
                AND application_name = ''";
    until_answer(&stage.primary, kept, "1");
    let end = kept.replace("count(*)", "count(pg_terminate_backend(pid))");
    stage.primary.query_text(&end).unwrap();
    until_answer(&stage.primary, kept, "0");
    client.send(&message(b'c', &[]));
    assert_eq!(client.answer().last().unwrap().0, b'Z');
    // The primary's last words may still be on their way.
    let refused = client.refusal("SELECT 1").unwrap().sqlstate;
    assert!(["55000", "57P01"].contains(&&*refused), "{refused}");
    assert_eq!(client.refusal("DROP_REPLICATION_SLOT s"), None);
}

/// A session that is refused something is where a server would have it.
#[test]
fn refusals_are_errors_as_a_servers_are() {
    let stage = Stage::new();
    let mut first = stage.replication();
    assert_eq!(
        first.refusal("CREATE_REPLICATION_SLOT s LOGICAL pgoutput"),
        None
    );
    stage.stream(first, "s", "0/0", 1);

    // Everything up to the Sync is thrown away, and a transaction has failed.
    let mut client = stage.sql();
    assert_eq!(client.refusal("BEGIN; INSERT INTO t VALUES (2)"), None);
    let create = "SELECT pg_create_logical_replication_slot('s', 'pgoutput')";
    client.send(
        &[
            parse("", "SELECT 1"),
            parse("x", create),
            execute("x", &[]),
            sync(),
        ]
        .concat(),
    );
    let answer = client.answer();
    let tags: Vec<u8> = answer.iter().map(|(tag, _)| *tag).collect();
    assert_eq!(tags, *b"1EZ");
    assert_eq!(answer[2].1, b"E", "the transaction goes on");
    assert_eq!(rows(answer).unwrap_err().sqlstate, "42710");
    assert_eq!(client.refusal("SELECT 1").unwrap().sqlstate, "25P02");
    assert_eq!(client.refusal("ROLLBACK"), None);
    assert_eq!(client.refusal("SELECT 1"), None);

    // Only who may use slots may do something to one.
    let mut plain = stage.log_in(&[("user", "plain"), ("database", "postgres")]);
    let drop = "SELECT pg_drop_replication_slot('s')";
    for refused in [plain.refusal(drop), ask(&mut plain, "", drop, &[]).err()] {
        assert_eq!(refused.unwrap().sqlstate, "42501");
    }
    assert_eq!(found(&mut plain, "s").len(), 1, "everybody may see it");
    let advance = |to: &str| format!("SELECT pg_replication_slot_advance('s', '{to}')");
    for (to, sqlstate) in [("0/1", "55000"), ("FFFF/0", "55000"), ("0/0", "22023")] {
        let refused = client.refusal(&advance(to)).unwrap();
        assert_eq!(refused.sqlstate, sqlstate, "{refused:?}");
    }
    // In the middle of a pipeline the primary cannot be asked.
    client.send(
        &[
            parse("", "SELECT 1"),
            execute("", &[]),
            parse("", drop),
            execute("", &[]),
            sync(),
        ]
        .concat(),
    );
    assert_eq!(rows(client.answer()).unwrap_err().sqlstate, "0A000");

    // While it is in use, and then in a transaction.
    let mut streaming = stage.replication();
    let start = "START_REPLICATION SLOT s LOGICAL 0/0 (proto_version '1', publication_names 'p')";
    assert_eq!(streaming.query(start).last().unwrap().0, b'W');
    assert_eq!(client.refusal(drop).unwrap().sqlstate, "55006");
    std::mem::drop(streaming);
    until("nobody uses the slot", || {
        (value(&stage.slot("s"), ACTIVE) == Some("f")).then_some(())
    });
    assert_eq!(client.refusal("BEGIN"), None);
    assert_eq!(client.refusal(drop), None);
    assert_eq!(client.refusal("COMMIT"), None);
    assert_eq!(found(&mut client, "s"), Vec::<Row>::new());
    stage.assert_no_slot_left();
}
