//! Bringing a primary's standbys to one position with every page on disk.

use lockstep_lab::server::{Server, Stop};
use lockstep_wire::Lsn;

use crate::Result;

/// On a primary that nobody writes to: CHECKPOINT there, wait until every standby has
/// replayed it, CHECKPOINT on each, and stop each (fast). Gives the position.
///
/// A standby that is stopped without this keeps changed pages in memory until the restart:
/// a shutdown writes them only if a checkpoint was replayed since the last restartpoint.
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
