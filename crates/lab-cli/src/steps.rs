//! Progress of a benchmark that is a list of steps: plain lines, with the time left.

use std::time::Instant;

use lockstep_service::words::{figures, output};

/// Says what runs and how long the rest may take.
pub struct Steps {
    total: usize,
    done: usize,
    started: Instant,
    current: String,
}

impl Steps {
    /// Progress over `total` steps.
    pub fn new(total: usize) -> Self {
        Self {
            total,
            done: 0,
            started: Instant::now(),
            current: String::new(),
        }
    }

    pub fn begin(&mut self, name: &str) {
        self.current = name.to_owned();
    }

    /// Ends the step, with one line about what came of it.
    pub fn end(&mut self, result: &str) {
        self.done += 1;
        let each = self.started.elapsed() / u32::try_from(self.done).unwrap_or(u32::MAX);
        let left = each * u32::try_from(self.total.saturating_sub(self.done)).unwrap_or(0);
        output::print(&format!(
            "{}/{} {}: {result}, about {} left",
            self.done,
            self.total,
            self.current,
            figures::duration(left.as_secs())
        ));
    }
}
