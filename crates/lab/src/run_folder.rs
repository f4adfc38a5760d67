//! The private folder that holds everything a lab writes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::statvfs::statvfs;

use crate::account::Account;
use crate::{LabError, Result};

/// The beginning of every run folder's name; the rest is random.
pub(crate) const PREFIX: &str = "lockstep-";

/// A socket's path must fit `sockaddr_un` (108 bytes with the zero at its end); the longest
/// name in the folder is `.s.PGSQL.NNNNN.lock`.
const LONGEST_SOCKET_PATH: usize = 99;
const LONGEST_SOCKET_NAME: usize = "/.s.PGSQL.65535.lock".len();

/// Creates a fresh folder (mode 0700, owned by the account) with at least `space_mb`
/// megabytes free, and returns it.
///
/// The user's temporary folder may not do: its path may be too long for sockets, the
/// account may not enter a folder above it, or it may be a small memory file system. Then
/// `/tmp` and `/var/tmp` are tried.
pub(crate) fn create(account: &Account, space_mb: u64) -> Result<PathBuf> {
    let mut parents = vec![std::env::temp_dir()];
    for fallback in ["/tmp", "/var/tmp"] {
        if !parents.iter().any(|parent| parent == Path::new(fallback)) {
            parents.push(PathBuf::from(fallback));
        }
    }
    let mut refusals = Vec::new();
    for parent in parents {
        match create_in(&parent, account, space_mb) {
            Ok(folder) => return Ok(folder),
            Err(reason) => refusals.push(format!("{} {reason}", parent.display())),
        }
    }
    Err(LabError::NoRunFolder(refusals.join(", ")))
}

fn create_in(
    parent: &Path,
    account: &Account,
    space_mb: u64,
) -> std::result::Result<PathBuf, String> {
    let stat = statvfs(parent).map_err(|error| format!("cannot be read ({error})"))?;
    let free_mb = stat.blocks_available() as u64 * stat.fragment_size() as u64 / 1_000_000;
    if free_mb < space_mb {
        return Err(format!("has {free_mb} MB free of {space_mb} MB needed"));
    }
    let folder = tempfile::Builder::new()
        .prefix(PREFIX)
        .tempdir_in(parent)
        .map_err(|error| format!("refuses a new folder ({error})"))?;
    if folder.path().as_os_str().len() + LONGEST_SOCKET_NAME > LONGEST_SOCKET_PATH {
        return Err("has too long a path for sockets".to_owned());
    }
    fs::set_permissions(folder.path(), Permissions::from_mode(0o700))
        .map_err(|error| format!("refuses permissions ({error})"))?;
    account
        .own(folder.path())
        .map_err(|error| error.to_string())?;
    if !can_enter(folder.path(), account) {
        return Err(format!("cannot be entered by {}", account.name()));
    }
    // From here on the guard removes the folder, on every exit path. TempDir would remove it
    // only on some of them.
    Ok(folder.keep())
}

fn can_enter(folder: &Path, account: &Account) -> bool {
    let mut test = Command::new("/usr/bin/test");
    test.arg("-w").arg(folder).current_dir("/");
    test.stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    account.run_as(&mut test);
    test.status().is_ok_and(|status| status.success())
}
