//! Majors of PostgreSQL, and where a major's programs are.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// Majors that Lockstep supports.
pub const SUPPORTED: RangeInclusive<u32> = 15..=19;

/// Debian's packages install each major in a folder of its own below this one.
pub const PACKAGES: &str = "/usr/lib/postgresql";

/// The folder with the programs of a major below `packages`, as in [`with_programs`].
pub fn packaged(packages: &Path, major: u32, needed: &[&str]) -> Result<PathBuf, PathBuf> {
    with_programs(packages.join(major.to_string()).join("bin"), needed)
}

/// The folder, if all programs that are needed are there; else the path of one that is missing.
pub fn with_programs(folder: PathBuf, needed: &[&str]) -> Result<PathBuf, PathBuf> {
    let mut paths = needed.iter().map(|program| folder.join(program));
    match paths.find(|path| !path.is_file()) {
        Some(missing) => Err(missing),
        None => Ok(folder),
    }
}
