//! The value of option `publication_names`: a list of [identifiers](crate::identifiers), with a comma
//! between two. An empty text is an empty list.

use crate::command::tokens::is_space;
use crate::{Result, WireError, identifiers};

pub fn parse(list: &str) -> Result<Vec<String>> {
    if list.trim_start_matches(is_space).is_empty() {
        return Ok(Vec::new());
    }
    let (names, _) = identifiers::parse(list, ',', None)
        .ok_or_else(|| WireError::text("a list of publication names", list))?;
    Ok(names)
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
