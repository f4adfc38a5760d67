//! What a run needs of the program that it is a part of.

use std::path::{Path, PathBuf};

use lockstep_lab::cluster::{Lab, LabOptions};
use lockstep_lab::guard::ReaperProgram;

use crate::Result;
use crate::args::ServerArgs;

/// The program that runs.
#[derive(Debug, Clone)]
pub struct Host {
    /// Started again as the lab's reaper, with the argument `reap`, and as a relay, with
    /// `relay` and its options.
    pub program: PathBuf,
    /// Called with the number of a signal, after all servers have been stopped; ends the program.
    pub interrupted: fn(i32),
}

impl Host {
    /// A lab that cleans up on every exit path.
    pub fn open_lab(
        &self,
        server: &ServerArgs,
        with_extension: bool,
        space_mb: u64,
    ) -> Result<Lab> {
        let lab = Lab::new(&LabOptions {
            major: server.pg,
            stage: with_extension.then(|| server.stage()),
            reaper: ReaperProgram {
                program: self.program.clone(),
                args: vec!["reap".to_owned()],
            },
            space_mb,
            pinned: true,
        })?;
        lab.end_on_signals(self.interrupted)?;
        Ok(lab)
    }
}

/// An absolute path, which people need to find a file.
pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}
