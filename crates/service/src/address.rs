//! Where to listen.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

/// Longest path of a Unix socket that the kernel accepts, in bytes without the final zero.
const LONGEST_SOCKET: usize = 107;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    /// A name or a numeric address, IPv6 without brackets.
    pub host: String,
    /// Port to listen on; for 0 the system chooses a free one.
    pub port: u16,
}

impl HostPort {
    /// Parses `host:port` or `[IPv6]:port`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{} is no address: write host:port, such as 127.0.0.1:6543 or [::1]:6543",
                crate::words::quoted(text)
            )
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let bracketed = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let host = match bracketed {
            Some(host) if host.parse::<std::net::Ipv6Addr>().is_ok() => host,
            None if !host.is_empty() && host.chars().all(plain) => host,
            _ => return Err(wrong()),
        };
        Ok(Self {
            host: host.to_owned(),
            port: port_of(port).ok_or_else(wrong)?,
        })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    Tcp(HostPort),
    /// A Unix socket, named as PostgreSQL names its own, `.s.PGSQL.PORT`.
    Unix {
        /// An absolute path.
        folder: PathBuf,
        /// Part of the socket's name.
        port: u16,
    },
}

impl Listen {
    /// Whether other machines may connect, as far as the address says.
    pub fn is_remote(&self) -> bool {
        match self {
            Self::Unix { .. } => false,
            Self::Tcp(at) => match at.host.parse::<IpAddr>() {
                Ok(address) => !address.to_canonical().is_loopback(),
                Err(_) => !at.host.eq_ignore_ascii_case("localhost"),
            },
        }
    }

    /// Parses `host:port`, or `/folder:port` for a Unix socket.
    pub fn parse(text: &str) -> Result<Self, String> {
        if !text.starts_with('/') {
            return HostPort::parse(text).map(Self::Tcp);
        }
        let wrong = || {
            format!(
                "{} is no place for a Unix socket: write folder:port, such as /run/lockstep:6543",
                crate::words::quoted(text)
            )
        };
        let (folder, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let listen = Self::Unix {
            folder: folder.into(),
            port: port_of(port).filter(|&port| port > 0).ok_or_else(wrong)?,
        };
        match listen.socket() {
            Some(path) if path.as_os_str().len() > LONGEST_SOCKET => Err(format!(
                "the Unix socket's path would be longer than {LONGEST_SOCKET} bytes"
            )),
            _ => Ok(listen),
        }
    }

    /// The path of the Unix socket; None for TCP.
    pub fn socket(&self) -> Option<PathBuf> {
        match self {
            Self::Tcp(_) => None,
            Self::Unix { folder, port } => Some(folder.join(format!(".s.PGSQL.{port}"))),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix { folder, port } => write!(f, "{}:{port}", folder.display()),
        }
    }
}

/// Parses a port. It may hold digits only, no sign.
fn port_of(text: &str) -> Option<u16> {
    match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse().ok(),
        false => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_as_they_are_written() {
        for text in [
            "127.0.0.1:6543",
            "[::1]:6543",
            "db-1.example.org:5432",
            "0.0.0.0:0",
            "/run/lockstep:6543",
            "/a:b:1",
        ] {
            assert_eq!(Listen::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(
            Listen::parse("/run/lockstep:6543").unwrap().socket(),
            Some("/run/lockstep/.s.PGSQL.6543".into())
        );
    }

    #[test]
    fn an_address_of_this_machine_alone_is_not_remote() {
        for (text, remote) in [
            ("127.0.0.1:1", false),
            ("127.9.9.9:1", false),
            ("[::1]:1", false),
            ("[::ffff:127.0.0.1]:1", false),
            ("Localhost:1", false),
            ("/run/lockstep:1", false),
            ("0.0.0.0:1", true),
            ("[::]:1", true),
            ("192.0.2.1:1", true),
            ("relay1:1", true),
        ] {
            assert_eq!(Listen::parse(text).unwrap().is_remote(), remote, "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            ":",
            ":6543",
            "127.0.0.1",
            "127.0.0.1:",
            "127.0.0.1:65536",
            "127.0.0.1:+1",
            "::1:6543",
            "[::1:6543",
            "[]:1",
            "[host]:1",
            "a b:1",
            "host/x:1",
            "/run",
            "/run:0",
            "/run:x",
            "run:/x",
        ] {
            assert!(Listen::parse(text).is_err(), "{text}");
        }
        assert!(Listen::parse(&format!("/{}:1", "x".repeat(200))).is_err());
        assert!(HostPort::parse("/run/x:1").is_err());
    }
}
