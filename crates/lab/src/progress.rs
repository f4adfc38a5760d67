//! pgbench's progress lines, and the throughput that follows from them.

use lockstep_service::clock::unix_us;
use lockstep_wire::Lsn;

/// Microseconds since 1970, by the machine's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Micros(pub i64);

impl Micros {
    pub fn now() -> Micros {
        Micros(unix_us())
    }

    pub fn seconds_since(self, earlier: Micros) -> f64 {
        (self.0 - earlier.0) as f64 / 1e6
    }

    pub fn ms_since(self, earlier: Micros) -> f64 {
        (self.0 - earlier.0) as f64 / 1e3
    }

    pub fn plus_seconds(self, seconds: f64) -> Micros {
        Micros(self.0 + (seconds * 1e6) as i64)
    }
}

/// A server's WAL position at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Time by the server's clock.
    pub at: Micros,
    /// End of the WAL that is flushed (primary) or replayed (standby).
    pub lsn: Lsn,
}

/// One progress line of pgbench: transactions a second since the line before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    pub at: Micros,
    pub tps: f64,
}

/// Parses a line of `pgbench --progress=1 --progress-timestamp`, such as
/// `progress: 1700000000.123 s, 3987.2 tps, lat 8.021 ms stddev 3.200, 0 failed`.
pub fn parse(line: &str) -> Option<Progress> {
    let mut parts = line.strip_prefix("progress: ")?.split(", ");
    let seconds: f64 = parts.next()?.strip_suffix(" s")?.parse().ok()?;
    let tps: f64 = parts.next()?.strip_suffix(" tps")?.parse().ok()?;
    if !seconds.is_finite() || !tps.is_finite() || tps < 0.0 {
        return None;
    }
    Some(Progress {
        at: Micros((seconds * 1e6) as i64),
        tps,
    })
}

/// Seconds between two progress lines, as asked of pgbench.
pub const INTERVAL: u32 = 1;

/// Transactions a second from `from` to `to`. A progress line that lies only partly in this
/// window counts for that part. None if no line lies in it.
pub fn tps_between(lines: &[Progress], from: Micros, to: Micros) -> Option<f64> {
    let mut transactions = 0.0;
    let mut covered = 0.0;
    let mut before = None;
    for line in lines {
        // The first line covers the interval since the load started.
        let start = before.unwrap_or(line.at.plus_seconds(-f64::from(INTERVAL)));
        before = Some(line.at);
        let overlap = line.at.min(to).seconds_since(start.max(from));
        if overlap > 0.0 {
            transactions += line.tps * overlap;
            covered += overlap;
        }
    }
    (covered > 0.0).then(|| transactions / covered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_every_major_are_parsed() {
        for line in [
            "progress: 1700000000.123 s, 3987.2 tps, lat 8.021 ms stddev 3.200, 0 failed",
            "progress: 1700000000.123 s, 3987.2 tps, lat 8.021 ms stddev 3.200",
        ] {
            let progress = parse(line).unwrap();
            assert_eq!(progress.tps, 3987.2);
            assert_eq!(progress.at, Micros(1_700_000_000_123_000));
        }
    }

    #[test]
    fn other_lines_are_not_progress() {
        for line in [
            "",
            "progress: ",
            "progress: x s, 1 tps",
            "progress: 1 s, nan tps, lat",
            "progress: 1 s, -4 tps, lat",
            "progress: 1 s",
            "pgbench (15.20)",
            "pgbench: error: client 0 aborted",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    #[test]
    fn throughput_counts_the_part_of_a_line_inside_the_window() {
        let line = |second: i64, tps| Progress {
            at: Micros(second * 1_000_000),
            tps,
        };
        let at = |second: f64| Micros(0).plus_seconds(second);
        let lines = [line(1, 100.0), line(2, 200.0), line(4, 400.0)];
        let cases = [
            (0.0, 1.0, Some(100.0)),
            (0.0, 2.0, Some(150.0)),
            (0.5, 1.5, Some(150.0)),
            (2.0, 4.0, Some(400.0)),
            (1.0, 4.0, Some(1000.0 / 3.0)),
            (3.0, 9.0, Some(400.0)),
            (5.0, 9.0, None),
        ];
        for (from, to, expected) in cases {
            let tps = tps_between(&lines, at(from), at(to));
            match (tps, expected) {
                (Some(tps), Some(expected)) => assert!((tps - expected).abs() < 1e-6),
                other => assert_eq!(other, (None, None), "{from}..{to}"),
            }
        }
        assert_eq!(tps_between(&[], at(0.0), at(1.0)), None);
    }
}
