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

/// One text of several that have the same metrics: each family once, with the samples of all.
pub fn merged(texts: &[String]) -> String {
    let mut families: Vec<(&str, String)> = Vec::new();
    for text in texts {
        let mut current: Option<usize> = None;
        let mut is_new = true;
        for line in text.split_inclusive('\n') {
            if let Some(about) = line.strip_prefix("# HELP ") {
                let name = about.split(' ').next().unwrap_or_default();
                let known = families.iter().position(|(family, _)| *family == name);
                is_new = known.is_none();
                current = Some(known.unwrap_or(families.len()));
                if is_new {
                    families.push((name, String::new()));
                }
            }
            let family = current.and_then(|index| families.get_mut(index));
            if let Some((_, lines)) = family.filter(|_| is_new || !line.starts_with('#')) {
                lines.push_str(line);
            }
        }
    }
    families.into_iter().map(|(_, lines)| lines).collect()
}

/// A label with its value escaped.
fn label(name: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    format!("{name}=\"{}\"", value.replace('\n', "\\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_of_several_texts_come_once() {
        let of = |cluster: &str, families: &[&str]| {
            let mut text = Exposition::new("x_").with_label("cluster", cluster);
            for family in families {
                text.metric(family, "About it.", [([("node", "n")], 1_u64)]);
            }
            text.into_text()
        };
        let text = merged(&[of("a", &["up", "age"]), of("b", &["up", "size"])]);
        let expected = "# HELP x_up About it.\n# TYPE x_up gauge\nx_up{node=\"n\",cluster=\"a\"} 1\n\
                        x_up{node=\"n\",cluster=\"b\"} 1\n\
                        # HELP x_age About it.\n# TYPE x_age gauge\nx_age{node=\"n\",cluster=\"a\"} 1\n\
                        # HELP x_size About it.\n# TYPE x_size gauge\nx_size{node=\"n\",cluster=\"b\"} 1\n";
        assert_eq!(text, expected);
        let one = of("a", &["up", "age"]);
        assert_eq!(merged(std::slice::from_ref(&one)), one);
    }
}
