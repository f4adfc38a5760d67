//! Random changes of the schema, on one side or on both, between random changes of rows. After each the
//! target has the rows of the source, or somebody is told of the table that it has not.

use std::collections::BTreeSet;

use fastrand::Rng;
use lockstep_apply::{Control, Phase};
use lockstep_client::Connection;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::number;
use lockstep_lab::server::Server;
use lockstep_replica::lifecycle::create::create;
use lockstep_replica::lifecycle::follow::follow;
use lockstep_replica::status::source::Source;
use lockstep_replica::verify;

use crate::apply_lab::{Ends, LONG};
use crate::{Told, conninfo, options, server, sql, state_of, to_verify};

const SCHEMA: &str = "
CREATE SCHEMA s;
CREATE DOMAIN positive AS int CHECK (VALUE >= 0);
CREATE TABLE a (id int PRIMARY KEY, v text, n int);
CREATE TABLE b (id text PRIMARY KEY, r real, t timestamp(0), x numeric(9, 2));
CREATE TABLE f (id int, v text, n smallint); ALTER TABLE f REPLICA IDENTITY FULL;
CREATE TABLE s.e (id int PRIMARY KEY, v varchar(40), g int GENERATED ALWAYS AS (id * 2) STORED);
CREATE TABLE p (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (50);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (50) TO (1000)";

/// Changes of the schema from one seed.
const STEPS: u64 = 12;

/// A table of the source: its name with its schema, and whether it is a partition.
#[derive(Debug, Clone)]
struct Table {
    name: String,
    is_partition: bool,
}

/// The source's tables that have rows.
fn tables(source: &mut Connection) -> Vec<Table> {
    let query = "SELECT format('%I.%I', n.nspname, c.relname), c.relispartition FROM pg_class c \
                 JOIN pg_namespace n ON n.oid = c.relnamespace \
                 WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND n.nspname IN ('public', 's') ORDER \
                 BY 1";
    let rows = source.query(query).unwrap();
    let table = |row: Vec<Option<String>>| Table {
        name: row[0].clone().unwrap(),
        is_partition: row[1].as_deref() == Some("t"),
    };
    rows.into_iter().map(table).collect()
}

/// Names of a table's columns that are not generated, with their types without and with modifiers.
fn columns(source: &mut Connection, table: &str) -> Vec<(String, String, String)> {
    let query = format!(
        "SELECT quote_ident(a.attname), format_type(a.atttypid, NULL), format_type(a.atttypid, a.atttypmod) \
         FROM pg_attribute a \
         WHERE a.attrelid = '{table}'::regclass AND a.attnum > 0 AND NOT a.attisdropped \
           AND a.attgenerated = '' ORDER BY a.attnum"
    );
    let rows = source.query(&query).unwrap();
    let text = |row: &Vec<Option<String>>, place: usize| row[place].clone().unwrap();
    let column = |row| (text(&row, 0), text(&row, 1), text(&row, 2));
    rows.into_iter().map(column).collect()
}

fn value(rng: &mut Rng, kind: &str) -> String {
    let number = rng.u32(0..120);
    match kind {
        _ if rng.u32(0..12) == 0 && kind != "positive" => "NULL".to_owned(),
        "real" | "double precision" => format!("{number} / 7.0"),
        "numeric" => format!("{number} / 8.0"),
        "timestamp without time zone" => format!("'2026-01-01 00:00:{}.4567'", number % 60),
        "text" | "character varying" => match rng.u32(0..8) {
            0 => format!("repeat('{number}', 12)"),
            _ => format!("'{number}'"),
        },
        _ => number.to_string(),
    }
}

/// Some changes of rows of random tables. Those that the source refuses are none.
fn change_rows(rng: &mut Rng, source: &mut Connection) {
    for _ in 0..rng.u32(2..8) {
        let all = tables(source);
        if all.is_empty() {
            return;
        }
        let table = rng.choice(&all).unwrap().name.clone();
        let columns = columns(source, &table);
        if columns.is_empty() {
            continue;
        }
        let (column, kind, _) = rng.choice(&columns).unwrap().clone();
        let (first, ..) = columns[0].clone();
        let new = value(rng, &kind);
        let some = rng.u32(0..120);
        let statement = match rng.u32(0..12) {
            0..=5 => {
                let names: Vec<_> = columns.iter().map(|(name, ..)| name.as_str()).collect();
                let values: Vec<_> = columns
                    .iter()
                    .map(|(_, kind, _)| value(rng, kind))
                    .collect();
                format!(
                    "INSERT INTO {table} ({}) OVERRIDING SYSTEM VALUE VALUES ({}) ON CONFLICT DO NOTHING",
                    names.join(", "),
                    values.join(", ")
                )
            }
            6..=8 => format!("UPDATE {table} SET {column} = {new} WHERE {first} > '{some}'"),
            9 => format!(
                "UPDATE {table} SET {first} = {some} WHERE {first} = '{}'",
                some + 1
            ),
            10 => format!("DELETE FROM {table} WHERE {first} = '{some}'"),
            _ if some < 12 => format!("TRUNCATE {table}"),
            _ => format!("DELETE FROM {table} WHERE {first} < '{}'", some % 20),
        };
        let _ = source.execute(&statement);
    }
}

/// A change of the schema.
fn change_schema(rng: &mut Rng, source: &mut Connection, publication: &str, serial: u64) -> String {
    let all = tables(source);
    let Some(table) = rng.choice(&all).cloned() else {
        return "SELECT".to_owned();
    };
    let columns = columns(source, &table.name);
    let column = rng
        .choice(&columns)
        .map_or("none", |(name, ..)| name.as_str());
    let name = &table.name;
    let whole = if table.is_partition {
        "p"
    } else {
        name.as_str()
    };
    match rng.u32(0..26) {
        0 | 1 => format!("ALTER TABLE {whole} ADD COLUMN c{serial} int"),
        2 => format!("ALTER TABLE {whole} ADD COLUMN c{serial} text DEFAULT 'd'"),
        3 => format!("ALTER TABLE {whole} ADD COLUMN c{serial} positive NOT NULL DEFAULT 1"),
        4 => format!(
            "ALTER TABLE {whole} ADD COLUMN c{serial} text GENERATED ALWAYS AS ('g') STORED"
        ),
        5 | 6 => format!("ALTER TABLE {whole} DROP COLUMN {column}"),
        7 | 8 => format!("ALTER TABLE {whole} RENAME COLUMN {column} TO r{serial}"),
        9 => "ALTER TABLE b ALTER r TYPE double precision".to_owned(),
        10 => "ALTER TABLE b ALTER t TYPE timestamp(3)".to_owned(),
        11 => "ALTER TABLE b ALTER x TYPE numeric(12, 4)".to_owned(),
        12 => "ALTER TABLE f ALTER n TYPE bigint".to_owned(),
        13 => format!("ALTER TABLE {name} RENAME TO t{serial}"),
        14 => format!(
            "ALTER TABLE {name} SET SCHEMA {}",
            ["s", "public"][rng.usize(0..2)]
        ),
        15 => format!(
            "ALTER TABLE {name} REPLICA IDENTITY {}",
            ["FULL", "DEFAULT", "NOTHING"][rng.usize(0..3)]
        ),
        16 => format!("DROP TABLE {name}"),
        17 => format!("DROP TABLE {name}; CREATE TABLE {name} (id int PRIMARY KEY, v text)"),
        18 => format!("CREATE TABLE n{serial} (id int PRIMARY KEY, v text)"),
        19 if table.is_partition => format!("ALTER TABLE p DETACH PARTITION {name}"),
        19 | 20 => format!(
            "CREATE TABLE q{serial} PARTITION OF p FOR VALUES FROM ({0}) TO ({0} + 10)",
            serial * 1000
        ),
        21 => format!(
            "CREATE TABLE q{serial} (LIKE p INCLUDING INDEXES); \
             ALTER TABLE p ATTACH PARTITION q{serial} FOR VALUES FROM ({0}) TO ({0} + 10)",
            serial * 1000
        ),
        22 => format!("TRUNCATE {name}"),
        23 => format!("ALTER PUBLICATION {publication} DROP TABLE {name}"),
        24 => format!("ALTER PUBLICATION {publication} SET (publish = 'insert, update')"),
        _ => format!(
            "CREATE TABLE q{serial} (LIKE p INCLUDING INDEXES); {FILL} q{serial} VALUES ({0}, 'before'); \
             ALTER TABLE p ATTACH PARTITION q{serial} FOR VALUES FROM ({0}) TO ({0} + 10)",
            serial * 1000
        ),
    }
}

/// Fills a table before it is attached, on the source only.
const FILL: &str = "INSERT INTO";

fn without_rows(change: &str) -> String {
    let parts = change.split("; ").filter(|part| !part.starts_with(FILL));
    parts.collect::<Vec<_>>().join("; ")
}

/// Rows of a table of the source, and the target's rows of the table of this name, as values of the source's
/// types: one side may have wider ones. None if it has no such table or column.
fn rows_of(
    source: &mut Connection,
    target: &mut Connection,
    table: &str,
) -> (Vec<String>, Option<Vec<String>>) {
    let columns: Vec<_> = columns(source, table)
        .into_iter()
        .map(|(name, _, kind)| format!("t.{name}::{kind}::text"))
        .collect();
    let query = format!(
        "SELECT ROW({})::text FROM ONLY {table} t ORDER BY 1",
        columns.join(", ")
    );
    let read = |session: &mut Connection| -> Option<Vec<String>> {
        let rows = session.query(&query).ok()?;
        Some(
            rows.into_iter()
                .filter_map(|row| row.into_iter().next().flatten())
                .collect(),
        )
    };
    (read(source).unwrap(), read(target))
}

struct Walk<'a> {
    seed: u64,
    source: &'a Server,
    target: &'a Server,
    control: &'a Control,
    log: Vec<String>,
}

impl Walk<'_> {
    /// Waits until all is applied, or the replica stands; true if it is applied.
    fn settled(&self) -> bool {
        let end = self.source.flush_lsn().unwrap();
        let settled = self.control.wait_for(LONG, |stats| {
            stats.applied >= end || matches!(stats.phase, Phase::Blocked | Phase::Stopped)
        });
        let stats = self.control.stats();
        assert!(
            settled,
            "seed {}: {stats:?}\n{}",
            self.seed,
            self.log.join("\n")
        );
        stats.phase != Phase::Blocked && stats.phase != Phase::Stopped
    }

    /// Tables whose rows differ, by their names on the source.
    fn different(&self) -> BTreeSet<String> {
        let (mut source, mut target) = (sql(self.source), sql(self.target));
        let mut different = BTreeSet::new();
        for table in tables(&mut source) {
            let (theirs, ours) = rows_of(&mut source, &mut target, &table.name);
            // A table without rows that the target lacks is no loss yet.
            if ours.as_ref() != Some(&theirs) && !(ours.is_none() && theirs.is_empty()) {
                different.insert(table.name);
            }
        }
        different
    }

    /// What doctor, /healthz and the metrics read says what status says.
    fn doctor_agrees(&self) {
        if matches!(self.control.stats().phase, Phase::Blocked | Phase::Stopped) {
            return;
        }
        let words = self.ask().0;
        let agrees = self.control.wait_for(LONG, |stats| {
            let stands = matches!(stats.phase, Phase::Blocked | Phase::Stopped);
            stands
                || stats
                    .unreplicated
                    .as_ref()
                    .is_some_and(|told| told.words == words)
        });
        let told = self.control.stats().unreplicated;
        assert!(
            agrees,
            "seed {}: {told:?}, and status says {words:?}",
            self.seed
        );
    }

    /// What status says of tables that are not replicated, and of the publication.
    fn ask(&self) -> (Option<String>, Option<String>) {
        let mut state = state_of(self.target);
        let replica = state.replica("r").unwrap().unwrap();
        let copied = state.tables("r").unwrap();
        let expected = state.expected(&replica).unwrap();
        let mut asked = Source::ask(&replica, None, Some(&copied), Some(&expected)).unwrap();
        asked.look_at_target(&mut state, &copied).unwrap();
        (asked.unreplicated(&replica).words, asked.altered)
    }

    /// Compares both sides, and what is said of those that differ.
    fn compare(&self) {
        let different = self.different();
        let (words, altered) = self.ask();
        let said = words.unwrap_or_default();
        let told = |table: &String| {
            let is_named = said.contains(&format!("\"{table}\""));
            altered.is_some() || is_named || self.control.stats().missing > 0
        };
        let log = self.log.join("\n");
        for table in &different {
            assert!(
                told(table),
                "seed {}: {table} differs, and status says {said}\n{log}",
                self.seed
            );
        }
        let report = verify::replica(&to_verify(conninfo(self.target)), &mut |_| ());
        match report {
            Ok(report) => {
                let names: Vec<_> = report
                    .tables
                    .iter()
                    .filter(|one| !one.differences.is_empty())
                    .collect();
                assert!(
                    report.is_equal() <= different.is_empty(),
                    "seed {}: verify is content, {different:?} differ, {said}\n{log}",
                    self.seed
                );
                // One that was renamed is named as it was called at the copy.
                let names = format!("{names:?}");
                for table in &different {
                    let (_, bare) = table.split_once('.').unwrap();
                    let is_named = [format!("\"{bare}\""), format!(".{bare}\"")]
                        .iter()
                        .any(|name| names.contains(name));
                    assert!(
                        is_named || altered.is_some(),
                        "seed {}: verify has {names} of {table}\n{log}",
                        self.seed
                    );
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

fn walk(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let lab = Lab::for_tests().unwrap();
    let (source, target) = (server(&lab, "source"), server(&lab, "target"));
    let mut session = sql(&source);
    session.execute(SCHEMA).unwrap();
    for _ in 0..10 {
        change_rows(&mut rng, &mut session);
    }
    create(&options(&source, &target), &mut Told::default()).unwrap();
    let publication = state_of(&target).replica("r").unwrap().unwrap().publication;
    let control = Control::default();
    std::thread::scope(|scope| {
        let _ends = Ends(&control);
        let (given, to) = (control.clone(), conninfo(&target));
        let following = scope.spawn(move || follow(&crate::following(&to), &given));
        let mut walk = Walk {
            seed,
            source: &source,
            target: &target,
            control: &control,
            log: Vec::new(),
        };
        // Changes that the target has not had.
        let mut owed: Vec<String> = Vec::new();
        for step in 0..STEPS {
            let change = change_schema(&mut rng, &mut session, &publication, step + 1);
            let of_publication = change.contains("PUBLICATION");
            let to_target = |change: &str| match of_publication {
                true => "publication".to_owned(),
                false => format!(
                    "{:?}",
                    sql(&target)
                        .execute(&without_rows(change))
                        .err()
                        .map(|it| it.words().to_string())
                ),
            };
            let how = rng.u32(0..10);
            let mut log = format!("{how}: {change}");
            if how < 3 {
                walk.settled();
                log += &format!(" target {}", to_target(&change));
            }
            if how != 9 {
                let done = session
                    .execute(&change)
                    .err()
                    .map(|it| it.words().to_string());
                log += &format!(" source {done:?}");
                if how >= 3 && done.is_none() {
                    match how {
                        3..=5 => log += &format!(" target {}", to_target(&change)),
                        // The stream has it already.
                        _ if change.starts_with("TRUNCATE") => {}
                        _ => owed.push(change.clone()),
                    }
                }
            } else if !change.contains("TRUNCATE") {
                log += &format!(" target alone {}", to_target(&change));
            }
            walk.log.push(log);
            for _ in 0..3 {
                change_rows(&mut rng, &mut session);
            }
            let mut settled = walk.settled();
            if rng.bool() || !settled {
                for change in owed
                    .drain(..)
                    .filter(|change| !change.contains("PUBLICATION"))
                {
                    let done = sql(&target)
                        .execute(&without_rows(&change))
                        .err()
                        .map(|it| it.words().to_string());
                    walk.log.push(format!("later: {change} target {done:?}"));
                }
                if !settled {
                    walk.log
                        .push(format!("stands: {:?}", control.stats().error));
                    control.resume();
                    // It may find that nothing is mended.
                    control.wait_for(LONG, |stats| stats.phase != Phase::Blocked);
                    settled = walk.settled();
                }
            }
            if !settled {
                let error = control.stats().error.unwrap_or_default();
                let is_named = error.contains("table \"") || error.contains("publication \"");
                assert!(is_named, "seed {seed}: {error}\n{}", walk.log.join("\n"));
                break;
            }
            walk.compare();
        }
        eprintln!(
            "seed {seed}: {} {:?}\n{}",
            control.stats().phase.name(),
            control.stats().error,
            walk.log.join("\n")
        );
        walk.doctor_agrees();
        control.stop();
        let _ = following.join().unwrap();
    });
}

#[test]
fn whatever_changes_the_schema_no_table_differs_in_silence() {
    walk(number("SEED").unwrap_or(3));
}

#[test]
#[ignore = "long: make test-bed"]
fn no_table_differs_in_silence_after_many_changes_of_the_schema() {
    let first = number("SEED").unwrap_or(100);
    for seed in first..first + number("LOCKSTEP_SCHEMA_SEEDS").unwrap_or(8) {
        walk(seed);
    }
}
