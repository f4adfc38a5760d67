//! Signals of a server whose data may be wrong: pages with a wrong checksum, indexes of another order.

use super::published::some;
use super::{Cause, Evidence, Rule, Severity, View};
use crate::node::Role;
use crate::views::Collation;
use crate::window::NodeWindow;

pub(super) const CHECKSUMS: Rule = Rule {
    cause: Cause::ChecksumFailures,
    title: "pages of {node} are damaged",
    signal: checksums,
    remedies: &[
        "build {damaged_standby} anew, on other storage: its log names the files. Do not fail over to it",
        "look at the log of {damaged_node} for the files, and at its storage; restore them from a backup, or \
         fail over to a standby, if its pages are well (pg_checksums, pg_amcheck)",
        "on {node}, in database {database}: SELECT pg_stat_reset(); begins the count of that database anew, after \
         that, and with it all its statistics: ANALYZE it, so that autovacuum knows its tables",
    ],
};

pub(super) const COLLATIONS: Rule = Rule {
    cause: Cause::CollationVersion,
    title: "indexes on text may be in another order than {node} compares it",
    signal: collations,
    remedies: &[
        "on {differing_node}, in database {database}: REINDEX DATABASE {database}; ALTER DATABASE {database} \
         REFRESH COLLATION VERSION; it locks tables meanwhile",
        "on {primary_as_well}, in database {database}: REINDEX DATABASE {database}; ALTER DATABASE {database} \
         REFRESH COLLATION VERSION; {differing_standby} gets both by replication. It locks tables meanwhile",
        "give {other_library} the version of the C library or of ICU that its primary has: until then \
         its queries may miss rows. If it is promoted before: REINDEX DATABASE {database}; ALTER DATABASE {database} \
         REFRESH COLLATION VERSION; after that. Neither can be done on a standby",
    ],
};

/// The server has the same library, and indexes of the same version.
fn has_same(node: &NodeWindow, of: &Collation) -> bool {
    let list = node
        .last()
        .map_or(&[][..], |last| &last.background.collations);
    list.contains(of)
}

pub(super) fn checksums(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for node in view.window.usable() {
        let number = node.last().and_then(|last| last.totals.checksum_failures);
        let Some(number) = number.filter(|number| *number > 0) else {
            continue;
        };
        let list = node.last().map_or(&[][..], |last| &last.totals.damaged);
        let named = |name: &String| match name.is_empty() {
            true => "the catalogs that all databases share".to_owned(),
            false => format!("database {name}"),
        };
        let places: Vec<String> = list.iter().map(named).collect();
        let words = format!(
            "{number} pages were read with a wrong checksum since the statistics began, in {}",
            some(&places)
        );
        let name = match node.role {
            Role::Standby => "damaged_standby",
            _ => "damaged_node",
        };
        let evidence =
            Evidence::on(node, Severity::Risk).fact("checksum_failures", number as f64, words);
        let evidence = evidence.name(name, &node.name);
        let database = list.iter().find(|name| !name.is_empty());
        found.push(match database {
            Some(database) => evidence.name("database", database),
            None => evidence,
        });
    }
    found
}

pub(super) fn collations(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for node in view.window.usable() {
        let Some(last) = node.last() else { continue };
        let list = &last.background.collations;
        let Some(first) = list.first() else { continue };
        let words = |one: &Collation| {
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
            Role::Standby => match view.window.primary().filter(|it| has_same(it, first)) {
                Some(primary) => evidence
                    .name("differing_standby", &node.name)
                    .name("primary_as_well", &primary.name),
                None => evidence.name("other_library", &node.name),
            },
            _ => evidence.name("differing_node", &node.name),
        };
        found.push(evidence);
    }
    found
}
