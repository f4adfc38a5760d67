//! A Rust file as its words and signs, without comments and texts.

/// A word, a number, `::`, or one other sign.
#[derive(Debug, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Whether it can be a name: keywords are among these too.
    pub fn is_name(&self) -> bool {
        self.0
            .starts_with(|first: char| first.is_alphabetic() || first == '_')
    }
}

/// The tokens of a file.
pub fn tokens(text: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => block_comment(rest),
            '"' => quoted(rest, 1),
            'b' | 'c' if rest[1..].starts_with('"') => quoted(rest, 2),
            'r' if is_raw(&rest[1..]) => raw(rest, 1),
            'b' | 'c' if rest[1..].starts_with('r') && is_raw(&rest[2..]) => raw(rest, 2),
            '\'' => character(rest),
            _ if first.is_whitespace() => first.len_utf8(),
            _ => {
                let length = token(rest, first);
                found.push(Token(rest[..length].to_owned()));
                length
            }
        };
        rest = &rest[length..];
    }
    found
}

fn token(rest: &str, first: char) -> usize {
    if rest.starts_with("::") {
        return 2;
    }
    if !first.is_alphanumeric() && first != '_' {
        return first.len_utf8();
    }
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
    end.unwrap_or(rest.len())
}

fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        let step = match here {
            [b'/', b'*', ..] => {
                depth += 1;
                2
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                2
            }
            _ => 1,
        };
        at += step;
        if depth == 0 {
            break;
        }
    }
    at
}

/// The length of a quoted text whose quote is at `from - 1`.
fn quoted(rest: &str, from: usize) -> usize {
    let mut escaped = false;
    for (at, byte) in rest.bytes().enumerate().skip(from) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Whether the hashes and the quote of a raw text follow.
fn is_raw(after: &str) -> bool {
    after.trim_start_matches('#').starts_with('"')
}

fn raw(rest: &str, prefix: usize) -> usize {
    let hashes = rest[prefix..]
        .bytes()
        .take_while(|byte| *byte == b'#')
        .count();
    let begin = prefix + hashes + 1;
    let end = format!("\"{}", "#".repeat(hashes));
    rest[begin..]
        .find(&end)
        .map_or(rest.len(), |at| begin + at + end.len())
}

/// A character, or the quote of a lifetime.
fn character(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    let (Some((_, first)), Some((second_at, second))) = (chars.next(), chars.next()) else {
        return 1;
    };
    match first {
        '\\' => rest[second_at + second.len_utf8()..]
            .find('\'')
            .map_or(rest.len(), |at| second_at + second.len_utf8() + at + 1),
        _ if second == '\'' => second_at + 1,
        _ => 1,
    }
}
