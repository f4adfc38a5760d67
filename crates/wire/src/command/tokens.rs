//! The tokens of a command.

use std::iter::Peekable;
use std::str::Chars;

use super::MOST_NAME;
use crate::{Lsn, Result, Timeline, WireError};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// An unquoted name or number, as it is written.
    Word(String),
    /// A quoted identifier.
    Quoted(String),
    /// A string.
    Text(String),
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
            Some((Token::Word(word), left)) if word.eq_ignore_ascii_case(keyword) => {
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
        let mut name = match self.next()? {
            Token::Quoted(name) => name.clone(),
            Token::Word(word) if !begins_with_digit(word) => word.to_ascii_lowercase(),
            _ => return Err(self.error()),
        };
        cut(&mut name);
        Ok(name)
    }

    /// Options of a command, in parentheses: names, most of them with a word, number or string.
    pub fn generic_options(&mut self) -> Result<Vec<(String, Option<String>)>> {
        self.options(|tokens| {
            let value = match tokens.left.first() {
                Some(Token::Text(text)) => text.clone(),
                Some(Token::Word(word)) if is_number(word) => word.clone(),
                Some(Token::Word(_) | Token::Quoted(_)) => return tokens.name().map(Some),
                _ => return Ok(None),
            };
            tokens.next()?;
            Ok(Some(value))
        })
    }

    /// Options of an output plugin, in parentheses: names, most of them with a string.
    pub fn plugin_options(&mut self) -> Result<Vec<(String, Option<String>)>> {
        self.options(|tokens| {
            let Some(Token::Text(text)) = tokens.left.first() else {
                return Ok(None);
            };
            tokens.next()?;
            Ok(Some(text.clone()))
        })
    }

    fn options(
        &mut self,
        value: impl Fn(&mut Self) -> Result<Option<String>>,
    ) -> Result<Vec<(String, Option<String>)>> {
        if !self.sign('(') {
            return Err(self.error());
        }
        let mut options = Vec::new();
        loop {
            options.push((self.name()?, value(self)?));
            if self.sign(')') {
                return Ok(options);
            }
            if !self.sign(',') {
                return Err(self.error());
            }
        }
    }

    fn word(&mut self) -> Result<&'a str> {
        match self.next()? {
            Token::Word(word) => Ok(word),
            _ => Err(self.error()),
        }
    }

    pub fn timeline(&mut self) -> Result<Timeline> {
        self.word()?.parse()
    }

    pub fn lsn(&mut self) -> Result<Lsn> {
        let high = self.word()?;
        if !self.sign('/') {
            return Err(self.error());
        }
        format!("{high}/{}", self.word()?).parse()
    }
}

/// Cuts a name as a server does, but never inside a character.
pub(crate) fn cut(name: &mut String) {
    let mut end = name.len().min(MOST_NAME);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
}

/// The character may be a part of an unquoted name or number.
pub(super) fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '$' || !c.is_ascii()
}

fn is_number(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_digit())
}

fn begins_with_digit(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit() || c == '$')
}

pub(super) fn tokenize(text: &str) -> Result<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            c if c.is_ascii_whitespace() => {}
            '"' => tokens.push(Token::Quoted(quoted(&mut chars, '"', text)?)),
            '\'' => tokens.push(Token::Text(quoted(&mut chars, '\'', text)?)),
            c if is_word(c) => {
                let mut word = String::from(c);
                while let Some(c) = chars.next_if(|&c| is_word(c)) {
                    word.push(c);
                }
                tokens.push(Token::Word(word));
            }
            c => tokens.push(Token::Sign(c)),
        }
    }
    Ok(tokens)
}

/// The text between two quotes; a doubled quote stands for one.
fn quoted(chars: &mut Peekable<Chars<'_>>, quote: char, text: &str) -> Result<String> {
    let mut inside = String::new();
    while let Some(c) = chars.next() {
        if c != quote {
            inside.push(c);
        } else if chars.next_if_eq(&quote).is_some() {
            inside.push(quote);
        } else {
            return Ok(inside);
        }
    }
    Err(WireError::text("a replication command", text))
}
