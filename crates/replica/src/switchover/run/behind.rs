//! The fences of both sides, and what came to the source before its own.

use std::collections::BTreeSet;

use lockstep_client::{ClientError, Connection, field};

use lockstep_service::words::span;

use super::{Switch, SwitchWatcher};
use crate::error::{Finding, ReplicaError, Result};
use crate::lifecycle::fence::{self, Fence};
use crate::lifecycle::promotion::{Drained, Next, SourceSays};
use crate::lifecycle::session;
use crate::names::{named, with_namespaces};
use crate::state::failpoint;
use crate::switchover::readiness::findings;
use crate::switchover::reverse::Reverse;

/// What has rows or a value, in words.
const OBJECTS: &str = "
SELECT CASE c.relkind WHEN 'S' THEN 'sequence ' ELSE 'table ' END || format('%I.%I', n.nspname, c.relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'S') AND c.relpersistence <> 't' AND {namespaces}";

const LARGE_OBJECTS: &str =
    "SELECT count(*), coalesce(max(oid::int8), 0) FROM pg_largeobject_metadata";

/// What only the source has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Objects {
    names: BTreeSet<String>,
    /// The number of its large objects, and the highest of their OIDs.
    large: (u64, u64),
}

fn names(session: &mut Connection) -> Result<BTreeSet<String>, ClientError> {
    let rows = session.query(&with_namespaces(OBJECTS))?;
    rows.iter().map(|row| field(row, 0)).collect()
}

impl Objects {
    /// What is here and was not before, in words.
    fn since(&self, before: &Self) -> Option<String> {
        let mut new: Vec<_> = self.names.difference(&before.names).cloned().collect();
        if self.large != before.large {
            new.push("large objects".to_owned());
        }
        (!new.is_empty()).then(|| {
            format!(
                "source: it has got what the target lacks since the command began: {} (create it on the \
                 target, or take it away, and repeat)",
                named(&new)
            )
        })
    }
}

impl Switch<'_> {
    /// What only the source has now.
    pub(super) fn unreplicated(&mut self) -> Result<Objects> {
        let there = names(self.run.state.connection()).map_err(ReplicaError::Target)?;
        let source = self.source()?;
        let mut ask = || -> Result<Objects, ClientError> {
            let row = source.query_one(LARGE_OBJECTS)?;
            Ok(Objects {
                names: names(source)?.difference(&there).cloned().collect(),
                large: (field(&row, 0)?, field(&row, 1)?),
            })
        };
        ask().map_err(ReplicaError::Source)
    }

    /// What would be lost although the command has looked for it when it began, in words: it has come since.
    pub(super) fn hindrances(&mut self) -> Result<Option<String>> {
        let now = self.unreplicated()?;
        let new = self.before.as_ref().and_then(|before| now.since(before));
        let lacks = match new.is_some() {
            true => Vec::new(),
            false => self.run.lacking()?.into_iter().collect(),
        };
        let mut facts = self.facts(lacks)?;
        // What the way back needs is made already.
        facts.back = None;
        let found = findings(&self.run.replica, &facts);
        let errors = found.iter().filter(|it| it.is_error()).map(words);
        let errors: Vec<_> = new.into_iter().chain(errors).collect();
        Ok((!errors.is_empty()).then(|| errors.join("; ")))
    }

    /// Makes the triggers of both fences, which let everything pass.
    pub(super) fn make_fences(&mut self, watcher: &mut dyn SwitchWatcher) {
        watcher.says("making the fences, which let everything pass at first");
        self.is_planted = true;
        let patience = self.what.max_pause;
        let target = session(&self.what.target).map_err(ReplicaError::Target);
        let planted = target.and_then(|mut target| {
            let there = fence::plant(&mut target, Fence::Comes, patience);
            let locked = there.map_err(ReplicaError::Target)?;
            if let Some(table) = locked {
                return Ok(Some(("target", table)));
            }
            let here = fence::plant(self.source()?, Fence::Left, patience);
            let Some(table) = here.map_err(ReplicaError::Source)? else {
                return Ok(None);
            };
            let prepared = fence::prepared(self.source()?).map_err(ReplicaError::Source)?;
            Ok(Some(match prepared.is_empty() {
                true => ("source", table),
                false => (
                    "source",
                    format!("{table} (prepared: {})", named(&prepared)),
                ),
            }))
        });
        self.failure = match planted {
            Ok(None) => {
                failpoint::SWITCH_PLANTED.reach();
                self.is_surely_planted = true;
                return;
            }
            Ok(Some((side, table))) => Some(format!(
                "table {table} of the {side} stays locked by a transaction that has written, so its fence cannot be made",
            )),
            Err(error) => Some(format!("a fence cannot be made: {error}")),
        };
    }

    pub(super) fn close(&mut self) {
        self.is_closed = true;
        let target = session(&self.what.target).map_err(ReplicaError::Target);
        let closed = target.and_then(|mut it| fence::close(&mut it, self.what.max_pause));
        match closed {
            Ok(()) => {
                failpoint::SWITCH_CLOSED.reach();
                self.is_surely_closed = true;
            }
            Err(error) => {
                self.failure = Some(format!(
                    "the target cannot be kept from being written: {error}"
                ));
            }
        }
    }

    pub(super) fn raise_fence(&mut self) {
        let left = self.left();
        self.is_fenced = true;
        let spared: Vec<_> = self.way.iter_mut().map(Reverse::backend_pid).collect();
        let raised = self
            .source()
            .and_then(|source| fence::raise(source, &spared, left));
        // It may be why the fence could not be raised.
        match (self.hindrances(), raised) {
            (Err(error), _) => self.failure = Some(error.to_string()),
            (Ok(Some(words)), _) => {
                self.failure = Some(words.clone());
                // Another attempt finds the same.
                self.refusal = Some(words);
            }
            (Ok(None), Ok(end)) => {
                failpoint::SWITCH_FENCED.reach();
                self.fence = Some(end);
                self.run.says = SourceSays::Ends(end);
            }
            (Ok(None), Err(error)) => self.failure = Some(error.to_string()),
        }
    }

    /// Looks whether somebody has taken the source's fence away meanwhile.
    pub(super) fn look_again(&mut self) {
        let looked = self.source().and_then(|source| {
            let gaps = fence::gaps(source, Fence::Left);
            gaps.map_err(ReplicaError::Source)
        });
        match looked {
            Ok(None) => self.is_whole = true,
            Ok(Some(words)) => {
                self.failure = Some(format!(
                    "somebody has taken the fence of the source away meanwhile: {words}"
                ));
                // The next attempt makes what is missing.
                self.is_surely_planted = false;
            }
            Err(error) => self.failure = Some(error.to_string()),
        }
    }

    /// Does a step of the promotion. Once there is no way back, a fence that somebody has taken away is told
    /// of.
    pub(super) fn promote(&mut self, next: Next) -> Result<()> {
        // Nobody waits for that any more.
        let looks = next == Next::End;
        self.run.take(next, &mut |_| {})?;
        if !looks {
            return Ok(());
        }
        // Without the source it goes on as well.
        let looked = self.source().map(|it| fence::gaps(it, Fence::Left));
        if let Ok(Ok(Some(words))) = looked {
            self.run.lacks.push(format!(
                "somebody has taken the fence of the source away ({words}): what was written there since is not on \
                 the target; end all writing there, and compare with lockstep replica verify"
            ));
        }
        Ok(())
    }

    pub(super) fn unfence(&mut self) -> Result<()> {
        self.fails_late();
        fence::pass(self.source()?, Fence::Left).map_err(ReplicaError::Source)?;
        self.is_fenced = false;
        // The next attempt drains anew: it is no reason not to begin one.
        self.run.drained = Drained::NotYet;
        self.run.state.end_hold(&self.what.name)?;
        self.is_armed = false;
        Ok(())
    }

    pub(super) fn unclose(&mut self) -> Result<()> {
        self.fails_late();
        let passes = fence::pass(self.run.state.connection(), Fence::Comes);
        passes.map_err(ReplicaError::Target)?;
        (self.is_closed, self.is_surely_closed) = (false, false);
        Ok(())
    }

    /// An attempt that is taken back without another failure has taken too long.
    fn fails_late(&mut self) {
        if self.failure.is_none() {
            let most = span::show(self.what.max_pause);
            self.failure = Some(format!("clients had waited for {most} (--max-pause)"));
        }
    }

    pub(super) fn uproot(&mut self) -> Result<()> {
        let there = fence::remove(self.run.state.connection(), Fence::Comes);
        let there = there.map_err(ReplicaError::Target)?;
        let here = fence::remove(self.source()?, Fence::Left).map_err(ReplicaError::Source)?;
        for (fence, left) in [(Fence::Comes, there), (Fence::Left, here)] {
            self.run.notes.extend(fence::left(fence, &left));
        }
        (self.is_planted, self.is_surely_planted) = (false, false);
        Ok(())
    }
}

fn words(finding: &Finding) -> String {
    format!("{}: {} ({})", finding.subject, finding.says, finding.todo)
}
