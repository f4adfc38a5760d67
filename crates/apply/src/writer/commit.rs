//! How a transaction ends, with the source's position in its commit record and in the state.

use lockstep_client::{ToText, field};
use lockstep_wire::Lsn;

use super::unflushed::{ASK, Flushed};
use super::{FLUSH, Missing, TIDY_AFTER, Writer};
use crate::batch::{Closing, CommitPoint, Part};
use crate::error::{ApplyError, Result};
use crate::failpoint;
use crate::target_state;

/// The prepared statements that end a part, and that ask what is on disk.
pub(super) const END: &str = "end_at_position";
const ON_DISK: &str = "on_disk";

impl Writer {
    /// Commits, with the source's position. `flush`: all commits so far are on disk when this returns. A
    /// cycle that ends with the part, or is applied in several commits, leaves its figures. Returns the
    /// newest commit that is on disk, as far as that is news, and the rows of the transaction that were to
    /// be changed and were not there, which the state counts as part of it.
    pub fn commit(
        &mut self,
        commit: CommitPoint,
        part: &Part,
        flush: bool,
    ) -> Result<(Option<Flushed>, Missing)> {
        let cycle = part.cycle.as_deref();
        for (table, rows) in &self.missing {
            let of: [&dyn ToText; 4] = [&self.replica, &table.schema, &table.table, rows];
            let added = self.connection.query_with(target_state::ADD_MISSING, &of);
            added.map_err(ApplyError::Target)?;
        }
        let (session, replica) = (&mut self.connection, &self.replica);
        if let Some(share) = &part.share {
            let added = target_state::add_to_cycle(session, replica, share, self.sent_bytes);
            added.map_err(ApplyError::Target)?;
        }
        if let Some(cycle) = cycle {
            let ended =
                target_state::end_cycle(session, replica, cycle, commit.end, self.sent_bytes);
            ended.map_err(ApplyError::Target)?;
            failpoint::CYCLE_KEPT.reach();
        }
        // A deferred trigger may refuse it only now.
        let committed = match cycle.is_some() || self.tidies() {
            true => {
                let sql = self.commit_sql(commit.end, &commit_time(commit, cycle), flush)?;
                failpoint::APPLY_WRITTEN.reach();
                self.connection.execute(&sql).map(|()| None)
            }
            false => self.commit_prepared(commit, flush),
        };
        let known = committed.map_err(ApplyError::at_commit)?;
        self.in_transaction = false;
        self.sent_bytes = 0;
        let flushed = match flush {
            true => Some(Flushed::now(commit.end)),
            false => known,
        };
        Ok((flushed, std::mem::take(&mut self.missing)))
    }

    /// The next commit deletes positions that are passed.
    pub(super) fn tidies(&self) -> bool {
        self.kept + 1 >= TIDY_AFTER
    }

    /// Moves the origin to a position that is reached without changes, and flushes that with all
    /// commits so far.
    pub fn move_to(&mut self, end: Lsn) -> Result<()> {
        let commit = self.commit_sql(end, "pg_catalog.now()", true)?;
        let sql = format!("BEGIN; {commit}");
        self.connection.execute(&sql).map_err(ApplyError::Target)?;
        failpoint::APPLY_MOVED.reach();
        Ok(())
    }

    /// Ends the transaction with the source's position, in its commit record and in the state. Without
    /// an ID a transaction that changes nothing would have no commit record: the origin would stay, and
    /// commits of other writers before it would count as flushed.
    fn commit_sql(&mut self, end: Lsn, time: &str, flush: bool) -> Result<String> {
        let tidy = self.tidies();
        self.kept = if tidy { 0 } else { self.kept + 1 };
        let keep = target_state::keep_position_sql(&self.replica, end, tidy);
        let keep = keep.map_err(ApplyError::Target)?;
        let then = if flush { FLUSH } else { "" };
        Ok(format!(
            "{keep}; SELECT pg_catalog.pg_current_xact_id(), \
             pg_catalog.pg_replication_origin_xact_setup('{end}', {time}); COMMIT; {then}"
        ))
    }

    pub(super) fn prepare_end(&mut self) -> lockstep_client::Result<()> {
        if !self.ends {
            let mut pipeline = self.connection.pipeline()?;
            pipeline.prepare(END, target_state::END_AT_POSITION)?;
            pipeline.prepare(ON_DISK, ASK)?;
            pipeline.finish()?;
            self.ends = true;
        }
        Ok(())
    }

    /// Ends the open transaction at a position, and commits it. Returns the newest commit that is known to be
    /// on disk without having been waited for, if that is news.
    fn commit_prepared(
        &mut self,
        commit: CommitPoint,
        flush: bool,
    ) -> lockstep_client::Result<Option<Flushed>> {
        self.prepare_end()?;
        self.kept += 1;
        let end: [&dyn ToText; 4] = [&self.replica, &commit.end, &commit.time.0, &how(flush)];
        failpoint::APPLY_WRITTEN.reach();
        let mut pipeline = self.connection.pipeline()?;
        pipeline.query_prepared(END, &end)?;
        pipeline.query("COMMIT", &[])?;
        let mut unflushed = self.unflushed.as_mut().filter(|_| !flush);
        if unflushed.is_some() {
            pipeline.query_prepared(ON_DISK, &[])?;
        }
        let answers = pipeline.finish()?;
        let is_new = answers.first().is_some_and(|answer| answer.affected > 0);
        if flush && !is_new {
            self.connection.execute(FLUSH)?;
        }
        match (
            answers.last().and_then(|answer| answer.rows.first()),
            &mut unflushed,
        ) {
            (Some(row), Some(unflushed)) => {
                let now = Flushed::now(commit.end);
                Ok(unflushed.made(now, field(row, 0)?, field(row, 1)?))
            }
            _ => Ok(None),
        }
    }
}

/// How [`END`] is told whether the commit is to be on disk.
pub(super) fn how(flush: bool) -> &'static str {
    if flush { "local" } else { "off" }
}

/// When a transaction was committed on the source, as SQL.
fn commit_time(commit: CommitPoint, cycle: Option<&Closing>) -> String {
    match cycle {
        // Nothing was committed on the source.
        Some(cycle) if cycle.counts.transactions == 0 => "pg_catalog.now()".to_owned(),
        _ => format!(
            "'2000-01-01 00:00:00+00'::pg_catalog.timestamptz \
             + {} * '1 microsecond'::pg_catalog.interval",
            commit.time.0
        ),
    }
}
