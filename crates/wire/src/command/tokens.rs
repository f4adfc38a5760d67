//! The tokens of a command, as servers read them: at each place the longest one.
//!
//! Keywords count in upper case only, and are no names; in quotes they are. A position is one
//! token, so there is no space in it. Nothing is a comment.

use super::cut_name;
use crate::{Lsn, Result, Timeline, WireError};

/// Words that are no names.
const KEYWORDS: [&str; 21] = [
    "ALTER_REPLICATION_SLOT",
    "BASE_BACKUP",
    "CREATE_REPLICATION_SLOT",
    "DROP_REPLICATION_SLOT",
    "EXPORT_SNAPSHOT",
    "IDENTIFY_SYSTEM",
    "LOGICAL",
    "NOEXPORT_SNAPSHOT",
    "PHYSICAL",
    "READ_REPLICATION_SLOT",
    "RESERVE_WAL",
    "SHOW",
    "SLOT",
    "START_REPLICATION",
    "TEMPORARY",
    "TIMELINE",
    "TIMELINE_HISTORY",
    "TWO_PHASE",
    "UPLOAD_MANIFEST",
    "USE_SNAPSHOT",
    "WAIT",
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    Keyword(&'static str),
    /// A name, in lower case unless it was quoted, and cut.
    Name(String),
    Text(String),
    Number(u32),
    Position(Lsn),
    /// Any other character.
    Sign(char),
}

/// Tokens not parsed yet.
pub(super) struct Tokens<'a> {
    left: &'a [Token],
    text: &'a str,
}

impl<'a> Tokens<'a> {
    pub fn new(left: &'a [Token], text: &'a str) -> Self {
        Self { left, text }
    }

    pub fn error(&self) -> WireError {
        WireError::text("a replication command", self.text)
    }

    pub fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    fn next(&mut self) -> Result<&'a Token> {
        let (first, left) = self.left.split_first().ok_or_else(|| self.error())?;
        self.left = left;
        Ok(first)
    }

    /// Takes the keyword if it comes next.
    pub fn accept(&mut self, keyword: &str) -> bool {
        match self.left.split_first() {
            Some((Token::Keyword(word), left)) if *word == keyword => {
                self.left = left;
                true
            }
            _ => false,
        }
    }

    pub fn expect(&mut self, keyword: &str) -> Result<()> {
        match self.accept(keyword) {
            true => Ok(()),
            false => Err(self.error()),
        }
    }

    pub fn at_sign(&self, sign: char) -> bool {
        self.left.first() == Some(&Token::Sign(sign))
    }

    /// Takes the sign if it comes next.
    pub fn sign(&mut self, sign: char) -> bool {
        let found = self.at_sign(sign);
        if found {
            self.left = self.left.get(1..).unwrap_or_default();
        }
        found
    }

    pub fn name(&mut self) -> Result<String> {
        match self.next()? {
            Token::Name(name) => Ok(name.clone()),
            _ => Err(self.error()),
        }
    }

    /// Options of a command, in parentheses: names, most of them with a name, number or string.
    pub fn generic_options(&mut self) -> Result<Vec<(String, Option<String>)>> {
        self.options(true, |tokens| {
            let value = match tokens.left.first() {
                // No option has such a value: as a boolean it is written without quotes.
                Some(Token::Text(text)) if text == "0" || text == "1" => {
                    return Err(tokens.error());
                }
                Some(Token::Text(text) | Token::Name(text)) => text.clone(),
                Some(Token::Number(number)) => number.to_string(),
                _ => return Ok(None),
            };
            tokens.next()?;
            Ok(Some(value))
        })
    }

    /// Options of an output plugin, in parentheses: names, most of them with a string.
    pub fn plugin_options(&mut self) -> Result<Vec<(String, Option<String>)>> {
        self.options(false, |tokens| {
            let Some(Token::Text(text)) = tokens.left.first() else {
                return Ok(None);
            };
            tokens.next()?;
            Ok(Some(text.clone()))
        })
    }

    fn options(
        &mut self,
        keywords: bool,
        value: impl Fn(&mut Self) -> Result<Option<String>>,
    ) -> Result<Vec<(String, Option<String>)>> {
        if !self.sign('(') {
            return Err(self.error());
        }
        let mut options = Vec::new();
        loop {
            let name = match self.left.split_first() {
                Some((Token::Keyword(word), left)) if keywords => {
                    self.left = left;
                    word.to_ascii_lowercase()
                }
                _ => self.name()?,
            };
            options.push((name, value(self)?));
            if self.sign(')') {
                return Ok(options);
            }
            if !self.sign(',') {
                return Err(self.error());
            }
        }
    }

    pub fn timeline(&mut self) -> Result<Timeline> {
        match self.next()? {
            Token::Number(number) => Timeline::new(*number).ok_or_else(|| self.error()),
            _ => Err(self.error()),
        }
    }

    pub fn lsn(&mut self) -> Result<Lsn> {
        match self.next()? {
            Token::Position(lsn) => Ok(*lsn),
            _ => Err(self.error()),
        }
    }
}

/// Cuts a name as a server does, but never inside a character.
pub(crate) fn cut(name: &mut String) {
    name.truncate(cut_name(name).len());
}

/// Spaces between tokens, and between names in a list.
pub(crate) fn is_space(c: char) -> bool {
    c.is_ascii_whitespace()
}

/// The keyword that a command begins with. What follows may be SQL, which has other tokens.
pub(super) fn first_keyword(text: &str) -> Option<&'static str> {
    keyword(word(text.trim_start_matches(is_space)).0)
}

pub(super) fn tokenize(text: &str) -> Result<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut left = text.trim_start_matches(is_space);
    while let Some(first) = left.chars().next() {
        let after = left.get(first.len_utf8()..).unwrap_or_default();
        let (token, rest) = if let Some((position, rest)) = position(left) {
            (Token::Position(position), rest)
        } else if first.is_ascii_digit() {
            let (digits, rest) = run(left, |c| c.is_ascii_digit());
            (Token::Number(low_half(digits, 10)), rest)
        } else if begins_word(first) {
            let (word, rest) = word(left);
            (named(word), rest)
        } else if first == '"' {
            let (mut name, rest) = quoted(after, first, text)?;
            cut(&mut name);
            (Token::Name(name), rest)
        } else if first == '\'' {
            let (inside, rest) = quoted(after, first, text)?;
            (Token::Text(inside), rest)
        } else {
            (Token::Sign(first), after)
        };
        tokens.push(token);
        left = rest.trim_start_matches(is_space);
    }
    Ok(tokens)
}

/// The longest beginning of these characters, and the rest.
fn run(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|c| !belongs(c)).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

fn begins_word(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_' || !c.is_ascii()
}

/// The word at the beginning, which may be empty, and the rest.
fn word(text: &str) -> (&str, &str) {
    match text.starts_with(begins_word) {
        true => run(text, |c| begins_word(c) || c.is_ascii_digit() || c == '$'),
        false => ("", text),
    }
}

fn keyword(word: &str) -> Option<&'static str> {
    KEYWORDS.into_iter().find(|&keyword| keyword == word)
}

fn named(word: &str) -> Token {
    match keyword(word) {
        Some(keyword) => Token::Keyword(keyword),
        None => {
            let mut name = word.to_ascii_lowercase();
            cut(&mut name);
            Token::Name(name)
        }
    }
}

/// The position at the beginning, and the rest.
fn position(text: &str) -> Option<(Lsn, &str)> {
    let hexadecimal = |text| run(text, |c| c.is_ascii_hexdigit());
    let (high, rest) = hexadecimal(text);
    let (low, rest) = hexadecimal(rest.strip_prefix('/')?);
    if high.is_empty() || low.is_empty() {
        return None;
    }
    let position = u64::from(low_half(high, 16)) << 32 | u64::from(low_half(low, 16));
    Some((position.into(), rest))
}

/// A number as C reads it into 32 bits: the lower half of 64 bits, which are all ones if the
/// number does not fit.
fn low_half(digits: &str, radix: u32) -> u32 {
    let number = u64::from_str_radix(digits, radix).unwrap_or(u64::MAX);
    (number & u64::from(u32::MAX)) as u32
}

/// The text up to the closing quote, and the rest; a doubled quote stands for one.
fn quoted<'a>(inside: &'a str, quote: char, text: &str) -> Result<(String, &'a str)> {
    let mut found = String::new();
    let mut left = inside;
    while let Some((piece, after)) = left.split_once(quote) {
        found.push_str(piece);
        let Some(more) = after.strip_prefix(quote) else {
            return Ok((found, after));
        };
        found.push(quote);
        left = more;
    }
    Err(WireError::text("a replication command", text))
}
