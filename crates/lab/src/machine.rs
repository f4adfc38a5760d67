//! The machine that a measurement was made on, as text.

use std::fs;
use std::path::Path;

use lockstep_service::clock::unix_ms;
use lockstep_service::words::date;

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
    date::iso(unix_ms())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_one_line() {
        let text = describe(Path::new("/tmp"), &Pinning::detect());
        assert!(!text.contains('\n') && text.contains("Linux"), "{text}");
    }
}
