//! The signal of a replica whose spool takes nothing more in: because of its limit, its disk, or one
//! transaction that it has no room for.

use lockstep_service::words::figures::{bytes, seconds};

use super::replica::{mostly, of, with_backlog};
use super::{Cause, Evidence, ReplicaFound, Rule, Severity, View};
use crate::replica::{Doing, Replica};

pub(super) const RULE: Rule = Rule {
    cause: Cause::ReplicaSpoolFull,
    title: "the replica's spool is full: it takes nothing more from the source",
    signal: spool_full,
    remedies: &[
        "start lockstep replica run {huge} again with a --spool-limit that such a transaction fits into (now \
         {spool_limit}); or raise spool_limit in its file and send its process SIGHUP",
        "start lockstep replica run {limited} again with a --spool-limit of more than its target gets behind \
         (now {spool_limit}); or raise spool_limit in its file and send its process SIGHUP",
        "fewer changes for each cycle: lockstep replica alter {often} --frequency, with less than {every}, \
            on \
         the database of {node}",
        "make room on the disk of the spool of replica {crowded}: it goes on by itself, within a second",
        "do what is said here of the spool of replica {unsure}: raise spool_limit, or make room on its disk",
    ],
};

/// A replica whose process does not apply has a spool that fills up: what it does not do is the cause then.
fn spool_full(view: &View<'_>) -> Vec<Evidence> {
    let of_one = |(found, share): (ReplicaFound<'_, '_>, f64)| {
        let replica = found.replica;
        let applies = replica.doing(false) == Doing::Running;
        let mut evidence = of(&found, if applies { share } else { 0.0 });
        if !applies || replica.is_late_by_cycles() == Some(false) {
            evidence = evidence.severity(Severity::Risk);
        }
        let limit = bytes(replica.spool_limit.unwrap_or(0) as f64);
        let size = replica.spool_bytes.unwrap_or(0) as f64;
        let why = replica.spool_full.as_deref().unwrap_or_default();
        evidence = evidence.fact(
            "spool_bytes",
            size,
            format!("its spool takes {} of at most {limit}: {why}", bytes(size)),
        );
        if replica.spool_from >= replica.spool_to {
            let words = "nothing that it holds can be applied: no whole transaction is left in it";
            evidence = evidence.fact("appliable", 0.0, words);
        }
        let gap = match replica.spool_full_by.as_deref() {
            Some("transaction") => "huge",
            Some("limit") => "limited",
            Some("disk") => "crowded",
            _ => "unsure",
        };
        evidence = evidence.name(gap, &replica.name).name("spool_limit", limit);
        if let (Some(every), "limited") = (replica.cycle_every_ms(), gap) {
            evidence = evidence
                .name("often", &replica.name)
                .name("every", seconds(every));
        }
        with_backlog(evidence, &found)
    };
    let is_full = |_: Doing, replica: &Replica| replica.spool_full.is_some();
    mostly(view, is_full).map(of_one).collect()
}
