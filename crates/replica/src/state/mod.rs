//! What is known about each replica, in the target's schema `lockstep`, committed with the data.
//!
//! | table | a row for each | columns that others read |
//! |---|---|---|
//! | `lockstep.replica` | replica of this database | those of [`Replica`]; `apply_…`, `applied_…`, `spool_…`, `cycle_…`, `unreplicated…` and `unmade…`; `promote…`, see `state/promotion.rs`; `switchover`, see `state/switchover.rs`; `altering`, see `state/altering.rs` |
//! | `lockstep.table_copy` | table that is copied | `replica` and those of [`TableCopy`] |
//! | `lockstep.subset` | table of which only a part is replicated | `replica` and those of [`Subset`] |
//! | `lockstep.hold` | replica that `verify` holds still | all but `wanted`; see `state/hold.rs` |
//! | `lockstep.apply_position` | position that apply has committed; see `state/position.rs` | none |
//! | `lockstep.publication` | replica; see `state/published.rs` | none |
//! | `lockstep.unmade` | object of the source that the copy could not make, or sequence that is not set; see `state/unmade.rs` | none |
//! | `lockstep.attached` | partition of the source that was not copied; see `state/attached.rs` | none |
//! | `lockstep.cycle` | cycle that has ended; see `state/cycles.rs` | all |
//! | `lockstep.ddl` | replica that follows changes of the schema; see `state/ddl.rs` | none |
//! | `lockstep.state_version` | the schema's version and its database, one row | `version` |
//!
//! Others (`crates/lag/src/replica.rs`) also read from `pg_locks` who has a replica's advisory locks.
//!
//! What apply must know:
//! - It may begin in phase [`Phase::Ready`], and streams from `replica.start_lsn` at first: the
//!   consistent point of the slot `replica.slot`. Afterwards its replication origin knows where to
//!   go on. `replica.origin` begins the name of each origin (`ORIGIN_0` and so on).
//! - A table's copy holds what committed before its own `table_copy.start_lsn`, which is later than
//!   the replica's after a copy that was resumed. A transaction's changes of a table are applied if
//!   the LSN of its commit record, the *final LSN* of Begin, is at or after the table's
//!   `start_lsn`, and skipped otherwise. (That is the rule of stock's table synchronisation.)
//! - Only tables with a row in `table_copy` are in the publication.
//!
//! Rows of `table_copy` are changed in the transaction that loads the table's data, so a crash of
//! anything leaves both or neither. One table that several sessions load is [`TableState::Copying`]
//! meanwhile and [`TableState::Copied`] after the last of them has committed.

mod altering;
mod attached;
mod cycles;
mod ddl;
pub mod failpoint;
mod hold;
mod home;
mod lock_session;
mod locks;
mod open;
mod promotion;
mod published;
mod subsets;
mod switchover;
mod tables;
mod trust;
mod unmade;

use std::time::Duration;

use lockstep_client::{ClientError, Connection, Conninfo, Purpose, field};
use lockstep_wire::stream::Timestamp;
use lockstep_wire::{Lsn, Timeline};

pub use attached::Attached;
pub use cycles::{Cycle, CyclesNow, Forced, RunningCycle};
pub use ddl::{LeftOut, MadeByHand};
pub use hold::{Held, Hold};
pub use home::system_id;
pub(crate) use lock_session::LockSession;
pub use locks::Holder;
pub(crate) use locks::{LOCKED, alone};
use locks::{Lock, lock_holders};
pub use promotion::Promotion;
pub use switchover::SwitchStage;
pub use tables::{Doubt, TableCopy, TableState, copied_sql, copying_sql};
pub use unmade::{ANALYZE, SEQUENCE, Unmade, VIEW, words as unmade_words};

use crate::error::{ReplicaError, Result};
use crate::names::Excluded;
use crate::publication::subset::Subset;
use lockstep_apply::sessions;
use lockstep_apply::{FullBy, SpoolFull, SpoolStats, Unreplicated};

/// The name of our sessions.
pub const APPLICATION: &str = "lockstep replica";

/// The schema of the state. It is never copied.
pub const SCHEMA: &str = "lockstep";

/// What others have put into the database does not decide what our statements mean: a table of the state
/// that has become a view is refused, where the server can do that. What a command says is done stays so if
/// the target crashes.
const SESSION: &str = "SET row_security = off; SELECT set_config('synchronous_commit', 'local', false) \
    WHERE current_setting('synchronous_commit') = 'off'; \
    SELECT set_config('restrict_nonsystem_relation_kind', 'view, foreign-table', false) \
    WHERE current_setting('restrict_nonsystem_relation_kind', true) IS NOT NULL";

/// How far a replica is, in the order of execution. Each is committed before its work begins, and
/// all persist; `replica create` goes on from any of them but the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Entered by `create`. Nothing is done yet, or a slot and a publication were made on the
    /// source of which nothing is known here: they are made again. No LSN is known.
    Preparing,
    /// The slot holds all WAL from `start_lsn` on. Tables are being created on the target, all in
    /// one transaction.
    Schema,
    /// Rows are being copied. Each copied table has its start LSN.
    Copying,
    /// All rows are there. Indexes, constraints and triggers are being made.
    Indexing,
    /// Sequences, materialized views and statistics are being brought up.
    Finishing,
    /// The target is a copy; apply may go on from `start_lsn`.
    Ready,
    /// Entered by `promote`: no process applies any more once it has seen this, and `promoted_lsn` is where
    /// the target stands then. `promote` goes on from here; nothing goes back.
    Promoting,
    /// The target is a database of its own, which has everything of the source up to `promoted_lsn`. The end.
    Promoted,
}

macro_rules! as_text {
    ($type:ty, $what:literal, $(($value:path, $text:literal)),* $(,)?) => {
        impl $type {
            pub fn text(self) -> &'static str {
                match self { $($value => $text),* }
            }

            fn parse(text: &str) -> Result<Self> {
                match text {
                    $($text => Ok($value),)*
                    _ => Err(ReplicaError::State(format!(
                        "the target's schema lockstep has a {} \"{text}\", which this lockstep does not \
                         know; use the version that wrote it", $what
                    ))),
                }
            }
        }
    };
}
use as_text;

as_text!(
    Phase,
    "phase",
    (Phase::Preparing, "preparing"),
    (Phase::Schema, "schema"),
    (Phase::Copying, "copying"),
    (Phase::Indexing, "indexing"),
    (Phase::Finishing, "finishing"),
    (Phase::Ready, "ready"),
    (Phase::Promoting, "promoting"),
    (Phase::Promoted, "promoted"),
);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    pub name: String,
    /// Where the source is, without secrets.
    pub source: String,
    /// The source cluster's system identifier.
    pub system_id: String,
    pub source_database: String,
    pub slot: String,
    pub publication: String,
    pub origin: String,
    pub exclude_schemas: Vec<String>,
    pub exclude_tables: Vec<String>,
    /// Tables in the order of their names.
    pub subsets: Vec<Subset>,
    pub phase: Phase,
    /// Where apply begins; known from [`Phase::Schema`] on.
    pub start: Option<Lsn>,
    pub paused: bool,
    /// Number of times that the replica was resumed.
    pub resumes: u64,
    /// Time from the beginning of one cycle to that of the next; zero: changes are applied as they come.
    pub frequency: Duration,
    /// Number of times that a cycle was asked for.
    pub forces: u64,
    /// Changes of the source's schema are followed.
    pub ddl: bool,
    /// Which tables it has is being altered: nothing applies until that has ended.
    pub altering: bool,
    /// Sessions in the target's database begin read-only since this replica has set that.
    pub read_only: bool,
    /// Most bytes a second from source to target.
    pub bandwidth: Option<u64>,
}

impl Replica {
    pub fn excluded(&self) -> Excluded {
        Excluded {
            schemas: self.exclude_schemas.clone(),
            tables: self.exclude_tables.clone(),
        }
    }

    /// An error if it follows no source any more.
    pub fn check_not_promoted(&self) -> Result<()> {
        match self.phase {
            Phase::Promoting | Phase::Promoted => Err(ReplicaError::Promoted {
                name: self.name.clone(),
                is_done: self.phase == Phase::Promoted,
            }),
            _ => Ok(()),
        }
    }

    /// An error unless it is copied, and follows its source.
    pub fn check_ready(&self) -> Result<()> {
        self.check_not_promoted()?;
        match self.phase {
            Phase::Ready => Ok(()),
            _ if self.altering => Err(ReplicaError::State(format!(
                "replica \"{0}\" is being altered: run lockstep replica alter {0} --go-on, which ends that",
                self.name
            ))),
            _ => Err(ReplicaError::State(format!(
                "replica \"{}\" is not copied yet: run lockstep replica create again, which goes on",
                self.name
            ))),
        }
    }
}

/// How far the copy is, as `status` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    pub bytes_total: u64,
    pub bytes_done: u64,
    pub bytes_per_s: u64,
}

/// How far apply was when it last wrote that. [`crate::status::standing`] says what that means now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Applied {
    /// `connecting`, `applying`, `paused`, `blocked` or `stopped`; empty before apply has ever run.
    pub state: String,
    pub lsn: Option<Lsn>,
    /// WAL of the source that is not applied, as far as the stream has told.
    pub lag_bytes: u64,
    /// Time since the source last sent something. None if it has sent nothing yet.
    pub heard: Option<Duration>,
    /// Why it is not applying.
    pub error: Option<String>,
    /// Time since all this was written; apply writes it every second.
    pub age: Option<Duration>,
    /// What the spool holds, if there is one.
    pub spool: Option<SpoolStats>,
    /// Which tables of the source are not replicated; None if nobody has looked.
    pub unreplicated: Option<Unreplicated>,
    /// Where it is between its cycles, if it has some.
    pub cycles: Option<CyclesNow>,
    /// How many writers are used, and why, in words; None if there is no session.
    pub writers: Option<(usize, String)>,
    /// When the source committed the newest transaction that is known to be applied.
    pub commit_time: Option<Timestamp>,
}

impl Applied {
    /// The process that wrote this has ended by itself, or there was none. One that was killed, or that is
    /// away from the target, has not said so.
    pub fn has_ended(&self) -> bool {
        matches!(self.state.as_str(), "" | "stopped")
    }
}

/// The state in a target.
#[derive(Debug)]
pub struct ReplicaState {
    connection: Connection,
}

impl ReplicaState {
    fn connect(target: &Conninfo, application_name: &str) -> Result<Self> {
        let connection = sessions::open(target, Purpose::Sql, application_name);
        let mut connection = connection.map_err(ReplicaError::Target)?;
        connection.execute(SESSION).map_err(ReplicaError::Target)?;
        Ok(Self { connection })
    }

    /// The session, for something else.
    pub fn into_connection(self) -> Connection {
        self.connection
    }

    /// The session, for SQL of the same transaction.
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Reads several things as they are at one moment.
    pub fn at_one_moment<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        self.connection
            .execute(begin)
            .map_err(ReplicaError::Target)?;
        let read = read(self);
        let ended = self.connection.execute("ROLLBACK");
        let read = read?;
        ended.map(|()| read).map_err(ReplicaError::Target)
    }

    /// Adds a replica, unless another one has begun in this database: an error then. False if this one
    /// is there already. `is_empty` looks at the target once no other can begin.
    pub fn begin(
        &mut self,
        replica: &Replica,
        is_empty: impl FnOnce(&mut Connection) -> Result<bool, ClientError>,
    ) -> Result<bool> {
        let lock = "BEGIN; LOCK TABLE lockstep.replica IN SHARE ROW EXCLUSIVE MODE";
        self.connection
            .execute(lock)
            .map_err(ReplicaError::Target)?;
        let replicas = self.replicas()?;
        let is_there = replicas.iter().any(|one| one.name == replica.name);
        if !is_there {
            // One that has no tables yet leaves the database empty.
            let early = |one: &&Replica| matches!(one.phase, Phase::Preparing | Phase::Schema);
            let other = replicas.iter().find(early).map(|one| one.name.as_str());
            let is_empty = is_empty(&mut self.connection).map_err(ReplicaError::Target)?;
            let taken = match other {
                Some(name) => format!("replica \"{name}\" has begun in the target's database"),
                None => "the target's database is not empty any more".to_owned(),
            };
            if other.is_some() || !is_empty {
                return Err(ReplicaError::State(format!(
                    "{taken}; give each replica an empty database of its own"
                )));
            }
            self.add(replica)?;
        }
        self.connection
            .execute("COMMIT")
            .map_err(ReplicaError::Target)?;
        Ok(!is_there)
    }

    pub fn add(&mut self, replica: &Replica) -> Result<()> {
        let sql = format!(
            "WITH added AS (INSERT INTO lockstep.replica (name, source, system_id, \
                 source_database, slot, publication, origin, exclude_schemas, exclude_tables, phase, \
                 frequency_ms, ddl, bandwidth) \
             SELECT $1, $2, $3, $4, $5, $6, $7, ARRAY(SELECT json_array_elements_text($8)), \
                 ARRAY(SELECT json_array_elements_text($9)), $10, $12::bigint, $13::boolean, $14::bigint RETURNING name) {}",
            subsets::add("added", "$11")
        );
        let (schemas, tables) = (
            json_array(&replica.exclude_schemas),
            json_array(&replica.exclude_tables),
        );
        let subsets = subsets::to_json(&replica.subsets);
        self.connection
            .query_with(
                &sql,
                &[
                    &replica.name,
                    &replica.source,
                    &replica.system_id,
                    &replica.source_database,
                    &replica.slot,
                    &replica.publication,
                    &replica.origin,
                    &schemas,
                    &tables,
                    &replica.phase.text(),
                    &subsets,
                    &cycles::whole_ms(replica.frequency),
                    &replica.ddl,
                    &replica.bandwidth.unwrap_or(0),
                ],
            )
            .map_err(ReplicaError::Target)?;
        Ok(())
    }

    /// All replicas of this target.
    pub fn replicas(&mut self) -> Result<Vec<Replica>> {
        let sql = format!(
            "SELECT name, source, system_id, source_database, slot, publication, origin, \
                 array_to_json(exclude_schemas), array_to_json(exclude_tables), phase, \
                 start_lsn, paused, resumes, {}, frequency_ms, forces, ddl, altering, read_only, nullif(bandwidth, 0) \
             FROM lockstep.replica AS r ORDER BY name",
            subsets::OF_REPLICA
        );
        let rows = self.connection.query(&sql).map_err(ReplicaError::Target)?;
        rows.iter().map(|row| replica(row)).collect()
    }

    pub fn replica(&mut self, name: &str) -> Result<Option<Replica>> {
        Ok(self.replicas()?.into_iter().find(|one| one.name == name))
    }

    /// Begins a phase.
    pub fn set_phase(&mut self, name: &str, phase: Phase) -> Result<()> {
        // What was committed without waiting for the disk before is on disk once this is.
        let sql = "UPDATE lockstep.replica SET phase = $2, \
                       ready_at = CASE WHEN $2 = 'ready' THEN now() END WHERE name = $1";
        self.change(sql, name, phase.text())
    }

    /// Begins [`Phase::Schema`]: the slot is made, and the publication is as `published` says, in JSON.
    pub fn set_start(
        &mut self,
        name: &str,
        start: Lsn,
        timeline: Timeline,
        published: &str,
    ) -> Result<()> {
        let sql = format!(
            "WITH kept AS ({}) \
             UPDATE lockstep.replica SET phase = 'schema', start_lsn = $2::pg_lsn, timeline = $3 \
             WHERE name = $1",
            published::KEEP
        );
        let (timeline, connection) = (timeline.get(), &mut self.connection);
        let changed = connection.query_with(&sql, &[&name, &start, &timeline, &published]);
        changed.map(drop).map_err(ReplicaError::Target)
    }

    fn change(&mut self, sql: &str, name: &str, value: &str) -> Result<()> {
        let changed = self.connection.query_with(sql, &[&name, &value]);
        changed.map(drop).map_err(ReplicaError::Target)
    }

    /// Keeps how far the copy is, for `status`.
    pub fn set_progress(&mut self, name: &str, progress: &Progress) -> Result<()> {
        let sql = "UPDATE lockstep.replica SET bytes_total = $2, bytes_done = $3, \
                       bytes_per_s = $4, progress_at = now() WHERE name = $1";
        let Progress {
            bytes_total,
            bytes_done,
            bytes_per_s,
        } = progress;
        let changed = self
            .connection
            .query_with(sql, &[&name, bytes_total, bytes_done, bytes_per_s]);
        changed.map(drop).map_err(ReplicaError::Target)
    }

    pub fn progress(&mut self, name: &str) -> Result<Progress> {
        let sql = "SELECT bytes_total, bytes_done, bytes_per_s FROM lockstep.replica \
                   WHERE name = $1";
        let rows = self.connection.query_with(sql, &[&name]);
        let rows = rows.map_err(ReplicaError::Target)?;
        let row = rows.first().map_or(&[][..], Vec::as_slice);
        let read = || -> Result<Progress, ClientError> {
            Ok(Progress {
                bytes_total: field(row, 0)?,
                bytes_done: field(row, 1)?,
                bytes_per_s: field(row, 2)?,
            })
        };
        read().map_err(ReplicaError::Target)
    }

    /// Keeps how far apply is, and that this session is apply's. A commit time that is not known leaves the
    /// one that was.
    pub fn set_applied(&mut self, name: &str, applied: &Applied) -> Result<()> {
        let sql = "UPDATE lockstep.replica SET apply_state = $2, applied_lsn = $3::pg_lsn, \
                       lag_bytes = $4, apply_error = $5, applied_at = clock_timestamp(), \
                       heard_at = clock_timestamp() - $6::float8 * interval '1 second', \
                       apply_pid = pg_backend_pid(), spool_bytes = $7, spool_limit = $8, \
                       spool_from = $9::pg_lsn, spool_to = $10::pg_lsn, spool_full = $11, \
                       spool_full_by = $23, \
                       unreplicated_tables = $12::bigint, unreplicated = $13, \
                       cycle_number = $14, cycle_elapsed_ms = $15, cycle_remaining_ms = $16, \
                       cycle_bytes = $17, cycle_lsn = $18::pg_lsn, cycle_next_ms = $19, \
                       cycle_late_ms = $20, \
                       writers = $21::bigint, writers_why = $22, \
                       applied_commit = coalesce('2000-01-01 00:00:00+00'::timestamptz \
                           + $24::bigint * interval '1 microsecond', applied_commit) \
                   WHERE name = $1";
        let (spool, unreplicated) = (applied.spool.as_ref(), applied.unreplicated.as_ref());
        let full = spool.and_then(|spool| spool.full.as_ref());
        let heard = applied.heard.map(|heard| heard.as_secs_f64());
        let running = applied.cycles.and_then(|cycles| cycles.running);
        let changed = self.connection.query_with(
            sql,
            &[
                &name,
                &applied.state,
                &applied.lsn,
                &applied.lag_bytes,
                &applied.error,
                &heard,
                &spool.map(|spool| spool.bytes),
                &spool.map(|spool| spool.limit),
                &spool.map(|spool| spool.from),
                &spool.map(|spool| spool.to),
                &full.map(|full| full.words.clone()),
                &unreplicated.map(|it| it.tables),
                &unreplicated.and_then(|it| it.words.clone()),
                &running.map(|it| it.number),
                &running.map(|it| cycles::whole_ms(it.elapsed)),
                &running.and_then(|it| it.remaining).map(cycles::whole_ms),
                &running.map(|it| it.sent_bytes),
                &running.map(|it| it.lsn),
                &(applied.cycles).map(|it| cycles::whole_ms(it.next)),
                &(applied.cycles).map(|it| cycles::whole_ms(it.late)),
                &applied.writers.as_ref().map(|it| it.0),
                &applied.writers.as_ref().map(|it| it.1.clone()),
                &full.and_then(|full| full.by).map(FullBy::name),
                &applied.commit_time.map(|time| time.0),
            ],
        );
        changed.map(drop).map_err(ReplicaError::Target)
    }

    pub fn applied(&mut self, name: &str) -> Result<Applied> {
        let sql = "SELECT coalesce(apply_state, ''), applied_lsn, lag_bytes, apply_error, \
                       extract(epoch FROM clock_timestamp() - heard_at), \
                       extract(epoch FROM clock_timestamp() - applied_at), \
                       spool_bytes, spool_limit, spool_from, spool_to, spool_full, \
                       unreplicated_tables, unreplicated, cycle_number, cycle_elapsed_ms, \
                       cycle_remaining_ms, cycle_bytes, cycle_lsn, cycle_next_ms, cycle_late_ms, \
                       writers, writers_why, spool_full_by, \
                       (1000000 * extract(epoch FROM applied_commit \
                           - '2000-01-01 00:00:00+00'::timestamptz))::bigint \
                   FROM lockstep.replica WHERE name = $1";
        let rows = self.connection.query_with(sql, &[&name]);
        let rows = rows.map_err(ReplicaError::Target)?;
        let row = rows.first().map_or(&[][..], Vec::as_slice);
        let read = || -> Result<Applied, ClientError> {
            Ok(Applied {
                state: field(row, 0)?,
                lsn: field(row, 1)?,
                lag_bytes: field(row, 2)?,
                error: field(row, 3)?,
                heard: since(field(row, 4)?),
                age: since(field(row, 5)?),
                spool: match field::<Option<u64>>(row, 6)? {
                    None => None,
                    Some(bytes) => Some(SpoolStats {
                        bytes,
                        limit: field(row, 7)?,
                        from: field(row, 8)?,
                        to: field(row, 9)?,
                        full: match field(row, 10)? {
                            None => None,
                            Some(words) => Some(SpoolFull {
                                by: field::<Option<String>>(row, 22)?
                                    .and_then(|name| FullBy::named(&name)),
                                words,
                            }),
                        },
                    }),
                },
                writers: field::<Option<usize>>(row, 20)?.zip(field(row, 21)?),
                unreplicated: match field::<Option<usize>>(row, 11)? {
                    None => None,
                    Some(tables) => Some(Unreplicated {
                        tables,
                        words: field(row, 12)?,
                    }),
                },
                cycles: cycles::now(row, 13)?,
                commit_time: field::<Option<i64>>(row, 23)?.map(Timestamp),
            })
        };
        read().map_err(ReplicaError::Target)
    }

    /// Keeps whether the replica has set that sessions in the target's database begin read-only.
    pub(crate) fn keep_read_only(&mut self, name: &str, is_read_only: bool) -> Result<()> {
        let sql = "UPDATE lockstep.replica SET read_only = $2::boolean WHERE name = $1";
        let kept = self.connection.query_with(sql, &[&name, &is_read_only]);
        kept.map(drop).map_err(ReplicaError::Target)
    }

    /// Limits the bytes a second from source to target; None: no limit. False if there is no such replica.
    pub fn set_bandwidth(&mut self, name: &str, bandwidth: Option<u64>) -> Result<bool> {
        self.check_not_promoted(name)?;
        let sql = "UPDATE lockstep.replica SET bandwidth = $2 WHERE name = $1 RETURNING name";
        let rows = (self.connection).query_with(sql, &[&name, &bandwidth.unwrap_or(0)]);
        Ok(!rows.map_err(ReplicaError::Target)?.is_empty())
    }

    /// Asks apply to pause or to go on. False if there is no such replica.
    pub fn set_paused(&mut self, name: &str, paused: bool) -> Result<bool> {
        self.check_not_promoted(name)?;
        let sql = "UPDATE lockstep.replica SET paused = $2, \
                       resumes = resumes + CASE WHEN $2 THEN 0 ELSE 1 END \
                   WHERE name = $1 RETURNING name";
        let rows = self.connection.query_with(sql, &[&name, &paused]);
        Ok(!rows.map_err(ReplicaError::Target)?.is_empty())
    }

    /// An error if the replica follows no source any more.
    fn check_not_promoted(&mut self, name: &str) -> Result<()> {
        let replica = self.replica(name)?;
        replica.map_or(Ok(()), |it| it.check_not_promoted())
    }

    /// Forgets a replica.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        let sql = "DELETE FROM lockstep.replica WHERE name = $1";
        let removed = self.connection.query_with(sql, &[&name]);
        removed.map(drop).map_err(ReplicaError::Target)
    }
}

/// An age that the target tells in seconds. Its clock may have been set back.
fn since(seconds: Option<f64>) -> Option<Duration> {
    seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

fn replica(row: &[Option<String>]) -> Result<Replica> {
    let text = |place| field::<String>(row, place).map_err(ReplicaError::Target);
    Ok(Replica {
        name: text(0)?,
        source: text(1)?,
        system_id: text(2)?,
        source_database: text(3)?,
        slot: text(4)?,
        publication: text(5)?,
        origin: text(6)?,
        exclude_schemas: from_json_array(&text(7)?)?,
        exclude_tables: from_json_array(&text(8)?)?,
        phase: Phase::parse(&text(9)?)?,
        start: field(row, 10).map_err(ReplicaError::Target)?,
        paused: field(row, 11).map_err(ReplicaError::Target)?,
        resumes: field(row, 12).map_err(ReplicaError::Target)?,
        subsets: subsets::from_json(&text(13)?)?,
        frequency: Duration::from_millis(field(row, 14).map_err(ReplicaError::Target)?),
        forces: field(row, 15).map_err(ReplicaError::Target)?,
        ddl: field(row, 16).map_err(ReplicaError::Target)?,
        altering: field(row, 17).map_err(ReplicaError::Target)?,
        read_only: field(row, 18).map_err(ReplicaError::Target)?,
        bandwidth: field(row, 19).map_err(ReplicaError::Target)?,
    })
}

/// Texts as a parameter that `json_array_elements_text` takes apart.
pub fn json_array(texts: &[String]) -> String {
    serde_json::to_string(texts).unwrap_or_else(|_| "[]".to_owned())
}

fn from_json_array(text: &str) -> Result<Vec<String>> {
    serde_json::from_str(text).map_err(unreadable)
}

pub(crate) fn unreadable(error: serde_json::Error) -> ReplicaError {
    ReplicaError::State(format!(
        "the target's schema lockstep cannot be read: {error}"
    ))
}
