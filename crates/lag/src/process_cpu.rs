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
    parse(&fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?)
}

/// Reads `schedstat`: nanoseconds on a core, nanoseconds queued, number of turns.
fn parse(text: &str) -> Option<Cpu> {
    let mut numbers = text.split_whitespace().map(|word| word.parse().ok());
    let mut next = || numbers.next().flatten().map(Duration::from_nanos);
    Some(Cpu {
        ran: next()?,
        queued: next()?,
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
    fn a_process_that_is_no_server_s_is_left_out() {
        assert_eq!(cpu(std::process::id(), &BackendType::Startup), None);
        assert_eq!(cpu(u32::MAX, &BackendType::Startup), None);
    }
}
