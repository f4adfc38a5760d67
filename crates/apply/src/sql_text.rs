//! Statements in the text of a query. No I/O.
//!
//! The lexer knows what may hide a semicolon or a word: strings, quoted names, comments, parentheses, and
//! bodies of functions in SQL's own form (`BEGIN ATOMIC`). It knows nothing of grammar.

/// A word, a name or a sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// A key word or a name without quotes.
    Word,
    /// A name in double quotes.
    Quoted,
    /// A string, a number or a parameter.
    Value,
    /// Any other sign.
    Sign,
}

/// A piece of a text, with how many parentheses are open around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token<'a> {
    pub kind: TokenKind,
    pub text: &'a str,
    /// Where it begins in the text.
    pub at: usize,
    pub depth: usize,
}

impl Token<'_> {
    /// This key word, or name without quotes, in lower case.
    pub fn is(&self, word: &str) -> bool {
        self.kind == TokenKind::Word && self.text.eq_ignore_ascii_case(word)
    }
}

/// One statement of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement<'a> {
    pub text: &'a str,
    pub tokens: Vec<Token<'a>>,
}

impl<'a> Statement<'a> {
    /// Key words and names, in lower case, until something else comes.
    fn words(&self) -> impl Iterator<Item = String> + '_ {
        let words = self.tokens.iter();
        let words = words.take_while(|token| token.kind == TokenKind::Word);
        words.map(|token| token.text.to_ascii_lowercase())
    }

    /// The text without a word that stands outside of parentheses.
    pub fn without(&self, word: &str) -> String {
        let found = (self.tokens.iter()).find(|token| token.depth == 0 && token.is(word));
        let start = self.tokens.first().map_or(0, |token| token.at);
        let Some(found) = found else {
            return self.text.to_owned();
        };
        let (before, rest) = self
            .text
            .split_at_checked(found.at - start)
            .unwrap_or((self.text, ""));
        let after = rest.get(found.text.len()..).unwrap_or_default();
        format!("{before}{after}")
    }

    /// The text of DROP with IF EXISTS: what is not there is dropped already.
    pub fn if_exists(&self) -> String {
        let text = self.without("concurrently");
        let mut tokens = self.tokens.iter().skip(1).peekable();
        tokens.next_if(|token| token.is("procedural"));
        let words: Vec<_> = tokens
            .clone()
            .map(|token| token.text.to_lowercase())
            .collect();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let kind = KINDS.iter().find(|kind| begins(&words, kind));
        let length = kind.map_or(0, |kind| kind.split(' ').count());
        let last = length.checked_sub(1).and_then(|place| tokens.nth(place));
        let is_named = tokens.find(|token| !token.is("concurrently"));
        let start = self.tokens.first().map_or(0, |token| token.at);
        match (last, is_named) {
            (Some(last), Some(name)) if !name.is("if") => {
                let end = last.at - start + last.text.len();
                let (before, rest) = text.split_at_checked(end).unwrap_or((&text, ""));
                format!("{before} IF EXISTS{rest}")
            }
            _ => text,
        }
    }

    /// The text with this bound, as PostgreSQL shows it, in place of the one that a partition is given
    /// between values (`FOR VALUES IN (...)`, `FOR VALUES FROM (...) TO (...)`).
    pub fn with_bound(&self, bound: &str) -> String {
        let is = |place: usize, word| self.tokens.get(place).is_some_and(|it| it.is(word));
        let mut places = (0..self.tokens.len()).filter(|place| {
            let is_top = self.tokens.get(*place).is_some_and(|it| it.depth == 0);
            is_top && is(*place, "for") && is(place + 1, "values")
        });
        let range = places.next().and_then(|first| {
            let mut last = self.closed(first + 3)?;
            match (is(first + 2, "from"), is(last + 1, "to")) {
                (true, true) => last = self.closed(last + 2)?,
                (false, _) if is(first + 2, "in") => {}
                _ => return None,
            }
            let (first, last) = (self.tokens.get(first)?, self.tokens.get(last)?);
            let start = self.tokens.first()?.at;
            Some(first.at - start..last.at - start + last.text.len())
        });
        let text = self.text;
        let parts =
            range.and_then(|range| Some((text.get(..range.start)?, text.get(range.end..)?)));
        parts.map_or_else(
            || text.to_owned(),
            |(before, after)| format!("{before}{bound}{after}"),
        )
    }

    /// The place of the sign that closes the parenthesis at this one.
    fn closed(&self, at: usize) -> Option<usize> {
        let is = |token: &Token<'_>, sign| token.kind == TokenKind::Sign && token.text == sign;
        let mut open = 0_usize;
        for (place, token) in self.tokens.iter().enumerate().skip(at) {
            if is(token, "(") {
                open += 1;
            } else if is(token, ")") {
                open = open.checked_sub(1)?;
            }
            if open == 0 {
                return is(token, ")").then_some(place);
            }
        }
        None
    }

    fn has(&self, word: &str) -> bool {
        (self.tokens.iter()).any(|token| token.depth == 0 && token.is(word))
    }

    /// Whether an event trigger sees this statement under this command tag, such as `CREATE TABLE`.
    pub fn has_tag(&self, tag: &str) -> bool {
        self.tag().is_some_and(|own| own.eq_ignore_ascii_case(tag))
    }

    /// The command tag, as far as the first words tell; None if no event trigger sees the statement.
    fn tag(&self) -> Option<String> {
        let words: Vec<_> = self.words().collect();
        let (verb, rest) = words.split_first()?;
        let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
        match verb.as_str() {
            "select" | "with" | "values" | "table" => {
                self.has("into").then(|| "SELECT INTO".to_owned())
            }
            "grant" | "revoke" => self.has("on").then(|| verb.to_ascii_uppercase()),
            "comment" => match rest.get(1) {
                Some(&("database" | "role" | "tablespace")) => None,
                _ => Some("COMMENT".to_owned()),
            },
            "security" => match rest.as_slice() {
                ["label", ..] => Some("SECURITY LABEL".to_owned()),
                _ => None,
            },
            "refresh" => Some("REFRESH MATERIALIZED VIEW".to_owned()),
            "import" => Some("IMPORT FOREIGN SCHEMA".to_owned()),
            "create" => self.created(&rest),
            "alter" | "drop" => {
                let kind = KINDS.iter().find(|kind| begins(&rest, kind))?;
                Some(format!("{verb} {kind}").to_ascii_uppercase())
            }
            _ => None,
        }
    }

    fn created(&self, rest: &[&str]) -> Option<String> {
        let is_noise = |word: &&&str| NOISE.contains(*word);
        let noise = rest.iter().take_while(is_noise).count();
        let rest = rest.get(noise..)?;
        let kind = KINDS.iter().find(|kind| begins(rest, kind))?;
        let as_query = || {
            let mut after = self
                .tokens
                .iter()
                .skip_while(|token| !(token.depth == 0 && token.is("as")));
            let next = after.nth(1);
            next.is_some_and(|next| next.text == "(" || QUERIES.iter().any(|word| next.is(word)))
        };
        match *kind {
            "table" if as_query() => Some("CREATE TABLE AS".to_owned()),
            kind => Some(format!("CREATE {kind}").to_ascii_uppercase()),
        }
    }
}

/// Words of CREATE before the kind of the object that are not part of the tag.
const NOISE: [&str; 13] = [
    "or",
    "replace",
    "temp",
    "temporary",
    "local",
    "global",
    "unlogged",
    "unique",
    "recursive",
    "constraint",
    "trusted",
    "procedural",
    "default",
];

/// What a query begins with.
const QUERIES: [&str; 5] = ["select", "with", "values", "table", "execute"];

/// Kinds of objects whose commands event triggers see; of two that begin alike the longer one is first.
const KINDS: [&str; 43] = [
    "access method",
    "aggregate",
    "cast",
    "collation",
    "conversion",
    "default privileges",
    "domain",
    "extension",
    "foreign data wrapper",
    "foreign table",
    "function",
    "index",
    "language",
    "large object",
    "materialized view",
    "operator class",
    "operator family",
    "operator",
    "owned",
    "policy",
    "procedure",
    "publication",
    "routine",
    "rule",
    "schema",
    "sequence",
    "server",
    "statistics",
    "subscription",
    "table",
    "text search configuration",
    "text search dictionary",
    "text search parser",
    "text search template",
    "transform",
    "trigger",
    "type",
    "user mapping",
    "view",
    "property graph",
    "event trigger",
    "foreign server",
    "tablespace",
];

fn begins(words: &[&str], kind: &str) -> bool {
    let kind: Vec<_> = kind.split(' ').collect();
    words.starts_with(&kind)
}

/// The statements of a text. None if it does not end where a statement can end. `plain_strings`: a
/// backslash in a plain string is only a backslash (`standard_conforming_strings`).
pub fn statements(text: &str, plain_strings: bool) -> Option<Vec<Statement<'_>>> {
    let tokens = tokens(text, plain_strings)?;
    let mut statements = Vec::new();
    let mut current: Vec<Token<'_>> = Vec::new();
    // BEGIN ATOMIC and CASE that are not ended.
    let mut blocks = 0_usize;
    for token in tokens {
        if token.kind == TokenKind::Sign && token.text == ";" && token.depth == 0 && blocks == 0 {
            statements.extend(statement(text, std::mem::take(&mut current)));
            continue;
        }
        if is_routine(&current) {
            let begins = token.is("begin") || (blocks > 0 && token.is("case"));
            match begins {
                true => blocks += 1,
                false if token.is("end") => blocks = blocks.saturating_sub(1),
                false => {}
            }
        }
        current.push(token);
    }
    statements.extend(statement(text, current));
    (blocks == 0).then_some(statements)
}

fn is_routine(tokens: &[Token<'_>]) -> bool {
    let mut words = tokens.iter().take(4);
    words.next().is_some_and(|first| first.is("create"))
        && words.any(|word| word.is("function") || word.is("procedure"))
}

fn statement<'a>(text: &'a str, tokens: Vec<Token<'a>>) -> Option<Statement<'a>> {
    let (first, last) = (tokens.first()?, tokens.last()?);
    let text = text.get(first.at..last.at + last.text.len())?;
    Some(Statement { text, tokens })
}

fn tokens(text: &str, plain_strings: bool) -> Option<Vec<Token<'_>>> {
    let mut tokens = Vec::new();
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let (kind, length) = next(rest, plain_strings)?;
        let piece = rest.get(..length)?;
        if let Some(kind) = kind {
            if piece == ")" {
                depth = depth.checked_sub(1)?;
            }
            tokens.push(Token {
                kind,
                text: piece,
                at,
                depth,
            });
            if piece == "(" {
                depth += 1;
            }
        }
        at += length;
    }
    (depth == 0).then_some(tokens)
}

/// The first piece of a text: what it is, None for space and comments, and its length.
fn next(text: &str, plain_strings: bool) -> Option<(Option<TokenKind>, usize)> {
    let first = text.chars().next()?;
    let second = text.get(first.len_utf8()..)?.chars().next();
    match (first, second) {
        (c, _) if c.is_whitespace() => Some((None, c.len_utf8())),
        ('-', Some('-')) => Some((None, text.find('\n').unwrap_or(text.len()))),
        ('/', Some('*')) => comment(text).map(|length| (None, length)),
        ('"', _) => quoted(text, '"', false).map(|length| (Some(TokenKind::Quoted), length)),
        ('\'', _) => {
            quoted(text, '\'', !plain_strings).map(|length| (Some(TokenKind::Value), length))
        }
        ('e' | 'E', Some('\'')) => string(text, 1, true),
        ('b' | 'B' | 'x' | 'X' | 'n' | 'N', Some('\'')) => string(text, 1, false),
        ('u' | 'U', Some('&')) if text.get(2..3) == Some("'") => string(text, 2, false),
        ('u' | 'U', Some('&')) if text.get(2..3) == Some("\"") => {
            let length = quoted(text.get(2..)?, '"', false)?;
            Some((Some(TokenKind::Quoted), length + 2))
        }
        ('$', _) => Some((Some(TokenKind::Value), dollar(text)?)),
        (c, _) if c.is_ascii_digit() => {
            let is_more = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '_';
            Some((Some(TokenKind::Value), length_of(text, is_more)))
        }
        (c, _) if is_letter(c) => {
            let is_more = |c: char| is_letter(c) || c.is_ascii_digit() || c == '$';
            Some((Some(TokenKind::Word), length_of(text, is_more)))
        }
        (c, _) => Some((Some(TokenKind::Sign), c.len_utf8())),
    }
}

fn is_letter(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_' || !c.is_ascii()
}

fn length_of(text: &str, is_more: impl Fn(char) -> bool) -> usize {
    text.find(|c| !is_more(c)).unwrap_or(text.len())
}

fn string(text: &str, prefix: usize, backslashes: bool) -> Option<(Option<TokenKind>, usize)> {
    let length = quoted(text.get(prefix..)?, '\'', backslashes)?;
    Some((Some(TokenKind::Value), prefix + length))
}

/// The length of a text in quotes, of which two stand for one.
fn quoted(text: &str, quote: char, backslashes: bool) -> Option<usize> {
    let mut signs = text.char_indices().skip(1).peekable();
    while let Some((at, sign)) = signs.next() {
        match sign {
            '\\' if backslashes => {
                signs.next();
            }
            sign if sign == quote => match signs.peek() {
                Some((_, again)) if *again == quote => {
                    signs.next();
                }
                _ => return Some(at + 1),
            },
            _ => {}
        }
    }
    None
}

/// The length of a comment, which may have others in it.
fn comment(text: &str) -> Option<usize> {
    let (mut depth, mut at) = (0_usize, 0);
    loop {
        let rest = text.get(at..)?;
        let next = rest.chars().next()?;
        at += match (rest.starts_with("/*"), rest.starts_with("*/")) {
            (true, _) => {
                depth += 1;
                2
            }
            (_, true) => {
                depth -= 1;
                2
            }
            _ => next.len_utf8(),
        };
        if depth == 0 {
            return Some(at);
        }
    }
}

/// The length of a string in dollar quotes, or of a parameter.
fn dollar(text: &str) -> Option<usize> {
    let tag = length_of(text.get(1..)?, |c| is_letter(c) || c.is_ascii_digit());
    let end = tag + 2;
    match text.get(..end) {
        Some(quote) if quote.ends_with('$') => {
            let inside = text.get(end..)?.find(quote)?;
            Some(end + inside + end)
        }
        _ => Some(tag + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Option<Vec<&str>> {
        let statements = statements(text, true)?;
        Some(statements.iter().map(|it| it.text).collect())
    }

    #[test]
    fn a_text_is_cut_where_its_statements_end() {
        for (text, expected) in [
            ("CREATE TABLE t (a int)", vec!["CREATE TABLE t (a int)"]),
            (" ;; a ; b;-- c ;\n d", vec!["a", "b", "d"]),
            (
                "/* a; /* b; */ c; */ d; 'x;''y'; \"q;\"\"r\"",
                vec!["d", "'x;''y'", "\"q;\"\"r\""],
            ),
            ("E'\\';' ; '\\'; x", vec!["E'\\';'", "'\\'", "x"]),
            (
                "DO $$ a; $b$ ; $b$ $$; SELECT $1; $x$;$x$",
                vec!["DO $$ a; $b$ ; $b$ $$", "SELECT $1", "$x$;$x$"],
            ),
            (
                "CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2); x",
                vec![
                    "CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2)",
                    "x",
                ],
            ),
            (
                "CREATE OR REPLACE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; \
                 SELECT CASE WHEN true THEN 1 END; END; x",
                vec![
                    "CREATE OR REPLACE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; \
                     SELECT CASE WHEN true THEN 1 END; END",
                    "x",
                ],
            ),
            (
                "BEGIN; CREATE TABLE ü (a int); END",
                vec!["BEGIN", "CREATE TABLE ü (a int)", "END"],
            ),
        ] {
            assert_eq!(texts(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_not_ended_is_no_text() {
        for text in [
            "a 'b",
            "\"a",
            "(a",
            "a)",
            "/* a",
            "$$ a",
            "$x$ a $y$",
            "E'\\'",
        ] {
            assert_eq!(texts(text), None, "{text}");
        }
    }

    #[test]
    fn statements_have_the_tags_of_their_commands() {
        for (text, tag) in [
            (
                "create unlogged table if not exists t (a int)",
                Some("CREATE TABLE"),
            ),
            ("CREATE TABLE t (a) AS SELECT 1", Some("CREATE TABLE AS")),
            ("CREATE TABLE t AS (SELECT 1)", Some("CREATE TABLE AS")),
            (
                "CREATE TABLE t (a int GENERATED ALWAYS AS (b) STORED, b int)",
                Some("CREATE TABLE"),
            ),
            ("CREATE TEMP VIEW v AS SELECT 1", Some("CREATE VIEW")),
            (
                "CREATE OR REPLACE RECURSIVE VIEW v (a) AS SELECT 1",
                Some("CREATE VIEW"),
            ),
            (
                "CREATE UNIQUE INDEX CONCURRENTLY i ON t (a)",
                Some("CREATE INDEX"),
            ),
            (
                "CREATE CONSTRAINT TRIGGER x AFTER INSERT ON t",
                Some("CREATE TRIGGER"),
            ),
            (
                "CREATE OPERATOR CLASS c FOR TYPE t",
                Some("CREATE OPERATOR CLASS"),
            ),
            (
                "CREATE OPERATOR === (leftarg = int)",
                Some("CREATE OPERATOR"),
            ),
            ("DROP MATERIALIZED VIEW m", Some("DROP MATERIALIZED VIEW")),
            (
                "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO x",
                Some("ALTER DEFAULT PRIVILEGES"),
            ),
            ("GRANT SELECT ON t TO x", Some("GRANT")),
            ("GRANT a TO b", None),
            ("COMMENT ON ROLE a IS 'b'", None),
            ("COMMENT ON TABLE a IS 'b'", Some("COMMENT")),
            ("SELECT 1 INTO t", Some("SELECT INTO")),
            ("SELECT (SELECT 1)", None),
            ("INSERT INTO t VALUES (1)", None),
            ("CREATE DATABASE d", None),
            ("CREATE ROLE d", None),
        ] {
            let statements = statements(text, true).unwrap();
            assert_eq!(statements[0].tag().as_deref(), tag, "{text}");
        }
    }

    #[test]
    fn a_word_is_taken_out() {
        let of = |text: &str| statements(text, true).unwrap()[0].without("concurrently");
        assert_eq!(
            of(" CREATE INDEX concurrently i ON t (a)"),
            "CREATE INDEX  i ON t (a)"
        );
        let kept = "CREATE INDEX \"concurrently\" ON t (a)";
        assert_eq!(of(kept), kept);
    }

    #[test]
    fn a_bound_is_put_in_place_of_another() {
        let bound = "FOR VALUES FROM (1) TO (2)";
        let with = |text: &str| {
            let all = statements(text, true).unwrap();
            all[0].with_bound(bound)
        };
        for (before, after) in [
            ("FROM (now()) TO ((f(')')), MAXVALUE)", ""),
            ("in (current_date, NULL)", " PARTITION BY LIST (a)"),
        ] {
            let text = format!("CREATE TABLE a PARTITION OF p FOR values {before}{after};");
            let expected = format!("CREATE TABLE a PARTITION OF p {bound}{after}");
            assert_eq!(with(&text), expected);
        }
        let attached = format!("/* x */ ALTER TABLE p ATTACH PARTITION a {bound}");
        assert_eq!(
            with(&attached.replace("(1)", "(now())")),
            format!("ALTER TABLE p ATTACH PARTITION a {bound}")
        );
        for same in [
            "CREATE TABLE a PARTITION OF p DEFAULT",
            "CREATE TABLE a PARTITION OF p FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
            "CREATE TABLE a (for_values int CHECK (for_values IN (1)))",
        ] {
            assert_eq!(with(same), same);
        }
    }
}
