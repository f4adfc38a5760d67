//! Quoting of names and values in commands. Replication commands have no parameters, so all
//! names and values are part of their text.
//!
//! Replication commands know one way to quote: quotation marks are doubled, backslashes stay
//! as they are. The meaning of a backslash in an SQL string depends on
//! `standard_conforming_strings`, so SQL strings have a function of their own.

use crate::{ClientError, MOST_NAME, Result};

/// A quoted identifier, for SQL and for replication commands. Names that are empty, longer
/// than the server keeps, or hold a NUL are refused; `what` says in the error what is named.
pub fn identifier(what: &'static str, name: &str) -> Result<String> {
    let refused = |reason| {
        Err(ClientError::Name {
            what,
            name: shortened(name),
            reason,
        })
    };
    if name.is_empty() {
        return refused("it is empty");
    }
    if name.len() > MOST_NAME {
        return refused("it is longer than 63 bytes");
    }
    if name.contains('\0') {
        return refused("it holds a NUL character");
    }
    Ok(format!("\"{}\"", name.replace('"', "\"\"")))
}

/// A quoted string for replication commands.
pub fn command_literal(what: &'static str, value: &str) -> Result<String> {
    without_nul(what, value)?;
    Ok(format!("'{}'", value.replace('\'', "''")))
}

/// A quoted string for SQL, whatever the server's settings.
pub fn sql_literal(what: &'static str, value: &str) -> Result<String> {
    without_nul(what, value)?;
    let doubled = value.replace('\'', "''");
    Ok(match doubled.contains('\\') {
        true => format!(" E'{}'", doubled.replace('\\', "\\\\")),
        false => format!("'{doubled}'"),
    })
}

/// The value of the option `publication_names`: a list of quoted identifiers. The caller must
/// still quote the list as a string.
pub fn publication_names<N: AsRef<str>>(names: impl IntoIterator<Item = N>) -> Result<String> {
    let names: Result<Vec<_>> = names
        .into_iter()
        .map(|name| identifier("publication", name.as_ref()))
        .collect();
    Ok(names?.join(","))
}

pub(crate) fn without_nul(what: &'static str, value: &str) -> Result<()> {
    match value.contains('\0') {
        false => Ok(()),
        true => Err(ClientError::Name {
            what,
            name: shortened(value),
            reason: "it holds a NUL character",
        }),
    }
}

/// A name for an error: printable and short.
fn shortened(name: &str) -> String {
    name.chars()
        .take(MOST_NAME)
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_quoted() {
        for (name, quoted) in [
            ("a", "\"a\""),
            ("A b", "\"A b\""),
            ("a\"b", "\"a\"\"b\""),
            ("a'b\\", "\"a'b\\\""),
            ("\"; DROP", "\"\"\"; DROP\""),
        ] {
            assert_eq!(identifier("slot", name).unwrap(), quoted);
        }
        let longest = "x".repeat(MOST_NAME);
        assert!(identifier("slot", &longest).is_ok());
        for name in ["", "a\0b", &"x".repeat(MOST_NAME + 1), &"é".repeat(32)] {
            let error = identifier("slot", name).unwrap_err().to_string();
            assert!(error.starts_with("slot \""), "{error}");
            assert!(!error.contains('\0') && error.len() < 200);
        }
    }

    #[test]
    fn strings_are_quoted() {
        for (value, command, sql) in [
            ("", "''", "''"),
            ("a", "'a'", "'a'"),
            ("a'b", "'a''b'", "'a''b'"),
            ("a\\'b", "'a\\''b'", " E'a\\\\''b'"),
        ] {
            assert_eq!(command_literal("option", value).unwrap(), command);
            assert_eq!(sql_literal("option", value).unwrap(), sql);
        }
        assert!(command_literal("option", "a\0").is_err());
        assert!(sql_literal("option", "a\0").is_err());
    }

    #[test]
    fn publications_are_a_list_of_identifiers() {
        assert_eq!(
            publication_names(["one", "T\"wo", "a,b"]).unwrap(),
            "\"one\",\"T\"\"wo\",\"a,b\""
        );
        assert!(publication_names(["one", ""]).is_err());
    }
}
