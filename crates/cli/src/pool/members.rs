//! The nodes of a pool, from the file that `doctor`, `top` and `serve` read.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use lockstep_lag::nodes::{NamedNodes, PoolDoor, PoolEntry};
use lockstep_lag::{Node, Role};
use lockstep_pool::member::{self, AgentPlace, Member};
use lockstep_pool::state::Door;
use lockstep_service::exit::Failure;
use lockstep_service::toml_file;

use crate::nodes::{usable, watched};

/// Which nodes.
#[derive(Debug, Args)]
pub struct MembersArgs {
    /// The TOML file with a [[node]] for each server, or a [[cluster]] whose members Patroni names, that
    /// doctor, top and serve read. Its primary and its standbys are the pool; agent, agent_check and door
    /// of each [[node]] may be written there
    #[arg(long, value_name = "FILE")]
    pub nodes: PathBuf,
    /// The cluster, if the file names several
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<String>,
}

impl MembersArgs {
    /// The primary and the standbys, the primary first: as they are written down, or as Patroni names them.
    pub fn listed(&self) -> Result<Vec<(Node, PoolEntry)>> {
        let named = NamedNodes {
            file: Some(self.nodes.clone()),
            cluster: self.cluster.clone(),
            ..NamedNodes::default()
        };
        let (cluster, entries) = usable(&named, NamedNodes::with_pool)?;
        let written = cluster.nodes.iter().map(|node| node.name.clone());
        let mut entries: BTreeMap<String, PoolEntry> = written.zip(entries).collect();
        let watched = watched(cluster)?;
        if watched
            .members
            .as_ref()
            .is_some_and(|it| !it.roster().is_known())
        {
            let unknown = watched.membership.map(|it| it.unknown.join("; "));
            return Err(Failure::Unreachable(unknown.unwrap_or_default()).into());
        }
        let mut nodes = watched.nodes;
        nodes.retain(|node| matches!(node.role, Role::Primary | Role::Standby));
        let with_entry = nodes.into_iter().map(|node| {
            let entry = entries.remove(&node.name).unwrap_or_default();
            (node, entry)
        });
        Ok(with_entry.collect())
    }

    /// The members that they are.
    pub fn members(&self) -> Result<Vec<Member>> {
        let nodes = self.listed()?;
        let members = nodes.iter().map(|(node, pool)| {
            let place = AgentPlace {
                agent: pool.agent.clone(),
                agent_check: pool.agent_check.clone(),
            };
            Member::new(&node.name, &node.conninfo, &place, door_of(pool))
        });
        let members: Vec<_> = members
            .collect::<Result<_, _>>()
            .map_err(|words| self.wrong(&words))?;
        member::check(&members).map_err(|words| self.wrong(&words))?;
        Ok(members)
    }

    /// Replaces the file's text, unless the members could not be read then.
    pub fn replace(&self, old: &str, new: &str) -> Result<()> {
        let write = |text: &str| {
            toml_file::replace(&self.nodes, text).map_err(|error| self.wrong(&error.to_string()))
        };
        write(new)?;
        let read = self.members();
        if read.is_err() {
            write(old)?;
        }
        read.map(|_| ())
    }

    pub fn wrong(&self, words: &str) -> Failure {
        Failure::Usage(format!("--nodes {}: {words}", self.nodes.display()))
    }
}

/// The door that the file names, or the usual one.
pub fn door_of(entry: &PoolEntry) -> Door {
    match entry.door {
        Some(PoolDoor::Reports) => Door::Reports,
        Some(PoolDoor::Fresh) | None => Door::Fresh,
    }
}
