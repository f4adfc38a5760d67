//! The machine that a measurement was made on, as text.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::pinning::Pinning;

/// CPU, cores, memory, kernel, distribution and the run folder's file system, in one line.
pub fn describe(run_folder: &Path, pinning: &Pinning) -> String {
    format!(
        "{}, data on {}, {}",
        describe_system(),
        file_system(run_folder).unwrap_or_else(|| "an unknown file system".to_owned()),
        pinning.describe(),
    )
}

/// CPU, cores, memory, kernel and distribution, in one line.
pub fn describe_system() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "{}, {cores} cores, {} GB, Linux {}, {}",
        field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown CPU".to_owned()),
        memory_gb(),
        read("/proc/sys/kernel/osrelease"),
        distribution(),
    )
}

fn read(path: &str) -> String {
    fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn field(path: &str, name: &str) -> Option<String> {
    read(path).lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

fn memory_gb() -> u64 {
    let kb = field("/proc/meminfo", "MemTotal")
        .and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0);
    (kb + 524_288) / 1_048_576
}

fn distribution() -> String {
    read("/etc/os-release")
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))
        .map_or_else(
            || "unknown".to_owned(),
            |name| name.trim_matches('"').to_owned(),
        )
}

/// Type of the file system with the longest mount point above `path`. It matters because
/// fsync costs nothing on a memory file system.
fn file_system(path: &Path) -> Option<String> {
    let mounts = read("/proc/mounts");
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            Some((fields.next()?, fields.next()?))
        })
        .filter(|(point, _)| path.starts_with(point))
        .max_by_key(|(point, _)| point.len())
        .map(|(_, kind)| kind.to_owned())
}

/// Now, as `2026-01-31T23:59:59Z`.
pub fn date() -> String {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    utc(seconds)
}

/// Seconds since 1970 as date and time.
fn utc(seconds: u64) -> String {
    let (mut days, second) = (seconds / 86_400, seconds % 86_400);
    let leap = |year: u64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!(
        "{year:04}-{month:02}-{:02}T{:02}:{:02}:{:02}Z",
        days + 1,
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_767_225_600, "2026-01-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }

    #[test]
    fn the_machine_is_one_line() {
        let text = describe(Path::new("/tmp"), &Pinning::detect());
        assert!(!text.contains('\n') && text.contains("Linux"), "{text}");
    }
}
