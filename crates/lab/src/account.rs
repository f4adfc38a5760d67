//! The unprivileged account that runs servers and load.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::unistd::{Gid, Uid, User, getegid, geteuid};

use crate::{LabError, Result};

/// Accounts that root runs servers as, best first.
const CANDIDATES: [&str; 2] = ["postgres", "nobody"];

/// The account that servers and load run as.
#[derive(Debug, Clone)]
pub struct Account {
    uid: Uid,
    gid: Gid,
    name: String,
    /// This process is root, so every child must switch to the account.
    switch: bool,
}

impl Account {
    /// Chooses `postgres` or `nobody` if this process is root, since PostgreSQL refuses to run as
    /// root; otherwise this process's own account.
    pub fn choose() -> Result<Self> {
        let euid = geteuid();
        if !euid.is_root() {
            let name = User::from_uid(euid)
                .ok()
                .flatten()
                .map_or_else(|| euid.to_string(), |user| user.name);
            return Ok(Self {
                uid: euid,
                gid: getegid(),
                name,
                switch: false,
            });
        }
        CANDIDATES
            .iter()
            .find_map(|name| User::from_name(name).ok().flatten())
            .filter(|user| !user.uid.is_root())
            .map(|user| Self {
                uid: user.uid,
                gid: user.gid,
                name: user.name,
                switch: true,
            })
            .ok_or(LabError::NoAccount)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// True when the account is not the one that runs this process.
    pub fn is_other(&self) -> bool {
        self.switch
    }

    /// Makes `command` run as the account, without the supplementary groups of root.
    pub(crate) fn run_as(&self, command: &mut Command) {
        if self.switch {
            command.uid(self.uid.as_raw()).gid(self.gid.as_raw());
        }
    }

    /// Gives one file or folder to the account.
    pub fn own(&self, path: &Path) -> Result<()> {
        if self.switch {
            chown(path, Some(self.uid.as_raw()), Some(self.gid.as_raw()))
                .map_err(LabError::io("change the owner of", path))?;
        }
        Ok(())
    }
}
