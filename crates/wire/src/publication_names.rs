//! The value of option `publication_names`: names separated by commas, read by the rules for
//! lists of identifiers in settings.
//!
//! A name in double quotes is taken as it is, and a doubled quote in it is one quote. Any other
//! name ends at a comma or a space, and is folded to lower case. Spaces around names do not
//! count. Names are cut at [`MOST_NAME`](crate::command::MOST_NAME) bytes. An empty text is an
//! empty list.

use crate::command::tokens::{cut, is_space};
use crate::{Result, WireError};

pub fn parse(list: &str) -> Result<Vec<String>> {
    let bad = || WireError::text("a list of publication names", list);
    let mut left = list.trim_start_matches(is_space);
    let mut names = Vec::new();
    if left.is_empty() {
        return Ok(names);
    }
    loop {
        let (mut name, after) = match left.strip_prefix('"') {
            Some(inside) => quoted(inside).ok_or_else(bad)?,
            None => bare(left).ok_or_else(bad)?,
        };
        cut(&mut name);
        names.push(name);
        let after = after.trim_start_matches(is_space);
        if after.is_empty() {
            return Ok(names);
        }
        left = after
            .strip_prefix(',')
            .ok_or_else(bad)?
            .trim_start_matches(is_space);
    }
}

/// Writes a list from which `parse` reads these names again, whatever they hold. Zero bytes,
/// which no name can hold, are left out.
pub fn write<Name: AsRef<str>>(names: impl IntoIterator<Item = Name>) -> String {
    let mut list = String::new();
    for name in names {
        list.push_str(if list.is_empty() { "\"" } else { ",\"" });
        for c in name.as_ref().chars().filter(|&c| c != '\0') {
            if c == '"' {
                list.push(c);
            }
            list.push(c);
        }
        list.push('"');
    }
    list
}

/// The name before a closing quote, and the text after it.
fn quoted(inside: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut left = inside;
    loop {
        let (piece, after) = left.split_once('"')?;
        name.push_str(piece);
        let Some(more) = after.strip_prefix('"') else {
            return Some((name, after));
        };
        name.push('"');
        left = more;
    }
}

/// The name before a comma or a space, and the text after it; None if the name is empty.
fn bare(text: &str) -> Option<(String, &str)> {
    let end = text.find(|c| c == ',' || is_space(c)).unwrap_or(text.len());
    let (name, after) = text.split_at_checked(end)?;
    (!name.is_empty()).then(|| (name.to_ascii_lowercase(), after))
}
