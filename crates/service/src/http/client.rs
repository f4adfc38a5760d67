//! Asks other servers over HTTP: agents of a pool, Patroni. Requests block, for a bounded time.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::address::HostPort;
use crate::secret::{self, FileError};

/// How long a server may take for its whole answer, with the look-up of its name.
const PATIENCE: Duration = Duration::from_secs(3);

/// How a server is asked.
#[derive(Debug, Clone, Default)]
pub struct Asking {
    /// `user:password`, if it wants a login.
    login: Option<String>,
    /// TLS, if it speaks it.
    tls: Option<Arc<ClientConfig>>,
    /// Most bytes of an answer.
    most: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum AskingError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{0}")]
    Content(String),
}

impl Asking {
    /// Reads the login, the first line of a file that others must not be able to read, and the certificate
    /// authority. Of an answer `most` bytes are read.
    pub fn open(
        login: Option<&Path>,
        authority: Option<&Path>,
        most: u64,
    ) -> Result<Self, AskingError> {
        let login = match login {
            Some(path) => {
                let text = secret::read_secret(path, "login file")?;
                let text = String::from_utf8_lossy(&text);
                let line = text.lines().next().unwrap_or_default();
                match line.contains(':') {
                    true => Some(line.to_owned()),
                    false => {
                        let path = path.display();
                        let words = format!("login file {path}: write user:password");
                        return Err(AskingError::Content(words));
                    }
                }
            }
            None => None,
        };
        let tls = authority.map(client_config).transpose()?;
        Ok(Self { login, tls, most })
    }

    pub fn has_login(&self) -> bool {
        self.login.is_some()
    }

    /// This way of asking without TLS.
    pub fn plain(&self) -> Self {
        Self {
            tls: None,
            ..self.clone()
        }
    }

    /// Status and body of `GET path`; words if there is no answer.
    pub fn get(&self, at: &HostPort, path: &str) -> Result<(u16, String), String> {
        let words = |error: io::Error| match is_late(&error) {
            true => format!("no whole answer within {} s", PATIENCE.as_secs()),
            false => certificate_words(error.to_string()),
        };
        let text = self.exchange(at, path).map_err(words)?;
        let (head, body) = text
            .split_once("\r\n\r\n")
            .ok_or("what answers there speaks no HTTP")?;
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        let status = status.ok_or("what answers there speaks no HTTP")?;
        Ok((status, body.to_owned()))
    }

    /// HTTP 1.0, so that the answer comes in one piece and ends with the connection.
    fn exchange(&self, at: &HostPort, path: &str) -> io::Result<String> {
        let until = Instant::now() + PATIENCE;
        let stream = InTime {
            stream: connect(&addresses(at)?, until)?,
            until,
        };
        let login = match &self.login {
            Some(login) => format!("Authorization: Basic {}\r\n", STANDARD.encode(login)),
            None => String::new(),
        };
        let request =
            format!("GET {path} HTTP/1.0\r\nHost: {at}\r\n{login}Connection: close\r\n\r\n");
        let Some(config) = &self.tls else {
            return self.converse(stream, &request);
        };
        let name = ServerName::try_from(at.host.clone()).map_err(io::Error::other)?;
        let session = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        self.converse(StreamOwned::new(session, stream), &request)
    }

    fn converse(&self, mut stream: impl Read + Write, request: &str) -> io::Result<String> {
        stream.write_all(request.as_bytes())?;
        let mut text = Vec::new();
        let read = stream.take(self.most).read_to_end(&mut text);
        match read {
            // One that keeps the connection has answered nevertheless if all that it announced is there.
            Err(error) if is_late(&error) && !is_whole(&text) => return Err(error),
            // Some close without saying so first; what they sent is whole if it can be read.
            Err(error) if text.is_empty() => return Err(error),
            _ => {}
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// The body of an answer is as long as its head announces.
fn is_whole(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_length = name.eq_ignore_ascii_case("content-length");
        value.trim().parse().ok().filter(|_: &usize| is_length)
    });
    length.is_some_and(|length| body.len() >= length)
}

/// Addresses of a name. Its look-up has no time limit of its own, so a thread does it.
fn addresses(at: &HostPort) -> io::Result<Vec<SocketAddr>> {
    let (found, answer) = mpsc::channel();
    let (host, port) = (at.host.clone(), at.port);
    thread::Builder::new().spawn(move || {
        let addresses = (host.as_str(), port).to_socket_addrs();
        let _ = found.send(addresses.map(Iterator::collect));
    })?;
    let answer = answer.recv_timeout(PATIENCE);
    answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Tries one address after another; each gets its share of the time, so that one that is silent leaves some
/// to the next.
fn connect(addresses: &[SocketAddr], until: Instant) -> io::Result<TcpStream> {
    let mut stream = Err(io::Error::other("its name has no address"));
    for (tried, address) in addresses.iter().enumerate() {
        let share = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
        stream = TcpStream::connect_timeout(address, time_left(until)? / share);
        if stream.is_ok() {
            break;
        }
    }
    stream
}

/// The time until then; an error if it is over, as a socket takes no time limit of zero.
fn time_left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

/// A stream on which all must be over in time, however many pieces it comes in.
struct InTime {
    stream: TcpStream,
    until: Instant,
}

impl Read for InTime {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(time_left(self.until)?))?;
        self.stream.read(to)
    }
}

impl Write for InTime {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.stream
            .set_write_timeout(Some(time_left(self.until)?))?;
        self.stream.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Words for a user who gave a server the certificate of a certificate authority, which TLS refuses for a
/// server.
fn certificate_words(words: String) -> String {
    match words.contains("CaUsedAsEndEntity") {
        true => {
            "its certificate is one of a certificate authority (CA:TRUE): give the server one with \
                 basicConstraints=CA:FALSE"
                .to_owned()
        }
        false => words,
    }
}

fn client_config(path: &Path) -> Result<Arc<ClientConfig>, AskingError> {
    let text = secret::read(path, "certificate authority")?;
    let wrong = |words: String| AskingError::Content(format!("{}: {words}", path.display()));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        roots
            .add(certificate)
            .map_err(|error| wrong(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(wrong("there is no certificate in it".to_owned()));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(error.to_string()))?;
    Ok(Arc::new(
        config.with_root_certificates(roots).with_no_client_auth(),
    ))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_answer_is_whole_if_all_that_it_announces_is_there() {
        for (text, whole) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", true),
            ("HTTP/1.1 200 OK\r\ncontent-length:2\r\n\r\n{", false),
            ("HTTP/1.1 200 OK\r\n\r\n{}", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n", false),
        ] {
            assert_eq!(is_whole(text.as_bytes()), whole, "{text}");
        }
    }

    /// Answers once with this; then byte after byte, or nothing more.
    fn server(head: &'static str, drips: bool) -> HostPort {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = HostPort::parse(&listener.local_addr().unwrap().to_string()).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(head.as_bytes()).unwrap();
            while !drips || stream.write_all(b" ").is_ok() {
                thread::sleep(Duration::from_millis(200));
            }
        });
        at
    }

    #[test]
    fn the_whole_answer_has_one_deadline() {
        let asking = Asking {
            most: 1 << 20,
            ..Asking::default()
        };
        let began = Instant::now();
        let dripping = server("HTTP/1.0 200 OK\r\n\r\n{}", true);
        let keeps = server("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", false);
        let (late, whole) = thread::scope(|scope| {
            let late = scope.spawn(|| asking.get(&dripping, "/cluster"));
            let whole = asking.get(&keeps, "/cluster");
            (late.join().unwrap(), whole)
        });
        assert_eq!(late, Err("no whole answer within 3 s".to_owned()));
        assert_eq!(whole, Ok((200, "{}".to_owned())));
        assert!(began.elapsed() < 2 * PATIENCE, "{:?}", began.elapsed());
    }
}
