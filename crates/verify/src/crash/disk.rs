//! A disk that can lose power: an ext4 file system in a file of the run folder.
//!
//! To cut the power, the file system is told to shut down without writing out its journal.
//! Nothing reaches the file from then on: dirty pages and all metadata since the last journal
//! commit are lost. Mounting it again replays the journal, as after a real power cut. What the
//! file system had already written to the file stays there. A real disk could also lose part
//! of its own cache or tear a sector.
//!
//! [`lockstep_lab::sweep`] unmounts these file systems with the run folder, on every exit path.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_lab::cluster::Lab;
use lockstep_lab::error::Role;
use lockstep_lab::launch::Launcher;
use lockstep_lab::server::{Server, Settings};
use lockstep_lab::sweep::UMOUNT;
use nix::unistd::geteuid;

use crate::Result;
use crate::crash::CrashError;

const MKFS: &str = "/usr/sbin/mkfs.ext4";
pub(crate) const MOUNT: &str = "/usr/bin/mount";
const PERL: &str = "/usr/bin/perl";
const CP: &str = "/usr/bin/cp";

/// Options that keep metadata from reaching the disk without a sync: no journal commit for
/// 300 s, and no early allocation when a file is replaced.
const OPTIONS: &str = "loop,noatime,commit=300,noauto_da_alloc";

/// A Perl script that calls EXT4_IOC_SHUTDOWN, `_IOR('X', 125, __u32)`, with the flag for "do
/// not write the log out". No program for that is always installed, and a call from Rust would
/// need unsafe code.
const CUT: &str = "open(my $d, '<', $ARGV[0]) or die \"open: $!\\n\"; \
     my $flag = pack('L', 2); ioctl($d, 0x8004587D, $flag) or die \"shutdown: $!\\n\";";

/// How long a killed server's processes may keep the file system busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long the loop device may take to disappear after its file system is unmounted.
const RELEASE: Duration = Duration::from_secs(2);

/// A server's data folder on a file system of its own.
#[derive(Debug)]
pub struct PowerDisk {
    launcher: Arc<Launcher>,
    /// The file that is mounted. [`PowerDisk::copied`] replaces it.
    image: Mutex<PathBuf>,
    folder: PathBuf,
}

impl PowerDisk {
    /// Why power loss cannot be emulated on this machine; None if it can.
    pub fn unavailable() -> Option<String> {
        if !geteuid().is_root() {
            return Some("only root may mount".to_owned());
        }
        if !Path::new("/dev/loop-control").exists() {
            return Some("there are no loop devices".to_owned());
        }
        [MKFS, MOUNT, UMOUNT, PERL]
            .into_iter()
            .find(|program| !Path::new(program).exists())
            .map(|program| format!("{program} is not installed"))
    }

    /// Creates the disk and mounts it on a new folder of the run folder.
    fn create(lab: &Lab, name: &str, megabytes: u64) -> Result<Self> {
        if let Some(reason) = Self::unavailable() {
            return Err(CrashError::Unavailable(reason).into());
        }
        let image = lab.folder().join(format!("{name}.disk"));
        let disk = Self {
            launcher: Arc::clone(lab.launcher()),
            image: Mutex::new(image.clone()),
            folder: lab.folder().join(name),
        };
        File::create(&image)
            .and_then(|file| file.set_len(megabytes * 1_000_000))
            .map_err(disk.failed("create", &image))?;
        fs::create_dir(&disk.folder).map_err(disk.failed("create", &disk.folder))?;
        disk.run(MKFS, &[&"-q", &"-F", &"-m", &"0", &image])?;
        disk.mount_again()?;
        // PostgreSQL's programs need an empty folder.
        let lost = disk.folder.join("lost+found");
        fs::remove_dir(&lost).map_err(disk.failed("remove", &lost))?;
        fs::set_permissions(&disk.folder, Permissions::from_mode(0o700))
            .map_err(disk.failed("set permissions of", &disk.folder))?;
        disk.launcher.account().own(&disk.folder)?;
        Ok(disk)
    }

    /// Where the disk is mounted: the server's data folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Cuts the power. Every read and write fails from now on.
    pub fn cut(&self) -> Result<()> {
        self.run(PERL, &[&"-e", &CUT, &self.folder])
    }

    /// Restores the power: mounts the disk again, which replays the journal. Waits until no
    /// process has a file open on it.
    pub fn mount_again(&self) -> Result<()> {
        let started = Instant::now();
        while is_mounted(&self.folder) {
            let unmounted = self.run(UMOUNT, &[&self.folder]);
            if unmounted.is_err() && started.elapsed() > PATIENCE {
                return unmounted;
            }
            thread::sleep(Duration::from_millis(5));
        }
        let mut image = self.image.lock().unwrap_or_else(PoisonError::into_inner);
        let unmounted = Instant::now();
        while has_loop_device(&image) {
            if unmounted.elapsed() > RELEASE {
                *image = self.copied(&image)?;
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
        self.run(MOUNT, &[&"-o", &OPTIONS, &*image, &self.folder])
    }

    /// Copies the disk's file. A mount namespace created meanwhile (by a container or `unshare`)
    /// has a copy of the mount, which keeps the shut-down file system alive; mounting the same
    /// file again would return that file system. A copy of the file is a new file system.
    fn copied(&self, image: &Path) -> Result<PathBuf> {
        let mut name = image.as_os_str().to_owned();
        name.push("+");
        let copy = PathBuf::from(name);
        self.run(CP, &[&"--sparse=always", &image, &copy])?;
        fs::remove_file(image).map_err(self.failed("remove", image))?;
        Ok(copy)
    }

    fn run(&self, program: &str, args: &[&dyn AsRef<std::ffi::OsStr>]) -> Result<()> {
        let mut command = self.launcher.command_as_ourselves(program);
        command.args(args.iter().map(|arg| arg.as_ref()));
        Ok(self.launcher.run(command)?)
    }

    fn failed<'a>(
        &self,
        what: &'static str,
        path: &'a Path,
    ) -> impl FnOnce(io::Error) -> CrashError + use<'a> {
        move |source| CrashError::Disk {
            what,
            path: path.to_path_buf(),
            source,
        }
    }
}

fn has_loop_device(image: &Path) -> bool {
    lockstep_lab::sweep::loop_devices()
        .iter()
        .any(|(_, file)| file == image)
}

fn is_mounted(folder: &Path) -> bool {
    lockstep_lab::sweep::mounts(folder)
        .iter()
        .any(|mount| mount == folder)
}

/// Like [`Lab::standby`], with its data on a disk that can lose power, and fsync on.
pub fn standby_on_disk(
    lab: &Lab,
    primary: &Server,
    name: &str,
    settings: &Settings,
    megabytes: u64,
) -> Result<(Server, PowerDisk)> {
    let server = lab.server(Role::Standby, name, None)?;
    let disk = PowerDisk::create(lab, name, megabytes)?;
    let mut settings = settings.clone();
    settings.insert("fsync".to_owned(), "on".to_owned());
    let server = lab.start_standby(server, primary, &settings)?;
    Ok((server, disk))
}
