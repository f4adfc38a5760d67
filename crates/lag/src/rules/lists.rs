//! The signal of publications that have different columns of one table: a server sends them over one slot to
//! nobody, and what was written meanwhile cannot be decoded afterwards either.

use super::anew::{EMPTIES, SHARED, Slot, recreated};
use super::published::{by_worker, followed, publisher};
use super::{Cause, Evidence, Rule, View, identifier, in_database};
use crate::tables::{Followed, Tables};

/// The rule.
pub(super) const RULE: Rule = Rule {
    cause: Cause::ColumnListsDiffer,
    title: "{one} and {other} have different columns of {table}: no worker can follow both",
    signal,
    remedies: &[
        "on {publisher}: ALTER PUBLICATION {other} DROP TABLE {table}; if the columns that {one} has of it are enough; \
         or give it the same list in both; then as follows",
        EMPTIES,
        SHARED,
        "on {server}: {recreate}; with the subconninfo that was shown, if the worker still fails after that: what was \
         written while the lists differed is decoded with those lists, and SKIP does not get past it",
    ],
};

/// The first followed table of which two publications of a subscription have different columns, and the two.
fn differs<'t>(
    followed: &'t Followed,
    theirs: &'t Tables,
) -> Option<(&'t String, [&'t String; 2])> {
    let listed = followed.publications.iter();
    let listed: Vec<_> = listed
        .filter_map(|name| Some((name, theirs.columns.get(name)?)))
        .collect();
    followed.tables.iter().find_map(|table| {
        let mut with = listed
            .iter()
            .filter_map(|(name, tables)| Some((*name, tables.get(table)?)));
        let (first, columns) = with.next()?;
        let (other, _) = with.find(|(_, others)| !columns.keys().eq(others.keys()))?;
        Some((table, [first, other]))
    })
}

fn signal(view: &View<'_>) -> Vec<Evidence> {
    let links = view.links.iter().filter(|link| link.subscription.is_some());
    let found = links.filter_map(|link| {
        let (own, theirs) = followed(view, link)?;
        let (table, names) = differs(own, theirs)?;
        let of = |name: &String| {
            let columns = theirs
                .columns
                .get(name)
                .and_then(|tables| tables.get(table));
            let columns: Vec<&str> = columns
                .into_iter()
                .flatten()
                .map(|it| it.0.as_str())
                .collect();
            format!("{} has {} of {table}", identifier(name), columns.join(", "))
        };
        let words = names.map(of).join("; ");
        let [one, other] = names;
        let (server, database) = publisher(view, link)?;
        let evidence = Evidence::of(link, 1.0)
            .severity(by_worker(link))
            .fact("differing_lists", 2.0, words)
            .name("one", identifier(one))
            .name("other", identifier(other))
            .name("table", table)
            .name("publisher", in_database(server, &database));
        Some(recreated(evidence, link, Slot::There))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::super::refused_tests::{followed, tables};
    use super::super::scene::Scene;
    use super::*;

    fn found(other: &[&str], errors: u64) -> Vec<(Cause, Severity, Vec<String>)> {
        let mut scene = Scene::healthy();
        tables(&mut scene.primary, |it| {
            let same = it.publications["p"].clone();
            it.publications.insert("q".to_owned(), same);
            let listed = [("p", &["a", "id"][..]), ("q", other)].map(|(name, columns)| {
                let columns = columns
                    .iter()
                    .map(|it| ((*it).to_owned(), "int".to_owned()));
                let own = [("public.t".to_owned(), columns.collect())].into();
                (name.to_owned(), own)
            });
            it.columns = listed.into();
        });
        tables(&mut scene.one, |it| {
            followed(it).publications = vec!["p".to_owned(), "q".to_owned()];
        });
        for (index, sample) in (0..).zip(&mut scene.one.samples) {
            sample.subscriptions[0].apply_errors = errors * index;
        }
        let found = scene.diagnose().findings.into_iter();
        let found = found.filter(|it| it.at == "one");
        found
            .map(|it| (it.cause, it.severity, it.remedies))
            .collect()
    }

    #[test]
    fn lists_that_differ_are_told_with_what_to_paste() {
        assert_eq!(found(&["a", "id"], 0), []);
        let [(cause, severity, remedies)] = &found(&["b", "id"], 0)[..] else {
            panic!("{:?}", found(&["b", "id"], 0));
        };
        assert_eq!(
            (*cause, *severity),
            (Cause::ColumnListsDiffer, Severity::Risk)
        );
        let drop = "on primary, in database app: ALTER PUBLICATION q DROP TABLE public.t;";
        assert!(remedies[0].starts_with(drop), "{remedies:?}");
        assert!(
            remedies[2]
                .contains("TRUNCATE public.t; DROP SUBSCRIPTION sub_one; CREATE SUBSCRIPTION"),
            "{remedies:?}"
        );
        let failing = found(&["a", "b", "id"], 1);
        let failing: Vec<_> = failing.iter().map(|it| (it.0, it.1)).collect();
        assert_eq!(failing, [(Cause::ColumnListsDiffer, Severity::Lag)]);
    }
}
