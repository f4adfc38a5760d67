//! Asks other servers over HTTP: agents of a pool, Patroni. Requests block, for a bounded time.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::address::HostPort;
use crate::secret::{self, FileError};

/// How long a server may take for each step.
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
        let words = |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("no answer within {} s", PATIENCE.as_secs())
            }
            _ => certificate_words(error.to_string()),
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
        let addresses = (at.host.as_str(), at.port).to_socket_addrs()?;
        let mut stream = Err(io::Error::other("its name has no address"));
        for address in addresses {
            stream = TcpStream::connect_timeout(&address, PATIENCE);
            if stream.is_ok() {
                break;
            }
        }
        let stream = stream?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
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
        // Some close without saying so first; what they sent is whole if it can be read.
        if text.is_empty() {
            read?;
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
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
