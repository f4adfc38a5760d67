//! The nodes that `doctor`, `top` and `serve` watch, as a user names them: by conninfos and in a file.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lockstep_client::{ClientError, Conninfo};
use lockstep_service::address::HostPort;
use lockstep_service::toml_file;
use serde::Deserialize;

use crate::node::{MOST_NAME, Node, Role};
use crate::patroni::{Ask, Members, Membership, PatroniUrl, Roster};
use lockstep_service::sanitize::sanitize;
use names::{ask_names, name_of_role, places_of, rename};

mod names;
#[cfg(test)]
mod tests;

/// The servers that a command line names: conninfos, and a file of more of them.
#[derive(Debug, Clone, Default)]
pub struct NamedNodes {
    pub primary: Option<String>,
    pub standbys: Vec<String>,
    pub relays: Vec<String>,
    pub subscribers: Vec<String>,
    /// A TOML file with a `[[node]]` for each server, or a `[[cluster]]` for those that Patroni names.
    pub file: Option<PathBuf>,
    /// The only cluster of the file that counts.
    pub cluster: Option<String>,
}

/// A primary and what follows it, directly or not.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// The cluster's name; None if the file names none.
    pub name: Option<String>,
    /// The nodes that are written down, the primary first.
    pub nodes: Vec<Node>,
    /// Where Patroni says which other nodes there are.
    pub patroni: Option<PatroniPlace>,
}

/// Where the members of a cluster are asked for, and how they are connected to.
#[derive(Debug, Clone)]
pub struct PatroniPlace {
    pub urls: Vec<PatroniUrl>,
    /// Without host and port.
    pub conninfo: Conninfo,
    /// A file with `user:password`.
    pub login_file: Option<PathBuf>,
    /// The certificate authority of `https`, as PEM.
    pub ca_file: Option<PathBuf>,
    /// Where it is written, for errors.
    pub place: String,
}

/// Why named nodes cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NodesError {
    #[error("{0}")]
    Unusable(String),
    /// The conninfo that stands at this place is none.
    #[error("{place}")]
    Conninfo { place: String, source: ClientError },
}

/// A cluster with the nodes that there are now.
#[derive(Debug)]
pub struct Watched {
    /// The cluster's name, if it has one.
    pub cluster: Option<String>,
    pub nodes: Vec<Node>,
    /// What is to be told about them, if Patroni names them.
    pub membership: Option<Membership>,
    /// Who says which nodes there are later.
    pub members: Option<Members>,
}

impl From<Vec<Node>> for Watched {
    /// A cluster without a name.
    fn from(nodes: Vec<Node>) -> Self {
        Self {
            cluster: None,
            nodes,
            membership: None,
            members: None,
        }
    }
}

impl Cluster {
    /// Asks Patroni through `ask`, if that names the members.
    pub fn watched(self, ask: Option<Ask>, now_ms: i64) -> Watched {
        let place = self.patroni.zip(ask);
        let members = place.map(|(place, ask)| {
            let roster = Roster::new(place.conninfo, self.nodes.clone());
            Members::new(roster, ask, now_ms)
        });
        let roster = members.as_ref().map(Members::roster);
        Watched {
            cluster: self.name,
            nodes: roster.map_or(self.nodes, |roster| roster.nodes().to_vec()),
            membership: roster.map(|roster| roster.membership(now_ms)),
            members,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodesFile {
    #[serde(default)]
    node: Vec<Listed>,
    #[serde(default)]
    cluster: Vec<ListedCluster>,
}

/// A cluster whose members Patroni names, as it is written down.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListedCluster {
    name: Option<String>,
    patroni: Vec<String>,
    conninfo: String,
    login_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    /// Where it stands, for errors.
    #[serde(skip)]
    place: String,
}

/// A node as it is written down.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    name: Option<String>,
    cluster: Option<String>,
    role: Role,
    conninfo: String,
    /// `host:port` of the node's agent, for `lockstep pool`.
    agent: Option<String>,
    /// `host:port` of the agent's agent-check.
    agent_check: Option<String>,
    door: Option<PoolDoor>,
    /// Where it stands, for errors.
    #[serde(skip)]
    place: String,
}

/// Which readers a node of a pool is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PoolDoor {
    /// Readers of fresh data.
    Fresh,
    /// Long queries.
    Reports,
}

/// What a file says of a node for `lockstep pool`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolEntry {
    pub agent: Option<HostPort>,
    pub agent_check: Option<HostPort>,
    pub door: Option<PoolDoor>,
}

/// Variables of which one says where the primary is.
const PLACES: [&str; 3] = ["PGHOST", "PGHOSTADDR", "PGSERVICE"];

/// The permission that lets every user read a file.
const OTHERS_READ: u32 = 0o004;

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

/// What is written down of a cluster.
#[derive(Debug)]
struct Part {
    name: Option<String>,
    listed: Vec<Listed>,
    patroni: Option<ListedCluster>,
}

impl NamedNodes {
    /// The clusters of the file and of the command line, each with unique names of nodes. Conninfos are
    /// parsed here and not by the parser of arguments, because that would print an invalid one with its
    /// password.
    pub fn clusters(&self) -> Result<Vec<Cluster>, NodesError> {
        let clusters: Vec<Cluster> = self
            .parts()?
            .into_iter()
            .map(cluster)
            .collect::<Result<_, _>>()?;
        let named = clusters
            .iter()
            .map(|it| (it.name.as_deref(), it.nodes.as_slice()));
        match named_twice(named) {
            Some(words) => Err(NodesError::Unusable(self.of_file(&words))),
            None => Ok(clusters),
        }
    }

    /// The only cluster, and what the file says of each of its nodes for `lockstep pool`.
    pub fn with_pool(&self) -> Result<(Cluster, Vec<PoolEntry>), NodesError> {
        let mut parts = self.parts()?;
        let (Some(part), None) = (parts.pop(), parts.pop()) else {
            let words = "it has several clusters, and a pool is one of them: give --cluster NAME";
            return Err(NodesError::Unusable(self.of_file(words)));
        };
        let entry = |one: &Listed| {
            let address = |text: &Option<String>| match text {
                Some(text) => HostPort::parse(text)
                    .map(Some)
                    .map_err(|words| NodesError::Unusable(format!("{}: {words}", one.place))),
                None => Ok(None),
            };
            Ok(PoolEntry {
                agent: address(&one.agent)?,
                agent_check: address(&one.agent_check)?,
                door: one.door,
            })
        };
        let entries = part.listed.iter().map(entry).collect::<Result<_, _>>()?;
        Ok((cluster(part)?, entries))
    }

    /// A warning if users of this machine can read a password in the file.
    pub fn exposed(&self) -> Option<String> {
        let path = self.file.as_ref()?;
        let mode = std::fs::metadata(path).ok()?.mode() & 0o7777;
        let file = read(path).ok()?;
        let of_nodes = file.node.iter().map(|one| &one.conninfo);
        let mut conninfos = of_nodes.chain(file.cluster.iter().map(|one| &one.conninfo));
        let holds = |text: &String| Conninfo::parse(text).is_ok_and(|it| it.has_secret());
        (mode & OTHERS_READ != 0 && conninfos.any(holds)).then(|| {
            let path = path.display();
            format!(
                "--nodes {path} has a password and mode {mode:04o}, so every user of this machine can read it: \
                 chmod 600 {path}, or write passwords into ~/.pgpass"
            )
        })
    }

    fn of_file(&self, words: &str) -> String {
        match &self.file {
            Some(path) => format!("--nodes {}: {words}", path.display()),
            None => words.to_owned(),
        }
    }

    /// What is written down, cluster by cluster, in each the primary first and then by role.
    fn parts(&self) -> Result<Vec<Part>, NodesError> {
        let file = match &self.file {
            Some(path) => read(path)?,
            None => NodesFile::default(),
        };
        let wrong = |words: String| NodesError::Unusable(self.of_file(&words));
        let mut parts = split(file).map_err(NodesError::Unusable)?;
        for name in parts.iter().filter_map(|part| part.name.as_deref()) {
            check_cluster_name(name).map_err(wrong)?;
        }
        if let Some(name) = &self.cluster {
            let is_it = |part: &Part| part.name.as_ref() == Some(name);
            if !parts.iter().any(is_it) {
                let names: Vec<&str> = parts.iter().filter_map(|it| it.name.as_deref()).collect();
                let there = match names.is_empty() {
                    true => "it names none".to_owned(),
                    false => format!("there are {}", names.join(", ")),
                };
                return Err(wrong(format!(
                    "no cluster is called {}; {there}",
                    sanitize(name)
                )));
            }
            parts.retain(is_it);
        }
        let given: Vec<Listed> = self.given().collect();
        match (parts.as_mut_slice(), given.first()) {
            ([part], _) => part.listed.extend(given),
            (_, Some(one)) => {
                let words = format!(
                    "it has several clusters: write the node of {} into it",
                    one.place
                );
                return Err(wrong(words));
            }
            _ => {}
        }
        let is_alone = parts.len() == 1;
        for part in &mut parts {
            part.order();
            if is_alone && part.patroni.is_none() {
                part.add_placed();
            }
            part.check(self.file.is_some()).map_err(wrong)?;
        }
        Ok(parts)
    }

    /// Nodes of the command line.
    fn given(&self) -> impl Iterator<Item = Listed> {
        let roles = [
            (Role::Primary, self.primary.as_slice()),
            (Role::Standby, &self.standbys),
            (Role::Relay, &self.relays),
            (Role::Subscriber, &self.subscribers),
        ];
        roles.into_iter().flat_map(|(role, conninfos)| {
            conninfos
                .iter()
                .map(move |conninfo| Listed::given(role, conninfo))
        })
    }
}

impl Listed {
    fn given(role: Role, conninfo: &str) -> Self {
        Self {
            name: None,
            cluster: None,
            role,
            conninfo: conninfo.to_owned(),
            agent: None,
            agent_check: None,
            door: None,
            place: format!("--{role}"),
        }
    }
}

impl Part {
    fn order(&mut self) {
        let order = |one: &Listed| Role::ALL.iter().position(|role| *role == one.role);
        self.listed.sort_by_key(order);
    }

    fn primaries(&self) -> usize {
        let is_primary = |one: &&Listed| one.role == Role::Primary;
        self.listed.iter().filter(is_primary).count()
    }

    /// Adds the primary that the environment names, if no other is named.
    fn add_placed(&mut self) {
        let is_placed = PLACES.iter().any(|name| std::env::var_os(name).is_some());
        if is_placed && self.primaries() == 0 {
            self.listed.insert(0, Listed::given(Role::Primary, ""));
        }
    }

    fn check(&self, in_file: bool) -> Result<(), String> {
        let of = match &self.name {
            Some(name) => format!("cluster {name}: "),
            None => String::new(),
        };
        match self.primaries() {
            0 if self.patroni.is_some() => {}
            0 if in_file => {
                return Err(format!(
                    "{of}no primary is named: add a [[node]] with role = \"primary\" and its conninfo"
                ));
            }
            0 => {
                let words = "no primary is named: give --primary CONNINFO, or --nodes FILE";
                return Err(words.to_owned());
            }
            1 => {}
            number => {
                return Err(format!(
                    "{of}{number} primaries are named; each cluster has one"
                ));
            }
        }
        check_names(&self.listed).map_err(|words| format!("{of}{words}"))
    }
}

/// The clusters of a file. If one is named, all are.
fn split(file: NodesFile) -> Result<Vec<Part>, String> {
    let named = file.cluster.iter().filter_map(|it| it.name.clone());
    let named = named.chain(file.node.iter().filter_map(|it| it.cluster.clone()));
    let mut names: Vec<String> = Vec::new();
    for name in named {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let mut parts: Vec<Part> = names
        .into_iter()
        .map(|name| Part::new(Some(name)))
        .collect();
    if parts.is_empty() {
        parts.push(Part::new(None));
    }
    let mut unnamed = file
        .node
        .iter()
        .filter(|it| it.cluster.is_none())
        .map(|it| &it.place);
    let mut of_cluster = file
        .cluster
        .iter()
        .filter(|it| it.name.is_none())
        .map(|it| &it.place);
    let has_names = parts.iter().any(|part| part.name.is_some());
    if let Some(place) = of_cluster.next().filter(|_| has_names) {
        return Err(format!(
            "{place}: it has no name, though others have: write name = \"NAME\""
        ));
    }
    if let Some(place) = unnamed.next().filter(|_| has_names) {
        let words = "it names no cluster, though others do: write cluster = \"NAME\"";
        return Err(format!("{place}: {words}"));
    }
    for one in file.cluster {
        let part = parts.iter_mut().find(|part| part.name == one.name);
        let words = format!("{}: its cluster has another [[cluster]] already", one.place);
        match part {
            Some(part) if part.patroni.is_none() => part.patroni = Some(one),
            _ => return Err(words),
        }
    }
    for one in file.node {
        if let Some(part) = parts.iter_mut().find(|part| part.name == one.cluster) {
            part.listed.push(one);
        }
    }
    Ok(parts)
}

impl Part {
    fn new(name: Option<String>) -> Self {
        Self {
            name,
            listed: Vec::new(),
            patroni: None,
        }
    }
}

/// Names of clusters stand in URLs and are names of folders.
fn check_cluster_name(name: &str) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let fits = (1..=MOST_NAME).contains(&name.len()) && !name.starts_with('.');
    match fits && name.chars().all(is_plain) {
        true => Ok(()),
        false => Err(format!(
            "a cluster's name has 1 to {MOST_NAME} letters, digits, -, _ and ., and does not begin with a \
             dot, unlike {name:?}"
        )),
    }
}

/// Words if two clusters have the same server. A subscriber may belong to several: what it subscribes to, and
/// its own.
pub fn named_twice<'a>(
    clusters: impl Iterator<Item = (Option<&'a str>, &'a [Node])>,
) -> Option<String> {
    let mut seen: BTreeMap<String, (Option<&str>, &Node)> = BTreeMap::new();
    for (cluster, nodes) in clusters {
        for node in nodes.iter().filter(|node| node.role != Role::Subscriber) {
            let (other, first) = *seen.entry(node.place()).or_insert((cluster, node));
            if other != cluster {
                let name = |cluster: Option<&str>| cluster.unwrap_or_default().to_owned();
                return Some(format!(
                    "clusters {} and {} have the same server, {}, as {} and {}",
                    name(other),
                    name(cluster),
                    node.place(),
                    first.name,
                    node.name
                ));
            }
        }
    }
    None
}

/// The cluster, with names of its nodes and where Patroni is.
fn cluster(part: Part) -> Result<Cluster, NodesError> {
    Ok(Cluster {
        nodes: nodes(&part.listed)?,
        patroni: part.patroni.map(patroni).transpose()?,
        name: part.name,
    })
}

fn patroni(one: ListedCluster) -> Result<PatroniPlace, NodesError> {
    let place = one.place;
    let wrong = |words: String| NodesError::Unusable(format!("{place}: {words}"));
    let urls: Vec<PatroniUrl> = one
        .patroni
        .iter()
        .map(|text| PatroniUrl::parse(text))
        .collect::<Result<_, _>>()
        .map_err(wrong)?;
    if urls.is_empty() {
        return Err(wrong("patroni has no URL".to_owned()));
    }
    if one.ca_file.is_none() && urls.iter().any(|url| url.tls) {
        return Err(wrong(
            "https needs ca_file, the certificate authority as PEM".to_owned(),
        ));
    }
    let conninfo = Conninfo::parse(&one.conninfo).map_err(|source| NodesError::Conninfo {
        place: place.clone(),
        source,
    })?;
    if conninfo.get("host").or(conninfo.get("port")).is_some() {
        return Err(wrong(
            "conninfo has no host and no port: Patroni gives them".to_owned(),
        ));
    }
    Ok(PatroniPlace {
        urls,
        conninfo,
        login_file: one.login_file,
        ca_file: one.ca_file,
        place,
    })
}

/// Nodes with unique names. One without a name of its own has that of its role; of several with a role, each
/// is asked for its `cluster_name`, and for the `application_name` that its upstream sees, and else called by
/// its host.
fn nodes(listed: &[Listed]) -> Result<Vec<Node>, NodesError> {
    let mut nodes = Vec::new();
    let mut unnamed = Vec::new();
    let named = listed.iter().filter_map(|one| one.name.clone());
    let mut taken: BTreeSet<String> = named.collect();
    for (index, one) in listed.iter().enumerate() {
        let same = |other: &&Listed| other.role == one.role && other.name.is_none();
        let of_role = listed.iter().filter(same).count();
        let (role, conninfo, place) = (one.role, &one.conninfo, &one.place);
        let conninfo = match role {
            Role::Relay => console(conninfo),
            _ => Conninfo::parse(conninfo),
        };
        let conninfo = conninfo.map_err(|source| NodesError::Conninfo {
            place: place.clone(),
            source,
        })?;
        check_port(&conninfo).map_err(|words| NodesError::Unusable(format!("{place}: {words}")))?;
        let name = match &one.name {
            Some(name) => name.clone(),
            None => name_of_role(role, of_role == 1, &mut taken),
        };
        if one.name.is_none() && of_role > 1 && role != Role::Relay {
            unnamed.push(index);
        }
        nodes.push(Node {
            name,
            role,
            conninfo,
        });
    }
    let mut answers = ask_names(&nodes, &unnamed);
    for index in unnamed {
        let places = nodes.get(index).map(|node| places_of(&node.conninfo));
        answers
            .entry(index)
            .or_default()
            .extend(places.unwrap_or_default());
    }
    rename(&mut nodes, answers);
    Ok(nodes)
}

fn read(path: &Path) -> Result<NodesFile, NodesError> {
    let wrong =
        |words: String| NodesError::Unusable(format!("--nodes {}: {words}", path.display()));
    let mut file: NodesFile = toml_file::read(path).map_err(wrong)?;
    if file.node.is_empty() && file.cluster.is_empty() {
        let words =
            "there is no node in it: write a [[node]] with role and conninfo for each server";
        return Err(wrong(words.to_owned()));
    }
    let called = |name: &Option<String>| match name.as_deref().map(sanitize) {
        Some(name) if !name.is_empty() => format!(", {name}"),
        _ => String::new(),
    };
    for (one, number) in file.node.iter_mut().zip(1..) {
        one.place = format!(
            "--nodes {}: node {number}{}",
            path.display(),
            called(&one.name)
        );
    }
    for (one, number) in file.cluster.iter_mut().zip(1..) {
        one.place = format!(
            "--nodes {}: cluster {number}{}",
            path.display(),
            called(&one.name)
        );
    }
    Ok(file)
}

/// Names of a file are short, visible and unique.
fn check_names(listed: &[Listed]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for name in listed.iter().filter_map(|one| one.name.as_deref()) {
        if name.is_empty() || name.chars().count() > MOST_NAME || sanitize(name) != name {
            return Err(format!(
                "a node's name has 1 to {MOST_NAME} visible characters, unlike {name:?}"
            ));
        }
        if !seen.insert(name) {
            return Err(format!("two nodes are called {name}"));
        }
    }
    Ok(())
}

/// The port is a number, or one for each host; libpq would say so only when it connects.
fn check_port(conninfo: &Conninfo) -> Result<(), String> {
    let ports = conninfo.effective("port").unwrap_or_default();
    let is_port = |port: &str| port.is_empty() || port.parse().is_ok_and(|port: u16| port > 0);
    match ports.split(',').all(|port| is_port(port.trim())) {
        true => Ok(()),
        false => Err(format!("port {ports:?} is no number from 1 to 65535")),
    }
}
