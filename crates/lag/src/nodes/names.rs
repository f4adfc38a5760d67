//! What nodes are called to whom the user gives no name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use lockstep_client::{Connection, Conninfo, Purpose};
use lockstep_service::sanitize::sanitize;

use crate::node::{MOST_NAME, Node, Role};

/// The name of a role, if one node has it and nobody else is called so, else with a number.
pub(super) fn name_of_role(role: Role, is_alone: bool, taken: &mut BTreeSet<String>) -> String {
    let numbered = (1..).map(|number: u32| format!("{role}{number}"));
    let mut names = is_alone
        .then(|| role.to_string())
        .into_iter()
        .chain(numbered);
    let name = names.find(|name| !taken.contains(name)).unwrap_or_default();
    taken.insert(name.clone());
    name
}

/// What a server calls itself, and what its upstream calls it, the better first. A standby refuses all that
/// is serializable, which a role may be by its settings.
const NAMES: &str = "SET LOCAL transaction_isolation = 'read committed'; \
     SET LOCAL search_path = pg_catalog; SELECT current_setting('cluster_name'), \
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
pub(super) fn ask_names(nodes: &[Node], which: &[usize]) -> BTreeMap<usize, Vec<String>> {
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
pub(super) fn places_of(conninfo: &Conninfo) -> Vec<String> {
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
pub(super) fn rename(nodes: &mut [Node], answers: BTreeMap<usize, Vec<String>>) {
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
