//! What the configuration asks of sessions.

use std::sync::Arc;

use lockstep_service::tls::TlsFiles;

use crate::config::Config;
use crate::error::{RelayError, Result};
use crate::serve::{ConsoleLogin, Terms, Tls};

/// What sessions have to keep to. Certificate and key are read.
pub fn read(config: &Config) -> Result<Terms> {
    Ok(Terms {
        console_login: ConsoleLogin {
            database: config.console_database.clone(),
            admin_role: config.admin_role.clone(),
        },
        tls: tls(config)?,
        tls_required: config.tls_required,
    })
}

/// TLS towards clients, if it is configured.
fn tls(config: &Config) -> Result<Option<Arc<Tls>>> {
    let (Some(certificate), Some(key)) = (&config.tls_certificate, &config.tls_key) else {
        return Ok(None);
    };
    let files = TlsFiles {
        certificate: certificate.clone(),
        key: key.clone(),
    };
    let tls = Tls::load(files).map_err(|error| RelayError::Tls(error.to_string()))?;
    Ok(Some(Arc::new(tls)))
}
