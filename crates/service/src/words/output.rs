//! Results on standard output.

use std::io::{self, Write};

use clap::ValueEnum;

/// Format of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Text for people.
    Text,
    /// JSON for machines.
    Json,
}

/// Prints one line of a result. A reader that has gone away is no error.
pub fn print(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Writes all of a text that is more than a line. A reader that has gone away is no error.
pub fn write(text: &[u8]) -> io::Result<()> {
    match io::stdout().write_all(text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}
