//! The exit code of each failure.

use lockstep_bench::BenchError;
use lockstep_lab::{LabError, Role};
use lockstep_player::PlayerError;
use lockstep_service::exit::{FAILED, Failure, SOURCE, TARGET, USAGE};
use lockstep_verify::VerifyError;
use lockstep_verify::oracle::Side;
use lockstep_verify::random::RandomError;

/// Exit codes of a process that was ended by a signal start here.
pub const SIGNAL_BASE: i32 = 128;

/// The exit code of a failure.
pub fn code(error: &anyhow::Error) -> u8 {
    if let Some(failure) = error.downcast_ref::<Failure>() {
        return failure.code();
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

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;
    use lockstep_bench::tpcc::TpccError;
    use lockstep_lab::ServerId;
    use lockstep_service::exit::DATA;

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
    fn codes_follow_the_end_that_failed() {
        assert_eq!(code(&failed(Role::Primary).into()), SOURCE);
        assert_eq!(code(&failed(Role::Standby).into()), TARGET);
        assert_eq!(code(&LabError::PortInUse(1).into()), FAILED);
        let tpcc = |error: TpccError| code(&BenchError::from(error).into());
        let reason = "no".to_owned();
        assert_eq!(tpcc(TpccError::Unreachable { reason }), SOURCE);
        assert_eq!(tpcc(TpccError::ReadOnly { what: "standby" }), SOURCE);
        assert_eq!(tpcc(TpccError::NotLoaded), FAILED);
        assert_eq!(code(&Failure::DataMismatch("x".to_owned()).into()), DATA);
        let random = |error: RandomError| code(&VerifyError::from(error).into());
        assert_eq!(random(RandomError::Unreachable("no".to_owned())), TARGET);
        assert_eq!(random(RandomError::Database("mine".to_owned())), USAGE);
        assert_eq!(random(RandomError::Psql("no".to_owned())), FAILED);
        let wrapped = Err::<(), _>(failed(Role::Standby)).context("demo");
        assert_eq!(code(&wrapped.unwrap_err()), TARGET);
        assert_eq!(code(&anyhow::anyhow!("other")), FAILED);
    }
}
