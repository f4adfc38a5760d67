//! Writes Prometheus' text format 0.0.4.

use std::fmt::Write;

/// Content type of the format.
pub const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A text that grows. The samples of a metric family must directly follow its header.
#[derive(Debug)]
pub struct Exposition {
    prefix: &'static str,
    /// A label that every sample has.
    always: Option<String>,
    text: String,
}

impl Exposition {
    /// An empty text. All names of metrics get `prefix`.
    pub fn new(prefix: &'static str) -> Self {
        Self {
            prefix,
            always: None,
            text: String::new(),
        }
    }

    /// Adds a label that all samples get.
    pub fn with_label(mut self, name: &str, value: &str) -> Self {
        self.always = Some(label(name, value));
        self
    }

    /// Adds the header (HELP and TYPE) of a metric family.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        let prefix = self.prefix;
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to a string cannot fail.
        let _ = writeln!(
            self.text,
            "# HELP {prefix}{name} {help}\n# TYPE {prefix}{name} {kind}"
        );
    }

    /// Adds one sample.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: &str) {
        let labels = labels.iter().map(|(name, value)| label(name, value));
        let labels: Vec<String> = labels.chain(self.always.clone()).collect();
        let labels = labels.join(",");
        let _ = writeln!(self.text, "{}{name}{{{labels}}} {value}", self.prefix);
    }

    pub fn into_text(self) -> String {
        self.text
    }
}

fn label(name: &str, value: &str) -> String {
    format!("{name}=\"{}\"", escaped(value))
}

/// A label's value, escaped.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
