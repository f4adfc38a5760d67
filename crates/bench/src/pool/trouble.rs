//! What happens to standbys, and when: planned from a seed, so that every variant meets the same.

use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use lockstep_lab::server::Server;
use lockstep_lab::usage;

use crate::Result;
use crate::fault::{Frozen, SlowLink};

/// What a standby suffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TroubleKind {
    /// Replay waits until commits are two seconds old.
    Delayed,
    /// All its processes are stopped.
    Stopped,
    /// Replay is paused.
    Paused,
    /// Nothing of the primary reaches it, or its agent.
    CutOff,
    Restarted,
}

impl TroubleKind {
    const ALL: [Self; 5] = [
        Self::Delayed,
        Self::Stopped,
        Self::Paused,
        Self::CutOff,
        Self::Restarted,
    ];
}

/// One trouble of one standby.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trouble {
    pub kind: TroubleKind,
    /// When it begins, since the start.
    pub at: Duration,
    pub lasts: Duration,
}

/// Time between two troubles of a standby, and how long one lasts.
const WELL_S: [f64; 2] = [3.0, 9.0];
const ILL_S: [f64; 2] = [1.0, 5.0];

/// The troubles of each of these standbys. The last ones end before `length`.
pub fn plan(seed: u64, standbys: usize, length: Duration) -> Vec<Vec<Trouble>> {
    let mut random = Rng::with_seed(seed);
    let mut between =
        |[least, most]: [f64; 2]| Duration::from_secs_f64(least + (most - least) * random.f64());
    // Times first, so that a longer run begins as a shorter one does.
    let mut plans: Vec<Vec<Trouble>> = Vec::new();
    for standby in 0..standbys {
        let mut kinds = Rng::with_seed(seed ^ (standby as u64 + 1) << 32);
        let (mut troubles, mut at) = (Vec::new(), between(WELL_S));
        loop {
            let lasts = between(ILL_S);
            if at + lasts > length {
                break;
            }
            let kind = kinds
                .choice(TroubleKind::ALL)
                .unwrap_or(TroubleKind::Paused);
            troubles.push(Trouble { kind, at, lasts });
            at += lasts + between(WELL_S);
        }
        plans.push(troubles);
    }
    plans
}

/// Lets a standby suffer what is planned, from `began` on.
pub fn suffer(
    standby: &mut Server,
    link: &SlowLink,
    plan: &[Trouble],
    began: Instant,
) -> Result<()> {
    for trouble in plan {
        sleep_until(began + trouble.at);
        let end = began + trouble.at + trouble.lasts;
        match trouble.kind {
            TroubleKind::Delayed => {
                standby.execute("ALTER SYSTEM SET recovery_min_apply_delay = '2s'")?;
                standby.reload()?;
                sleep_until(end);
                standby.execute("ALTER SYSTEM RESET recovery_min_apply_delay")?;
                standby.reload()?;
            }
            TroubleKind::Stopped => {
                let _frozen = freeze(standby)?;
                sleep_until(end);
            }
            TroubleKind::Paused => {
                standby.execute("SELECT pg_wal_replay_pause()")?;
                sleep_until(end);
                standby.execute("SELECT pg_wal_replay_resume()")?;
            }
            TroubleKind::CutOff => {
                link.limit(Some(1));
                sleep_until(end);
                link.limit(None);
            }
            TroubleKind::Restarted => standby.restart()?,
        }
    }
    Ok(())
}

/// Stops all processes of a server until the value is dropped.
pub fn freeze(server: &Server) -> Result<Vec<Frozen>> {
    let Some(postmaster) = server.pid() else {
        return Ok(Vec::new());
    };
    // The postmaster first: it starts no more of them.
    let first = Frozen::process(postmaster.unsigned_abs())?;
    let mut frozen = vec![first];
    for child in usage::children(postmaster) {
        // One that has just ended is no error.
        frozen.extend(Frozen::process(child.unsigned_abs()));
    }
    Ok(frozen)
}

pub fn sleep_until(moment: Instant) {
    thread::sleep(moment.saturating_duration_since(Instant::now()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_determined_by_their_seed_and_end_in_time() {
        let length = Duration::from_secs(600);
        let plans = plan(1, 3, length);
        assert_eq!(plans, plan(1, 3, length));
        assert_ne!(plans, plan(2, 3, length));
        for (number, troubles) in plans.iter().enumerate() {
            let mut free_from = Duration::ZERO;
            for trouble in troubles {
                assert!(trouble.at > free_from);
                free_from = trouble.at + trouble.lasts;
            }
            assert!(free_from <= length);
            for kind in TroubleKind::ALL {
                let has = |trouble: &Trouble| trouble.kind == kind;
                assert!(troubles.iter().any(has), "{number} {kind:?}");
            }
        }
    }

    #[test]
    fn a_short_run_may_have_no_trouble() {
        assert_eq!(plan(1, 2, Duration::from_secs(1)), [vec![], vec![]]);
    }
}
