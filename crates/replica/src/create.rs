//! `replica create`: from the preflight to a copy that apply can go on from.
//!
//! Each phase is committed in the target before its work begins ([`Phase`]). The same call after a
//! crash goes on from there: a phase's work can be done again, and tables that are copied stay. Two
//! calls do not meet, since each holds the replica's lock in the target.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use lockstep_client::quote::identifier;
use lockstep_client::{ClientError, Connection, Conninfo, Purpose};
use lockstep_wire::Lsn;

use crate::copy::progress::Moment;
use crate::copy::tables::{self, Table};
use crate::copy::workers::{CopyWork, SESSION, copy, source_session, target_session};
use crate::error::{ReplicaError, Result};
use crate::finish;
use crate::names::{TableName, check_replica_name};
use crate::preflight::collect;
use crate::preflight::facts::{Excluded, Facts};
use crate::preflight::rules::{Finding, findings};
use crate::remove::remove_from_source;
use crate::schema::{Programs, Section, UNDO_POST_DATA, pattern};
use crate::source::system_id;
use crate::state::{APPLICATION, Phase, Progress, Replica, State, TableState};
use crate::subset::Subset;

/// The plugin that every server has.
const PLUGIN: &str = "pgoutput";

/// How long creating a slot may take: it waits for the end of all open transactions.
const SLOT_PATIENCE: Duration = Duration::from_secs(3600);

/// How long statements on tables of any size may take.
const LONG: Duration = Duration::from_secs(24 * 3600);

/// What the user asks for.
#[derive(Debug, Clone)]
pub struct CreateOptions {
    pub name: String,
    pub source: Conninfo,
    pub target: Conninfo,
    pub excluded: Excluded,
    pub subsets: Vec<Subset>,
    pub jobs: usize,
    /// Most bytes a second from source to target.
    pub bytes_per_s: Option<u64>,
    pub skip_large_objects: bool,
}

/// Who is told what happens.
pub trait Watcher {
    fn found(&mut self, findings: &[Finding]);
    /// A phase begins. `again` if an earlier call has begun it.
    fn phase(&mut self, phase: Phase, again: bool);
    fn progress(&mut self, moment: &Moment);
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Created {
    /// Where apply goes on.
    pub start: Lsn,
    /// Of the rows that this call has copied.
    pub copied: Moment,
}

/// Looks at both servers. Changes nothing.
pub fn preflight(options: &CreateOptions) -> Result<(Facts, Vec<Finding>)> {
    let mut source = session(&options.source).map_err(ReplicaError::Source)?;
    let mut target = session(&options.target).map_err(ReplicaError::Target)?;
    let mut facts = collect::facts(
        &mut source,
        &mut target,
        options.excluded.clone(),
        options.subsets.clone(),
        options.skip_large_objects,
    )?;
    facts.source.system_id = system_id(&mut source).map_err(ReplicaError::Source)?;
    facts.target.system_id = system_id(&mut target).map_err(ReplicaError::Target)?;
    let findings = findings(&facts);
    Ok((facts, findings))
}

fn session(conninfo: &Conninfo) -> Result<Connection, ClientError> {
    let mut session = Connection::connect(conninfo, Purpose::Sql, APPLICATION)?;
    session.set_patience(LONG);
    session.execute("SET search_path = ''; SET statement_timeout = 0")?;
    Ok(session)
}

/// Creates a replica, or goes on with one that an earlier call has begun.
pub fn create(options: &CreateOptions, watcher: &mut dyn Watcher) -> Result<Created> {
    check_replica_name(&options.name)?;
    if options.jobs == 0 {
        return Err(ReplicaError::Usage("at least one job is needed".to_owned()));
    }
    let begun = match State::find(&options.target)? {
        Some(mut state) => state.replica(&options.name)?,
        None => None,
    };
    let replica = match begun {
        Some(replica) => replica,
        None => begin(options, watcher)?,
    };
    let mut state = State::open(&options.target)?;
    if !state.lock(&options.name)? {
        return Err(ReplicaError::State(format!(
            "another lockstep is creating replica \"{}\"; wait for it, or end it",
            options.name
        )));
    }
    // Another call may have gone on before the lock was ours.
    let replica = state.replica(&replica.name)?.unwrap_or(replica);
    check_resumed(options, &replica)?;
    let mut run = Run {
        options,
        programs: Programs::find(newest(options)?)?,
        excluded: replica.excluded(),
        replica,
        state,
        exporter: None,
        dump: None,
    };
    run.all_phases(watcher)
}

/// Preflight, and the replica's first row.
fn begin(options: &CreateOptions, watcher: &mut dyn Watcher) -> Result<Replica> {
    let (facts, findings) = preflight(options)?;
    watcher.found(&findings);
    if findings.iter().any(Finding::is_error) {
        return Err(ReplicaError::Preflight(findings));
    }
    Programs::find(facts.source.version.max(facts.target.version))?;
    let mut exporter = replication(&options.source)?;
    let system = exporter.identify().map_err(ReplicaError::Source)?.system;
    // The slot's name is ours alone: a slot of that name was made for this replica.
    let name = format!("lockstep_{}_{:08x}", options.name, unique());
    let replica = Replica {
        name: options.name.clone(),
        source: options.source.clone().without_secrets().to_string(),
        system_id: system.to_string(),
        source_database: facts.source.database,
        slot: name.clone(),
        publication: name.clone(),
        // Origins belong to the whole server: another database may have a replica of this name.
        origin: name,
        exclude_schemas: options.excluded.schemas.clone(),
        exclude_tables: options.excluded.tables.clone(),
        subsets: options.subsets.clone(),
        phase: Phase::Preparing,
        start: None,
        paused: false,
        resumes: 0,
    };
    // Another call with this name may have been quicker; the replica's lock tells them apart.
    let is_empty = |target: &mut Connection| Ok(collect::target_relations(target)? == 0);
    State::open(&options.target)?.begin(&replica, is_empty)?;
    Ok(replica)
}

/// A number that no other replica of the same name had: the time in milliseconds.
fn unique() -> u32 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let millis = now.map_or(0, |now| now.as_millis());
    u32::try_from(millis & u128::from(u32::MAX)).unwrap_or(0)
}

fn check_resumed(options: &CreateOptions, replica: &Replica) -> Result<()> {
    let refused = |reason: &str| {
        Err(ReplicaError::State(format!(
            "replica \"{}\" {reason}; drop it first (lockstep replica drop {})",
            replica.name, replica.name
        )))
    };
    if replica.phase == Phase::Ready {
        return refused("exists already");
    }
    if replica.excluded() != options.excluded {
        return refused("was begun with other exclusions");
    }
    if replica.subsets != options.subsets {
        return refused("was begun with other row filters or column lists");
    }
    let mut source = replication(&options.source)?;
    let system = source.identify().map_err(ReplicaError::Source)?;
    let same = system.system.to_string() == replica.system_id
        && system.database.as_ref() == Some(&replica.source_database);
    match same {
        true => Ok(()),
        false => refused("was begun from another source"),
    }
}

fn replication(source: &Conninfo) -> Result<Connection> {
    let connected = Connection::connect(source, Purpose::Replication, APPLICATION);
    let mut connection = connected.map_err(ReplicaError::Source)?;
    // A session that keeps a snapshot is idle in a transaction for as long as rows are copied.
    connection.execute(SESSION).map_err(ReplicaError::Source)?;
    connection.set_patience(SLOT_PATIENCE);
    Ok(connection)
}

/// The newer of both servers' versions: its programs know both.
fn newest(options: &CreateOptions) -> Result<u32> {
    let source = session(&options.source).map_err(ReplicaError::Source)?;
    let target = session(&options.target).map_err(ReplicaError::Target)?;
    Ok(source.server_version().max(target.server_version()))
}

/// A snapshot, and the sessions that keep it and what it sees.
struct Exporter {
    /// The snapshot ends with the session.
    _session: Connection,
    /// Keeps the tables from being rewritten: an older snapshot sees a rewritten table as empty.
    _locks: Connection,
    snapshot: String,
    /// What the snapshot sees has committed before.
    start: Lsn,
}

struct Run<'a> {
    options: &'a CreateOptions,
    programs: Programs,
    excluded: Excluded,
    replica: Replica,
    state: State,
    exporter: Option<Exporter>,
    /// The schema's dump: its folder is removed with it.
    dump: Option<(tempfile::TempDir, PathBuf)>,
}

impl Run<'_> {
    fn all_phases(&mut self, watcher: &mut dyn Watcher) -> Result<Created> {
        let begun = self.replica.phase;
        let mut copied = Moment::default();
        loop {
            let phase = self.replica.phase;
            watcher.phase(phase, phase == begun && begun != Phase::Preparing);
            let next = match phase {
                Phase::Preparing => {
                    self.prepare()?;
                    Phase::Schema
                }
                Phase::Schema => {
                    self.create_tables()?;
                    Phase::Copying
                }
                Phase::Copying => {
                    copied = self.copy_rows(watcher)?;
                    Phase::Indexing
                }
                Phase::Indexing => {
                    self.create_indexes(phase == begun)?;
                    Phase::Finishing
                }
                Phase::Finishing => {
                    self.finish()?;
                    Phase::Ready
                }
                Phase::Ready => break,
            };
            // `prepare` has committed its end with the start LSN.
            if phase != Phase::Preparing {
                self.state.set_phase(&self.replica.name, next)?;
            }
            self.replica.phase = next;
        }
        let start = self.replica.start.ok_or_else(|| {
            ReplicaError::State(format!("replica \"{}\" has no start", self.replica.name))
        })?;
        Ok(Created { start, copied })
    }

    /// Makes publication and slot. The publication comes first: the slot's stream knows what there
    /// was at its start. It names partitioned tables, for partitions that are made later, and each
    /// partition, for one that is detached.
    fn prepare(&mut self) -> Result<()> {
        remove_from_source(&self.options.source, &self.replica)?;
        let mut source = session(&self.options.source).map_err(ReplicaError::Source)?;
        let facts = self.facts()?;
        let listed = facts.published().map(|table| {
            let subset = facts.subset_of(table).map(Subset::published);
            format!("{}{}", table.name.sql(), subset.unwrap_or_default())
        });
        let listed: Vec<_> = listed.collect();
        let what = match listed.is_empty() {
            true => String::new(),
            false => format!(" FOR TABLE ONLY {}", listed.join(", ONLY ")),
        };
        let name = identifier("publication", &self.replica.publication);
        let published = name.and_then(|name| {
            // A statement with parameters is one statement, whatever the filters are.
            source.query_with(&format!("CREATE PUBLICATION {name}{what}"), &[])
        });
        published.map_err(ReplicaError::Source)?;
        let locks = self.lock(&self.wanted()?)?;
        let mut exporter = replication(&self.options.source)?;
        let failover = exporter.server_version() >= 170_000;
        let timeline = exporter.identify().map_err(ReplicaError::Source)?.timeline;
        let made = exporter.create_slot_with_snapshot(&self.replica.slot, PLUGIN, false, failover);
        let (start, snapshot) = made.map_err(ReplicaError::Source)?;
        (self.state).set_start(&self.replica.name, start, timeline)?;
        self.replica.start = Some(start);
        self.exporter = Some(Exporter {
            _session: exporter,
            _locks: locks,
            snapshot,
            start,
        });
        Ok(())
    }

    /// Locks tables as readers do, before there is a snapshot. The session has no snapshot and no
    /// transaction ID, so neither vacuum nor the slot's start waits for it.
    fn lock(&self, tables: &HashSet<TableName>) -> Result<Connection> {
        let mut locks = session(&self.options.source).map_err(ReplicaError::Source)?;
        let mut sql = format!("{SESSION}; BEGIN");
        if !tables.is_empty() {
            let listed: Vec<_> = tables.iter().map(TableName::sql).collect();
            let listed = listed.join(", ONLY ");
            sql.push_str(&format!("; LOCK TABLE ONLY {listed} IN ACCESS SHARE MODE"));
        }
        locks.execute(&sql).map_err(ReplicaError::Source)?;
        Ok(locks)
    }

    /// Names of the tables to copy.
    fn wanted(&self) -> Result<HashSet<TableName>> {
        let facts = self.facts()?;
        Ok(facts.copied().map(|table| table.name.clone()).collect())
    }

    fn facts(&self) -> Result<Facts> {
        let mut source = session(&self.options.source).map_err(ReplicaError::Source)?;
        let tables = collect::tables(&mut source).map_err(ReplicaError::Source)?;
        Ok(Facts {
            tables,
            excluded: self.excluded.clone(),
            subsets: self.replica.subsets.clone(),
            ..Facts::default()
        })
    }

    /// A snapshot. After a crash the first one is gone, and a slot that the server drops by itself
    /// gives another, with an LSN of its own.
    fn snapshot(&mut self) -> Result<(String, Lsn)> {
        if self.exporter.is_none() {
            let locks = self.lock(&self.wanted()?)?;
            let mut session = replication(&self.options.source)?;
            let name = format!("{}_again", self.replica.slot);
            let made = session.create_slot_with_snapshot(&name, PLUGIN, true, false);
            let (start, snapshot) = made.map_err(ReplicaError::Source)?;
            self.exporter = Some(Exporter {
                _session: session,
                _locks: locks,
                snapshot,
                start,
            });
        }
        match &self.exporter {
            Some(exporter) => Ok((exporter.snapshot.clone(), exporter.start)),
            None => Err(ReplicaError::State("there is no snapshot".to_owned())),
        }
    }

    fn dump(&mut self, snapshot: Option<&str>) -> Result<PathBuf> {
        if let Some((_, file)) = &self.dump {
            return Ok(file.clone());
        }
        let io = |error: std::io::Error| {
            ReplicaError::Program(format!("cannot make a file for the schema: {error}"))
        };
        let folder = tempfile::Builder::new()
            .prefix("lockstep-schema-")
            .tempdir()
            .map_err(io)?;
        let file = folder.path().join("schema.dump");
        let facts = self.facts()?;
        let below: Vec<_> = facts
            .tables
            .iter()
            .filter(|table| self.excluded.covers(table) && !self.excluded.names(&table.name))
            .map(|table| {
                format!(
                    "{}.{}",
                    pattern(&table.name.schema),
                    pattern(&table.name.table)
                )
            })
            .collect();
        self.programs.dump(
            &self.options.source,
            snapshot,
            &self.excluded,
            &below,
            &file,
        )?;
        self.dump = Some((folder, file.clone()));
        Ok(file)
    }

    fn create_tables(&mut self) -> Result<()> {
        let (snapshot, _) = self.snapshot()?;
        let mut target = session(&self.options.target).map_err(ReplicaError::Target)?;
        // All of the section is there, or nothing.
        let there = collect::target_relations(&mut target).map_err(ReplicaError::Target)?;
        if there == 0 {
            let file = self.dump(Some(&snapshot))?;
            let spaces = self.has_tablespaces(&mut target)?;
            self.programs
                .restore(&self.options.target, &file, Section::PreData, spaces)?;
        }
        let mut source = source_session(&self.options.source, &snapshot)?;
        let wanted = self.wanted()?;
        let tables = self.tables(&mut source, &wanted)?;
        let names: Vec<_> = tables.into_iter().map(|table| table.name).collect();
        self.state.add_tables(&self.replica.name, &names)
    }

    /// Tables to copy. Of one that the publication does not have it is not known what is wanted of it.
    fn tables(&self, source: &mut Connection, wanted: &HashSet<TableName>) -> Result<Vec<Table>> {
        let tables = tables::tables(source, wanted, &self.replica.publication);
        let tables = tables.map_err(ReplicaError::Source)?;
        let has_subsets = !self.replica.subsets.is_empty();
        match tables.iter().find(|table| has_subsets && !table.published) {
            None => Ok(tables),
            Some(table) => Err(ReplicaError::State(format!(
                "table {} is not in publication {}: it was made since the creation began, or taken out \
                 of it; drop the replica and create it again",
                table.name, self.replica.publication
            ))),
        }
    }

    fn has_tablespaces(&self, target: &mut Connection) -> Result<bool> {
        let mut source = session(&self.options.source).map_err(ReplicaError::Source)?;
        let here = collect::tablespaces_in_use(&mut source).map_err(ReplicaError::Source)?;
        let there = collect::tablespaces(target).map_err(ReplicaError::Target)?;
        Ok(here.is_subset(&there))
    }

    /// Copies what is not copied yet. A table of which some rows may be there is emptied first.
    fn copy_rows(&mut self, watcher: &mut dyn Watcher) -> Result<Moment> {
        let (snapshot, start) = self.snapshot()?;
        let listed = self.state.tables(&self.replica.name)?;
        let begun: Vec<_> = listed
            .iter()
            .filter(|table| table.state == TableState::Copying)
            .map(|table| table.name.sql())
            .collect();
        if !begun.is_empty() {
            let sql = format!("TRUNCATE ONLY {}", begun.join(", ONLY "));
            let mut target = target_session(&self.options.target)?;
            target.execute(&sql).map_err(ReplicaError::Target)?;
        }
        let wanted: HashSet<_> = listed
            .into_iter()
            .filter(|table| table.state != TableState::Copied)
            .map(|table| table.name)
            .collect();
        let mut source = source_session(&self.options.source, &snapshot)?;
        let tables = self.tables(&mut source, &wanted)?;
        drop(source);
        if let Some(gone) = wanted
            .iter()
            .find(|name| !tables.iter().any(|table| table.name == **name))
        {
            return Err(ReplicaError::State(format!(
                "table {gone} is gone from the source since the copy began; drop the replica and \
                 create it again"
            )));
        }
        let work = CopyWork {
            replica: &self.replica.name,
            source: &self.options.source,
            target: &self.options.target,
            snapshot: &snapshot,
            start,
            tables: &tables,
            jobs: self.options.jobs,
            bytes_per_s: self.options.bytes_per_s,
        };
        let (state, name) = (&mut self.state, &self.replica.name);
        let mut kept = Ok(());
        let moment = copy(&work, &mut |moment| {
            watcher.progress(moment);
            let progress = Progress {
                bytes_total: moment.bytes_total,
                bytes_done: moment.bytes_done,
                bytes_per_s: moment.bytes_per_s(),
            };
            if kept.is_ok() {
                kept = state.set_progress(name, &progress);
            }
        })?;
        kept?;
        // Indexes need no snapshot: vacuum on the source may go on.
        self.exporter = None;
        Ok(moment)
    }

    fn create_indexes(&mut self, again: bool) -> Result<()> {
        let mut target = session(&self.options.target).map_err(ReplicaError::Target)?;
        if again {
            target
                .execute(UNDO_POST_DATA)
                .map_err(ReplicaError::Target)?;
        }
        let file = self.dump(None)?;
        let spaces = self.has_tablespaces(&mut target)?;
        let section = Section::PostData(self.options.jobs);
        self.programs
            .restore(&self.options.target, &file, section, spaces)
    }

    fn finish(&mut self) -> Result<()> {
        let mut source = session(&self.options.source).map_err(ReplicaError::Source)?;
        let mut target = target_session(&self.options.target)?;
        let publication = &self.replica.publication;
        finish::sequences(&mut source, &mut target, &self.excluded, publication)?;
        finish::views(&mut source, &mut target)?;
        finish::analyze(&self.options.target, self.options.jobs)
    }
}
