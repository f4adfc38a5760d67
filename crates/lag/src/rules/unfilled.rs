//! The signal of columns that only the subscriber has, and that must not be empty: its worker, or the copy of
//! the table, fails at the first row that comes.

use std::collections::BTreeSet;

use super::published::{by_copy_or_worker, followed, some};
use super::{Cause, Evidence, Rule, View};
use crate::link::Link;
use crate::tables::{Followed, Tables};
use crate::window::NodeWindow;

/// The rule.
pub(super) const RULE: Rule = Rule {
    cause: Cause::ValueMissing,
    title: "columns of the subscriber must have a value, and none is published: {columns}",
    signal,
    remedies: &[
        "on {server}: {drop} the worker then goes on by itself. In rows that come the column is empty",
        "on {server}: a default for {columns} (ALTER TABLE ... ALTER COLUMN ... SET DEFAULT), or a trigger that fires in \
         the worker (ENABLE ALWAYS TRIGGER) and gives it a value",
    ],
};

/// Most columns for which statements are printed.
const MOST_MADE: usize = 5;

/// A column that gets no value.
struct Unfilled<'t> {
    table: &'t String,
    column: &'t String,
    is_of_key: bool,
}

fn unfilled<'t>(followed: &'t Followed, theirs: &Tables, ours: &'t Tables) -> Vec<Unfilled<'t>> {
    let mut found = Vec::new();
    for table in &followed.tables {
        let publications = theirs.publishing(&followed.publications, table);
        let inserts = |name: &&&String| theirs.sends(name).contains("insert");
        // One of them may give it.
        let has_trigger = followed.triggers.iter().any(|it| it.table == *table);
        let Some(sent) = theirs
            .sent_columns(&publications, table)
            .filter(|_| !has_trigger && publications.iter().any(|name| inserts(&name)))
        else {
            continue;
        };
        let demanded = ours.demanded.get(table).into_iter().flatten();
        let own = demanded.filter(|(column, _)| !sent.contains(column));
        found.extend(own.map(|(column, is_of_key)| Unfilled {
            table,
            column,
            is_of_key: *is_of_key,
        }));
    }
    found
}

/// Tables of a link's subscription that have such columns.
pub(super) fn tables(view: &View<'_>, link: &Link<'_>) -> BTreeSet<String> {
    let ours = link.replica.and_then(NodeWindow::last);
    let Some(((followed, theirs), ours)) = followed(view, link).zip(ours) else {
        return BTreeSet::new();
    };
    let found = unfilled(followed, theirs, &ours.tables);
    found.into_iter().map(|it| it.table.clone()).collect()
}

fn of_link(view: &View<'_>, link: &Link<'_>) -> Option<Evidence> {
    let (followed, theirs) = followed(view, link)?;
    let ours = &link.replica.and_then(NodeWindow::last)?.tables;
    let found = unfilled(followed, theirs, ours);
    let first = found.first()?;
    let names = found.iter();
    let names: Vec<String> = names
        .map(|it| format!("{} of {}", it.column, it.table))
        .collect();
    // Columns of a key are never empty.
    let drop = found.iter().filter(|it| !it.is_of_key).take(MOST_MADE);
    let drop = drop.map(|it| {
        format!(
            "ALTER TABLE {} ALTER COLUMN {} DROP NOT NULL;",
            it.table, it.column
        )
    });
    let drop: Vec<String> = drop.collect();
    let evidence = Evidence::of(link, 1.0)
        .severity(by_copy_or_worker(link, found.iter().map(|it| it.table)))
        .fact(
            "unfilled_columns",
            names.len() as f64,
            format!(
                "columns that are NOT NULL without a default, and not published: {}",
                some(&names)
            ),
        )
        .name("columns", some(&names))
        .name("table", first.table);
    Some(match drop.is_empty() {
        true => evidence,
        false => evidence.name("drop", drop.join(" ")),
    })
}

fn signal(view: &View<'_>) -> Vec<Evidence> {
    let links = view.links.iter().filter(|link| link.subscription.is_some());
    links.filter_map(|link| of_link(view, link)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::super::refused_tests::{failing, followed, tables};
    use super::super::scene::Scene;
    use super::*;
    use crate::diagnosis::Diagnosis;
    use crate::tables::Trigger;

    fn said(change: impl Fn(&mut Scene)) -> Diagnosis {
        let mut scene = Scene::healthy();
        tables(&mut scene.primary, |it| {
            let columns = [("id".to_owned(), "int".to_owned())];
            let own = [("public.t".to_owned(), columns.into())].into();
            it.columns = [("p".to_owned(), own)].into();
        });
        tables(&mut scene.one, |it| {
            let demanded = ["id", "own"].map(|name| (name.to_owned(), false));
            it.demanded = [("public.t".to_owned(), demanded.into())].into();
        });
        change(&mut scene);
        scene.diagnose()
    }

    fn found(of: &Diagnosis) -> Vec<(Cause, Severity)> {
        let found = of.findings.iter().filter(|it| it.at == "one");
        found.map(|it| (it.cause, it.severity)).collect()
    }

    #[test]
    fn a_column_that_nobody_fills_is_told_before_a_row_comes() {
        let risk = said(|_| ());
        assert_eq!(found(&risk), [(Cause::ValueMissing, Severity::Risk)]);
        let drop = "on one: ALTER TABLE public.t ALTER COLUMN own DROP NOT NULL; the worker";
        assert!(risk.findings[0].remedies[0].starts_with(drop));
        let fails = said(failing);
        assert_eq!(found(&fails), [(Cause::ValueMissing, Severity::Lag)]);
        // A key's columns stay NOT NULL.
        let of_key = said(|scene| {
            tables(&mut scene.one, |it| {
                let own = [("own".to_owned(), true)].into();
                it.demanded = [("public.t".to_owned(), own)].into();
            });
        });
        let remedies = of_key.findings.iter().flat_map(|it| &it.remedies);
        assert!(
            !remedies
                .cloned()
                .collect::<String>()
                .contains("DROP NOT NULL")
        );
    }

    #[test]
    fn a_trigger_may_fill_it_and_what_is_not_inserted_needs_no_value() {
        let filled = said(|scene| {
            tables(&mut scene.one, |it| {
                followed(it).triggers = vec![Trigger {
                    name: "fill".to_owned(),
                    table: "public.t".to_owned(),
                }];
            });
        });
        assert_eq!(found(&filled), []);
        let updated = said(|scene| {
            tables(&mut scene.primary, |it| {
                let actions = ["update", "delete"].map(str::to_owned);
                it.actions = [("p".to_owned(), actions.into())].into();
            });
        });
        assert_eq!(found(&updated), [(Cause::PartlyPublished, Severity::Note)]);
    }
}
