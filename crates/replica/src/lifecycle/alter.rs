//! `replica alter`: other tables, or another part of some, without copying again what stays.
//!
//! | step | what is true afterwards |
//! |---|---|
//! | looked at both servers | nothing is changed |
//! | [`ReplicaState::begin_alteration`] | the state has what is wanted, and says that it is being altered: from here on there is only forward; nothing applies |
//! | published | the source sends what is wanted |
//! | copied | each table that joins, or is copied anew, starts at its own snapshot |
//! | [`ReplicaState::end_alteration`] | the replica is ready |
//!
//! Each can be done again, so another call goes on where one was killed. Changes of a table before its
//! snapshot are skipped by apply, as after a copy that was resumed, and those of a table that has left,
//! too. The slot keeps everything meanwhile.

use std::collections::HashSet;

use lockstep_client::quote::identifier;
use lockstep_client::{ClientError, Connection, Conninfo, field};
use lockstep_wire::Lsn;

use crate::copy::fit::fit;
use crate::copy::progress::Moment;
use crate::copy::tables;
use crate::copy::workers::{CopyWork, copy, source_session, target_session};
use crate::error::{Finding, Findings, ReplicaError, Result};
use crate::lifecycle::alteration::{Changes, Wishes, gone, may_be_emptied, renamed, to_drop};
use crate::lifecycle::create::{CreateOptions, preflight};
use crate::lifecycle::exporter::{Exporter, bound_wait, export, unless_locked};
use crate::lifecycle::kept::{KnownReplica, Plan};
use crate::lifecycle::{Watcher, session};
use crate::names::{Excluded, TableName, named};
use crate::preflight::collect;
use crate::preflight::facts::{Facts, Table};
use crate::preflight::subsets::{self, ONE_WAY};
use crate::publication::subset::Subset;
use crate::publication::{self, Entry, Published};
use crate::state::failpoint;
use crate::state::{Replica, ReplicaState, TableCopy, TableState, unreadable};
use crate::status::source::{END, source_of};
use lockstep_apply::sessions::SILENT;

/// Triggers of a table that fire for rows that a replica inserts.
const ACTING_TRIGGERS: &str = "SELECT t.tgname FROM pg_catalog.pg_trigger t \
    JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
    WHERE n.nspname = $1 AND c.relname = $2 AND NOT t.tgisinternal AND t.tgenabled IN ('A', 'R') \
        AND t.tgtype & 4 <> 0 ORDER BY 1";

/// What the user asks for.
#[derive(Debug, Clone)]
pub struct AlterOptions {
    pub name: String,
    pub target: Conninfo,
    /// Used in place of the conninfo that the state has.
    pub source: Option<Conninfo>,
    pub wishes: Wishes,
    /// Tables that leave are dropped on the target.
    pub drops: bool,
    pub jobs: usize,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Altered {
    /// None if an earlier call has begun it.
    pub changes: Option<Changes>,
    /// Figures of the rows that this call has copied.
    pub copied: Moment,
}

/// Alters which tables a replica has, and what of each, or goes on with what an earlier call has begun.
pub fn alter(options: &AlterOptions, watcher: &mut dyn Watcher) -> Result<Altered> {
    let name = &options.name;
    let unknown = || ReplicaError::Usage(format!("the target has no replica \"{name}\""));
    let mut state = ReplicaState::find(&options.target)?.ok_or_else(unknown)?;
    state.lock_or_say(name)?;
    state.check_not_applied_to(name)?;
    let replica = state.replica(name)?.ok_or_else(unknown)?;
    let source = source_of(options.source.as_ref(), &replica.source)?;
    let mut run = Run {
        options,
        wishes: options.wishes.clone(),
        source,
        replica,
        state,
    };
    run.check()?;
    if !run.replica.altering {
        run.replica.check_ready()?;
        run.know()?;
    }
    run.understand()?;
    let wanted = run.wanted()?;
    let is_same = wanted == (run.replica.excluded(), run.replica.subsets.clone());
    if run.replica.altering {
        if !options.wishes.is_empty() && !is_same {
            return Err(ReplicaError::State(format!(
                "replica \"{name}\" is being altered in another way: run lockstep replica alter {name} --go-on \
                 first, which ends that"
            )));
        }
        let copied = run.go_on(watcher)?;
        if options.wishes.is_empty() {
            return Ok(Altered {
                changes: None,
                copied,
            });
        }
        // What was begun may have been other tables.
        run.replica = run.state.replica(name)?.ok_or_else(unknown)?;
        run.know()?;
        let wanted = run.wanted()?;
        let changes = run.begin(wanted, true, watcher)?;
        if changes.is_empty() {
            return Ok(Altered {
                changes: None,
                copied,
            });
        }
        let copied = run.go_on(watcher)?;
        return Ok(Altered {
            changes: Some(changes),
            copied,
        });
    }
    let changes = run.begin(wanted, is_same, watcher)?;
    let copied = match is_same && changes.is_empty() {
        true => Moment::default(),
        false => run.go_on(watcher)?,
    };
    Ok(Altered {
        changes: Some(changes),
        copied,
    })
}

struct Run<'a> {
    options: &'a AlterOptions,
    /// The options' wishes, with row filters as the source writes them.
    wishes: Wishes,
    source: Conninfo,
    replica: Replica,
    /// The state, whose session holds the replica's lock.
    state: ReplicaState,
}

impl Run<'_> {
    fn check(&mut self) -> Result<()> {
        let name = &self.options.name;
        self.replica.check_not_promoted()?;
        if self.state.switch_stage(name)?.is_begun() {
            return Err(ReplicaError::State(format!(
                "a switchover of replica \"{name}\" has begun and is not over: repeat it first"
            )));
        }
        match self.replica.ddl {
            false => Ok(()),
            true => Err(ReplicaError::State(format!(
                "replica \"{name}\" follows changes of the schema: event triggers on the source know what it \
                 leaves out, so that cannot be altered; drop the replica and create it again"
            ))),
        }
    }

    fn facts(&self, excluded: Excluded, subsets: Vec<Subset>) -> Result<Facts> {
        let mut source = self.on_source()?;
        let seen = || -> Result<Facts, ClientError> {
            Ok(Facts {
                tables: collect::tables(&mut source)?,
                schemas: collect::schemas(&mut source)?,
                excluded,
                subsets,
                ..Facts::default()
            })
        };
        seen().map_err(ReplicaError::Source)
    }

    /// A session in which what was written in another one means the same.
    fn on_source(&self) -> Result<Connection> {
        let session = session(&self.source).and_then(|mut source| {
            source.execute(ONE_WAY)?;
            Ok(source)
        });
        session.map_err(ReplicaError::Source)
    }

    /// The publication as it is.
    fn found(&self, source: &mut Connection) -> Result<Published> {
        Published::parse(&self.published(source)?).map_err(unreadable)
    }

    /// Takes row filters and column lists as the publication has them, by the names of now.
    fn know(&mut self) -> Result<()> {
        self.check_publication()?;
        let facts = self.facts(Excluded::default(), Vec::new())?;
        let found = self.found(&mut self.on_source()?)?;
        let name = self.replica.name.clone();
        let (oids, listed) = (self.state.subset_oids(&name)?, self.state.tables(&name)?);
        let made = self.state.expected(&self.replica)?.made;
        let known = KnownReplica {
            subsets: &self.replica.subsets,
            oids: &oids,
            made: made.as_ref(),
            listed: &listed,
            found: &found,
        };
        let subsets = known.subsets(&facts, &self.wishes.parts())?;
        self.replica.subsets = subsets;
        Ok(())
    }

    /// Reads the row filters that are wished as this call's session does, once and for all. One that the
    /// source refuses stays as it is: the preflight says why.
    fn understand(&mut self) -> Result<()> {
        let facts = self.facts(Excluded::default(), Vec::new())?;
        let mut source = session(&self.source).map_err(ReplicaError::Source)?;
        source.execute(SILENT).map_err(ReplicaError::Source)?;
        for wish in &mut self.wishes.subsets {
            let is_of =
                |table: &&Table| table.name == wish.table || table.ancestors.contains(&wish.table);
            let (Some(filter), Some(table)) = (&wish.filter, facts.copied().find(is_of)) else {
                continue;
            };
            let written = subsets::written(&mut source, table, filter);
            if let Some(written) = written.map_err(ReplicaError::Source)? {
                wish.filter = Some(written);
            }
        }
        Ok(())
    }

    /// What the replica leaves out, and its row filters and column lists, once it is as it is wished.
    fn wanted(&self) -> Result<(Excluded, Vec<Subset>)> {
        let (excluded, mut subsets) = self.wishes.applied(&self.replica)?;
        let facts = self.facts(Excluded::default(), Vec::new())?;
        self.wishes.hold_below(&facts.tables, &mut subsets);
        Ok((excluded, subsets))
    }

    /// What is missing on the target since somebody has altered the publication would not be seen any more.
    fn check_publication(&mut self) -> Result<()> {
        let expected = self.state.expected(&self.replica)?;
        let mut source = self.on_source()?;
        let differences = expected.differences(&mut source);
        match expected.words(&differences.map_err(ReplicaError::Source)?) {
            None => Ok(()),
            Some(words) => Err(ReplicaError::State(words)),
        }
    }

    /// Looks whether it can be done, and keeps what is wanted.
    fn begin(
        &mut self,
        (excluded, subsets): (Excluded, Vec<Subset>),
        is_same: bool,
        watcher: &mut dyn Watcher,
    ) -> Result<Changes> {
        let (replica, wishes) = (&self.replica, &self.wishes);
        let old = self.facts(replica.excluded(), replica.subsets.clone())?;
        let new = Facts {
            excluded: excluded.clone(),
            subsets: subsets.clone(),
            ..old.clone()
        };
        wishes.check_names(replica, &new)?;
        let before = self.state.tables(&replica.name)?;
        let listed = renamed(&old.tables, &before);
        let found = self.found(&mut self.on_source()?)?;
        let sent = found.tables.iter().map(|entry| entry.oid).collect();
        let changes = wishes.changes(&old, &new, &listed, &sent)?;
        if is_same && changes.is_empty() {
            return Ok(changes);
        }
        let drops = match self.options.drops {
            true => to_drop(&changes.leaves, &listed)?,
            false => Vec::new(),
        };
        self.preflight(&old, &new, &changes, watcher)?;
        self.check_target(&new, &changes, &listed)?;
        // What the source refuses changes nothing.
        let plan = Plan::new(&new, &changes.listed(&listed), &found);
        self.publish(&plan, &found, "ROLLBACK", watcher)?;
        let name = &self.options.name;
        let parts = (&changes.joins[..], &changes.leaves[..], &changes.anew[..]);
        let wanted = (&excluded, &subsets[..], &new.subset_oids());
        let names = before.into_iter().zip(listed);
        let names = names.map(|(had, has)| (had.name, has.name));
        let names: Vec<_> = names.filter(|(had, has)| had != has).collect();
        (self.state).begin_alteration(name, wanted, parts, (&names[..], &drops[..]))?;
        failpoint::ALTER_BEGUN.reach();
        self.replica.exclude_schemas = excluded.schemas;
        self.replica.exclude_tables = excluded.tables;
        self.replica.subsets = subsets;
        Ok(changes)
    }

    /// What would be wrong with a new replica that is wrong with what is wanted, and not with what was.
    fn preflight(
        &self,
        old: &Facts,
        new: &Facts,
        changes: &Changes,
        watcher: &mut dyn Watcher,
    ) -> Result<()> {
        let found = |facts: &Facts| -> Result<Vec<Finding>> {
            let (_, found) = preflight(&CreateOptions {
                name: self.options.name.clone(),
                source: self.source.clone(),
                target: self.options.target.clone(),
                excluded: facts.excluded.clone(),
                subsets: facts.subsets.clone(),
                jobs: self.options.jobs,
                bytes_per_s: None,
                skip_large_objects: true,
                frequency: self.replica.frequency,
                ddl: false,
                read_only: false,
            })?;
            Ok(found)
        };
        let before = found(old)?;
        let mut found = found(new)?;
        found.retain(|one| !before.contains(one));
        found.extend(self.acting_triggers(changes)?);
        watcher.found(&found);
        match found.iter().any(Finding::is_error) {
            false => Ok(()),
            true => Err(ReplicaError::Preflight(found)),
        }
    }

    /// Triggers of the target that would change what is copied, or do more than that.
    fn acting_triggers(&self, changes: &Changes) -> Result<Vec<Finding>> {
        let mut target = session(&self.options.target).map_err(ReplicaError::Target)?;
        let mut found = Findings::default();
        for (table, _) in changes.copied() {
            let acts = target.query_with(ACTING_TRIGGERS, &[&table.schema, &table.table]);
            let acts = acts.map_err(ReplicaError::Target)?;
            let acts: Result<Vec<String>, _> = acts.iter().map(|row| field(row, 0)).collect();
            let acts = acts.map_err(ReplicaError::Target)?;
            if !acts.is_empty() {
                let says = format!(
                    "it has triggers on the target that are ENABLE ALWAYS or ENABLE REPLICA, so they fire for each \
                     row that is copied: {}",
                    named(&acts)
                );
                let todo = "ALTER TABLE ... DISABLE TRIGGER on the target, unless that is wanted";
                found.warning(format!("table {table}"), says, todo);
            }
        }
        Ok(found.0)
    }

    /// Tables that are copied are on the target, take all that they are to get, and have no rows but the
    /// replica's.
    fn check_target(&self, new: &Facts, changes: &Changes, listed: &[TableCopy]) -> Result<()> {
        let names: HashSet<_> = changes.copied().map(|(name, _)| name.clone()).collect();
        if names.is_empty() {
            return Ok(());
        }
        let joins = |name: &TableName| changes.joins.iter().any(|(one, _)| one == name);
        self.check_places(&names, joins, listed)?;
        let mut source = session(&self.source).map_err(ReplicaError::Source)?;
        // Whatever the publication still has of them.
        let tables = tables::tables(&mut source, &names, "");
        let mut tables = tables.map_err(ReplicaError::Source)?;
        for table in &mut tables {
            let whole = new.tables.iter().find(|it| it.oid == table.oid);
            if let Some(listed) = whole.and_then(|it| new.subset_of(it)?.columns.as_ref()) {
                table.types.retain(|column| listed.contains(&column.name));
            }
        }
        fit(&self.options.target, &mut tables)
    }

    /// The tables are there by these names, and what is in them may go. Tables that join have no rows.
    fn check_places(
        &self,
        names: &HashSet<TableName>,
        joins: impl Fn(&TableName) -> bool,
        listed: &[TableCopy],
    ) -> Result<()> {
        let mut target = session(&self.options.target).map_err(ReplicaError::Target)?;
        let (mut missing, mut filled) = (Vec::new(), Vec::new());
        for table in names {
            let may_be_emptied = may_be_emptied(table, joins(table), listed)?;
            if !is_there(&mut target, table).map_err(ReplicaError::Target)? {
                missing.push(table.to_string());
                continue;
            }
            let sql = format!("SELECT EXISTS (SELECT FROM ONLY {})", table.sql());
            let row = target.query_one(&sql).and_then(|row| field(&row, 0));
            if row.map_err(ReplicaError::Target)? && !may_be_emptied {
                filled.push(table.to_string());
            }
        }
        missing.sort_unstable();
        filled.sort_unstable();
        if !missing.is_empty() {
            return Err(ReplicaError::State(format!(
                "the target lacks tables that are to be copied: {}. Make them there without rows (pg_dump \
                 --schema-only --table, on the source), and what they need",
                named(&missing)
            )));
        }
        match filled.is_empty() {
            true => Ok(()),
            false => Err(ReplicaError::State(format!(
                "tables that are to be copied have rows on the target that are not the replica's: {}. Empty them \
                 there (TRUNCATE), or give them other names and make tables without rows",
                named(&filled)
            ))),
        }
    }

    /// Lets the source send what is wanted, or tries it. What it sends of other tables is not touched.
    fn publish(
        &self,
        plan: &Plan,
        found: &Published,
        end: &str,
        watcher: &mut dyn Watcher,
    ) -> Result<()> {
        let leaves = |entry: &Entry| plan.drops.iter().any(|(oid, _)| *oid == entry.oid);
        if plan.adds.is_empty() && found.tables.iter().all(leaves) {
            let words = "nothing would be left to replicate: drop the replica";
            return Err(ReplicaError::State(words.to_owned()));
        }
        loop {
            let mut source = self.on_source()?;
            bound_wait(&mut source)?;
            source.execute(SILENT).map_err(ReplicaError::Source)?;
            let name = identifier("publication", &self.replica.publication);
            let published = name.and_then(|name| {
                source.execute("BEGIN")?;
                for statement in plan.statements(&name) {
                    // A statement with parameters is one statement, whatever the filters are.
                    source.query_with(&statement, &[])?;
                }
                Ok(())
            });
            if unless_locked(published, watcher)?.is_none() {
                continue;
            }
            if !plan.is_all(found, &self.found(&mut source)?) {
                return Err(ReplicaError::State(
                    "tables of the source, or the publication, were altered meanwhile: run the same command \
                     again"
                        .to_owned(),
                ));
            }
            return source.execute(end).map_err(ReplicaError::Source);
        }
    }

    /// From a state that is being altered to one that is ready.
    fn go_on(&mut self, watcher: &mut dyn Watcher) -> Result<Moment> {
        self.ended(watcher).map_err(|error| {
            let name = &self.options.name;
            ReplicaError::Unfinished {
                error: Box::new(error),
                left: format!(
                    "Replica \"{name}\" is being altered, and nothing is applied until that has ended: once the \
                     cause is gone, run lockstep replica alter {name} --go-on"
                ),
            }
        })
    }

    fn ended(&mut self, watcher: &mut dyn Watcher) -> Result<Moment> {
        let name = self.replica.name.clone();
        let mut facts = self.facts(self.replica.excluded(), Vec::new())?;
        self.leave_gone(&facts, watcher)?;
        let listed = self.state.tables(&name)?;
        let found = self.found(&mut self.on_source()?)?;
        let oids = self.state.subset_oids(&name)?;
        let known = KnownReplica {
            subsets: &self.replica.subsets,
            oids: &oids,
            made: None,
            listed: &listed,
            found: &found,
        };
        facts.subsets = known.named(&facts)?;
        let plan = Plan::new(&facts, &listed, &found);
        self.publish(&plan, &found, "COMMIT", watcher)?;
        failpoint::ALTER_PUBLISHED.reach();
        let waiting = listed.iter().filter(|it| it.state != TableState::Copied);
        let waiting: HashSet<_> = waiting.map(|copy| copy.name.clone()).collect();
        let joins = |name: &TableName| {
            let mut listed = listed.iter();
            listed.any(|copy| copy.name == *name && copy.state == TableState::Waiting)
        };
        self.check_places(&waiting, joins, &listed)?;
        if waiting.is_empty() {
            let mut source = session(&self.source).map_err(ReplicaError::Source)?;
            let end = source.query_one(END).and_then(|row| field::<Lsn>(&row, 0));
            let end = end.map_err(ReplicaError::Source)?;
            let published = self.published(&mut source)?;
            self.state.end_alteration(&name, &published, end)?;
            return Ok(Moment::default());
        }
        let exporter = self.snapshot(&waiting, watcher)?;
        let mut source = source_session(&self.source, &exporter.snapshot)?;
        let published = self.published(&mut source)?;
        let tables = tables::tables(&mut source, &waiting, &self.replica.publication);
        let mut tables = tables.map_err(ReplicaError::Source)?;
        drop(source);
        let is_there =
            |name: &&TableName| tables.iter().any(|it| it.name == **name && it.published);
        if let Some(gone) = waiting.iter().find(|name| !is_there(name)) {
            return Err(ReplicaError::State(format!(
                "table {gone} is gone from the source, or from the publication, since it was to be copied"
            )));
        }
        fit(&self.options.target, &mut tables)?;
        self.empty(&waiting)?;
        let work = CopyWork {
            replica: &name,
            source: &self.source,
            target: &self.options.target,
            snapshot: &exporter.snapshot,
            start: exporter.start,
            tables: &tables,
            jobs: self.options.jobs,
            bytes_per_s: self.replica.bandwidth,
        };
        let moment = copy(&work, &mut |moment| watcher.progress(moment))?;
        failpoint::ALTER_COPIED.reach();
        self.state
            .end_alteration(&name, &published, exporter.start)?;
        Ok(moment)
    }

    /// Leaves out tables that the source has dropped since they were to be copied.
    fn leave_gone(&mut self, facts: &Facts, watcher: &mut dyn Watcher) -> Result<()> {
        let name = &self.replica.name;
        let gone = gone(facts, &self.state.tables(name)?)?;
        if gone.is_empty() {
            return Ok(());
        }
        self.state.forget_tables(name, &gone)?;
        let mut found = Findings::default();
        for table in gone {
            let says =
                "the source has dropped it since it was to be copied: it is replicated no longer";
            found.warning(format!("table {table}"), says, "drop it on the target, too");
        }
        watcher.found(&found.0);
        Ok(())
    }

    /// The publication as it is, for the state.
    fn published(&self, source: &mut Connection) -> Result<String> {
        let name = &self.replica.publication;
        let text = publication::text(source, name).map_err(ReplicaError::Source)?;
        text.ok_or_else(|| {
            let words = format!("publication \"{name}\" is gone from the source: drop the replica");
            ReplicaError::State(words)
        })
    }

    fn snapshot(&self, tables: &HashSet<TableName>, watcher: &mut dyn Watcher) -> Result<Exporter> {
        let slot = format!("{}_again", self.replica.slot);
        loop {
            if let Some(made) = export(&self.source, &slot, true, tables, watcher)? {
                return Ok(made);
            }
        }
    }

    /// Empties tables of which rows may be there.
    fn empty(&self, tables: &HashSet<TableName>) -> Result<()> {
        let mut target = target_session(&self.options.target)?;
        let mut each = || -> Result<(), ClientError> {
            target.execute(SILENT)?;
            for table in tables {
                let sql = table.sql();
                // A table to which others refer can be emptied in this way alone.
                let refers = "SELECT EXISTS (SELECT FROM pg_catalog.pg_constraint c \
                    WHERE c.contype = 'f' AND c.confrelid = $1::pg_catalog.regclass)";
                let rows = target.query_with(refers, &[&sql])?;
                let is_referred: bool = field(rows.first().map_or(&[][..], Vec::as_slice), 0)?;
                target.execute(&match is_referred {
                    true => format!("DELETE FROM ONLY {sql}"),
                    false => format!("TRUNCATE ONLY {sql}"),
                })?;
            }
            Ok(())
        };
        each().map_err(ReplicaError::Target)
    }
}

/// The target has a table of that name which holds rows.
fn is_there(target: &mut Connection, table: &TableName) -> Result<bool, ClientError> {
    let sql = "SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
        WHERE c.relkind = 'r' AND n.nspname = $1 AND c.relname = $2";
    let rows = target.query_with(sql, &[&table.schema, &table.table])?;
    Ok(!rows.is_empty())
}
