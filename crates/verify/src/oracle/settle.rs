//! Brings a primary's standbys to one position, with every page on disk.

use lockstep_lab::server::{Server, Stop};
use lockstep_wire::Lsn;

use crate::Result;

/// Runs CHECKPOINT on the primary, waits until every standby has replayed it, runs CHECKPOINT
/// on each standby, and stops each (fast). Returns the position. Nothing else may write on the
/// primary meanwhile.
///
/// Without this a stopped standby may lack changed pages on disk: a shutdown writes them only
/// if a checkpoint record was replayed since the last restartpoint.
pub fn settle(primary: &Server, standbys: &mut [&mut Server]) -> Result<Lsn> {
    primary.execute("CHECKPOINT")?;
    let position = primary.flush_lsn()?;
    for standby in standbys.iter_mut() {
        standby.await_replay(position, lockstep_lab::server::PATIENCE)?;
        standby.execute("CHECKPOINT")?;
    }
    for standby in standbys.iter_mut() {
        standby.stop(Stop::Fast)?;
    }
    Ok(position)
}
