//! Reads small files, some of which other users must not be able to read: keys, passwords.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

/// At most this much of a file is read, in bytes.
const LARGEST_FILE: u64 = 1024 * 1024;

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("cannot read {what} {}: {source}", path.display())]
    Read {
        /// What it is.
        what: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// Other users could read the file.
    #[error(
        "{what} {} has mode {mode:04o} and owner {owner}: it must belong to the user that runs this, with mode 0600 or less, or to root with 0640 or less",
        path.display()
    )]
    Permissions {
        /// What it is.
        what: &'static str,
        path: PathBuf,
        mode: u32,
        /// The owner's user id.
        owner: u32,
    },
}

/// Reads a file that every user may read.
pub fn read(path: &Path, what: &'static str) -> Result<Vec<u8>, FileError> {
    read_if(path, what, |_| Ok(()))
}

/// Reads a file that other users must not be able to read.
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

/// Checks the open file by PostgreSQL's rule for private keys.
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
