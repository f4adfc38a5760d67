//! Files on disk and in the kernel's cache before something is measured.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::{BenchError, Result};

/// All files below a folder. One that is removed meanwhile is left out.
pub fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(BenchError::io("read", &folder)(error)),
        };
        for entry in entries.flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                Ok(kind) if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    Ok(files)
}

/// Writes all files below a folder to disk, and reads them, so that the kernel has them in its
/// cache and nothing of them left to write. Copies are like that in no other way: the kernel
/// would write them while something is measured.
pub fn settle_files(folder: &Path) -> Result<()> {
    for path in files_below(folder)? {
        let mut file = File::open(&path).map_err(BenchError::io("open", &path))?;
        file.sync_all().map_err(BenchError::io("sync", &path))?;
        io::copy(&mut file, &mut io::sink()).map_err(BenchError::io("read", &path))?;
    }
    Ok(())
}
