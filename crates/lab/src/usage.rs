//! CPU time and memory of a server's processes, from /proc.

use std::fs;

use nix::unistd::{SysconfVar, sysconf};

use crate::address::APP_ROLE;
use crate::sweep;

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// CPU seconds of all processes, including those that have ended.
    pub cpu_s: f64,
    /// CPU seconds of the startup process, which replays.
    pub startup_cpu_s: f64,
    /// Seconds for which the startup process could have run but had no core; 0 if the kernel does
    /// not tell.
    pub startup_waited_s: f64,
    /// CPU seconds of the walreceiver.
    pub walreceiver_cpu_s: f64,
    /// CPU seconds of the extension's background workers.
    pub lockstep_cpu_s: f64,
    /// CPU seconds of sessions of [`APP_ROLE`], the load's, that have not ended.
    pub load_cpu_s: f64,
    /// Memory in megabytes: private memory of every process, and shared memory counted once.
    pub rss_mb: f64,
}

impl Usage {
    /// CPU seconds since `before`; memory as it is now.
    pub fn since(self, before: Usage) -> Usage {
        let since = |of: fn(Usage) -> f64| (of(self) - of(before)).max(0.0);
        Usage {
            cpu_s: since(|usage| usage.cpu_s),
            startup_cpu_s: since(|usage| usage.startup_cpu_s),
            startup_waited_s: since(|usage| usage.startup_waited_s),
            walreceiver_cpu_s: since(|usage| usage.walreceiver_cpu_s),
            lockstep_cpu_s: since(|usage| usage.lockstep_cpu_s),
            load_cpu_s: since(|usage| usage.load_cpu_s),
            rss_mb: self.rss_mb,
        }
    }

    /// Adds the CPU seconds of a process to those of what it is, by its title.
    fn add(&mut self, title: &str, cpu_s: f64) {
        self.cpu_s += cpu_s;
        match job(title) {
            "startup" => self.startup_cpu_s += cpu_s,
            "walreceiver" => self.walreceiver_cpu_s += cpu_s,
            "lockstep" => self.lockstep_cpu_s += cpu_s,
            APP_ROLE => self.load_cpu_s += cpu_s,
            _ => {}
        }
    }
}

/// CPU seconds of one process, its threads included; None if there is no such process.
pub fn cpu_s(pid: i32) -> Option<f64> {
    let tick = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100) as f64;
    cpu_ticks(pid).map(|times| times.own / tick)
}

/// Children of a process.
pub fn children(of: i32) -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&pid| sweep::parent(pid) == Some(of))
        .collect()
}

/// Adds up the postmaster and its children. The children have no children of their own.
pub fn of_server(postmaster: i32) -> Usage {
    let tick = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100) as f64;
    let mut usage = Usage::default();
    let mut shared_kb = 0.0_f64;
    let mut private_kb = 0.0;
    if let Some(times) = cpu_ticks(postmaster) {
        usage.cpu_s += (times.own + times.reaped) / tick;
    }
    for pid in children(postmaster) {
        let Some(times) = cpu_ticks(pid) else {
            continue;
        };
        let title = title(pid);
        usage.add(&title, times.own / tick);
        if job(&title) == "startup" {
            usage.startup_waited_s += waited_s(pid).unwrap_or_default();
        }
        let (private, shared) = memory_kb(pid);
        private_kb += private;
        shared_kb = shared_kb.max(shared);
    }
    usage.rss_mb = (private_kb + shared_kb) / 1024.0;
    usage
}

/// Seconds that a process has waited for a core.
fn waited_s(pid: i32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    // Nanoseconds on a core, nanoseconds waiting for one, and how often it got one.
    let waited: f64 = stat.split_whitespace().nth(1)?.parse().ok()?;
    Some(waited / 1e9)
}

struct Ticks {
    own: f64,
    /// Ticks of children that have ended.
    reaped: f64,
}

fn cpu_ticks(pid: i32) -> Option<Ticks> {
    parse_ticks(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// utime, stime, cutime and cstime are fields 14 to 17. The first field after the name in
/// parentheses, which may hold any character, is field 3.
fn parse_ticks(stat: &str) -> Option<Ticks> {
    let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(11);
    let mut next = || -> Option<f64> { fields.next()?.parse().ok() };
    Some(Ticks {
        own: next()? + next()?,
        reaped: next()? + next()?,
    })
}

fn title(pid: i32) -> String {
    let title = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&title).into_owned()
}

/// The first word of a title such as `postgres: standby: startup recovering 0000…`, behind the
/// cluster's name if it has one: what the process is, or the role of a session.
fn job(title: &str) -> &str {
    let title = title.strip_prefix("postgres: ").unwrap_or_default();
    let title = title.split_once(": ").map_or(title, |(_, title)| title);
    title.split([' ', '\0']).next().unwrap_or_default()
}

fn memory_kb(pid: i32) -> (f64, f64) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| -> f64 {
        status
            .lines()
            .find_map(|line| {
                line.strip_prefix(name)?
                    .split_whitespace()
                    .next()?
                    .parse()
                    .ok()
            })
            .unwrap_or(0.0)
    };
    (field("RssAnon:"), field("RssShmem:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_read_past_any_process_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 9 0 0 0 11 22 33 44 20 0 1 0 5";
        let ticks = parse_ticks(stat).unwrap();
        assert_eq!(ticks.own, 33.0);
        assert_eq!(ticks.reaped, 77.0);
        assert!(parse_ticks("7 (x) S 1").is_none());
    }

    #[test]
    fn processes_are_known_by_their_titles() {
        for (title, expected) in [
            (
                "postgres: standby: startup recovering 0000000100000000\0\0",
                "startup",
            ),
            ("postgres: startup ", "startup"),
            (
                "postgres: standby: walreceiver streaming 0/3000060",
                "walreceiver",
            ),
            ("postgres: standby: lockstep controller ", "lockstep"),
            ("postgres: standby: app postgres [local] SELECT", APP_ROLE),
            ("postgres: app postgres [local] idle\0", APP_ROLE),
            ("/usr/lib/postgresql/15/bin/postgres\0-D\0data", ""),
        ] {
            assert_eq!(job(title), expected, "{title}");
        }
        let mut usage = Usage::default();
        usage.add("postgres: standby: lockstep WAL segments ", 2.0);
        usage.add("postgres: standby: checkpointer ", 1.0);
        assert_eq!((usage.cpu_s, usage.lockstep_cpu_s), (3.0, 2.0));
    }

    #[test]
    fn our_own_parent_has_us_as_a_child() {
        let us = i32::try_from(std::process::id()).unwrap();
        let parent = sweep::parent(us).unwrap();
        assert!(children(parent).contains(&us));
    }
}
