//! A connection string that names all nodes of a door, for clients of libpq without HAProxy.

use crate::member::{Member, ServerPlace};

/// Who the string is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientNeeds {
    /// Standbys, and the primary if there is no other.
    Readers,
    /// The primary.
    Writers,
}

/// The string. libpq 16 and later chooses among the hosts at random; before, each client tries them in their
/// order, so the members come in an order that the caller has shuffled.
pub fn conninfo(members: &[&Member], needs: ClientNeeds, libpq_major: u32) -> String {
    let hosts: Vec<_> = members.iter().map(|member| place(member).0).collect();
    let ports: Vec<_> = members
        .iter()
        .map(|member| place(member).1.to_string())
        .collect();
    let attribute = match needs {
        ClientNeeds::Readers => "prefer-standby",
        ClientNeeds::Writers => "read-write",
    };
    let balance = match (needs, libpq_major) {
        (ClientNeeds::Readers, 16..) => " load_balance_hosts=random",
        _ => "",
    };
    format!(
        "host={} port={} target_session_attrs={attribute}{balance}",
        hosts.join(","),
        ports.join(",")
    )
}

fn place(member: &Member) -> (&str, u16) {
    match &member.server {
        ServerPlace::Tcp(at) => (&at.host, at.port),
        ServerPlace::Socket { folder, port } => (folder, *port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Door;
    use lockstep_service::address::HostPort;

    #[test]
    fn all_nodes_are_named() {
        let at = |port| HostPort {
            host: "a".to_owned(),
            port,
        };
        let member = |port, server| Member {
            name: "n".to_owned(),
            server,
            agent: at(port),
            agent_check: at(port),
            door: Door::Fresh,
        };
        let tcp = member(1, ServerPlace::Tcp(at(5432)));
        let folder = "/run".to_owned();
        let socket = member(2, ServerPlace::Socket { folder, port: 5433 });
        let both = [&tcp, &socket];
        let hosts = "host=a,/run port=5432,5433";
        for (needs, libpq, rest) in [
            (
                ClientNeeds::Readers,
                16,
                "target_session_attrs=prefer-standby load_balance_hosts=random",
            ),
            (
                ClientNeeds::Readers,
                15,
                "target_session_attrs=prefer-standby",
            ),
            (ClientNeeds::Writers, 18, "target_session_attrs=read-write"),
        ] {
            assert_eq!(conninfo(&both, needs, libpq), format!("{hosts} {rest}"));
        }
    }
}
