//! What publications leave out on purpose: changes that are not sent, columns outside of a list, rows that a
//! filter hides. Nobody knows what was left out before one of them was altered.

use std::collections::BTreeSet;
use std::ptr;

use super::published::some;
use super::{Cause, Evidence, Rule, Severity, View, published};
use crate::link::Link;
use crate::tables::{Followed, Tables};
use crate::window::NodeWindow;

/// The rule.
pub(super) const RULE: Rule = Rule {
    cause: Cause::PartlyPublished,
    title: "not all of each table is published, so tables of both ends may differ",
    signal,
    remedies: &[
        "compare the rows, if they are to be the same: a publication that was altered after its tables were copied \
         leaves what it did not send",
    ],
};

/// The publications by which a table comes, to any of these subscriptions of one database.
fn publishing<'n>(table: &str, all: &[&'n Followed], theirs: &Tables) -> Vec<&'n String> {
    let follow = all.iter().filter(|it| it.tables.contains(table));
    let names = follow.flat_map(|it| theirs.publishing(&it.publications, table));
    names.collect()
}

/// The changes of a table that are not sent, in words; None if all are.
fn unsent(table: &str, all: &[&Followed], theirs: &Tables) -> Option<String> {
    let publications = publishing(table, all, theirs);
    let sent: BTreeSet<&str> = publications
        .iter()
        .flat_map(|name| theirs.sends(name))
        .collect();
    let changes = ["insert", "update", "delete"];
    let unsent = changes.into_iter().filter(|change| !sent.contains(change));
    let unsent: Vec<String> = unsent.map(|change| format!("{change}s")).collect();
    let is_published = !publications.is_empty();
    (is_published && !unsent.is_empty()).then(|| format!("{} of {table}", unsent.join(" and ")))
}

/// Columns of a table that are here and outside of its list, in words.
fn unlisted(table: &str, all: &[&Followed], theirs: &Tables, ours: &Tables) -> Option<String> {
    let publications = publishing(table, all, theirs);
    let lists = |name: &&String| {
        theirs
            .lists
            .get(*name)
            .is_some_and(|it| it.contains_key(table))
    };
    if publications.is_empty() || !publications.iter().all(lists) {
        return None;
    }
    let sent = theirs.sent_columns(&publications, table)?;
    let held = ours.held.get(table)?.keys();
    let columns: Vec<&str> = held
        .filter(|it| !sent.contains(it))
        .map(String::as_str)
        .collect();
    (!columns.is_empty()).then(|| format!("{} of {table}", columns.join(", ")))
}

fn of_link(view: &View<'_>, link: &Link<'_>) -> Option<Evidence> {
    let (followed, theirs) = published::followed(view, link)?;
    // Two subscriptions may share the changes of a table, or its columns.
    let replica = link.replica.map(|node| &node.name);
    let beside = view
        .links
        .iter()
        .filter(|it| it.replica.map(|node| &node.name) == replica);
    let all = beside.filter_map(|it| published::followed(view, it));
    let all: Vec<&Followed> = all
        .filter(|(_, publisher)| ptr::eq(*publisher, theirs))
        .map(|(followed, _)| followed)
        .collect();
    let ours = &link.replica.and_then(NodeWindow::last)?.tables;
    let tables = || followed.tables.iter();
    let changes = tables().filter_map(|it| unsent(it, &all, theirs));
    let columns = tables().filter_map(|it| unlisted(it, &all, theirs, ours));
    let rows = tables().filter(|it| {
        theirs.filtered.contains(*it) && !theirs.publishing(&followed.publications, it).is_empty()
    });
    let left_out: [(_, _, Vec<String>); 3] = [
        (
            "unsent_changes",
            "changes that are not sent",
            changes.collect(),
        ),
        (
            "unlisted_columns",
            "columns outside of the column list",
            columns.collect(),
        ),
        (
            "filtered_tables",
            "tables with a row filter",
            rows.cloned().collect(),
        ),
    ];
    let mut evidence = Evidence::of(link, 1.0).severity(Severity::Note);
    for (name, words, all) in left_out {
        if !all.is_empty() {
            evidence = evidence.fact(name, all.len() as f64, format!("{words}: {}", some(&all)));
        }
    }
    (!evidence.facts.is_empty()).then_some(evidence)
}

fn signal(view: &View<'_>) -> Vec<Evidence> {
    let links = view.links.iter().filter(|link| link.subscription.is_some());
    links.filter_map(|link| of_link(view, link)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::refused_tests::tables;
    use super::super::scene::Scene;
    use super::*;

    /// What is said of a table of which the publications have this.
    fn said(change: impl Fn(&mut Tables)) -> (bool, Vec<String>) {
        let mut scene = Scene::healthy();
        tables(&mut scene.primary, |it| {
            let columns = [("id".to_owned(), "int".to_owned())];
            let own = [("public.t".to_owned(), columns.into())].into();
            it.columns = [("p".to_owned(), own)].into();
            change(it);
        });
        tables(&mut scene.one, |it| {
            let held = ["a", "id"].map(|it| (it.to_owned(), "int".to_owned()));
            it.held = [("public.t".to_owned(), held.into())].into();
        });
        let diagnosis = scene.diagnose();
        let found = diagnosis.findings.iter().filter(|it| it.at == "one");
        let words = found.flat_map(|it| it.evidence.iter().map(|fact| fact.words.clone()));
        (diagnosis.healthy, words.collect())
    }

    #[test]
    fn what_is_left_out_on_purpose_is_a_note() {
        assert_eq!(said(|_| ()), (true, Vec::new()));
        let inserts =
            said(|it| it.actions = [("p".to_owned(), ["insert".to_owned()].into())].into());
        let words = "changes that are not sent: updates and deletes of public.t";
        assert_eq!(inserts, (true, vec![words.to_owned()]));
        let listed = said(|it| {
            it.lists = [("p".to_owned(), [("public.t".to_owned(), false)].into())].into();
        });
        let words = "columns outside of the column list: a of public.t";
        assert_eq!(listed, (true, vec![words.to_owned()]));
        let filtered = said(|it| it.filtered = ["public.t".to_owned()].into());
        let words = "tables with a row filter: public.t";
        assert_eq!(filtered, (true, vec![words.to_owned()]));
    }

    /// What one of two subscriptions of a database does not get, the other does.
    #[test]
    fn what_another_subscription_of_the_database_gets_is_not_left_out() {
        let mut scene = Scene::healthy();
        tables(&mut scene.primary, |it| {
            it.publications
                .insert("q".to_owned(), ["public.t".to_owned()].into());
            let own = |actions: &[&str]| actions.iter().map(ToString::to_string).collect();
            it.actions = [
                ("p".to_owned(), own(&["insert"])),
                ("q".to_owned(), own(&["update", "delete"])),
            ]
            .into();
        });
        let other = || ("other".to_owned(), "slot_other".to_owned());
        for sample in &mut scene.primary.samples {
            let mut slot = sample.slots[1].clone();
            (slot.slot_name, slot.active_pid) = (other().1, Some(19));
            sample.slots.push(slot);
            let mut sender = sample.senders[1].clone();
            (sender.application_name, sender.pid) = (other().0, 19);
            sample.senders.push(sender);
        }
        for sample in &mut scene.one.samples {
            let mut row = sample.subscriptions[0].clone();
            (row.name, row.slot_name) = (other().0, Some(other().1));
            sample.subscriptions.push(row);
        }
        tables(&mut scene.one, |it| {
            let mut follows = it.subscriptions["sub_one"].clone();
            follows.publications = vec!["q".to_owned()];
            it.subscriptions.insert(other().0, follows);
        });
        let found = scene.diagnose().findings;
        let mut notes = found.iter().filter(|it| it.cause == Cause::PartlyPublished);
        // The other subscriber gets inserts only.
        let notes: Vec<&str> = notes.by_ref().map(|it| it.at.as_str()).collect();
        assert_eq!(notes, ["two"], "{found:#?}");
    }
}
