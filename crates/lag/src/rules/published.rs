//! Signals about tables that a subscriber does not follow although it seems to: rows differ, and
//! no position shows it.

use std::collections::BTreeSet;

use super::{Evidence, Severity, View, in_database};
use crate::link::Link;
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

/// None if it cannot be known: the publisher may have been asked in another database.
pub(super) fn difference<'a>(view: &View<'a>, link: &Link<'a>) -> Option<Difference> {
    let (publisher, database) = publisher(view, link)?;
    if publisher.facts.database != database {
        return None;
    }
    let theirs = &publisher.last()?.tables;
    let ours = &link.replica?.last()?.tables;
    if theirs.cut_off || ours.cut_off {
        return None;
    }
    let followed = ours.subscriptions.get(link.subscription.as_deref()?)?;
    let published = theirs.published(&followed.publications)?;
    let tables: BTreeSet<&String> = followed.tables.iter().collect();
    let list = |one: &BTreeSet<&String>, other| {
        let names = one.difference(other);
        names.map(|name| name.to_string()).collect()
    };
    Some(Difference {
        unpublished: list(&tables, &published),
        unfollowed: list(&published, &tables),
        publisher: in_database(publisher, &database),
        publication: followed.publications.first().cloned().unwrap_or_default(),
    })
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
        let Some(difference) = difference(view, link) else {
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
