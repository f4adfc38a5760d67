//! A client's first packet: a length, a code, and for a session its parameters.

use crate::cursor::{Cursor, put_c_str};
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Minor version of protocol 3.
    pub minor: u16,
    /// Names and values: `user`, `database`, `replication`, settings.
    pub parameters: Vec<(String, String)>,
}

impl Session {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.parameters
            .iter()
            .find(|(given, _)| given == name)
            .map(|(_, value)| value.as_str())
    }

    /// Names of parameters that are options of the protocol, not settings.
    pub fn protocol_options(&self) -> impl Iterator<Item = &str> {
        self.parameters
            .iter()
            .map(|(name, _)| name.as_str())
            .filter(|name| name.starts_with("_pq_."))
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
                let mut parameters = Vec::new();
                loop {
                    let name = cursor.c_bytes()?;
                    if name.is_empty() {
                        break;
                    }
                    let value = cursor.c_bytes()?;
                    parameters.push((lossy(name), lossy(value)));
                }
                cursor.end()?;
                Ok(Self::Session(Session {
                    // The high half is compared already.
                    minor: (version & 0xFFFF) as u16,
                    parameters,
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
                    put_c_str(out, name);
                    put_c_str(out, value);
                }
                out.push(0);
            }
        });
    }
}

/// The client's encoding is not known yet.
fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
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
                ("user".to_owned(), "me".to_owned()),
                ("replication".to_owned(), "true".to_owned()),
                ("_pq_.x".to_owned(), String::new()),
            ],
        };
        assert_eq!(session.get("user"), Some("me"));
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
