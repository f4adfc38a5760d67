//! The nodes of a cluster whose members Patroni names: what `GET /cluster` of its REST interface answers, and
//! which nodes follow from that. No clock, and no I/O but that of who is given to ask.
//!
//! The format is that of Patroni 2 to 4: an object with `members`, of which each has `name`, `role` and
//! `state`, and `host` and `port` once its server has an address. Unknown fields are ignored; a
//! member of which something cannot be used is told.

use std::time::Duration;

use lockstep_client::Conninfo;
use lockstep_service::address::HostPort;
use lockstep_service::words::figures::seconds;

use crate::node::{Node, Role};
use answer::{Answer, Member, MemberRole, parse};

mod answer;
#[cfg(test)]
mod tests;

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
    /// Why the nodes that are watched may not be those of the cluster, or not as Patroni has them.
    pub unknown: Vec<String>,
    pub left: Vec<Left>,
    /// Members that Patroni never promotes.
    pub not_promoted: Vec<String>,
    /// Patroni leaves the cluster alone.
    pub is_paused: bool,
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
    /// When Patroni answered last, or was asked first.
    answered_ms: i64,
    /// Why Patroni cannot be asked.
    silent: Option<String>,
    /// What is not known of the list that it gave last.
    unknown: Vec<String>,
    not_promoted: Vec<String>,
    is_paused: bool,
}

impl Roster {
    pub fn new(conninfo: Conninfo, named: Vec<Node>) -> Self {
        Self {
            conninfo,
            nodes: named.clone(),
            named,
            left: Vec::new(),
            heard_ms: 0,
            answered_ms: 0,
            silent: None,
            unknown: vec!["Patroni has not been asked yet".to_owned()],
            not_promoted: Vec::new(),
            is_paused: false,
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
        let answer = match answer {
            Ok(text) => parse(text),
            Err(words) => Err(words.to_owned()),
        };
        if self.answered_ms == 0 {
            self.answered_ms = now_ms;
            self.unknown.clear();
        }
        match answer {
            Ok(answer) => {
                (self.silent, self.answered_ms) = (None, now_ms);
                self.take_members(&answer, now_ms);
            }
            Err(words) => self.silent = Some(words),
        }
    }

    fn take_members(&mut self, answer: &Answer, now_ms: i64) {
        let members = answer.members.as_slice();
        self.is_paused = answer.is_paused;
        let fixed = members.iter().filter(|member| member.no_failover);
        self.not_promoted = fixed.map(|member| member.name.clone()).collect();
        self.unknown = Vec::new();
        let nameless = answer.nameless > 0;
        self.unknown
            .extend(nameless.then(|| "Patroni names a member without a name".to_owned()));
        let before = std::mem::take(&mut self.nodes);
        if members.iter().all(|member| member.place.is_err()) {
            let words = members.iter().filter_map(|it| self.place_of(it, &before).1);
            let words: Vec<String> = words.collect();
            self.unknown
                .push("Patroni names no member that has a server".to_owned());
            self.unknown.extend(words);
            self.nodes = before;
            return;
        }
        self.nodes = self.nodes_of(members, &before);
        self.note_left(&before, members, now_ms);
        self.heard_ms = now_ms;
    }

    /// How a member is connected to, and what is not known of it. One whose address cannot be used keeps that
    /// which it had.
    fn place_of(&self, member: &Member, before: &[Node]) -> (Option<Conninfo>, Option<String>) {
        let Member { name, trouble, .. } = member;
        let conninfo = member.place.clone().and_then(|(host, port)| {
            let conninfo = self.conninfo.clone().with("host", &host);
            let conninfo = conninfo.and_then(|it| it.with("port", &port.to_string()));
            conninfo.map_err(|_| "the address that Patroni gives for it cannot be used".to_owned())
        });
        let state = trouble
            .as_ref()
            .map(|state| format!("its state at Patroni is \"{state}\""));
        match conninfo {
            Ok(conninfo) => (Some(conninfo), state.map(|it| format!("{name}: {it}"))),
            Err(why) => {
                let old = before.iter().find(|node| node.name == *name);
                let old = old.map(|node| node.conninfo.clone());
                let how = match old {
                    Some(_) => "is watched at the address that it had",
                    None => "is not watched",
                };
                let state = state.map_or(String::new(), |it| format!("; {it}"));
                (old, Some(format!("{name} {how}: {why}{state}")))
            }
        }
    }

    /// A node for each member that can be connected to; notes what is not known of them.
    fn member_nodes(&mut self, members: &[Member], before: &[Node]) -> Vec<Node> {
        let mut nodes: Vec<Node> = Vec::new();
        for (index, member) in members.iter().enumerate() {
            let name = &member.name;
            // Names are unique, also of those that are alike once they are shortened.
            if members.iter().take(index).any(|other| other.name == *name) {
                let words = format!("Patroni names several members {name}: one is watched");
                self.unknown.push(words);
                continue;
            }
            let (conninfo, words) = self.place_of(member, before);
            self.unknown.extend(words);
            let Some(conninfo) = conninfo else {
                continue;
            };
            let is_first = !nodes.iter().any(|node| node.role == Role::Primary);
            nodes.push(Node {
                name: name.clone(),
                role: match member.role {
                    MemberRole::Leader if is_first => Role::Primary,
                    _ => Role::Standby,
                },
                conninfo,
            });
        }
        let leaders = members.iter().filter(|it| it.role == MemberRole::Leader);
        let leaders: Vec<&str> = leaders.map(|member| member.name.as_str()).collect();
        if leaders.len() > 1 {
            let names = leaders.join(", ");
            self.unknown
                .push(format!("Patroni names several leaders: {names}"));
        }
        nodes
    }

    /// Nodes of these members and those that the user names; notes what does not fit.
    fn nodes_of(&mut self, members: &[Member], before: &[Node]) -> Vec<Node> {
        let mut nodes = self.member_nodes(members, before);
        let mut named = self.named.clone();
        // Patroni knows better who its members are.
        let is_member = |node: &Node| members.iter().any(|member| member.name == node.name);
        let twice = named
            .iter()
            .position(is_member)
            .map(|index| named.remove(index));
        named.retain(|node| !is_member(node));
        let is_primary = |node: &Node| node.role == Role::Primary;
        match nodes.iter().any(is_primary) {
            true => {
                let other = named.iter().position(is_primary);
                if let Some(other) = other.map(|index| named.remove(index)) {
                    let words = "the nodes file names a primary beside Patroni's leader";
                    self.unknown
                        .push(format!("{words}: take {} out of the file", other.name));
                }
            }
            false if named.iter().any(is_primary) => {}
            false => self.without_leader(members, &mut nodes, before),
        }
        if let Some(Node { name, .. }) = twice {
            let words =
                format!("the nodes file and Patroni both name {name}: take it out of the file");
            self.unknown.push(words);
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
            self.unknown.push(words.to_owned());
            return;
        }
        // The leader may be there, without an address.
        if members.iter().all(|it| it.role != MemberRole::Leader) {
            self.unknown.push("Patroni names no leader now".to_owned());
        }
        let Some(primary) = before.iter().find(|node| node.role == Role::Primary) else {
            return;
        };
        match nodes.iter_mut().find(|node| node.name == primary.name) {
            Some(node) => node.role = Role::Primary,
            None => nodes.push(primary.clone()),
        }
    }

    fn note_left(&mut self, before: &[Node], members: &[Member], now_ms: i64) {
        let heard_ms = self.heard_ms;
        let is_there = |nodes: &[Node], old: &Node| nodes.iter().any(|node| node.name == old.name);
        let gone = before
            .iter()
            .filter(|old| !is_there(&self.nodes, old) && !is_there(&self.named, old));
        let gone: Vec<_> = gone.map(|old| (old.name.clone(), heard_ms)).collect();
        self.left.extend(gone);
        let told_ms = i64::try_from(TOLD.as_millis()).unwrap_or(i64::MAX);
        let nodes = &self.nodes;
        let is_back = |name: &String| {
            let is_named = members.iter().any(|member| member.name == *name);
            is_named || nodes.iter().any(|node| node.name == *name)
        };
        self.left
            .retain(|(name, at_ms)| now_ms.saturating_sub(*at_ms) < told_ms && !is_back(name));
        let surplus = self.left.len().saturating_sub(MOST_MEMBERS);
        self.left.drain(..surplus);
    }

    pub fn membership(&self, now_ms: i64) -> Membership {
        let left = self.left.iter().map(|(node, at_ms)| Left {
            node: node.clone(),
            away: Duration::from_millis(now_ms.saturating_sub(*at_ms).max(0).unsigned_abs()),
        });
        let silence = self.silent.iter().map(|words| self.silence(words, now_ms));
        Membership {
            unknown: silence.chain(self.unknown.iter().cloned()).collect(),
            left: left.collect(),
            not_promoted: self.not_promoted.clone(),
            is_paused: self.is_paused,
        }
    }

    fn silence(&self, words: &str, now_ms: i64) -> String {
        let long = match now_ms.saturating_sub(self.answered_ms) {
            ..1_000 => String::new(),
            ms => format!(" for {}", seconds(ms as f64)),
        };
        let rest = match self.is_known() {
            false => "so its members are not known",
            true => "so members and roles are those that it named last",
        };
        format!("Patroni cannot be asked{long}, {rest}: {words}")
    }

    /// The nodes in words, for a log.
    fn shown(&self) -> String {
        let nodes = self.nodes.iter();
        let nodes: Vec<String> = nodes
            .map(|node| format!("{} ({}, {})", node.name, node.role, node.address()))
            .collect();
        nodes.join(", ")
    }
}

/// Whether a text is what Patroni answers to `GET /cluster`; an error says what is wrong with it.
pub fn understood(text: &str) -> Result<(), String> {
    parse(text).map(|_| ())
}

/// Asks Patroni for its members: the text of `GET /cluster`, or why there is none. It may block for seconds.
pub type Ask = Box<dyn FnMut() -> Result<String, String> + Send + Sync>;

/// A change that is worth a line in a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// Other nodes are watched from now on.
    Nodes(String),
    /// Patroni cannot be asked any more, and why.
    Silent(String),
    /// Patroni answers again.
    Answers,
}

/// A roster, and who says what is new.
pub struct Members {
    roster: Roster,
    ask: Ask,
    /// The nodes that were told last.
    told: String,
    told_silent: bool,
}

impl Members {
    /// Asks for the first time.
    pub fn new(roster: Roster, ask: Ask, now_ms: i64) -> Self {
        let mut members = Self {
            roster,
            ask,
            told: String::new(),
            told_silent: false,
        };
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

    /// What has changed since this was asked for the last time.
    pub fn news(&mut self) -> Vec<News> {
        let mut news = Vec::new();
        match &self.roster.silent {
            Some(words) if !self.told_silent => news.push(News::Silent(words.clone())),
            None if self.told_silent => news.push(News::Answers),
            _ => {}
        }
        self.told_silent = self.roster.silent.is_some();
        let nodes = self.roster.shown();
        if nodes != self.told {
            news.push(News::Nodes(nodes.clone()));
            self.told = nodes;
        }
        news
    }
}

impl std::fmt::Debug for Members {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.roster.fmt(f)
    }
}
