//! Servers that are named twice, in one cluster or in two, at different addresses.

use std::collections::BTreeMap;

use super::Diagnosis;
use crate::node::Role;
use crate::sample::Identity;

/// A server as it was named, and what it says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    name: String,
    identity: Identity,
    /// The database of a subscriber, which may belong to several clusters.
    database: Option<String>,
}

/// The servers of a diagnosis that say which they are.
pub fn named(diagnosis: &Diagnosis) -> Vec<Named> {
    let nodes = diagnosis.nodes.iter();
    let named = nodes.filter_map(|node| {
        let is_subscriber = node.role == Role::Subscriber;
        Some(Named {
            name: node.name.clone(),
            identity: node.identity.clone()?,
            database: is_subscriber.then(|| node.database.clone()),
        })
    });
    named.collect()
}

/// Adds to each diagnosis which of its servers are named twice, by what they say of themselves: what is said
/// of such a cluster counts a server for two. A subscriber is a database, and may belong to several clusters.
pub fn add_named_twice(clusters: &[Option<&str>], diagnoses: &mut [Diagnosis]) {
    let all: Vec<Vec<Named>> = diagnoses.iter().map(named).collect();
    let all = clusters.iter().copied().zip(all.iter().map(Vec::as_slice));
    for (index, words) in named_twice(&all.collect::<Vec<_>>()) {
        if let Some(diagnosis) = diagnoses.get_mut(index) {
            add(diagnosis, words);
        }
    }
}

/// Adds that a server of a diagnosis is named twice.
pub fn add(diagnosis: &mut Diagnosis, words: String) {
    diagnosis.healthy = false;
    diagnosis.unknown.push(words);
}

/// What is not known for that reason, each with the place of its cluster.
pub fn named_twice(clusters: &[(Option<&str>, &[Named])]) -> Vec<(usize, String)> {
    let nodes = clusters.iter().enumerate();
    let nodes = nodes.flat_map(|(index, (_, nodes))| nodes.iter().map(move |node| (index, node)));
    let mut seen: BTreeMap<_, (usize, &Named)> = BTreeMap::new();
    let mut found = Vec::new();
    for (index, node) in nodes {
        let own = node.database.as_ref().map(|database| (index, database));
        let (first, same) = *seen.entry((&node.identity, own)).or_insert((index, node));
        let is_itself = first == index && same.name == node.name;
        if is_itself {
            continue;
        }
        let of = |index: usize| match clusters.get(index) {
            Some((Some(name), _)) if clusters.len() > 1 => format!(" of cluster {name}"),
            _ => String::new(),
        };
        let what = match node.database {
            Some(_) => "database of the same server",
            None => "server",
        };
        let words = format!(
            "{}{} is the same {what} as {}{}, at another address: name it once",
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
        let [one, two] = [&one, &two].map(named);
        let found = named_twice(&[(Some("one"), &one), (Some("two"), &two)]);
        let words = "c of cluster two is the same server as b of cluster one, at another address: name it once";
        assert_eq!(found, [(0, words.to_owned()), (1, words.to_owned())]);
        let twice = cluster(&[("a", Role::Primary, 1), ("b", Role::Standby, 1)]);
        let words = "b is the same server as a, at another address: name it once";
        let of_one = |of: &Diagnosis| named_twice(&[(None, &named(of))]);
        assert_eq!(of_one(&twice), [(0, words.to_owned())]);
        // One whose start is not known may be any.
        let unknown = cluster(&[("a", Role::Primary, 0), ("b", Role::Standby, 0)]);
        assert_eq!(of_one(&unknown), []);
        // A subscriber is a database of one cluster.
        let subscribers = cluster(&[("s", Role::Subscriber, 1), ("t", Role::Subscriber, 1)]);
        let again =
            "t is the same database of the same server as s, at another address: name it once";
        assert_eq!(of_one(&subscribers), [(0, again.to_owned())]);
        let alone = cluster(&[("s", Role::Subscriber, 1), ("p", Role::Primary, 1)]);
        assert_eq!(of_one(&alone), []);
        let both = named(&alone);
        let found = named_twice(&[(Some("one"), &both[..1]), (Some("two"), &both[..1])]);
        assert_eq!(found, []);
        let mut all = [twice];
        add_named_twice(&[None], &mut all);
        assert!(!all[0].healthy && all[0].unknown.iter().any(|it| it == words));
    }
}
