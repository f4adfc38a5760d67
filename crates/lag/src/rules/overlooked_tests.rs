//! What once was called healthy, or was found at the wrong place or for the wrong reason.

use super::Cause;
use super::scene::{START, Scene, lsn, process, session};
use crate::diagnosis::{Diagnosis, LinkReport};

fn link<'d>(diagnosis: &'d Diagnosis, replica: &str) -> &'d LinkReport {
    let mut links = diagnosis.links.iter();
    links.find(|link| link.replica == replica).unwrap()
}

impl Scene {
    /// The first subscriber has got all that was published, and does not apply it; the WAL that
    /// is written since is not for it.
    fn held_back(&mut self, wait_type: &str, wait: &str) {
        for sample in &mut self.primary.samples {
            sample.decoding[0].total_bytes = 7;
            let sender = &mut sample.senders[1];
            for position in [
                &mut sender.write_lsn,
                &mut sender.flush_lsn,
                &mut sender.replay_lsn,
            ] {
                *position = lsn(START);
            }
        }
        for sample in &mut self.one.samples {
            sample.processes[0] = process(31, "logical replication worker", wait_type, wait);
            sample.processes[0].blocked_by = vec![55];
            sample.clients.oldest = vec![session(55, 9.0)];
        }
    }
}

#[test]
fn a_worker_that_waits_for_a_lock_is_seen_while_other_wal_flows() {
    for (wait_type, wait, asked, cause) in [
        ("Lock", "relation", true, Cause::ApplyBlocked),
        ("Timeout", "PgSleep", true, Cause::SlowConsumer),
        ("", "", true, Cause::SlowConsumer),
        ("Lock", "relation", false, Cause::SlowConsumer),
    ] {
        let mut scene = Scene::healthy();
        scene.held_back(wait_type, wait);
        if !asked {
            scene.one.samples.clear();
        }
        let diagnosis = scene.diagnose();
        let name = if asked { "one" } else { "slot_one" };
        assert!(link(&diagnosis, name).behind, "{wait} {asked}");
        assert!(!diagnosis.healthy, "{wait} {asked}");
        let first = diagnosis.findings.first();
        let first = first.map(|found| (found.cause, found.at.as_str()));
        assert_eq!(first, Some((cause, name)), "{wait} {asked}");
    }
}

#[test]
fn what_a_busy_worker_has_not_received_is_not_in_decoding() {
    let pushed = ("Client", "WalSenderWriteData");
    for (walsender, worker, stage) in [
        (pushed, ("Lock", "relation"), "apply"),
        (pushed, ("", ""), "apply"),
        (pushed, ("Activity", "LogicalApplyMain"), "receive"),
        (("", ""), ("Activity", "LogicalApplyMain"), "decode"),
    ] {
        let mut scene = Scene::healthy();
        scene.stuck_subscriber(1, walsender, worker);
        let diagnosis = scene.diagnose();
        let stages = link(&diagnosis, "one").stage_bytes.iter();
        let most = stages.max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
        assert_eq!(*most.0, stage, "{walsender:?} {worker:?}");
    }
}
