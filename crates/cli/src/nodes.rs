//! Arguments that name the nodes that `doctor`, `top` and `serve` watch.

use std::path::PathBuf;

use clap::Args;
use lockstep_lag::Node;
use lockstep_lag::nodes::{NamedNodes, NodesError};
use lockstep_service::exit::Failure;

use crate::name::complain;

/// Which servers.
#[derive(Debug, Args)]
pub struct NodesArgs {
    /// The primary, as a conninfo string or URI. .pgpass, service files and PG* variables work; may be
    /// left out if PGHOST, PGHOSTADDR or PGSERVICE is set
    #[arg(long, value_name = "CONNINFO")]
    pub primary: Option<String>,
    /// A physical standby, also a cascaded one; may be repeated
    #[arg(long, value_name = "CONNINFO")]
    pub standby: Vec<String>,
    /// A database with subscriptions to the primary, or the target of a lockstep replica; may be
    /// repeated
    #[arg(long, value_name = "CONNINFO")]
    pub subscriber: Vec<String>,
    /// The console of a relay between them. Defaults are host=127.0.0.1 port=6543, the database is
    /// always lockstep; may be repeated
    #[arg(long, value_name = "CONNINFO")]
    pub relay: Vec<String>,
    /// A TOML file with a [[node]] for each server: role, conninfo and optionally name
    #[arg(long, value_name = "FILE")]
    pub nodes: Option<PathBuf>,
}

impl NodesArgs {
    /// The nodes that are named. Conninfos are parsed here and not by the parser of arguments,
    /// because that would print an invalid one with its password.
    pub fn nodes(&self) -> anyhow::Result<Vec<Node>> {
        let named = NamedNodes {
            primary: self.primary.clone(),
            standbys: self.standby.clone(),
            relays: self.relay.clone(),
            subscribers: self.subscriber.clone(),
            file: self.nodes.clone(),
        };
        usable(&named, NamedNodes::nodes)
    }
}

/// What `take` gives of named nodes, with their errors as the command line has them. Warns of passwords that
/// others can read.
pub fn usable<T>(
    named: &NamedNodes,
    take: impl FnOnce(&NamedNodes) -> Result<T, NodesError>,
) -> anyhow::Result<T> {
    if let Some(warning) = named.exposed() {
        complain(&warning);
    }
    take(named).map_err(|error| match error {
        NodesError::Unusable(words) => Failure::Usage(words).into(),
        NodesError::Conninfo { place, source } => anyhow::Error::from(source).context(place),
    })
}
