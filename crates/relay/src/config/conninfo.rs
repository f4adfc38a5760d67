//! A libpq connection string or URI, kept as it is, and what of it may be shown.
//!
//! libpq parses it again when it connects. Here it is only looked through, so that a wrong
//! one is refused without being repeated and a password never reaches a log.

use std::fmt;

/// How URIs begin, exactly.
const SCHEMES: [&str; 2] = ["postgresql://", "postgres://"];

/// What stands in a secret's place.
const MASK: &str = "***";

/// A connection string. What is printed, for people or for debugging, has no secrets in it.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Conninfo(String);

impl Conninfo {
    /// Takes a string of keywords and values, or a URI. An error does not repeat it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.contains('\0') {
            return Err("a connection string cannot contain a zero byte".to_owned());
        }
        if is_uri(text).is_none() {
            keywords(text).map_err(|reason| {
                format!("not a connection string: {reason}; write it as host=db1 user=relay, or as a URI")
            })?;
        }
        Ok(Self(text.to_owned()))
    }

    /// All of it, secrets too: for connecting only.
    pub fn with_secrets(&self) -> &str {
        &self.0
    }

    /// True if it contains a password or another secret, or may do so.
    pub fn has_secret(&self) -> bool {
        self.to_string().contains(MASK)
    }
}

impl fmt::Display for Conninfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match is_uri(&self.0) {
            Some((scheme, rest)) => write!(f, "{scheme}{}", masked_uri(rest)),
            None => match keywords(&self.0) {
                Ok(pairs) => f.write_str(&masked_keywords(&pairs)),
                Err(_) => f.write_str(MASK),
            },
        }
    }
}

impl fmt::Debug for Conninfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Conninfo({self})")
    }
}

fn is_uri(text: &str) -> Option<(&'static str, &str)> {
    SCHEMES
        .into_iter()
        .find_map(|scheme| Some((scheme, text.strip_prefix(scheme)?)))
}

/// True for keywords whose value nobody may see.
fn is_secret(keyword: &str) -> bool {
    let keyword = keyword.to_ascii_lowercase();
    keyword.contains("password") || keyword.contains("secret") || keyword.starts_with("scram_")
}

/// A string within a string: `dbname` may be a whole connection string again.
fn may_hide_secret(value: &str) -> bool {
    let value = value.to_ascii_lowercase();
    value.contains("password") || value.contains("://")
}

/// Keywords and values, read as libpq reads them.
fn keywords(text: &str) -> Result<Vec<(String, String)>, &'static str> {
    let mut pairs = Vec::new();
    let mut left = text.chars().peekable();
    loop {
        while left.next_if(|c| c.is_ascii_whitespace()).is_some() {}
        if left.peek().is_none() {
            return Ok(pairs);
        }
        let mut keyword = String::new();
        while let Some(c) = left.next_if(|&c| c != '=' && !c.is_ascii_whitespace()) {
            keyword.push(c);
        }
        while left.next_if(|c| c.is_ascii_whitespace()).is_some() {}
        if keyword.is_empty() || left.next() != Some('=') {
            return Err("a keyword or its = is missing");
        }
        while left.next_if(|c| c.is_ascii_whitespace()).is_some() {}
        let quoted = left.next_if_eq(&'\'').is_some();
        let mut value = String::new();
        loop {
            match left.next() {
                Some('\'') if quoted => break,
                Some(c) if !quoted && c.is_ascii_whitespace() => break,
                Some('\\') => value.extend(left.next()),
                Some(c) => value.push(c),
                None if quoted => return Err("a quoted value does not end"),
                None => break,
            }
        }
        pairs.push((keyword, value));
    }
}

fn masked_keywords(pairs: &[(String, String)]) -> String {
    let shown: Vec<String> = pairs
        .iter()
        .map(|(keyword, value)| {
            if !value.is_empty() && (is_secret(keyword) || may_hide_secret(value)) {
                return format!("{keyword}={MASK}");
            }
            let plain = |c: char| !c.is_whitespace() && !matches!(c, '\'' | '\\');
            match !value.is_empty() && value.chars().all(plain) {
                true => format!("{keyword}={value}"),
                false => {
                    let escaped = value.replace('\\', "\\\\").replace('\'', "\\'");
                    format!("{keyword}='{escaped}'")
                }
            }
        })
        .collect();
    shown.join(" ")
}

/// What follows the scheme. libpq takes everything before the first `@` for user and
/// password unless a `/` comes first; a URI for which that is surprising is not shown.
fn masked_uri(rest: &str) -> String {
    let before_path = rest.split('/').next().unwrap_or_default();
    let (login, after) = match before_path.split_once('@') {
        Some((login, _)) => (Some(login), rest.get(login.len() + 1..).unwrap_or_default()),
        None => (None, rest),
    };
    let login = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
        Some((user, _)) if user.contains(['?', '=', '&']) => return MASK.to_owned(),
        Some((user, "")) => format!("{user}@"),
        Some((user, _)) => format!("{user}:{MASK}@"),
        None => String::new(),
    };
    let Some((place, parameters)) = after.split_once('?') else {
        return login + after;
    };
    // More @, ? or = than there should be: better nothing than a secret.
    if place.contains(['@', '=']) {
        return MASK.to_owned();
    }
    let parameters: Vec<String> = parameters
        .split('&')
        .map(|parameter| match parameter.split_once('=') {
            Some((keyword, value))
                if is_secret(&decoded(keyword)) || may_hide_secret(&decoded(value)) =>
            {
                format!("{keyword}={MASK}")
            }
            _ => parameter.to_owned(),
        })
        .collect();
    format!("{login}{place}?{}", parameters.join("&"))
}

/// Text with its `%41` decoded, as far as it can be.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut left = text.as_bytes();
    while let Some((&first, rest)) = left.split_first() {
        let escaped = (first == b'%')
            .then(|| rest.get(..2))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(escaped.unwrap_or(first));
        left = match escaped {
            Some(_) => rest.get(2..).unwrap_or_default(),
            None => rest,
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked() {
        for (text, shown) in [
            ("", ""),
            ("host=a,b  port = 1", "host=a,b port=1"),
            ("host=a password=hunter2", "host=a password=***"),
            ("password='hun\\'ter2 x' user=u", "password=*** user=u"),
            ("password=hun\\ ter2 user=u", "password=*** user=u"),
            ("PASSWORD=hunter2", "PASSWORD=***"),
            (
                "sslpassword=hunter2 passfile=/f",
                "sslpassword=*** passfile=/f",
            ),
            ("dbname='password=hunter2'", "dbname=***"),
            ("dbname=postgresql://u:hunter2@h/", "dbname=***"),
            ("oauth_client_secret=hunter2", "oauth_client_secret=***"),
            ("user='a b' dbname=''", "user='a b' dbname=''"),
            ("postgresql://h/d", "postgresql://h/d"),
            ("postgresql://u@h:1,h2:2/d", "postgresql://u@h:1,h2:2/d"),
            ("postgres://u:hunter2@h/d", "postgres://u:***@h/d"),
            ("postgres://u:hun:ter2@h", "postgres://u:***@h"),
            ("postgres://:hunter2@h", "postgres://:***@h"),
            (
                "postgres:///d?host=a&password=hunter2",
                "postgres:///d?host=a&password=***",
            ),
            (
                "postgres:///d?pass%77ord=hunter2&a=b",
                "postgres:///d?pass%77ord=***&a=b",
            ),
            ("postgres://h?password=hunter2", "postgres://h?password=***"),
            ("postgres://h?password=hunter2@x", "postgres://***"),
            (
                "postgres://u:p@h?password=hunter2@x",
                "postgres://u:***@h?password=***",
            ),
            ("postgres://h/a@hunter2=x?b", "postgres://***"),
        ] {
            let conninfo = Conninfo::parse(text).unwrap();
            assert_eq!(conninfo.to_string(), shown, "{text}");
            assert_eq!(conninfo.with_secrets(), text);
            assert_eq!(conninfo.has_secret(), shown.contains("***"));
            assert!(!format!("{conninfo:?}").contains("hunter2"));
        }
    }

    #[test]
    fn wrong_strings_are_refused_without_being_repeated() {
        for text in [
            "hunter2",
            "=hunter2",
            "host a=hunter2",
            "password='hunter2",
            "host=a hunter2",
            "a\0=hunter2",
        ] {
            let error = Conninfo::parse(text).unwrap_err();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn no_password_gets_through_whatever_the_string() {
        let seed = std::env::var("SEED")
            .ok()
            .and_then(|seed| seed.parse().ok())
            .unwrap_or(1);
        let mut random = fastrand::Rng::with_seed(seed);
        let pieces = [
            "host",
            "=",
            "'",
            "\\",
            " ",
            "a",
            "@",
            ":",
            "/",
            "?",
            "&",
            "%70",
            "user",
            "postgres://",
            ",",
        ];
        for round in 0..20_000 {
            let mut text = String::new();
            for _ in 0..random.usize(..12) {
                text.push_str(pieces[random.usize(..pieces.len())]);
            }
            // A secret is the value of a whole keyword or of a URI's login.
            let (before, after) = match is_uri(&text) {
                Some(_) => ("?password=", "&x=y"),
                None => (" password=", " x=y"),
            };
            let text = format!("{text}{before}hunter2{after}");
            if let Ok(conninfo) = Conninfo::parse(&text) {
                assert!(
                    !conninfo.to_string().contains("hunter2"),
                    "seed {seed}, round {round}: {text}"
                );
            }
        }
    }
}
