//! The user's command that leads clients to the target.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_service::words::span;

use crate::error::{ReplicaError, Result};

/// Longest time that it may take.
const REDIRECTED_WITHIN: Duration = Duration::from_secs(60);

/// Runs the command that leads clients to the target.
pub(super) fn redirected(command: &mut Command) -> Result<()> {
    let failed = |words: String| {
        ReplicaError::State(format!(
            "the command that leads clients to the target (--on-switch) {words}: mend it"
        ))
    };
    let io = |error: std::io::Error| failed(format!("could not be run: {error}"));
    let mut child = command.stdin(Stdio::null()).spawn().map_err(io)?;
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(io)? {
            return match status.success() {
                true => Ok(()),
                false => Err(failed(format!("has failed ({status})"))),
            };
        }
        if began.elapsed() >= REDIRECTED_WITHIN {
            child.kill().map_err(io)?;
            child.wait().map_err(io)?;
            let most = span::show(REDIRECTED_WITHIN);
            return Err(failed(format!("did not end within {most}")));
        }
        thread::sleep(Duration::from_millis(2));
    }
}
