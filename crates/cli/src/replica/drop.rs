//! `lockstep replica drop`

use anyhow::Result;
use clap::Args;
use lockstep_replica::remove::remove;

use super::{conninfo, failed};
use crate::live;

/// `lockstep replica drop`
#[derive(Debug, Args)]
pub struct DropArgs {
    /// The replica's name
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    target: super::TargetArgs,
    /// How to connect to the source, if it is not where it was at the creation
    #[arg(long, value_name = "CONNINFO")]
    source: Option<String>,
}

pub fn run(args: &DropArgs) -> Result<()> {
    let target = conninfo("--target", &args.target.target)?;
    let source = args.source.as_deref();
    let source = source.map(|text| conninfo("--source", text)).transpose()?;
    let dropped = remove(&args.name, &target, source.as_ref()).map_err(failed)?;
    live::print(&format!(
        "replica {} is dropped, with slot {} and its publication; the target's tables stay",
        dropped.name, dropped.slot
    ));
    Ok(())
}
