//! The signal of followed tables in which an apply worker finds no row by what its publisher sends: it
//! applies what is inserted, and fails at the first update or delete.

use std::collections::BTreeSet;

use super::published::{by_worker, followed, publisher, some};
use super::renamed::parts;
use super::{Cause, Evidence, Rule, View, identifier, in_database};
use crate::link::Link;
use crate::tables::{Followed, Tables};
use crate::window::NodeWindow;

/// The rule.
pub(super) const RULE: Rule = Rule {
    cause: Cause::KeyMissing,
    title: "updates and deletes find no row of {tables} at the subscriber",
    signal,
    remedies: &[
        "on {server}: {key} the worker then goes on by itself. Rows that are there twice, or lack a value of the key, are \
         in the way of it",
        "a replica identity for {others} at the subscriber, a unique index of columns that the publisher sends as the \
         key (REPLICA IDENTITY USING INDEX)",
        "on {publisher}: ALTER TABLE ... REPLICA IDENTITY FULL for {keyless}, if there can be no key: the worker then \
         searches the whole table for each row. What was changed before still needs the key",
    ],
};

/// Most tables for which statements are printed.
const MOST_MADE: usize = 5;

/// A table whose rows a worker does not find.
struct Keyless<'t> {
    table: &'t String,
    /// The columns that the publisher sends as the key; None if these are all columns.
    sent: Option<&'t BTreeSet<String>>,
    /// Columns of the subscriber's key that are not among them; empty if it has none.
    unsent: Vec<&'t String>,
    /// No statement for a primary key is refused because there is one.
    is_bare: bool,
}

fn keyless<'t>(followed: &'t Followed, theirs: &'t Tables, ours: &'t Tables) -> Vec<Keyless<'t>> {
    let found = followed.tables.iter().filter_map(|table| {
        let publications = theirs.publishing(&followed.publications, table);
        let changes = |name: &&&String| {
            let sent = theirs.sends(name);
            sent.contains("update") || sent.contains("delete")
        };
        let publications: Vec<&String> = publications.iter().filter(changes).copied().collect();
        // Those are refused on the publisher.
        let is_refused = theirs.refused.iter().any(|it| it.table == *table);
        let is_full = theirs.full.contains(table);
        let sent = theirs.keys.get(table).filter(|_| !is_full);
        if publications.is_empty() || is_refused || sent.is_none() && !is_full {
            return None;
        }
        let own = ours.found_by.get(table)?;
        let unsent: Vec<&String> = match (own, sent) {
            (None, _) => Vec::new(),
            (Some(own), Some(sent)) => own.difference(sent).collect(),
            (Some(own), None) => {
                let all = theirs.sent_columns(&publications, table)?;
                own.iter().filter(|column| !all.contains(column)).collect()
            }
        };
        let is_bare = ours.unindexed.contains_key(table);
        let is_lost = !unsent.is_empty() || own.is_none() && !is_full;
        is_lost.then_some(Keyless {
            table,
            sent,
            unsent,
            is_bare,
        })
    });
    found.collect()
}

impl Keyless<'_> {
    /// What gives it a key of the columns that the publisher sends.
    fn statement(&self) -> Option<String> {
        let (table, sent) = (self.table, self.sent?);
        let columns: Vec<&str> = sent.iter().map(String::as_str).collect();
        let list = columns.join(", ");
        if self.is_bare {
            return Some(format!("ALTER TABLE {table} ADD PRIMARY KEY ({list});"));
        }
        let (_, name) = parts(table)?;
        let plain = name.trim_matches('"').replace("\"\"", "\"");
        let index = identifier(&format!("{plain}_identity"));
        let filled = columns
            .iter()
            .map(|it| format!("ALTER COLUMN {it} SET NOT NULL"));
        let filled: Vec<String> = filled.collect();
        Some(format!(
            "ALTER TABLE {table} {}; CREATE UNIQUE INDEX {index} ON {table} ({list}); \
             ALTER TABLE {table} REPLICA IDENTITY USING INDEX {index};",
            filled.join(", ")
        ))
    }

    fn words(&self) -> String {
        let unsent: Vec<&str> = self.unsent.iter().map(|it| it.as_str()).collect();
        match unsent.is_empty() {
            true => self.table.clone(),
            false => format!("{} (its key has {})", self.table, unsent.join(", ")),
        }
    }
}

fn of_link(view: &View<'_>, link: &Link<'_>) -> Option<Evidence> {
    let (followed, theirs) = followed(view, link)?;
    let ours = &link.replica.and_then(NodeWindow::last)?.tables;
    let found = keyless(followed, theirs, ours);
    let number = (!found.is_empty()).then_some(found.len())?;
    let words: Vec<String> = found.iter().map(Keyless::words).collect();
    let names = |is: &dyn Fn(&Keyless<'_>) -> bool| {
        let tables = found.iter().filter(|it| is(it));
        let tables: Vec<String> = tables.map(|it| it.table.clone()).collect();
        (!tables.is_empty()).then(|| some(&tables))
    };
    let made = found.iter().take(MOST_MADE).filter_map(Keyless::statement);
    let made: Vec<String> = made.collect();
    let mut evidence = Evidence::of(link, 1.0)
        .severity(by_worker(link))
        .fact(
            "keyless_tables",
            number as f64,
            format!(
                "followed tables without a key that the publisher sends: {}",
                some(&words)
            ),
        )
        .name("tables", names(&|_| true)?);
    if !made.is_empty() {
        evidence = evidence.name("key", made.join(" "));
    }
    if let Some(others) = names(&|it| it.sent.is_none()) {
        evidence = evidence.name("others", others);
    }
    if let Some(keyless) = names(&|it| it.unsent.is_empty()) {
        evidence = evidence.name("keyless", keyless);
    }
    let (server, database) = publisher(view, link)?;
    Some(evidence.name("publisher", in_database(server, &database)))
}

fn signal(view: &View<'_>) -> Vec<Evidence> {
    let links = view.links.iter().filter(|link| link.subscription.is_some());
    links.filter_map(|link| of_link(view, link)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::super::refused_tests::{failing, tables};
    use super::super::scene::Scene;
    use super::*;

    fn names(of: &[&str]) -> BTreeSet<String> {
        of.iter().map(|it| (*it).to_owned()).collect()
    }

    /// The publisher has key `sent` of `public.t`, and the subscriber this one.
    fn scene(sent: Option<&[&str]>, own: Option<&[&str]>, actions: &[&str]) -> Scene {
        let mut scene = Scene::healthy();
        tables(&mut scene.primary, |it| {
            let table = "public.t".to_owned();
            match sent {
                Some(sent) => it.keys = [(table.clone(), names(sent))].into(),
                None => it.full = [table.clone()].into(),
            }
            let columns = ["a", "id"].map(|name| (name.to_owned(), "int".to_owned()));
            it.columns = [("p".to_owned(), [(table, columns.into())].into())].into();
            it.actions = [("p".to_owned(), names(actions))].into();
        });
        tables(&mut scene.one, |it| {
            it.found_by = [("public.t".to_owned(), own.map(names))].into();
        });
        scene
    }

    fn found(scene: Scene) -> Vec<(Cause, Severity)> {
        let found = scene.diagnose().findings.into_iter();
        let found = found.filter(|it| it.at == "one");
        found.map(|it| (it.cause, it.severity)).collect()
    }

    const ALL: &[&str] = &["insert", "update", "delete"];

    #[test]
    fn a_key_that_is_not_sent_is_none() {
        let risk = [(Cause::KeyMissing, Severity::Risk)];
        for (sent, own, is_lost) in [
            (Some(&["id"][..]), Some(&["id"][..]), false),
            (Some(&["id"]), None, true),
            (Some(&["a", "id"]), Some(&["id"]), false),
            (Some(&["id"]), Some(&["a", "id"]), true),
            // Whole rows are sent.
            (None, None, false),
            (None, Some(&["a"]), false),
            (None, Some(&["own"]), true),
        ] {
            let expected = if is_lost { &risk[..] } else { &[] };
            assert_eq!(found(scene(sent, own, ALL)), expected, "{sent:?} {own:?}");
        }
        let found_if = |actions: &[&str]| found(scene(Some(&["id"]), None, actions)).len();
        // That not all is sent is a note.
        assert_eq!(
            [found_if(&["insert"]), found_if(&["insert", "delete"])],
            [1, 2]
        );
        // What its publisher refuses does not come.
        let mut refused = scene(Some(&["id"]), None, ALL);
        tables(&mut refused.primary, |it| it.keys.clear());
        assert_eq!(found(refused), []);
    }

    #[test]
    fn the_remedy_makes_the_key_that_is_sent() {
        for (is_bare, statement) in [
            (
                true,
                "on one: ALTER TABLE public.t ADD PRIMARY KEY (a, id); the worker",
            ),
            (
                false,
                "on one: ALTER TABLE public.t ALTER COLUMN a SET NOT NULL, ALTER COLUMN id SET NOT NULL; CREATE \
                 UNIQUE INDEX t_identity ON public.t (a, id); ALTER TABLE public.t REPLICA IDENTITY USING INDEX \
                 t_identity; the worker",
            ),
        ] {
            let mut scene = scene(Some(&["a", "id"]), None, ALL);
            failing(&mut scene);
            if is_bare {
                tables(&mut scene.one, |it| {
                    it.unindexed = [("public.t".to_owned(), 0.0)].into();
                });
            }
            let diagnosis = scene.diagnose();
            let first = &diagnosis.findings[0];
            assert_eq!(
                (first.cause, first.severity),
                (Cause::KeyMissing, Severity::Lag)
            );
            assert!(
                first.remedies[0].starts_with(statement),
                "{:?}",
                first.remedies
            );
        }
    }
}
