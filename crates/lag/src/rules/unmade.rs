//! The signal of published tables that a subscriber does not have: its worker fails at the first change of
//! one, whether the subscription follows it or not.

use super::published::{by_worker, of_tables};
use super::{Cause, Evidence, Rule, View};

/// The rule.
pub(super) const RULE: Rule = Rule {
    cause: Cause::TableMissing,
    title: "published tables are not there at the subscriber: {tables}",
    signal,
    remedies: &[
        "on {server}: make {tables} as on the publisher (pg_dump --schema-only --table), and then ALTER SUBSCRIPTION \
         {subscription} REFRESH PUBLICATION; the worker goes on by itself, and the tables are copied and followed",
        "on {publisher}: ALTER PUBLICATION {publication} DROP TABLE ... takes them out, if they are not for this \
         subscriber: what was written into them before needs them all the same",
    ],
};

fn signal(view: &View<'_>) -> Vec<Evidence> {
    let words = "published tables that are not there at the subscriber";
    let found = of_tables(view, "unmade_tables", |tables| &tables.unmade, words);
    let links = || view.links.iter().filter(|link| link.subscription.is_some());
    let ranked = found.into_iter().map(|mut evidence| {
        evidence.explains = 1.0;
        match links().find(|link| link.name == evidence.at) {
            Some(link) => evidence.severity(by_worker(link)),
            None => evidence,
        }
    });
    ranked.collect()
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::super::refused_tests::tables;
    use super::super::scene::Scene;
    use super::*;

    /// Each cause at the first subscriber, which lacks a table, with its severity and its share.
    fn found(errors: u64, renamed: bool) -> Vec<(Cause, Severity, f64)> {
        found_if(errors, renamed, true)
    }

    /// Causes at it as above, of a subscription that may be disabled.
    fn found_if(errors: u64, renamed: bool, enabled: bool) -> Vec<(Cause, Severity, f64)> {
        let names = |of: &[&str]| of.iter().map(|it| format!("public.{it}")).collect();
        let mut scene = Scene::healthy();
        tables(&mut scene.primary, |it| {
            let there: &[&str] = if renamed {
                &["u", "new"]
            } else {
                &["t", "new"]
            };
            it.publications = [("p".to_owned(), names(there))].into();
            let columns = [("id".to_owned(), "integer".to_owned())];
            let own = [("public.u".to_owned(), columns.into())].into();
            it.columns = [("p".to_owned(), own)].into();
            it.there = Some(names(there));
        });
        tables(&mut scene.one, |it| {
            let own = [("id".to_owned(), "integer".to_owned())];
            it.held = [("public.t".to_owned(), own.into())].into();
            it.there = Some(names(&["t"]));
        });
        for (index, sample) in (0..).zip(&mut scene.one.samples) {
            let row = &mut sample.subscriptions[0];
            row.apply_errors = errors * index;
            if !enabled {
                (row.enabled, row.pid) = (false, None);
            }
        }
        let found = scene.diagnose().findings.into_iter();
        let found = found.filter(|it| it.at == "one");
        found
            .map(|it| (it.cause, it.severity, it.explains))
            .collect()
    }

    #[test]
    fn a_table_that_is_not_there_is_named_once_and_stops_a_worker() {
        let missing = |severity| (Cause::TableMissing, severity, 1.0);
        assert_eq!(found(0, false), [missing(Severity::Risk)]);
        assert_eq!(found(1, false), [missing(Severity::Lag)]);
        // One that is disabled is to be enabled, too.
        let disabled = found_if(0, false, false);
        let disabled: Vec<_> = disabled.into_iter().map(|it| (it.0, it.1)).collect();
        assert!(
            disabled.contains(&(Cause::TableMissing, Severity::Risk)),
            "{disabled:?}"
        );
        let stopped = disabled.iter().any(|it| it.0 == Cause::ApplyStopped);
        assert!(stopped, "{disabled:?}");
        // Either may be what the worker fails for.
        let renamed = (Cause::TableRenamed, Severity::Lag, 0.5);
        assert_eq!(found(1, true), [missing(Severity::Lag), renamed]);
    }
}
