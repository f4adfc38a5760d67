//! The signal of a subscription's slot that no apply worker can use: of another output plugin, of a standby,
//! of another database. To the subscriber's server it looks like a connection that is refused.

use super::published::{connects_to, meant, publisher};
use super::refused::{GUESSED, guessed, workless};
use super::{Cause, Evidence, Rule, View, in_database};
use crate::link::Link;
use crate::node::Role;
use crate::states::SlotType;
use crate::views::Slot;

/// The output plugin that apply workers understand.
const PLUGIN: &str = "pgoutput";

/// Most bytes of a slot's name that the name of another one begins with.
const MOST_NAME: usize = 50;

pub(super) const RULE: Rule = Rule {
    cause: Cause::SlotUnsuitable,
    title: "slot {slot} cannot serve the subscription: {why}",
    signal,
    remedies: &[
        GUESSED,
        "on {copy_at}: SELECT pg_copy_logical_replication_slot('{slot}', '{spare}', false, 'pgoutput'); which makes a \
         slot of the right plugin at the same position; then as follows",
        "on {make_at}: SELECT pg_create_logical_replication_slot('{spare}', 'pgoutput'); then as follows; what was \
         changed before that is missing at the subscriber",
        "on {server}: ALTER SUBSCRIPTION {subscription} SET (slot_name = '{spare}'); after that: it then goes on by \
         itself",
        "on {server}: ALTER SUBSCRIPTION {subscription} CONNECTION '...' with the string that \\dRs+ shows, and \
         dbname={slot_database}, if its publications ({publications}) are there",
        "on {drop_at}: SELECT pg_drop_replication_slot('{slot}'); after that, if no other program uses it: until then \
         it keeps WAL, and its consumer, if it has one, loses what it has not received",
    ],
};

/// What is wrong with the slot of a link's subscription.
enum Why {
    Plugin(String),
    Physical,
    /// The databases of the slot and of the connection.
    Database(String, String),
}

fn why(link: &Link<'_>, slot: &Slot) -> Option<Why> {
    if slot.slot_type == SlotType::Physical {
        return Some(Why::Physical);
    }
    let plugin = slot.plugin.as_ref().filter(|plugin| *plugin != PLUGIN);
    if let Some(plugin) = plugin {
        return Some(Why::Plugin(plugin.clone()));
    }
    let of = slot.database.as_ref()?;
    let to = connects_to(link)?.database.as_ref()?;
    (of != to).then(|| Why::Database(of.clone(), to.clone()))
}

/// A name that no slot of the link's upstream has, for one in the place of this slot.
fn spare(link: &Link<'_>, slot: &str) -> Option<String> {
    let short = slot.get(..slot.len().min(MOST_NAME))?;
    let mut names = (1..10).map(|number| match number {
        1 => format!("{short}_{PLUGIN}"),
        _ => format!("{short}_{PLUGIN}{number}"),
    });
    let last = link.upstream.last()?;
    names.find(|name| last.slot(name).is_none())
}

fn signal(view: &View<'_>) -> Vec<Evidence> {
    let found = workless(view).filter_map(|(link, _, _, evidence)| {
        let upstream = link.upstream;
        let slot = upstream.last()?.slot(link.slot.as_deref()?)?;
        if upstream.role == Role::Relay {
            return None;
        }
        let why = why(link, slot)?;
        let at = publisher(view, link).or_else(|| meant(view, link));
        let (server, database) = at.unwrap_or((upstream, String::new()));
        let place = in_database(server, &database);
        let words = match &why {
            Why::Plugin(plugin) => {
                format!("it is of output plugin {plugin}, and a subscription needs {PLUGIN}")
            }
            Why::Physical => "it is a physical slot, which is for a standby".to_owned(),
            Why::Database(of, to) => {
                format!("it is of database {of}, and the subscription connects to {to}")
            }
        };
        let fact = format!("slot {} on {}: {words}", slot.slot_name, upstream.name);
        let mut evidence = guessed(view, link, evidence)
            .fact("unsuitable_slots", 1.0, fact)
            .name("slot", &slot.slot_name)
            .name("why", words);
        evidence = match &why {
            Why::Plugin(_) => evidence.name("copy_at", &place),
            Why::Physical => evidence.name("make_at", &place),
            Why::Database(of, _) => {
                let followed = super::refused::follows(link);
                let publications = followed.map(|it| it.publications.join(", "));
                return Some(
                    evidence
                        .name("slot_database", of)
                        .name("publications", publications.unwrap_or_default()),
                );
            }
        };
        if let Some(spare) = spare(link, &slot.slot_name) {
            evidence = evidence.name("spare", spare);
        }
        Some(evidence.name("drop_at", place))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::super::refused_tests::{connects, workless};
    use super::super::scene::Scene;
    use super::*;
    use crate::diagnosis::Finding;

    /// What is said of the first subscription, whose slot is changed.
    fn said(change: impl Fn(&mut Slot)) -> Vec<Finding> {
        let mut scene = Scene::healthy();
        workless(&mut scene, 0);
        connects(&mut scene, "db1");
        for sample in &mut scene.primary.samples {
            change(&mut sample.slots[1]);
        }
        let findings = scene.diagnose().findings.into_iter();
        findings.filter(|it| it.at == "one").collect()
    }

    #[test]
    fn a_slot_that_no_worker_can_use_is_told() {
        let plugin = said(|slot| slot.plugin = Some("test_decoding".to_owned()));
        assert_eq!(plugin.len(), 1, "{plugin:?}");
        let first = &plugin[0];
        assert_eq!(first.cause, Cause::SlotUnsuitable);
        assert!(
            first.title.contains("output plugin test_decoding"),
            "{}",
            first.title
        );
        let remedies = [
            "on primary, in database app: SELECT pg_copy_logical_replication_slot('slot_one', 'slot_one_pgoutput', \
             false, 'pgoutput');",
            "on one: ALTER SUBSCRIPTION sub_one SET (slot_name = 'slot_one_pgoutput');",
            "on primary, in database app: SELECT pg_drop_replication_slot('slot_one');",
        ];
        assert_eq!(first.remedies.len(), remedies.len(), "{:?}", first.remedies);
        for (found, begins) in first.remedies.iter().zip(remedies) {
            assert!(found.starts_with(begins), "{found}");
        }
        let physical = said(|slot| {
            (slot.slot_type, slot.database) = (SlotType::Physical, None);
        });
        assert_eq!(physical[0].cause, Cause::SlotUnsuitable, "{physical:?}");
        assert!(
            physical[0].remedies[0]
                .contains("pg_create_logical_replication_slot('slot_one_pgoutput'")
        );
        let elsewhere = said(|slot| slot.database = Some("other".to_owned()));
        assert_eq!(elsewhere[0].cause, Cause::SlotUnsuitable, "{elsewhere:?}");
        assert!(
            elsewhere[0]
                .title
                .contains("of database other, and the subscription connects to app")
        );
        assert!(
            elsewhere[0].remedies[0].contains("dbname=other"),
            "{:?}",
            elsewhere[0].remedies
        );
        // The right one.
        let right = said(|slot| slot.plugin = Some(PLUGIN.to_owned()));
        assert_eq!(right[0].cause, Cause::SubscriptionRefused, "{right:?}");
    }
}
