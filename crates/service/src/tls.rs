//! TLS towards clients: certificate and key from files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::secret::{self, FileError};

/// Why certificate and key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or others could read the key.
    #[error(transparent)]
    File(#[from] FileError),
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

/// A certificate and those that lead to its root.
pub type Certificates = Vec<CertificateDer<'static>>;

/// Reads the files; `protocol` is the only one in ALPN.
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
