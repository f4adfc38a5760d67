//! A query as words: as much of SQL's lexical rules as is needed to find where statements
//! end and to read the console's own.

use std::iter::Peekable;
use std::ops::Range;
use std::str::CharIndices;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Token {
    /// A name or keyword without quotes, in lower case.
    Word(String),
    /// A name in double quotes.
    Quoted(String),
    /// Text in single quotes or between dollars.
    Text(String),
    /// A number without sign.
    Number(String),
    /// Any other character.
    Symbol(char),
}

/// A token and the bytes of the query that it takes.
pub(super) type Spanned = (Token, Range<usize>);

/// What a query may leave open at its end, as PostgreSQL names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unterminated(pub &'static str);

/// Splits a query into tokens. Never more than there are bytes.
pub(super) fn tokens(query: &str) -> Result<Vec<Spanned>, Unterminated> {
    let mut lexer = Lexer {
        query,
        left: query.char_indices().peekable(),
    };
    let mut tokens = Vec::new();
    while let Some((start, first)) = lexer.left.next() {
        if let Some(token) = lexer.token(start, first)? {
            tokens.push((token, start..lexer.at()));
        }
    }
    Ok(tokens)
}

struct Lexer<'a> {
    query: &'a str,
    left: Peekable<CharIndices<'a>>,
}

impl Lexer<'_> {
    /// Where the next character begins.
    fn at(&mut self) -> usize {
        self.left.peek().map_or(self.query.len(), |&(at, _)| at)
    }

    fn next_is(&mut self, wanted: char) -> bool {
        self.left.next_if(|&(_, c)| c == wanted).is_some()
    }

    /// Takes characters while they fit, and returns all from `start` on.
    fn taken(&mut self, start: usize, fits: impl Fn(char) -> bool) -> &str {
        while self.left.next_if(|&(_, c)| fits(c)).is_some() {}
        let end = self.at();
        self.query.get(start..end).unwrap_or_default()
    }

    /// The token that begins with `first`; None for blanks and comments.
    fn token(&mut self, start: usize, first: char) -> Result<Option<Token>, Unterminated> {
        let token = match first {
            c if c.is_ascii_whitespace() => return Ok(None),
            '-' if self.next_is('-') => {
                self.taken(start, |c| c != '\n');
                return Ok(None);
            }
            '/' if self.next_is('*') => return self.comment().map(|()| None),
            '\'' => Token::Text(self.quoted('\'', false)?),
            'e' | 'E' if self.next_is('\'') => Token::Text(self.quoted('\'', true)?),
            '"' => Token::Quoted(self.quoted('"', false)?),
            '$' => match self.dollar_quoted(start)? {
                Some(text) => Token::Text(text),
                None => Token::Symbol('$'),
            },
            c if begins_word(c) => Token::Word(
                self.taken(start, |c| begins_word(c) || c.is_ascii_digit() || c == '$')
                    .to_ascii_lowercase(),
            ),
            c if c.is_ascii_digit() => Token::Number(
                self.taken(start, |c| c.is_ascii_digit() || c == '.')
                    .to_owned(),
            ),
            c => Token::Symbol(c),
        };
        Ok(Some(token))
    }

    /// The rest of a comment; comments nest.
    fn comment(&mut self) -> Result<(), Unterminated> {
        let mut depth = 1_usize;
        while depth > 0 {
            match self.left.next() {
                Some((_, '*')) if self.next_is('/') => depth -= 1,
                Some((_, '/')) if self.next_is('*') => depth += 1,
                Some(_) => {}
                None => return Err(Unterminated("/* comment")),
            }
        }
        Ok(())
    }

    /// What is left up to a closing quote; two of them are one within.
    fn quoted(&mut self, quote: char, backslashes: bool) -> Result<String, Unterminated> {
        let mut text = String::new();
        loop {
            match self.left.next() {
                Some((_, c)) if c == quote => {
                    if !self.next_is(quote) {
                        return Ok(text);
                    }
                    text.push(quote);
                }
                // What stands for another character is none of the console's names.
                Some((_, '\\')) if backslashes => text.extend(self.left.next().map(|(_, c)| c)),
                Some((_, c)) => text.push(c),
                None if quote == '"' => return Err(Unterminated("quoted identifier")),
                None => return Err(Unterminated("quoted string")),
            }
        }
    }

    /// Text between `$tag$` and `$tag$`, whose first dollar is taken; None if none begins.
    fn dollar_quoted(&mut self, start: usize) -> Result<Option<String>, Unterminated> {
        let rest = self.query.get(start + 1..).unwrap_or_default();
        let Some((tag, _)) = rest.split_once('$') else {
            return Ok(None);
        };
        let mut of_tag = tag.chars();
        let is_tag = of_tag.next().is_none_or(begins_word)
            && of_tag.all(|c| begins_word(c) || c.is_ascii_digit());
        if !is_tag {
            return Ok(None);
        }
        let begin = start + tag.len() + 2;
        let closing = format!("${tag}$");
        let text = self
            .query
            .get(begin..)
            .and_then(|rest| rest.split_once(&closing))
            .map(|(text, _)| text.to_owned())
            .ok_or(Unterminated("dollar-quoted string"))?;
        let end = begin + text.len() + closing.len();
        while self.left.next_if(|&(at, _)| at < end).is_some() {}
        Ok(Some(text))
    }
}

fn begins_word(c: char) -> bool {
    c == '_' || c.is_ascii_alphabetic() || !c.is_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(query: &str) -> Result<String, Unterminated> {
        let tokens = tokens(query)?;
        let shown: Vec<String> = tokens
            .into_iter()
            .map(|(token, _)| match token {
                Token::Word(text) => text,
                Token::Quoted(text) => format!("<{text}>"),
                Token::Text(text) => format!("[{text}]"),
                Token::Number(text) => format!("#{text}"),
                Token::Symbol(c) => c.to_string(),
            })
            .collect();
        Ok(shown.join(" "))
    }

    #[test]
    fn queries_are_split_as_sql_is() {
        for (query, tokens) in [
            ("", ""),
            (" \t\r\n", ""),
            ("SHOW Slots;", "show slots ;"),
            ("select*from f()", "select * from f ( )"),
            ("'it''s'';'", "[it's';]"),
            ("E'a\\';' e'\\\\'", "[a';] [\\]"),
            ("'a\\' b", "[a\\] b"),
            ("\"A \"\"B\"\";\"", "<A \"B\";>"),
            ("a -- b ; 'c\nd", "a d"),
            ("a/* ; ' /* */ \" */b", "a b"),
            ("- - / *", "- - / *"),
            (
                "$$a;'$$ $x$ $$ ; $x$ $1 $ $a b$",
                "[a;'] [ $$ ; ] $ #1 $ $ a b$",
            ),
            ("1.5 a1 _b$c 2x", "#1.5 a1 _b$c #2 x"),
            ("größe='ä'", "größe = [ä]"),
            ("a::text ~ '^(x)$'", "a : : text ~ [^(x)$]"),
        ] {
            assert_eq!(shown(query).as_deref(), Ok(tokens), "{query}");
        }
        for (query, what) in [
            ("'a", "quoted string"),
            ("'a''", "quoted string"),
            ("e'a\\'", "quoted string"),
            ("\"a", "quoted identifier"),
            ("/* /* */", "/* comment"),
            ("$x$ $$", "dollar-quoted string"),
        ] {
            assert_eq!(shown(query), Err(Unterminated(what)), "{query}");
        }
    }

    #[test]
    fn spans_are_those_of_the_query() {
        let query = "drop /* x */ slot \"ä\" ;";
        let spans: Vec<&str> = tokens(query)
            .unwrap()
            .into_iter()
            .map(|(_, span)| &query[span])
            .collect();
        assert_eq!(spans, ["drop", "slot", "\"ä\"", ";"]);
    }
}
