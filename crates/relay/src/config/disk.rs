//! What a configuration names on disk: is it there, and is it safe there?

use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use lockstep_service::address::Listen;

use super::{Config, ConfigError};

/// Longest configuration file, in bytes.
const LONGEST_FILE: u64 = 1 << 20;

/// Anybody but the owner.
const OTHERS: u32 = 0o077;
/// Anybody outside of owner and group.
const WORLD: u32 = 0o007;
/// Anybody may write, and so rename what is in a folder, unless the folder is sticky.
const WORLD_WRITES: u32 = 0o002;
/// Only owners rename what is in the folder.
const STICKY: u32 = 0o1000;

pub(super) fn read(path: &Path) -> Result<String, ConfigError> {
    let wrong = |reason: String| ConfigError::File {
        path: path.to_owned(),
        reason,
    };
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(LONGEST_FILE + 1).read_to_end(&mut bytes))
        .map_err(|error| wrong(format!("cannot be read: {error}")))?;
    if bytes.len() as u64 > LONGEST_FILE {
        return Err(wrong(format!(
            "is longer than {LONGEST_FILE} bytes: this is no configuration file"
        )));
    }
    String::from_utf8(bytes).map_err(|_| wrong("is not UTF-8 text".to_owned()))
}

/// A file with a password must not be open to everybody.
pub(super) fn check_private(path: &Path) -> Result<(), ConfigError> {
    let open = fs::metadata(path).is_ok_and(|found| found.is_file() && found.mode() & WORLD != 0);
    match open {
        true => Err(ConfigError::File {
            path: path.to_owned(),
            reason: format!(
                "contains a password and is open to every user: chmod 0600 {}",
                path.display()
            ),
        }),
        false => Ok(()),
    }
}

impl Config {
    /// Looks at the folders and files that are named. The spool need not exist yet.
    pub(super) fn check_disk(&self) -> Result<(), ConfigError> {
        let check = |name: &str, result: Result<(), String>| {
            result.map_err(|reason| ConfigError::value(self.place(name), reason))
        };
        check("spool", spool(&self.spool))?;
        if let Listen::Unix { folder, .. } = &self.listen {
            check("listen", existing_folder(folder).map(|_| ()))?;
        }
        if let Some(path) = &self.tls_certificate {
            check("tls_certificate", existing_file(path).map(|_| ()))?;
        }
        if let Some(path) = &self.tls_key {
            check("tls_key", key(path))?;
        }
        Ok(())
    }
}

/// The spool holds every row that was written: nobody else may read it or replace it.
fn spool(path: &Path) -> Result<(), String> {
    let shown = path.display();
    let Some(parent) = path.parent() else {
        return Err(format!(
            "{shown} cannot be the spool: name a folder of its own"
        ));
    };
    let above = existing_folder(parent)?;
    if above.mode() & WORLD_WRITES != 0 && above.mode() & STICKY == 0 {
        return Err(format!(
            "every user can replace what is in {}: chmod o-w {0}, or choose another place",
            parent.display()
        ));
    }
    if !path.exists() {
        return Ok(());
    }
    let found = existing_folder(path)?;
    let me = nix::unistd::geteuid().as_raw();
    if found.uid() != me {
        return Err(format!(
            "{shown} belongs to the user with number {}, the relay runs as {me}: chown it",
            found.uid()
        ));
    }
    match found.mode() & OTHERS {
        0 => Ok(()),
        _ => Err(format!(
            "{shown} is open to others (mode {:04o}): chmod 0700 {shown}",
            found.mode() & 0o7777
        )),
    }
}

/// A private key may be read by its owner, or by a group if it is root's.
fn key(path: &Path) -> Result<(), String> {
    let found = existing_file(path)?;
    let (allowed, mode) = match found.uid() {
        0 => (0o640, "0640"),
        _ => (0o600, "0600"),
    };
    match found.mode() & OTHERS & !allowed {
        0 => Ok(()),
        _ => Err(format!(
            "{} is open to others (mode {:04o}): chmod {mode} {0}",
            path.display(),
            found.mode() & 0o7777
        )),
    }
}

fn existing_folder(path: &Path) -> Result<Metadata, String> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(found),
        Ok(_) => Err(format!("{} is no folder", path.display())),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn existing_file(path: &Path) -> Result<Metadata, String> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => Ok(found),
        Ok(_) => Err(format!("{} is no file", path.display())),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}
