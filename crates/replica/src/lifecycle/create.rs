//! `replica create`: from the preflight to a copy that apply can go on from.
//!
//! Each phase is committed in the target before its work begins ([`Phase`]). The same call after a
//! crash goes on from there: a phase's work can be done again, and tables that are copied stay. Two
//! calls do not meet, since each holds the replica's lock in the target.
//!
//! Nothing is changed on source or target before the preflight has found no error. Of slots and
//! publications on the source only those are touched whose names hold the replica's number, and that
//! was committed in the target before they were made.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use lockstep_client::quote::identifier;
use lockstep_client::{Connection, Conninfo};
use lockstep_service::clock;
use lockstep_wire::Lsn;

use crate::capture;
use crate::copy::progress::Moment;
use crate::copy::tables::{self, Table};
use crate::copy::workers::{CopyWork, copy, source_session, target_session};
use crate::error::{Finding, ReplicaError, Result};
use crate::lifecycle::exporter::{
    Exporter, LOCKED, bound_wait, export, has_code, replication, unless_locked,
};
use crate::lifecycle::finish;
use crate::lifecycle::made;
use crate::lifecycle::read_only;
use crate::lifecycle::remove::remove_from_source;
use crate::lifecycle::setval;
use crate::lifecycle::{Watcher, session};
use crate::names::Excluded;
use crate::names::{TableName, check_replica_name};
use crate::preflight::collect;
use crate::preflight::facts::Facts;
use crate::preflight::rules::findings;
use crate::publication;
use crate::publication::subset::Subset;
use crate::schema::{Programs, Section, UNDO_POST_DATA, end_restores, pattern};
use crate::state::failpoint;
use crate::state::system_id;
use crate::state::{Phase, Progress, Replica, ReplicaState, TableState, Unmade};
use lockstep_apply::sessions::SILENT;

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
    /// Time from the beginning of one cycle to that of the next; zero: changes are applied as they come.
    pub frequency: Duration,
    /// Changes of the source's schema are followed.
    pub ddl: bool,
    /// Sessions of others begin read-only on the target until it is promoted or the replica dropped.
    pub read_only: bool,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Created {
    /// Where apply goes on.
    pub start: Lsn,
    /// Figures of the rows that this call has copied.
    pub copied: Moment,
    /// What the target lacks of the source, since it refused it.
    pub unmade: Vec<Unmade>,
    /// Sessions of others begin read-only on the target, by the replica's doing.
    pub read_only: bool,
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
    facts.ddl = options.ddl;
    facts.read_only = options.read_only;
    facts.source.system_id = system_id(&mut source).map_err(ReplicaError::Source)?;
    facts.target.system_id = system_id(&mut target).map_err(ReplicaError::Target)?;
    let programs = Programs::find(facts.source.version, facts.target.version).ok();
    facts.lacks_programs = programs.is_none();
    if collect::has_column_versions(&mut source).map_err(ReplicaError::Source)? {
        facts.outdated_dump = programs.and_then(|programs| programs.outdated_dump());
    }
    let findings = findings(&facts);
    Ok((facts, findings))
}

/// Creates a replica, or goes on with one that an earlier call has begun.
pub fn create(options: &CreateOptions, watcher: &mut dyn Watcher) -> Result<Created> {
    check_replica_name(&options.name)?;
    if options.jobs == 0 {
        return Err(ReplicaError::Usage("at least one job is needed".to_owned()));
    }
    if options.ddl && !options.subsets.is_empty() {
        let words = "--ddl does not go with --where or --columns: which rows and columns of a new or altered \
                     table are wanted is not known";
        return Err(ReplicaError::Usage(words.to_owned()));
    }
    let begun = match ReplicaState::find(&options.target)? {
        Some(mut state) => state.replica(&options.name)?,
        None => None,
    };
    let is_checked = begun.is_none();
    let replica = match begun {
        Some(replica) => replica,
        None => begin(options, watcher)?,
    };
    let mut state = ReplicaState::open(&options.target)?;
    state.lock_or_say(&options.name)?;
    // Another call may have gone on before the lock was ours.
    let replica = state.replica(&replica.name)?.unwrap_or(replica);
    check_resumed(options, &replica)?;
    if options.bytes_per_s != replica.bandwidth {
        state.set_bandwidth(&replica.name, options.bytes_per_s)?;
    }
    match (options.read_only, replica.read_only) {
        (true, false) => read_only::begin(&mut state, &replica.name)?,
        (false, true) => {
            read_only::set(&mut state, &replica.name, false)?;
        }
        _ => {}
    }
    let mut run = Run {
        options,
        programs: programs(options)?,
        excluded: replica.excluded(),
        replica,
        state,
        exporter: None,
        is_checked,
        dump: None,
    };
    run.all_phases(watcher).map_err(explained)
}

/// Says what a lock that was not free in time means.
fn explained(error: ReplicaError) -> ReplicaError {
    let is_locked = |error: &ReplicaError| {
        let inner = match error {
            ReplicaError::Table { error, .. } => error.as_ref(),
            error => error,
        };
        matches!(inner, ReplicaError::Source(error) if has_code(error, LOCKED))
    };
    match is_locked(&error) {
        false => error,
        true => ReplicaError::State(format!(
            "{error}: others change a table of the source, or wait to, for which they wait for the end of \
             this creation. It ends, so they go on; run the same command again once they are done, or drop \
             the replica and create it again if the table is another then"
        )),
    }
}

/// Preflight: an error if it finds one.
fn check(options: &CreateOptions, watcher: &mut dyn Watcher) -> Result<Facts> {
    let (facts, findings) = preflight(options)?;
    watcher.found(&findings);
    match findings.iter().any(Finding::is_error) {
        false => Ok(facts),
        true => Err(ReplicaError::Preflight(findings)),
    }
}

/// Preflight, and the replica's first row.
fn begin(options: &CreateOptions, watcher: &mut dyn Watcher) -> Result<Replica> {
    let facts = check(options, watcher)?;
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
        frequency: options.frequency,
        forces: 0,
        ddl: options.ddl,
        altering: false,
        read_only: false,
        bandwidth: options.bytes_per_s,
    };
    // Another call with this name may have been quicker; the replica's lock tells them apart.
    let is_empty = |target: &mut Connection| Ok(collect::target_relations(target)? == 0);
    ReplicaState::open(&options.target)?.begin(&replica, is_empty)?;
    failpoint::CREATE_BEGUN.reach();
    Ok(replica)
}

/// A number that no other replica of the same name had: the time in milliseconds.
pub(crate) fn unique() -> u32 {
    u32::try_from(clock::unix_ms() & i64::from(u32::MAX)).unwrap_or(0)
}

/// What a publication has: each table with its columns and its filter.
fn published_tables(facts: &Facts) -> Vec<String> {
    let listed = facts.published().map(|table| {
        let subset = facts.subset_of(table).map(Subset::published);
        format!("{}{}", table.name.sql(), subset.unwrap_or_default())
    });
    listed.collect()
}

fn check_resumed(options: &CreateOptions, replica: &Replica) -> Result<()> {
    let refused = |reason: &str| {
        Err(ReplicaError::State(format!(
            "replica \"{}\" {reason}; drop it first (lockstep replica drop {})",
            replica.name, replica.name
        )))
    };
    if replica.phase >= Phase::Ready {
        replica.check_not_promoted()?;
        return refused("exists already");
    }
    if replica.altering {
        return replica.check_ready();
    }
    if replica.frequency != options.frequency {
        return refused("was begun with another frequency");
    }
    if replica.ddl != options.ddl {
        return refused("was begun with another choice of --ddl");
    }
    if replica.ddl && replica.phase > Phase::Preparing {
        return refused(
            "follows changes of the schema, and its creation was interrupted, so that the schema may be another \
             by now",
        );
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

/// The programs for both servers.
fn programs(options: &CreateOptions) -> Result<Programs> {
    let source = session(&options.source).map_err(ReplicaError::Source)?;
    let target = session(&options.target).map_err(ReplicaError::Target)?;
    Programs::find(source.server_version(), target.server_version())
}

struct Run<'a> {
    options: &'a CreateOptions,
    programs: Programs,
    excluded: Excluded,
    replica: Replica,
    state: ReplicaState,
    exporter: Option<Exporter>,
    /// This call has made the preflight, and nothing since.
    is_checked: bool,
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
                    self.prepare(watcher)?;
                    Phase::Schema
                }
                Phase::Schema => {
                    self.create_tables(watcher)?;
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
                Phase::Ready | Phase::Promoting | Phase::Promoted => break,
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
        let name = &self.replica.name;
        let unmade = self.state.forget_made(name)?;
        Ok(Created {
            start,
            copied,
            unmade,
            read_only: self.state.replica(name)?.is_some_and(|it| it.read_only),
        })
    }

    /// Makes publication and slot. The publication comes first: the slot's stream knows what there
    /// was at its start. It names partitioned tables, for partitions that are made later, and each
    /// partition, for one that is detached.
    fn prepare(&mut self, watcher: &mut dyn Watcher) -> Result<()> {
        let exporter = loop {
            remove_from_source(&self.options.source, &self.replica)?;
            if !std::mem::take(&mut self.is_checked) {
                // Much may have changed since the preflight.
                check(self.options, watcher)?;
            }
            if !self.publish(watcher)? {
                continue;
            }
            self.capture()?;
            failpoint::CREATE_PUBLISHED.reach();
            let (source, slot) = (&self.options.source, &self.replica.slot);
            let Some(made) = export(source, slot, false, &self.wanted()?, watcher)? else {
                continue;
            };
            match self.unpublished(&made.snapshot)? {
                None => break made,
                Some(name) => watcher.waits(&format!(
                    "table {name} was made on the source meanwhile: the creation begins again with it"
                )),
            }
        };
        failpoint::CREATE_SLOT_MADE.reach();
        let start = exporter.start;
        let published = self.published(&exporter.snapshot)?;
        (self.state).set_start(&self.replica.name, start, exporter.timeline, &published)?;
        failpoint::CREATE_START_KEPT.reach();
        self.replica.start = Some(start);
        self.exporter = Some(exporter);
        Ok(())
    }

    /// Lets the source write changes of its schema into the stream, if they are wanted. The slot comes later,
    /// so none is missing.
    fn capture(&mut self) -> Result<()> {
        if !self.replica.ddl {
            return Ok(());
        }
        let mut source = session(&self.options.source).map_err(ReplicaError::Source)?;
        source.execute(SILENT).map_err(ReplicaError::Source)?;
        let key = capture::install(&mut source, &self.replica).map_err(ReplicaError::Source)?;
        self.state.set_ddl_key(&self.replica.name, &key)
    }

    /// The publication as the slot begins with it, for the state.
    fn published(&self, snapshot: &str) -> Result<String> {
        let mut source = source_session(&self.options.source, snapshot)?;
        let name = &self.replica.publication;
        let text = publication::text(&mut source, name).map_err(ReplicaError::Source)?;
        text.ok_or_else(|| {
            ReplicaError::State(format!(
                "publication \"{name}\", which was just made on the source, is gone; run the same command \
                 again"
            ))
        })
    }

    /// A table to copy that was made after the publication.
    fn unpublished(&self, snapshot: &str) -> Result<Option<TableName>> {
        let mut source = source_session(&self.options.source, snapshot)?;
        let tables = tables::tables(&mut source, &self.wanted()?, &self.replica.publication);
        let tables = tables.map_err(ReplicaError::Source)?;
        let missing = tables.into_iter().find(|table| !table.published);
        Ok(missing.map(|table| table.name))
    }

    /// False if a table was locked by others.
    fn publish(&mut self, watcher: &mut dyn Watcher) -> Result<bool> {
        let mut source = session(&self.options.source).map_err(ReplicaError::Source)?;
        let facts = self.facts()?;
        let listed = published_tables(&facts);
        let what = match listed.is_empty() {
            true => String::new(),
            false => format!(" FOR TABLE ONLY {}", listed.join(", ONLY ")),
        };
        bound_wait(&mut source)?;
        source.execute(SILENT).map_err(ReplicaError::Source)?;
        let name = identifier("publication", &self.replica.publication);
        let published = name.and_then(|name| {
            // A statement with parameters is one statement, whatever the filters are.
            source.query_with(&format!("CREATE PUBLICATION {name}{what}"), &[])
        });
        let is_published = unless_locked(published, watcher)?.is_some();
        (self.state).set_subset_oids(&self.replica.name, &facts.subset_oids())?;
        Ok(is_published)
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
    fn snapshot(&mut self, watcher: &mut dyn Watcher) -> Result<(String, Lsn)> {
        let slot = format!("{}_again", self.replica.slot);
        loop {
            if let Some(exporter) = &self.exporter {
                return Ok((exporter.snapshot.clone(), exporter.start));
            }
            let (source, wanted) = (&self.options.source, self.wanted()?);
            self.exporter = export(source, &slot, true, &wanted, watcher)?;
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
            .filter(|table| table.is_left_out(&self.excluded) && !self.excluded.names(&table.name))
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

    fn create_tables(&mut self, watcher: &mut dyn Watcher) -> Result<()> {
        let (snapshot, _) = self.snapshot(watcher)?;
        let mut target = session(&self.options.target).map_err(ReplicaError::Target)?;
        end_restores(&mut target)?;
        // All of the section is there, or nothing.
        let there = collect::target_relations(&mut target).map_err(ReplicaError::Target)?;
        if there == 0 {
            let file = self.dump(Some(&snapshot))?;
            let spaces = self.has_tablespaces(&mut target)?;
            self.programs
                .restore(&self.options.target, &file, Section::PreData, spaces)?;
            failpoint::CREATE_RESTORED.reach();
        }
        let mut source = source_session(&self.options.source, &snapshot)?;
        let wanted = self.wanted()?;
        let tables = self.tables(&mut source, &wanted)?;
        let names: Vec<_> = tables
            .into_iter()
            .map(|table| (table.name, table.oid))
            .collect();
        self.state.add_tables(&self.replica.name, &names)?;
        failpoint::CREATE_LISTED.reach();
        Ok(())
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
        let (snapshot, start) = self.snapshot(watcher)?;
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
        failpoint::COPY_ENDED.reach();
        // Indexes need no snapshot: vacuum on the source may go on.
        self.exporter = None;
        Ok(moment)
    }

    fn create_indexes(&mut self, again: bool) -> Result<()> {
        let options = self.options;
        let on_source = || session(&options.source).map_err(ReplicaError::Source);
        let on_target = || session(&options.target).map_err(ReplicaError::Target);
        let mut target = on_target()?;
        if again {
            let mut source = on_source()?;
            end_restores(&mut target)?;
            finish::drop_event_triggers(&mut source, &mut target)?;
            let undone = (target.execute(SILENT)).and_then(|()| target.execute(UNDO_POST_DATA));
            undone.map_err(ReplicaError::Target)?;
        }
        let file = self.dump(None)?;
        let spaces = self.has_tablespaces(&mut target)?;
        let section = Section::PostData(self.options.jobs);
        let (programs, to) = (&self.programs, &self.options.target);
        let unmade = match programs.restore(to, &file, section, spaces)? {
            true => Vec::new(),
            // Sessions of their own: those from before may have been idle for hours.
            false => {
                finish::without_event_triggers(&mut on_source()?, &mut on_target()?, |_, _| {
                    made::make(to, programs, &file, spaces)
                })?
            }
        };
        (self.state).set_unmade(&self.replica.name, Phase::Indexing, &unmade)?;
        failpoint::CREATE_INDEXED.reach();
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let mut source = session(&self.options.source).map_err(ReplicaError::Source)?;
        let mut target = target_session(&self.options.target)?;
        target.execute(SILENT).map_err(ReplicaError::Target)?;
        let publication = &self.replica.publication;
        let unset = setval::set(
            &mut source,
            &mut target,
            (&self.excluded, publication),
            None,
            &mut setval::Values::new(),
        )?;
        (self.state).set_unmade(&self.replica.name, Phase::Ready, &unset)?;
        failpoint::CREATE_SEQUENCES.reach();
        let mut unmade = finish::without_event_triggers(&mut source, &mut target, finish::views)?;
        unmade.extend(finish::analyze(&self.options.target, self.options.jobs)?);
        (self.state).set_unmade(&self.replica.name, Phase::Finishing, &unmade)?;
        failpoint::CREATE_FINISHED.reach();
        Ok(())
    }
}
