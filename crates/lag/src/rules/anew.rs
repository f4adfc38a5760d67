//! What it takes to make a subscription again: statements that are pasted as they are, of which the first
//! that can fail comes before anything is lost.

use std::collections::BTreeSet;

use super::published::some;
use super::refused::{follows, quoted};
use super::{Evidence, identifier, server};
use crate::link::Link;
use crate::tables::Tables;

/// Most tables that a remedy empties by name.
const MOST_EMPTIED: usize = 20;

/// A remedy that comes before the statements: what they cost.
pub(super) const EMPTIES: &str = "what follows empties {emptied}: rows that did not come from this publisher, or \
     were there without a copy (copy_data = false), are lost. If there are such rows, paste all but TRUNCATE, and \
     instead of it delete the rows that came from this publisher";

/// A remedy that comes before the statements, where others fill the same tables.
pub(super) const SHARED: &str = "on {server}: {detach}; after that, from {shared}: delete only the rows that came \
     from this publisher, as other subscriptions fill it, too ({others}). Then go on as follows";

/// What of the subscription's slot is to be done before it is dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    /// DROP SUBSCRIPTION drops it on the publisher.
    There,
    /// There is none on the publisher.
    Gone,
}

/// Followed tables of which rows may come by other subscriptions of the database, and these subscriptions.
/// A table has the rows of its partitions.
fn shared<'t>(subscription: &str, tables: &'t Tables) -> (BTreeSet<&'t str>, BTreeSet<&'t str>) {
    let mut found = (BTreeSet::new(), BTreeSet::new());
    let is_part = |table: &String, of: &String| {
        let above = tables.ancestors.get(table);
        above.is_some_and(|above| above.contains(of))
    };
    let own = tables.subscriptions.get(subscription);
    for table in own.iter().flat_map(|own| &own.tables) {
        for (name, other) in &tables.subscriptions {
            let is_its = |its: &String| its == table || is_part(its, table) || is_part(table, its);
            if name != subscription && other.tables.iter().any(is_its) {
                found.0.insert(table.as_str());
                found.1.insert(name.as_str());
            }
        }
    }
    found
}

/// Adds what it takes to make the subscription of a link again, if it can be said in a line.
pub(super) fn recreated(evidence: Evidence, link: &Link<'_>, slot: Slot) -> Evidence {
    let known = || {
        let followed = follows(link).filter(|it| (1..=MOST_EMPTIED).contains(&it.tables.len()))?;
        let tables = &link.replica?.last()?.tables;
        // Others may follow what was not read.
        (!tables.cut_off).then_some((followed, tables, link.subscription.as_ref()?))
    };
    let Some((followed, tables, subscription)) = known() else {
        return evidence;
    };
    let (shared, others) = shared(subscription, tables);
    let name = identifier(subscription);
    let literal = subscription.replace('\'', "''");
    let mut detach = format!(
        "SELECT subconninfo FROM pg_subscription JOIN pg_database d ON d.oid = subdbid WHERE subname = '{literal}' \
         AND datname = current_database(); ALTER SUBSCRIPTION {name} DISABLE"
    );
    if slot == Slot::Gone {
        detach.push_str(&format!(
            "; ALTER SUBSCRIPTION {name} SET (slot_name = NONE)"
        ));
    }
    let emptied = followed.tables.iter().map(String::as_str);
    let emptied: Vec<&str> = emptied.filter(|table| !shared.contains(table)).collect();
    let emptied = emptied.join(", ");
    if !emptied.is_empty() {
        detach.push_str(&format!("; TRUNCATE {emptied}"));
    }
    let recreate = format!(
        "DROP SUBSCRIPTION {name}; CREATE SUBSCRIPTION {name} CONNECTION '...' PUBLICATION {}{}",
        quoted(followed).join(", "),
        with_slot(link, subscription)
    );
    let mut evidence = evidence.name("server", server(link));
    if !emptied.is_empty() {
        evidence = evidence.name("emptied", emptied);
    }
    if shared.is_empty() {
        return evidence.name("recreate", format!("{detach}; {recreate}"));
    }
    let others: Vec<String> = others.into_iter().map(identifier).collect();
    let shared: Vec<&str> = shared.into_iter().collect();
    evidence
        .name("detach", detach)
        .name("shared", shared.join(", "))
        .name("others", some(&others))
        .name("recreate", recreate)
}

/// What names the slot where a subscription is made that would call it otherwise: by its own name, which may
/// be none that a slot can have.
fn with_slot(link: &Link<'_>, subscription: &str) -> String {
    let slot = link.slot.as_deref().filter(|slot| *slot != subscription);
    slot.map_or_else(String::new, |slot| {
        format!(" WITH (slot_name = '{}')", slot.replace('\'', "''"))
    })
}

#[cfg(test)]
mod tests {
    use super::super::Cause;
    use super::super::refused_tests::tables;
    use super::super::scene::Scene;
    use crate::tables::Followed;

    /// The remedies of a lost slot of the first subscriber, of which other subscriptions follow these tables.
    fn remedies(own: &[&str], other: Option<&str>) -> Vec<String> {
        let mut scene = Scene::healthy();
        for sample in &mut scene.primary.samples {
            let slot = &mut sample.slots[1];
            (slot.active, slot.active_pid) = (false, None);
            slot.wal_status = Some("lost".into());
        }
        for sample in &mut scene.one.samples {
            let row = &mut sample.subscriptions[0];
            (row.pid, row.received_lsn) = (None, None);
        }
        tables(&mut scene.one, |it| {
            let names = |of: &[&str]| of.iter().map(|it| (*it).to_owned()).collect();
            it.subscriptions.get_mut("sub_one").unwrap().tables = names(own);
            it.ancestors = [("public.r1".to_owned(), names(&["public.r"]))].into();
            if let Some(table) = other {
                let others = Followed {
                    tables: names(&[table]),
                    ..Followed::default()
                };
                it.subscriptions.insert("Shard".to_owned(), others);
            }
        });
        let diagnosis = scene.diagnose();
        let mut lost = diagnosis.findings.iter();
        let lost = lost.find(|it| it.cause == Cause::SlotLost);
        let remedies = &lost.unwrap().remedies;
        // Where it connects to is not shown.
        assert!(
            remedies[0].starts_with("if the subscription gets its changes from another server")
        );
        remedies[1..].to_vec()
    }

    const NOTE: &str = "on one: SELECT subconninfo FROM pg_subscription JOIN pg_database d ON d.oid = subdbid WHERE \
                        subname = 'sub_one' AND datname = current_database(); ALTER SUBSCRIPTION sub_one DISABLE";

    #[test]
    fn what_can_fail_comes_before_what_cannot_be_undone() {
        let remedies = remedies(&["public.t", "public.u"], None);
        assert!(
            remedies[0]
                .starts_with("what follows empties public.t, public.u: rows that did not come")
        );
        let all = format!(
            "{NOTE}; TRUNCATE public.t, public.u; DROP SUBSCRIPTION sub_one; CREATE SUBSCRIPTION sub_one CONNECTION \
             '...' PUBLICATION p WITH (slot_name = 'slot_one'); with"
        );
        assert!(remedies[1].starts_with(&all), "{remedies:?}");
    }

    #[test]
    fn a_table_that_others_fill_is_never_emptied() {
        for (own, other) in [
            ("public.t", "public.t"),
            ("public.r", "public.r1"),
            ("public.r1", "public.r"),
        ] {
            let remedies = remedies(&[own], Some(other));
            let detach = format!(
                "{NOTE}; after that, from {own}: delete only the rows that came from this publisher, as other \
                 subscriptions fill it, too (\"Shard\"). Then"
            );
            assert!(remedies[0].starts_with(&detach), "{remedies:?}");
            let again = "on one: DROP SUBSCRIPTION sub_one; CREATE SUBSCRIPTION sub_one CONNECTION";
            assert!(remedies[1].starts_with(again), "{remedies:?}");
            assert!(!remedies.concat().contains("TRUNCATE"), "{remedies:?}");
        }
        let remedies = remedies(&["public.t", "public.own"], Some("public.t"));
        assert!(remedies[0].starts_with("what follows empties public.own: "));
        let detach = format!("{NOTE}; TRUNCATE public.own; after that, from public.t: delete");
        assert!(remedies[1].starts_with(&detach), "{remedies:?}");
    }
}
