//! Learns from `pg_waldump` where the last complete record ends, and the times of commits.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use lockstep_wire::{Lsn, Timeline};

use super::client_programs::ClientPrograms;
use super::recording::PacePoint;
use crate::{PlayerError, Result};
use lockstep_wal::segment::{SegmentSize, record_end};

/// Most points of a pace. Each time there are this many, every other point is left out.
/// Positions between two points are interpolated.
const MOST_POINTS: usize = 65_536;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Range<'a> {
    pub folder: &'a std::path::Path,
    pub timeline: Timeline,
    pub size: SegmentSize,
    pub from: Lsn,
    pub to: Lsn,
}

/// A record as one line of `pg_waldump` describes it.
#[derive(Debug, PartialEq, Eq)]
struct Record<'a> {
    start: Lsn,
    length: u64,
    manager: &'a str,
    description: &'a str,
}

/// End of the last complete record that ends at or before `range.to`; None if there is none.
pub(crate) fn last_end(programs: &ClientPrograms, range: Range<'_>) -> Result<Option<Lsn>> {
    let mut end = None;
    dump(programs, range, &[], |record| {
        let at = record_end(record.start, record.length, range.size);
        let switch = record.manager == "XLOG" && record.description.starts_with("SWITCH");
        let at = match switch {
            // A segment switch takes up the rest of its segment.
            true => {
                let before = u64::from(at) - 1;
                Lsn::from(before - before % range.size.bytes() + range.size.bytes())
            }
            false => at,
        };
        if at <= range.to {
            end = Some(at);
        }
    })?;
    Ok(end)
}

/// The pace of the source, from the times in its commit records.
pub(crate) fn pace(programs: &ClientPrograms, range: Range<'_>) -> Result<Vec<PacePoint>> {
    let mut points = Points::default();
    dump(programs, range, &["--rmgr=Transaction"], |record| {
        if let Some(at) = commit_time(record.description) {
            points.add(record_end(record.start, record.length, range.size), at);
        }
    })?;
    Ok(points.finish())
}

/// Calls `see` for each record.
fn dump(
    programs: &ClientPrograms,
    range: Range<'_>,
    options: &[&str],
    mut see: impl FnMut(&Record<'_>),
) -> Result<()> {
    let mut pg_waldump = programs.command("pg_waldump");
    pg_waldump.arg("--path").arg(range.folder);
    pg_waldump.args(["--timeline", &range.timeline.to_string()]);
    pg_waldump.args(["--start", &range.from.to_string()]);
    pg_waldump.args(["--end", &range.to.to_string()]);
    pg_waldump.args(options);
    pg_waldump.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = programs.spawn(pg_waldump)?;
    let stderr = child.stderr.take().map(|stderr| {
        std::thread::spawn(move || std::io::read_to_string(stderr).unwrap_or_default())
    });
    let mut seen = false;
    if let Some(stdout) = child.stdout.take() {
        let mut lines = BufReader::new(stdout);
        let mut line = Vec::new();
        while matches!(lines.read_until(b'\n', &mut line), Ok(1..)) {
            if let Some(record) = parse(&String::from_utf8_lossy(&line)) {
                seen = true;
                see(&record);
            }
            line.clear();
        }
    }
    let status = child.wait().map_err(PlayerError::io(
        "wait for",
        std::path::Path::new("pg_waldump"),
    ))?;
    let stderr = stderr
        .and_then(|thread| thread.join().ok())
        .unwrap_or_default();
    // pg_waldump fails at the end of the WAL, which is expected here. It also fails if the
    // range holds no record: then `see` was never called, and callers handle that.
    if status.success() || seen || stderr.contains("could not find a valid record") {
        return Ok(());
    }
    Err(PlayerError::program(
        "pg_waldump",
        &super::client_programs::reason(&stderr, &status),
    ))
}

/// A line such as `rmgr: Heap        len (rec/tot):     54/  8246, tx:  739, lsn:
/// 0/01B7E8F8, prev 0/01B7E8C0, desc: INSERT off 1 …`.
fn parse(line: &str) -> Option<Record<'_>> {
    let rest = line.strip_prefix("rmgr: ")?;
    let (manager, rest) = rest.split_once("len (rec/tot):")?;
    let (lengths, rest) = rest.split_once(',')?;
    let (_, total) = lengths.split_once('/')?;
    let (_, rest) = rest.split_once("lsn: ")?;
    let (lsn, rest) = rest.split_once(',')?;
    let (_, description) = rest.split_once("desc: ")?;
    Some(Record {
        start: lsn.parse().ok()?,
        length: total.trim().parse().ok()?,
        manager: manager.trim(),
        description: description.trim_end(),
    })
}

/// Microseconds since 1970 from `COMMIT 2026-01-31 23:59:59.123456 UTC…`, or from
/// `COMMIT_PREPARED`, which names a transaction before the time.
fn commit_time(description: &str) -> Option<u64> {
    let rest = description.strip_prefix("COMMIT")?;
    let rest = match rest.strip_prefix("_PREPARED") {
        Some(rest) => rest.split_once(": ")?.1,
        None => rest.trim_start(),
    };
    let mut words = rest.split([' ', ';']);
    let mut date = words.next()?.splitn(3, '-').map(str::parse::<i64>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    let (clock, micros) = words.next()?.split_once('.')?;
    let mut clock = clock.splitn(3, ':').map(str::parse::<i64>);
    let (hour, minute, second) = (
        clock.next()?.ok()?,
        clock.next()?.ok()?,
        clock.next()?.ok()?,
    );
    if words.next()? != "UTC" || micros.len() != 6 {
        return None;
    }
    let micros: i64 = micros.parse().ok()?;
    let seconds = days(year, month, day)? * 86_400 + hour * 3600 + minute * 60 + second;
    u64::try_from(seconds * 1_000_000 + micros).ok()
}

/// Days from 1970-01-01 to a date. Years are counted from March on, so that the leap day is
/// the last day of a year.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let (year, month) = match month {
        1 | 2 => (year - 1, month + 9),
        _ => (year, month - 3),
    };
    let before = year * 365 + year / 4 - year / 100 + year / 400;
    let in_year = (month * 153 + 2) / 5 + day - 1;
    // 719,468 days lie between 1 March of year 0 and 1 January 1970.
    Some(before + in_year - 719_468)
}

/// Collects the points of a pace, at most [`MOST_POINTS`].
#[derive(Debug, Default)]
struct Points {
    kept: VecDeque<(Lsn, u64)>,
    /// How many commits are left out between two kept ones.
    stride: usize,
    skipped: usize,
    newest: Option<(Lsn, u64)>,
}

impl Points {
    fn add(&mut self, lsn: Lsn, micros: u64) {
        // A transaction reads the clock before it gets its place in the WAL, so the times are
        // not always in the order of positions.
        let micros = self.newest.map_or(micros, |(_, before)| before.max(micros));
        self.newest = Some((lsn, micros));
        if self.skipped > 0 {
            self.skipped -= 1;
            return;
        }
        self.kept.push_back((lsn, micros));
        self.skipped = self.stride;
        if self.kept.len() >= MOST_POINTS {
            let mut keep = false;
            self.kept.retain(|_| {
                keep = !keep;
                keep
            });
            self.stride = self.stride * 2 + 1;
            self.skipped = self.stride;
        }
    }

    fn finish(mut self) -> Vec<PacePoint> {
        if self.newest != self.kept.back().copied() {
            self.kept.extend(self.newest);
        }
        let first = self.kept.front().map_or(0, |&(_, micros)| micros);
        self.kept
            .into_iter()
            .map(|(lsn, micros)| PacePoint {
                lsn,
                micros: micros - first,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed() {
        let line = "rmgr: Transaction len (rec/tot):     34/    46, tx:        739, lsn: 1/01B7E8F8, prev 0/01B7E8C0, desc: COMMIT 2026-11-21 14:02:13.000123 UTC\n";
        let record = parse(line).unwrap();
        assert_eq!(
            record,
            Record {
                start: "1/1B7E8F8".parse().unwrap(),
                length: 46,
                manager: "Transaction",
                description: "COMMIT 2026-11-21 14:02:13.000123 UTC",
            }
        );
        assert_eq!(commit_time(record.description), Some(1_795_269_733_000_123));
        for line in [
            "",
            "rmgr: Heap",
            "rmgr: X len (rec/tot): 1/x, lsn: 0/0, desc: ",
        ] {
            assert!(parse(line).is_none(), "{line}");
        }
    }

    #[test]
    fn commit_times() {
        for (text, micros) in [
            ("COMMIT 1970-01-01 00:00:00.000000 UTC", Some(0)),
            (
                "COMMIT 2000-02-29 23:59:59.000001 UTC; inval msgs: catcache 1",
                Some(951_868_799_000_001),
            ),
            (
                "COMMIT_PREPARED 745: 2000-03-01 00:00:00.000000 UTC; rels: base/1/2",
                Some(951_868_800_000_000),
            ),
            ("ABORT 2000-03-01 00:00:00.000000 UTC", None),
            ("COMMIT 2000-03-01 00:00:00.000000 CET", None),
            ("COMMIT 2000-13-01 00:00:00.000000 UTC", None),
            ("COMMIT", None),
        ] {
            assert_eq!(commit_time(text), micros, "{text}");
        }
    }

    #[test]
    fn a_pace_is_thinned_out_and_keeps_its_ends() {
        let mut points = Points::default();
        for n in 1..=200_000_u64 {
            // Every other commit took its time a little before its neighbour's.
            points.add(Lsn::from(n * 8), 100 + n * 10 - (n % 2) * 15);
        }
        let pace = points.finish();
        assert!(
            (10_000..=MOST_POINTS).contains(&pace.len()),
            "{}",
            pace.len()
        );
        assert_eq!(pace[0].micros, 0);
        assert_eq!(pace[0].lsn, Lsn::from(8));
        assert_eq!(pace.last().unwrap().lsn, Lsn::from(1_600_000));
        assert!(pace.is_sorted_by(|a, b| a.lsn < b.lsn && a.micros <= b.micros));
    }
}
