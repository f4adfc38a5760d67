//! The server programs of one PostgreSQL major, from the distribution's package.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use lockstep_service::postgres::{self, PACKAGES, SUPPORTED};

use crate::{LabError, Result};

/// Programs that the lab runs.
const NEEDED: [&str; 4] = ["postgres", "initdb", "pg_basebackup", "pgbench"];

/// A supported PostgreSQL major.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Major(u32);

impl Major {
    pub fn get(self) -> u32 {
        self.0
    }
}

impl FromStr for Major {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self> {
        match text.parse() {
            Ok(major) if SUPPORTED.contains(&major) => Ok(Self(major)),
            _ => Err(LabError::UnsupportedMajor(text.to_owned())),
        }
    }
}

impl fmt::Display for Major {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An installed server package.
#[derive(Debug, Clone)]
pub struct Package {
    major: Major,
    bin: PathBuf,
}

impl Package {
    /// Finds the package. PATH is never searched: it might lead to the programs of another
    /// major, or to a wrapper that talks to the machine's own clusters.
    pub fn find(major: Major) -> Result<Self> {
        let found = postgres::packaged(Path::new(PACKAGES), major.get(), &NEEDED);
        let bin = found.map_err(|missing| LabError::MissingPackage {
            major: major.get(),
            missing,
        })?;
        Ok(Self { major, bin })
    }

    /// The newest package that is installed. If none is, the error names the oldest.
    pub fn newest() -> Result<Self> {
        let mut found = SUPPORTED.rev().map(|major| Self::find(Major(major)));
        let newest = found.find(|package| package.is_ok());
        newest.unwrap_or_else(|| Self::find(Major(*SUPPORTED.start())))
    }

    pub fn major(&self) -> Major {
        self.major
    }

    /// The full path of one of the package's programs.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    pub fn bin(&self) -> &Path {
        &self.bin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn majors_outside_15_to_19_are_refused() {
        for text in ["14", "20", "0", "-1", "", "15.3", "abc", "99999999999"] {
            assert!(text.parse::<Major>().is_err(), "{text}");
        }
        for major in SUPPORTED {
            assert_eq!(major.to_string().parse::<Major>().unwrap().get(), major);
        }
    }
}
