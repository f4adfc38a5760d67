//! Servers that are named twice, in one cluster or in two: by mistake, at different addresses; or because a
//! subscriber follows publishers of several clusters.

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
    /// Subscriptions of it whose publisher answers in this cluster.
    followed: Vec<String>,
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
            followed: diagnosis
                .links
                .iter()
                .filter_map(|link| link.subscription.as_ref())
                .filter(|(at, _)| *at == node.name)
                .map(|(_, name)| name.clone())
                .collect(),
        })
    });
    named.collect()
}

/// Compares the diagnoses of all clusters of a program.
pub fn compare_all(clusters: &[Option<&str>], diagnoses: &mut [Diagnosis]) {
    let all: Vec<Vec<Named>> = diagnoses.iter().map(named).collect();
    let all = clusters.iter().copied().zip(all.iter().map(Vec::as_slice));
    let all: Vec<_> = all.collect();
    for (place, diagnosis) in diagnoses.iter_mut().enumerate() {
        compare(&all, place, diagnosis);
    }
}

/// Takes out of a diagnosis, which has this place among all clusters, what another one knows: the
/// publishers of its subscriptions. Adds which of its servers are named twice, by what they say of
/// themselves: what is said of such a cluster counts a server for two.
pub fn compare(clusters: &[(Option<&str>, &[Named])], place: usize, diagnosis: &mut Diagnosis) {
    let own = clusters.get(place).map_or(&[][..], |(_, nodes)| nodes);
    let others = clusters
        .iter()
        .enumerate()
        .filter(|(index, _)| *index != place);
    let others: Vec<&Named> = others.flat_map(|(_, (_, nodes))| nodes.iter()).collect();
    let unlinked = std::mem::take(&mut diagnosis.unlinked);
    let (known, unlinked): (Vec<_>, Vec<_>) = unlinked.into_iter().partition(|it| {
        let node = own.iter().find(|node| node.name == it.node);
        let is_same = |other: &&&Named| {
            node.is_some_and(|node| {
                node.identity == other.identity && node.database == other.database
            })
        };
        let mut same = others.iter().filter(is_same);
        same.any(|other| other.followed.contains(&it.subscription))
    });
    diagnosis.unlinked = unlinked;
    diagnosis
        .unknown
        .retain(|words| known.iter().all(|it| it.words != *words));
    diagnosis.judge();
    let found = named_twice(clusters).into_iter();
    for (_, words) in found.filter(|(index, _)| *index == place) {
        diagnosis.healthy = false;
        diagnosis.unknown.push(words);
    }
}

/// What is not known for that reason, each with the place of its cluster.
fn named_twice(clusters: &[(Option<&str>, &[Named])]) -> Vec<(usize, String)> {
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
    use crate::rules::refused_tests::tables;
    use crate::rules::scene::Scene;
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
        compare_all(&[None], &mut all);
        assert!(!all[0].healthy && all[0].unknown.iter().any(|it| it == words));
    }

    /// Each of two publishers feeds one subscription of a database that is named in both clusters.
    #[test]
    fn a_subscription_may_follow_a_publisher_of_another_cluster() {
        let of = |is_second: bool, database: &str| {
            let mut scene = Scene::healthy();
            for sample in &mut scene.one.samples {
                let mut row = sample.subscriptions[0].clone();
                (row.name, row.pid) = ("b".to_owned(), Some(33));
                row.slot_name = Some("slot_b".to_owned());
                sample.subscriptions.push(row);
                let mut worker = sample.processes[0].clone();
                worker.pid = 33;
                sample.processes.push(worker);
            }
            tables(&mut scene.one, |it| {
                let own = it.subscriptions["sub_one"].clone();
                it.subscriptions.insert("b".to_owned(), own);
            });
            for sample in scene.primary.samples.iter_mut().filter(|_| is_second) {
                sample.slots[1].slot_name = "slot_b".to_owned();
                sample.senders[1].application_name = "b".to_owned();
            }
            scene.one.facts.started_us = 7;
            let port = ("port".to_owned(), "5432".to_owned());
            scene.one.facts.settings.extend([port]);
            scene.one.facts.database = database.to_owned();
            scene.diagnose()
        };
        let names = [Some("one"), Some("two")];
        let mut both = [of(false, "d"), of(true, "d")];
        for (diagnosis, name) in both.iter().zip(["b", "sub_one"]) {
            let words = format!("nothing that answers here is the upstream of one ({name})");
            assert_eq!(
                (diagnosis.healthy, &diagnosis.unknown),
                (false, &vec![words])
            );
        }
        compare_all(&names, &mut both);
        for diagnosis in &both {
            assert!(diagnosis.healthy, "{:?}", diagnosis.unknown);
        }
        // Another database of that server, or nobody who says so.
        let mut others = [of(false, "d"), of(true, "e")];
        compare_all(&names, &mut others);
        let mut alone = [of(false, "d")];
        compare_all(&[None], &mut alone);
        for diagnosis in others.iter().chain(&alone) {
            assert_eq!((diagnosis.healthy, diagnosis.unknown.len()), (false, 1));
        }
    }
}
