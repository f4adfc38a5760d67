//! The schema, through the server's own pg_dump and pg_restore.
//!
//! The section before the data is restored in one transaction: after a crash all of it is there or
//! nothing. The section after the data (indexes, constraints, triggers, ...) is restored by several
//! jobs; before it is restored again, [`UNDO_POST_DATA`] drops what an earlier run has made.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lockstep_client::Conninfo;

use crate::error::{ReplicaError, Result};
use crate::preflight::facts::Excluded;
use crate::state::{APPLICATION, SCHEMA};

/// Where distributions install the programs of each major, below which is `MAJOR/bin`.
const PACKAGES: [&str; 1] = ["/usr/lib/postgresql"];

/// The newest major that is looked for in a folder of its own.
const NEWEST: u32 = 30;

/// Most characters of a program's words in an error.
const MOST_WORDS: usize = 2_000;

/// Drops what the section after the data makes. There is nothing else of these kinds in the target:
/// it was empty before, and the section before the data makes none of them.
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
        UNION ALL
        SELECT format('DROP EVENT TRIGGER %I', e.evtname), 8
            FROM pg_event_trigger e
            WHERE NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = e.oid AND d.deptype = 'e')
        ORDER BY place
    LOOP
        EXECUTE command;
    END LOOP;
END $undo$";

/// A section of a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    PreData,
    /// By so many jobs.
    PostData(usize),
}

/// The programs of one major.
#[derive(Debug, Clone)]
pub struct Programs {
    dump: PathBuf,
    restore: PathBuf,
}

impl Programs {
    /// Finds programs that can dump a server of this version: of the same major, or the next newer
    /// one, in the distribution's folders or in PATH.
    pub fn find(version: u32) -> Result<Self> {
        let wanted = version / 10_000;
        let folders = (wanted..=NEWEST).flat_map(|major| {
            PACKAGES.map(|packages| Path::new(packages).join(major.to_string()).join("bin"))
        });
        let path = std::env::var_os("PATH").unwrap_or_default();
        let in_path = std::env::split_paths(&path)
            .find(|folder| is_new_enough(&folder.join("pg_dump"), wanted));
        folders
            .filter(|folder| folder.join("pg_dump").is_file())
            .chain(in_path)
            .map(|folder| Self {
                dump: folder.join("pg_dump"),
                restore: folder.join("pg_restore"),
            })
            .find(|programs| programs.restore.is_file())
            .ok_or_else(|| {
                ReplicaError::Program(format!(
                    "pg_dump of PostgreSQL {wanted} or later is missing: install \
                     postgresql-client-{wanted}, or add its folder to PATH"
                ))
            })
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
        let mut command = connected(&self.dump, source)?;
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
        run("dump the source's schema", command)
    }

    /// Restores a section of a dump.
    pub fn restore(
        &self,
        target: &Conninfo,
        file: &Path,
        section: Section,
        tablespaces: bool,
    ) -> Result<()> {
        let mut command = connected(&self.restore, target)?;
        command.args(["--exit-on-error", "--no-publications", "--no-subscriptions"]);
        if !tablespaces {
            command.arg("--no-tablespaces");
        }
        let what = match section {
            Section::PreData => {
                command.args(["--section=pre-data", "--single-transaction"]);
                "create the tables on the target"
            }
            Section::PostData(jobs) => {
                command.arg("--section=post-data");
                command.arg(format!("--jobs={jobs}"));
                "create indexes and constraints on the target"
            }
        };
        command.arg(file);
        run(what, command)
    }
}

fn is_new_enough(program: &Path, wanted: u32) -> bool {
    let Ok(output) = Command::new(program).arg("--version").output() else {
        return false;
    };
    let words = String::from_utf8_lossy(&output.stdout);
    let number = words
        .split(|c: char| !c.is_ascii_digit())
        .find_map(|digits| digits.parse::<u32>().ok());
    number.is_some_and(|major| major >= wanted)
}

/// A name as a pattern of pg_dump that matches it alone.
pub fn pattern(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A program that connects as `conninfo` says. Secrets go through the environment, since every
/// user of the machine can read arguments.
fn connected(program: &Path, conninfo: &Conninfo) -> Result<Command> {
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
    command.env("PGAPPNAME", APPLICATION);
    command.arg(format!("--dbname={public}"));
    Ok(command)
}

fn run(what: &str, mut command: Command) -> Result<()> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let failed = |words: &str| {
        let words: Vec<_> = words.split_whitespace().collect();
        let words: String = words.join(" ").chars().take(MOST_WORDS).collect();
        ReplicaError::Program(format!("cannot {what}: {words}"))
    };
    let output = command
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| failed(&error.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(&String::from_utf8_lossy(&output.stderr))),
    }
}
