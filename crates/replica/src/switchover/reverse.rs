//! The replica for the way back from a switchover: the old source, which has all rows already, follows the
//! server that was its target.
//!
//! The slot of that replica must keep every change that is made once the target is open, and none that the
//! switchover's replica has applied there: apply would add them a second time. So the slot is made before
//! clients wait, and [`complete`] takes it to the end of the target's WAL once nothing is applied any more
//! and nobody else can write. No origin has to be filtered, which 15 could not.

use std::collections::HashSet;

use lockstep_client::quote::identifier;
use lockstep_client::{ClientError, Connection, Conninfo, Purpose, field};
use lockstep_wire::Timeline;

use crate::copy::tables;
use crate::error::{ReplicaError, Result};
use crate::lifecycle::create::unique;
use crate::lifecycle::exporter::{PLUGIN, bound_wait};
use crate::lifecycle::fence::Fenced;
use crate::lifecycle::remove::remove_from_source;
use crate::lifecycle::session;
use crate::names::TableName;
use crate::preflight::collect;
use crate::preflight::facts::Facts;
use crate::publication;
use crate::state::{APPLICATION, Phase, Replica, ReplicaState, SwitchStage, copied_sql, system_id};
use lockstep_apply::sessions::{self, SILENT};

/// Majors whose slots standbys can have.
const HAS_FAILOVER: u32 = 170_000;

/// The way back of a switchover.
#[derive(Debug)]
pub struct Reverse {
    pub replica: Replica,
    /// What the state of the old source is to say of the publication.
    published: String,
    timeline: Timeline,
    tables: Vec<TableName>,
    /// Sessions of the new server, and of the old one with its state, which are made before clients wait.
    server: Connection,
    state: ReplicaState,
}

impl Reverse {
    /// The session of the old server, without which [`complete`] cannot go on.
    pub(super) fn backend_pid(&mut self) -> u32 {
        self.state.connection().backend_pid()
    }
}

/// The replica of this name in the old source's state, if it has one.
pub fn find(old: &Conninfo, name: &str) -> Result<Option<Replica>> {
    match ReplicaState::find(old).map_err(turned)? {
        Some(mut state) => state.replica(name).map_err(turned),
        None => Ok(None),
    }
}

/// Replicas in the old source's state.
#[derive(Debug, Default)]
pub(super) struct SourceReplicas {
    /// The one with the name of the way back.
    pub own: Option<Replica>,
    /// Another one that follows the new server.
    pub other: Option<Replica>,
    /// Names of those that apply there.
    pub fed: Vec<String>,
}

/// What the old source's state has. `name` is that of the way back, if one is wanted.
pub(super) fn find_all(
    old: &Conninfo,
    name: Option<&str>,
    new: &mut Connection,
) -> Result<SourceReplicas> {
    let Some(mut state) = ReplicaState::find(old).map_err(turned)? else {
        return Ok(SourceReplicas::default());
    };
    let id = system_id(new).map_err(ReplicaError::Target)?;
    let database = new.query_one("SELECT current_database()");
    let database: String =
        (database.and_then(|row| field(&row, 0))).map_err(ReplicaError::Target)?;
    let all = state.replicas().map_err(turned)?.into_iter();
    let (own, others): (Vec<_>, Vec<_>) = all.partition(|it| Some(&*it.name) == name);
    let is_fed = |it: &&Replica| it.phase == Phase::Ready;
    let fed = (others.iter().filter(is_fed)).map(|it| it.name.clone());
    let fed = fed.collect();
    let follows = |it: &Replica| {
        it.system_id == id
            && it.source_database == database
            && matches!(it.phase, Phase::Preparing | Phase::Ready)
    };
    let mut others: Vec<_> = others.into_iter().filter(follows).collect();
    others.sort_by_key(|replica| replica.phase);
    Ok(SourceReplicas {
        own: own.into_iter().next(),
        other: others.into_iter().next(),
        fed,
    })
}

/// Errors of the state, whose target is the switchover's source.
pub fn turned(error: ReplicaError) -> ReplicaError {
    match error {
        ReplicaError::Target(error) => ReplicaError::Source(error),
        ReplicaError::Source(error) => ReplicaError::Target(error),
        other => other,
    }
}

/// Makes replica `name` on the old source, with publication and slot on the new one. One that an earlier call
/// has begun is made anew.
pub fn prepare(name: &str, old: &Conninfo, new: &Conninfo) -> Result<Reverse> {
    let mut server = session(new).map_err(ReplicaError::Target)?;
    let mut state = ReplicaState::open(old).map_err(turned)?;
    let replica = match state.replica(name).map_err(turned)? {
        Some(replica) if replica.phase == Phase::Preparing => replica,
        // The switchover that has led here, which is over: its name is free again.
        Some(replica) if is_over(&mut state, &replica)? => {
            let replica = begun(name, new, &mut server)?;
            // A rollback that is killed here finds one of both.
            state
                .connection()
                .execute("BEGIN")
                .map_err(ReplicaError::Source)?;
            state.remove(name).map_err(turned)?;
            state.add(&replica).map_err(turned)?;
            state
                .connection()
                .execute("COMMIT")
                .map_err(ReplicaError::Source)?;
            replica
        }
        Some(_) => {
            return Err(ReplicaError::State(format!(
                "the source has a replica \"{name}\" already: drop it there, or give the way back another name \
                 (--reverse)"
            )));
        }
        None => {
            let replica = begun(name, new, &mut server)?;
            state.add(&replica).map_err(turned)?;
            replica
        }
    };
    remove_from_source(new, &replica).map_err(turned)?;
    let facts = Facts {
        tables: collect::tables(&mut server).map_err(ReplicaError::Target)?,
        ..Facts::default()
    };
    publish(&mut server, &facts, &replica)?;
    let mut maker =
        sessions::open(new, Purpose::Replication, APPLICATION).map_err(ReplicaError::Target)?;
    let timeline = maker.identify().map_err(ReplicaError::Target)?.timeline;
    let failover = maker.server_version() >= HAS_FAILOVER;
    maker
        .create_slot(&replica.slot, PLUGIN, false, failover)
        .map_err(ReplicaError::Target)?;
    let (published, listed) = seen(&mut server, &replica, &facts)?;
    state.add_tables(name, &listed).map_err(turned)?;
    Ok(Reverse {
        replica,
        published,
        timeline,
        tables: listed.into_iter().map(|(name, _)| name).collect(),
        server,
        state,
    })
}

/// Whether a replica was switched to and nothing is left of it on its source.
fn is_over(state: &mut ReplicaState, replica: &Replica) -> Result<bool> {
    let promotion = state.promotion(&replica.name).map_err(turned)?;
    let stage = state.switch_stage(&replica.name).map_err(turned)?;
    Ok(replica.phase == Phase::Promoted
        && stage == SwitchStage::Done
        && promotion.is_some_and(|it| !it.is_left))
}

fn begun(name: &str, new: &Conninfo, server: &mut Connection) -> Result<Replica> {
    let object = format!("lockstep_{name}_{:08x}", unique());
    let database = server.query_one("SELECT current_database()");
    let database = database.and_then(|row| field(&row, 0));
    Ok(Replica {
        name: name.to_owned(),
        source: new.clone().without_secrets().to_string(),
        system_id: system_id(server).map_err(ReplicaError::Target)?,
        source_database: database.map_err(ReplicaError::Target)?,
        slot: object.clone(),
        publication: object.clone(),
        origin: object,
        exclude_schemas: Vec::new(),
        exclude_tables: Vec::new(),
        subsets: Vec::new(),
        phase: Phase::Preparing,
        start: None,
        paused: false,
        resumes: 0,
        frequency: std::time::Duration::ZERO,
        forces: 0,
        ddl: false,
        altering: false,
        read_only: false,
        bandwidth: None,
    })
}

fn publish(server: &mut Connection, facts: &Facts, replica: &Replica) -> Result<()> {
    bound_wait(server).map_err(turned)?;
    server.execute(SILENT).map_err(ReplicaError::Target)?;
    let listed: Vec<_> = facts.published().map(|table| table.name.sql()).collect();
    let what = match listed.is_empty() {
        true => String::new(),
        false => format!(" FOR TABLE ONLY {}", listed.join(", ONLY ")),
    };
    let published = identifier("publication", &replica.publication)
        .and_then(|name| server.execute(&format!("CREATE PUBLICATION {name}{what}")));
    published.map_err(ReplicaError::Target)
}

/// The publication as the old server's state is to have it, and its tables with their OIDs.
fn seen(
    server: &mut Connection,
    replica: &Replica,
    facts: &Facts,
) -> Result<(String, Vec<(TableName, u32)>)> {
    let wanted: HashSet<_> = facts.copied().map(|table| table.name.clone()).collect();
    let look = |server: &mut Connection| -> Result<_, ClientError> {
        let published = publication::text(server, &replica.publication)?;
        Ok((
            published,
            tables::tables(server, &wanted, &replica.publication)?,
        ))
    };
    let (published, found) = look(server).map_err(ReplicaError::Target)?;
    let published = published.ok_or_else(|| {
        ReplicaError::State(format!(
            "publication \"{}\", which was just made on the target, is gone; repeat the command",
            replica.publication
        ))
    })?;
    let listed = found.into_iter().map(|it| (it.name, it.oid)).collect();
    Ok((published, listed))
}

/// Finds what an earlier call has prepared; None if that is not whole.
pub fn found(old: &Conninfo, new: &Conninfo, replica: Replica) -> Result<Option<Reverse>> {
    let mut server = session(new).map_err(ReplicaError::Target)?;
    let slot = server.slot(&replica.slot).map_err(ReplicaError::Target)?;
    let has_slot = slot.is_some_and(|slot| slot.invalidation.is_none());
    let mut state = ReplicaState::open(old).map_err(turned)?;
    let has_tables = !state.tables(&replica.name).map_err(turned)?.is_empty();
    if !has_slot || !has_tables {
        return Ok(None);
    }
    let facts = Facts {
        tables: collect::tables(&mut server).map_err(ReplicaError::Target)?,
        ..Facts::default()
    };
    let mut maker =
        sessions::open(new, Purpose::Replication, APPLICATION).map_err(ReplicaError::Target)?;
    let timeline = maker.identify().map_err(ReplicaError::Target)?.timeline;
    let (published, listed) = seen(&mut server, &replica, &facts)?;
    Ok(Some(Reverse {
        replica,
        published,
        timeline,
        tables: listed.into_iter().map(|(name, _)| name).collect(),
        server,
        state,
    }))
}

/// Lets the way back begin at the end of the new server's WAL. Call it once nothing is applied there any more
/// and before anybody else writes; another call does the same again.
pub fn complete(reverse: &mut Reverse) -> Result<()> {
    let (slot, server) = (&reverse.replica.slot, &mut reverse.server);
    let mut advance = || -> Result<_, ClientError> {
        let end = server.mark()?;
        server.advance_slot(slot, end)?;
        server.slot(slot)
    };
    let gone = || ReplicaError::State(format!("slot \"{slot}\" on the target is gone"));
    let advanced = advance().map_err(ReplicaError::Target)?;
    let start = advanced.ok_or_else(gone)?.confirmed;
    let (name, state) = (&reverse.replica.name, &mut reverse.state);
    let run = |state: &mut ReplicaState, sql: &str| {
        let done = state.connection().execute(sql);
        done.map_err(ReplicaError::Source)
    };
    run(state, "BEGIN")?;
    let kept = state.set_start(name, start, reverse.timeline, &reverse.published);
    kept.map_err(turned)?;
    for part in reverse.tables.chunks(1_000) {
        let part: Vec<_> = part.iter().map(|table| (table, 0, 0)).collect();
        let sql = copied_sql(name, start, &part).map_err(ReplicaError::Source)?;
        run(state, &sql)?;
    }
    state.set_phase(name, Phase::Ready).map_err(turned)?;
    run(state, "COMMIT")
}

/// Removes a way back that does not begin.
pub fn remove(replica: &Replica, old: &Conninfo, new: &Conninfo) -> Result<()> {
    remove_from_source(new, replica).map_err(turned)?;
    let state = ReplicaState::find(old).map_err(turned)?;
    state.map_or(Ok(()), |mut state| {
        state.remove(&replica.name).map_err(turned)
    })
}
