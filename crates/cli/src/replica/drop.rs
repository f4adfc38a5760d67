//! `lockstep replica drop`

use anyhow::Result;
use clap::Args;
use lockstep_replica::lifecycle::remove::remove;
use lockstep_service::words::output;

use super::{ReplicaArgs, failed};

/// `lockstep replica drop`
#[derive(Debug, Args)]
pub struct DropArgs {
    #[command(flatten)]
    replica: ReplicaArgs,
}

pub fn run(args: &DropArgs) -> Result<()> {
    let (target, source) = args.replica.ends()?;
    let dropped = remove(&args.replica.name, &target, source.as_ref()).map_err(failed)?;
    output::print(&format!(
        "replica {} is dropped, with slot {} and its publication; the target's tables stay",
        dropped.name, dropped.slot
    ));
    Ok(())
}
