//! A lab: one run folder, the servers in it, and the promise that all of it goes away.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::account::Account;
use crate::data_folder::Origin;
use crate::extension::StagedExtension;
use crate::guard::{self, Guard, ReaperProgram};
use crate::launch::Launcher;
use crate::package::{Major, Package};
use crate::pinning::Pinning;
use crate::server::{Server, Settings};
use crate::{LabError, Result, Role, run_folder};

#[derive(Debug, Clone)]
pub struct LabOptions {
    pub major: Major,
    /// The staged extension; None for stock servers only.
    pub stage: Option<PathBuf>,
    /// The program that cleans up after a SIGKILL.
    pub reaper: ReaperProgram,
    /// Free disk space needed, in megabytes.
    pub space_mb: u64,
    /// Give each side a core of its own, if this process may use two.
    pub pinned: bool,
}

/// A run folder and what is needed to make servers in it.
///
/// Drop servers before the lab: dropping the lab ends every server that still runs.
#[derive(Debug)]
pub struct Lab {
    guard: Arc<Guard>,
    launcher: Arc<Launcher>,
    package: Package,
    extension: Option<StagedExtension>,
    /// Settings of every server that has no others.
    pub(crate) settings: Settings,
    pub(crate) origin: Arc<Origin>,
}

impl Lab {
    /// Creates the run folder. Nothing is created if a program, an account or the staged extension
    /// is missing.
    pub fn new(options: &LabOptions) -> Result<Self> {
        let package = Package::find(options.major)?;
        let account = Account::choose()?;
        let pinning = match options.pinned {
            true => Pinning::detect(),
            false => Pinning::detect().unpinned(),
        };
        let folder = run_folder::create(&account, options.space_mb)?;
        let launcher = Arc::new(Launcher::new(account, pinning, folder));
        let guard = Arc::new(Guard::new(Arc::clone(&launcher), &options.reaper)?);
        let extension = options
            .stage
            .as_deref()
            .map(|stage| {
                StagedExtension::copy(stage, options.major, launcher.folder(), launcher.account())
            })
            .transpose()?;
        Ok(Self {
            guard,
            launcher,
            package,
            extension,
            settings: Settings::new(),
            origin: Arc::new(Origin::Initdb),
        })
    }

    /// On SIGINT, SIGTERM or SIGHUP ends everything, then calls `exit` with the signal's
    /// number on a thread of its own. Callers must not report errors after that: see
    /// [`guard::asked_to_end`].
    pub fn end_on_signals(&self, exit: impl FnOnce(i32) + Send + 'static) -> Result<()> {
        guard::end_on_signals(Arc::clone(&self.guard), exit)
    }

    pub fn folder(&self) -> &Path {
        self.launcher.folder()
    }

    pub fn package(&self) -> &Package {
        &self.package
    }

    pub fn account(&self) -> &Account {
        self.launcher.account()
    }

    pub fn pinning(&self) -> &Pinning {
        self.launcher.pinning()
    }

    pub fn launcher(&self) -> &Arc<Launcher> {
        &self.launcher
    }

    /// Creates and starts a primary. `port` is refused if it is in use; None chooses one.
    pub fn primary(&self, name: &str, port: Option<u16>, settings: &Settings) -> Result<Server> {
        let mut server = self.server(Role::Primary, name, port)?;
        server.init()?;
        server.set(settings.clone())?;
        server.start()?;
        Ok(server)
    }

    /// Creates and starts a primary that may use every core: for work that is not measured.
    pub fn unpinned_primary(&self, name: &str, settings: &Settings) -> Result<Server> {
        let mut server = self.server(Role::Primary, name, None)?;
        server.unpin();
        server.init()?;
        server.set(settings.clone())?;
        server.start()?;
        Ok(server)
    }

    /// Creates and starts a primary of this major, which may be another than the lab's: such a server
    /// does not find the staged extension.
    pub fn primary_of(&self, major: Major, name: &str, settings: &Settings) -> Result<Server> {
        let mut server = self.server_of(Package::find(major)?, Role::Primary, name, None)?;
        server.init()?;
        server.set(settings.clone())?;
        server.start()?;
        Ok(server)
    }

    /// Copies a running primary and starts the copy as its standby, with the primary's
    /// settings and `settings` on top.
    pub fn standby(&self, primary: &Server, name: &str, settings: &Settings) -> Result<Server> {
        let server = self.server(Role::Standby, name, None)?;
        self.start_standby(server, primary, settings)
    }

    pub fn start_standby(
        &self,
        mut server: Server,
        primary: &Server,
        settings: &Settings,
    ) -> Result<Server> {
        let fsync = settings
            .get("fsync")
            .or_else(|| primary.settings.get("fsync"));
        server.back_up(primary, fsync.is_none_or(|fsync| fsync != "off"))?;
        server.set(primary.settings.clone())?;
        server.set(settings.clone())?;
        server.start()?;
        Ok(server)
    }

    pub fn server(&self, role: Role, name: &str, port: Option<u16>) -> Result<Server> {
        self.server_of(self.package.clone(), role, name, port)
    }

    fn server_of(
        &self,
        package: Package,
        role: Role,
        name: &str,
        port: Option<u16>,
    ) -> Result<Server> {
        let has_lab_major = package.major() == self.package.major();
        let mut server = Server::new(
            Arc::clone(&self.launcher),
            package,
            Arc::clone(&self.origin),
            role,
            name,
            port,
        )?;
        server.settings.extend(self.settings.clone());
        if let Some(extension) = self.extension.as_ref().filter(|_| has_lab_major) {
            server.settings.extend(extension.paths());
        }
        Ok(server)
    }

    /// Writes a file that the servers' account can read into the run folder.
    pub fn write_file(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.folder().join(name);
        self.launcher
            .create_file(&path)?
            .write_all(text.as_bytes())
            .map_err(LabError::io("write", &path))?;
        Ok(path)
    }

    /// Leaves these servers and the run folder to the user.
    pub fn keep(self, servers: Vec<Server>) {
        for mut server in servers {
            server.leave_running();
        }
        self.guard.keep();
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // The signal thread holds the guard as well, so this cannot be left to its own drop.
        self.guard.finish();
    }
}
