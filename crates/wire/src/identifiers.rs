//! Identifiers as the server reads them in settings, in options, and in names of tables given as text.
//!
//! A name in double quotes is taken as it is, and a doubled quote in it is one quote. Any other
//! name ends at a separator or a space, and is folded to lower case. Spaces around names do not
//! count. Names are cut at [`MOST_NAME`](crate::command::MOST_NAME) bytes.

use crate::command::tokens::{cut, is_space};

/// One name or more with `separator` between two, up to `end`, and the text after that; without
/// `end`, the whole text. None if the text is not so.
pub fn parse(text: &str, separator: char, end: Option<char>) -> Option<(Vec<String>, &str)> {
    let mut left = text.trim_start_matches(is_space);
    let mut names = Vec::new();
    loop {
        let (mut name, after) = match left.strip_prefix('"') {
            Some(inside) => quoted(inside)?,
            None => bare(left, separator, end)?,
        };
        cut(&mut name);
        names.push(name);
        let after = after.trim_start_matches(is_space);
        match end {
            None if after.is_empty() => return Some((names, after)),
            Some(end) if after.starts_with(end) => {
                return Some((names, after.strip_prefix(end)?));
            }
            _ => {}
        }
        left = after.strip_prefix(separator)?.trim_start_matches(is_space);
    }
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

/// The name before a separator, the end or a space, and the text after it; None if the name is empty.
fn bare(text: &str, separator: char, end: Option<char>) -> Option<(String, &str)> {
    let ends = |c: char| c == separator || Some(c) == end || is_space(c);
    let (name, after) = text.split_at_checked(text.find(ends).unwrap_or(text.len()))?;
    (!name.is_empty()).then(|| (name.to_ascii_lowercase(), after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Option<(Vec<String>, &str)> {
        parse(text, '.', Some('='))
    }

    #[test]
    fn names_end_where_they_are_to_end() {
        for (text, expected, after) in [
            ("s.t=x = 1", &["s", "t"][..], "x = 1"),
            (" S . T =a", &["s", "t"], "a"),
            ("\"A.b\".\"c=\"\"d\"=e", &["A.b", "c=\"d"], "e"),
            ("é.ÄB=ß", &["é", "Äb"], "ß"),
            ("t=", &["t"], ""),
        ] {
            let expected = expected.iter().map(|&name| name.to_owned()).collect();
            assert_eq!(names(text), Some((expected, after)), "{text}");
        }
        for text in ["", "=", "s.t", "s.=x", "s t=x", "\"s.t=x", "s.\"t\"u=x"] {
            assert_eq!(names(text), None, "{text}");
        }
        let listed = parse("a, \"B c\"", ',', None);
        assert_eq!(listed, Some((vec!["a".to_owned(), "B c".to_owned()], "")));
    }
}
