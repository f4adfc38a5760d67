//! TLS towards subscribers.

use std::sync::Arc;

use lockstep_service::tls::{Certificates, TlsError, TlsFiles, server_config};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use super::transport::{Prefixed, Transport};

/// The protocol's name in ALPN, without which TLS may not begin at once.
pub(super) const ALPN: &[u8] = b"postgresql";

/// Certificate and key as they were in the files.
pub struct Tls {
    files: TlsFiles,
    certificates: Certificates,
    config: Arc<ServerConfig>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tls").field(&self.files).finish()
    }
}

impl Tls {
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let (certificates, config) = server_config(&files, ALPN)?;
        Ok(Self {
            files,
            certificates,
            config: Arc::new(config),
        })
    }

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
