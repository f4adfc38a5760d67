//! The exit code of each failure.

use lockstep_client::ClientError;
use lockstep_relay::config::ConfigError;
use lockstep_relay::error::RelayError;
use lockstep_service::exit::{FAILED, Failure, SOURCE, USAGE};

/// The exit code of a failure.
pub fn code(error: &anyhow::Error) -> u8 {
    if let Some(failure) = error.downcast_ref::<Failure>() {
        return failure.code();
    }
    if error.is::<ConfigError>() {
        return USAGE;
    }
    let upstream = match error.downcast_ref() {
        Some(RelayError::Upstream(error)) => Some(error),
        _ => error.downcast_ref(),
    };
    match upstream {
        Some(ClientError::Conninfo(_) | ClientError::Name { .. }) => USAGE,
        Some(_) => SOURCE,
        None => FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_service::exit::{LAG, NOT_KNOWN};

    #[test]
    fn codes_of_a_relay() {
        let words = || "x".to_owned();
        assert_eq!(code(&Failure::Unreachable(words()).into()), SOURCE);
        assert_eq!(code(&Failure::Behind(words()).into()), LAG);
        assert_eq!(code(&Failure::NotKnown(words()).into()), NOT_KNOWN);
        let config = ConfigError::Missing { key: "spool" };
        assert_eq!(code(&config.into()), USAGE);
        for (upstream, expected) in [
            (ClientError::Connect(words()), SOURCE),
            (ClientError::Lost(words()), SOURCE),
            (ClientError::Conninfo(words()), USAGE),
        ] {
            assert_eq!(code(&upstream.clone().into()), expected);
            assert_eq!(code(&RelayError::from(upstream).into()), expected);
        }
        let refused = std::io::Error::from(std::io::ErrorKind::AddrInUse);
        let listen = RelayError::Listen {
            address: words(),
            source: refused,
        };
        assert_eq!(code(&listen.into()), FAILED);
    }
}
