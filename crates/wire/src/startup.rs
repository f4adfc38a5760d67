//! A client's first packet: a length, a code, and for a session its parameters.
//!
//! A server goes through the parameters one after the other, and of a name given twice the last
//! value counts; some values even add up. Whoever stands between client and server must not
//! read the packet in another way, so a name given twice is an error here.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::command::MOST_NAME;
use crate::cursor::{Cursor, put_c_bytes};
use crate::frame::{body_length, put_counted};
use crate::{Result, WireError};

/// Bytes of the length.
pub const HEADER: usize = 4;

/// Longest first packet, the same as a server's own limit.
pub const LIMIT: usize = 10_000;

const CANCEL: u32 = 1234 << 16 | 5678;
const SSL: u32 = 1234 << 16 | 5679;
const GSS: u32 = 1234 << 16 | 5680;

/// The major version of the protocol.
pub const MAJOR: u16 = 3;

/// Why a packet is refused that names a parameter twice.
pub const TWICE: &str = "a parameter that is given twice";

/// What names of options of the protocol begin with.
pub const PROTOCOL_OPTION: &str = "_pq_.";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Startup {
    /// The client asks for TLS. The answer is one byte, `S` or `N`.
    SslRequest,
    /// The client asks for GSSAPI encryption. The answer is one byte, `G` or `N`.
    GssEncRequest,
    /// The client cancels the command of another connection. There is no answer.
    CancelRequest {
        /// Process of the other connection.
        process: u32,
        /// Secret of the other connection.
        secret: Vec<u8>,
    },
    Session(Session),
}

/// A parameter's name and its value, in whatever encoding the client uses.
pub type Parameter = (Vec<u8>, Vec<u8>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Minor version of protocol 3.
    pub minor: u16,
    /// `user`, `database`, `replication`, options of the protocol (`_pq_.…`), settings; each
    /// name once.
    pub parameters: Vec<Parameter>,
}

/// What a client asks for with parameter `replication`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replication {
    /// An ordinary session.
    None,
    /// Physical replication; the session has no database.
    Physical,
    /// Replication commands and SQL in a database.
    Logical,
    /// A value that servers refuse.
    Unknown,
}

impl Session {
    pub fn new(minor: u16, parameters: &[(&str, &str)]) -> Self {
        let owned = |text: &str| text.as_bytes().to_vec();
        Self {
            minor,
            parameters: parameters
                .iter()
                .map(|(name, value)| (owned(name), owned(value)))
                .collect(),
        }
    }

    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.parameters
            .iter()
            .find(|(given, _)| given == name.as_bytes())
            .map(|(_, value)| value.as_slice())
    }

    /// A value to be shown: what is not UTF-8 in it is replaced.
    pub fn text(&self, name: &str) -> Option<Cow<'_, str>> {
        self.get(name).map(String::from_utf8_lossy)
    }

    /// Names of parameters that are options of the protocol, not settings.
    pub fn protocol_options(&self) -> impl Iterator<Item = &str> {
        self.parameters
            .iter()
            .filter_map(|(name, _)| std::str::from_utf8(name).ok())
            .filter(|name| name.starts_with(PROTOCOL_OPTION))
    }

    /// The role that the client names.
    pub fn user(&self) -> &[u8] {
        cut(self.get("user").unwrap_or_default())
    }

    /// The database that the client names, by default the one with the role's name.
    pub fn database(&self) -> &[u8] {
        match self.get("database") {
            Some(database) if !database.is_empty() => cut(database),
            _ => self.user(),
        }
    }

    pub fn replication(&self) -> Replication {
        match self.get("replication") {
            None => Replication::None,
            Some(b"database") => Replication::Logical,
            Some(value) => match boolean(value) {
                Some(true) => Replication::Physical,
                Some(false) => Replication::None,
                None => Replication::Unknown,
            },
        }
    }
}

/// A name as servers cut it here: by bytes, also within a character.
fn cut(name: &[u8]) -> &[u8] {
    name.get(..MOST_NAME).unwrap_or(name)
}

/// A boolean as servers read it here: any beginning of `true`, `false`, `yes`, `no`, `on` or
/// `off` that can only be one of them, in any case, or 1 or 0.
fn boolean(value: &[u8]) -> Option<bool> {
    let value = value.to_ascii_lowercase();
    let begins = |word: &[u8], least: usize| value.len() >= least && word.starts_with(&value);
    match value.as_slice() {
        b"1" => Some(true),
        b"0" => Some(false),
        _ if begins(b"true", 1) || begins(b"yes", 1) || begins(b"on", 2) => Some(true),
        _ if begins(b"false", 1) || begins(b"no", 1) || begins(b"off", 2) => Some(false),
        _ => None,
    }
}

/// Bytes that follow the length.
pub fn length(header: [u8; HEADER]) -> Result<usize> {
    let length = body_length(i32::from_be_bytes(header), LIMIT)?;
    match length >= 4 {
        true => Ok(length),
        false => Err(WireError::Truncated("first packet")),
    }
}

impl Startup {
    /// Parses the packet without its length.
    pub fn parse(body: &[u8]) -> Result<Self> {
        if body.len() > LIMIT {
            return Err(WireError::TooLong {
                length: body.len(),
                limit: LIMIT,
            });
        }
        let mut cursor = Cursor::new(body, "first packet");
        match cursor.u32()? {
            SSL => cursor.end().map(|()| Self::SslRequest),
            GSS => cursor.end().map(|()| Self::GssEncRequest),
            CANCEL => Ok(Self::CancelRequest {
                process: cursor.u32()?,
                secret: cursor.rest().to_vec(),
            }),
            version if version >> 16 == u32::from(MAJOR) => {
                Ok(Self::Session(Session {
                    // The high half is compared already.
                    minor: (version & 0xFFFF) as u16,
                    parameters: parameters(cursor)?,
                }))
            }
            _ => Err(WireError::Malformed("an unknown protocol version")),
        }
    }

    /// Appends the packet with its length.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_counted(out, |out| match self {
            Self::SslRequest => out.extend(SSL.to_be_bytes()),
            Self::GssEncRequest => out.extend(GSS.to_be_bytes()),
            Self::CancelRequest { process, secret } => {
                out.extend(CANCEL.to_be_bytes());
                out.extend(process.to_be_bytes());
                out.extend(secret);
            }
            Self::Session(session) => {
                out.extend((u32::from(MAJOR) << 16 | u32::from(session.minor)).to_be_bytes());
                for (name, value) in &session.parameters {
                    put_c_bytes(out, name);
                    put_c_bytes(out, value);
                }
                out.push(0);
            }
        });
    }
}

/// Names and values up to an empty name, which must be the end.
fn parameters(mut cursor: Cursor<'_>) -> Result<Vec<Parameter>> {
    let mut names = HashSet::new();
    let mut parameters = Vec::new();
    loop {
        let name = cursor.c_bytes()?;
        if name.is_empty() {
            cursor.end()?;
            return Ok(parameters);
        }
        let value = cursor.c_bytes()?;
        if !names.insert(name) {
            return Err(WireError::Malformed(TWICE));
        }
        parameters.push((name.to_vec(), value.to_vec()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn back(packet: &Startup) -> Startup {
        let mut bytes = Vec::new();
        packet.encode(&mut bytes);
        let (head, body) = bytes.split_first_chunk::<HEADER>().unwrap();
        assert_eq!(length(*head), Ok(body.len()));
        Startup::parse(body).unwrap()
    }

    #[test]
    fn packets_come_back_as_they_were() {
        let session = Session {
            minor: 2,
            parameters: vec![
                (b"user".to_vec(), b"me\xff".to_vec()),
                (b"User".to_vec(), b"\xe4".to_vec()),
                (b"_pq_.x".to_vec(), Vec::new()),
            ],
        };
        assert_eq!(session.get("user"), Some(&b"me\xff"[..]));
        assert_eq!(session.get("use"), None);
        assert_eq!(session.text("user").as_deref(), Some("me\u{fffd}"));
        assert_eq!(session.protocol_options().collect::<Vec<_>>(), ["_pq_.x"]);
        for packet in [
            Startup::SslRequest,
            Startup::GssEncRequest,
            Startup::CancelRequest {
                process: 7,
                secret: vec![1, 2, 3, 4],
            },
            Startup::Session(session),
        ] {
            assert_eq!(back(&packet), packet);
        }
    }

    fn session(parameters: &[(&str, &str)]) -> Session {
        Session::new(0, parameters)
    }

    #[test]
    fn a_parameter_given_twice_is_refused() {
        for twice in [
            &b"\0\x03\0\0user\0me\0user\0you\0\0"[..],
            b"\0\x03\0\0user\0me\0user\0me\0\0",
            b"\0\x03\0\0user\0me\0a\0b\0replication\0database\0a\0\0\0",
            b"\0\x03\0\0user\0me\0_pq_.a\0\0_pq_.a\0\0\0",
            b"\0\x03\0\0\xff\0\0\xff\0\0\0",
        ] {
            let error = Startup::parse(twice).unwrap_err();
            assert!(error.to_string().contains("given twice"), "{error}");
        }
        // Other names, as a server has it.
        assert!(Startup::parse(b"\0\x03\0\0user\0me\0User\0you\0\0").is_ok());
        assert!(Startup::parse(b"\0\x03\0\0\xff\0\0\xfe\0\0\0").is_ok());
    }

    #[test]
    fn role_and_database_are_those_that_a_server_takes() {
        let long = "x".repeat(62) + "é";
        for (parameters, user, database) in [
            (&[("user", "me"), ("database", "db")][..], "me", "db"),
            (&[("user", "me"), ("database", "")], "me", "me"),
            (&[("user", "me")], "me", "me"),
            (&[("database", "db")], "", "db"),
        ] {
            let session = session(parameters);
            assert_eq!(session.user(), user.as_bytes());
            assert_eq!(session.database(), database.as_bytes());
        }
        let session = session(&[("user", &long)]);
        assert_eq!(session.user(), &long.as_bytes()[..63]);
        assert_eq!(session.database(), session.user());
    }

    #[test]
    fn replication_is_read_as_servers_do() {
        use Replication::{Logical, None, Physical, Unknown};
        assert_eq!(session(&[]).replication(), None);
        for (value, meaning) in [
            ("database", Logical),
            ("Database", Unknown),
            ("databas", Unknown),
            ("true", Physical),
            ("T", Physical),
            ("yE", Physical),
            ("on", Physical),
            ("1", Physical),
            ("0", None),
            ("f", None),
            ("No", None),
            ("of", None),
            ("off", None),
            ("o", Unknown),
            ("offf", Unknown),
            ("", Unknown),
            ("10", Unknown),
            (" on", Unknown),
        ] {
            let session = session(&[("replication", value)]);
            assert_eq!(session.replication(), meaning, "{value:?}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for body in [
            &b""[..],
            b"\0\0\0",
            b"\0\x02\0\0\0",
            b"\0\x03\0\0",
            b"\0\x03\0\0user\0me\0",
            b"\0\x03\0\0user\0me",
            b"\0\x03\0\0\0more",
            b"\x16\x03\x01\x02",
        ] {
            assert!(Startup::parse(body).is_err(), "{body:?}");
        }
        assert!(length([0, 0, 0, 7]).is_err());
        assert!(length([0x16, 3, 1, 2]).is_err());
        assert!(Startup::parse(&[0; LIMIT + 1]).is_err());
    }
}
