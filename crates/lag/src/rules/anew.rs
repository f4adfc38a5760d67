//! What it takes to make a subscription again: statements that are pasted as they are, of which the first
//! that can fail comes before anything is lost.

use std::collections::BTreeSet;

use super::published::some;
use super::refused::{follows, quoted};
use super::{Evidence, identifier, server};
use crate::link::Link;
use crate::tables::{Followed, Tables};

/// Most tables that a remedy empties by name.
const MOST_EMPTIED: usize = 20;

/// A remedy that comes before the statements: what they cost.
pub(super) const EMPTIES: &str = "what follows empties {emptied}: rows that did not come from this publisher, or \
     were there without a copy (copy_data = false), are lost. If there are such rows, paste all but TRUNCATE, and \
     instead of it delete the rows that came from this publisher";

/// A remedy that comes before the statements, where others fill the same tables.
pub(super) const SHARED: &str = "on {server}: {detach}; after that, from {shared}: delete only the rows that came \
     from this publisher, as other subscriptions fill it, too ({others}). Then go on as follows";

/// A remedy instead of those, where the subscriber publishes what it follows: to empty such a table empties
/// it at its subscribers, too, of which this publisher may be one, whatever row filters there are.
pub(super) const UNCOPIED: &str = "on {server}: {uncopied}; with the subconninfo that was shown, once its publications \
     are as they should be: it copies nothing, so changes that it has not received stay missing. Compare the rows of \
     {onward} with the publisher's. Do not empty them: {onward_by} publishes them here, so that would empty them for its \
     subscribers, too, which may be the publisher itself. If nobody follows {onward_by}, drop that, and look again";

/// What of the subscription's slot is to be done before it is dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    /// DROP SUBSCRIPTION drops it on the publisher.
    There,
    /// There is none on the publisher.
    Gone,
}

/// True if a table has rows of the other: it is that, or a partition of it, or the other is one of its
/// partitions.
fn overlap(tables: &Tables, one: &String, other: &String) -> bool {
    let is_part = |table: &String, of: &String| {
        let above = tables.ancestors.get(table);
        above.is_some_and(|above| above.contains(of))
    };
    one == other || is_part(one, other) || is_part(other, one)
}

/// Followed tables whose rows one of these has, too, and the names of those that have.
fn common<'t>(
    followed: &'t Followed,
    tables: &'t Tables,
    others: impl Iterator<Item = (&'t String, &'t BTreeSet<String>)>,
) -> (BTreeSet<&'t str>, BTreeSet<&'t str>) {
    let mut found = (BTreeSet::new(), BTreeSet::new());
    for (name, theirs) in others {
        for table in &followed.tables {
            if theirs.iter().any(|its| overlap(tables, its, table)) {
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
    let evidence = evidence.name("server", server(link));
    let detach = detach(subscription, slot);
    let listed = |names: BTreeSet<&str>| names.into_iter().collect::<Vec<_>>().join(", ");
    let quoted = |names: BTreeSet<&str>| names.into_iter().map(identifier).collect::<Vec<_>>();
    let (kept, onward) = common(followed, tables, tables.publications.iter());
    if !kept.is_empty() {
        let again = again(link, followed, subscription, &["copy_data = off"]);
        return evidence
            .name("onward", listed(kept))
            .name("onward_by", some(&quoted(onward)))
            .name("uncopied", format!("{detach}; {again}"));
    }
    let others = tables.subscriptions.iter();
    let others = others.filter(|(name, _)| *name != subscription);
    let others = others.map(|(name, other)| (name, &other.tables));
    let (shared, others) = common(followed, tables, others);
    let own = followed.tables.iter().map(String::as_str);
    let emptied: BTreeSet<&str> = own.filter(|table| !shared.contains(table)).collect();
    let mut detach = detach;
    let mut evidence = evidence;
    if !emptied.is_empty() {
        detach.push_str(&format!("; TRUNCATE {}", alone(&emptied, tables)));
        evidence = evidence.name("emptied", listed(emptied));
    }
    let again = again(link, followed, subscription, &[]);
    if shared.is_empty() {
        return evidence.name("recreate", format!("{detach}; {again}"));
    }
    evidence
        .name("detach", detach)
        .name("shared", listed(shared))
        .name("others", some(&quoted(others)))
        .name("recreate", again)
}

/// The catalogs of which a row is that of a subscription of the database.
fn row(subscription: &str) -> String {
    let literal = subscription.replace('\'', "''");
    format!(
        "pg_subscription s JOIN pg_database d ON d.oid = subdbid WHERE subname = '{literal}' AND datname = \
         current_database()"
    )
}

/// The statement that ends the workers of a subscription that is disabled, and waits until they have ended.
/// One in the middle of a transaction would go on to its end.
pub(super) fn end_workers(subscription: &str) -> String {
    format!(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_subscription WHERE subid IN (SELECT s.oid FROM {})",
        row(subscription)
    )
}

/// What comes before a subscription is dropped: where it connects to is shown, and its workers end.
fn detach(subscription: &str, slot: Slot) -> String {
    let name = identifier(subscription);
    let mut detach = format!(
        "SELECT subconninfo FROM {}; ALTER SUBSCRIPTION {name} DISABLE; {}",
        row(subscription),
        end_workers(subscription)
    );
    if slot == Slot::Gone {
        detach.push_str(&format!(
            "; ALTER SUBSCRIPTION {name} SET (slot_name = NONE)"
        ));
    }
    detach
}

/// The tables as TRUNCATE is to have them: those that inherit from them, and are not followed, keep their
/// rows.
fn alone(emptied: &BTreeSet<&str>, tables: &Tables) -> String {
    let named = emptied.iter().map(|table| {
        let only = if tables.inherited.contains(*table) {
            "ONLY "
        } else {
            ""
        };
        format!("{only}{table}")
    });
    named.collect::<Vec<_>>().join(", ")
}

/// Statements that drop a subscription, and make it again as it was, but for these options. A worker never
/// runs as another role than before.
fn again(link: &Link<'_>, followed: &Followed, subscription: &str, other: &[&str]) -> String {
    let name = identifier(subscription);
    let owner = followed.owner.as_deref();
    // A slot that is not named has the name of the subscription, which may be none that a slot can have.
    let slot = link.slot.as_deref().filter(|slot| *slot != subscription);
    let slot = slot.map(|slot| format!("slot_name = '{}'", slot.replace('\'', "''")));
    let others = other.iter().map(|it| (*it).to_owned());
    let options = slot.into_iter().chain(followed.options.iter().cloned());
    let options = options
        .chain(others)
        .chain(owner.map(|_| "enabled = off".to_owned()));
    let options: Vec<String> = options.collect();
    let mut again = format!(
        "DROP SUBSCRIPTION {name}; CREATE SUBSCRIPTION {name} CONNECTION '...' PUBLICATION {}",
        quoted(followed).join(", ")
    );
    if !options.is_empty() {
        again.push_str(&format!(" WITH ({})", options.join(", ")));
    }
    if let Some(owner) = owner {
        again.push_str(&format!(
            "; ALTER SUBSCRIPTION {name} OWNER TO {owner}; ALTER SUBSCRIPTION {name} ENABLE"
        ));
    }
    again
}

#[cfg(test)]
mod tests {
    use super::super::Cause;
    use super::super::refused_tests::{followed, tables};
    use super::super::scene::Scene;
    use crate::tables::{Followed, Tables};

    /// The remedies of a lost slot of the first subscriber, of which other subscriptions follow these tables.
    fn remedies(own: &[&str], other: Option<&str>) -> Vec<String> {
        remedies_if(own, other, |_| {})
    }

    /// Makes `change` at the subscriber, and returns the same remedies.
    fn remedies_if(own: &[&str], other: Option<&str>, change: impl Fn(&mut Tables)) -> Vec<String> {
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
            change(it);
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

    const NOTE: &str = "on one: SELECT subconninfo FROM pg_subscription s JOIN pg_database d ON d.oid = subdbid WHERE \
                        subname = 'sub_one' AND datname = current_database(); ALTER SUBSCRIPTION sub_one DISABLE; \
                        SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_subscription WHERE subid IN (SELECT \
                        s.oid FROM pg_subscription s JOIN pg_database d ON d.oid = subdbid WHERE subname = 'sub_one' \
                        AND datname = current_database())";

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

    #[test]
    fn what_the_subscriber_publishes_is_never_emptied() {
        for (own, published) in [
            ("public.t", "public.t"),
            ("public.r", "public.r1"),
            ("public.r1", "public.r"),
        ] {
            let publishes = |it: &mut Tables| {
                let on = ["public.t0", published].map(str::to_owned);
                it.publications = [("Back".to_owned(), on.into())].into();
            };
            let remedies = remedies_if(&["public.own", own], Some(own), publishes);
            let again = format!(
                "{NOTE}; DROP SUBSCRIPTION sub_one; CREATE SUBSCRIPTION sub_one CONNECTION '...' PUBLICATION p WITH \
                 (slot_name = 'slot_one', copy_data = off); with"
            );
            assert!(remedies[0].starts_with(&again), "{remedies:?}");
            let compare = format!("Compare the rows of {own} with the publisher's");
            assert!(remedies[0].contains(&compare), "{remedies:?}");
            assert!(remedies[0].contains("\"Back\" publishes them"));
            let all = remedies.concat();
            assert!(
                !all.contains("TRUNCATE") && !all.contains("delete"),
                "{all}"
            );
        }
        let elsewhere = |it: &mut Tables| {
            let on = ["public.t0".to_owned()];
            it.publications = [("Back".to_owned(), on.into())].into();
        };
        let remedies = remedies_if(&["public.own"], None, elsewhere);
        assert!(remedies[1].contains("; TRUNCATE public.own;"));
    }

    #[test]
    fn tables_that_inherit_keep_their_rows() {
        let remedies = remedies_if(&["public.t", "public.u"], None, |it| {
            it.inherited = ["public.u".to_owned()].into();
        });
        assert!(remedies[0].starts_with("what follows empties public.t, public.u: "));
        let only = "; TRUNCATE public.t, ONLY public.u; DROP";
        assert!(remedies[1].contains(only), "{remedies:?}");
    }

    #[test]
    fn a_subscription_has_its_options_and_its_owner_again() {
        let remedies = remedies_if(&["public.t"], None, |it| {
            let own = followed(it);
            own.options = ["binary = on", "origin = none"].map(str::to_owned).into();
            own.owner = Some("\"Boss\"".to_owned());
        });
        let again = "PUBLICATION p WITH (slot_name = 'slot_one', binary = on, origin = none, enabled = off); \
                     ALTER SUBSCRIPTION sub_one OWNER TO \"Boss\"; ALTER SUBSCRIPTION sub_one ENABLE; with";
        assert!(remedies[1].contains(again), "{remedies:?}");
    }
}
