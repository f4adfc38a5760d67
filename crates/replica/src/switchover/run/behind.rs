//! What came to the source before its fence.

use std::collections::BTreeSet;

use lockstep_client::{ClientError, Connection, field};

use super::Ends;
use crate::error::{Finding, ReplicaError, Result};
use crate::names::{named, with_namespaces};
use crate::switchover::drive::Servers;
use crate::switchover::readiness::findings;

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

impl Ends<'_> {
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
    pub(super) fn lost_since(&mut self) -> Result<Option<String>> {
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
}

fn words(finding: &Finding) -> String {
    format!("{}: {} ({})", finding.subject, finding.says, finding.todo)
}
