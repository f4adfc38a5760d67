//! Controlled commits: how long a commit would wait for each replica at each level of
//! `synchronous_commit`.
//!
//! Every commit inserts 1,000 rows. A second connection watches the positions that replicas
//! report to the primary. A synchronous commit waits for the same positions, so each replica
//! can be measured, synchronous or not, and no server's configuration is touched. If there is
//! one synchronous replica and no other, the commit's own time is taken for it.
//!
//! Physical standbys alone need no table: the commits write logical messages, and nothing is
//! created. With subscribers, [`table`] creates a table on all servers and drops it again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_client::{Connection, Conninfo, Purpose};
use lockstep_wire::Lsn;
use serde::Serialize;

use crate::figures::median;
use crate::heartbeat::{PREFIX, position};
use crate::node::Node;
use crate::point::LinkKind;
use crate::replica::named;
use crate::states::SyncState;
use crate::{LagError, Result};

mod table;

use table::Table;

/// Rows of each commit.
pub const ROWS: u32 = 1_000;

/// How long a replica may take for one commit.
const PATIENCE: Duration = Duration::from_secs(10);

/// Shortest time between two looks of the watching connection.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// Most looks that are kept; enough for some minutes.
const MOST_LOOKS: usize = 1_000_000;

/// Pause between commits, so that no commit profits from another's flush. It is longer than a
/// subscriber's flush takes by default, which is at most three times 200 ms.
const APART: Duration = Duration::from_millis(650);

/// Commits of one level without a pause between them. Levels take turns after this many, so
/// that whatever else the machine does disturbs all levels alike.
const ROW: u32 = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// The replica's operating system has the commit; a subscriber has received it.
    RemoteWrite,
    /// The commit is durable on the replica.
    On,
    /// The commit is visible on the replica.
    RemoteApply,
}

impl Level {
    pub const ALL: [Self; 3] = [Self::RemoteWrite, Self::On, Self::RemoteApply];

    /// The level's value of `synchronous_commit`.
    pub fn name(self) -> &'static str {
        match self {
            Self::RemoteWrite => "remote_write",
            Self::On => "on",
            Self::RemoteApply => "remote_apply",
        }
    }
}

/// How commits follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Levels take turns. Pauses are longer than a flush may take, so each commit finds the
    /// replica idle, at any moment between two rounds of its WAL writer.
    Apart,
    /// Several commits of one level without a pause, then as many of the next. If they wait for
    /// a flush, each but the first begins just after a flush, as commits of a busy client do.
    InARow,
}

#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// Commits at each level.
    pub commits: u32,
    pub pace: Pace,
    /// Replicas that commits do not wait for are watched too, which takes some CPU.
    pub watch: bool,
    pub application_name: &'a str,
}

/// How long commits of one level take on one replica.
#[derive(Debug, Clone, Serialize)]
pub struct LevelTime {
    pub level: Level,
    /// The median of the commits; None if the replica did not get there in time.
    pub median_ms: Option<f64>,
    /// True if the commits themselves waited for this replica; otherwise its positions were
    /// watched.
    pub waited: bool,
    /// What the time consists of.
    pub explanation: String,
}

/// How long commits take on one replica.
#[derive(Debug, Clone, Serialize)]
pub struct ReplicaTimes {
    /// The replica's `application_name`.
    pub replica: String,
    pub kind: LinkKind,
    pub sync_state: SyncState,
    /// One for each level.
    pub cells: Vec<LevelTime>,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct CommitProbe {
    /// Commits at each level.
    pub commits: u32,
    /// One for each replica.
    pub rows: Vec<ReplicaTimes>,
    /// What could not be measured, and what to do about it.
    pub missing: Vec<String>,
}

#[derive(Debug, Clone)]
struct Replica {
    pid: u32,
    name: String,
    kind: LinkKind,
    sync_state: SyncState,
}

/// Positions of one replica at a moment: written, flushed, replayed.
struct Look {
    at: Instant,
    pid: u32,
    positions: [Lsn; 3],
}

struct Commit {
    level: Level,
    /// The commit record begins at this position or later.
    after: Lsn,
    began: Instant,
    took: Duration,
}

/// Makes the commits of `plan`. If subscribers are named, the role on the primary must be able
/// to create a schema and own the publication, and the role on each subscriber must own the
/// subscription.
pub fn probe_commits(primary: &Node, subscribers: &[Node], plan: Plan<'_>) -> Result<CommitProbe> {
    let application_name = plan.application_name;
    let mut server = Connection::connect(&primary.conninfo, Purpose::Sql, application_name)?;
    let mut missing = Vec::new();
    let table = Table::create(&mut server, subscribers, application_name, &mut missing)?;
    let with_table = table.is_some();
    let measured = measure(&mut server, &primary.conninfo, with_table, plan);
    // The table is dropped even if measuring failed.
    let removed = table.map_or(Ok(()), |table| table.drop(&mut server));
    let (replicas, commits_made, looks) = measured?;
    removed?;
    Ok(read(
        &replicas,
        &commits_made,
        &looks,
        plan.commits,
        with_table,
        missing,
    ))
}

type Measured = (Vec<Replica>, Vec<Commit>, Vec<Look>);

fn measure(
    server: &mut Connection,
    conninfo: &Conninfo,
    with_table: bool,
    plan: Plan<'_>,
) -> Result<Measured> {
    let replicas = replicas(server)?;
    if !plan.watch {
        let made = commit_all(server, with_table, plan)?;
        return Ok((replicas, made, Vec::new()));
    }
    let mut watcher = Connection::connect(conninfo, Purpose::Sql, plan.application_name)?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let watching = scope.spawn(|| look(&mut watcher, &stop));
        let made = commit_all(server, with_table, plan);
        stop.store(true, Ordering::Relaxed);
        let looks = watching.join().map_err(|_| LagError::Answer {
            what: "positions".to_owned(),
            reason: "the thread that watches them died, which is a bug".to_owned(),
        })??;
        Ok((replicas, made?, looks))
    })
}

const REPLICAS: &str = "SELECT r.pid, r.application_name, r.sync_state, s.slot_type, s.slot_name \
     FROM pg_stat_replication r LEFT JOIN pg_replication_slots s ON s.active_pid = r.pid \
     WHERE r.state = 'streaming' ORDER BY s.slot_type DESC NULLS FIRST, r.application_name";

fn replicas(server: &mut Connection) -> Result<Vec<Replica>> {
    let rows = server.query(REPLICAS)?;
    let replica = |row: Vec<Option<String>>| {
        let mut fields = row.into_iter();
        let mut next = || fields.next().flatten();
        let replica = Replica {
            pid: next()?.parse().ok()?,
            name: next().unwrap_or_default(),
            sync_state: next().unwrap_or_default().into(),
            kind: match next().as_deref() {
                Some("logical") => LinkKind::Logical,
                _ => LinkKind::Physical,
            },
        };
        // The commits do not get to a replica of Lockstep: its publication lists its tables.
        let is_ours = next().is_some_and(|slot| named(&slot).is_some());
        (!is_ours).then_some(replica)
    };
    Ok(rows.into_iter().filter_map(replica).collect())
}

fn look(watcher: &mut Connection, stop: &AtomicBool) -> Result<Vec<Look>> {
    let sql = "SELECT pid, coalesce(write_lsn, '0/0'), coalesce(flush_lsn, '0/0'), \
               coalesce(replay_lsn, '0/0') FROM pg_stat_replication";
    let mut looks: Vec<Look> = Vec::new();
    let mut stopping: Option<Instant> = None;
    loop {
        // Goes on for a while, for replicas that are still behind.
        if stop.load(Ordering::Relaxed)
            && stopping.get_or_insert_with(Instant::now).elapsed() > Duration::from_secs(2)
        {
            return Ok(looks);
        }
        let rows = watcher.query(sql)?;
        let at = Instant::now();
        for row in rows {
            let mut fields = row.into_iter().flatten();
            let Some(pid) = fields.next().and_then(|pid| pid.parse().ok()) else {
                continue;
            };
            let mut next = || {
                fields
                    .next()
                    .and_then(|text| text.parse().ok())
                    .unwrap_or(Lsn::INVALID)
            };
            let positions = [next(), next(), next()];
            let last = looks.iter().rev().find(|look| look.pid == pid);
            let new = last.is_none_or(|last| last.positions != positions);
            if new && looks.len() < MOST_LOOKS {
                looks.push(Look { at, pid, positions });
            }
        }
        thread::sleep(LOOK_EVERY);
    }
}

fn commit_all(server: &mut Connection, with_table: bool, plan: Plan<'_>) -> Result<Vec<Commit>> {
    let work = match with_table {
        true => format!(
            "INSERT INTO lockstep_probe.commits SELECT i, repeat('x', 64) FROM generate_series(1, {ROWS}) i"
        ),
        false => format!(
            "SELECT count(pg_logical_emit_message(true, '{PREFIX}', repeat('x', 64))) \
             FROM generate_series(1, {ROWS})"
        ),
    };
    let mut made = Vec::new();
    match plan.pace {
        Pace::Apart => {
            for _ in 0..plan.commits {
                for level in Level::ALL {
                    made.push(commit(server, &work, level)?);
                    thread::sleep(APART);
                }
            }
        }
        Pace::InARow => {
            let mut left = plan.commits;
            while left > 0 {
                let row = left.min(ROW);
                left -= row;
                for level in Level::ALL {
                    thread::sleep(APART);
                    for _ in 0..row {
                        made.push(commit(server, &work, level)?);
                    }
                }
            }
        }
    }
    Ok(made)
}

fn commit(server: &mut Connection, work: &str, level: Level) -> Result<Commit> {
    server.query(&format!(
        "BEGIN; SET LOCAL synchronous_commit = {}; {work}",
        level.name()
    ))?;
    let after = position(server.query("SELECT pg_current_wal_insert_lsn()")?)?;
    let began = Instant::now();
    server.query("COMMIT")?;
    Ok(Commit {
        level,
        after,
        began,
        took: began.elapsed(),
    })
}

fn read(
    replicas: &[Replica],
    made: &[Commit],
    looks: &[Look],
    commits: u32,
    with_table: bool,
    mut missing: Vec<String>,
) -> CommitProbe {
    let synchronous = |replica: &&Replica| replica.sync_state.is_waited_for();
    let only = replicas.iter().filter(synchronous).count() == 1;
    let mut rows = Vec::new();
    for replica in replicas {
        if replica.kind == LinkKind::Logical && !with_table {
            continue;
        }
        let waited = only && synchronous(&replica);
        let times = Level::ALL.map(|level| time(replica, level, made, looks, waited));
        let cells = Level::ALL
            .into_iter()
            .zip(times)
            .map(|(level, median_ms)| LevelTime {
                level,
                median_ms,
                waited,
                explanation: explain(replica.kind, level, times),
            })
            .collect();
        rows.push(ReplicaTimes {
            replica: replica.name.clone(),
            kind: replica.kind,
            sync_state: replica.sync_state.clone(),
            cells,
        });
    }
    for (kind, words) in [
        (
            LinkKind::Physical,
            "no physical standby streams from the primary",
        ),
        (
            LinkKind::Logical,
            "no subscriber was measured: name every subscriber with --subscriber",
        ),
    ] {
        if !rows.iter().any(|row| row.kind == kind) && missing.is_empty() {
            missing.push(words.to_owned());
        }
    }
    CommitProbe {
        commits,
        rows,
        missing,
    }
}

/// The median; None if the replica was not seen to get there for more than half of the commits.
fn time(
    replica: &Replica,
    level: Level,
    made: &[Commit],
    looks: &[Look],
    waited: bool,
) -> Option<f64> {
    let at_level: Vec<&Commit> = made.iter().filter(|commit| commit.level == level).collect();
    let which = match level {
        Level::RemoteWrite => 0,
        Level::On => 1,
        Level::RemoteApply => 2,
    };
    let seen = |commit: &&Commit| {
        if waited {
            return Some(commit.took);
        }
        let reached = |look: &&Look| {
            look.pid == replica.pid
                && look.at >= commit.began
                && look
                    .positions
                    .get(which)
                    .is_some_and(|position| *position > commit.after)
        };
        let look = looks.iter().find(reached)?;
        Some(look.at - commit.began).filter(|time| *time <= PATIENCE)
    };
    let times: Vec<f64> = at_level
        .iter()
        .filter_map(seen)
        .map(|time| time.as_secs_f64() * 1000.0)
        .collect();
    (times.len() * 2 > at_level.len()).then(|| median(times))
}

/// If a flush takes this many times as long as the apply, it waits for the WAL writer.
const WAITS_FOR_WAL_WRITER: f64 = 4.0;

fn explain(kind: LinkKind, level: Level, times: [Option<f64>; 3]) -> String {
    let [_, on, apply] = times;
    let waits = match (on, apply) {
        (Some(on), Some(apply)) => on > WAITS_FOR_WAL_WRITER * apply && on - apply > 20.0,
        _ => false,
    };
    match (kind, level) {
        (LinkKind::Physical, Level::RemoteWrite) => "until the walreceiver has written it",
        (LinkKind::Physical, Level::On) => "and flushed it",
        (LinkKind::Physical, Level::RemoteApply) => "and the startup process has replayed it",
        (LinkKind::Logical, Level::RemoteWrite) => {
            "until the apply worker has received it, which is one process: so until it has applied it"
        }
        (LinkKind::Logical, Level::On) if waits => {
            "until the subscriber has flushed it: the apply worker commits asynchronously, so this waits for the WAL writer, up to three times wal_writer_delay; the subscription's synchronous_commit = on avoids it"
        }
        (LinkKind::Logical, Level::On) => "until the subscriber has applied and flushed it",
        (LinkKind::Logical, Level::RemoteApply) => {
            "until the apply worker has committed it, flushed or not: a subscriber applies first and flushes later"
        }
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_from_the_first_look_beyond_the_commit() {
        let began = Instant::now();
        let after = |ms: u64| began + Duration::from_millis(ms);
        let look = |ms, pid, write: u64, flush: u64, replay: u64| Look {
            at: after(ms),
            pid,
            positions: [write, flush, replay].map(Lsn::from),
        };
        let looks = [
            look(0, 1, 100, 100, 100),
            look(1, 2, 200, 200, 200),
            look(2, 1, 150, 100, 100),
            look(5, 1, 150, 100, 150),
            look(400, 1, 150, 150, 150),
        ];
        let made: Vec<Commit> = Level::ALL
            .map(|level| Commit {
                level,
                after: Lsn::from(100),
                began,
                took: Duration::from_millis(7),
            })
            .into();
        let replica = Replica {
            pid: 1,
            name: "s".to_owned(),
            kind: LinkKind::Logical,
            sync_state: SyncState::Async,
        };
        let times = Level::ALL.map(|level| time(&replica, level, &made, &looks, false));
        assert_eq!(times, [Some(2.0), Some(400.0), Some(5.0)]);
        assert_eq!(time(&replica, Level::On, &made, &looks, true), Some(7.0));
        assert_eq!(time(&replica, Level::On, &made, &looks[..3], false), None);
        assert!(explain(LinkKind::Logical, Level::On, times).contains("WAL writer"));
        assert!(!explain(LinkKind::Logical, Level::On, [Some(5.0); 3]).contains("WAL writer"));
        let probe = read(
            std::slice::from_ref(&replica),
            &made,
            &looks,
            1,
            true,
            Vec::new(),
        );
        assert_eq!(probe.rows.len(), 1);
        assert_eq!(
            probe.missing,
            ["no physical standby streams from the primary"]
        );
        let probe = read(&[replica], &made, &looks, 1, false, Vec::new());
        assert!(probe.rows.is_empty());
    }
}
