//! The signal of a consumer that takes changes slowly, and what may make it slow.

use lockstep_service::words::figures::{bytes, percent};

use super::logical::{PUSHED_SHARE, behind, logical, nothing_for, sender_shares};
use super::published::some;
use super::refused::follows;
use super::{Cause, Evidence, Rule, View};
use crate::link::Link;
use crate::point::Stage;
use crate::replica::Doing;
use crate::states::WaitType;
use crate::tables::Trigger;
use crate::views::Process;

/// The rule of slow consumers.
pub(super) const RULE: Rule = Rule {
    cause: Cause::SlowConsumer,
    title: "the consumer of this slot is slow",
    signal: consumer,
    remedies: &[
        "on {server}: ALTER TABLE {trigger_table} ENABLE TRIGGER {trigger}; if what that trigger does is not needed \
         for rows that are replicated: it then fires for local changes only. Otherwise make it quicker",
        "on {server}: a primary key or another index for {unindexed}: without one each update or delete searches \
         the whole table",
        "on {indexed_server}: a primary key or another index for every table (REPLICA IDENTITY FULL \
         searches whole tables)",
        "on {server}: fewer indexes and triggers on the tables that are applied to",
        "split the publication of slot {subscribed_slot} into several, each with a subscription and a \
         worker of its own: a transaction on tables of both then comes in two parts",
        "let several sessions apply, which commit in the source's order: lockstep replica run \
         {slow_replica} --writers 4, or writers = 4 in its file",
    ],
};

/// Adds the triggers that fire in an apply worker.
pub(super) fn of_triggers(evidence: Evidence, triggers: &[Trigger]) -> Evidence {
    let Some(first) = triggers.first() else {
        return evidence;
    };
    let all = triggers.iter();
    let all: Vec<String> = all
        .map(|it| format!("{} on {}", it.name, it.table))
        .collect();
    let words = format!("triggers that fire in it: {}", some(&all));
    evidence
        .fact("firing_triggers", all.len() as f64, words)
        .name("trigger", &first.name)
        .name("trigger_table", &first.table)
}

/// Adds what the subscriber's tables say about why its worker may be slow.
fn of_tables(evidence: Evidence, link: &Link<'_>) -> Evidence {
    let triggers = follows(link).map_or(&[][..], |it| it.triggers.as_slice());
    let evidence = of_triggers(evidence, triggers);
    let tables = link.replica.and_then(|node| node.last());
    let unindexed = tables.map(|last| last.tables.unindexed.keys().cloned());
    let unindexed: Vec<String> = unindexed.into_iter().flatten().collect();
    match (unindexed.is_empty(), triggers.is_empty()) {
        (false, _) => evidence.name("unindexed", some(&unindexed)),
        (true, true) => evidence.name("indexed_server", super::server(link)),
        (true, false) => evidence,
    }
}

fn consumer(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for link in behind(view).filter(|link| !link.is_to_relay()) {
        let (_, pushed) = sender_shares(link);
        let idle = link.worker_share(Process::waits_for_changes);
        let busy = idle.map(|idle| 1.0 - idle);
        // If the subscriber was not asked, the walsender that cannot send is the evidence, or that
        // the subscriber does not confirm what it was sent.
        let unstored = link.stage_share(Stage::Receive) + link.stage_share(Stage::Flush);
        let told_late = link.replies_freely().then_some(unstored);
        let unasked = pushed.max(f64::from(u8::from(link.takes_nothing())));
        let unasked = unasked.max(told_late.unwrap_or(0.0));
        // A replica of Lockstep reads on while it applies.
        let unapplied = link
            .replica_name
            .as_ref()
            .map(|_| link.stage_share(Stage::Flush));
        let unasked = unasked.max(unapplied.unwrap_or(0.0));
        let share = busy.map_or(unasked, |busy| busy.min(link.stage_share(Stage::Flush)));
        let stopped = match link.replica_state() {
            Some(replica) => {
                replica.doing(true) != Doing::CatchingUp || replica.is_full_by_itself()
            }
            None => link.replica.is_some_and(|replica| {
                let away = |sample: &_| link.subscribed(sample).is_none_or(|row| row.pid.is_none());
                replica.share(away) > 0.5
            }),
        };
        if share < PUSHED_SHARE || stopped || link.connected_share() < 0.5 {
            continue;
        }
        let others = logical(view)
            .filter(|other| other.upstream.name == link.upstream.name && other.name != link.name);
        let (late, all) = others.fold((0, 0), |(late, all), other| {
            (
                late + usize::from(other.is_behind() && !nothing_for(other)),
                all + 1,
            )
        });
        found.push(of_consumer(link, 0.9 * share, pushed, busy, (late, all)));
    }
    found
}

/// The evidence about a slow consumer. `busy` is known if it was asked; `late` of `all` other
/// slots are behind.
fn of_consumer(
    link: &Link<'_>,
    explains: f64,
    pushed: f64,
    busy: Option<f64>,
    (late, all): (usize, usize),
) -> Evidence {
    let words = not_taken(link, pushed, busy);
    let mut evidence = Evidence::of(link, explains).fact("pushed_share", pushed, words);
    if all > 0 {
        evidence = evidence.fact(
            "other_slots_behind",
            f64::from(u32::try_from(late).unwrap_or(u32::MAX)),
            format!("{late} of {all} other slots are behind"),
        );
    }
    if let Some(busy) = busy {
        evidence = evidence.fact(
            "busy_share",
            busy,
            format!(
                "its apply worker was busy in {} of the samples{}",
                percent(busy),
                worker_waits(link)
            ),
        );
    } else if let Some(replica) = &link.replica_name {
        let unapplied = link.stage_bytes(Stage::Flush);
        evidence = evidence
            .fact(
                "unapplied_bytes",
                unapplied,
                format!("{} received and not applied, on average", bytes(unapplied)),
            )
            .name("slow_replica", replica);
    } else {
        evidence = evidence.fact(
            "asked",
            0.0,
            "the subscriber was not asked (--subscriber), so this may be the network to it",
        );
    }
    if link.replica_name.is_none() {
        evidence = evidence.name("subscribed_slot", link.slot.as_deref().unwrap_or_default());
        evidence = of_tables(evidence, link);
    }
    let cpu = link
        .replica
        .filter(|_| link.subscription.is_some())
        .and_then(|replica| replica.cpu(|process| process.backend_type.is_logical_worker()));
    if let Some(cpu) = cpu {
        evidence = evidence.fact(
            "worker_cpu_share",
            cpu.ran,
            format!("it used {} of a core", percent(cpu.ran)),
        );
    }
    evidence
}

/// What a consumer does not take, in words.
fn not_taken(link: &Link<'_>, pushed: f64, busy: Option<f64>) -> String {
    match link.is_relayed() {
        true => format!(
            "{} had something left to send to it in {} of the samples",
            link.upstream.name,
            percent(pushed)
        ),
        // What fits into the buffers of the network is sent, however little of it is read.
        false if pushed == 0.0 && busy.is_none() && link.takes_nothing() => {
            "it was sent all that there is, and confirms none of it".to_owned()
        }
        false if link.replies_freely() => format!(
            "it was sent all that there is, and when it replies it has stored {} less",
            bytes(link.bytes())
        ),
        false => format!(
            "its walsender waited for it to take data in {} of the samples",
            percent(pushed)
        ),
    }
}

/// How much of the time an apply worker waited for storage, in words.
fn worker_waits(link: &Link<'_>) -> String {
    let io = link
        .worker_share(|process| process.waits(&WaitType::Io))
        .unwrap_or(0.0);
    match io >= 0.1 {
        true => format!(", at its storage in {}", percent(io)),
        false => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::refused_tests::tables;
    use super::super::scene::Scene;
    use super::*;
    use crate::diagnosis::Finding;

    fn slow(change: impl Fn(&mut crate::tables::Tables)) -> Finding {
        let mut scene = Scene::healthy();
        scene.stuck_subscriber(1, ("Client", "WalSenderWriteData"), ("Timeout", "PgSleep"));
        tables(&mut scene.one, change);
        let found = scene.diagnose().findings;
        found
            .into_iter()
            .find(|it| it.cause == Cause::SlowConsumer)
            .unwrap()
    }

    #[test]
    fn the_first_remedy_names_what_may_make_the_worker_slow() {
        let trigger = Trigger {
            name: "audit".to_owned(),
            table: "public.t".to_owned(),
        };
        let found = slow(|it| {
            let followed = it.subscriptions.get_mut("sub_one").unwrap();
            followed.triggers = vec![trigger.clone()];
        });
        let first = &found.remedies[0];
        assert!(
            first.starts_with("on one: ALTER TABLE public.t ENABLE TRIGGER audit;"),
            "{first}"
        );
        assert!(!found.remedies.join("; ").contains("REPLICA IDENTITY FULL"));
        assert!(
            found
                .evidence
                .iter()
                .any(|it| it.words.contains("audit on public.t"))
        );
        let found = slow(|it| it.unindexed = [("public.u".to_owned(), 5.0)].into());
        assert!(
            found.remedies[0].contains("index for public.u"),
            "{:?}",
            found.remedies
        );
        let found = slow(|_| ());
        assert!(
            found.remedies[0].contains("for every table"),
            "{:?}",
            found.remedies
        );
    }
}
