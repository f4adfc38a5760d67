//! Writes Prometheus' text format 0.0.4.

use std::fmt::Write;

use lockstep_wire::Lsn;

/// Content type of the format.
pub const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Labels of a metric that has only one sample.
pub const NO_LABELS: [(&str, &str); 0] = [];

/// A metric of all items of a type. If its name ends with `_total` it is a counter, else a gauge.
#[derive(Debug)]
pub struct Family<T> {
    name: &'static str,
    help: &'static str,
    value: fn(&T) -> Value,
}

impl<T> Family<T> {
    pub const fn new(name: &'static str, help: &'static str, value: fn(&T) -> Value) -> Self {
        Self { name, help, value }
    }
}

/// A sample's value as it is written; nothing if it is not known, and then there is no sample.
#[derive(Debug)]
pub struct Value(Option<String>);

macro_rules! written_as_displayed {
    ($($number:ty),*) => {$(
        impl From<$number> for Value {
            fn from(number: $number) -> Self {
                Self(Some(number.to_string()))
            }
        }
    )*};
}

// A string is a number that its maker has formatted.
written_as_displayed!(u64, i64, usize, f64, String);

impl From<bool> for Value {
    fn from(is: bool) -> Self {
        u64::from(is).into()
    }
}

impl From<Lsn> for Value {
    fn from(position: Lsn) -> Self {
        u64::from(position).into()
    }
}

impl<V: Into<Self>> From<Option<V>> for Value {
    fn from(known: Option<V>) -> Self {
        known.map_or(Self(None), V::into)
    }
}

/// A text that grows, a metric at a time.
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

    /// Adds each metric, with a sample of each item under the item's labels.
    pub fn families<'a, T: 'a, S: AsRef<str>, const N: usize>(
        &mut self,
        families: &[Family<T>],
        items: impl Iterator<Item = ([(&'static str, S); N], &'a T)> + Clone,
    ) {
        for Family { name, help, value } in families {
            let items = items.clone();
            self.metric(
                name,
                help,
                items.map(|(labels, item)| (labels, value(item))),
            );
        }
    }

    /// Adds one metric with its samples: labels and value of each.
    pub fn metric<S: AsRef<str>, const N: usize, V: Into<Value>>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = ([(&'static str, S); N], V)>,
    ) {
        let name = format!("{}{name}", self.prefix);
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let kind = match name.ends_with("_total") {
            true => "counter",
            false => "gauge",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in samples {
            let Value(Some(value)) = value.into() else {
                continue;
            };
            let labels = labels
                .iter()
                .map(|(name, value)| label(name, value.as_ref()));
            let labels: Vec<String> = labels.chain(self.always.clone()).collect();
            let _ = writeln!(self.text, "{name}{{{}}} {value}", labels.join(","));
        }
    }

    pub fn into_text(self) -> String {
        self.text
    }
}

/// A label with its value escaped.
fn label(name: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    format!("{name}=\"{}\"", value.replace('\n', "\\n"))
}
