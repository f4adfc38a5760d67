//! Results on standard output.
//!
//! Whatever a program prints goes through here. What cannot be written ends no run: [`end`] tells the first
//! error, and the program's exit code says so then.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use clap::ValueEnum;

/// Format of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Text for people.
    Text,
    /// JSON for machines.
    Json,
}

/// The first error of what was written.
static FAILED: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints one line of a result.
pub fn print(line: &str) {
    note(writeln!(io::stdout(), "{line}"));
}

/// Writes a text that is more than a line.
pub fn write(text: &[u8]) {
    note(io::stdout().write_all(text));
}

/// Notes the first error. A reader that has gone away is none.
pub fn note(written: io::Result<()>) {
    if let Err(error) = written {
        if error.kind() != io::ErrorKind::BrokenPipe {
            (FAILED.lock().unwrap_or_else(PoisonError::into_inner)).get_or_insert(error);
        }
    }
}

/// Writes what is left. An error if something that was printed could not be written.
pub fn end() -> io::Result<()> {
    note(io::stdout().flush());
    let failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner).take();
    failed.map_or(Ok(()), Err)
}
