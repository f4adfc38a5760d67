//! A node of a pool as it is written down: where its server is, and where its agent.

use lockstep_client::Conninfo;
use lockstep_service::address::HostPort;

use crate::state::Door;

/// Port of an agent's HTTP.
pub const AGENT_PORT: u16 = 9872;

/// A node of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub name: String,
    pub server: ServerPlace,
    /// Where the agent answers HTTP.
    pub agent: HostPort,
    /// Where it answers HAProxy's agent-check.
    pub agent_check: HostPort,
    pub door: Door,
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerPlace {
    Tcp(HostPort),
    /// A Unix socket in this folder.
    Socket {
        folder: String,
        port: u16,
    },
}

/// What a file says of a node's agent.
#[derive(Debug, Clone, Default)]
pub struct AgentPlace {
    pub agent: Option<HostPort>,
    pub agent_check: Option<HostPort>,
}

impl ServerPlace {
    fn of(conninfo: &Conninfo) -> Result<Self, String> {
        let effective = |option| conninfo.effective(option).filter(|text| !text.is_empty());
        let host = effective("hostaddr").or_else(|| effective("host"));
        let host = host.ok_or("its conninfo names no host")?;
        if host.contains(',') {
            return Err(
                "its conninfo names several hosts: a node of a pool is one server".to_owned(),
            );
        }
        let port = effective("port").unwrap_or_else(|| "5432".to_owned());
        let port = port
            .parse()
            .map_err(|_| format!("port {port} is no port"))?;
        let is_plain = |c: char| !c.is_whitespace() && !c.is_control() && !"\"'\\;#".contains(c);
        if !host.chars().all(is_plain) {
            return Err(
                "its host has characters that HAProxy's configuration cannot hold".to_owned(),
            );
        }
        Ok(match host.starts_with('/') {
            true => Self::Socket { folder: host, port },
            false => Self::Tcp(HostPort { host, port }),
        })
    }
}

impl Member {
    /// A member from what is written down. The agent is on the server's host unless something else is said,
    /// and answers the agent-check on the next port.
    pub fn new(
        name: &str,
        conninfo: &Conninfo,
        place: &AgentPlace,
        door: Door,
    ) -> Result<Self, String> {
        let wrong = |words: String| format!("node {name}: {words}");
        let server = ServerPlace::of(conninfo).map_err(wrong)?;
        let agent = match (&place.agent, &server) {
            (Some(agent), _) => agent.clone(),
            (None, ServerPlace::Tcp(at)) => HostPort {
                host: at.host.clone(),
                port: AGENT_PORT,
            },
            (None, ServerPlace::Socket { .. }) => {
                let words = "it is reached by a Unix socket, so write where its agent is: agent = \"host:port\"";
                return Err(wrong(words.to_owned()));
            }
        };
        let agent_check = match &place.agent_check {
            Some(check) => check.clone(),
            None => HostPort {
                host: agent.host.clone(),
                port: agent
                    .port
                    .checked_add(1)
                    .ok_or_else(|| wrong("there is no port after its agent's".to_owned()))?,
            },
        };
        Ok(Self {
            name: name.to_owned(),
            server,
            agent,
            agent_check,
            door,
        })
    }
}

/// A conninfo for each server of one that names several.
pub fn each_host(conninfo: &Conninfo) -> Result<Vec<Conninfo>, String> {
    let listed = |option| {
        let text = conninfo.effective(option).unwrap_or_default();
        let parts = text.split(',').map(|part| part.trim().to_owned());
        parts.collect::<Vec<_>>()
    };
    let options = ["host", "hostaddr", "port"].map(|option| (option, listed(option)));
    let count = options.iter().map(|(_, parts)| parts.len()).max();
    (0..count.unwrap_or(1))
        .map(|index| {
            let mut one = conninfo.clone();
            for (option, parts) in &options {
                let part = match parts.as_slice() {
                    [only] if only.is_empty() => continue,
                    // One port is for all hosts.
                    [only] if *option == "port" => only,
                    parts => parts.get(index).ok_or_else(|| {
                        format!(
                            "{} of {option} are named, not one for each server",
                            parts.len()
                        )
                    })?,
                };
                one = one.with(option, part).map_err(|error| error.words())?;
            }
            // All are asked, whatever they take.
            one.with("target_session_attrs", "any")
                .map_err(|error| error.words())
        })
        .collect()
}

/// Checks that no server and no agent is named twice, and that there are some.
pub fn check(members: &[Member]) -> Result<(), String> {
    if members.is_empty() {
        return Err("there is no node: name a primary and standbys in the nodes file".to_owned());
    }
    for (index, one) in members.iter().enumerate() {
        for other in members.iter().skip(index + 1) {
            let (same, remedy) = if one.server == other.server {
                ("server", "give each its own conninfo")
            } else if one.agent == other.agent || one.agent_check == other.agent_check {
                (
                    "agent",
                    "give each its own address with agent (--agent), and so with agent_check (--agent-check)",
                )
            } else {
                continue;
            };
            return Err(format!(
                "{} and {} have one {same}: {remedy}",
                one.name, other.name
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_lab::assert_has;

    fn member(name: &str, conninfo: &str, agent: Option<&str>) -> Result<Member, String> {
        let place = AgentPlace {
            agent: agent.map(|text| HostPort::parse(text).unwrap()),
            agent_check: None,
        };
        Member::new(
            name,
            &Conninfo::parse(conninfo).unwrap(),
            &place,
            Door::Fresh,
        )
    }

    #[test]
    fn agents_are_beside_their_servers() {
        let node = member("a", "host=db1 port=5433", None).unwrap();
        assert_eq!(node.agent.to_string(), "db1:9872");
        assert_eq!(node.agent_check.to_string(), "db1:9873");
        let node = member("a", "host=/run/x", Some("[::1]:1")).unwrap();
        assert_eq!(node.agent_check.to_string(), "[::1]:2");
        for (conninfo, agent, words) in [
            ("host=/run/x", None, "write where its agent is"),
            ("host=a,b", None, "several hosts"),
            ("host='a b'", None, "cannot hold"),
            ("host=a;b", None, "cannot hold"),
            ("host=a", Some("a:65535"), "no port after"),
        ] {
            let error = member("a", conninfo, agent).unwrap_err();
            assert!(
                error.contains(words) && error.starts_with("node a: "),
                "{error}"
            );
        }
    }

    #[test]
    fn each_server_gets_a_conninfo() {
        let each = |text: &str| {
            let each = each_host(&Conninfo::parse(text).unwrap())?;
            let place = |one: &Conninfo| {
                let get = |option| one.get(option).unwrap_or_default().to_owned();
                [get("host"), get("port"), get("target_session_attrs")].join(" ")
            };
            Ok::<_, String>(each.iter().map(place).collect::<Vec<_>>())
        };
        assert_eq!(
            each("host=a,b port=1 target_session_attrs=read-write"),
            Ok(vec!["a 1 any".to_owned(), "b 1 any".to_owned()])
        );
        assert_eq!(
            each("postgresql://a:1,b:2/x"),
            Ok(vec!["a 1 any".to_owned(), "b 2 any".to_owned()])
        );
        assert_eq!(each("host=a port=7"), Ok(vec!["a 7 any".to_owned()]));
        assert_has!(each("host=a,b,c port=1,2").unwrap_err(), "2 of port");
        assert!(each("host=a,b hostaddr=127.0.0.1").is_err());
    }

    #[test]
    fn nobody_is_named_twice() {
        let all = |nodes: &[(&str, &str, Option<&str>)]| {
            let members = nodes
                .iter()
                .map(|(name, conninfo, agent)| member(name, conninfo, *agent));
            check(&members.collect::<Result<Vec<_>, _>>().unwrap())
        };
        assert!(all(&[]).unwrap_err().contains("no node"));
        assert_eq!(all(&[("a", "host=x", None), ("b", "host=y", None)]), Ok(()));
        let twice = all(&[("a", "host=x", None), ("b", "host=x", None)]).unwrap_err();
        assert_eq!(twice, "a and b have one server: give each its own conninfo");
        let one = [("a", "host=x", Some("x:1")), ("b", "host=y", Some("x:1"))];
        let error = all(&one).unwrap_err();
        assert!(
            error.starts_with("a and b have one agent: ") && error.contains("--agent"),
            "{error}"
        );
    }
}
