//! Options of commands that answer HTTP: who may ask, TLS, and the log.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use lockstep_service::exit::Failure;
use lockstep_service::http::door::{Doors, Keys};
use lockstep_service::logging::{self, LogFormat, LogLevel};

#[derive(Debug, Args)]
pub struct DoorArgs {
    /// Require a login: a file with lines user:password, which others must not be able to read
    #[arg(long, value_name = "FILE")]
    auth_file: Option<PathBuf>,
    /// Certificate chain, PEM; turns TLS on
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Format of the log on standard error: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = LogFormat::parse)]
    log_format: LogFormat,
    /// What is logged: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = LogLevel::parse)]
    log_level: LogLevel,
}

impl DoorArgs {
    /// Reads logins, certificate and key.
    pub fn open(&self) -> Result<Doors, Failure> {
        let keys = Keys {
            auth_file: self.auth_file.clone(),
            tls: self.tls_cert.clone().zip(self.tls_key.clone()),
        };
        Doors::open(keys).map_err(|error| Failure::Usage(error.to_string()))
    }

    pub fn start_log(&self) -> Result<()> {
        logging::start(self.log_format, self.log_level).context("cannot start the log")
    }
}
