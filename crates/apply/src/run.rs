//! A replica that applies, from its start to its end: session after session.

use std::sync::Arc;
use std::time::Duration;

use lockstep_client::{Connection, Conninfo};
use lockstep_wire::Lsn;
use tracing::{error, info, warn};

use crate::catalog::Starts;
use crate::control::{Control, Phase, Wanted};
use crate::drive::{Drive, Ended};
use crate::error::{ApplyError, Result};
use crate::failpoint;
use crate::order::MOST_WRITERS;
use crate::source::Published;
use crate::spool::{Owner, Spool};

/// Memory for changes unless the settings say otherwise, in bytes.
pub const MEMORY: usize = 256 * 1024 * 1024;

/// Least memory for changes.
pub const LEAST_MEMORY: usize = 1024 * 1024;

/// Pauses between attempts to connect.
pub const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
pub const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A change that did not fit is tried again after this long.
const RETRY: Duration = Duration::from_secs(10);

/// What to apply, and where.
#[derive(Debug, Clone)]
pub struct Settings {
    pub source: Conninfo,
    pub target: Conninfo,
    /// The slot on the source, with plugin pgoutput.
    pub slot: String,
    pub publications: Vec<String>,
    /// What the replica's publication should be; None if nobody minds.
    pub published: Option<Arc<dyn Published>>,
    /// The name of each replication origin on the target begins so; the replica owns them.
    pub origin: String,
    /// How many connections change the target at the same time, 1 to [`MOST_WRITERS`].
    pub writers: usize,
    /// The replica in the target's state, which keeps positions and counts the rows that are missing.
    pub replica: String,
    /// The name by which the source knows the replica, in `synchronous_standby_names` too.
    pub application_name: String,
    /// Memory for changes that are received and not applied, in bytes. A single row can need
    /// more.
    pub memory: usize,
    /// Where changes are kept that the target does not have yet; None leaves them to the source.
    pub spool: Option<Spool>,
}

impl Settings {
    /// The owner that the replica's spool must have.
    pub fn owner(&self, system: Option<String>) -> Owner {
        Owner {
            replica: self.replica.clone(),
            system,
            slot: self.slot.clone(),
            publications: self.publications.clone(),
            origin: self.origin.clone(),
        }
    }

    /// Where the source is, without secrets.
    pub fn source_shown(&self) -> String {
        self.source.clone().without_secrets().to_string()
    }
}

/// Applies until [`Control::stop`]. `starts` says which tables to apply from where; it is asked
/// at each connection to the target. Errors are logged, shown in the statistics, and tried to
/// get over; only those that no retry can mend are returned.
pub fn run(
    settings: &Settings,
    control: &Control,
    starts: &mut dyn FnMut(&mut Connection) -> Result<Starts>,
) -> Result<()> {
    let settings = &Settings {
        memory: settings.memory.max(LEAST_MEMORY),
        writers: settings.writers.clamp(1, MOST_WRITERS),
        ..settings.clone()
    };
    let ended = sessions(settings, control, starts);
    control.count(|stats| {
        stats.phase = Phase::Stopped;
        stats.error = ended.as_ref().err().map(ToString::to_string);
    });
    ended
}

fn sessions(
    settings: &Settings,
    control: &Control,
    starts: &mut dyn FnMut(&mut Connection) -> Result<Starts>,
) -> Result<()> {
    // A batch up to here did not fit: its transactions are applied one by one.
    let mut careful = Lsn::INVALID;
    let mut pause = SHORTEST_PAUSE;
    let mut opened = false;
    loop {
        let wanted = control.wanted();
        if wanted.stop {
            return Ok(());
        }
        if let Some(words) = control.refused() {
            return Err(ApplyError::Publication(words));
        }
        if wanted.pause {
            control.count(|stats| stats.phase = Phase::Paused);
            failpoint::APPLY_PAUSED.reach();
            control.rest(wanted, Duration::MAX / 4);
            failpoint::APPLY_RESUMED.reach();
            continue;
        }
        let applied = control.stats().counts.transactions;
        let ended = match Drive::open(settings, control, starts, careful) {
            Ok(drive) => {
                opened = true;
                drive.run()
            }
            Err(error) => Ended {
                error: Some(error),
                failed_batch: None,
            },
        };
        if control.stats().counts.transactions > applied {
            pause = SHORTEST_PAUSE;
        }
        let Some(error) = ended.error else {
            continue;
        };
        match ended.failed_batch {
            Some(end) if end > careful => {
                info!("a batch did not fit ({error}): its transactions are applied one by one");
                failpoint::APPLY_REFUSED.reach();
                careful = end;
            }
            Some(_) => block(control, wanted, &error),
            None => pause = reconnect(control, wanted, error, opened, pause)?,
        }
    }
}

/// Waits until a change that did not fit may fit.
fn block(control: &Control, wanted: Wanted, error: &ApplyError) {
    error!("{error}");
    control.count(|stats| {
        stats.phase = Phase::Blocked;
        stats.error = Some(error.to_string());
    });
    failpoint::APPLY_BLOCKED.reach();
    control.rest(wanted, RETRY);
}

/// Waits until servers may answer again. Returns the next pause. A target that has once let us in may
/// do so again, whatever it says now.
fn reconnect(
    control: &Control,
    wanted: Wanted,
    error: ApplyError,
    opened: bool,
    pause: Duration,
) -> Result<Duration> {
    let of_target = matches!(error, ApplyError::Target(_));
    let may_pass = error.may_pass() || (opened && of_target);
    if !may_pass {
        return Err(error);
    }
    warn!("{error}; tried again");
    control.count(|stats| {
        stats.phase = Phase::Connecting;
        stats.error = Some(error.to_string());
    });
    control.rest(wanted, pause);
    Ok((pause * 2).min(LONGEST_PAUSE))
}
