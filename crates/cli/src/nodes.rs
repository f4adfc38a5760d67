//! The servers that `doctor`, `top` and `serve` look at, as they are named on the command line.

use anyhow::Context;
use clap::Args;
use lockstep_lag::{Node, Role};
use lockstep_upstream::Conninfo;

/// Which servers.
#[derive(Debug, Args)]
pub struct NodesArgs {
    /// The primary, as a conninfo string or URI; .pgpass, service files and PG* variables work
    #[arg(long, value_name = "CONNINFO")]
    pub primary: String,
    /// A physical standby, cascading ones too; may be repeated
    #[arg(long, value_name = "CONNINFO")]
    pub standby: Vec<String>,
    /// A database with subscriptions to the primary; may be repeated
    #[arg(long, value_name = "CONNINFO")]
    pub subscriber: Vec<String>,
}

impl NodesArgs {
    /// Nodes by their role, numbered where there are several. Conninfos are read here and not
    /// by the parser of arguments, which would print one that is wrong, password and all.
    pub fn nodes(&self) -> anyhow::Result<Vec<Node>> {
        let mut nodes = Vec::new();
        for (role, conninfos) in [
            (Role::Primary, std::slice::from_ref(&self.primary)),
            (Role::Standby, &self.standby),
            (Role::Subscriber, &self.subscriber),
        ] {
            for (index, conninfo) in conninfos.iter().enumerate() {
                let name = match conninfos.len() {
                    1 => role.to_string(),
                    _ => format!("{role}{}", index + 1),
                };
                let conninfo = Conninfo::parse(conninfo).with_context(|| format!("--{role}"))?;
                nodes.push(Node {
                    name,
                    role,
                    conninfo,
                });
            }
        }
        Ok(nodes)
    }
}
