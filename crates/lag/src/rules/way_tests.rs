//! What fills the way to a replica, and how far one is behind at its end.

use super::Cause;
use super::scene::{START, STEP, Scene, lsn, sender, slot};
use crate::diagnosis::{Diagnosis, Finding, LinkReport, diagnose};
use crate::window::Window;

/// Causes that have a case here.
pub(super) const CAUSES: [Cause; 1] = [Cause::FullPageImages];

fn link<'d>(diagnosis: &'d Diagnosis, replica: &str) -> &'d LinkReport {
    let mut links = diagnosis.links.iter();
    links.find(|link| link.replica == replica).unwrap()
}

#[test]
fn whole_pages_are_to_blame_if_the_replica_would_keep_up_without_them() {
    for (images_each, taken_each, checkpoints, index_builds, cause) in [
        (11, STEP / 3, 1, 0, Cause::FullPageImages),
        // Even without them there is more than gets through.
        (7, STEP / 20, 1, 0, Cause::SlowNetwork),
        (2, STEP / 3, 1, 0, Cause::SlowNetwork),
        // No checkpoint has made them: they are new pages.
        (11, STEP / 3, 0, 0, Cause::SlowNetwork),
        (11, STEP / 3, 1, 1, Cause::SlowNetwork),
    ] {
        let mut scene = Scene::healthy();
        scene.stuck_receive("Activity", "WalReceiverMain");
        for (index, sample) in scene.primary.samples.iter_mut().enumerate() {
            let index = index as u64;
            sample.totals.wal_bytes = Some((index * STEP) as f64);
            sample.totals.page_images = index * images_each;
            sample.totals.checkpoints = 40 + checkpoints * (index / 20);
            sample.totals.index_builds = index_builds;
            sample.senders[0] = sender(10, "standby", START + index * taken_each);
        }
        for (index, sample) in scene.standby.samples.iter_mut().enumerate() {
            let end = lsn(START + index as u64 * taken_each);
            (sample.wal.receive, sample.wal.replay) = (end, end);
            sample.receiver.as_mut().unwrap().written_lsn = end;
        }
        assert_eq!(
            scene.diagnose().first(),
            Some(cause),
            "{images_each} {checkpoints}"
        );
    }
}

#[test]
fn a_cascade_is_as_far_behind_the_primary_as_all_of_its_way() {
    let mut scene = Scene::healthy();
    scene.stuck_receive("Activity", "WalReceiverMain");
    // A cascaded standby has all that the first one has.
    let mut cascaded = scene.standby.clone();
    cascaded.name = "cascaded".to_owned();
    for sample in &mut cascaded.samples {
        sample.receiver.as_mut().unwrap().slot_name = Some("cascade".to_owned());
        sample.wal.replayed_commit_age_ms = Some(9_000.0);
    }
    for sample in &mut scene.standby.samples {
        sample.senders = vec![sender(40, "cascaded", START)];
        sample.slots = vec![slot("cascade", "physical", 40, START)];
    }
    let mut window = Window::new(vec![scene.primary, scene.standby, cascaded]);
    let diagnosis = diagnose(&window);
    let link = link(&diagnosis, "cascaded");
    assert_eq!((link.upstream.as_str(), link.behind), ("standby", false));
    let all = link.behind_primary.unwrap();
    assert!((all.lag_ms - 2_400.0).abs() < 200.0, "{all:?}");
    assert!(all.behind && !all.lag_is_least && all.lag_bytes > 1e6);
    // The primary does write.
    let idle = |found: &Finding| found.cause == Cause::IdlePrimary;
    assert!(!diagnosis.findings.iter().any(idle));
    // What was there before anybody watched may be older.
    for sample in window
        .nodes
        .iter_mut()
        .skip(1)
        .flat_map(|it| &mut it.samples)
    {
        (sample.wal.receive, sample.wal.replay) = (lsn(START - STEP), lsn(START - STEP));
        for sender in &mut sample.senders {
            (sender.sent_lsn, sender.write_lsn) = (lsn(START - STEP), lsn(START - STEP));
        }
    }
    let diagnosis = diagnose(&window);
    let all = self::link(&diagnosis, "cascaded").behind_primary.unwrap();
    assert!(all.behind && all.lag_is_least, "{all:?}");
    assert_eq!(all.lag_most_ms, Some(9_000.0));
}
