//! Whether a replica's publication on the source still is what the replica made. Its slot filters by what
//! the publication was when a change committed, so what somebody takes out of it is missing on the target
//! without a trace in the stream, also once it is altered back. `run`, `status` and `verify` all ask here.
//!
//! The state holds the publication as it was when the slot was made. Tables are known by their OIDs,
//! columns by their numbers, so that renaming one there changes nothing. No difference is:
//! - a table that was dropped on the source, which leaves the publication by itself
//!   ([`crate::status::lost`]);
//! - a partition that is added with the filter and the list of the table above it;
//! - another table that is added: apply leaves out what it does not know.
//!
//! A state of an older version holds only what the user asked for. Then only what cannot be right is a
//! difference: a list or a filter where there should be none, or none where there should be one.

mod compare;
mod read;
pub mod subset;

#[cfg(test)]
mod tests;

use lockstep_apply::Published as Watched;
use lockstep_client::{ClientError, Connection};
use lockstep_wire::Lsn;

pub use read::{Entry, Place, Published, text};
use read::{places, published};

use crate::names::TableName;
use crate::publication::subset::Subset;

/// Most differences that an error names.
const MOST_NAMED: usize = 5;

/// A replica's publication as it should be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expected {
    pub name: String,
    pub subsets: Vec<Subset>,
    /// None of a replica that an older version made.
    pub made: Option<Published>,
    /// The tables that were copied; only if `made` is None.
    pub copied: Vec<TableName>,
    /// The publication was last seen as it should be when the source's WAL ended here.
    pub right: Option<Lsn>,
}

impl Expected {
    /// What differs, a sentence each. None of it is so if the list is empty.
    pub fn differences(&self, source: &mut Connection) -> Result<Vec<String>, ClientError> {
        let found = published(source, &self.name)?;
        let asked = found.as_ref().map(|found| self.to_ask(found));
        let places = places(source, &asked.unwrap_or_default())?;
        Ok(self.compare(found.as_ref(), &places))
    }

    /// What differs in one sentence, with what to do; None if nothing does.
    pub fn words(&self, differences: &[String]) -> Option<String> {
        if differences.is_empty() {
            return None;
        }
        let mut named: Vec<_> = differences.iter().take(MOST_NAMED).cloned().collect();
        if let more @ 1.. = differences.len().saturating_sub(MOST_NAMED) {
            named.push(format!("and {more} more"));
        }
        let since = self.right.map_or_else(
            || "since it was altered".to_owned(),
            |lsn| format!("after {lsn}, when it was last seen right,"),
        );
        Some(format!(
            "publication \"{}\" on the source is not as the replica made it: {}. What committed there \
             {since} can be missing or incomplete on the target: alter the publication back and compare \
             with lockstep replica verify, or drop the replica (lockstep replica drop) and create it \
             again",
            self.name,
            named.join("; ")
        ))
    }
}

impl Watched for Expected {
    fn altered(&self, source: &mut Connection) -> Result<Option<String>, ClientError> {
        let differences = self.differences(source)?;
        Ok(self.words(&differences))
    }
}
