//! Signals about tables that a subscriber does not follow although it seems to: rows differ, and
//! no position shows it.

use std::collections::BTreeSet;

use super::{Evidence, Severity, View, in_database};
use crate::link::Link;
use crate::node::Role;
use crate::point::LinkKind;
use crate::window::NodeWindow;

/// Most tables that are named.
const MOST_NAMED: usize = 5;

/// Tables of one subscription: those that it follows and that are not published, and those that
/// are published and that it does not follow.
pub(super) struct Difference {
    unpublished: Vec<String>,
    pub(super) unfollowed: Vec<String>,
    /// The publisher and its database.
    publisher: String,
    /// The first publication that the subscription follows.
    publication: String,
}

/// The server that publishes for a link, and the database that it does so from.
fn publisher<'a>(view: &View<'a>, link: &Link<'a>) -> Option<(&'a NodeWindow, String)> {
    let last = link.upstream.last()?;
    match link.upstream_group() {
        Some(group) => {
            let group = last.relay.as_ref()?.group(group)?;
            let primary = view.links.iter().find(|above| {
                above.is_to_relay() && above.group.as_deref() == Some(group.name.as_str())
            });
            Some((primary?.upstream, group.database.clone()))
        }
        None => {
            let slot = last.slot(link.slot.as_deref()?)?;
            Some((link.upstream, slot.database.clone()?))
        }
    }
}

/// An error says why it cannot be known: the publisher may have been asked in another database.
pub(super) fn difference<'a>(view: &View<'a>, link: &Link<'a>) -> Result<Difference, String> {
    let found = publisher(view, link);
    let (publisher, database) = found.ok_or("its publisher is not known")?;
    let name = &publisher.name;
    if publisher.facts.database != database {
        return Err(format!(
            "{name} was asked in another database than {database}, which has its publications"
        ));
    }
    let last = |node: &'a NodeWindow| node.last().map(|last| &*last.tables);
    let tables = last(publisher).zip(link.replica.and_then(last));
    let (theirs, ours) = tables.ok_or("one of both was not asked")?;
    if theirs.cut_off || ours.cut_off {
        return Err("there are too many tables to compare".to_owned());
    }
    let subscription = link.subscription.as_deref().unwrap_or_default();
    let followed = ours.subscriptions.get(subscription);
    let followed = followed.ok_or("it was made after its tables were asked for")?;
    let published = theirs.published(&followed.publications);
    let published = published.ok_or_else(|| {
        let names = some(&followed.publications);
        format!("not all of its publications ({names}) are there on {name}")
    })?;
    let tables: BTreeSet<&String> = followed.tables.iter().collect();
    let list = |one: &BTreeSet<&String>, other| {
        let names = one.difference(other);
        names.map(|name| name.to_string()).collect()
    };
    Ok(Difference {
        unpublished: list(&tables, &published),
        unfollowed: list(&published, &tables),
        publisher: in_database(publisher, &database),
        publication: followed.publications.first().cloned().unwrap_or_default(),
    })
}

/// Whether it is known which tables of a subscription are published; an error says why not.
pub(crate) fn difference_known<'a>(view: &View<'a>, link: &Link<'a>) -> Result<(), String> {
    difference(view, link).map(|_| ())
}

/// The first of these names, in words.
pub(super) fn some(names: &[String]) -> String {
    let first: Vec<&str> = names.iter().take(MOST_NAMED).map(String::as_str).collect();
    match names.len().saturating_sub(MOST_NAMED) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// Evidence for each link with such tables.
fn of_tables(
    view: &View<'_>,
    fact: &'static str,
    choose: fn(&Difference) -> &[String],
    words: &str,
) -> Vec<Evidence> {
    let links = view.links.iter();
    let links = links.filter(|link| link.kind == LinkKind::Logical);
    let mut found = Vec::new();
    for link in links {
        let Ok(difference) = difference(view, link) else {
            continue;
        };
        let tables = choose(&difference);
        if tables.is_empty() {
            continue;
        }
        let number = match tables.len() > MOST_NAMED {
            true => "many_tables",
            false => "few_tables",
        };
        found.push(
            Evidence::of(link, 0.0)
                .severity(Severity::Risk)
                .fact(
                    fact,
                    tables.len() as f64,
                    format!("{words}: {}", some(tables)),
                )
                .name("publisher", &difference.publisher)
                .name("publication", &difference.publication)
                .name("tables", some(tables))
                .name(number, some(tables)),
        );
    }
    found
}

/// Published tables whose updates and deletes the publisher refuses, since nothing tells which row they
/// change.
pub(super) fn unidentified(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    let primaries = view.window.usable();
    for node in primaries.filter(|node| node.role == Role::Primary) {
        let Some(last) = node.last() else { continue };
        let tables: BTreeSet<&String> = last.tables.unidentified.values().flatten().collect();
        let tables: Vec<String> = tables.into_iter().cloned().collect();
        if tables.is_empty() {
            continue;
        }
        let words = "published tables without primary key or other replica identity";
        found.push(
            Evidence::on(node, Severity::Risk)
                .fact(
                    "unidentified_tables",
                    tables.len() as f64,
                    format!("{words}: {}", some(&tables)),
                )
                .name("publisher", in_database(node, &node.facts.database))
                .name("tables", some(&tables)),
        );
    }
    found
}

pub(super) fn unpublished(view: &View<'_>) -> Vec<Evidence> {
    let words = "tables that the subscription follows and its publications do not have";
    of_tables(
        view,
        "unpublished_tables",
        |tables| &tables.unpublished,
        words,
    )
}

pub(super) fn unfollowed(view: &View<'_>) -> Vec<Evidence> {
    let words = "tables that are published and the subscription does not follow";
    of_tables(
        view,
        "unfollowed_tables",
        |tables| &tables.unfollowed,
        words,
    )
}
