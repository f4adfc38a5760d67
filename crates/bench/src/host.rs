//! The programs of a run: the one that it is a part of, and the product's.

use std::path::{Path, PathBuf};

use lockstep_lab::cluster::{Lab, LabOptions};
use lockstep_lab::guard::ReaperProgram;

use crate::args::ServerArgs;
use crate::{BenchError, Result};

/// The environment variable that names the product's program.
const PRODUCT: &str = "LOCKSTEP_PROGRAM";

/// Programs that a run starts.
#[derive(Debug, Clone)]
pub struct Host {
    /// The program that runs. The argument `reap` makes it the lab's reaper.
    pub program: PathBuf,
    /// The product's program, `lockstep`, which may be missing.
    pub product: PathBuf,
    /// Called with the number of a signal, after all servers have been stopped; ends the program.
    pub interrupted: fn(i32),
}

impl Host {
    /// `program` with the product's program that `LOCKSTEP_PROGRAM` names, or that is beside it.
    pub fn new(program: PathBuf, interrupted: fn(i32)) -> Self {
        let product = match std::env::var_os(PRODUCT) {
            Some(named) => named.into(),
            None => program.with_file_name("lockstep"),
        };
        Self {
            program,
            product,
            interrupted,
        }
    }

    /// An error if the product's program is missing.
    pub fn check_product(&self) -> Result<()> {
        match self.product.is_file() {
            true => Ok(()),
            false => Err(BenchError::Unusable(format!(
                "this benchmark starts the program lockstep, which is not at {}: `make build` makes it, \
                 the package lockstep has it, and {PRODUCT} says where it is",
                absolute(&self.product).display()
            ))),
        }
    }

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
