//! Who may connect, and how: passwords, certificate and key, from files that can be reloaded.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use crate::tls::{TlsError, TlsFiles, server_config};
use tokio_rustls::TlsAcceptor;

use super::auth::{AuthError, Logins};

/// The protocol's name in ALPN.
const ALPN: &[u8] = b"http/1.1";

#[derive(Debug)]
pub struct Keys {
    /// File of passwords. Without one, no login is needed.
    pub auth_file: Option<PathBuf>,
    /// Certificate and key. Without them there is no TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
}

#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    #[error(transparent)]
    Auth(#[from] AuthError),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The contents of the files, as they are in force.
pub struct Doors {
    keys: Keys,
    now: RwLock<Now>,
}

#[derive(Clone)]
struct Now {
    logins: Option<Arc<Logins>>,
    tls: Option<TlsAcceptor>,
}

impl Doors {
    pub fn open(keys: Keys) -> Result<Self, DoorError> {
        let now = RwLock::new(read(&keys)?);
        Ok(Self { keys, now })
    }

    /// Reads the files again. If one of them cannot be used, nothing changes.
    pub fn open_again(&self) -> Result<(), DoorError> {
        let now = read(&self.keys)?;
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = now;
        Ok(())
    }

    /// The accepted logins; None if no login is needed.
    pub fn logins(&self) -> Option<Arc<Logins>> {
        self.now().logins
    }

    pub fn has_logins(&self) -> bool {
        self.keys.auth_file.is_some()
    }

    /// TLS, if there is a certificate.
    pub fn tls(&self) -> Option<TlsAcceptor> {
        self.now().tls
    }

    fn now(&self) -> Now {
        let now = self.now.read().unwrap_or_else(PoisonError::into_inner);
        now.clone()
    }
}

fn read(keys: &Keys) -> Result<Now, DoorError> {
    let logins = keys.auth_file.as_deref().map(Logins::load).transpose()?;
    let tls = match &keys.tls {
        Some((certificate, key)) => {
            let files = TlsFiles {
                certificate: certificate.clone(),
                key: key.clone(),
            };
            let (_, config) = server_config(&files, ALPN)?;
            Some(TlsAcceptor::from(Arc::new(config)))
        }
        None => None,
    };
    Ok(Now {
        logins: logins.map(Arc::new),
        tls,
    })
}
