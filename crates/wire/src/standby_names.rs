//! The value of setting `synchronous_standby_names`: whom commits on a primary wait for.
//!
//! A list of names separated by commas, or `[FIRST | ANY] NUMBER (LIST)`. A name is an
//! identifier, a number, `*`, or anything in double quotes, where a doubled quote is one quote.
//! Only spaces, tabs and line ends may stand between these. An empty value is nobody.

use crate::{Result, WireError};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandbyNames {
    /// Number of standbys that a commit waits for.
    pub needed: u32,
    /// Names as they are written, without quotes.
    pub names: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Name(String),
    Quoted(String),
    Number(String),
    Comma,
    Open,
    Close,
}

impl Token {
    fn is_keyword(&self) -> bool {
        let keyword = |name: &str| {
            ["any", "first"]
                .iter()
                .any(|k| k.eq_ignore_ascii_case(name))
        };
        matches!(self, Self::Name(name) if keyword(name))
    }

    /// A name in a list. Keywords are none.
    fn name(self) -> Option<String> {
        match self {
            Self::Name(_) if self.is_keyword() => None,
            Self::Name(name) | Self::Quoted(name) | Self::Number(name) => Some(name),
            Self::Comma | Self::Open | Self::Close => None,
        }
    }
}

impl StandbyNames {
    /// None if the primary waits for nobody.
    pub fn parse(setting: &str) -> Result<Option<Self>> {
        if setting.is_empty() {
            return Ok(None);
        }
        let bad = || WireError::text("a value of synchronous_standby_names", setting);
        let tokens = tokens(setting).ok_or_else(bad)?;
        let after_keyword = match tokens.split_first() {
            Some((first, rest)) if first.is_keyword() => Some(rest),
            _ => None,
        };
        let rest = after_keyword.unwrap_or(&tokens);
        let counted = match rest {
            [Token::Number(number), Token::Open, list @ .., Token::Close] => Some((number, list)),
            _ if after_keyword.is_some() => return Err(bad()),
            _ => None,
        };
        let (needed, list) = match counted {
            Some((number, list)) => (number.parse().map_err(|_| bad())?, list),
            None => (1, rest),
        };
        let names = names(list).ok_or_else(bad)?;
        match needed {
            0 => Err(bad()),
            needed => Ok(Some(Self { needed, names })),
        }
    }

    /// Whether a connection of this `application_name` is among them: names are compared
    /// without regard to the case of ASCII letters.
    pub fn mean(&self, application_name: &str) -> bool {
        let means = |name: &String| name == "*" || name.eq_ignore_ascii_case(application_name);
        self.names.iter().any(means)
    }
}

/// The names of a list: at least one, with a comma between two.
fn names(list: &[Token]) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for (place, token) in list.iter().enumerate() {
        match place % 2 {
            0 => names.push(token.clone().name()?),
            _ if *token == Token::Comma => {}
            _ => return None,
        }
    }
    (list.len() % 2 == 1).then_some(names)
}

fn tokens(text: &str) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (token, after) = match first {
            ' ' | '\t' | '\n' | '\r' | '\u{b}' | '\u{c}' => {
                rest = rest.get(1..)?;
                continue;
            }
            ',' => (Token::Comma, rest.get(1..)?),
            '(' => (Token::Open, rest.get(1..)?),
            ')' => (Token::Close, rest.get(1..)?),
            '*' => (Token::Name("*".to_owned()), rest.get(1..)?),
            '"' => quoted(rest.get(1..)?)?,
            '0'..='9' => {
                let (number, after) = split(rest, |c| c.is_ascii_digit());
                (Token::Number(number), after)
            }
            c if begins_identifier(c) => {
                let (name, after) = split(rest, |c| {
                    begins_identifier(c) || c.is_ascii_digit() || c == '$'
                });
                (Token::Name(name), after)
            }
            _ => return None,
        };
        tokens.push(token);
        rest = after;
    }
    Some(tokens)
}

fn begins_identifier(c: char) -> bool {
    c == '_' || c.is_ascii_alphabetic() || !c.is_ascii()
}

fn split(text: &str, belongs: impl Fn(char) -> bool) -> (String, &str) {
    let end = text.find(|c| !belongs(c)).unwrap_or(text.len());
    let (taken, after) = text.split_at(end);
    (taken.to_owned(), after)
}

/// What stands before the closing quote, and the text after it.
fn quoted(text: &str) -> Option<(Token, &str)> {
    let mut name = String::new();
    let mut rest = text;
    loop {
        let (before, after) = rest.split_once('"')?;
        name.push_str(before);
        match after.strip_prefix('"') {
            Some(after) => {
                name.push('"');
                rest = after;
            }
            None => return Some((Token::Quoted(name), after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_from_the_setting() {
        for (setting, needed, names) in [
            ("*", 1, &["*"][..]),
            ("a, B", 1, &["a", "B"]),
            ("2 (a,b)", 2, &["a", "b"]),
            ("first 1(\"a b\")", 1, &["a b"]),
            ("ANY 02 ( \"x\"\"y\" , z$1 )", 2, &["x\"y", "z$1"]),
            ("3", 1, &["3"]),
            ("\"first\",\"\"", 1, &["first", ""]),
            ("ä", 1, &["ä"]),
        ] {
            let read = StandbyNames::parse(setting).unwrap().unwrap();
            assert_eq!(
                (read.needed, read.names),
                (needed, names.iter().map(ToString::to_string).collect()),
                "{setting}"
            );
        }
        assert_eq!(StandbyNames::parse(""), Ok(None));
        for bad in [
            " ", ",", "a,", "a b", "a-b", "\"a", "first", "any (a)", "0 (a)", "1 ()", "1 (a", "a)",
            "first, a", "1 (a), b", "x.y",
        ] {
            assert!(StandbyNames::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_are_compared_as_the_primary_does() {
        let names = |setting| StandbyNames::parse(setting).unwrap().unwrap();
        assert!(names("Sub").mean("sUB") && names("*").mean("x") && !names("su").mean("sub"));
    }
}
