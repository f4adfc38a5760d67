//! The schema, through the server's own pg_dump and pg_restore.
//!
//! The section before the data is restored in one transaction: after a crash all of it is there or
//! nothing. The section after the data (indexes, constraints, triggers, ...) is restored by several
//! jobs; before it is restored again, [`UNDO_POST_DATA`] drops what an earlier run has made. What the target
//! refuses of it does not end that: [`entries`] says what it was.

pub mod entries;

use std::ffi::OsStr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::{Connection, Conninfo, field};
use lockstep_service::postgres::{self, PACKAGES};

use crate::error::{ReplicaError, Result};
use crate::names::Excluded;
use crate::schema::entries::Entry;
use crate::state::failpoint;
use crate::state::{APPLICATION, SCHEMA};

/// The newest major that is looked for in a folder of its own.
const NEWEST: u32 = 30;

/// From this major on pg_restore begins with a setting (`transaction_timeout`) that servers before it
/// refuse.
const SETS_NEWER: u32 = 17;

/// An option that servers give each column from the minor releases of November 2026 on. Earlier releases
/// of pg_dump take it for the user's, and earlier servers refuse it.
pub const COLUMN_VERSION: &str = "pg_attver";

/// The name of pg_restore's sessions.
pub const RESTORE: &str = "lockstep restore";

/// pg_restore commits each object, and waits for no disk. Once the state has the next phase, whose commit
/// waits, all of this is on disk, too: WAL is written in its order. If the target crashes before, the section
/// is restored again.
const NOT_WAITED_FOR: &str = "synchronous_commit=off";

/// What a replica makes by itself.
const NO_MORE: [&str; 2] = ["--no-publications", "--no-subscriptions"];

/// Longest wait for programs that a killed call has left, and the time between looks.
const RESTORE_PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Most characters of a program's words in an error.
const MOST_WORDS: usize = 2_000;

/// Drops what the section after the data makes. There is nothing else of these kinds in the target:
/// it was empty before, and the section before the data makes none of them. Event triggers, of which it may
/// have had some, are dropped by name before.
pub const UNDO_POST_DATA: &str = "
DO $undo$
DECLARE command text;
BEGIN
    FOR command IN
        WITH mine AS (
            SELECT c.oid, format('%I.%I', n.nspname, c.relname) AS name
            FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname NOT IN ('information_schema', 'lockstep')
                AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass
                    AND d.objid = c.oid AND d.deptype = 'e')
        )
        SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', m.name, k.conname) AS command, 1 AS place
            FROM pg_constraint k JOIN mine m ON m.oid = k.conrelid
            WHERE k.contype = 'f' AND k.conparentid = 0
        UNION ALL
        SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', m.name, k.conname), 2
            FROM pg_constraint k JOIN mine m ON m.oid = k.conrelid
            WHERE k.conparentid = 0
                AND (k.contype IN ('p', 'u', 'x') OR k.contype = 'c' AND NOT k.convalidated)
        UNION ALL
        SELECT 'DROP INDEX ' || m.name, 3
            FROM pg_index i JOIN mine m ON m.oid = i.indexrelid JOIN pg_class c ON c.oid = m.oid
            WHERE NOT c.relispartition
                AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid
                    AND k.contype IN ('p', 'u', 'x'))
        UNION ALL
        SELECT format('DROP TRIGGER %I ON %s', t.tgname, m.name), 4
            FROM pg_trigger t JOIN mine m ON m.oid = t.tgrelid
            WHERE NOT t.tgisinternal AND t.tgparentid = 0
        UNION ALL
        SELECT format('DROP RULE %I ON %s', r.rulename, m.name), 5
            FROM pg_rewrite r JOIN mine m ON m.oid = r.ev_class WHERE r.rulename <> '_RETURN'
        UNION ALL
        SELECT format('DROP POLICY %I ON %s', p.polname, m.name), 6
            FROM pg_policy p JOIN mine m ON m.oid = p.polrelid
        UNION ALL
        SELECT format('DROP STATISTICS %I.%I', n.nspname, s.stxname), 7
            FROM pg_statistic_ext s JOIN mine m ON m.oid = s.stxrelid
            JOIN pg_namespace n ON n.oid = s.stxnamespace
        ORDER BY place
    LOOP
        EXECUTE command;
    END LOOP;
END $undo$";

/// A section of a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    PreData,
    /// Restored by this many jobs.
    PostData(usize),
}

/// The programs of one major.
#[derive(Debug, Clone)]
pub struct Programs {
    dump: PathBuf,
    restore: PathBuf,
}

impl Programs {
    /// Finds programs for servers of these versions, of the lowest major that will do, in the
    /// distribution's folders or else in PATH.
    pub fn find(source: u32, target: u32) -> Result<Self> {
        let majors = fitting_majors(source, target);
        let path = std::env::var_os("PATH").unwrap_or_default();
        Self::find_in(Path::new(PACKAGES), &path, &majors, version_of).ok_or_else(|| {
            ReplicaError::Program(format!(
                "{} are missing: {}",
                described(&majors),
                how_to_get(&majors)
            ))
        })
    }

    fn find_in(
        packages: &Path,
        path: &OsStr,
        majors: &RangeInclusive<u32>,
        version_of: impl Fn(&Path) -> Option<u32>,
    ) -> Option<Self> {
        let needed = ["pg_dump", "pg_restore"];
        let mut packaged = majors
            .clone()
            .filter_map(|major| postgres::packaged(packages, major, &needed).ok());
        let fits = |folder: &PathBuf| {
            version_of(&folder.join("pg_dump")).is_some_and(|major| majors.contains(&major))
        };
        let mut in_path = std::env::split_paths(path)
            .filter(fits)
            .filter_map(|folder| postgres::with_programs(folder, &needed).ok());
        let folder = packaged.next().or_else(|| in_path.next())?;
        Some(Self {
            dump: folder.join("pg_dump"),
            restore: folder.join("pg_restore"),
        })
    }

    /// pg_dump's path, if it does not know [`COLUMN_VERSION`]: who leaves it out has its name.
    pub fn outdated_dump(&self) -> Option<String> {
        let program = std::fs::read(&self.dump).ok()?;
        let is_outdated = is_binary_without(&program, COLUMN_VERSION);
        is_outdated.then(|| self.dump.display().to_string())
    }

    /// Dumps the schema, as a snapshot sees it, into a file.
    pub fn dump(
        &self,
        source: &Conninfo,
        snapshot: Option<&str>,
        excluded: &Excluded,
        partitions: &[String],
        file: &Path,
    ) -> Result<()> {
        let mut command = connected(&self.dump, source, &[])?;
        command.args([
            "--format=custom",
            "--schema-only",
            "--no-publications",
            "--no-subscriptions",
            // As long as a copy waits.
            "--lock-wait-timeout=10000",
        ]);
        if let Some(snapshot) = snapshot {
            command.arg(format!("--snapshot={snapshot}"));
        }
        command.arg(format!("--file={}", file.display()));
        for schema in excluded.schemas.iter().map(String::as_str).chain([SCHEMA]) {
            command.arg(format!("--exclude-schema={}", pattern(schema)));
        }
        let named = excluded.tables.iter().filter_map(|name| {
            let (schema, table) = name.split_once('.')?;
            Some(format!("{}.{}", pattern(schema), pattern(table)))
        });
        for name in named.chain(partitions.iter().cloned()) {
            command.arg(format!("--exclude-table={name}"));
        }
        run("dump the source's schema", command).map(drop)
    }

    /// Restores a section of a dump. False if the target has refused some entries of the section after the
    /// data, and each of the others is made.
    pub fn restore(
        &self,
        target: &Conninfo,
        file: &Path,
        section: Section,
        tablespaces: bool,
    ) -> Result<bool> {
        let mut command = connected(&self.restore, target, &[NOT_WAITED_FOR])?;
        command.env("PGAPPNAME", RESTORE).env("LC_ALL", "C");
        command.args(NO_MORE);
        if !tablespaces {
            command.arg("--no-tablespaces");
        }
        let (what, begun) = match section {
            Section::PreData => {
                command.args([
                    "--section=pre-data",
                    "--single-transaction",
                    "--exit-on-error",
                ]);
                (
                    "create the tables on the target",
                    failpoint::CREATE_RESTORING,
                )
            }
            Section::PostData(jobs) => {
                command.arg("--section=post-data");
                command.arg(format!("--jobs={jobs}"));
                (
                    "create indexes and constraints on the target",
                    failpoint::CREATE_INDEXING,
                )
            }
        };
        if let Section::PostData(_) = section {
            let list = self.list(file)?;
            let chosen = file.with_extension("chosen");
            std::fs::write(&chosen, list).map_err(|error| refused(what, &error.to_string()))?;
            command.arg(format!("--use-list={}", chosen.display()));
        }
        command.arg(file);
        let output = output(what, &mut command, || begun.reach())?;
        let words = String::from_utf8_lossy(&output.stderr);
        match output.status.success() {
            true => Ok(true),
            false if entries::went_on(&words) => Ok(false),
            false => Err(refused(what, &words)),
        }
    }

    /// Numbers of the entries of the section after the data.
    pub fn entries(&self, file: &Path) -> Result<Vec<u32>> {
        Ok(entries::numbers(&self.list(file)?))
    }

    /// The entries of the section after the data, without event triggers of replicas.
    fn list(&self, file: &Path) -> Result<String> {
        let mut command = Command::new(&self.restore);
        command
            .args(NO_MORE)
            .args(["--section=post-data", "--list"]);
        command.arg(file);
        let list = run("list what the schema has", command)?;
        let list = String::from_utf8_lossy(&list);
        let chosen = list.lines().filter(|line| !entries::is_of_replica(line));
        Ok(chosen.map(|line| format!("{line}\n")).collect())
    }

    /// An entry of a dump as SQL. None if it is nothing that can be made.
    pub fn entry(&self, file: &Path, number: u32, tablespaces: bool) -> Result<Option<Entry>> {
        let what = "print a part of the schema";
        let listed = file.with_extension("list");
        std::fs::write(&listed, format!("{number};\n"))
            .map_err(|error| refused(what, &error.to_string()))?;
        let mut command = Command::new(&self.restore);
        command.args(NO_MORE);
        command.args(["--section=post-data", "--file=-"]);
        command.arg(format!("--use-list={}", listed.display()));
        if !tablespaces {
            command.arg("--no-tablespaces");
        }
        command.arg(file);
        let printed = run(what, command)?;
        let printed = String::from_utf8(printed).map_err(|_| {
            refused(
                what,
                "it has names in another encoding than UTF-8 and cannot be made",
            )
        })?;
        Ok(entries::parsed(&printed))
    }
}

/// Ends sessions of a pg_restore that was begun by a call which was killed: it outlives that call, and
/// would make what the next one makes. The caller has the replica's lock, so there is no other.
pub fn end_restores(target: &mut Connection) -> Result<()> {
    let deadline = Instant::now() + RESTORE_PATIENCE;
    let mut end = || {
        let row = target.query_with(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE datname = current_database() AND application_name = $1",
            &[&RESTORE],
        )?;
        field::<u64>(row.first().map_or(&[][..], Vec::as_slice), 0)
    };
    while end().map_err(ReplicaError::Target)? > 0 {
        if Instant::now() >= deadline {
            return Err(ReplicaError::State(format!(
                "sessions \"{RESTORE}\" of an earlier call do not end in the target's database: end \
                 them (SELECT pg_terminate_backend(pid) FROM pg_stat_activity), then repeat the command"
            )));
        }
        // A program whose sessions are ended may be about to begin another.
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// The major of a program.
fn version_of(program: &Path) -> Option<u32> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let words = String::from_utf8_lossy(&output.stdout);
    words
        .split(|c: char| !c.is_ascii_digit())
        .find_map(|digits| digits.parse().ok())
}

/// Scripts call another program, of which they say nothing.
fn is_binary_without(program: &[u8], word: &str) -> bool {
    let mut places = program.windows(word.len());
    program.starts_with(b"\x7fELF") && !places.any(|place| place == word.as_bytes())
}

/// Majors whose pg_dump reads the source and whose pg_restore writes what the target understands: none
/// older than one of the servers, and none that sets what the target does not know. Empty if there are
/// none.
pub fn fitting_majors(source: u32, target: u32) -> RangeInclusive<u32> {
    let major = |version: u32| version / 10_000;
    let newest = match major(target) < SETS_NEWER {
        true => SETS_NEWER - 1,
        false => NEWEST,
    };
    major(source.max(target))..=newest
}

/// The programs of these majors, in words.
pub fn described(majors: &RangeInclusive<u32>) -> String {
    let (first, last) = (majors.start(), majors.end());
    let which = match *last {
        NEWEST => format!("{first} or later"),
        last if last == *first => first.to_string(),
        last => format!("{first} to {last}"),
    };
    format!("pg_dump and pg_restore of PostgreSQL {which}")
}

/// What to do if they are missing.
pub fn how_to_get(majors: &RangeInclusive<u32>) -> String {
    format!(
        "install postgresql-client-{}, or add their folder to PATH",
        majors.start()
    )
}

/// A name as a pattern of pg_dump that matches it alone.
pub fn pattern(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A program that connects as `conninfo` says. Secrets go through the environment, since every
/// user of the machine can read arguments.
fn connected(program: &Path, conninfo: &Conninfo, settings: &[&str]) -> Result<Command> {
    let mut command = Command::new(program);
    let mut public = conninfo.clone();
    for (option, variable) in [("password", "PGPASSWORD"), ("sslpassword", "")] {
        let Some(value) = conninfo.get(option) else {
            continue;
        };
        if variable.is_empty() {
            return Err(ReplicaError::Usage(format!(
                "{option} cannot be handed to pg_dump; use a key without one"
            )));
        }
        command.env(variable, value);
        public = public.without(option);
    }
    // As our own sessions have it; later options come before those of the role and the database.
    let options = conninfo.effective("options").unwrap_or_default();
    let mut options = format!("{options} -c default_transaction_read_only=off");
    for setting in settings {
        options.push_str(" -c ");
        options.push_str(setting);
    }
    let public = public.with("options", options.trim_start());
    let public = public.map_err(|error| ReplicaError::Usage(error.to_string()))?;
    command.env("PGAPPNAME", APPLICATION);
    command.arg(format!("--dbname={public}"));
    Ok(command)
}

/// Runs a program. Returns what it prints.
fn run(what: &str, mut command: Command) -> Result<Vec<u8>> {
    let output = output(what, &mut command, || {})?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(refused(what, &String::from_utf8_lossy(&output.stderr))),
    }
}

/// Runs a program. `begun` is called once it runs.
fn output(what: &str, command: &mut Command, begun: impl FnOnce()) -> Result<Output> {
    let io = |error: std::io::Error| refused(what, &error.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let child = command.stderr(Stdio::piped()).spawn().map_err(io)?;
    begun();
    child.wait_with_output().map_err(io)
}

fn refused(what: &str, words: &str) -> ReplicaError {
    let words: Vec<_> = words.split_whitespace().collect();
    let words: String = words.join(" ").chars().take(MOST_WORDS).collect();
    ReplicaError::Program(format!("cannot {what}: {words}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs in folders of packages and of PATH; the last ones have that version.
    fn found(packaged: &[u32], in_path: Option<u32>, source: u32, target: u32) -> Option<String> {
        let root = tempfile::tempdir().unwrap();
        let make = |folder: PathBuf| {
            std::fs::create_dir_all(&folder).unwrap();
            for program in ["pg_dump", "pg_restore"] {
                std::fs::write(folder.join(program), "").unwrap();
            }
        };
        for major in packaged {
            make(root.path().join(major.to_string()).join("bin"));
        }
        let path = root.path().join("path");
        if in_path.is_some() {
            make(path.clone());
        }
        let majors = fitting_majors(source * 10_000, target * 10_000);
        let version_of = |_: &Path| in_path;
        let programs = Programs::find_in(root.path(), path.as_os_str(), &majors, version_of)?;
        let folder = programs.dump.parent()?.strip_prefix(root.path()).ok()?;
        Some(folder.to_string_lossy().into_owned())
    }

    #[test]
    fn the_newer_servers_programs_are_taken() {
        for (source, target) in [(15, 17), (17, 17), (16, 17)] {
            assert_eq!(
                found(&[15, 16, 17, 18], Some(18), source, target).as_deref(),
                Some("17/bin"),
                "{source} to {target}"
            );
        }
        assert_eq!(found(&[15, 18], None, 15, 17).as_deref(), Some("18/bin"));
    }

    #[test]
    fn older_programs_do_not_do() {
        assert_eq!(found(&[15, 16], Some(16), 15, 17), None);
        assert_eq!(found(&[15], Some(17), 15, 17).as_deref(), Some("path"));
        assert_eq!(found(&[], None, 15, 15), None);
    }

    #[test]
    fn programs_whose_settings_the_target_does_not_know_do_not_do() {
        assert_eq!(found(&[17, 18], Some(18), 15, 16), None);
        assert_eq!(found(&[16, 17], None, 15, 15).as_deref(), Some("16/bin"));
        assert_eq!(found(&[15, 16, 17, 18], Some(18), 17, 15), None);
    }

    #[test]
    fn a_program_that_does_not_name_the_column_version_is_outdated() {
        assert!(is_binary_without(
            b"\x7fELF \0 pg_attributes",
            COLUMN_VERSION
        ));
        assert!(!is_binary_without(b"\x7fELF \0pg_attver\0", COLUMN_VERSION));
        assert!(!is_binary_without(b"#!/bin/sh", COLUMN_VERSION));
    }

    #[test]
    fn what_is_missing_is_said() {
        let words =
            |source: u32, target: u32| described(&fitting_majors(source * 10_000, target * 10_000));
        let all = "pg_dump and pg_restore of PostgreSQL";
        assert_eq!(words(15, 18), format!("{all} 18 or later"));
        assert_eq!(words(15, 15), format!("{all} 15 to 16"));
        assert_eq!(words(15, 16), format!("{all} 16"));
        assert!(how_to_get(&fitting_majors(150_000, 180_000)).contains("postgresql-client-18"));
    }
}
