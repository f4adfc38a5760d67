//! Signals of a server whose data may be wrong: pages with a wrong checksum, indexes of another order.

use super::published::some;
use super::{Cause, Evidence, Rule, Severity, View};
use crate::node::Role;

pub(super) const CHECKSUMS: Rule = Rule {
    cause: Cause::ChecksumFailures,
    title: "pages of {node} are damaged",
    signal: checksums,
    remedies: &[
        "build {damaged_standby} anew, on other storage: its log names the files. Do not fail over to it",
        "look at the log of {damaged_node} for the files, and at its storage; restore them from a backup, or \
         fail over to a standby, if its pages are well (pg_checksums, pg_amcheck)",
        "pg_stat_reset() in each database of {node} begins the count anew, after that",
    ],
};

pub(super) const COLLATIONS: Rule = Rule {
    cause: Cause::CollationVersion,
    title: "indexes on text may be in another order than {node} compares it",
    signal: collations,
    remedies: &[
        "on {differing_node}, in database {database}: REINDEX DATABASE {database}; ALTER DATABASE {database} \
         REFRESH COLLATION VERSION; it locks tables meanwhile",
        "give {differing_standby} the version of the C library or of ICU that its primary has: until then \
         its queries may miss rows. Before it is promoted it needs that, or REINDEX after it",
    ],
};

pub(super) fn checksums(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for node in view.window.usable() {
        let number = node.last().and_then(|last| last.totals.checksum_failures);
        let Some(number) = number.filter(|number| *number > 0) else {
            continue;
        };
        let words =
            format!("{number} pages were read with a wrong checksum since the statistics began");
        let name = match node.role {
            Role::Standby => "damaged_standby",
            _ => "damaged_node",
        };
        let evidence =
            Evidence::on(node, Severity::Risk).fact("checksum_failures", number as f64, words);
        found.push(evidence.name(name, &node.name));
    }
    found
}

pub(super) fn collations(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for node in view.window.usable() {
        let Some(last) = node.last() else { continue };
        let list = &last.background.collations;
        let Some(first) = list.first() else { continue };
        let words = |one: &crate::views::Collation| {
            format!(
                "{} was made with {}, and {} has {}",
                one.database, one.recorded, node.name, one.actual
            )
        };
        let all: Vec<String> = list.iter().map(words).collect();
        let mut evidence = Evidence::on(node, Severity::Risk)
            .fact("other_collations", list.len() as f64, some(&all))
            .name("database", &first.database);
        evidence = match node.role {
            Role::Standby => evidence.name("differing_standby", &node.name),
            _ => evidence.name("differing_node", &node.name),
        };
        found.push(evidence);
    }
    found
}
