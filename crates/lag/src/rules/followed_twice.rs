//! The signal of a table that two subscriptions of one database get from the same publisher: each change is
//! applied twice. A key makes the second worker fail; without one rows are there twice, and nothing shows it.

use std::collections::BTreeSet;

use super::published::{followed, publisher, some};
use super::{Cause, Evidence, Rule, Severity, View, identifier};
use crate::link::Link;
use crate::tables::{Followed, Tables};

pub(super) const RULE: Rule = Rule {
    cause: Cause::TableFollowedTwice,
    title: "{tables}: {other} and this subscription both apply its changes",
    signal,
    remedies: &[
        "take {tables} out of the publications of {subscription} or of {other}, and ALTER SUBSCRIPTION ... REFRESH \
         PUBLICATION of that one; if a table has no key, its rows may be there twice: delete those that are twice, or all \
         that came from this publisher, and let it be copied again",
    ],
};

/// Tables that a subscription gets all rows of, each with the changes that it gets.
fn whole(followed: &Followed, theirs: &Tables) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    for name in &followed.publications {
        let actions = theirs.sends(name);
        let published = theirs.publications.get(name).into_iter().flatten();
        let followed = published.filter(|table| followed.tables.contains(*table));
        for table in followed.filter(|table| !theirs.filtered.contains(*table)) {
            let changes = actions.iter().map(|it| (table.clone(), (*it).to_owned()));
            found.extend(changes);
        }
    }
    found
}

fn signal(view: &View<'_>) -> Vec<Evidence> {
    let of = |link: &Link<'_>| {
        let name = link.subscription.clone()?;
        let (server, database) = publisher(view, link)?;
        let place = (link.replica?.name.clone(), server.name.clone(), database);
        let (followed, theirs) = followed(view, link)?;
        Some((place, name, whole(followed, theirs)))
    };
    let all: Vec<_> = view
        .links
        .iter()
        .filter_map(|link| Some((link, of(link)?)))
        .collect();
    let found = all.iter().enumerate().filter_map(|(index, (link, own))| {
        let (place, _, tables) = own;
        let mut before = all.iter().take(index);
        let (other, both) = before.find_map(|(_, (other_place, other, theirs))| {
            let both = tables.intersection(theirs).map(|(table, _)| table);
            let both: BTreeSet<&String> = both.collect();
            let both: Vec<String> = both.into_iter().cloned().collect();
            (other_place == place && !both.is_empty()).then_some((other, both))
        })?;
        let words = format!("tables that {other} follows as well: {}", some(&both));
        Some(
            Evidence::of(link, 0.0)
                .severity(Severity::Risk)
                .fact("tables_followed_twice", both.len() as f64, words)
                .name("tables", some(&both))
                .name("other", identifier(other)),
        )
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::super::refused_tests::tables;
    use super::super::scene::{Scene, sender, slot};
    use super::*;
    use crate::views::Subscription;

    /// The first subscriber has one more subscription, of the same publication.
    fn said(filtered: bool, database: &str, actions: [&str; 2]) -> Vec<(Cause, String)> {
        let mut scene = Scene::healthy();
        for (index, sample) in (0..).zip(&mut scene.one.samples) {
            let first = sample.subscriptions[0].clone();
            sample.subscriptions.push(Subscription {
                name: "again".to_owned(),
                slot_name: Some("again".to_owned()),
                pid: Some(33),
                ..first
            });
            let mut worker = sample.processes[0].clone();
            worker.pid = 33;
            sample.processes.push(worker);
            let end = super::super::scene::START + index * super::super::scene::STEP;
            let above = &mut scene.primary.samples[index as usize];
            above.senders.push(sender(13, "again", end));
            above.slots.push(slot("again", "logical", 13, end));
            above.slots.last_mut().unwrap().database = Some(database.to_owned());
        }
        tables(&mut scene.one, |it| {
            let mut own = it.subscriptions["sub_one"].clone();
            own.publications = vec!["q".to_owned()];
            it.subscriptions.insert("again".to_owned(), own);
        });
        tables(&mut scene.primary, |it| {
            let same = it.publications["p"].clone();
            it.publications.insert("q".to_owned(), same);
            let sent = ["p", "q"].into_iter().zip(actions);
            let sent = sent.map(|(name, actions)| {
                let actions = actions.split(' ').map(str::to_owned);
                (name.to_owned(), actions.collect())
            });
            it.actions = sent.collect();
            it.filtered = filtered
                .then(|| "public.t".to_owned())
                .into_iter()
                .collect();
        });
        let findings = scene.diagnose().findings.into_iter();
        let found = findings.filter(|it| it.cause == Cause::TableFollowedTwice);
        found.map(|it| (it.cause, it.at)).collect()
    }

    #[test]
    fn a_table_that_is_followed_twice_is_told() {
        let at = "one (again)".to_owned();
        let twice = [(Cause::TableFollowedTwice, at)];
        let all = ["insert update delete"; 2];
        assert_eq!(said(false, "app", all), twice);
        // Each may get a part of its rows.
        assert_eq!(said(true, "app", all), []);
        assert_eq!(said(false, "other", all), []);
        // One gets what the other does not.
        assert_eq!(said(false, "app", ["insert", "update delete"]), []);
        let both = ["insert update", "update delete"];
        assert_eq!(said(false, "app", both), twice);
    }
}
