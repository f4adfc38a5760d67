//! Which cores the two ends of replication run on.
//!
//! Affinity is inherited, so pinning the postmaster or pgbench at its start pins
//! everything that it forks.

use std::process::{Command, Stdio};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::{Pid, SysconfVar, sysconf};

/// The end of replication that a process or thread works for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The primary, its writers and the lab's own threads.
    Primary,
    /// The standby and its readers.
    Standby,
    /// Preparation, which may use every core that this process may use.
    Both,
}

#[derive(Debug, Clone)]
pub struct Pinning {
    all: CpuSet,
    /// The primary's core and the standby's, if this process may use at least two.
    pair: Option<(usize, usize)>,
}

impl Pinning {
    /// Takes the first two of the cores that this process may use, which can be fewer than
    /// the machine has. With only one core nothing is pinned.
    pub fn detect() -> Self {
        let all = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
        let mut cores = (0..CpuSet::count()).filter(|&core| all.is_set(core) == Ok(true));
        let pair = cores.next().zip(cores.next());
        Self { all, pair }
    }

    /// These cores without pinning.
    pub fn unpinned(self) -> Self {
        Self { pair: None, ..self }
    }

    /// The pinning in one line, for people.
    pub fn describe(&self) -> String {
        match self.pair {
            Some((primary, standby)) => format!(
                "primary and writers on core {primary}, standby and readers on core {standby}"
            ),
            None => "not pinned: only one core may be used".to_owned(),
        }
    }

    /// Pins the calling thread, and all that it starts from now on.
    pub fn pin_current_thread(&self, side: Side) {
        self.pin(Pid::from_raw(0), side);
    }

    /// Pins a process that runs, and all that it starts from now on.
    pub fn pin(&self, process: Pid, side: Side) {
        // Containers may forbid the call. A refusal only costs precision.
        let _ = sched_setaffinity(process, &self.cores(side));
    }

    /// Seconds since the machine started in which the cores of a side did nothing, summed over
    /// them; None if the kernel does not tell.
    pub fn idle_s(&self, side: Side) -> Option<f64> {
        let tick = sysconf(SysconfVar::CLK_TCK).ok().flatten()? as f64;
        let cores = self.cores(side);
        let stat = std::fs::read_to_string("/proc/stat").ok()?;
        let mut ticks = 0.0;
        for line in stat.lines() {
            let mut fields = line.split_whitespace();
            let core = fields.next()?.strip_prefix("cpu");
            let Some(core) = core.and_then(|core| core.parse().ok()) else {
                continue;
            };
            if cores.is_set(core) == Ok(true) {
                // user, nice, system; then idle, and idle while waiting for storage
                let idle: Vec<f64> = fields.skip(3).take(2).flat_map(str::parse).collect();
                ticks += idle.iter().sum::<f64>();
            }
        }
        Some(ticks / tick)
    }

    fn cores(&self, side: Side) -> CpuSet {
        let mut one = CpuSet::new();
        let chosen = match (side, self.pair) {
            (Side::Primary, Some((primary, _))) => one.set(primary),
            (Side::Standby, Some((_, standby))) => one.set(standby),
            _ => return self.all,
        };
        if chosen.is_ok() { one } else { self.all }
    }
}

/// Gives a thread or process real-time priority (SCHED_FIFO). A refusal only costs precision.
pub fn run_promptly(id: Pid) {
    let _ = Command::new("/usr/bin/chrt")
        .args(["--fifo", "--pid", "1", &id.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_summed_over_a_sides_cores() {
        let pinning = Pinning::detect();
        let of = |side| pinning.idle_s(side).unwrap();
        let (one, all) = (of(Side::Primary), of(Side::Both));
        assert!(one > 0.0 && all >= one, "{one} {all}");
    }

    #[test]
    fn the_two_sides_share_no_core_when_pinned() {
        let pinning = Pinning::detect();
        let Some((primary, standby)) = pinning.pair else {
            assert!(pinning.describe().contains("not pinned"));
            return;
        };
        assert_ne!(primary, standby);
        assert_eq!(pinning.cores(Side::Primary).is_set(primary), Ok(true));
        assert_eq!(pinning.cores(Side::Primary).is_set(standby), Ok(false));
        assert_eq!(pinning.cores(Side::Both).is_set(standby), Ok(true));
        let unpinned = pinning.unpinned();
        assert_eq!(unpinned.cores(Side::Primary).is_set(standby), Ok(true));
    }
}
