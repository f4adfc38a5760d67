//! Signals of replicas that `lockstep replica` keeps: what their targets say of why they do not apply.

use lockstep_service::words::figures::{bytes, counted, percent, seconds, verb};

use super::standing::kept;
use super::{Evidence, ReplicaFound, Severity, View};
use crate::figures::ratio;
use crate::replica::{Doing, Replica};
use crate::sample::Sample;
use crate::states::ReplicaHolder;

/// Share of samples from which what a replica does counts.
const MOSTLY: f64 = 0.5;

/// Replicas that did what `is` says most of the time, as they were when they did so last, with that
/// share.
pub(super) fn mostly<'v, 'a>(
    view: &'v View<'a>,
    is: impl Fn(Doing, &Replica) -> bool + Copy + 'v,
) -> impl Iterator<Item = (ReplicaFound<'v, 'a>, f64)> {
    view.replicas().filter_map(move |found| {
        let did = |sample: &'v Sample| {
            let replica = sample.replica_of(&found.replica.slot)?;
            is(replica.doing(false), replica).then_some(replica)
        };
        let samples = &found.node.samples;
        let share = ratio(
            samples.iter().filter_map(did).count() as f64,
            samples.len() as f64,
        );
        let replica = samples.iter().rev().find_map(did)?;
        (share >= MOSTLY).then_some((ReplicaFound { replica, ..found }, share))
    })
}

/// Replicas that did this most of the time and do so now.
fn doing<'v, 'a>(
    view: &'v View<'a>,
    wanted: Doing,
) -> impl Iterator<Item = (ReplicaFound<'v, 'a>, f64)> {
    mostly(view, move |doing, _| doing == wanted).filter(move |(found, _)| {
        let now = found.node.last();
        let now = now.and_then(|sample| sample.replica_of(&found.replica.slot));
        now.is_some_and(|replica| replica.doing(false) == wanted)
    })
}

/// Evidence that a replica does not apply. It lags if its source has WAL for it.
pub(super) fn of(found: &ReplicaFound<'_, '_>, explains: f64) -> Evidence {
    let behind = found.link.map_or(0, |link| link.last_bytes());
    let severity = match behind {
        0 => Severity::Risk,
        _ => Severity::Lag,
    };
    let mut evidence = match found.link {
        Some(link) => Evidence::of(link, explains),
        None => Evidence {
            explains,
            ..Evidence::on(found.node, severity)
        },
    };
    evidence.at.clone_from(&found.name);
    evidence = evidence
        .severity(severity)
        .name("node", &found.node.name)
        .name("target", &found.node.target)
        .name("slot", &found.replica.slot)
        .name("replica", &found.replica.name);
    match found.replica.applied_lsn {
        Some(lsn) => evidence.name("applied_lsn", lsn.to_string()),
        None => evidence,
    }
}

/// Adds how far it is behind, and what its slot keeps meanwhile.
pub(super) fn with_backlog(mut evidence: Evidence, found: &ReplicaFound<'_, '_>) -> Evidence {
    let Some(link) = found.link else {
        return evidence;
    };
    let (behind, upstream) = (link.last_bytes() as f64, &link.upstream.name);
    let size = bytes(behind);
    let words = match found.replica.applied_lsn {
        Some(lsn) => {
            format!("everything up to {lsn} is applied, {size} of WAL of {upstream} is not")
        }
        None => format!("{size} of WAL of {upstream} is not applied"),
    };
    evidence = evidence.fact("behind_bytes", behind, words);
    let above = link.upstream.last();
    let slot = above.and_then(|sample| Some((sample, sample.slot(&found.replica.slot)?)));
    if let Some((sample, slot)) = slot {
        let kept = kept(sample, slot);
        evidence = evidence.fact(
            "retained_bytes",
            kept,
            format!("its slot keeps {} of WAL on {upstream}", bytes(kept)),
        );
    }
    evidence
}

/// One that a change has stopped tries again from time to time, and seems to apply for a moment. One that
/// waits for a lock applies, and says whose.
pub(super) fn stopped(view: &View<'_>) -> Vec<Evidence> {
    let failed = |doing: Doing, replica: &Replica| {
        let is_trying = matches!(doing, Doing::Connecting | Doing::Running);
        doing == Doing::Stopped || is_trying && replica.error.is_some()
    };
    let of_one = |(found, share): (ReplicaFound<'_, '_>, f64)| {
        let replica = found.replica;
        let error = replica.error.as_deref().unwrap_or("it does not say why");
        // Each of these gaps belongs to the remedy for one state.
        let (why, name) = match (replica.doing(false), replica.apply_state.name()) {
            (Doing::Connecting, _) => ("it cannot connect", "connecting"),
            (Doing::Running, _) => ("it waits for a lock", "waiting"),
            (_, "blocked") => ("a change does not fit the target", "blocked"),
            _ => ("its process has ended, with an error", "ended"),
        };
        let evidence = of(&found, share)
            .fact("failing_share", share, error)
            .name("why", why)
            .name(name, &replica.name);
        let evidence = match replica.doing(false) == Doing::Stopped && is_away(replica) {
            true => evidence
                .fact("running", 0.0, "no process works on it now")
                .name("away", &replica.name),
            false => evidence,
        };
        with_backlog(evidence, &found)
    };
    mostly(view, failed).map(of_one).collect()
}

/// Nobody holds its lock.
fn is_away(replica: &Replica) -> bool {
    replica.holder == ReplicaHolder::Nobody
}

pub(super) fn paused(view: &View<'_>) -> Vec<Evidence> {
    let of_one = |(found, share): (ReplicaFound<'_, '_>, f64)| {
        let replica = found.replica;
        let mut evidence = of(&found, share).fact(
            "paused_share",
            share,
            format!(
                "somebody has paused it (lockstep replica pause {})",
                replica.name
            ),
        );
        if is_away(replica) {
            evidence = evidence
                .fact("running", 0.0, "no process works on it now either")
                .name("away", &replica.name);
        }
        with_backlog(evidence, &found)
    };
    doing(view, Doing::Paused).map(of_one).collect()
}

pub(super) fn not_running(view: &View<'_>) -> Vec<Evidence> {
    let of_one = |(found, share): (ReplicaFound<'_, '_>, f64)| {
        let replica = found.replica;
        let (words, name) = match replica.is_copied() {
            true => ("no process applies to it".to_owned(), "away"),
            false => (
                format!(
                    "its copy is not finished (phase {}), and no lockstep replica create works on it",
                    replica.phase
                ),
                "uncopied",
            ),
        };
        let evidence = of(&found, share)
            .fact(
                "away_share",
                share,
                format!("{words}, in {} of the samples", percent(share)),
            )
            .name(name, &replica.name)
            .name("unneeded", &replica.name);
        with_backlog(evidence, &found)
    };
    doing(view, Doing::NotRunning).map(of_one).collect()
}

pub(super) fn silent(view: &View<'_>) -> Vec<Evidence> {
    let of_one = |(found, share): (ReplicaFound<'_, '_>, f64)| {
        let age = found.replica.written_age_ms.unwrap_or(0.0);
        let evidence = of(&found, share).fact(
            "written_age_ms",
            age,
            format!(
                "its process is connected to {}, and wrote its state {} ago instead of every second",
                found.node.name,
                seconds(age)
            ),
        );
        with_backlog(evidence, &found)
    };
    doing(view, Doing::Silent).map(of_one).collect()
}

pub(super) fn held(view: &View<'_>) -> Vec<Evidence> {
    let of_one = |(found, share): (ReplicaFound<'_, '_>, f64)| {
        let hold = found.replica.hold.clone().unwrap_or_default();
        let age = hold.age_ms.unwrap_or(0.0);
        let who = match (&hold.user, &hold.client) {
            (Some(user), Some(client)) => format!(" of user {user} at {client}"),
            (Some(user), None) => format!(" of user {user}"),
            _ => String::new(),
        };
        let mut evidence = of(&found, share)
            .fact(
                "held_ms",
                age,
                format!(
                    "session {} on {}{who} has held it for {}",
                    hold.pid,
                    found.node.name,
                    seconds(age)
                ),
            )
            .name("pid", hold.pid.to_string());
        // For a moment it is as it should be.
        if !found.link.is_some_and(|link| link.is_behind()) {
            evidence = evidence.severity(Severity::Note);
        }
        with_backlog(evidence, &found)
    };
    doing(view, Doing::Held).map(of_one).collect()
}

pub(super) fn copying(view: &View<'_>) -> Vec<Evidence> {
    let of_one = |(found, _): (ReplicaFound<'_, '_>, f64)| {
        let replica = found.replica;
        let mut evidence = of(&found, 0.0).severity(Severity::Note);
        evidence = match replica.copied_share() {
            Some(share) => evidence.fact(
                "copied_share",
                share,
                format!(
                    "phase {}: {} of the rows are copied",
                    replica.phase,
                    percent(share)
                ),
            ),
            None => evidence.fact("copied_share", 0.0, format!("phase {}", replica.phase)),
        };
        with_backlog(evidence, &found)
    };
    doing(view, Doing::Copying).map(of_one).collect()
}

/// Rows that differ from the source's already. A replica that is promoted need not be as its source is.
pub(super) fn missing_rows(view: &View<'_>) -> Vec<Evidence> {
    let follow = view.replicas().filter(|it| !it.replica.is_promoted());
    let with_some = follow.filter(|it| it.replica.missing_rows > 0);
    let of_one = |found: ReplicaFound<'_, '_>| {
        let rows = found.replica.missing_rows;
        of(&found, 0.0).severity(Severity::Risk).fact(
            "missing_rows",
            rows as f64,
            format!(
                "{} to update or delete {} not on {}",
                counted(rows, "row"),
                verb(rows, "was", "were"),
                found.node.name
            ),
        )
    };
    with_some.map(of_one).collect()
}

/// Tables whose rows differ from the source's, or will, and what the copy could not make.
pub(super) fn incomplete(view: &View<'_>) -> Vec<Evidence> {
    let of_one = |found: ReplicaFound<'_, '_>| {
        let replica = found.replica;
        let facts = [
            (
                "unreplicated_tables",
                replica.unreplicated_tables,
                replica.unreplicated.as_deref(),
            ),
            (
                "unmade_objects",
                replica.unmade_objects,
                replica.unmade.as_deref(),
            ),
        ];
        let facts = facts
            .into_iter()
            .filter_map(|(name, number, words)| Some((name, number, words?)));
        facts.fold(None, |evidence: Option<Evidence>, (name, number, words)| {
            let evidence = evidence.unwrap_or_else(|| of(&found, 0.0).severity(Severity::Risk));
            Some(evidence.fact(name, number.unwrap_or(0) as f64, words))
        })
    };
    let follow = view.replicas().filter(|it| !it.replica.is_promoted());
    follow.filter_map(of_one).collect()
}
