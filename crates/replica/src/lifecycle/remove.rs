//! `replica drop`: what a replica has on source and target, but for the data.

use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::quote::{identifier, sql_literal};
use lockstep_client::{ClientError, Conninfo, Purpose, field};
use lockstep_wire::Lsn;

use crate::capture;
use crate::error::{ReplicaError, Result};
use crate::lifecycle::fence::{self, Fence};
use crate::lifecycle::read_only;
use crate::state::failpoint;
use crate::state::{self, APPLICATION, Phase, Replica, ReplicaState, SwitchStage};
use crate::status::source::{other_place, place, source_of};
use lockstep_apply::origins;
use lockstep_apply::sessions;

/// SQLSTATE of an object that a session uses.
const IN_USE: &str = "55006";

/// Longest wait for a slot or an origin that is in use, and the time between attempts.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

/// Takes a slot to a position before which the target has everything,
const ADVANCE: &str = "SELECT pg_replication_slot_advance(slot_name, $2::pg_lsn) FROM pg_replication_slots \
    WHERE slot_name = $1 AND confirmed_flush_lsn < $2::pg_lsn";

/// and looks for the next transaction with something for the publication. Others are empty, and left out.
const NEXT: &str = "SELECT EXISTS (SELECT FROM pg_logical_slot_peek_binary_changes($1, NULL, 1, \
    'proto_version', '1', 'publication_names', $2))";

/// Looks for a transaction that is not of an origin whose name begins with `$3`: pgoutput's message Origin
/// (its first byte is 'O') has that.
const NEXT_OF_OTHERS: &str = "SELECT EXISTS (SELECT FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, \
    'proto_version', '1', 'publication_names', $2) c \
    GROUP BY c.xid HAVING NOT bool_or(get_byte(c.data, 0) = ascii('O') \
        AND position(convert_to($3, 'UTF8') IN c.data) > 0))";

/// Whether the source has committed something for the replica after a position before which the target has
/// everything: as far as the slot is there to tell. What the way back, whose origins begin with `way_back`,
/// has brought to the source is not meant: that was written on the target.
pub(super) fn has_more(
    source: &Conninfo,
    replica: &Replica,
    after: Lsn,
    way_back: Option<&str>,
) -> Result<bool> {
    let asked = || -> Result<bool, ClientError> {
        let mut session = sessions::open(source, Purpose::Sql, APPLICATION)?;
        session.execute(sessions::SILENT)?;
        let slot = session.slot(&replica.slot)?;
        if slot.is_none_or(|slot| slot.invalidation.is_some()) {
            return Ok(false);
        }
        let publication = identifier("publication", &replica.publication)?;
        let mut has_more = false;
        when_free(|| {
            session.query_with(ADVANCE, &[&replica.slot, &after])?;
            let rows = match way_back {
                None => session.query_with(NEXT, &[&replica.slot, &publication]),
                Some(origin) => {
                    let asked = [&replica.slot, &publication, &origin.to_owned()];
                    session.query_with(NEXT_OF_OTHERS, &asked.map(|it| it as _))
                }
            };
            let rows = rows?;
            has_more = field(rows.first().map_or(&[][..], Vec::as_slice), 0)?;
            Ok(())
        })?;
        Ok(has_more)
    };
    asked().map_err(ReplicaError::Source)
}

/// Drops the replica's slot and publication on the source, as far as they are there. Another server or
/// database than the replica was made from is an error: it says nothing of the source.
pub fn remove_from_source(source: &Conninfo, replica: &Replica) -> Result<()> {
    let removed = || -> Result<Option<String>, ClientError> {
        let mut session = sessions::open(source, Purpose::Sql, APPLICATION)?;
        session.execute(sessions::SILENT)?;
        let other = other_place(replica, &place(&mut session, replica)?);
        if other.is_some() {
            return Ok(other);
        }
        if let Some(slot) = session.slot(&replica.slot)? {
            if let (Phase::Preparing, Some(maker)) = (replica.phase, slot.active_pid) {
                // A creation that was killed: the slot's session waits for open transactions, perhaps
                // for long. The replica's lock is ours, so it is no other.
                session.execute(&format!("SELECT pg_terminate_backend({maker})"))?;
            }
            when_free(|| match session.drop_slot(&replica.slot) {
                // A slot that was not made yet goes with its session.
                Err(error) if error.is_missing_slot() => Ok(()),
                dropped => dropped,
            })?;
        }
        failpoint::DROP_SLOT.reach();
        if replica.ddl {
            session.execute(&capture::removal(replica))?;
        }
        let publication = identifier("publication", &replica.publication)?;
        session.execute(&format!("DROP PUBLICATION IF EXISTS {publication}"))?;
        Ok(None)
    };
    match removed().map_err(ReplicaError::Source)? {
        None => Ok(()),
        Some(words) => Err(ReplicaError::OtherSource(words)),
    }
}

/// What removes the replica from its source, as commands for the database that it was made from.
pub fn left_on_source(replica: &Replica) -> Result<Vec<String>> {
    let parts = || -> Result<Vec<String>, ClientError> {
        let slot = sql_literal("slot", &replica.slot)?;
        let publication = identifier("publication", &replica.publication)?;
        let mut commands = vec![
            format!(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = \
                    {slot};"
            ),
            format!("DROP PUBLICATION IF EXISTS {publication};"),
        ];
        if replica.ddl {
            commands.push(capture::removal(replica));
        }
        Ok(commands)
    };
    parts().map_err(ReplicaError::Source)
}

/// Drops a replica: its slot and publication on the source, its origins and its state on the
/// target. The target's tables stay. What is gone already is no error, so a call that failed halfway
/// can be repeated. `source` is used in place of the conninfo that the state has.
pub fn remove(name: &str, target: &Conninfo, source: Option<&Conninfo>) -> Result<Replica> {
    let removed = removed(name, target, false, |replica| {
        let source = source_of(source, &replica.source)?;
        remove_from_source(&source, replica).map_err(|error| match error {
            ReplicaError::Source(error) if error.refusal().is_none() => ReplicaError::NoSource {
                error,
                name: name.to_owned(),
            },
            ReplicaError::OtherSource(words) => ReplicaError::OtherSource(format!(
                "{words}; nothing is changed. Name the right one with --source; if it is gone for good, \
                 lockstep replica drop {name} --without-source, with the same --target, drops the replica \
                 on the target alone"
            )),
            error => error,
        })
    });
    removed.map(|(replica, _)| replica)
}

/// What a replica has left that was dropped without its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    pub replica: Replica,
    /// Commands for a source that comes back.
    pub source: Vec<String>,
    /// What to know of a switchover that had begun.
    pub notes: Vec<String>,
}

/// Drops a replica whose source is gone: its origins and its state on the target. A switchover that has begun
/// ends: the target takes writes again as before it, or is open if it had been promoted.
pub fn remove_without_source(name: &str, target: &Conninfo) -> Result<Dropped> {
    let (replica, ended) = removed(name, target, true, |_| Ok(()))?;
    let mut source = left_on_source(&replica)?;
    let mut notes = Vec::new();
    if let Some(ended) = ended {
        notes.push(ended.words(name));
        notes.extend(ended.left);
        let database = identifier("database", &replica.source_database);
        let database = database.map_err(ReplicaError::Source)?;
        let begin = "BEGIN READ WRITE; ";
        // The first one, of the slot, writes nothing.
        for command in source.iter_mut().skip(1) {
            *command = format!("{begin}{command} COMMIT;");
        }
        // Once the target is open, the source lacks what is written there: its fence stays.
        if ended.phase == Phase::Ready {
            source.push(format!(
                "{begin}ALTER DATABASE {database} RESET default_transaction_read_only; DROP FUNCTION IF EXISTS \
                 lockstep.fence() CASCADE; COMMIT;"
            ));
        }
    }
    Ok(Dropped {
        replica,
        source,
        notes,
    })
}

/// A switchover that has ended with its replica.
#[derive(Debug)]
struct Ended {
    phase: Phase,
    stage: SwitchStage,
    /// Words for triggers that stay.
    left: Vec<String>,
}

impl Ended {
    fn words(&self, name: &str) -> String {
        let is = match self.phase {
            Phase::Ready => {
                "the target is not closed by it any more. If its source comes back, it takes no writes until you run the \
                 last of the commands below there: do that only if nobody writes on the target"
            }
            _ => {
                "the target is open, and its sequences may give values again that rows have. If its source comes back, \
                 it takes no writes"
            }
        };
        let clients = self.stage.waiting().map(|words| format!("; {words}"));
        let clients = clients.unwrap_or_default();
        format!("a switchover of replica {name} had begun, and has ended with it: {is}{clients}")
    }
}

/// Takes away what a switchover that has begun keeps from being written on the target.
fn end_switchover(
    state: &mut ReplicaState,
    replica: &Replica,
    stage: SwitchStage,
) -> Result<Ended> {
    let phase = replica.phase;
    // No command works on it, and a killed one's session cannot close the target again.
    if !state.take_hold(&replica.name)? {
        return Err(ReplicaError::State(state.hold_words(&replica.name)?));
    }
    let end = ("target", ReplicaError::Target as fn(ClientError) -> _);
    state::alone(state.connection(), &replica.slot, end, &mut |_| true)?;
    // The fence of an earlier one stays, unless this one was about to open the target.
    let fences: &[Fence] = match phase {
        Phase::Ready => &[Fence::Comes],
        _ => &[Fence::Comes, Fence::Left],
    };
    let mut left = Vec::new();
    for fence in fences {
        let removed = fence::pass(state.connection(), *fence)
            .and_then(|()| fence::remove(state.connection(), *fence));
        left.extend(fence::left(*fence, &removed.map_err(ReplicaError::Target)?));
    }
    Ok(Ended { phase, stage, left })
}

fn removed(
    name: &str,
    target: &Conninfo,
    is_source_gone: bool,
    from_source: impl FnOnce(&Replica) -> Result<()>,
) -> Result<(Replica, Option<Ended>)> {
    let unknown = || {
        ReplicaError::State(format!(
            "the target has no replica \"{name}\"; lockstep replica status lists those it has"
        ))
    };
    let mut state = ReplicaState::find(target)?.ok_or_else(unknown)?;
    let replica = state.replica(name)?.ok_or_else(unknown)?;
    state.lock_or_say(name)?;
    let stage = state.switch_stage(name)?;
    if stage.is_begun() && !is_source_gone {
        return Err(ReplicaError::State(format!(
            "a switchover of replica \"{name}\" has begun and is not over: its source may take no writes, and \
             clients may wait. Nothing is changed. Repeat lockstep replica switchover {name} first, which takes it \
             back or goes on"
        )));
    }
    // A promotion may have removed it there, and the source may be gone since.
    if state.promotion(name)?.is_none_or(|it| it.is_left) {
        from_source(&replica)?;
    }
    failpoint::DROP_SOURCE.reach();
    let ended = match stage.is_begun() {
        true => Some(end_switchover(&mut state, &replica, stage)?),
        false => None,
    };
    remove_origins(&mut state, &replica).map_err(ReplicaError::Target)?;
    failpoint::DROP_ORIGINS.reach();
    read_only::forget(&mut state, &replica)?;
    Ok((replica, ended))
}

pub(super) fn remove_origins(
    state: &mut ReplicaState,
    replica: &Replica,
) -> Result<(), ClientError> {
    let session = state.connection();
    when_free(|| {
        let listed = origins::listed(session, &replica.origin)?;
        (listed.iter()).try_for_each(|origin| origins::drop(session, origin))
    })
}

/// Tries again while a session uses the object: the server may need a moment to notice that a
/// process is gone.
fn when_free(mut remove: impl FnMut() -> Result<(), ClientError>) -> Result<(), ClientError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let removed = remove();
        let in_use = |error: &ClientError| {
            error
                .refusal()
                .is_some_and(|refusal| refusal.sqlstate == IN_USE)
        };
        if !removed.as_ref().is_err_and(in_use) || Instant::now() >= deadline {
            return removed;
        }
        thread::sleep(PAUSE);
    }
}
