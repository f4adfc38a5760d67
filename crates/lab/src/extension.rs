//! The staged extension: the result of `make install DESTDIR=stage`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::account::Account;
use crate::package::Major;
use crate::{LabError, Result};

/// From this major on PostgreSQL itself searches several folders for control files
/// (`extension_control_path`). Before, only Debian's packages do (`extension_destdir`).
const OWN_CONTROL_PATH: u32 = 18;

/// Folder of the copy, in the run folder.
const COPY: &str = "extension";

/// A copy of the staged extension that servers can read.
#[derive(Debug, Clone)]
pub struct StagedExtension {
    root: PathBuf,
    major: Major,
}

impl StagedExtension {
    /// Copies `stage` into the run folder: the source tree may be in a folder that the
    /// servers' account cannot enter.
    pub(crate) fn copy(
        stage: &Path,
        major: Major,
        run_folder: &Path,
        account: &Account,
    ) -> Result<Self> {
        let root = run_folder.join(COPY);
        for needed in [
            library_folder(stage, major).join("lockstep.so"),
            share_folder(stage, major).join("extension/lockstep.control"),
        ] {
            if !needed.is_file() {
                return Err(LabError::MissingStage(needed));
            }
        }
        copy_tree(stage, &root, account)?;
        Ok(Self { root, major })
    }

    /// Settings with which a server finds the extension's files, without loading it.
    pub fn paths(&self) -> [(String, String); 2] {
        let library = library_folder(&self.root, self.major);
        let libraries = format!("{}:$libdir", library.display());
        let control = if self.major.get() >= OWN_CONTROL_PATH {
            let folder = share_folder(&self.root, self.major);
            (
                "extension_control_path".to_owned(),
                format!("{}:$system", folder.display()),
            )
        } else {
            (
                "extension_destdir".to_owned(),
                self.root.display().to_string(),
            )
        };
        [("dynamic_library_path".to_owned(), libraries), control]
    }
}

fn library_folder(root: &Path, major: Major) -> PathBuf {
    root.join(format!("usr/lib/postgresql/{major}/lib"))
}

fn share_folder(root: &Path, major: Major) -> PathBuf {
    root.join(format!("usr/share/postgresql/{major}"))
}

fn copy_tree(from: &Path, to: &Path, account: &Account) -> Result<()> {
    fs::create_dir_all(to).map_err(LabError::io("create", to))?;
    account.own(to)?;
    for entry in fs::read_dir(from).map_err(LabError::io("read", from))? {
        let entry = entry.map_err(LabError::io("read", from))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy_tree(&source, &target, account)?;
        } else {
            fs::copy(&source, &target).map_err(LabError::io("copy", &source))?;
            account.own(&target)?;
        }
    }
    Ok(())
}
