//! The nodes that `doctor`, `top` and `serve` watch, as the command line names them.

use anyhow::Context;
use clap::Args;
use lockstep_client::{ClientError, Conninfo};
use lockstep_lag::{Node, Role};

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
    /// A relay between them, by its console; what is left out is host=127.0.0.1 port=6543, and the
    /// database is always lockstep; may be repeated
    #[arg(long, value_name = "CONNINFO")]
    pub relay: Vec<String>,
}

const CONSOLE: &str = "lockstep";

/// Defaults of a console's conninfo.
const CONSOLE_DEFAULTS: [(&str, &str); 2] = [("host", "127.0.0.1"), ("port", "6543")];

/// The conninfo of a relay's console. A service file may give all of it.
pub fn console(text: &str) -> Result<Conninfo, ClientError> {
    let mut conninfo = Conninfo::parse(text)?;
    if conninfo.get("service").is_none() {
        for (option, value) in CONSOLE_DEFAULTS {
            let given = conninfo.get(option).is_some()
                || (option == "host" && conninfo.get("hostaddr").is_some());
            if !given {
                conninfo = conninfo.with(option, value)?;
            }
        }
    }
    conninfo.with_database(CONSOLE)
}

impl NodesArgs {
    /// Nodes by their role, numbered if there are several of a role. Conninfos are parsed here
    /// and not by the parser of arguments, because that would print an invalid one with its
    /// password.
    pub fn nodes(&self) -> anyhow::Result<Vec<Node>> {
        let mut nodes = Vec::new();
        for (role, conninfos) in [
            (Role::Primary, std::slice::from_ref(&self.primary)),
            (Role::Standby, &self.standby),
            (Role::Relay, &self.relay),
            (Role::Subscriber, &self.subscriber),
        ] {
            for (index, conninfo) in conninfos.iter().enumerate() {
                let name = match conninfos.len() {
                    1 => role.to_string(),
                    _ => format!("{role}{}", index + 1),
                };
                let conninfo = match role {
                    Role::Relay => console(conninfo),
                    _ => Conninfo::parse(conninfo),
                };
                let conninfo = conninfo.with_context(|| format!("--{role}"))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_conninfo_leaves_out_is_the_relay_on_this_machine() {
        for (text, shown) in [
            ("", "dbname=lockstep host=127.0.0.1 port=6543"),
            ("host=r", "dbname=lockstep host=r port=6543"),
            (
                "hostaddr=10.0.0.1 port=1",
                "dbname=lockstep hostaddr=10.0.0.1 port=1",
            ),
            ("service=relay", "service=relay dbname=lockstep"),
            (
                "postgresql://u@r:1/app",
                "user=u dbname=lockstep host=r port=1",
            ),
        ] {
            assert_eq!(console(text).unwrap().to_string(), shown, "{text}");
        }
        assert!(console("nonsense").is_err());
    }
}
