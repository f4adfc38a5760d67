//! Remedies as doctor prints them, done as a user would: what is pasted into `psql` or a shell, and a
//! restart. Then all is looked at again: the cause is gone, each server is what it was, and no row is lost.

use std::collections::BTreeSet;
use std::process::Command;

use lockstep_bench::fault::faults::{
    ARCHIVE_CONFLICT, BEHIND_RELAY, BLOCKED_BELOW, COPY_LACKS_COLUMN, FROZEN_WORKER,
    GENERATED_COLUMN, HANGING_ARCHIVER, NARROW, NO_ROLE, NOT_ARCHIVED, PREPARED_LOCK,
    PUBLICATION_DROPPED, REFUSING_KEY, REFUSING_TRIGGER, RELAY_SLOT_DROPPED, RENAMED_COLUMN, SHARD,
    SUBSCRIBER_NETWORK, SUBSCRIPTION_LOST, TABLE_ANEW, UNPARTED,
};
use lockstep_bench::fault::stage::Which;
use lockstep_bench::fault::{Fault, Injected, Stage};
use lockstep_lab::server::{DATABASE, PATIENCE, SUPERUSER, Server};
use lockstep_lag::rules::Severity;
use serde_json::Value;

use super::{brief, examine};

/// How a fault's remedy is tried.
#[derive(Clone, Copy)]
enum Tried {
    /// The remedy that has these words is done. What it leaves behind is undone by SQL on a server.
    Done(&'static str, Option<(Which, &'static str)>),
    /// The remedies of any findings that have these words are done one after the other.
    All(&'static [&'static str]),
    /// So it is, and after the first of them this is executed on the second subscriber, as its words say.
    /// Then it has all rows of the table.
    Split([&'static str; 2], &'static str, &'static str),
    /// Why a program cannot.
    Not(&'static str),
}

/// How the remedy of each fault is tried.
const TRIED: &[(&str, Tried)] = &[
    (
        "asynchronous apply commit",
        Tried::Done(
            "SET (synchronous_commit = on)",
            Some((
                Which::First,
                "ALTER SUBSCRIPTION first SET (synchronous_commit = off)",
            )),
        ),
    ),
    ("paused replay", Tried::Done("pg_wal_replay_resume", None)),
    (
        "recovery target reached",
        Tried::Done("recovery_target_lsn = ''", None),
    ),
    (
        "settings lower than the primary's",
        Tried::Done("max_connections", None),
    ),
    (
        "recovery conflict",
        Tried::Done("pg_terminate_backend", None),
    ),
    ("cleanup lock", Tried::Done("pg_terminate_backend", None)),
    (
        "starved startup",
        Tried::Not("fewer queries, or another library, which takes a restart"),
    ),
    (
        "replay at one core's limit",
        Tried::Not("less WAL or a faster core"),
    ),
    ("slow storage", Tried::Not("faster storage")),
    ("slow walreceiver fsync", Tried::Not("faster storage")),
    ("slow network", Tried::Not("a faster network")),
    ("one slow slot", Tried::Done("ENABLE TRIGGER", None)),
    ("all slots slow", Tried::Not("a relay has to be installed")),
    (
        "giant transaction spill",
        Tried::Not("the transaction is over: the setting is for the next"),
    ),
    (
        "apply blocked by a lock",
        Tried::Done("pg_terminate_backend", None),
    ),
    (PREPARED_LOCK, Tried::Done("ROLLBACK PREPARED", None)),
    (
        "retained WAL near its limit",
        Tried::Done("max_slot_wal_keep_size", None),
    ),
    (
        "synchronous standby missing",
        Tried::Done("synchronous_standby_names = ''", None),
    ),
    (
        "synchronous consumer that confirms nothing",
        Tried::Done("synchronous_standby_names = ''", None),
    ),
    (
        "recovery_min_apply_delay",
        Tried::Done("recovery_min_apply_delay = 0", None),
    ),
    ("frozen startup", Tried::Done("kill -CONT", None)),
    ("frozen walreceiver", Tried::Done("kill -CONT", None)),
    (FROZEN_WORKER, Tried::Done("kill -CONT", None)),
    (
        "frozen walsender of a subscriber",
        Tried::Done("kill -CONT", None),
    ),
    (
        "killed walsenders",
        Tried::Not("the log says who ends them"),
    ),
    (SUBSCRIBER_NETWORK, Tried::Not("a faster network")),
    (
        "checkpoint and full-page images",
        Tried::Not("this fault's checkpoints are commands"),
    ),
    (
        "unique violation",
        Tried::Not("which of two rows is right is a person's choice"),
    ),
    ("subscription disabled", Tried::Done("ENABLE", None)),
    (
        "table missing at the subscriber",
        Tried::Not("doctor does not know the table's definition"),
    ),
    (
        "missing index at the subscriber",
        Tried::Not("doctor does not know the key's columns"),
    ),
    (BEHIND_RELAY, Tried::Done("ENABLE TRIGGER", None)),
    ("frozen relay", Tried::Not("its process is looked at first")),
    (
        "table that no subscriber follows",
        Tried::Done("REFRESH PUBLICATION", None),
    ),
    (
        "table left out of the publication",
        Tried::Done("ADD TABLE", None),
    ),
    (
        "prepared transaction",
        Tried::Done("ROLLBACK PREPARED", None),
    ),
    (
        "old transaction holding slots",
        Tried::Done("pg_terminate_backend", None),
    ),
    (
        "archiver failing",
        Tried::Not("the log says what is wrong with the command"),
    ),
    (
        "cancelled queries",
        Tried::Done("max_standby_streaming_delay", None),
    ),
    (
        "inactive slot",
        Tried::Done("pg_drop_replication_slot", None),
    ),
    (
        "column missing at the subscriber",
        Tried::Done("ADD COLUMN", None),
    ),
    (REFUSING_TRIGGER, Tried::Done("ENABLE TRIGGER", None)),
    (REFUSING_KEY, Tried::Done("DROP CONSTRAINT", None)),
    (
        "slot of a subscription dropped",
        Tried::Done("pg_create_logical_replication_slot", None),
    ),
    (
        "publication not there",
        Tried::Done("SET PUBLICATION", None),
    ),
    ("role without replication", Tried::Done("ALTER ROLE", None)),
    (
        "standby's slot not there",
        Tried::Done("primary_slot_name = ''", None),
    ),
    (
        "upstream at another port",
        Tried::Done("ALTER SYSTEM SET primary_conninfo", None),
    ),
    (
        "upstream of another cluster",
        Tried::Done("ALTER SYSTEM SET primary_conninfo", None),
    ),
    (
        "WAL removed on the upstream",
        Tried::Done("restore_command", None),
    ),
    ("no walsender left", Tried::Done("max_wal_senders", None)),
    (
        "no worker left",
        Tried::Done("max_logical_replication_workers", None),
    ),
    (
        NO_ROLE,
        Tried::Not("which role it is to be is a person's choice"),
    ),
    (
        "consumer that confirms nothing",
        Tried::Not("the consumer's program has to be changed"),
    ),
    ("slot lost", Tried::Done("pg_drop_replication_slot", None)),
    (SUBSCRIPTION_LOST, Tried::All(&["DROP SUBSCRIPTION"])),
    (
        "slot and publication dropped",
        Tried::All(&["CREATE PUBLICATION", "DROP SUBSCRIPTION"]),
    ),
    (PUBLICATION_DROPPED, Tried::All(&["CREATE PUBLICATION"])),
    (
        "collation of another version",
        Tried::Done("REINDEX DATABASE", None),
    ),
    (
        "initial copy blocked on the publisher",
        Tried::Done("pg_terminate_backend", None),
    ),
    (BLOCKED_BELOW, Tried::Done("pg_terminate_backend", None)),
    (
        "initial copy refused by a row",
        Tried::Not("which of two rows is right is a person's choice"),
    ),
    (
        "no worker that copies",
        Tried::Done("max_sync_workers_per_subscription", None),
    ),
    (
        "table renamed on the publisher",
        Tried::Done("RENAME TO", None),
    ),
    (TABLE_ANEW, Tried::Done("CREATE TABLE", None)),
    (GENERATED_COLUMN, Tried::Done("DROP EXPRESSION", None)),
    (
        "slot of another output plugin",
        Tried::All(&["pg_copy_logical_replication_slot", "SET (slot_name"]),
    ),
    (
        "partitioned table published by other names",
        Tried::Done("SET (publish_via_partition_root", None),
    ),
    (
        "unlogged table at the subscriber",
        Tried::Done("SET LOGGED", None),
    ),
    (
        "partitioned table written by other names",
        Tried::All(&["SET (publish_via_partition_root", "DROP SUBSCRIPTION"]),
    ),
    (RENAMED_COLUMN, Tried::Done("RENAME COLUMN", None)),
    (
        "column of another type at the subscriber",
        Tried::Not("what becomes of the values is a person's choice"),
    ),
    (NARROW, Tried::Done("ALTER COLUMN", None)),
    (UNPARTED, Tried::Done("PARTITION OF", None)),
    (
        "subscription's role without replication",
        Tried::Done("ALTER ROLE", None),
    ),
    (
        "subscription's connection refused",
        Tried::Not("the log says what the publisher answers"),
    ),
    (
        "primary restarted",
        Tried::Done("wal_retrieve_retry_interval = '1s'", None),
    ),
    (
        "standby's connection refused",
        Tried::Not("the log says what the upstream answers"),
    ),
    (
        "apply blocked by a row",
        Tried::Done("pg_terminate_backend", None),
    ),
    (
        "CHECK at the subscriber",
        Tried::Not("whether row or constraint is right is a person's choice"),
    ),
    (
        "NOT NULL column at the subscriber",
        Tried::Done("DROP NOT NULL", None),
    ),
    (
        "inactive logical slot",
        Tried::Done("pg_drop_replication_slot", None),
    ),
    (
        "old snapshot of a standby",
        Tried::Done("pg_terminate_backend", None),
    ),
    (
        "table without replica identity",
        Tried::Not("which key the table is to have is a person's choice"),
    ),
    (
        "standby's slot taken by a clone",
        Tried::All(&[
            "pg_create_physical_replication_slot",
            "primary_slot_name = '",
        ]),
    ),
    (
        "second primary",
        Tried::Not("which of both is to go on is a person's choice"),
    ),
    (
        "standby of another timeline",
        Tried::Not("what only one of both has is a person's choice"),
    ),
    (
        "standbys that follow each other",
        Tried::Done("ALTER SYSTEM SET primary_conninfo", None),
    ),
    (
        "upstream that is not asked",
        Tried::Not("doctor has to be told of that server"),
    ),
    (
        "middle of a cascade down",
        Tried::Not("that server has to be started"),
    ),
    (
        "paused replay above a standby",
        Tried::Done("pg_wal_replay_resume", None),
    ),
    (
        "standby without an upstream",
        Tried::Done("ALTER SYSTEM SET primary_conninfo", None),
    ),
    (
        "archive that gives nothing",
        Tried::Done("restore_command = ", None),
    ),
    (
        "archive slower than the WAL",
        Tried::Not("another command has to be installed"),
    ),
    (NOT_ARCHIVED, Tried::Done("archive_timeout = '60s'", None)),
    (
        HANGING_ARCHIVER,
        Tried::Not("its command is looked at first"),
    ),
    (
        "unused slot that keeps rows",
        Tried::Done("pg_drop_replication_slot", None),
    ),
    (COPY_LACKS_COLUMN, Tried::Done("ADD COLUMN", None)),
    (
        "subscription's owner may not log in",
        Tried::Done("LOGIN", None),
    ),
    (
        "subscription's owner may not write a table",
        Tried::Done("the worker then goes on by itself", None),
    ),
    (
        "column lists that differ",
        Tried::All(&["ALTER PUBLICATION", "DROP SUBSCRIPTION"]),
    ),
    (
        "table without a key at the subscriber",
        Tried::Done("ADD PRIMARY KEY", None),
    ),
    (
        SHARD,
        Tried::Split(
            [
                "; after that, from public.shards: delete",
                "DROP SUBSCRIPTION",
            ],
            "DELETE FROM shards WHERE shard = 1",
            "shards",
        ),
    ),
    (
        "publication dropped before rows are written",
        Tried::All(&["CREATE PUBLICATION", "DROP SUBSCRIPTION"]),
    ),
    (ARCHIVE_CONFLICT, Tried::Done("pg_terminate_backend", None)),
    (
        "table followed twice",
        Tried::Not("which of both is to follow it is a person's choice"),
    ),
    (
        "measurement that was killed",
        Tried::All(&["CASCADE; unless", "CASCADE; after"]),
    ),
    (
        RELAY_SLOT_DROPPED,
        Tried::Not("its subscriptions have to be made again"),
    ),
    (
        "replica paused",
        Tried::Done("lockstep replica resume", None),
    ),
    (
        "replica stopped by a row",
        Tried::Not("which of two rows is right is a person's choice"),
    ),
    (
        "replica's process killed",
        Tried::Not("a unit or a person's terminal runs it"),
    ),
    (
        "replica's process frozen",
        Tried::Not("its process is looked at first"),
    ),
    (
        "replica held by verify",
        Tried::Done("pg_terminate_backend", None),
    ),
    (
        "replica that lacks rows",
        Tried::Not("it has to be copied again"),
    ),
    (
        "replica that lacks a table",
        Tried::Not("it has to be copied again"),
    ),
    (
        "transactions spilled to disk",
        Tried::Not("how much memory there is for it is a person's choice"),
    ),
    (
        "publication of inserts only",
        Tried::Not("which rows are to be the same is a person's choice"),
    ),
    ("idle primary", Tried::Not("none is needed")),
    ("other database's WAL", Tried::Not("none is needed")),
];

/// How many times all is looked at until the cause is gone.
const LOOKS: u32 = 6;

/// Does what doctor has printed, looks again, and heals the fault. What was done, or why nothing, and what
/// is wrong with it.
pub fn try_printed(
    stage: &mut Stage,
    fault: &Fault,
    mut injected: Injected,
    json: &Value,
) -> (String, Option<String>) {
    let (_, tried) = TRIED.iter().find(|(name, _)| *name == fault.name).unwrap();
    let (words, left) = match tried {
        Tried::Done(words, left) => (vec![*words], *left),
        Tried::All(words) => (words.to_vec(), None),
        Tried::Split(words, ..) => (words.to_vec(), None),
        Tried::Not(why) => {
            stage.heal(injected).unwrap();
            return (format!("not done: {why}"), None);
        }
    };
    let of_cause = matches!(tried, Tried::Done(..)).then(|| fault.cause().id());
    let found: Vec<Vec<String>> = words
        .iter()
        .map(|words| printed(json, of_cause, words))
        .collect();
    let lacks = found.iter().any(Vec::is_empty);
    let remedies = found.concat();
    let before = look(stage);
    let pasted: Vec<Pasted> = remedies.iter().map(|it| Pasted::of(it)).collect();
    for (index, one) in pasted.iter().enumerate() {
        one.paste(stage);
        match tried {
            Tried::Split(_, sql, _) if index == 0 => stage.second.execute(sql).unwrap(),
            _ => {}
        }
    }
    injected.mended = true;
    // A subscription that was made again copies its tables.
    stage.await_copies(Which::Second).unwrap();
    if let Tried::Split(_, _, table) = tried {
        await_alike(stage, table);
    }
    let mut wrong = lacks.then(|| format!("no remedy has all of {words:?}: {}", brief(json)));
    wrong = wrong.or_else(|| still_there(stage, fault));
    let restarted: BTreeSet<&str> = pasted
        .iter()
        .filter(|one| one.restart)
        .map(|one| one.place.as_str())
        .collect();
    // Then there is no stage any more on which other faults could be tried.
    if let Some(changed) = before.changed(&look(stage), &restarted) {
        panic!("{}: {changed}: {remedies:?}", fault.name);
    }
    for one in &pasted {
        one.reset(stage);
    }
    if let Some((which, sql)) = left {
        stage.server(which).execute(sql).unwrap();
    }
    stage.heal(injected).unwrap();
    // Healing writes rows until all subscribers have them, and the standby may not have the last.
    stage.standby.catch_up(&stage.primary).unwrap();
    let lost = before.lost(&look(stage));
    (remedies.join("; then "), wrong.or(lost))
}

/// Waits until the second subscriber has all rows of a table.
fn await_alike(stage: &mut Stage, table: &str) {
    let sql = format!("SELECT count(*)::text FROM {table}");
    let all = stage.primary.query_text(&sql).unwrap();
    let is_alike = |second: &mut Server| Ok(second.query_text(&sql)? == all);
    let second = &mut stage.second;
    second
        .await_event("have all rows", PATIENCE, is_alike)
        .unwrap();
}

/// Remedies that have these words, of all findings of a cause if one is given, each once.
fn printed(json: &Value, cause: Option<&str>, words: &str) -> Vec<String> {
    let findings = json["findings"].as_array().unwrap();
    let of_cause = findings
        .iter()
        .filter(|it| cause.is_none_or(|cause| it["cause"] == cause));
    let remedies = of_cause.filter_map(|it| {
        let mut remedies = it["remedies"].as_array()?.iter().filter_map(Value::as_str);
        remedies
            .find(|remedy| remedy.contains(words))
            .map(str::to_owned)
    });
    remedies.collect::<BTreeSet<String>>().into_iter().collect()
}

/// The cause, if doctor still finds it after some time.
fn still_there(stage: &Stage, fault: &Fault) -> Option<String> {
    let mut seen = String::new();
    for _ in 0..LOOKS {
        let (_, json) = examine(stage, 2);
        // What is left of it may be no more than a note.
        let mut findings = json["findings"].as_array().unwrap().iter();
        let is_note =
            |found: &Value| found["severity"] == "note" && fault.severity != Severity::Note;
        if !findings.any(|found| found["cause"] == fault.cause().id() && !is_note(found)) {
            return None;
        }
        seen = brief(&json);
    }
    Some(format!("the remedy does not help: {seen}"))
}

/// A remedy that can be pasted.
pub struct Pasted {
    /// The node's name.
    pub place: String,
    database: Option<String>,
    /// A command for a shell on the node's machine, and not SQL.
    is_command: bool,
    pub statements: Vec<String>,
    restart: bool,
}

impl Pasted {
    /// Reads `on PLACE[, in database D]: STATEMENT; STATEMENT; words`, or `lockstep COMMAND; words`.
    pub fn of(remedy: &str) -> Self {
        if remedy.starts_with("lockstep ") {
            let command = remedy.split(';').next().unwrap();
            return Self {
                place: String::new(),
                database: None,
                is_command: true,
                statements: vec![command.to_owned()],
                restart: false,
            };
        }
        let (place, rest) = remedy.split_once(": ").unwrap();
        let (machine, place) = match place.strip_prefix("on the machine of ") {
            Some(place) => (true, place),
            None => (false, place.strip_prefix("on ").unwrap()),
        };
        let (place, database) = match place.split_once(", in database ") {
            Some((place, database)) => (place, Some(plain(database))),
            None => (place, None),
        };
        let pieces = rest.split(';').map(|piece| piece.trim().to_owned());
        let mut pieces: Vec<String> = pieces.collect();
        let is_statement = |piece: &&String| piece.chars().take(4).all(|c| c.is_ascii_uppercase());
        let words = pieces.split_off(1);
        let more = words.iter().take_while(is_statement);
        let statements: Vec<String> = pieces.iter().chain(more).cloned().collect();
        let after = words.get(statements.len() - 1).cloned().unwrap_or_default();
        Self {
            place: place.to_owned(),
            database,
            is_command: machine,
            statements,
            restart: after.starts_with("and restart it"),
        }
    }

    fn which(&self) -> Which {
        match self.place.as_str() {
            "primary" => Which::Primary,
            "standby" => Which::Standby,
            "first" => Which::First,
            "second" => Which::Second,
            other => panic!("no node is called {other}"),
        }
    }

    /// The server, which a fault may have added.
    fn server<'s>(&self, stage: &'s Stage) -> &'s Server {
        let server = stage.named(&self.place);
        server.unwrap_or_else(|| panic!("no node is called {}", self.place))
    }

    fn paste(&self, stage: &mut Stage) {
        if self.is_command {
            let program = std::path::Path::new(env!("CARGO_BIN_EXE_lockstep"));
            let folders = format!("{}:/usr/bin:/bin", program.parent().unwrap().display());
            for command in &self.statements {
                let mut shell = Command::new("sh");
                shell.env("PATH", &folders).env("PGUSER", SUPERUSER);
                let done = shell.args(["-c", command]).status().unwrap();
                assert!(done.success(), "{command}");
            }
            return;
        }
        let primary = &stage.primary;
        let connection = format!(
            "'host={} port={} user={SUPERUSER} dbname={DATABASE}'",
            primary.sockets().display(),
            primary.port()
        );
        let restore = restore_command(primary);
        let fill = |sql: &String| match sql.contains("restore_command") {
            true => sql.replace("...", &restore),
            false => sql.replace("'...'", &connection),
        };
        let filled: Vec<String> = self.statements.iter().map(fill).collect();
        self.execute(self.server(stage), &filled);
        if self.restart {
            stage.restart(self.which()).unwrap();
        }
    }

    /// Each statement by itself, as psql sends them.
    pub fn execute(&self, server: &Server, statements: &[String]) {
        let mut address = server.config(SUPERUSER, "administrator");
        if let Some(database) = &self.database {
            address = address.database(database);
        }
        let mut session = address.connect().unwrap();
        for sql in statements {
            session
                .execute(sql)
                .unwrap_or_else(|error| panic!("{sql}: {error}"));
        }
    }

    /// Takes back what it has written into the server's configuration.
    fn reset(&self, stage: &Stage) {
        let set = self.statements.iter().filter_map(|sql| {
            let name = sql.strip_prefix("ALTER SYSTEM SET ")?.split(' ').next()?;
            Some(format!("ALTER SYSTEM RESET {name}"))
        });
        let mut statements: Vec<String> = set.collect();
        if !statements.is_empty() {
            statements.push("SELECT pg_reload_conf()".to_owned());
            self.execute(self.server(stage), &statements);
        }
    }
}

/// A name that may be quoted.
fn plain(name: &str) -> String {
    let inner = name.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
    inner.map_or_else(|| name.to_owned(), |inner| inner.replace("\"\"", "\""))
}

/// What gets back from an archive what a server's `archive_command` has put there.
fn restore_command(server: &Server) -> String {
    let archives = server.query_text("SHOW archive_command").unwrap().unwrap();
    archives.replace("cp %p ", "cp ").replace("/%f", "/%f %p")
}

/// What each server is, and how many rows table `t` has there.
struct Look(Vec<Seen>);

struct Seen {
    name: &'static str,
    in_recovery: String,
    started: String,
    /// None if a session has the table locked.
    rows: Option<u64>,
}

fn look(stage: &Stage) -> Look {
    let servers = [
        ("primary", &stage.primary),
        ("standby", &stage.standby),
        ("first", &stage.first),
        ("second", &stage.second),
    ];
    let seen = servers.map(|(name, server)| {
        let ask = |sql: &str| server.query_text(sql).unwrap().unwrap();
        Seen {
            name,
            in_recovery: ask("SELECT pg_is_in_recovery()::text"),
            started: ask("SELECT pg_postmaster_start_time()::text"),
            rows: rows(server),
        }
    });
    Look(seen.into())
}

fn rows(server: &Server) -> Option<u64> {
    let mut session = server.connect(SUPERUSER, "lockstep counting").unwrap();
    session.execute("SET lock_timeout = '500ms'").unwrap();
    let rows = session.query("SELECT count(*) FROM t").ok()?;
    rows[0][0].as_ref()?.parse().ok()
}

impl Look {
    /// A server that is not what it was, without being told to be.
    fn changed(&self, after: &Self, restarted: &BTreeSet<&str>) -> Option<String> {
        let mut pairs = self.0.iter().zip(&after.0);
        let (seen, _) = pairs.find(|(before, after)| {
            let again = before.started != after.started && !restarted.contains(before.name);
            before.in_recovery != after.in_recovery || again
        })?;
        Some(format!(
            "the remedy has promoted {0} or started {0} anew",
            seen.name
        ))
    }

    /// A server that has fewer rows than before, or a standby that has others than its primary.
    fn lost(&self, after: &Self) -> Option<String> {
        let mut pairs = self.0.iter().zip(&after.0);
        let fewer = pairs.find(|(before, after)| after.rows < before.rows);
        let fewer = fewer.map(|(seen, _)| format!("rows of {} are lost", seen.name));
        let [primary, standby, ..] = after.0.as_slice() else {
            return fewer;
        };
        let differs = primary.rows != standby.rows;
        fewer.or(differs.then(|| "the standby has other rows than its primary".to_owned()))
    }
}

#[test]
fn every_fault_says_how_its_remedy_is_tried() {
    let faults = lockstep_bench::fault::faults::FAULTS.iter();
    let faults: Vec<&str> = faults.map(|fault| fault.name).collect();
    let tried: Vec<&str> = TRIED.iter().map(|(name, _)| *name).collect();
    assert_eq!(tried, faults);
}

#[test]
fn a_remedy_is_read_as_it_is_pasted() {
    let of = Pasted::of(
        "on b, in database d: ALTER SYSTEM SET x = ''; SELECT f(); and restart it: so; it is",
    );
    assert_eq!(
        (of.place.as_str(), of.database.as_deref()),
        ("b", Some("d"))
    );
    assert_eq!(of.statements, ["ALTER SYSTEM SET x = ''", "SELECT f()"]);
    assert!(of.restart && !of.is_command);
    let of = Pasted::of("on b: TRUNCATE t; DROP SUBSCRIPTION s; CREATE SUBSCRIPTION s; with it");
    assert_eq!(
        of.statements,
        ["TRUNCATE t", "DROP SUBSCRIPTION s", "CREATE SUBSCRIPTION s"]
    );
    let of = Pasted::of("on the machine of b: kill -CONT 7; a signal has");
    assert_eq!(
        (of.place.as_str(), of.is_command, of.restart),
        ("b", true, false)
    );
    assert_eq!(of.statements, ["kill -CONT 7"]);
}
