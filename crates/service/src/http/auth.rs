//! Names and passwords, for HTTP's basic authentication.
//!
//! The file has a line `user:password` for each login. Empty lines and lines that begin with
//! `#` are ignored. The file's permissions are checked each time it is read. What a browser
//! sends is compared as a whole, with every login, and the time that this takes does not depend
//! on where they differ.

use std::fmt;
use std::hint::black_box;
use std::path::Path;

use crate::secret::{self, FileError};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Most logins in a file.
const MOST_LOGINS: usize = 1000;

/// Why a file of passwords cannot be used. The error never quotes a line.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// The file cannot be read, or other users could read it.
    #[error(transparent)]
    File(#[from] FileError),
    #[error("password file {path} line {line}: write user:password")]
    Line {
        path: String,
        /// Counted from 1.
        line: usize,
    },
    /// The file has no logins, or too many.
    #[error("password file {path} has {found} logins: 1 to {MOST_LOGINS} are allowed")]
    Number { path: String, found: usize },
}

/// The logins that are accepted.
pub struct Logins {
    /// Text that follows `Basic ` in the header, for each login.
    tokens: Vec<String>,
}

impl fmt::Debug for Logins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} logins", self.tokens.len())
    }
}

/// What a request's header `Authorization` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Login {
    /// There is no login.
    Missing,
    /// The login is not in the file.
    Wrong,
    /// The login is in the file.
    Right,
}

impl Logins {
    /// Reads the file, and refuses it if other users can read it.
    pub fn load(path: &Path) -> Result<Self, AuthError> {
        let text = secret::read_secret(path, "password file")?;
        Self::parse(&String::from_utf8_lossy(&text), path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, AuthError> {
        let mut tokens = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            match line.split_once(':') {
                Some((user, password)) if !user.is_empty() && !password.is_empty() => {
                    tokens.push(STANDARD.encode(line));
                }
                _ => {
                    return Err(AuthError::Line {
                        path: path.display().to_string(),
                        line: index + 1,
                    });
                }
            }
        }
        match tokens.len() {
            1..=MOST_LOGINS => Ok(Self { tokens }),
            found => Err(AuthError::Number {
                path: path.display().to_string(),
                found,
            }),
        }
    }

    /// Compares a header with all logins.
    pub fn check(&self, header: Option<&[u8]>) -> Login {
        let Some(header) = header else {
            return Login::Missing;
        };
        let Some((scheme, token)) = header.split_first_chunk::<6>() else {
            return Login::Missing;
        };
        if !scheme.eq_ignore_ascii_case(b"basic ") {
            return Login::Missing;
        }
        let token = token.trim_ascii();
        let mut found = false;
        for known in &self.tokens {
            found |= is_same(known.as_bytes(), token);
        }
        match found {
            true => Login::Right,
            false => Login::Wrong,
        }
    }
}

/// Whether both are equal. The time that this takes depends on nothing but their lengths.
fn is_same(known: &[u8], given: &[u8]) -> bool {
    let mut differences = u8::from(known.len() != given.len());
    for (index, byte) in given.iter().enumerate() {
        let other = known.get(index).copied().unwrap_or(!byte);
        differences = black_box(differences | (byte ^ other));
    }
    differences == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logins(text: &str) -> Result<Logins, AuthError> {
        Logins::parse(text, Path::new("/f"))
    }

    fn basic(login: &str) -> Vec<u8> {
        format!("Basic {}", STANDARD.encode(login)).into_bytes()
    }

    #[test]
    fn only_whole_logins_are_right() {
        let ours = logins("# operators\n\nann:pass:word\r\nbob: ü \n").unwrap();
        for (header, expected) in [
            (None, Login::Missing),
            (Some(&b""[..]), Login::Missing),
            (Some(b"Bearer abc"), Login::Missing),
            (Some(b"Basic "), Login::Wrong),
            (Some(b"Basic ?"), Login::Wrong),
            (Some(&basic("ann:pass:word")), Login::Right),
            (Some(&basic("bob: ü ")), Login::Right),
            (Some(&basic("ann:pass:wor")), Login::Wrong),
            (Some(&basic("ann:pass:word2")), Login::Wrong),
            (Some(&basic("ann:")), Login::Wrong),
            (Some(&basic("")), Login::Wrong),
            (Some(&basic("bob:pass:word")), Login::Wrong),
        ] {
            assert_eq!(ours.check(header), expected, "{header:?}");
        }
        let lower = String::from_utf8(basic("ann:pass:word")).unwrap();
        let lower = lower.replace("Basic", "basic");
        assert_eq!(ours.check(Some(lower.as_bytes())), Login::Right);
        assert!(!format!("{ours:?}").contains("pass"));
    }

    #[test]
    fn files_that_cannot_be_used_are_refused_without_saying_what_is_in_them() {
        for (text, words) in [
            ("", "0 logins"),
            ("# nothing\n", "0 logins"),
            ("ann:secret\nsecret", "line 2"),
            (":secret", "line 1"),
            ("secret:", "line 1"),
        ] {
            let said = logins(text).unwrap_err().to_string();
            assert!(said.contains(words), "{text}: {said}");
            assert!(!said.contains("secret"), "{said}");
        }
        assert!(logins(&"a:b\n".repeat(1000)).is_ok());
        assert!(logins(&"a:b\n".repeat(1001)).is_err());
    }
}
