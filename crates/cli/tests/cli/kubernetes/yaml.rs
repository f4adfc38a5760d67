//! The part of YAML in which our manifests are written: mappings, sequences, plain and quoted scalars,
//! literal text, `{}`. What is not of this part is refused, also plain words that YAML takes for something
//! else.

use serde_json::{Map, Value};

/// The documents of a file, each with its place for errors.
pub fn documents(text: &str) -> Result<Vec<Value>, String> {
    let parts = text.split("\n---\n");
    parts.map(document).collect()
}

fn document(text: &str) -> Result<Value, String> {
    if let Some(line) = text.lines().find(|line| line.contains('\t')) {
        return Err(format!("a tab: {line}"));
    }
    let whole = |line| (indent(line), line.trim());
    let mut lines = Lines {
        all: text.lines().map(whole).collect(),
        raw: text.lines().collect(),
        at: 0,
    };
    let value = lines.block(0)?;
    match lines.peek() {
        Some((_, line)) => Err(format!("what is this: {line}")),
        None => Ok(value),
    }
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

/// The key of a line, and what follows it.
fn key(line: &str) -> Option<(&str, &str)> {
    let (key, rest) = match line.split_once(": ") {
        Some((key, rest)) => (key, rest.trim()),
        None => (line.strip_suffix(':')?, ""),
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
    (!key.is_empty() && key.chars().all(is_plain)).then_some((key, rest))
}

struct Lines<'t> {
    /// Each line's indent and text; the dash of an item is taken away once it is read.
    all: Vec<(usize, &'t str)>,
    raw: Vec<&'t str>,
    at: usize,
}

impl<'t> Lines<'t> {
    /// The next line that is neither empty nor a comment.
    fn peek(&mut self) -> Option<(usize, &'t str)> {
        while let Some((indent, line)) = self.all.get(self.at) {
            if !line.is_empty() && !line.starts_with('#') {
                return Some((*indent, line));
            }
            self.at += 1;
        }
        None
    }

    fn block(&mut self, indent: usize) -> Result<Value, String> {
        match self.peek() {
            Some((found, line)) if found == indent && line.starts_with("- ") => {
                self.sequence(indent)
            }
            Some((found, line)) if found == indent && key(line).is_some() => self.mapping(indent),
            other => Err(format!("expected at column {indent}: {other:?}")),
        }
    }

    fn sequence(&mut self, indent: usize) -> Result<Value, String> {
        let mut items = Vec::new();
        while let Some((found, line)) = self.peek() {
            let Some(rest) = line.strip_prefix("- ").filter(|_| found == indent) else {
                break;
            };
            let rest = rest.trim_start();
            let column = indent + line.len() - rest.len();
            if key(rest).is_some() {
                self.all[self.at] = (column, rest);
                items.push(self.mapping(column)?);
            } else {
                self.at += 1;
                items.push(scalar(rest)?);
            }
        }
        Ok(Value::Array(items))
    }

    fn mapping(&mut self, indent: usize) -> Result<Value, String> {
        let mut map = Map::new();
        while let Some((found, line)) = self.peek() {
            let Some((key, rest)) = key(line).filter(|_| found == indent) else {
                break;
            };
            self.at += 1;
            let value = match rest {
                "" => match self.peek() {
                    Some((deeper, _)) if deeper > indent => self.block(deeper)?,
                    _ => return Err(format!("{key} has no value")),
                },
                "|" => Value::String(self.literal(indent)),
                "{}" => Value::Object(Map::new()),
                scalar_text => scalar(scalar_text)?,
            };
            if map.insert(key.to_owned(), value).is_some() {
                return Err(format!("{key} twice"));
            }
        }
        Ok(Value::Object(map))
    }

    /// The lines further in than a key, without their common indent.
    fn literal(&mut self, outer: usize) -> String {
        let rest = &self.raw[self.at..];
        let is_in = |line: &&&str| line.trim().is_empty() || indent(line) > outer;
        let lines: Vec<_> = rest.iter().take_while(is_in).copied().collect();
        self.at += lines.len();
        let margin = lines.first().map_or(0, |line| indent(line));
        let cut = lines
            .iter()
            .map(|line| line.get(margin..).unwrap_or_default());
        let text: Vec<_> = cut.collect();
        format!("{}\n", text.join("\n").trim_end())
    }
}

fn scalar(text: &str) -> Result<Value, String> {
    if let Some(inner) = text.strip_prefix('"') {
        let inner = inner
            .strip_suffix('"')
            .filter(|inner| !inner.contains(['"', '\\']));
        return inner
            .map(Value::from)
            .ok_or_else(|| format!("quotes: {text}"));
    }
    let is_text_in_yaml = |word: &str| {
        let lower = word.to_ascii_lowercase();
        let words = [
            "yes", "no", "on", "off", "y", "n", "null", "~", "true", "false",
        ];
        !words.contains(&lower.as_str()) && word.parse::<f64>().is_err()
    };
    if text.contains(" #")
        || text.contains(": ")
        || text.starts_with(|c: char| "!&*|>'%@`[]{},?:#".contains(c))
    {
        return Err(format!("write quotes around {text}"));
    }
    match text {
        "true" => Ok(Value::Bool(true)),
        "false" => Ok(Value::Bool(false)),
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits
            .parse::<u64>()
            .map(Value::from)
            .map_err(|error| format!("{digits}: {error}")),
        word if is_text_in_yaml(word) => Ok(Value::from(word)),
        word => Err(format!("{word} is no text in YAML: write quotes around it")),
    }
}
