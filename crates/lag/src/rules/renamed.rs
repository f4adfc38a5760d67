//! The signal of tables that were renamed on the publisher, or dropped and made anew under another name:
//! their publication has the new name, and the subscription follows the old one. The subscriber knows no
//! OIDs of the publisher, so nothing tells the two from each other but people and rows.

use std::collections::BTreeSet;

use super::published::{Difference, by_worker, difference, followed, some};
use super::{Cause, Evidence, Rule, View};
use crate::link::Link;
use crate::tables::Tables;
use crate::window::NodeWindow;

pub(super) const RULE: Rule = Rule {
    cause: Cause::TableRenamed,
    title: "tables were renamed at one end, or dropped on the publisher and made anew: {renamed}",
    signal: renamed,
    remedies: &[
        "ask who changed {upstream} or {server}, or compare the rows of {compared}: if a table was dropped and made anew, \
         to rename the subscriber's would put rows of two tables together",
        "on {server}: {rename} if it was renamed: the worker then goes on by itself",
        "on {server}: {anew} ALTER SUBSCRIPTION {subscription} REFRESH PUBLICATION; if it was dropped and made \
         anew: its rows are copied into an empty table, and the old one stays",
    ],
};

/// A name that a subscriber's table has, and the one that the publisher's has now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Renamed {
    pub(super) old: String,
    pub(super) new: String,
}

/// Schema and name of `schema.table`, both quoted where SQL needs it.
pub(super) fn parts(table: &str) -> Option<(&str, &str)> {
    let mut is_quoted = false;
    let dot = table.char_indices().find(|(_, letter)| {
        is_quoted ^= *letter == '"';
        *letter == '.' && !is_quoted
    });
    let (dot, _) = dot?;
    Some((table.get(..dot)?, table.get(dot + 1..)?))
}

/// Tables that the publisher has no longer, each with the one that took its place: the only one that is
/// published, not followed, and has the same columns; of several, the one with the same name in another
/// schema.
pub(super) fn pairs(
    absent: &[String],
    unfollowed: &[String],
    theirs: &Tables,
    ours: &Tables,
) -> Vec<Renamed> {
    let columns = |table: &String| {
        let mut publications = theirs.columns.values();
        let columns = publications.find_map(|tables| tables.get(table))?;
        Some(columns.keys().collect::<BTreeSet<&String>>())
    };
    let alike = |old: &String, new: &String| {
        let held = ours.held.get(old).map(|held| held.keys().collect());
        // Neither a table that is renamed nor one that is made can take a name that is in use.
        let is_free = ours.there.as_ref().is_none_or(|there| !there.contains(new));
        held.is_some() && held == columns(new) && is_free
    };
    let name = |table: &String| parts(table).map(|(_, name)| name.to_owned());
    let only = |old: &String| {
        let all: Vec<&String> = unfollowed.iter().filter(|new| alike(old, new)).collect();
        let moved: Vec<&String> = all
            .iter()
            .copied()
            .filter(|new| name(new) == name(old))
            .collect();
        match (all.as_slice(), moved.as_slice()) {
            (_, [one]) | ([one], _) => Some((*one).clone()),
            _ => None,
        }
    };
    let found: Vec<Renamed> = absent
        .iter()
        .filter_map(|old| {
            Some(Renamed {
                old: old.clone(),
                new: only(old)?,
            })
        })
        .collect();
    let is_single = |it: &Renamed| found.iter().filter(|other| other.new == it.new).count() == 1;
    found.iter().filter(|it| is_single(it)).cloned().collect()
}

/// What makes an empty table of the new name beside the old one.
fn anew(it: &Renamed) -> Option<String> {
    let ((old_schema, _), (new_schema, _)) = (parts(&it.old)?, parts(&it.new)?);
    let table = format!("CREATE TABLE {} (LIKE {} INCLUDING ALL);", it.new, it.old);
    Some(match old_schema == new_schema {
        true => table,
        false => format!("CREATE SCHEMA IF NOT EXISTS {new_schema}; {table}"),
    })
}

/// What gives a table its new name.
fn statement(it: &Renamed) -> Option<String> {
    let (old_schema, old_name) = parts(&it.old)?;
    let (new_schema, new_name) = parts(&it.new)?;
    let mut sql = Vec::new();
    if old_schema != new_schema {
        sql.push(format!("CREATE SCHEMA IF NOT EXISTS {new_schema};"));
        sql.push(format!("ALTER TABLE {} SET SCHEMA {new_schema};", it.old));
    }
    if old_name != new_name {
        sql.push(format!(
            "ALTER TABLE {new_schema}.{old_name} RENAME TO {new_name};"
        ));
    }
    Some(sql.join(" "))
}

fn renamed(view: &View<'_>) -> Vec<Evidence> {
    let found = view.links.iter().filter_map(|link: &Link<'_>| {
        let Difference {
            renamed, unmade, ..
        } = difference(view, link).ok()?;
        let first = renamed.first()?;
        let words = renamed
            .iter()
            .map(|it| format!("{} is not there, {} has its columns", it.old, it.new));
        let words: Vec<String> = words.collect();
        let pairs = renamed
            .iter()
            .map(|it| format!("{} here with {} there", it.old, it.new));
        let pairs: Vec<String> = pairs.collect();
        let made: Vec<String> = renamed.iter().filter_map(anew).collect();
        let statements: Vec<String> = renamed.iter().filter_map(statement).collect();
        // The worker may fail for a table that is not there at all.
        let explains = if unmade.is_empty() { 1.0 } else { 0.5 };
        let evidence = Evidence::of(link, explains)
            .severity(by_worker(link))
            .fact("renamed_tables", renamed.len() as f64, some(&words))
            .name("renamed", some(&words))
            .name("tables", &first.old)
            .name("compared", some(&pairs))
            .name("anew", made.join(" "))
            .name("rename", statements.join(" "));
        Some(evidence)
    });
    found.collect()
}

/// A column of the subscriber that may have got another name on the publisher: the only one of a table that
/// is not published, where one that is published is missing.
pub(super) fn column(
    view: &View<'_>,
    link: &Link<'_>,
    table: &str,
    missing: &str,
) -> Option<String> {
    let (followed, theirs) = followed(view, link)?;
    let ours = &link.replica.and_then(NodeWindow::last)?.tables;
    let held = ours.held.get(table)?;
    let publications = followed.publications.iter();
    let columns = publications.filter_map(|name| theirs.columns.get(name)?.get(table));
    let published: BTreeSet<&String> = columns.flat_map(|columns| columns.keys()).collect();
    let is_there =
        |column: &String| held.contains_key(column) || ours.generates(table, column).is_some();
    let lacking = published.iter().filter(|column| !is_there(column));
    let lacking: Vec<&&String> = lacking.collect();
    let mut surplus = held.keys().filter(|column| !published.contains(column));
    match (lacking.as_slice(), surplus.next(), surplus.next()) {
        ([one], Some(old), None) if one.as_str() == missing => Some(format!(
            "ALTER TABLE {table} RENAME COLUMN {old} TO {missing};"
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn tables(of: &[(&str, &[&str])]) -> Tables {
        let columns = |names: &[&str]| -> BTreeMap<String, String> {
            let names = names.iter();
            names
                .map(|name| ((*name).to_owned(), "text".to_owned()))
                .collect()
        };
        let all = of
            .iter()
            .map(|(name, names)| ((*name).to_owned(), columns(names)));
        let all: BTreeMap<String, BTreeMap<String, String>> = all.collect();
        Tables {
            held: all.clone(),
            columns: [("p".to_owned(), all)].into(),
            ..Tables::default()
        }
    }

    fn found(ours: &[(&str, &[&str])], theirs: &[(&str, &[&str])]) -> Vec<String> {
        let names = |of: &[(&str, &[&str])]| -> Vec<String> {
            of.iter().map(|(name, _)| (*name).to_owned()).collect()
        };
        let pairs = pairs(&names(ours), &names(theirs), &tables(theirs), &tables(ours));
        pairs.iter().filter_map(statement).collect()
    }

    #[test]
    fn a_renamed_table_is_known_by_its_columns() {
        let t: (&str, &[&str]) = ("public.t", &["id", "v"]);
        for (theirs, expected) in [
            (
                &[("public.u", &["id", "v"][..])][..],
                Some("ALTER TABLE public.t RENAME TO u;"),
            ),
            (
                &[("public.\"U.u\"", &["id", "v"][..])],
                Some("ALTER TABLE public.t RENAME TO \"U.u\";"),
            ),
            (&[("public.u", &["id", "w"][..])], None),
            // Either of both may be it.
            (
                &[("public.u", &["id", "v"][..]), ("public.w", &["id", "v"])],
                None,
            ),
            (
                &[("public.u", &["id", "v"][..]), ("s.t", &["id", "v"])],
                Some("CREATE SCHEMA IF NOT EXISTS s; ALTER TABLE public.t SET SCHEMA s;"),
            ),
        ] {
            assert_eq!(
                found(&[t], theirs).first().map(String::as_str),
                expected,
                "{theirs:?}"
            );
        }
        // Two that are alike, of which one has a new name: nobody knows which.
        let both: &[(&str, &[&str])] = &[t, ("public.v", &["id", "v"])];
        assert_eq!(
            found(both, &[("public.u", &["id", "v"])]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_table_made_anew_is_made_beside_the_old_one() {
        let it = |old: &str, new: &str| Renamed {
            old: old.to_owned(),
            new: new.to_owned(),
        };
        for (new, expected) in [
            (
                "public.u",
                "CREATE TABLE public.u (LIKE public.t INCLUDING ALL);",
            ),
            (
                "s.t",
                "CREATE SCHEMA IF NOT EXISTS s; CREATE TABLE s.t (LIKE public.t INCLUDING ALL);",
            ),
        ] {
            assert_eq!(anew(&it("public.t", new)).as_deref(), Some(expected));
        }
        assert!(RULE.remedies[0].starts_with("ask") && !RULE.remedies.concat().contains("lost"));
    }

    #[test]
    fn names_are_split_outside_of_quotes() {
        assert_eq!(parts("a.b"), Some(("a", "b")));
        assert_eq!(
            parts("\"a.\"\"x\".\"b.c\""),
            Some(("\"a.\"\"x\"", "\"b.c\""))
        );
        assert_eq!(parts("a"), None);
    }
}
