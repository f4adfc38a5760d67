//! The nodes that `doctor`, `top` and `serve` watch, as a user names them: by conninfos and in a file.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use lockstep_client::{ClientError, Connection, Conninfo, Purpose};
use lockstep_service::address::HostPort;
use lockstep_service::toml_file;
use serde::Deserialize;

use crate::node::{Node, Role};
use lockstep_service::sanitize::sanitize;

/// The servers that a command line names: conninfos, and a file of more of them.
#[derive(Debug, Clone, Default)]
pub struct NamedNodes {
    pub primary: Option<String>,
    pub standbys: Vec<String>,
    pub relays: Vec<String>,
    pub subscribers: Vec<String>,
    /// A TOML file with a `[[node]]` for each server.
    pub file: Option<PathBuf>,
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

/// The file of `--nodes`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodesFile {
    #[serde(default)]
    node: Vec<Listed>,
}

/// A node as it is written down.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    name: Option<String>,
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

/// Longest name of a node, in characters, as for PostgreSQL's own names.
const MOST_NAME: usize = 63;

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

impl NamedNodes {
    /// Nodes of the file and of the command line, with unique names. One without a name of its own
    /// has that of its role; of several with a role, each is asked for its `cluster_name`, and for
    /// the `application_name` that its upstream sees, and else called by its host. Conninfos are parsed
    /// here and not by the parser of arguments, because that would print an invalid one with its password.
    pub fn nodes(&self) -> Result<Vec<Node>, NodesError> {
        let listed = self.listed()?;
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
            check_port(&conninfo)
                .map_err(|words| NodesError::Unusable(format!("{place}: {words}")))?;
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

    /// The nodes, each with what the file says of it for `lockstep pool`.
    pub fn with_pool(&self) -> Result<Vec<(Node, PoolEntry)>, NodesError> {
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
        let listed = self.listed()?;
        let entries: Vec<_> = listed.iter().map(entry).collect::<Result<_, _>>()?;
        Ok(self.nodes()?.into_iter().zip(entries).collect())
    }

    /// A warning if users of this machine can read a password in the file.
    pub fn exposed(&self) -> Option<String> {
        let path = self.file.as_ref()?;
        let mode = std::fs::metadata(path).ok()?.mode() & 0o7777;
        let listed = read(path).ok()?;
        let holds = |one: &Listed| Conninfo::parse(&one.conninfo).is_ok_and(|it| it.has_secret());
        (mode & OTHERS_READ != 0 && listed.iter().any(holds)).then(|| {
            let path = path.display();
            format!(
                "--nodes {path} has a password and mode {mode:04o}, so every user of this machine can read it: \
                 chmod 600 {path}, or write passwords into ~/.pgpass"
            )
        })
    }

    /// What is written down, the primary first and then by role.
    fn listed(&self) -> Result<Vec<Listed>, NodesError> {
        let mut listed = match &self.file {
            Some(path) => read(path)?,
            None => Vec::new(),
        };
        for (role, conninfos) in [
            (Role::Primary, self.primary.as_slice()),
            (Role::Standby, &self.standbys),
            (Role::Relay, &self.relays),
            (Role::Subscriber, &self.subscribers),
        ] {
            listed.extend(conninfos.iter().map(|conninfo| Listed {
                name: None,
                role,
                conninfo: conninfo.clone(),
                agent: None,
                agent_check: None,
                door: None,
                place: format!("--{role}"),
            }));
        }
        let order = [Role::Primary, Role::Standby, Role::Relay, Role::Subscriber];
        listed.sort_by_key(|one| order.iter().position(|role| *role == one.role));
        let primaries = listed
            .iter()
            .filter(|one| one.role == Role::Primary)
            .count();
        let is_placed = PLACES.iter().any(|name| std::env::var_os(name).is_some());
        match primaries {
            0 if is_placed => listed.insert(
                0,
                Listed {
                    name: None,
                    role: Role::Primary,
                    conninfo: String::new(),
                    agent: None,
                    agent_check: None,
                    door: None,
                    place: format!("--{}", Role::Primary),
                },
            ),
            0 => {
                let words = match &self.file {
                    Some(path) => format!(
                        "--nodes {}: no primary is named: add a [[node]] with role = \"primary\" and its conninfo",
                        path.display()
                    ),
                    None => {
                        "no primary is named: give --primary CONNINFO, or --nodes FILE".to_owned()
                    }
                };
                return Err(NodesError::Unusable(words));
            }
            1 => {}
            _ => {
                let words = format!("{primaries} primaries are named; each cluster has one");
                return Err(NodesError::Unusable(words));
            }
        }
        check_names(&listed).map_err(NodesError::Unusable)?;
        Ok(listed)
    }
}

/// Reads a nodes file.
fn read(path: &Path) -> Result<Vec<Listed>, NodesError> {
    let wrong =
        |words: String| NodesError::Unusable(format!("--nodes {}: {words}", path.display()));
    let mut file: NodesFile = toml_file::read(path).map_err(wrong)?;
    if file.node.is_empty() {
        let words =
            "there is no node in it: write a [[node]] with role and conninfo for each server";
        return Err(wrong(words.to_owned()));
    }
    for (one, number) in file.node.iter_mut().zip(1..) {
        let name = one.name.as_deref().map(sanitize).unwrap_or_default();
        let named = if name.is_empty() { "" } else { ", " };
        one.place = format!("--nodes {}: node {number}{named}{name}", path.display());
    }
    Ok(file.node)
}

/// The name of a role, if one node has it and nobody else is called so, else with a number.
fn name_of_role(role: Role, is_alone: bool, taken: &mut BTreeSet<String>) -> String {
    let numbered = (1..).map(|number: u32| format!("{role}{number}"));
    let mut names = is_alone
        .then(|| role.to_string())
        .into_iter()
        .chain(numbered);
    let name = names.find(|name| !taken.contains(name)).unwrap_or_default();
    taken.insert(name.clone());
    name
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

/// What a server calls itself, and what its upstream calls it, the better first.
const NAMES: &str = "SELECT current_setting('cluster_name'), \
     CASE WHEN pg_has_role('pg_read_all_settings', 'USAGE') \
          THEN current_setting('primary_conninfo') END, \
     (SELECT CASE count(*) WHEN 1 THEN min(subname::text) END \
      FROM pg_subscription JOIN pg_database d ON d.oid = subdbid \
      WHERE datname = current_database())";

/// Shown by servers that are asked for their names.
const APPLICATION_NAME: &str = "lockstep names";

/// How long nodes are waited for that are asked for their names.
const PATIENCE: Duration = Duration::from_secs(3);

/// Asks nodes, all at once, for what they may be called. Those that do not answer soon keep the
/// names of their roles.
fn ask_names(nodes: &[Node], which: &[usize]) -> BTreeMap<usize, Vec<String>> {
    let (sender, receiver) = mpsc::channel();
    for index in which {
        let (sender, index, node) = (sender.clone(), *index, nodes.get(*index).cloned());
        std::thread::spawn(move || {
            let names = node.and_then(|node| names_of(&node));
            let _ = sender.send((index, names.unwrap_or_default()));
        });
    }
    drop(sender);
    let until = Instant::now() + PATIENCE;
    let answers = std::iter::from_fn(|| {
        let left = until.saturating_duration_since(Instant::now());
        receiver.recv_timeout(left).ok()
    });
    answers.collect()
}

/// What a node may be called, the better first.
fn names_of(node: &Node) -> Option<Vec<String>> {
    let server = Connection::connect(&node.conninfo, Purpose::Sql, APPLICATION_NAME);
    let rows = server.and_then(|mut server| server.query(NAMES)).ok()?;
    let row = rows.into_iter().next()?;
    let [cluster, upstream, subscription] = row.try_into().ok()?;
    let upstream = upstream.and_then(|text: String| Conninfo::parse(&text).ok());
    let upstream = upstream
        .as_ref()
        .and_then(|conninfo| conninfo.get("application_name"))
        .filter(|_| node.role == Role::Standby);
    let upstream = upstream.map(str::to_owned);
    let subscription = subscription.filter(|_| node.role == Role::Subscriber);
    let found = [cluster, upstream, subscription].into_iter().flatten();
    Some(found.map(|name: String| sanitize(&name)).collect())
}

/// What a node is called that has no better name, whether it answers or not: its host, or that and its port.
fn places_of(conninfo: &Conninfo) -> Vec<String> {
    let host = conninfo.effective("host").unwrap_or_default();
    let port = conninfo.effective("port").unwrap_or_default();
    match host.is_empty() || host.starts_with('/') || host.contains(',') {
        true => Vec::new(),
        false => [host.clone(), format!("{host}:{port}")]
            .map(|it| sanitize(&it))
            .into(),
    }
}

/// Gives each node the first name that no other node has or may have.
fn rename(nodes: &mut [Node], answers: BTreeMap<usize, Vec<String>>) {
    let taken: BTreeSet<String> = nodes.iter().map(|node| node.name.clone()).collect();
    let is_free = |index: usize, name: &String| {
        let others = answers.iter().filter(|(other, _)| **other != index);
        let fits = !name.is_empty() && name.chars().count() <= MOST_NAME;
        fits && !taken.contains(name) && !others.into_iter().any(|(_, names)| names.contains(name))
    };
    for (index, names) in &answers {
        let name = names.iter().find(|name| is_free(*index, name));
        if let (Some(name), Some(node)) = (name, nodes.get_mut(*index)) {
            node.name.clone_from(name);
        }
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

    fn args(file: Option<PathBuf>, standbys: &[&str]) -> NamedNodes {
        NamedNodes {
            primary: file.is_none().then(|| "host=/nowhere".to_owned()),
            standbys: standbys.iter().map(|&one| one.to_owned()).collect(),
            file,
            ..NamedNodes::default()
        }
    }

    #[test]
    fn a_port_that_is_no_number_is_a_usage_error() {
        for port in ["notaport", "0", "65536", "5432,x"] {
            let error = args(None, &[&format!("host=a,b port={port}")]).nodes();
            let error = error.unwrap_err();
            assert!(matches!(error, NodesError::Unusable(_)), "{port}: {error}");
            assert!(error.to_string().contains(port), "{error}");
        }
        for port in ["5432", "5432,5433", "5432,"] {
            let conninfo = format!("host=/nowhere,/nowhere port={port}");
            assert_eq!(args(None, &[&conninfo]).nodes().unwrap().len(), 2);
        }
    }

    #[test]
    fn a_file_names_nodes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lockstep.toml");
        let nodes = |text: &str| {
            std::fs::write(&path, text).unwrap();
            args(Some(path.clone()), &["host=/nowhere"]).nodes()
        };
        let primary = "[[node]]\nrole = 'primary'\nconninfo = 'host=/nowhere'\n";
        let named = "[[node]]\nname = 'near'\nrole = 'standby'\nconninfo = 'host=/n'\n";
        let found = nodes(&format!("{named}{primary}")).unwrap();
        let names: Vec<&str> = found.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["primary", "near", "standby"]);
        for (text, words) in [
            (String::new(), "there is no node in it"),
            (
                named.to_owned(),
                "lockstep.toml: no primary is named: add a [[node]]",
            ),
            (format!("{primary}{primary}"), "2 primaries are named"),
            (
                format!("{primary}{named}{named}"),
                "two nodes are called near",
            ),
            (format!("{primary}x = 1"), "line 4: unknown field"),
            ("node = 'password=secret'".to_owned(), "line 1: "),
            (
                format!("{primary}{}", named.replace("host=/n", "secret")),
                "lockstep.toml: node 2, near",
            ),
            (
                format!("{primary}{}", named.replace("host=/n", "port=x")),
                "lockstep.toml: node 2, near: port \"x\"",
            ),
            ("#".repeat(2 << 20), "more than 1048576 bytes"),
        ] {
            let error = nodes(&text).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn nodes_that_do_not_answer_are_called_by_their_hosts() {
        // Nothing listens on these ports.
        let names = |standbys: &[&str]| -> Vec<String> {
            let nodes = args(None, standbys).nodes().unwrap();
            nodes.into_iter().skip(1).map(|node| node.name).collect()
        };
        let hosts = [
            "host=a.invalid hostaddr=127.0.0.1 port=1",
            "host=b.invalid hostaddr=127.0.0.1 port=1",
        ];
        assert_eq!(names(&hosts), ["a.invalid", "b.invalid"]);
        let ports = [
            "host=a.invalid hostaddr=127.0.0.1 port=1",
            "host=a.invalid hostaddr=127.0.0.1 port=2",
        ];
        assert_eq!(names(&ports), ["a.invalid:1", "a.invalid:2"]);
        let same = [hosts[0], hosts[0]];
        assert_eq!(names(&same), ["standby1", "standby2"]);
    }

    #[test]
    fn a_password_that_everybody_can_read_is_warned_of() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lockstep.toml");
        let warns = |conninfo: &str, mode| {
            let node = format!("[[node]]\nrole = 'primary'\nconninfo = '{conninfo}'\n");
            std::fs::write(&path, node).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            args(Some(path.clone()), &[]).exposed()
        };
        let warning = warns("host=/n password=secret", 0o644).unwrap();
        assert!(
            warning.contains("mode 0644") && !warning.contains("secret"),
            "{warning}"
        );
        assert_eq!(warns("host=/n password=secret", 0o640), None);
        assert_eq!(warns("host=/n", 0o644), None);
    }

    /// Names are what links and charts are found by, so no two nodes have the same.
    #[test]
    fn no_node_gets_a_name_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lockstep.toml");
        let node = |name: &str, role: &str| {
            let name = match name {
                "" => String::new(),
                name => format!("name = '{name}'\n"),
            };
            format!("[[node]]\n{name}role = '{role}'\nconninfo = 'host=/nowhere'\n")
        };
        for (file, standbys, expected) in [
            (
                [node("", "primary"), node("standby", "standby")],
                1,
                ["primary", "standby", "standby1"].as_slice(),
            ),
            (
                [node("", "primary"), node("standby2", "standby")],
                2,
                &["primary", "standby2", "standby1", "standby3"],
            ),
            (
                [node("", "primary"), node("primary", "subscriber")],
                0,
                &["primary1", "primary"],
            ),
        ] {
            std::fs::write(&path, file.concat()).unwrap();
            let more = vec!["host=/nowhere"; standbys];
            let nodes = args(Some(path.clone()), &more).nodes().unwrap();
            let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
            assert_eq!(names, expected);
        }
    }

    #[test]
    fn names_that_servers_give_are_unique() {
        let mut nodes = args(None, &["host=/a", "host=/b", "host=/c"])
            .nodes()
            .unwrap();
        let answer = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        rename(
            &mut nodes,
            BTreeMap::from([
                (1, answer(&["15/main", "near"])),
                (2, answer(&["15/main", "primary"])),
                (3, answer(&["", "far"])),
            ]),
        );
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["primary", "near", "standby2", "far"]);
    }
}
