//! TLS towards clients: certificate and key from files.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::unistd::geteuid;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::transport::{Prefixed, Transport};

/// The protocol's name in ALPN, without which TLS may not begin at once.
pub(super) const ALPN: &[u8] = b"postgresql";

/// Largest file that is read, in bytes.
const LARGEST_FILE: u64 = 1024 * 1024;

/// Why certificate and key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {what} {}: {source}", path.display())]
    Read {
        /// What it is.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Others could read the key.
    #[error(
        "private key {} has mode {mode:04o} and owner {owner}: it must belong to the relay's user with mode 0600 or less, or to root with 0640 or less",
        path.display()
    )]
    Permissions {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
        /// Its owner's number.
        owner: u32,
    },
    /// A file holds something else.
    #[error("{what} {} cannot be used: {reason}", path.display())]
    Content {
        /// What it should be.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// Files for TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and those that lead to its root, as PEM.
    pub certificate: PathBuf,
    /// Its private key, as PEM, without a passphrase.
    pub key: PathBuf,
}

/// Certificate and key as they were in the files.
pub struct Tls {
    files: TlsFiles,
    certificates: Vec<CertificateDer<'static>>,
    config: Arc<ServerConfig>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tls").field(&self.files).finish()
    }
}

impl Tls {
    /// Reads the files.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let (certificates, config) = server_config(&files)?;
        Ok(Self {
            files,
            certificates,
            config: Arc::new(config),
        })
    }

    /// Where it came from.
    pub fn files(&self) -> &TlsFiles {
        &self.files
    }

    /// Whether clients see the same certificates.
    pub fn shows_same(&self, other: &Self) -> bool {
        self.certificates == other.certificates
    }

    /// The server's side of a handshake. `read` was read already. The name in ALPN, if
    /// there was one, comes back as well.
    pub(super) async fn accept(
        &self,
        read: &[u8],
        stream: Transport,
    ) -> std::io::Result<(Transport, bool)> {
        let stream = TlsAcceptor::from(Arc::clone(&self.config))
            .accept(Prefixed::new(read, stream))
            .await?;
        let named = stream.get_ref().1.alpn_protocol() == Some(ALPN);
        Ok((Transport::Tls(Box::new(stream.into())), named))
    }
}

type Certificates = Vec<CertificateDer<'static>>;

fn server_config(files: &TlsFiles) -> Result<(Certificates, ServerConfig), TlsError> {
    let text = read(&files.certificate, "certificate", |_| Ok(()))?;
    let content = |path: &Path, what, reason: String| TlsError::Content {
        what,
        path: path.to_owned(),
        reason,
    };
    let certificates = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<Certificates, _>>()
        .map_err(|error| content(&files.certificate, "certificate", error.to_string()))?;
    if certificates.is_empty() {
        return Err(content(
            &files.certificate,
            "certificate",
            "there is none in it".to_owned(),
        ));
    }
    let text = read(&files.key, "private key", |file| {
        may_hold_key(&files.key, file)
    })?;
    let key = PrivateKeyDer::from_pem_slice(&text)
        .map_err(|error| content(&files.key, "private key", error.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            builder
                .with_no_client_auth()
                .with_single_cert(certificates.clone(), key)
        })
        .map_err(|error| content(&files.key, "private key", error.to_string()))?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok((certificates, config))
}

fn read(
    path: &Path,
    what: &'static str,
    check: impl FnOnce(&File) -> Result<(), TlsError>,
) -> Result<Vec<u8>, TlsError> {
    let failed = |source| TlsError::Read {
        what,
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(failed)?;
    check(&file)?;
    let mut text = Vec::new();
    file.take(LARGEST_FILE)
        .read_to_end(&mut text)
        .map_err(failed)?;
    Ok(text)
}

/// The same rule as PostgreSQL's, for the file that is open.
fn may_hold_key(path: &Path, file: &File) -> Result<(), TlsError> {
    let about = file.metadata().map_err(|source| TlsError::Read {
        what: "private key",
        path: path.to_owned(),
        source,
    })?;
    let mode = about.mode() & 0o7777;
    let ours = about.uid() == geteuid().as_raw() && mode & 0o077 == 0;
    let roots = about.uid() == 0 && mode & 0o037 == 0;
    match ours || roots {
        true => Ok(()),
        false => Err(TlsError::Permissions {
            path: path.to_owned(),
            mode,
            owner: about.uid(),
        }),
    }
}
