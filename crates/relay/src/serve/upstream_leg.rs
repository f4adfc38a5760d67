//! A session's own connection to the primary.

use std::fs::File;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lockstep_wire::startup::Startup;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::verify_server_name;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as RustlsError, RootCertStore,
    SignatureScheme,
};

use super::listener::keep_alive;
use super::transport::{Prefixed, Transport};

/// How long it may take until the primary is connected, TLS included.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// Where the primary is, and how it is to be spoken to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrimaryAddress {
    /// A name or an address; a path is the folder of a Unix socket.
    pub host: String,
    /// The address, if the name must not be looked up.
    pub hostaddr: Option<String>,
    pub port: u16,
    /// TLS; never on Unix sockets.
    pub tls: Option<TlsToPrimary>,
}

/// How TLS is spoken with the primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsToPrimary {
    /// What is checked of its certificate.
    pub verify: Verify,
    /// Certificates that are trusted, as PEM; needed unless nothing is checked.
    pub root_certificates: Option<PathBuf>,
    /// The name in its certificate; None is `host`.
    pub server_name: Option<String>,
    /// A primary that speaks no TLS is refused. Otherwise it is spoken to in plain, as
    /// libpq's `prefer` does.
    pub required: bool,
}

/// What is checked of the primary's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    /// Nothing: libpq's `require`.
    None,
    /// Somebody trusted has signed the certificate: `verify-ca`.
    Ca,
    /// The certificate is for this host, too: `verify-full`.
    Full,
}

/// Who knows where the primary is.
pub trait Primary: Send + Sync + 'static {
    /// Where the primary is now. An error, for the client, says why that is not known. Must
    /// not block.
    fn primary(&self) -> Result<PrimaryAddress, String>;

    /// Looks for the primary: where it should be is not known, or nobody could be reached at
    /// `gone`. May take long.
    fn find<'a>(&'a self, _gone: Option<&'a PrimaryAddress>) -> Finding<'a> {
        Box::pin(async { self.primary() })
    }
}

/// What a look for the primary finds; the error is for the client.
pub type Finding<'a> = Pin<Box<dyn Future<Output = Result<PrimaryAddress, String>> + Send + 'a>>;

impl<F> Primary for F
where
    F: Fn() -> Result<PrimaryAddress, String> + Send + Sync + 'static,
{
    fn primary(&self) -> Result<PrimaryAddress, String> {
        self()
    }
}

impl PrimaryAddress {
    fn socket(&self) -> Option<PathBuf> {
        self.host
            .starts_with('/')
            .then(|| Path::new(&self.host).join(format!(".s.PGSQL.{}", self.port)))
    }
}

impl std::fmt::Display for PrimaryAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\" port {}", self.host, self.port)
    }
}

/// Connects. The error is for users: what failed, and with whom.
pub(super) async fn connect(primary: &dyn Primary) -> Result<Transport, String> {
    let late = |_| format!("no answer in {} s", CONNECT_DEADLINE.as_secs());
    let known = match primary.primary() {
        Ok(known) => known,
        Err(_) => {
            let found = timeout(CONNECT_DEADLINE, primary.find(None)).await;
            found.map_err(late)??
        }
    };
    let failed = match connect_to(&known).await {
        Ok(transport) => return Ok(transport),
        Err(failed) => failed,
    };
    // It may be back, or another server may be the primary by now.
    match timeout(CONNECT_DEADLINE, primary.find(Some(&known))).await {
        Ok(Ok(found)) => connect_to(&found).await,
        _ => Err(failed),
    }
}

async fn connect_to(address: &PrimaryAddress) -> Result<Transport, String> {
    match timeout(CONNECT_DEADLINE, open(address)).await {
        Ok(Ok(transport)) => Ok(transport),
        Ok(Err(error)) => Err(format!("connecting to {address}: {error}")),
        Err(_) => Err(format!(
            "connecting to {address}: no answer in {} s",
            CONNECT_DEADLINE.as_secs()
        )),
    }
}

async fn open(address: &PrimaryAddress) -> io::Result<Transport> {
    if let Some(path) = address.socket() {
        return UnixStream::connect(path).await.map(Transport::Unix);
    }
    let host = address.hostaddr.as_deref().unwrap_or(&address.host);
    let stream = TcpStream::connect((host, address.port)).await?;
    keep_alive(&stream)?;
    let stream = Transport::Tcp(stream);
    match &address.tls {
        Some(tls) => encrypt(stream, address, tls).await,
        None => Ok(stream),
    }
}

async fn encrypt(
    mut stream: Transport,
    address: &PrimaryAddress,
    tls: &TlsToPrimary,
) -> io::Result<Transport> {
    // First, so that a file that cannot be used is found even where it is not needed yet.
    let config = client_config(tls)?;
    let mut request = Vec::new();
    Startup::SslRequest.encode(&mut request);
    stream.write_all(&request).await?;
    stream.flush().await?;
    // Exactly one byte: whatever somebody may have put behind it in plain must not be
    // taken for what comes through TLS.
    match stream.read_u8().await? {
        b'S' => {}
        b'N' if !tls.required => return Ok(stream),
        b'N' => return Err(io::Error::other("the server does not speak TLS")),
        _ => return Err(io::Error::other("this is not a PostgreSQL server")),
    }
    let name = tls.server_name.as_ref().unwrap_or(&address.host);
    let name = ServerName::try_from(name.clone())
        .map_err(|_| io::Error::other(format!("\"{name}\" cannot be a server's name for TLS")))?;
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, Prefixed::new(&[], stream))
        .await?;
    Ok(Transport::Tls(Box::new(stream.into())))
}

fn client_config(tls: &TlsToPrimary) -> io::Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Check::new(tls, &provider)?;
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth())
}

/// What libpq's modes check.
#[derive(Debug)]
struct Check {
    verify: Verify,
    /// Certificates in the file. A server's own may be among them, often one that
    /// it has signed itself and that may therefore sign nothing: it is trusted as it is.
    trusted: Vec<CertificateDer<'static>>,
    chain: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl Check {
    fn new(tls: &TlsToPrimary, provider: &Arc<CryptoProvider>) -> io::Result<Self> {
        let mut check = Self {
            verify: tls.verify,
            trusted: Vec::new(),
            chain: None,
            provider: Arc::clone(provider),
        };
        if tls.verify == Verify::None {
            return Ok(check);
        }
        let path = tls.root_certificates.as_deref().ok_or_else(|| {
            io::Error::other("checking the server's certificate needs a file of root certificates")
        })?;
        let unusable = |error: &dyn std::fmt::Display| {
            io::Error::other(format!("root certificates {}: {error}", path.display()))
        };
        let file = File::open(path).map_err(|error| unusable(&error))?;
        check.trusted = CertificateDer::pem_reader_iter(file)
            .collect::<Result<_, _>>()
            .map_err(|error| unusable(&error))?;
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(check.trusted.iter().cloned());
        let chain =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
                .build()
                .map_err(|error| unusable(&error))?;
        check.chain = Some(chain);
        Ok(check)
    }
}

impl ServerCertVerifier for Check {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, RustlsError> {
        let Some(chain) = &self.chain else {
            return Ok(ServerCertVerified::assertion());
        };
        if self.trusted.iter().any(|trusted| trusted == end_entity) {
            if self.verify == Verify::Full {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
            }
            return Ok(ServerCertVerified::assertion());
        }
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is checked last, when the chain has been found good.
            Err(RustlsError::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.verify == Verify::Ca => Ok(ServerCertVerified::assertion()),
            checked => checked,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        tokio_rustls::rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        tokio_rustls::rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
