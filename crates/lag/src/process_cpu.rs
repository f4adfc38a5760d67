//! CPU of a server's processes, when they run on this machine and are the server's own: what
//! no view of PostgreSQL tells. Linux only; elsewhere there is just nothing.

use std::fs;
use std::time::Duration;

use crate::states::BackendType;

/// CPU of one process since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cpu {
    /// On a core.
    pub ran: Duration,
    /// Ready to run, and waiting for a core.
    pub queued: Duration,
}

/// CPU of a process, if it is what the server calls it. Process ids of another machine or
/// container mean somebody else here, who hardly has the same title.
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

/// `schedstat`: nanoseconds on a core, nanoseconds queued, number of turns.
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
