//! New data folders: made by initdb, or copied from ones that initdb made earlier.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::launch::Launcher;
use crate::package::Package;
use crate::server::SUPERUSER;
use crate::{Result, for_tests};

const CP: &str = "/usr/bin/cp";

/// Where a lab's new data folders come from.
#[derive(Debug)]
pub(crate) enum Origin {
    /// Each is made by initdb.
    Initdb,
    /// The lab's nth is a copy of the nth template of its major ([`for_tests`]). So clusters of
    /// one lab differ in their system identifiers, by which doctor, the relay and the player
    /// tell them apart; clusters of two labs may have the same.
    Templates(AtomicUsize),
}

impl Origin {
    pub(crate) fn templates() -> Self {
        Self::Templates(AtomicUsize::new(0))
    }

    /// Makes `data`, for a server that the launcher will start.
    pub(crate) fn make(&self, launcher: &Launcher, package: &Package, data: &Path) -> Result<()> {
        match self {
            Self::Initdb => initdb(launcher, package, data),
            Self::Templates(made) => {
                let number = made.fetch_add(1, Ordering::SeqCst);
                let mut cp = launcher.command(CP);
                cp.args(["--archive", "--reflink=auto"]);
                cp.arg(for_tests::template(launcher, package, number)?)
                    .arg(data);
                launcher.run(cp)
            }
        }
    }
}

/// C.UTF-8, and no passwords, as the sockets' folder is ours alone.
pub(crate) fn initdb(launcher: &Launcher, package: &Package, data: &Path) -> Result<()> {
    let mut initdb = launcher.command(package.program("initdb"));
    initdb.arg("-D").arg(data);
    initdb.args(["-U", SUPERUSER, "--auth=trust", "--encoding=UTF8"]);
    initdb.args(["--locale=C.UTF-8", "--no-sync", "--no-instructions"]);
    launcher.run(initdb)
}
