//! Small files, of which some must not be readable by others: keys, passwords.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

/// Largest file that is read, in bytes.
const LARGEST_FILE: u64 = 1024 * 1024;

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {what} {}: {source}", path.display())]
    Read {
        /// What it is.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Others could read it.
    #[error(
        "{what} {} has mode {mode:04o} and owner {owner}: it must belong to the user that runs this, with mode 0600 or less, or to root with 0640 or less",
        path.display()
    )]
    Permissions {
        /// What it is.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
        /// Its owner's number.
        owner: u32,
    },
}

/// A file that everybody may read.
pub fn read(path: &Path, what: &'static str) -> Result<Vec<u8>, FileError> {
    read_if(path, what, |_| Ok(()))
}

/// A file that others must not be able to read.
pub fn read_secret(path: &Path, what: &'static str) -> Result<Vec<u8>, FileError> {
    read_if(path, what, |file| may_hold_secret(path, what, file))
}

fn read_if(
    path: &Path,
    what: &'static str,
    check: impl FnOnce(&File) -> Result<(), FileError>,
) -> Result<Vec<u8>, FileError> {
    let failed = |source| FileError::Read {
        what,
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(failed)?;
    check(&file)?;
    let mut text = Vec::new();
    file.take(LARGEST_FILE)
        .read_to_end(&mut text)
        .map_err(failed)?;
    Ok(text)
}

/// The same rule as PostgreSQL's for keys, for the file that is open.
fn may_hold_secret(path: &Path, what: &'static str, file: &File) -> Result<(), FileError> {
    let about = file.metadata().map_err(|source| FileError::Read {
        what,
        path: path.to_owned(),
        source,
    })?;
    let mode = about.mode() & 0o7777;
    let ours = about.uid() == geteuid().as_raw() && mode & 0o077 == 0;
    let roots = about.uid() == 0 && mode & 0o037 == 0;
    match ours || roots {
        true => Ok(()),
        false => Err(FileError::Permissions {
            what,
            path: path.to_owned(),
            mode,
            owner: about.uid(),
        }),
    }
}
