//! `lockstep pool conninfo`.

use std::hash::{BuildHasher, RandomState};

use anyhow::Result;
use clap::{Args, ValueEnum, value_parser};
use lockstep_pool::multi_host::{ClientNeeds, conninfo};
use lockstep_pool::state::Door;
use lockstep_service::words::output;

use super::members::MembersArgs;

/// Whom the string is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum For {
    /// Readers of fresh data
    Reads,
    /// Long queries
    Reports,
    /// Writers
    Writes,
}

/// `lockstep pool conninfo`
#[derive(Debug, Args)]
pub struct ConninfoArgs {
    #[command(flatten)]
    members: MembersArgs,
    /// Whom the string is for
    #[arg(long = "for", value_enum, default_value = "reads")]
    needs: For,
    /// Major release of the clients' libpq. From 16 on it chooses a node at random; 15 takes the first that
    /// answers, so each call prints the nodes in another order: give each client its own
    #[arg(long, value_name = "MAJOR", default_value_t = 16, value_parser = value_parser!(u32).range(15..=30))]
    libpq: u32,
}

/// Prints the string.
pub fn run(args: &ConninfoArgs) -> Result<()> {
    let members = args.members.members()?;
    let door = match args.needs {
        For::Reports => Some(Door::Reports),
        For::Reads => Some(Door::Fresh),
        For::Writes => None,
    };
    let mut chosen: Vec<_> = members
        .iter()
        .filter(|member| door.is_none_or(|door| member.door == door))
        .collect();
    if chosen.is_empty() {
        return Err(args.members.wrong("no node has that door").into());
    }
    let needs = match args.needs {
        For::Writes => ClientNeeds::Writers,
        For::Reads | For::Reports => ClientNeeds::Readers,
    };
    if needs == ClientNeeds::Readers && args.libpq < 16 {
        let order = RandomState::new();
        chosen.sort_by_cached_key(|member| order.hash_one(&member.name));
    }
    output::print(&conninfo(&chosen, needs, args.libpq));
    Ok(())
}
