//! The signal of partitioned tables that are published by other names than those by which a subscription
//! follows them, as after `publish_via_partition_root` was switched. What is written then comes under a name
//! that the subscriber does not follow: its worker passes over it, or fails if it has no such table.

use std::collections::BTreeSet;

use super::anew::{EMPTIES, SHARED, Slot, UNCOPIED, recreated};
use super::published::{Difference, by_worker, difference, some};
use super::{Cause, Evidence, Rule, View};
use crate::link::Link;
use crate::tables::{Followed, Tables};

pub(super) const RULE: Rule = Rule {
    cause: Cause::PartitionRootDiffers,
    title: "{followed} is followed, and is published as {published}",
    signal,
    remedies: &[
        "on {publisher}: ALTER PUBLICATION {publication} SET (publish_via_partition_root = {via_root}); it is then \
         published as it is followed. What was written to it meanwhile is missing at the subscriber, or still makes \
         its worker fail",
        EMPTIES,
        SHARED,
        "on {server}: {recreate}; with the subconninfo that was shown, after that, if something was written to it \
         meanwhile: it copies its tables anew",
        UNCOPIED,
        "if it is meant to be published as {published}: make these tables at the subscriber, and its subscription \
         anew, with empty tables",
    ],
};

/// A partitioned table that is followed by other names than it is published by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Otherwise {
    pub(super) followed: BTreeSet<String>,
    pub(super) published: BTreeSet<String>,
    /// True if it is followed by its own name, and not by those of its partitions.
    is_root: bool,
    /// A publication of the subscription that is to have the other setting.
    publication: String,
}

/// A publication of the subscription that has one of these tables, and this setting.
fn publication_of(
    tables: &BTreeSet<String>,
    via_root: bool,
    followed: &Followed,
    theirs: &Tables,
) -> Option<String> {
    let mut names = followed.publications.iter();
    let has = |name: &&String| {
        let own = theirs.publications.get(*name);
        own.is_some_and(|own| !own.is_disjoint(tables))
            && theirs.via_root.contains(*name) == via_root
    };
    names.find(has).cloned()
}

/// A partition whose changes come by the name of a table that is followed: another publication of the
/// subscription publishes that one by its own name, and it counts.
pub(super) fn comes_via_root(table: &str, followed: &Followed, theirs: &Tables) -> bool {
    let Some(above) = theirs.ancestors.get(table) else {
        return false;
    };
    let above: BTreeSet<String> = above.intersection(&followed.tables).cloned().collect();
    publication_of(&above, true, followed, theirs).is_some()
}

/// Partitioned tables among those that are followed and not published, with those that are published and not
/// followed in their place.
pub(super) fn otherwise(
    unpublished: &[String],
    unfollowed: &[String],
    followed: &Followed,
    theirs: &Tables,
) -> Vec<Otherwise> {
    let is_part = |table: &String, of: &String| {
        let above = theirs.ancestors.get(table);
        above.is_some_and(|above| above.contains(of))
    };
    let parts = |all: &[String], of: &String| -> BTreeSet<String> {
        all.iter().filter(|it| is_part(it, of)).cloned().collect()
    };
    let found = |followed_as: BTreeSet<String>, published: BTreeSet<String>, is_root: bool| {
        let publication = publication_of(&published, !is_root, followed, theirs)?;
        let is_some = !followed_as.is_empty() && !published.is_empty();
        is_some.then_some(Otherwise {
            followed: followed_as,
            published,
            is_root,
            publication,
        })
    };
    let roots = unpublished.iter().filter_map(|root| {
        let own = BTreeSet::from([root.clone()]);
        found(own, parts(unfollowed, root), true)
    });
    let by_root = unfollowed.iter().filter_map(|root| {
        let own = BTreeSet::from([root.clone()]);
        found(parts(unpublished, root), own, false)
    });
    roots.chain(by_root).collect()
}

fn signal(view: &View<'_>) -> Vec<Evidence> {
    let found = view.links.iter().filter_map(|link: &Link<'_>| {
        let Difference {
            otherwise,
            publisher,
            ..
        } = difference(view, link).ok()?;
        let first = otherwise.first()?;
        let words = |tables: &BTreeSet<String>| some(&tables.iter().cloned().collect::<Vec<_>>());
        let all = otherwise.iter().map(|it| {
            let (followed, published) = (words(&it.followed), words(&it.published));
            format!("{followed} is followed, {published} is published")
        });
        let all: Vec<String> = all.collect();
        let evidence = Evidence::of(link, 1.0)
            .severity(by_worker(link))
            .fact("tables_published_otherwise", all.len() as f64, some(&all))
            .name("followed", words(&first.followed))
            .name("published", words(&first.published))
            .name("publisher", publisher)
            .name("publication", &first.publication)
            .name("via_root", first.is_root.to_string());
        Some(recreated(evidence, link, Slot::There))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::super::refused_tests::{failing, tables};
    use super::super::scene::Scene;
    use super::*;
    use crate::diagnosis::Diagnosis;
    use crate::rules::Severity;

    /// What is said of a subscription that follows these tables, of which the publication has others. Tables
    /// `public.r…` are partitions of `public.r`.
    fn said(follows: &[&str], publishes: &[&str], via_root: bool, fails: bool) -> Diagnosis {
        let names = |of: &[&str]| {
            of.iter()
                .map(|it| format!("public.{it}"))
                .collect::<BTreeSet<_>>()
        };
        let mut scene = Scene::healthy();
        if fails {
            failing(&mut scene);
        }
        tables(&mut scene.one, |it| {
            it.subscriptions.get_mut("sub_one").unwrap().tables = names(follows);
        });
        tables(&mut scene.two, |it| {
            it.subscriptions.get_mut("sub_two").unwrap().tables = names(publishes);
        });
        tables(&mut scene.primary, |it| {
            it.publications = [("p".to_owned(), names(publishes))].into();
            it.there = Some(names(&["r", "r1", "r2", "t"]));
            let above = ["r1", "r2"].map(|part| (format!("public.{part}"), names(&["r"])));
            it.ancestors = above.into();
            it.via_root = via_root.then(|| "p".to_owned()).into_iter().collect();
        });
        scene.diagnose()
    }

    #[test]
    fn a_root_that_is_published_by_its_partitions_is_told() {
        for fails in [false, true] {
            let diagnosis = said(&["r"], &["r1", "r2"], false, fails);
            let found = diagnosis.findings.iter().filter(|it| it.at == "one");
            let causes: Vec<Cause> = found.clone().map(|it| it.cause).collect();
            assert_eq!(causes, [Cause::PartitionRootDiffers], "{fails}");
            let first = found.clone().next().unwrap();
            let severity = if fails { Severity::Lag } else { Severity::Risk };
            assert_eq!(first.severity, severity);
            assert_eq!(
                first.title,
                "public.r is followed, and is published as public.r1, public.r2"
            );
            let switch = "on primary, in database app: ALTER PUBLICATION p SET (publish_via_partition_root = true);";
            assert!(
                first.remedies[0].starts_with(switch),
                "{:?}",
                first.remedies
            );
            let anew = "TRUNCATE public.r; DROP SUBSCRIPTION sub_one; CREATE SUBSCRIPTION sub_one CONNECTION '...' \
                        PUBLICATION p WITH (slot_name = 'slot_one');";
            assert!(first.remedies[2].contains(anew), "{:?}", first.remedies);
        }
    }

    #[test]
    fn partitions_that_are_published_by_their_root_are_told() {
        let diagnosis = said(&["r1", "r2"], &["r"], true, false);
        let found = diagnosis.findings.iter().filter(|it| it.at == "one");
        let found: Vec<_> = found.collect();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].cause, Cause::PartitionRootDiffers);
        let switch = "ALTER PUBLICATION p SET (publish_via_partition_root = false);";
        assert!(
            found[0].remedies[0].contains(switch),
            "{:?}",
            found[0].remedies
        );
    }

    #[test]
    fn what_is_no_partition_is_left_out_or_not_followed_as_before() {
        for (follows, publishes, expected) in [
            (
                &["r1"][..],
                &["r1", "t"][..],
                Some(Cause::TablesNotFollowed),
            ),
            (&["t"], &["r1"], Some(Cause::TablesNotPublished)),
            (&["r1", "r2"], &["r1", "r2"], None),
        ] {
            let diagnosis = said(follows, publishes, false, false);
            let found = diagnosis.findings.iter().filter(|it| it.at == "one");
            let found: Vec<Cause> = found.map(|it| it.cause).collect();
            assert_eq!(found.first().copied(), expected, "{follows:?}: {found:?}");
            assert!(!found.contains(&Cause::PartitionRootDiffers), "{found:?}");
        }
        // By its own name it comes already: two publications overlap.
        let diagnosis = said(&["r"], &["r", "r1"], true, false);
        let found = diagnosis.findings.iter().filter(|it| it.at == "one");
        assert_eq!(found.count(), 0, "{:?}", diagnosis.findings);
    }
}
