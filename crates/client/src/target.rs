//! A server that may run or not, as people name it.

use std::path::{Path, PathBuf};

/// A folder with files of a server, or a server that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Folder(PathBuf),
    Conninfo(String),
}

impl Target {
    /// Parses an argument. It is a conninfo if it has an equals sign or a URI's scheme and there
    /// is no folder of that name.
    pub fn parse(text: &str) -> Self {
        let uri = text.starts_with("postgres://") || text.starts_with("postgresql://");
        if (uri || text.contains('=')) && !Path::new(text).is_dir() {
            Self::Conninfo(text.to_owned())
        } else {
            Self::Folder(PathBuf::from(text))
        }
    }
}
