//! The signal of tables that the worker of their subscription may not write, so that it fails at the first
//! change that comes.

use std::collections::BTreeSet;

use super::published::{by_copy_or_worker, followed, some};
use super::{Cause, Evidence, Rule, View};
use crate::link::Link;
use crate::tables::{Denied, Followed, Tables};

/// The rule.
pub(super) const RULE: Rule = Rule {
    cause: Cause::OwnerLacksRights,
    title: "the subscription's worker may not write {tables}",
    signal,
    remedies: &[
        "on {server}: {grant} the worker then goes on by itself",
        "on {server}: {bypass} the worker then goes on by itself. Policies of tables hold for that role no longer",
    ],
};

/// Most statements that are printed.
const MOST_MADE: usize = 5;

impl Denied {
    /// The rights that it lacks for changes that come.
    fn lacking(&self, followed: &Followed, theirs: &Tables) -> Vec<&str> {
        let publications = theirs.publishing(&followed.publications, &self.table);
        let sent: BTreeSet<&str> = publications
            .iter()
            .flat_map(|name| theirs.sends(name))
            .collect();
        let lacks = self.lacks.iter().map(String::as_str);
        let lacks = lacks.filter(|right| sent.contains(right.to_ascii_lowercase().as_str()));
        lacks.collect()
    }
}

/// What a worker lacks, in words, and the statement that gives it that.
fn told(denied: &Denied, lacking: &[&str]) -> (String, String) {
    let Denied {
        table, owner, role, ..
    } = denied;
    match (denied.refused_role, lacking) {
        (true, _) => (
            format!("role {role} may not become {owner}, which owns {table}"),
            format!("GRANT {owner} TO {role};"),
        ),
        (false, []) => (
            format!(
                "policies of {table} (row-level security) hold for role {role}, as which it writes"
            ),
            format!("ALTER ROLE {role} BYPASSRLS;"),
        ),
        (false, rights) => {
            let rights = rights.join(", ");
            (
                format!("role {role}, as which it writes, lacks {rights} on {table}"),
                format!("GRANT {rights} ON {table} TO {role};"),
            )
        }
    }
}

/// The tables that the worker of a link's subscription may not write, each with the rights that it lacks.
fn denied<'v>(view: &View<'v>, link: &Link<'v>) -> Vec<(&'v Denied, Vec<&'v str>)> {
    let Some((followed, theirs)) = followed(view, link) else {
        return Vec::new();
    };
    let all = followed
        .denied
        .iter()
        .map(|it| (it, it.lacking(followed, theirs)));
    let all = all.filter(|(it, lacking)| it.refused_role || it.has_policies || !lacking.is_empty());
    all.collect()
}

/// The names of those tables.
pub(super) fn tables(view: &View<'_>, link: &Link<'_>) -> BTreeSet<String> {
    let all = denied(view, link).into_iter();
    all.map(|(it, _)| it.table.clone()).collect()
}

fn of_link(view: &View<'_>, link: &Link<'_>) -> Option<Evidence> {
    let all = denied(view, link);
    let tables: Vec<String> = all.iter().map(|(it, _)| it.table.clone()).collect();
    let mut evidence = Evidence::of(link, 1.0)
        .severity(by_copy_or_worker(link, tables.iter()))
        .name("tables", some(&tables));
    let (mut grants, mut bypasses) = (Vec::new(), Vec::new());
    for (denied, lacking) in all.iter().take(MOST_MADE) {
        let (words, statement) = told(denied, lacking);
        evidence = evidence.fact("denied_tables", tables.len() as f64, words);
        let statements = match denied.refused_role || !lacking.is_empty() {
            true => &mut grants,
            false => &mut bypasses,
        };
        if !statements.contains(&statement) {
            statements.push(statement);
        }
    }
    for (name, statements) in [("grant", grants), ("bypass", bypasses)] {
        if !statements.is_empty() {
            evidence = evidence.name(name, statements.join(" "));
        }
    }
    (!tables.is_empty()).then_some(evidence)
}

fn signal(view: &View<'_>) -> Vec<Evidence> {
    let links = view.links.iter().filter(|link| link.subscription.is_some());
    links.filter_map(|link| of_link(view, link)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::super::refused_tests::tables;
    use super::super::scene::Scene;
    use super::*;

    fn said(change: impl Fn(&mut Denied), actions: &[&str]) -> Option<String> {
        let mut scene = Scene::healthy();
        let mut denied = Denied {
            table: "public.t".to_owned(),
            owner: "boss".to_owned(),
            role: "\"The app\"".to_owned(),
            ..Denied::default()
        };
        change(&mut denied);
        let sent: BTreeSet<String> = actions.iter().map(ToString::to_string).collect();
        tables(&mut scene.primary, |it| {
            it.actions = [("p".to_owned(), sent.clone())].into()
        });
        tables(&mut scene.one, |it| {
            let followed = it.subscriptions.get_mut("sub_one").unwrap();
            followed.denied = vec![denied.clone()];
        });
        let found = scene.diagnose().findings;
        let found = found
            .into_iter()
            .find(|it| it.cause == Cause::OwnerLacksRights)?;
        assert_eq!((found.at.as_str(), found.severity), ("one", Severity::Risk));
        Some(found.remedies[0].clone())
    }

    #[test]
    fn what_a_worker_may_not_write_is_told_before_it_fails() {
        const ALL: [&str; 3] = ["insert", "update", "delete"];
        let starts = |said: Option<String>, with: &str| {
            let said = said.unwrap();
            assert!(said.starts_with(with), "{said}");
        };
        starts(
            said(|it| it.refused_role = true, &ALL),
            "on one: GRANT boss TO \"The app\";",
        );
        starts(
            said(|it| it.has_policies = true, &ALL),
            "on one: ALTER ROLE \"The app\" BYPASSRLS;",
        );
        let lacks = |it: &mut Denied| it.lacks = vec!["UPDATE".to_owned(), "DELETE".to_owned()];
        starts(
            said(lacks, &ALL),
            "on one: GRANT UPDATE, DELETE ON public.t TO \"The app\";",
        );
        // What is not sent needs no right.
        assert_eq!(said(lacks, &["insert"]), None);
    }
}
