//! `lockstep replica drop`

use anyhow::Result;
use clap::Args;
use lockstep_replica::lifecycle::remove::{remove, remove_without_source};
use lockstep_service::sanitize::sanitize;
use lockstep_service::words::output;

use super::{ReplicaArgs, failed};

/// `lockstep replica drop`
#[derive(Debug, Args)]
pub struct DropArgs {
    #[command(flatten)]
    replica: ReplicaArgs,
    /// Drop the replica on the target alone, because its source is gone for good, and print what a source
    /// that comes back keeps of it
    #[arg(long, conflicts_with = "source")]
    without_source: bool,
}

pub fn run(args: &DropArgs) -> Result<()> {
    let (target, source) = args.replica.ends()?;
    let name = &args.replica.name;
    if !args.without_source {
        let dropped = remove(name, &target, source.as_ref()).map_err(failed)?;
        output::print(&format!(
            "replica {} is dropped, with slot {} and its publication; the target's tables stay",
            dropped.name, dropped.slot
        ));
        return Ok(());
    }
    let without = remove_without_source(name, &target).map_err(failed)?;
    let dropped = &without.replica;
    let words = format!(
        "replica {} is dropped on the target, whose tables stay; its source was not asked, and keeps slot \
            {}, with \
         all WAL since then, and publication {}; if it comes back, run in its database {}:",
        dropped.name, dropped.slot, dropped.publication, dropped.source_database
    );
    let lines = without.notes.iter().chain([&words]).chain(&without.source);
    lines.for_each(|line| output::print(&sanitize(line)));
    Ok(())
}
