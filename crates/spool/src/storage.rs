//! A folder of files, as the spool needs it.
//!
//! What the spool relies on, and no more: bytes of a file, and its length, are durable once
//! [`SpoolFile::sync`] has returned; names are once [`Storage::sync`] has. Before that any
//! part of it may survive a crash of the machine, in any order.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::statvfs::statvfs;

/// A folder of files.
pub trait Storage: Send + Sync + 'static {
    type File: SpoolFile;

    /// Names of the files, in any order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// A new and empty file; one of that name is emptied.
    fn create(&self, name: &str) -> io::Result<Self::File>;
    /// A file that exists, to read and write.
    fn open(&self, name: &str) -> io::Result<Self::File>;
    /// Gives a file another name; one that has that name is replaced.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file. Whoever has it open can still read it.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes durable which names there are.
    fn sync(&self) -> io::Result<()>;
    /// Bytes that can still be written, what a new file takes beside its content left out; `u64::MAX` if
    /// that is not known. A write may find no room all the same.
    fn free(&self) -> u64 {
        u64::MAX
    }
    /// True only where a test plants a fault in the log over it: the headers of records are not counted
    /// into the room that the beginning of a segment needs.
    fn forgets_headers(&self) -> bool {
        false
    }
}

/// One file. Several threads may use it at once.
pub trait SpoolFile: Send + Sync + 'static {
    /// The file's length in bytes.
    fn length(&self) -> io::Result<u64>;
    /// Fills `into` with what is at `offset`; `UnexpectedEof` if the file ends before.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;
    /// Writes all of `bytes` at `offset`. After an error a part may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Cuts it to `length` bytes.
    fn truncate(&self, length: u64) -> io::Result<()>;
    /// Makes its bytes and its length durable.
    fn sync(&self) -> io::Result<()>;
}

/// Permissions of the folder and of its files: other accounts have no business there.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// Bytes that a new file takes beside its content, at most: the rest of its last block, its entry in the
/// folder.
const FILE_OVERHEAD: u64 = 64 * 1024;

/// A folder of a real file system.
#[derive(Debug, Clone)]
pub struct Folder(PathBuf);

impl Folder {
    /// A folder that is there.
    pub fn new(folder: &Path) -> Self {
        Self(folder.to_owned())
    }
}

impl Storage for Folder {
    type File = File;

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.0)? {
            // A name that is not UTF-8 is none of ours.
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(FILE_MODE)
            .open(self.0.join(name))
    }

    fn open(&self, name: &str) -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.0.join(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.0.join(from), self.0.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.0.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }

    fn free(&self) -> u64 {
        statvfs(&self.0).map_or(u64::MAX, |system| {
            let bytes = system
                .blocks_available()
                .saturating_mul(system.fragment_size());
            bytes.saturating_sub(FILE_OVERHEAD)
        })
    }
}

/// A folder of a real file system, used by one process at a time.
#[derive(Debug)]
pub struct FileStorage {
    folder: Folder,
    _lock: Flock<File>,
}

impl FileStorage {
    /// The file whose lock says that a process uses the folder. It has no content.
    pub const LOCK: &str = "lock";

    /// The folder is created if there is none, and closed to others if it is open to them.
    /// `WouldBlock` if another process uses it.
    pub fn new(folder: &Path) -> io::Result<Self> {
        let known = folder.is_dir();
        DirBuilder::new()
            .recursive(true)
            .mode(FOLDER_MODE)
            .create(folder)?;
        std::fs::set_permissions(folder, Permissions::from_mode(FOLDER_MODE))?;
        if !known {
            if let Some(parent) = folder.parent().filter(|path| !path.as_os_str().is_empty()) {
                File::open(parent)?.sync_all()?;
            }
        }
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .open(folder.join(Self::LOCK))?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, errno)| io::Error::from(errno))?;
        Ok(Self {
            folder: Folder::new(folder),
            _lock: lock,
        })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder.0
    }
}

impl Storage for FileStorage {
    type File = File;

    fn free(&self) -> u64 {
        self.folder.free()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.folder.list()
    }

    fn create(&self, name: &str) -> io::Result<File> {
        self.folder.create(name)
    }

    fn open(&self, name: &str) -> io::Result<File> {
        self.folder.open(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.folder.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.folder.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        self.folder.sync()
    }
}

impl SpoolFile for File {
    fn length(&self) -> io::Result<u64> {
        self.metadata().map(|metadata| metadata.len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(into, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_folder_is_closed_to_others_and_used_by_one() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("group/spool");
        let storage = FileStorage::new(&folder).unwrap();
        assert_eq!(mode(&folder), 0o700);
        let file = storage.create("a").unwrap();
        assert_eq!(mode(&folder.join("a")), 0o600);
        let second = FileStorage::new(&folder).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::WouldBlock);
        drop((storage, file));
        std::fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        FileStorage::new(&folder).unwrap();
        assert_eq!(mode(&folder), 0o700);
    }

    #[test]
    fn files_do_what_the_spool_asks() {
        let folder = tempfile::tempdir().unwrap();
        let storage = FileStorage::new(folder.path()).unwrap();
        let file = storage.create("a").unwrap();
        SpoolFile::write_at(&file, 0, b"0123456789").unwrap();
        file.truncate(6).unwrap();
        SpoolFile::write_at(&file, 6, b"ab").unwrap();
        SpoolFile::sync(&file).unwrap();
        assert_eq!(file.length().unwrap(), 8);
        storage.rename("a", "b").unwrap();
        Storage::sync(&storage).unwrap();
        let mut names = storage.list().unwrap();
        names.sort();
        assert_eq!(names, ["b", FileStorage::LOCK]);
        let opened = storage.open("b").unwrap();
        storage.remove("b").unwrap();
        let mut bytes = [0; 4];
        SpoolFile::read_at(&opened, 4, &mut bytes).unwrap();
        assert_eq!(&bytes, b"45ab");
        let error = SpoolFile::read_at(&opened, 5, &mut bytes).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        let error = storage.open("b").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
