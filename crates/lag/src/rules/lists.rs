//! The signal of publications that have different columns of one table: a server sends them over one slot to
//! nobody, and what was written meanwhile cannot be decoded afterwards either.

use super::anew::{EMPTIES, SHARED, Slot, UNCOPIED, recreated};
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
        UNCOPIED,
    ],
};

/// A table that two publications have with different columns.
struct Differing<'t> {
    table: &'t String,
    /// The publication that has all of it, or more of it than the other, which is the one that can go without
    /// the table.
    one: &'t String,
    other: &'t String,
    /// True if the columns of both have the same names, and the server compares something else.
    is_by_number: bool,
}

/// The first followed table of which two publications of a subscription have different columns.
fn differs<'t>(followed: &'t Followed, theirs: &'t Tables) -> Option<Differing<'t>> {
    let is_listed = |name: &String, table: &str| theirs.lists.get(name)?.get(table).copied();
    let columns = |name: &String, table: &str| theirs.sent_columns(&[name], table);
    followed.tables.iter().find_map(|table| {
        let all = theirs.publishing(&followed.publications, table);
        let mut with = all
            .into_iter()
            .filter(|name| columns(name, table).is_some());
        let first = with.next()?;
        let sent = |name: &String| (columns(name, table), is_listed(name, table) == Some(true));
        let other = with.find(|other| sent(other) != sent(first))?;
        // Only a table that a publication names can be taken out of it.
        let rank = |name: &String| {
            (
                is_listed(name, table).is_none(),
                columns(name, table).map(|it| it.len()),
            )
        };
        let (one, other) = match rank(other) > rank(first) {
            true => (other, first),
            false => (first, other),
        };
        let is_by_number = columns(one, table) == columns(other, table);
        Some(Differing {
            table,
            one,
            other,
            is_by_number,
        })
    })
}

fn signal(view: &View<'_>) -> Vec<Evidence> {
    let links = view.links.iter().filter(|link| link.subscription.is_some());
    let found = links.filter_map(|link| {
        let (own, theirs) = followed(view, link)?;
        let Differing {
            table,
            one,
            other,
            is_by_number,
        } = differs(own, theirs)?;
        let of = |name: &String| {
            let columns = theirs.sent_columns(&[name], table).unwrap_or_default();
            let columns: Vec<&str> = columns.into_iter().map(String::as_str).collect();
            format!("{} has {} of {table}", identifier(name), columns.join(", "))
        };
        let mut words = format!("{}; {}", of(one), of(other));
        if is_by_number {
            words.push_str(
                ", by a list: before 16 that is another one than none if the table has had more columns, or \
                 generates some",
            );
        }
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
        found_with(other, errors, &[])
    }

    /// So it is if these publications have a list, each with whether the server takes it for another one.
    fn found_with(
        other: &[&str],
        errors: u64,
        lists: &[(&str, bool)],
    ) -> Vec<(Cause, Severity, Vec<String>)> {
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
            let lists = lists.iter();
            let lists = lists.map(|(name, is_other)| {
                let own = [("public.t".to_owned(), *is_other)].into();
                ((*name).to_owned(), own)
            });
            it.lists = lists.collect();
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
        // A list of all columns, beside none.
        assert_eq!(found_with(&["a", "id"], 0, &[("p", false)]), []);
        for name in ["p", "q"] {
            let found = found_with(&["a", "id"], 0, &[(name, true)]);
            let drop = format!("on primary, in database app: ALTER PUBLICATION {name} DROP TABLE");
            assert!(found[0].2[0].starts_with(&drop), "{found:?}");
        }
        // The other one may have all tables.
        let less = found_with(&["a", "b", "id"], 0, &[("p", true)]);
        let drop = "on primary, in database app: ALTER PUBLICATION p DROP TABLE public.t;";
        assert!(less[0].2[0].starts_with(drop), "{less:?}");
        let failing = found(&["a", "b", "id"], 1);
        let failing: Vec<_> = failing.iter().map(|it| (it.0, it.1)).collect();
        assert_eq!(failing, [(Cause::ColumnListsDiffer, Severity::Lag)]);
    }
}
