//! Who holds the lock that a worker of a subscription waits for: one that applies, or one that copies a
//! table.

use lockstep_service::words::figures::percent;

use super::logical::of_prepared;
use super::published::{publisher, some};
use super::synchronised::{Copying, copying, uncopied};
use super::{Cause, Evidence, Rule, View, in_database, server};
use crate::link::Link;
use crate::node::Role;
use crate::sample::Sample;
use crate::states::WaitType;
use crate::views::Process;
use crate::window::NodeWindow;

/// Share of samples from which a worker that copies counts as blocked.
const MOSTLY: f64 = 0.5;

/// What can be done about a transaction that a subscription's worker has prepared: it is ended where it
/// began.
pub(super) const APPLIED: &str = "on the publisher of the subscription with oid {applier} (pg_subscription): SELECT gid \
     FROM pg_prepared_xacts WHERE transaction = '{applied}'; has the name that it was prepared by there. End it there by \
     that name, as its program or transaction manager says: it then ends here, too. To end it here would lose it, or \
     stop that subscription for ever";

/// What can be done about who holds a lock, by whether that one has written something.
pub(super) const REMEDIES: &[&str] = &[
    "on {holder_server}: SELECT pg_terminate_backend({reader_pid}); if that transaction may be ended: it holds \
     the lock, and has written nothing",
    "let the program that prepared '{gid}' end it: a transaction manager knows whether it was committed elsewhere",
    APPLIED,
    "let the transaction of process {writer_pid} on {holder_server} end: it holds the lock",
    "look at process {blocker} on {holder_server} (pg_stat_activity, pg_locks): it holds the lock",
    "no long transactions, LOCK TABLE or DDL on tables that are replicated",
    "on {holder_server}: COMMIT PREPARED '{gid}'; if the other parts of it were committed",
    "on {holder_server}: ROLLBACK PREPARED '{gid}'; if they were not: what it wrote is lost",
    "on {holder_server}: SELECT pg_terminate_backend({writer_pid}); if that transaction may be ended: what it \
     wrote is lost",
];

/// The rule of copies.
pub(super) const COPY: Rule = Rule {
    cause: Cause::InitialSyncBlocked,
    title: "the copy of {tables} waits for a lock on {holder_node}",
    signal: blocked_copy,
    remedies: REMEDIES,
};

/// Adds which lock a process of a node waits for, and who holds it, as the newest sample with such a process
/// says.
pub(super) fn of_holder(
    mut evidence: Evidence,
    node: &NodeWindow,
    waiting: impl for<'s> Fn(&'s Sample) -> Option<&'s Process>,
) -> Evidence {
    let mut samples = node.samples.iter().rev();
    let newest = samples.find_map(|sample| {
        let process = waiting(sample).filter(|process| process.waits(&WaitType::Lock))?;
        Some((sample, process))
    });
    let Some((sample, process)) = newest else {
        return evidence;
    };
    if let Some(lock) = &process.lock {
        let words = format!("process {} waits for {lock}", process.pid);
        evidence = evidence.fact("awaited_locks", 1.0, words);
    }
    // The oldest of them: others may wait in the same queue.
    let mut sessions = sample.clients.oldest.iter();
    let holders = &process.blocked_by;
    let session = sessions.find(|session| holders.contains(&session.pid));
    let other = holders.iter().find(|pid| **pid != 0);
    let prepared = process.prepared.as_deref().filter(|gids| !gids.is_empty());
    evidence = match (session, prepared, other) {
        (Some(session), ..) => evidence.session(session),
        (None, None, Some(pid)) => {
            let process = sample.process_of(*pid);
            let kind = process.map_or("process", |it| it.backend_type.name());
            let words = format!("{kind} {pid} holds it");
            evidence
                .fact("blocker", f64::from(*pid), words)
                .name("blocker", pid.to_string())
        }
        _ => evidence,
    };
    match prepared {
        Some(gids) => of_prepared(evidence, gids),
        None => evidence,
    }
}

/// A walsender from which a worker of the link's subscription copies a table.
fn sends_copy<'s>(link: &Link<'_>, sample: &'s Sample) -> Option<&'s Process> {
    let subscriber = link.replica?;
    let id = link.subscribed(subscriber.last()?)?.id;
    let begin = format!("pg_{id}_sync_");
    let end = format!("_{}", subscriber.facts.system);
    let mut senders = sample.senders.iter().filter(|sender| {
        let name = sender.application_name.as_str();
        name.starts_with(&begin) && name.ends_with(&end)
    });
    senders.find_map(|sender| {
        let process = sample.process_of(sender.pid)?;
        process.waits(&WaitType::Lock).then_some(process)
    })
}

/// A worker of the link's subscription that copies a table.
fn copies<'s>(link: &Link<'_>, sample: &'s Sample) -> Option<&'s Process> {
    let mut tables = link.subscribed(sample)?.unsynced.iter();
    tables.find_map(|table| {
        let process = sample.process_of(table.pid?)?;
        process.waits(&WaitType::Lock).then_some(process)
    })
}

/// Copies of tables whose worker waits for a lock at the subscriber, or whose walsender waits for one at the
/// publisher: a lock on the table, a row with the same key that is not committed, or the end of a transaction
/// that is older than the copy's slot.
fn blocked_copy(view: &View<'_>) -> Vec<Evidence> {
    let mut found = Vec::new();
    for link in &view.links {
        let Some(node) = link
            .replica
            .filter(|_| copying(link) == Some(Copying::Open))
        else {
            continue;
        };
        if let Some(evidence) = of_copy(link, node, server(link), &copies) {
            found.push(evidence);
            continue;
        }
        // Behind a relay the primary sends the copy.
        let mut senders = view
            .window
            .usable()
            .filter(|it| it.role != Role::Subscriber);
        found.extend(senders.find_map(|sender| {
            let place = match publisher(view, link) {
                Some((it, database)) if it.name == sender.name => in_database(it, &database),
                _ => sender.name.clone(),
            };
            of_copy(link, sender, place, &sends_copy)
        }));
    }
    found
}

/// Finds the process at one end that copies, or sends what is copied.
type Finds = dyn for<'s> Fn(&Link<'_>, &'s Sample) -> Option<&'s Process>;

/// The evidence for a process of `node` that waits for a lock most of the time, and now.
fn of_copy(link: &Link<'_>, node: &NodeWindow, place: String, find: &Finds) -> Option<Evidence> {
    let share = node.share(|sample| find(link, sample).is_some());
    find(link, node.last()?)?;
    if share < MOSTLY {
        return None;
    }
    let tables = some(&uncopied(link));
    let words = format!(
        "on {} the copy waited for a lock in {} of the samples, and no row came",
        node.name,
        percent(share)
    );
    let evidence = Evidence::of(link, share)
        .fact("blocked_share", share, words)
        .name("tables", tables)
        .name("holder_node", &node.name)
        .name("holder_server", place);
    Some(of_holder(evidence, node, |sample| find(link, sample)))
}

#[cfg(test)]
mod tests {
    use super::super::scene::{Scene, process, sender, session};
    use super::*;
    use crate::diagnosis::Diagnosis;
    use crate::diagnosis::checks::Answer;
    use crate::views::Unsynced;

    /// Process 40 copies a table for the first subscription, from walsender 50.
    fn copied(worker: Process, walsender: Process, holder: Option<u32>) -> Diagnosis {
        let mut scene = Scene::healthy();
        scene.one.facts.system = "7".to_owned();
        for sample in &mut scene.one.samples {
            let row = &mut sample.subscriptions[0];
            (row.id, row.unsynced_tables) = (16_400, 1);
            row.unsynced = vec![Unsynced {
                table: "public.t".to_owned(),
                state: "d".into(),
                pid: Some(40),
                rows: None,
            }];
            sample.processes.push(worker.clone());
            let holders = holder.map(|pid| session(pid, 9_000.0));
            sample.clients.oldest = holders.into_iter().collect();
        }
        for sample in &mut scene.primary.samples {
            sample.senders.push(sender(50, "pg_16400_sync_16385_7", 0));
            sample.processes.push(walsender.clone());
            sample.clients.oldest = vec![session(78, 9_000.0)];
        }
        scene.diagnose()
    }

    fn waiting(pid: u32, kind: &str, holder: u32) -> Process {
        Process {
            blocked_by: vec![holder],
            lock: Some("AccessShareLock on public.t".to_owned()),
            ..process(pid, kind, "Lock", "relation")
        }
    }

    #[test]
    fn who_blocks_a_copy_is_named_at_either_end() {
        let copies = || {
            process(
                40,
                "logical replication worker",
                "Client",
                "LibPQWalReceiverReceive",
            )
        };
        let sends = || process(50, "walsender", "Client", "ClientWrite");
        let worker = || waiting(40, "logical replication worker", 77);
        for (worker, walsender, holder, remedy) in [
            (
                worker(),
                sends(),
                Some(77),
                "on one: SELECT pg_terminate_backend(77)",
            ),
            (
                copies(),
                waiting(50, "walsender", 78),
                None,
                "on primary, in database app: SELECT pg_terminate_backend(78)",
            ),
            (worker(), sends(), None, "look at process 77 on one"),
        ] {
            let diagnosis = copied(worker, walsender, holder);
            let first = diagnosis.findings.first().unwrap();
            assert_eq!(first.cause, Cause::InitialSyncBlocked, "{diagnosis:#?}");
            assert!(
                first.remedies[0].starts_with(remedy),
                "{:?}",
                first.remedies
            );
            let facts: Vec<&str> = first.evidence.iter().map(|it| it.words.as_str()).collect();
            let lock = "waits for AccessShareLock on public.t";
            assert!(facts.iter().any(|words| words.ends_with(lock)), "{facts:?}");
            assert!(diagnosis.has_lag() && !diagnosis.healthy);
        }
        // What waits for no lock is not known, and it is said what its worker does.
        let diagnosis = copied(
            process(40, "logical replication worker", "Timeout", "PgSleep"),
            sends(),
            None,
        );
        assert!(diagnosis.findings.is_empty());
        let mut checks = diagnosis.checks.iter();
        let check = checks
            .find(|one| one.check == "synchronised" && one.at == "one")
            .unwrap();
        assert_eq!(check.answer, Answer::NotKnown);
        assert!(
            check.words.contains("its worker waits for Timeout PgSleep"),
            "{}",
            check.words
        );
    }
}
