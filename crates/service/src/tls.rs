//! TLS for connections from clients: the certificate and key, read from files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::secret::{self, FileError};

/// Why a certificate or key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or others could read the key.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file does not hold what it should.
    #[error("{what} {} cannot be used: {reason}", path.display())]
    Content {
        /// What the file should hold.
        what: &'static str,
        path: PathBuf,
        reason: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and its chain up to the root, as PEM.
    pub certificate: PathBuf,
    /// The certificate's private key, as PEM, without a passphrase.
    pub key: PathBuf,
}

/// A certificate and its chain up to the root.
pub type Certificates = Vec<CertificateDer<'static>>;

/// Reads the files. `protocol` is the only one that ALPN offers.
pub fn server_config(
    files: &TlsFiles,
    protocol: &[u8],
) -> Result<(Certificates, ServerConfig), TlsError> {
    let text = secret::read(&files.certificate, "certificate")?;
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
    let text = secret::read_secret(&files.key, "private key")?;
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
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok((certificates, config))
}
