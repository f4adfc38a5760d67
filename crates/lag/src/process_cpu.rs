//! CPU of a server's processes, which no view of PostgreSQL tells. Works only for a server on
//! this machine, and only on Linux; elsewhere the answer is None.

use std::fs;
use std::time::Duration;

use crate::states::BackendType;

/// CPU of one process since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cpu {
    /// Time on a core.
    pub ran: Duration,
    /// Time in which it was ready to run and waited for a core.
    pub queued: Duration,
    /// A signal has stopped it.
    pub stopped: bool,
}

/// CPU of a process whose title fits its backend type. If the server runs on another machine or
/// in a container, the process with that id here is another one and hardly has the same title.
pub fn cpu(pid: u32, backend_type: &BackendType) -> Option<Cpu> {
    let title = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let title = String::from_utf8_lossy(&title);
    let words = match backend_type {
        BackendType::LogicalApply | BackendType::LogicalWorker => "logical replication",
        other => other.name(),
    };
    if !title.starts_with("postgres") || !title.contains(words) {
        return None;
    }
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let cpu = parse(&fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?)?;
    Some(Cpu {
        stopped: is_stopped(&stat),
        ..cpu
    })
}

/// Reads `stat`: after the title, which is in parentheses, comes the state. A process that is
/// traced is stopped for moments, with another state.
fn is_stopped(stat: &str) -> bool {
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|state| state.starts_with('T'))
}

/// Reads `schedstat`: nanoseconds on a core, nanoseconds queued, number of turns.
fn parse(text: &str) -> Option<Cpu> {
    let mut numbers = text.split_whitespace().map(|word| word.parse().ok());
    let mut next = || numbers.next().flatten().map(Duration::from_nanos);
    Some(Cpu {
        ran: next()?,
        queued: next()?,
        stopped: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedstat_is_read() {
        let cpu = parse("1500000000 250000000 77\n").unwrap();
        assert_eq!(cpu.ran, Duration::from_millis(1500));
        assert_eq!(cpu.queued, Duration::from_millis(250));
        for text in ["", "1", "x 2 3"] {
            assert_eq!(parse(text), None);
        }
    }

    #[test]
    fn a_stopped_process_is_told_from_one_that_sleeps() {
        for (stat, stopped) in [
            ("7 (postgres: a) T) T 1 7", true),
            ("7 (T) S 1 7", false),
            ("7 (x) t 1 7", false),
            ("", false),
        ] {
            assert_eq!(is_stopped(stat), stopped, "{stat}");
        }
    }

    #[test]
    fn a_process_that_is_no_server_s_is_left_out() {
        assert_eq!(cpu(std::process::id(), &BackendType::Startup), None);
        assert_eq!(cpu(u32::MAX, &BackendType::Startup), None);
    }
}
