//! Prometheus' text format 0.0.4, written piece by piece.

use std::fmt::Write;

/// Its content type.
pub const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A text that grows. Samples of a family must follow it.
#[derive(Debug)]
pub struct Exposition {
    prefix: &'static str,
    text: String,
}

impl Exposition {
    /// Nothing yet. All names begin with `prefix`.
    pub fn new(prefix: &'static str) -> Self {
        Self {
            prefix,
            text: String::new(),
        }
    }

    /// What precedes a family's samples.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        let prefix = self.prefix;
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to a string cannot fail.
        let _ = writeln!(
            self.text,
            "# HELP {prefix}{name} {help}\n# TYPE {prefix}{name} {kind}"
        );
    }

    /// One value of the family.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: &str) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
            .collect();
        let labels = labels.join(",");
        let _ = writeln!(self.text, "{}{name}{{{labels}}} {value}", self.prefix);
    }

    /// The text.
    pub fn into_text(self) -> String {
        self.text
    }
}

/// A label's value.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
