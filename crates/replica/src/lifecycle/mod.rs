//! A replica from its first check to its end.
//!
//! | module | what |
//! |---|---|
//! | `exporter` | the snapshot that is copied, and the slot that goes on from it |
//! | [`finish`] | what follows the rows and the sequences: materialized views, statistics |
//! | `setval` | sets the target's sequences to the source's values |
//! | `made` | what the target refused at first, tried again and listed |
//! | [`fence`] | keeps a database from being written that a switchover leaves |
//! | [`read_only`] | whether others begin read-only on the target |
//! | [`remove`] | the end of a replica |
//! | [`create`] | the phases of a creation in their order |
//! | [`alteration`] | what an alteration of its tables changes; no I/O |
//! | `kept` | what a publication has of the replica's tables, and what of that an alteration changes; no I/O |
//! | [`alter`] | other tables, or another part of some |
//! | `sequences` | the target's sequences follow the source's while the replica applies |
//! | [`follow`] | a replica that applies, as its state wants it |
//! | [`promotion`] | when a replica may be promoted, and what comes next; no I/O |
//! | `raise` | brings sequences beyond the values that columns have |
//! | [`promote`] | does a promotion |
//! | [`daemon`] | several replicas in one process, each of which may fail alone |

pub mod alter;
pub mod alteration;
pub mod create;
pub mod daemon;
pub(crate) mod exporter;
pub mod fence;
pub mod finish;
pub mod follow;
mod kept;
mod made;
pub mod promote;
pub mod promotion;
mod raise;
pub mod read_only;
pub mod remove;
mod sequences;
mod setval;

use lockstep_apply::sessions;
use lockstep_client::{ClientError, Connection, Conninfo, Purpose};

use crate::copy::progress::Moment;
use crate::error::Finding;
use crate::state::{APPLICATION, Phase};
use std::time::Duration;

/// How long statements on tables of any size may take.
const LONG: Duration = Duration::from_secs(24 * 3600);

/// Hears what a creation does.
pub trait Watcher {
    fn found(&mut self, findings: &[Finding]);
    /// A phase begins. `again` if an earlier call has begun it.
    fn phase(&mut self, phase: Phase, again: bool);
    fn progress(&mut self, moment: &Moment);
    /// Something is waited for, or has to wait: who, in words.
    fn waits(&mut self, words: &str);
}

/// A session for a creation, whose statements may take long.
pub(crate) fn session(conninfo: &Conninfo) -> Result<Connection, ClientError> {
    let mut session = sessions::open(conninfo, Purpose::Sql, APPLICATION)?;
    session.set_patience(LONG);
    Ok(session)
}
