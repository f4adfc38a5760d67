//! New data folders: made by initdb, or copied from ones that initdb made earlier.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Result;
use crate::address::SUPERUSER;
use crate::launch::Launcher;
use crate::package::Package;

const CP: &str = "/usr/bin/cp";

/// Finds the template of a number for a package's major, or makes it.
pub(crate) type Template = fn(&Launcher, &Package, usize) -> Result<PathBuf>;

/// Where a lab's new data folders come from.
#[derive(Debug)]
pub(crate) enum Origin {
    /// Each is made by initdb.
    Initdb,
    /// The lab's nth is a copy of the nth template of its major. So clusters of one lab differ in
    /// their system identifiers, by which doctor, the relay and the player tell them apart;
    /// clusters of two labs may have the same. The number counts the lab's folders.
    Templates(Template, AtomicUsize),
}

impl Origin {
    pub(crate) fn templates(template: Template) -> Self {
        Self::Templates(template, AtomicUsize::new(0))
    }

    /// Makes `data`, for a server that the launcher will start.
    pub(crate) fn make(&self, launcher: &Launcher, package: &Package, data: &Path) -> Result<()> {
        match self {
            Self::Initdb => initdb(launcher, package, data),
            Self::Templates(template, made) => {
                let number = made.fetch_add(1, Ordering::SeqCst);
                let mut cp = launcher.command(CP);
                cp.args(["--archive", "--reflink=auto"]);
                cp.arg(template(launcher, package, number)?).arg(data);
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
