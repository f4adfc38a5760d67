//! Both sides are compared while clients wait.

use std::thread;
use std::time::Duration;

use lockstep_client::{ClientError, Conninfo, field};

use super::{ANALYZE_JOBS, Ends};
use crate::error::{ReplicaError, Result};
use crate::lifecycle::session;
use crate::verify::{self, Replicated};

impl Ends<'_> {
    /// Compares the numbers of rows. What differs, in words.
    pub(super) fn compare_counts(&mut self, patience: Duration) -> Result<Option<String>> {
        let name = &self.what.name;
        let tables = self.run.state.tables(name)?;
        let count = |conninfo: &Conninfo| -> Result<Vec<u64>, ClientError> {
            let mut session = session(conninfo)?;
            session.set_patience(patience);
            let mut counts = Vec::new();
            for table in &tables {
                let sql = format!("SELECT count(*) FROM ONLY {}", table.name.sql());
                counts.push(field(&session.query_one(&sql)?, 0)?);
            }
            Ok(counts)
        };
        let (here, there) = thread::scope(|scope| {
            let counting = scope.spawn(|| count(&self.run.source));
            let there = count(&self.what.target);
            let here = counting.join();
            (
                here.unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                there,
            )
        });
        let (here, there) = (
            here.map_err(ReplicaError::Source)?,
            there.map_err(ReplicaError::Target)?,
        );
        let sides = tables.iter().zip(here.iter().zip(&there));
        let differ: Vec<_> = sides
            .filter(|(_, (here, there))| here != there)
            .map(|(table, (here, there))| format!("{} ({here} and {there})", table.name))
            .collect();
        Ok((!differ.is_empty()).then(|| {
            format!(
                "source and target have different numbers of rows: {}; see lockstep replica verify",
                differ.join(", ")
            )
        }))
    }

    /// Compares all rows, which holds the replica by itself. What differs, in words.
    pub(super) fn compare_rows(&mut self, patience: Duration) -> Result<Option<String>> {
        let name = &self.what.name;
        self.run.state.end_hold(name)?;
        self.run.state.let_hold_go(name)?;
        let what = Replicated {
            name: name.clone(),
            target: self.what.target.clone(),
            source: Some(self.run.source.clone()),
            jobs: ANALYZE_JOBS,
            patience,
        };
        let report = verify::replica(&what, &mut |words| self.watcher.borrow_mut().says(words))?;
        Ok((!report.is_equal())
            .then(|| "source and target differ: lockstep replica verify names the rows".to_owned()))
    }
}
