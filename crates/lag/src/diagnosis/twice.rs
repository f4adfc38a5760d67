//! Servers that are named twice, in one cluster or in two, at different addresses.

use std::collections::BTreeMap;

use super::{Diagnosis, NodeReport};
use crate::node::Role;
use crate::sample::Identity;

/// Adds to each diagnosis which of its servers are named twice, by what they say of themselves: what is said
/// of such a cluster counts a server for two. A subscriber is a database, and may belong to several clusters.
pub fn add_named_twice(clusters: &[Option<&str>], diagnoses: &mut [Diagnosis]) {
    let named = clusters.iter().copied().zip(diagnoses.iter());
    for (index, words) in named_twice(&named.collect::<Vec<_>>()) {
        if let Some(diagnosis) = diagnoses.get_mut(index) {
            diagnosis.healthy = false;
            diagnosis.unknown.push(words);
        }
    }
}

/// What is not known for that reason, each with the place of its cluster.
fn named_twice(clusters: &[(Option<&str>, &Diagnosis)]) -> Vec<(usize, String)> {
    let nodes = clusters.iter().enumerate().flat_map(|(index, (_, it))| {
        let servers = it.nodes.iter().filter(|node| node.role != Role::Subscriber);
        servers.map(move |node| (index, node))
    });
    let mut seen: BTreeMap<&Identity, (usize, &NodeReport)> = BTreeMap::new();
    let mut found = Vec::new();
    for (index, node) in nodes {
        let Some(identity) = &node.identity else {
            continue;
        };
        let (first, same) = *seen.entry(identity).or_insert((index, node));
        let is_itself = first == index && same.name == node.name;
        if is_itself {
            continue;
        }
        let of = |index: usize| match clusters.get(index) {
            Some((Some(name), _)) if clusters.len() > 1 => format!(" of cluster {name}"),
            _ => String::new(),
        };
        let words = format!(
            "{}{} is the same server as {}{}, at another address: name it once",
            node.name,
            of(index),
            same.name,
            of(first)
        );
        found.push((first, words.clone()));
        if first != index {
            found.push((index, words));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::diagnose;
    use crate::window::{NodeWindow, Window};

    fn cluster(nodes: &[(&str, Role, i64)]) -> Diagnosis {
        let nodes = nodes.iter().map(|(name, role, started_us)| {
            let mut node = NodeWindow::empty(name, *role);
            (node.facts.system, node.facts.started_us) = ("7".to_owned(), *started_us);
            let port = ("port".to_owned(), "5432".to_owned());
            node.facts.settings.extend([port]);
            node
        });
        diagnose(&Window::new(nodes.collect()))
    }

    #[test]
    fn a_server_is_known_by_what_it_says_of_itself() {
        let one = cluster(&[("a", Role::Primary, 1), ("b", Role::Standby, 2)]);
        let two = cluster(&[("c", Role::Primary, 2), ("s", Role::Subscriber, 1)]);
        let found = named_twice(&[(Some("one"), &one), (Some("two"), &two)]);
        let words = "c of cluster two is the same server as b of cluster one, at another address: name it once";
        assert_eq!(found, [(0, words.to_owned()), (1, words.to_owned())]);
        let twice = cluster(&[("a", Role::Primary, 1), ("b", Role::Standby, 1)]);
        let words = "b is the same server as a, at another address: name it once";
        assert_eq!(named_twice(&[(None, &twice)]), [(0, words.to_owned())]);
        // One whose start is not known may be any.
        let unknown = cluster(&[("a", Role::Primary, 0), ("b", Role::Standby, 0)]);
        assert_eq!(named_twice(&[(None, &unknown)]), []);
        let mut all = [twice];
        add_named_twice(&[None], &mut all);
        assert!(!all[0].healthy && all[0].unknown.iter().any(|it| it == words));
    }
}
