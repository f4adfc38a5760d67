//! What decoding costs the primary: its walsenders' CPU and reads, from /proc.

use std::collections::BTreeMap;
use std::fs;

use lockstep_lab::server::Server;
use lockstep_lab::usage;

/// What one process has used since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// CPU seconds.
    pub cpu_s: f64,
    /// Bytes read from files, from the page cache or from storage.
    pub read_calls_bytes: u64,
    /// Bytes of those that came from storage.
    pub read_storage_bytes: u64,
}

impl Cost {
    fn plus(self, other: Self) -> Self {
        Self {
            cpu_s: self.cpu_s + other.cpu_s,
            read_calls_bytes: self.read_calls_bytes + other.read_calls_bytes,
            read_storage_bytes: self.read_storage_bytes + other.read_storage_bytes,
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            cpu_s: (self.cpu_s - other.cpu_s).max(0.0),
            read_calls_bytes: self.read_calls_bytes.saturating_sub(other.read_calls_bytes),
            read_storage_bytes: self
                .read_storage_bytes
                .saturating_sub(other.read_storage_bytes),
        }
    }
}

/// All walsenders of a server at one time.
#[derive(Debug, Clone, Default)]
pub struct Walsenders(BTreeMap<i32, Cost>);

impl Walsenders {
    /// The walsenders of a server now. Those that have ended are not seen, so this is called
    /// before consumers stop.
    pub fn of(server: &Server) -> Self {
        let children = server.pid().map(usage::children).unwrap_or_default();
        Self(
            children
                .into_iter()
                .filter(|&pid| is_walsender(pid))
                .filter_map(|pid| Some((pid, cost(pid)?)))
                .collect(),
        )
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// What they have used together since `before`.
    pub fn since(&self, before: &Self) -> Cost {
        self.0.iter().fold(Cost::default(), |sum, (pid, now)| {
            let before = before.0.get(pid).copied().unwrap_or_default();
            sum.plus(now.minus(before))
        })
    }
}

fn is_walsender(pid: i32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|title| String::from_utf8_lossy(&title).contains(": walsender"))
}

fn cost(pid: i32) -> Option<Cost> {
    // Forbidden only where the whole lab would be.
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let field = |name: &str| {
        io.lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
            .unwrap_or(0)
    };
    Some(Cost {
        cpu_s: usage::cpu_s(pid)?,
        read_calls_bytes: field("rchar:"),
        read_storage_bytes: field("read_bytes:"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_came_later_count_whole() {
        let cost = |cpu_s, bytes| Cost {
            cpu_s,
            read_calls_bytes: bytes,
            read_storage_bytes: 0,
        };
        let before = Walsenders([(1, cost(1.0, 10)), (2, cost(5.0, 50))].into());
        let after = Walsenders([(1, cost(1.5, 30)), (3, cost(2.0, 7))].into());
        assert_eq!(after.since(&before), cost(2.5, 27));
        assert_eq!(after.count(), 2);
    }
}
