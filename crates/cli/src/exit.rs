//! Exit codes, and the line that is printed for each failure.

use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use lockstep_bench::BenchError;
use lockstep_client::ClientError;
use lockstep_lab::{LabError, Role, guard};
use lockstep_lag::sanitize::sanitize;
use lockstep_player::PlayerError;
use lockstep_relay::config::ConfigError;
use lockstep_relay::error::RelayError;
use lockstep_verify::VerifyError;
use lockstep_verify::oracle::Side;
use lockstep_verify::random::RandomError;

/// Failures that have no code of their own.
const FAILED: u8 = 1;
/// Arguments that cannot be used.
pub const USAGE: u8 = 2;
/// The source (primary) could not be reached, or it refused a request.
const SOURCE: u8 = 3;
/// The target (standby) could not be reached, or it refused a request.
const TARGET: u8 = 4;
/// A check found wrong data.
const DATA: u8 = 5;
/// A replica lags, or replication stands still.
const LAG: u8 = 6;
/// Some of it cannot be seen, so nobody knows whether a replica lags.
const NOT_KNOWN: u8 = 7;

/// Says which arguments, or files that they name, cannot be used, and why.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Says why the source could not be reached, or what it refused.
#[derive(Debug)]
pub struct Unreachable(pub String);

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unreachable {}

/// Says why the target could not be reached, or why it is not a target.
#[derive(Debug)]
pub struct NoTarget(pub String);

impl fmt::Display for NoTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoTarget {}

/// Says what lags or stands still.
#[derive(Debug)]
pub struct Behind(pub String);

impl fmt::Display for Behind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Behind {}

/// Says what cannot be seen.
#[derive(Debug)]
pub struct NotKnown(pub String);

impl fmt::Display for NotKnown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotKnown {}

/// Says that a check found wrong data. The details have been printed before.
#[derive(Debug)]
pub struct DataMismatch(pub String);

impl fmt::Display for DataMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DataMismatch {}

/// Prints a failure in one line and returns the exit code.
pub fn code_of(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    if guard::asked_to_end().is_some() {
        // The failure is only a consequence of the signal. The thread that handles the signal
        // exits the process once everything is cleaned up.
        loop {
            std::thread::park();
        }
    }
    complain(&words(&error));
    ExitCode::from(code(&error))
}

/// An error and its sources, each of them once: some name theirs already.
fn words(error: &anyhow::Error) -> String {
    let mut words = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if words.is_empty() {
            words = cause;
        } else if !words.ends_with(&cause) {
            words = format!("{words}: {cause}");
        }
    }
    words
}

/// Writes one line to standard error. It is sanitized, since it may hold text of servers.
pub fn complain(message: &str) {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let _ = writeln!(std::io::stderr(), "lockstep: {}", sanitize(&line));
}

fn code(error: &anyhow::Error) -> u8 {
    if error.is::<DataMismatch>() {
        return DATA;
    }
    if error.is::<Unreachable>() {
        return SOURCE;
    }
    if error.is::<NoTarget>() {
        return TARGET;
    }
    if error.is::<Behind>() {
        return LAG;
    }
    if error.is::<NotKnown>() {
        return NOT_KNOWN;
    }
    if error.is::<ConfigError>() || error.is::<Usage>() {
        return USAGE;
    }
    if let Some(RelayError::Upstream(error)) = error.downcast_ref() {
        return upstream_code(error);
    }
    if let Some(error) = error.downcast_ref() {
        return upstream_code(error);
    }
    if let Some(error) = error.downcast_ref::<BenchError>() {
        return bench_code(error);
    }
    if let Some(error) = error.downcast_ref::<VerifyError>() {
        return verify_code(error);
    }
    if let Some(error) = error.downcast_ref::<PlayerError>() {
        return of_role(error.role());
    }
    of_role(error.downcast_ref::<LabError>().and_then(LabError::role))
}

fn bench_code(error: &BenchError) -> u8 {
    match error {
        BenchError::Verify(error) => verify_code(error),
        other => of_role(other.role()),
    }
}

fn verify_code(error: &VerifyError) -> u8 {
    match error {
        VerifyError::Oracle(error) => match error.server() {
            Some(Side::B) => TARGET,
            Some(_) => SOURCE,
            None if error.is_refusal() => USAGE,
            None => FAILED,
        },
        VerifyError::Random(RandomError::Unreachable(_)) => TARGET,
        VerifyError::Random(RandomError::Database(_)) => USAGE,
        VerifyError::Lab(error) => of_role(error.role()),
        _ => FAILED,
    }
}

fn of_role(role: Option<Role>) -> u8 {
    match role {
        Some(Role::Primary) => SOURCE,
        Some(Role::Standby) => TARGET,
        None => FAILED,
    }
}

/// The code for a failed connection to a primary.
fn upstream_code(error: &ClientError) -> u8 {
    match error {
        ClientError::Conninfo(_) | ClientError::Name { .. } => USAGE,
        _ => SOURCE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;
    use lockstep_bench::tpcc::TpccError;
    use lockstep_lab::ServerId;

    fn failed(role: Role) -> LabError {
        LabError::Start {
            server: ServerId {
                role,
                name: "x".to_owned(),
            },
            reason: "no".to_owned(),
        }
    }

    #[test]
    fn sources_are_named_once() {
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        let failed = LabError::io("create", std::path::Path::new("/x"))(missing);
        let error = anyhow::Error::from(BenchError::from(failed)).context("demo");
        assert_eq!(words(&error), "demo: cannot create /x: entity not found");
    }

    #[test]
    fn codes_follow_the_end_that_failed() {
        assert_eq!(code(&failed(Role::Primary).into()), SOURCE);
        assert_eq!(code(&failed(Role::Standby).into()), TARGET);
        assert_eq!(code(&LabError::PortInUse(1).into()), FAILED);
        let tpcc = |error: TpccError| code(&BenchError::from(error).into());
        let reason = "no".to_owned();
        assert_eq!(tpcc(TpccError::Unreachable { reason }), SOURCE);
        assert_eq!(tpcc(TpccError::ReadOnly { what: "standby" }), SOURCE);
        assert_eq!(tpcc(TpccError::NotLoaded), FAILED);
        assert_eq!(code(&DataMismatch("x".to_owned()).into()), DATA);
        let random = |error: RandomError| code(&VerifyError::from(error).into());
        assert_eq!(random(RandomError::Unreachable("no".to_owned())), TARGET);
        assert_eq!(random(RandomError::Database("mine".to_owned())), USAGE);
        assert_eq!(random(RandomError::Psql("no".to_owned())), FAILED);
        let wrapped = Err::<(), _>(failed(Role::Standby)).context("demo");
        assert_eq!(code(&wrapped.unwrap_err()), TARGET);
        assert_eq!(code(&anyhow::anyhow!("other")), FAILED);
    }

    #[test]
    fn codes_of_a_relay() {
        let words = || "x".to_owned();
        assert_eq!(code(&Unreachable(words()).into()), SOURCE);
        assert_eq!(code(&Behind(words()).into()), LAG);
        assert_eq!(code(&NotKnown(words()).into()), NOT_KNOWN);
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
