//! Lists the relation files of a data folder, and the few others that must be equal.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use lockstep_lab::package::Major;

use crate::error::oracle::{OracleError, Result};
use crate::oracle::files::{Fork, Relation, RelationFile, RelationFork};

/// Files of no relation that are compared byte by byte.
const WHOLE_FILES: [&str; 2] = ["PG_VERSION", "pg_filenode.map"];

#[derive(Debug, Default)]
pub(crate) struct FolderFiles {
    /// Segments of each fork, by segment number.
    pub forks: BTreeMap<RelationFork, BTreeMap<u32, PathBuf>>,
    /// Other files by their path in the folder.
    pub whole: BTreeMap<String, PathBuf>,
}

impl FolderFiles {
    /// Lists the files in `global`, `base` and every tablespace of `folder`.
    pub fn walk(folder: &Path, major: Major) -> Result<Self> {
        let mut found = Self::default();
        found.directory(folder, "global")?;
        for database in names(&folder.join("base"))? {
            found.database(folder, &format!("base/{database}"), &database)?;
        }
        let version = format!("PG_{major}_");
        for tablespace in names(&folder.join("pg_tblspc"))? {
            let path = format!("pg_tblspc/{tablespace}");
            for own in names(&folder.join(&path))? {
                if !own.starts_with(&version) {
                    continue;
                }
                for database in names(&folder.join(&path).join(&own))? {
                    found.database(folder, &format!("{path}/{own}/{database}"), &database)?;
                }
            }
        }
        Ok(found)
    }

    fn database(&mut self, folder: &Path, path: &str, name: &str) -> Result<()> {
        // Folders with other names hold temporary files.
        if name.bytes().all(|byte| byte.is_ascii_digit()) {
            self.directory(folder, path)?;
        }
        Ok(())
    }

    fn directory(&mut self, folder: &Path, path: &str) -> Result<()> {
        for name in names(&folder.join(path))? {
            let relative = format!("{path}/{name}");
            let absolute = folder.join(&relative);
            if let Some(file) = RelationFile::at(&relative) {
                let segments = self.forks.entry(file.fork).or_default();
                segments.insert(file.segment, absolute);
            } else if WHOLE_FILES.contains(&name.as_str()) {
                self.whole.insert(relative, absolute);
            }
        }
        Ok(())
    }

    /// Unlogged relations, which have an init fork. Their other forks are not compared: replay
    /// does not write them.
    pub fn unlogged(&self) -> BTreeSet<Relation> {
        self.forks
            .keys()
            .filter(|fork| fork.fork == Fork::Init)
            .map(|fork| fork.relation)
            .collect()
    }
}

/// Names in a folder; none if a server has removed the folder meanwhile.
fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(OracleError::io("read", folder))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(OracleError::io("read", folder))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}
