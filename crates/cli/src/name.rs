//! The program's name, and lines to standard error that begin with it.

use lockstep_service::program;

pub const NAME: &str = "lockstep";

/// Writes one line to standard error.
pub fn complain(message: &str) {
    program::complain(NAME, message);
}
