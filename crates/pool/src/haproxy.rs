//! HAProxy's configuration for a pool: text from a list of nodes, without I/O.
//!
//! Each node is in the back end of its door twice. HAProxy asks its agent two things: over HTTP whether it
//! takes sessions, so that a dead agent counts as well, and by agent-check how many. Where writers go, the
//! former is enough. If no node of a door is in, the front end goes on to another back end, as
//! `--when-all-late` says.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use lockstep_service::address::HostPort;

use crate::check::PoolDoor;
use crate::member::{Member, ServerPlace};
use crate::state::Door;

/// Who serves readers if no node of their door is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenAllLate {
    /// Late nodes, by how late they are.
    Freshest,
    Primary,
    /// Nobody: connections are closed.
    Refuse,
}

/// What becomes of sessions of a node that is out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionsWhenOut {
    Keep,
    Close,
}

/// What an operator wants.
#[derive(Debug, Clone)]
pub struct ProxyRules {
    /// Host on which HAProxy listens.
    pub host: String,
    pub writes_port: u16,
    pub reads_port: u16,
    pub reports_port: u16,
    pub statistics: HostPort,
    /// The runtime socket.
    pub socket: PathBuf,
    /// Most connections at once.
    pub connections: u32,
    pub when_all_late: WhenAllLate,
    /// The account that HAProxy changes to, if it is started as root.
    pub user: Option<String>,
    pub servers: ServerRules,
}

/// How HAProxy treats each node.
#[derive(Debug, Clone)]
pub struct ServerRules {
    /// Time between two checks of a node.
    pub check_every: Duration,
    pub sessions_when_out: SessionsWhenOut,
    /// Certificate authority of the agents, if they speak TLS.
    pub agent_ca: Option<PathBuf>,
}

/// A node in one back end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerLine {
    pub backend: &'static str,
    /// Whether the back end is of late nodes, which a configuration need not have.
    pub is_late: bool,
    /// Whether the agent says its share; the primary has none.
    pub has_share: bool,
    pub name: String,
    /// Where the server is, and how it is checked: also for `add server`, which knows no defaults.
    pub settings: String,
}

/// Weight of each server, of which agents give a share.
const WEIGHT: u32 = 200;

/// How many times as long as elsewhere it takes until a node is checked again among late nodes, which are
/// needed only if no node is in.
const LATE_LESS_OFTEN: u32 = 2;

/// How many times as long as between two checks over HTTP it takes until a node is asked for its share again,
/// which moves slowly. Whether it takes sessions is what the former say.
const SHARE_LESS_OFTEN: u32 = 2;

/// How many times as long it takes until a server that takes no writes is asked again whether it takes some.
/// A failover takes longer.
const STANDBY_LESS_OFTEN: u32 = 2;

/// How many times as soon a node is asked again after a check that failed, where one that is down has its
/// sessions cut off: the second failure counts. An agent that is started anew, or one answer that comes
/// late on a busy machine, cuts nobody off.
const AGAIN_SOONER: u32 = 2;

/// The configuration; an error if the members cannot be written down.
pub fn configuration(members: &[Member], rules: &ProxyRules) -> Result<String, String> {
    let lines = lines(members, &rules.servers)?;
    let mut text = head(rules)?;
    front(&mut text, rules, "writes", rules.writes_port, &[]);
    back(&mut text, &lines, PoolDoor::Writes);
    for (door, name, port) in [
        (Door::Fresh, "reads", rules.reads_port),
        (Door::Reports, "reports", rules.reports_port),
    ] {
        let late = PoolDoor::Late(door);
        let then = match rules.when_all_late {
            WhenAllLate::Freshest => Some(back_name(late)),
            WhenAllLate::Primary => Some(back_name(PoolDoor::Writes)),
            WhenAllLate::Refuse => None,
        };
        let own = back_name(PoolDoor::Readers(door));
        let uses: Vec<_> = then
            .map(|then| format!("use_backend {then} if {{ nbsrv({own}) eq 0 }}"))
            .into_iter()
            .collect();
        front(&mut text, rules, name, port, &uses);
        back(&mut text, &lines, PoolDoor::Readers(door));
        if rules.when_all_late == WhenAllLate::Freshest {
            back(&mut text, &lines, late);
        }
    }
    Ok(text)
}

fn back_name(door: PoolDoor) -> &'static str {
    match door {
        PoolDoor::Readers(Door::Fresh) => "reads",
        PoolDoor::Readers(Door::Reports) => "reports",
        PoolDoor::Late(Door::Fresh) => "reads-late",
        PoolDoor::Late(Door::Reports) => "reports-late",
        PoolDoor::Writes => "writes",
    }
}

/// Whether a back end is one of a configuration written here.
pub fn is_backend(name: &str) -> bool {
    PoolDoor::ALL
        .into_iter()
        .any(|door| back_name(door) == name)
}

/// Each node in each back end that it belongs to; an error if the members cannot be written down.
pub fn lines(members: &[Member], rules: &ServerRules) -> Result<Vec<ServerLine>, String> {
    crate::member::check(members)?;
    let names = names(members)?;
    let mut lines = Vec::new();
    for door in PoolDoor::ALL {
        let belongs = |member: &Member| match door {
            PoolDoor::Readers(door) | PoolDoor::Late(door) => member.door == door,
            PoolDoor::Writes => true,
        };
        let all = members.iter().zip(&names);
        let lines_of_door = all
            .filter(|(member, _)| belongs(member))
            .map(|(member, name)| ServerLine {
                backend: back_name(door),
                is_late: matches!(door, PoolDoor::Late(_)),
                has_share: door != PoolDoor::Writes,
                name: name.clone(),
                settings: settings(member, rules, door),
            });
        lines.extend(lines_of_door);
    }
    Ok(lines)
}

fn settings(member: &Member, rules: &ServerRules, door: PoolDoor) -> String {
    let server = match &member.server {
        ServerPlace::Tcp(at) => at.to_string(),
        ServerPlace::Socket { folder, port } => format!("unix@{folder}/.s.PGSQL.{port}"),
    };
    let every = match door {
        PoolDoor::Late(_) => rules.check_every * LATE_LESS_OFTEN,
        PoolDoor::Readers(_) | PoolDoor::Writes => rules.check_every,
    };
    // A session that stays on a server that was the primary would write there.
    let closes = door == PoolDoor::Writes || rules.sessions_when_out == SessionsWhenOut::Close;
    let closing = if closes {
        " on-marked-down shutdown-sessions"
    } else {
        ""
    };
    let fails = match closes {
        true => format!("fall 2 fastinter {}ms", (every / AGAIN_SOONER).as_millis()),
        false => "fall 1".to_owned(),
    };
    let tls = match &rules.agent_ca {
        Some(file) => format!(" check-ssl verify required ca-file {}", file.display()),
        None => String::new(),
    };
    let (agent, check) = (&member.agent, &member.agent_check);
    // The runtime socket takes no line end into agent-send, so that a full stop ends the door's name.
    let more = match door {
        PoolDoor::Writes => format!(" downinter {}ms", (every * STANDBY_LESS_OFTEN).as_millis()),
        PoolDoor::Readers(_) | PoolDoor::Late(_) => format!(
            " agent-check agent-inter {}ms agent-addr {} agent-port {} agent-send {}.",
            (every * SHARE_LESS_OFTEN).as_millis(),
            check.host,
            check.port,
            door.name()
        ),
    };
    format!(
        "{server} weight {WEIGHT} inter {}ms {fails} rise 1 check addr {} port {}{tls}{more}{closing}",
        every.as_millis(),
        agent.host,
        agent.port
    )
}

/// The name of a node in HAProxy, which allows few characters.
pub fn name_of(node: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    node.chars()
        .map(|c| if plain(c) { c } else { '_' })
        .collect()
}

fn names(members: &[Member]) -> Result<Vec<String>, String> {
    let names: Vec<_> = (members.iter().map(|member| name_of(&member.name))).collect();
    let mut seen = BTreeSet::new();
    match names.iter().find(|name| !seen.insert(name.as_str())) {
        Some(twice) => Err(format!(
            "two nodes would be called {twice} in HAProxy: names there have letters, digits, '.', '-' and '_'"
        )),
        None => Ok(names),
    }
}

fn head(rules: &ProxyRules) -> Result<String, String> {
    let (connections, socket) = (rules.connections, rules.socket.display());
    let check_ms = rules.servers.check_every.as_millis();
    let statistics = &rules.statistics;
    let is_plain = |user: &str| {
        user.chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
    };
    let user = match &rules.user {
        Some(user) if user.is_empty() || !is_plain(user) => {
            return Err(format!("{user:?} is no account's name"));
        }
        Some(user) => format!("\n    user {user}\n    group {user}"),
        None => String::new(),
    };
    Ok(format!(
        "# Written by lockstep pool haproxy; see docs/pool.md.\n\
         global\n    \
             maxconn {connections}{user}\n    \
             stats socket {socket} mode 600 level admin\n    \
             stats timeout 1m\n\n\
         defaults\n    \
             mode tcp\n    \
             balance leastconn\n    \
             timeout connect 2s\n    \
             timeout client 24h\n    \
             timeout server 24h\n    \
             timeout check {check_ms}ms\n    \
             option clitcpka\n    \
             option srvtcpka\n    \
             option redispatch 1\n    \
             retries 2\n\n\
         frontend statistics\n    \
             mode http\n    \
             bind {statistics}\n    \
             timeout client 10s\n    \
             stats enable\n    \
             stats uri /\n    \
             stats refresh 2s\n"
    ))
}

fn front(text: &mut String, rules: &ProxyRules, name: &str, port: u16, uses: &[String]) {
    let address = HostPort {
        host: rules.host.clone(),
        port,
    };
    // Writing to a string cannot fail.
    let _ = writeln!(text, "\nfrontend {name}-in\n    bind {address}");
    for line in uses {
        let _ = writeln!(text, "    {line}");
    }
    let _ = writeln!(text, "    default_backend {name}");
}

/// A back end. OPTIONS is answered as GET is, without a body that HAProxy would not read.
fn back(text: &mut String, lines: &[ServerLine], door: PoolDoor) {
    let backend = back_name(door);
    let _ = write!(
        text,
        "\nbackend {backend}\n    \
             option httpchk\n    \
             http-check send meth OPTIONS uri /pool/{}\n    \
             http-check disable-on-404\n",
        door.name(),
    );
    for line in lines.iter().filter(|line| line.backend == backend) {
        let _ = writeln!(text, "    server {} {}", line.name, line.settings);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> ProxyRules {
        ProxyRules {
            host: "127.0.0.1".to_owned(),
            writes_port: 1,
            reads_port: 2,
            reports_port: 3,
            statistics: HostPort::parse("127.0.0.1:4").unwrap(),
            socket: "/run/s".into(),
            connections: 100,
            when_all_late: WhenAllLate::Freshest,
            user: None,
            servers: ServerRules {
                check_every: Duration::from_millis(500),
                sessions_when_out: SessionsWhenOut::Keep,
                agent_ca: None,
            },
        }
    }

    fn member(name: &str, door: Door) -> Member {
        let at = |port| HostPort {
            host: name.to_owned(),
            port,
        };
        Member {
            name: name.to_owned(),
            server: ServerPlace::Tcp(at(5432)),
            agent: at(9872),
            agent_check: at(9873),
            door,
        }
    }

    #[test]
    fn options_are_in_what_is_written() {
        let nodes = [member("a", Door::Fresh), member("b", Door::Reports)];
        let text = |change: fn(&mut ProxyRules)| {
            let mut rules = rules();
            change(&mut rules);
            configuration(&nodes, &rules).unwrap()
        };
        let plain = text(|_| {});
        assert!(plain.contains("use_backend reads-late if { nbsrv(reads) eq 0 }"));
        assert!(plain.contains("use_backend reports-late if { nbsrv(reports) eq 0 }"));
        assert!(
            plain
                .contains("agent-inter 2000ms agent-addr a agent-port 9873 agent-send late-fresh.")
        );
        // Only servers that take no writes are asked less often whether they do.
        assert_eq!(plain.matches("inter 500ms").count(), 4);
        // Where sessions are cut off, two checks in a row have to fail.
        assert_eq!(
            plain.matches("inter 500ms fall 2 fastinter 250ms").count(),
            2
        );
        assert_eq!(plain.matches("fall 1").count(), 4);
        assert_eq!(plain.matches("port 9872 downinter 1000ms on-").count(), 2);
        assert!(
            plain.contains(
                "weight 200 inter 1000ms fall 1 rise 1 check addr a port 9872 agent-check"
            )
        );
        assert!(!plain.contains("agent-send writes"));
        // Only writers are cut off.
        assert_eq!(plain.matches("shutdown-sessions").count(), 2);
        let closed = text(|rules| rules.servers.sessions_when_out = SessionsWhenOut::Close);
        assert_eq!(closed.matches("shutdown-sessions").count(), 6);
        assert_eq!(closed.matches("fall 2").count(), 6);
        let primary = text(|rules| rules.when_all_late = WhenAllLate::Primary);
        assert!(primary.contains("use_backend writes if { nbsrv(reads) eq 0 }"));
        let refuse = text(|rules| rules.when_all_late = WhenAllLate::Refuse);
        assert!(!refuse.contains("use_backend") && !refuse.contains("late"));
        assert!(!plain.contains("user"));
        let account = text(|rules| rules.user = Some("haproxy".to_owned()));
        assert!(account.contains("    user haproxy\n    group haproxy\n"));
        let mut wrong = rules();
        wrong.user = Some("a\nb".to_owned());
        assert!(configuration(&nodes, &wrong).is_err());
        let tls = text(|rules| rules.servers.agent_ca = Some("/ca.pem".into()));
        assert!(tls.contains("check-ssl verify required ca-file /ca.pem"));
    }

    #[test]
    fn doors_without_nodes_are_there_and_names_are_plain() {
        let text = configuration(&[member("a b", Door::Fresh)], &rules()).unwrap();
        assert!(text.contains("backend reports\n") && text.contains("backend reports-late\n"));
        assert!(text.contains("server a_b a b:5432"));
        let nodes = [member("a b", Door::Fresh), member("a_b", Door::Fresh)];
        let error = configuration(&nodes, &rules()).unwrap_err();
        assert!(error.contains("two nodes would be called a_b"), "{error}");
        assert!(configuration(&[], &rules()).is_err());
    }
}
