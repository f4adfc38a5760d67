//! SQL as words: as much of its lexical rules as is needed to find where statements end, and to
//! read the console's own and those that concern replication slots.

use std::iter::Peekable;
use std::ops::Range;
use std::str::CharIndices;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Token {
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
pub(crate) type Spanned = (Token, Range<usize>);

/// What is wrong with the words of a query, as PostgreSQL names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    /// A text, name or comment is still open at the query's end.
    #[error("unterminated {0}")]
    Unterminated(&'static str),
    #[error("invalid Unicode escape")]
    Escape,
    #[error("invalid Unicode escape value")]
    Codepoint,
    #[error("invalid Unicode surrogate pair")]
    Surrogates,
    /// Bytes that were given by their numbers are no text.
    #[error("invalid byte sequence for encoding \"UTF8\"")]
    Bytes,
}

impl Malformed {
    pub fn sqlstate(self) -> &'static str {
        match self {
            Self::Unterminated(_) | Self::Codepoint | Self::Surrogates => "42601",
            Self::Escape => "22025",
            Self::Bytes => "22021",
        }
    }
}

/// Splits a query into tokens. Never more than there are bytes.
pub(crate) fn tokens(query: &str) -> Result<Vec<Spanned>, Malformed> {
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

const OPEN_STRING: Malformed = Malformed::Unterminated("quoted string");

/// UTF-16 writes a character beyond 0xFFFF as a high and a low surrogate.
const HIGH_BEGIN: u32 = 0xd800;
const LOW_BEGIN: u32 = 0xdc00;
const LOW_END: u32 = 0xe000;

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
    fn token(&mut self, start: usize, first: char) -> Result<Option<Token>, Malformed> {
        let token = match first {
            c if c.is_ascii_whitespace() => return Ok(None),
            '-' if self.next_is('-') => {
                self.taken(start, |c| c != '\n');
                return Ok(None);
            }
            '/' if self.next_is('*') => return self.comment().map(|()| None),
            '\'' => Token::Text(self.quoted('\'', "quoted string")?),
            'e' | 'E' if self.next_is('\'') => Token::Text(self.escaped()?),
            '"' => Token::Quoted(self.quoted('"', "quoted identifier")?),
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
    fn comment(&mut self) -> Result<(), Malformed> {
        let mut depth = 1_usize;
        while depth > 0 {
            match self.left.next() {
                Some((_, '*')) if self.next_is('/') => depth -= 1,
                Some((_, '/')) if self.next_is('*') => depth += 1,
                Some(_) => {}
                None => return Err(Malformed::Unterminated("/* comment")),
            }
        }
        Ok(())
    }

    /// What is left up to a closing quote; two of them are one within.
    fn quoted(&mut self, quote: char, what: &'static str) -> Result<String, Malformed> {
        let mut text = String::new();
        loop {
            match self.left.next() {
                Some((_, c)) if c == quote && !self.next_is(quote) => return Ok(text),
                Some((_, c)) => text.push(c),
                None => return Err(Malformed::Unterminated(what)),
            }
        }
    }

    /// The rest of a string in which backslashes begin escapes.
    fn escaped(&mut self) -> Result<String, Malformed> {
        let mut text = Vec::new();
        loop {
            match self.left.next() {
                Some((_, '\'')) if !self.next_is('\'') => break,
                Some((_, '\\')) => self.escape(&mut text)?,
                Some((_, c)) => put(&mut text, c),
                None => return Err(OPEN_STRING),
            }
        }
        let text = String::from_utf8(text).ok();
        text.filter(|text| !text.contains('\0'))
            .ok_or(Malformed::Bytes)
    }

    /// What is left of an escape.
    fn escape(&mut self, text: &mut Vec<u8>) -> Result<(), Malformed> {
        let (_, first) = self.left.next().ok_or(OPEN_STRING)?;
        match first {
            'b' => text.push(0x08),
            'f' => text.push(0x0c),
            'n' => text.push(b'\n'),
            'r' => text.push(b'\r'),
            't' => text.push(b'\t'),
            // From 16 on.
            'v' => text.push(0x0b),
            '0'..='7' => {
                let (more, _) = self.digits(8, 2);
                let first = first.to_digit(8).unwrap_or_default();
                let value = more.iter().fold(first, |value, digit| value * 8 + digit);
                // A server cuts off what is more than a byte.
                text.extend(value.to_le_bytes().first());
            }
            'x' => match self.digits(16, 2) {
                (digits, _) if digits.is_empty() => text.push(b'x'),
                (_, value) => text.extend(value.to_le_bytes().first()),
            },
            'u' | 'U' => put(text, self.codepoint(first)?),
            c => put(text, c),
        }
        Ok(())
    }

    /// The character of a Unicode escape whose `u` or `U` is taken.
    fn codepoint(&mut self, kind: char) -> Result<char, Malformed> {
        let first = self.unicode(kind)?;
        let value = match first {
            HIGH_BEGIN..LOW_BEGIN => {
                let low = match (self.next_is('\\'), self.left.next()) {
                    (true, Some((_, kind @ ('u' | 'U')))) => self.unicode(kind)?,
                    _ => return Err(Malformed::Surrogates),
                };
                let within = low
                    .checked_sub(LOW_BEGIN)
                    .filter(|low| *low < LOW_END - LOW_BEGIN);
                let low = within.ok_or(Malformed::Surrogates)?;
                0x1_0000 + ((first - HIGH_BEGIN) << 10) + low
            }
            LOW_BEGIN..LOW_END => return Err(Malformed::Surrogates),
            0 => return Err(Malformed::Codepoint),
            value => value,
        };
        char::from_u32(value).ok_or(Malformed::Codepoint)
    }

    fn unicode(&mut self, kind: char) -> Result<u32, Malformed> {
        let length = if kind == 'u' { 4 } else { 8 };
        match self.digits(16, length) {
            (digits, value) if digits.len() == length => Ok(value),
            _ => Err(Malformed::Escape),
        }
    }

    /// Reads at most that many digits, and the number that they are.
    fn digits(&mut self, base: u32, most: usize) -> (Vec<u32>, u32) {
        let mut digits = Vec::new();
        while digits.len() < most {
            let Some((_, c)) = self.left.next_if(|(_, c)| c.is_digit(base)) else {
                break;
            };
            digits.extend(c.to_digit(base));
        }
        let value = digits.iter().fold(0, |value, digit| value * base + digit);
        (digits, value)
    }

    /// Text between `$tag$` and `$tag$`, whose first dollar is taken; None if none begins.
    fn dollar_quoted(&mut self, start: usize) -> Result<Option<String>, Malformed> {
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
            .ok_or(Malformed::Unterminated("dollar-quoted string"))?;
        let end = begin + text.len() + closing.len();
        while self.left.next_if(|&(at, _)| at < end).is_some() {}
        Ok(Some(text))
    }
}

fn put(text: &mut Vec<u8>, c: char) {
    text.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}

fn begins_word(c: char) -> bool {
    c == '_' || c.is_ascii_alphabetic() || !c.is_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(query: &str) -> Result<String, Malformed> {
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
            let open = Malformed::Unterminated(what);
            assert_eq!(shown(query), Err(open), "{query}");
        }
    }

    #[test]
    fn escapes_are_read_as_servers_read_them() {
        for (query, text) in [
            (r"E'\x61'", "a"),
            (r"E'\x6a1\xg\x'", "j1xgx"),
            (r"E'\141\0601\541'", "a01a"),
            (r"E'\u0061\U0001F600\ud83d\ude00'", "a\u{1f600}\u{1f600}"),
            (
                r"E'\xc3\xa4\b\f\n\r\t\v\q\'\\'",
                "ä\u{8}\u{c}\n\r\t\u{b}q'\\",
            ),
            (r"e'it''s\''", "it's'"),
        ] {
            let whole = tokens(query).map(|mut tokens| tokens.pop());
            let expected = (Token::Text(text.to_owned()), 0..query.len());
            assert_eq!(whole, Ok(Some(expected)), "{query}");
        }
        for (query, what) in [
            (r"E'\xff'", Malformed::Bytes),
            (r"E'\0'", Malformed::Bytes),
            (r"E'\u006'", Malformed::Escape),
            (r"E'\U0061'", Malformed::Escape),
            (r"E'\u0000'", Malformed::Codepoint),
            (r"E'\U00110000'", Malformed::Codepoint),
            (r"E'\ud83d'", Malformed::Surrogates),
            (r"E'\ud83d\u0061'", Malformed::Surrogates),
            (r"E'\ude00'", Malformed::Surrogates),
            (r"E'\", Malformed::Unterminated("quoted string")),
        ] {
            assert_eq!(tokens(query), Err(what), "{query}");
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
