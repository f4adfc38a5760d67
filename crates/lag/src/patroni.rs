//! The nodes of a cluster whose members Patroni names: what `GET /cluster` of its REST interface answers, and
//! which nodes follow from that. No clock, and no I/O but that of who is given to ask.
//!
//! The format is that of Patroni 2 to 4: an object with `members`, of which each has `name`, `role` and
//! `state`, and `host` and `port` once its server has an address. Unknown fields are ignored.

use std::time::Duration;

use lockstep_client::Conninfo;
use lockstep_service::address::HostPort;
use lockstep_service::sanitize::sanitize;
use serde::Deserialize;

use crate::node::{MOST_NAME, Node, Role};

/// Port of Patroni's REST interface, unless a URL names another.
const PORT: u16 = 8008;

/// Most members of a cluster, and of those that are told to have left.
const MOST_MEMBERS: usize = 200;

/// Time for which a member that has left is told.
const TOLD: Duration = Duration::from_secs(3600);

/// The address of a Patroni node's REST interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatroniUrl {
    /// True if it speaks TLS.
    pub tls: bool,
    pub at: HostPort,
}

impl PatroniUrl {
    /// Reads `http://host:port`; a path that follows is left out.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || "a URL of Patroni is such as http://db1:8008".to_owned();
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let tls = match scheme {
            "http" => false,
            "https" => true,
            _ => return Err(wrong()),
        };
        let place = rest.split('/').next().unwrap_or_default();
        if place.contains('@') {
            return Err(
                "a URL of Patroni has no login: write user:password into login_file".into(),
            );
        }
        let has_port = place
            .rsplit_once(':')
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let place = match has_port {
            true => place.to_owned(),
            false => format!("{place}:{PORT}"),
        };
        let at = HostPort::parse(&place).map_err(|_| wrong())?;
        Ok(Self { tls, at })
    }
}

impl std::fmt::Display for PatroniUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.at)
    }
}

/// What a member is, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MemberRole {
    /// `leader`, or `master` as Patroni before 2 called it.
    Leader,
    /// `standby_leader`: the first standby of a cluster whose primary is elsewhere.
    StandbyLeader,
    /// All others.
    Replica,
}

/// A member that has a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    name: String,
    role: MemberRole,
    host: String,
    port: u16,
}

#[derive(Deserialize)]
struct Answer {
    members: Vec<Told>,
}

#[derive(Deserialize)]
struct Told {
    name: String,
    #[serde(default)]
    role: String,
    host: Option<String>,
    port: Option<u16>,
}

/// Members of an answer to `GET /cluster`; those without an address yet are left out.
pub fn parse(text: &str) -> Result<Vec<Member>, String> {
    let answer: Answer = serde_json::from_str(text)
        .map_err(|_| "what it answers is no list of members as Patroni's".to_owned())?;
    if answer.members.len() > MOST_MEMBERS {
        let number = answer.members.len();
        return Err(format!(
            "it names {number} members; {MOST_MEMBERS} at most are watched"
        ));
    }
    let members = answer.members.into_iter().filter_map(|told| {
        let role = match told.role.as_str() {
            "leader" | "master" => MemberRole::Leader,
            "standby_leader" => MemberRole::StandbyLeader,
            _ => MemberRole::Replica,
        };
        Some(Member {
            name: sanitize(&told.name).chars().take(MOST_NAME).collect(),
            role,
            host: told.host.filter(|host| !host.is_empty())?,
            port: told.port.unwrap_or(5432),
        })
    });
    Ok(members.collect())
}

/// A member that Patroni no longer names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    pub node: String,
    /// Time since it was named for the last time.
    pub away: Duration,
}

/// What there is to tell about a list of members.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Membership {
    /// Why the nodes that are watched may not be those of the cluster.
    pub unknown: Option<String>,
    pub left: Vec<Left>,
}

/// Members as Patroni named them last, and the nodes that follow from that.
#[derive(Debug, Clone)]
pub struct Roster {
    /// How members are connected to; Patroni gives host and port.
    conninfo: Conninfo,
    /// Nodes that the user names beside them.
    named: Vec<Node>,
    nodes: Vec<Node>,
    /// Names of members that left, and when, in milliseconds since 1970.
    left: Vec<(String, i64)>,
    /// When members were named last.
    heard_ms: i64,
    unknown: Option<String>,
}

impl Roster {
    pub fn new(conninfo: Conninfo, named: Vec<Node>) -> Self {
        Self {
            conninfo,
            nodes: named.clone(),
            named,
            left: Vec::new(),
            heard_ms: 0,
            unknown: Some("Patroni has not been asked yet".to_owned()),
        }
    }

    /// The primary first, then standbys, relays and subscribers.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Patroni has named members at least once.
    pub fn is_known(&self) -> bool {
        self.heard_ms != 0
    }

    /// Takes the answer of `GET /cluster`, or why there is none. Without a list the last one stays.
    pub fn take(&mut self, answer: Result<&str, &str>, now_ms: i64) {
        let members = match answer {
            Ok(text) => parse(text),
            Err(words) => Err(words.to_owned()),
        };
        match members {
            Ok(members) if members.is_empty() => {
                self.unknown = Some("Patroni names no member that has a server".to_owned());
            }
            Ok(members) => {
                let before = std::mem::take(&mut self.nodes);
                self.unknown = None;
                self.nodes = self.nodes_of(&members, &before);
                self.note_left(&before, now_ms);
                self.heard_ms = now_ms;
            }
            Err(words) => {
                let rest = match self.is_known() {
                    false => "so its members are not known",
                    true => "so members and roles are those that it named last",
                };
                self.unknown = Some(format!("Patroni cannot be asked, {rest}: {words}"));
            }
        }
    }

    /// Nodes of these members and those that the user names; notes what does not fit.
    fn nodes_of(&mut self, members: &[Member], before: &[Node]) -> Vec<Node> {
        let mut nodes: Vec<Node> = Vec::new();
        let mut named = self.named.clone();
        // Patroni knows better who its members are.
        let is_member = |node: &Node| members.iter().any(|member| member.name == node.name);
        let twice = named
            .iter()
            .position(is_member)
            .map(|index| named.remove(index));
        named.retain(|node| !is_member(node));
        for member in members {
            // Names are unique, also of those that are alike once they are shortened.
            if member.name.is_empty() || nodes.iter().any(|node| node.name == member.name) {
                continue;
            }
            let port = member.port.to_string();
            let conninfo = self.conninfo.clone().with("host", &member.host);
            let conninfo = conninfo.and_then(|conninfo| conninfo.with("port", &port));
            let Ok(conninfo) = conninfo else {
                continue;
            };
            let is_first = !nodes.iter().any(|node| node.role == Role::Primary);
            nodes.push(Node {
                name: member.name.clone(),
                role: match member.role {
                    MemberRole::Leader if is_first => Role::Primary,
                    _ => Role::Standby,
                },
                conninfo,
            });
        }
        let is_primary = |node: &Node| node.role == Role::Primary;
        match nodes.iter().any(is_primary) {
            true => {
                let other = named.iter().position(is_primary);
                if let Some(other) = other.map(|index| named.remove(index)) {
                    let words = "the nodes file names a primary beside Patroni's leader";
                    self.unknown = Some(format!("{words}: take {} out of the file", other.name));
                }
            }
            false if named.iter().any(is_primary) => {}
            false => self.without_leader(members, &mut nodes, before),
        }
        if let Some(Node { name, .. }) = twice {
            let words =
                format!("the nodes file and Patroni both name {name}: take it out of the file");
            self.unknown = Some(words);
        }
        nodes.extend(named);
        nodes.sort_by_key(|node| {
            (
                Role::ALL.iter().position(|role| *role == node.role),
                node.name.clone(),
            )
        });
        nodes
    }

    /// No member is the leader: who was the primary is looked at as such, until there is a new one.
    fn without_leader(&mut self, members: &[Member], nodes: &mut Vec<Node>, before: &[Node]) {
        if members
            .iter()
            .any(|it| it.role == MemberRole::StandbyLeader)
        {
            let words = "Patroni says that this is a standby cluster, and nobody names its primary: add a \
                         [[node]] with role = \"primary\"";
            self.unknown = Some(words.to_owned());
            return;
        }
        self.unknown = Some("Patroni names no leader now".to_owned());
        let Some(primary) = before.iter().find(|node| node.role == Role::Primary) else {
            return;
        };
        match nodes.iter_mut().find(|node| node.name == primary.name) {
            Some(node) => node.role = Role::Primary,
            None => nodes.push(primary.clone()),
        }
    }

    fn note_left(&mut self, before: &[Node], now_ms: i64) {
        let heard_ms = self.heard_ms;
        let is_there = |nodes: &[Node], old: &Node| nodes.iter().any(|node| node.name == old.name);
        let gone = before
            .iter()
            .filter(|old| !is_there(&self.nodes, old) && !is_there(&self.named, old));
        let gone: Vec<_> = gone.map(|old| (old.name.clone(), heard_ms)).collect();
        self.left.extend(gone);
        let told_ms = i64::try_from(TOLD.as_millis()).unwrap_or(i64::MAX);
        let nodes = &self.nodes;
        self.left.retain(|(name, at_ms)| {
            now_ms.saturating_sub(*at_ms) < told_ms && !nodes.iter().any(|node| node.name == *name)
        });
        let surplus = self.left.len().saturating_sub(MOST_MEMBERS);
        self.left.drain(..surplus);
    }

    pub fn membership(&self, now_ms: i64) -> Membership {
        let left = self.left.iter().map(|(node, at_ms)| Left {
            node: node.clone(),
            away: Duration::from_millis(now_ms.saturating_sub(*at_ms).max(0).unsigned_abs()),
        });
        Membership {
            unknown: self.unknown.clone(),
            left: left.collect(),
        }
    }
}

/// Asks Patroni for its members: the text of `GET /cluster`, or why there is none. It may block for seconds.
pub type Ask = Box<dyn FnMut() -> Result<String, String> + Send + Sync>;

/// A roster, and who says what is new.
pub struct Members {
    roster: Roster,
    ask: Ask,
}

impl Members {
    /// Asks for the first time.
    pub fn new(roster: Roster, ask: Ask, now_ms: i64) -> Self {
        let mut members = Self { roster, ask };
        members.look(now_ms);
        members
    }

    /// Asks again.
    pub fn look(&mut self, now_ms: i64) {
        let answer = (self.ask)();
        let answer = answer.as_ref().map(String::as_str).map_err(String::as_str);
        self.roster.take(answer, now_ms);
    }

    pub fn roster(&self) -> &Roster {
        &self.roster
    }
}

impl std::fmt::Debug for Members {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.roster.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Patroni 4 answers, by the documentation of its REST interface.
    const FOUR: &str = r#"{"members": [
        {"name": "patroni1", "role": "leader", "state": "running", "api_url": "http://10.89.0.4:8008/patroni",
         "host": "10.89.0.4", "port": 5432, "timeline": 5, "tags": {"clonefrom": true}},
        {"name": "patroni2", "role": "quorum_standby", "state": "streaming",
         "api_url": "http://10.89.0.6:8008/patroni", "host": "10.89.0.6", "port": 5433, "timeline": 5,
         "tags": {"clonefrom": true}, "receive_lag": 0, "receive_lsn": "0/4000060", "replay_lag": 0,
         "replay_lsn": "0/4000060", "lag": 0, "lsn": "0/4000060"},
        {"name": "patroni3", "role": "replica", "state": "creating replica",
         "api_url": "http://10.89.0.7:8008/patroni", "lag": "unknown"}],
        "scope": "demo", "pause": true,
        "scheduled_switchover": {"at": "2023-09-24T10:36:00+02:00", "from": "patroni1", "to": "patroni3"}}"#;

    /// What Patroni 3 answers: no scope, lag in bytes or unknown.
    const THREE: &str = r#"{"members": [
        {"name": "db1", "role": "replica", "state": "running", "api_url": "http://db1:8008/patroni",
         "host": "db1", "port": 5432, "timeline": 2, "lag": 0},
        {"name": "db2", "role": "leader", "state": "running", "api_url": "http://db2:8008/patroni",
         "host": "db2", "port": 5432, "timeline": 2},
        {"name": "db3", "role": "sync_standby", "state": "streaming", "api_url": "http://db3:8008/patroni",
         "host": "db3", "port": 5432, "timeline": 2, "lag": "unknown",
         "pending_restart": true}]}"#;

    fn member(name: &str, role: &str) -> String {
        format!(
            r#"{{"name": "{name}", "role": "{role}", "state": "running", "host": "h{name}", "port": 1}}"#
        )
    }

    fn cluster(members: &[(&str, &str)]) -> String {
        let members: Vec<String> = members
            .iter()
            .map(|(name, role)| member(name, role))
            .collect();
        format!(r#"{{"members": [{}]}}"#, members.join(", "))
    }

    fn conninfo(text: &str) -> Conninfo {
        Conninfo::parse(text).unwrap()
    }

    fn roster(named: &[(&str, Role)]) -> Roster {
        let named = named.iter().map(|(name, role)| Node {
            name: (*name).to_owned(),
            role: *role,
            conninfo: conninfo("host=elsewhere"),
        });
        Roster::new(conninfo("user=watcher dbname=postgres"), named.collect())
    }

    fn shown(roster: &Roster) -> String {
        let nodes = roster.nodes().iter();
        let words: Vec<String> = nodes
            .map(|node| format!("{} {}", node.name, node.role))
            .collect();
        words.join(", ")
    }

    fn unknown(roster: &Roster) -> String {
        roster.membership(0).unknown.unwrap_or_default()
    }

    #[test]
    fn both_formats_give_nodes_with_addresses() {
        let mut four = roster(&[("app", Role::Subscriber)]);
        four.take(Ok(FOUR), 1);
        assert_eq!(
            shown(&four),
            "patroni1 primary, patroni2 standby, app subscriber"
        );
        assert_eq!(four.nodes()[1].address(), "10.89.0.6:5433/postgres");
        assert_eq!(four.nodes()[1].conninfo.get("user"), Some("watcher"));
        assert_eq!(four.membership(1), Membership::default());
        let mut three = roster(&[]);
        three.take(Ok(THREE), 1);
        assert_eq!(shown(&three), "db2 primary, db1 standby, db3 standby");
    }

    #[test]
    fn roles_change_and_who_leaves_is_told_until_it_is_back() {
        let mut it = roster(&[]);
        it.take(
            Ok(&cluster(&[
                ("a", "leader"),
                ("b", "replica"),
                ("c", "replica"),
            ])),
            1_000,
        );
        it.take(
            Ok(&cluster(&[
                ("a", "replica"),
                ("b", "leader"),
                ("d", "replica"),
            ])),
            6_000,
        );
        assert_eq!(shown(&it), "b primary, a standby, d standby");
        let left = |it: &Roster, now_ms| -> Vec<(String, u64)> {
            let left = it.membership(now_ms).left.into_iter();
            left.map(|one| (one.node, one.away.as_secs())).collect()
        };
        assert_eq!(left(&it, 11_000), [("c".to_owned(), 10)]);
        let back = cluster(&[
            ("b", "leader"),
            ("a", "replica"),
            ("c", "replica"),
            ("d", "replica"),
        ]);
        let mut again = it.clone();
        again.take(Ok(&back), 12_000);
        assert_eq!(left(&again, 12_000), []);
        // An hour later it is forgotten.
        it.take(
            Ok(&cluster(&[
                ("b", "leader"),
                ("a", "replica"),
                ("d", "replica"),
            ])),
            3_700_000,
        );
        assert_eq!(left(&it, 3_700_000), []);
    }

    #[test]
    fn the_last_list_stays_while_patroni_cannot_be_asked() {
        let mut it = roster(&[("app", Role::Subscriber)]);
        it.take(Err("http://a:8008: refused"), 1);
        assert_eq!(shown(&it), "app subscriber");
        assert!(unknown(&it).contains("members are not known: http://a:8008: refused"));
        it.take(Ok(&cluster(&[("a", "leader"), ("b", "replica")])), 2);
        let known = shown(&it);
        assert_eq!(unknown(&it), "");
        for answer in [
            Err("refused"),
            Ok("<html>"),
            Ok("{}"),
            Ok("[]"),
            Ok(r#"{"members": []}"#),
        ] {
            it.take(answer, 3);
            assert_eq!(shown(&it), known, "{answer:?}");
            assert_ne!(unknown(&it), "", "{answer:?}");
            assert_eq!(it.membership(3).left, []);
        }
    }

    #[test]
    fn names_are_unique_and_what_is_remembered_is_bounded() {
        let mut it = roster(&[]);
        let long = "x".repeat(100);
        let other = format!("{long}y");
        let alike = [
            ("a", "leader"),
            (&long, "replica"),
            (&other, "replica"),
            ("", "replica"),
        ];
        it.take(Ok(&cluster(&alike)), 1);
        let names: Vec<usize> = it.nodes().iter().map(|node| node.name.len()).collect();
        assert_eq!(names, [1, MOST_NAME]);
        for number in 0..2 * MOST_MEMBERS {
            let name = format!("n{number}");
            it.take(Ok(&cluster(&[("a", "leader"), (&name, "replica")])), 2);
        }
        assert_eq!(it.membership(3).left.len(), MOST_MEMBERS);
        let many: Vec<String> = (0..=MOST_MEMBERS)
            .map(|number| format!("n{number}"))
            .collect();
        let many: Vec<_> = many.iter().map(|name| (name.as_str(), "replica")).collect();
        it.take(Ok(&cluster(&many)), 4);
        assert_eq!(it.nodes().len(), 2);
        assert!(
            unknown(&it).contains("it names 201 members"),
            "{}",
            unknown(&it)
        );
    }

    #[test]
    fn without_a_leader_the_former_primary_is_missed_as_such() {
        let mut it = roster(&[]);
        it.take(Ok(&cluster(&[("a", "leader"), ("b", "replica")])), 1);
        it.take(Ok(&cluster(&[("b", "replica")])), 2);
        assert_eq!(shown(&it), "a primary, b standby");
        assert_eq!(unknown(&it), "Patroni names no leader now");
        it.take(Ok(&cluster(&[("b", "leader")])), 3);
        assert_eq!(
            (shown(&it), unknown(&it)),
            ("b primary".to_owned(), String::new())
        );
        assert_eq!(it.membership(3).left[0].node, "a");
        let mut new = roster(&[]);
        new.take(Ok(&cluster(&[("b", "replica")])), 1);
        assert_eq!(shown(&new), "b standby");
        assert_ne!(unknown(&new), "");
    }

    #[test]
    fn a_standby_cluster_has_its_primary_elsewhere() {
        let members = cluster(&[("a", "standby_leader"), ("b", "replica")]);
        let mut it = roster(&[]);
        it.take(Ok(&members), 1);
        assert!(unknown(&it).contains("standby cluster"), "{}", unknown(&it));
        let mut it = roster(&[("far", Role::Primary)]);
        it.take(Ok(&members), 1);
        assert_eq!(shown(&it), "far primary, a standby, b standby");
        assert_eq!(unknown(&it), "");
        // It was promoted: the file is out of date.
        it.take(Ok(&cluster(&[("a", "leader"), ("b", "replica")])), 2);
        assert_eq!(shown(&it), "a primary, b standby");
        assert!(unknown(&it).contains("take far out of the file"));
        let mut it = roster(&[("a", Role::Subscriber)]);
        it.take(Ok(&cluster(&[("a", "leader"), ("b", "replica")])), 2);
        assert!(unknown(&it).contains("both name a"));
        assert_eq!(shown(&it), "a primary, b standby");
    }

    #[test]
    fn urls_are_read_or_refused() {
        for (text, shown) in [
            ("http://db1:8008", "http://db1:8008"),
            ("http://db1", "http://db1:8008"),
            ("https://10.0.0.1:8009/cluster", "https://10.0.0.1:8009"),
            ("http://[::1]:8008", "http://[::1]:8008"),
            ("http://[::1]", "http://[::1]:8008"),
        ] {
            assert_eq!(
                PatroniUrl::parse(text).unwrap().to_string(),
                shown,
                "{text}"
            );
        }
        for text in [
            "db1:8008",
            "ftp://db1",
            "http://",
            "http://u:p@db1",
            "http://db1:x",
        ] {
            assert!(PatroniUrl::parse(text).is_err(), "{text}");
        }
    }
}
