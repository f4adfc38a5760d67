//! A replica with a spool dies at each failpoint of that, and goes on.

use lockstep_apply::SpoolConfig;
use lockstep_apply::failpoint::{SPOOL_MADE, SPOOL_NAMED, SPOOL_TOLD};
use lockstep_spool::failpoint::{
    APPENDED, CUT, Failpoint, RECOVERED, SEGMENT_DURABLE, SEGMENT_MADE, SEGMENT_REMOVED, SYNCED,
};

use super::Scene;
use super::apply;
use super::process::{Death, Does};
use crate::apply_lab::until;
use crate::values;

/// How a replica with a spool comes to a failpoint.
pub struct Scenario {
    pub at: Failpoint,
    before: u32,
    provoke: fn(&Scene),
    /// The next one dies before anything is mended.
    leaves: bool,
    /// The target is killed after it, which may lose commits that are not on disk.
    kills_target: bool,
}

const PLAIN: Scenario = Scenario {
    at: SYNCED,
    before: 1,
    provoke: write,
    leaves: false,
    kills_target: true,
};

/// In this order.
pub const SCENARIOS: [Scenario; 12] = [
    Scenario {
        at: SPOOL_NAMED,
        before: 0,
        leaves: true,
        ..PLAIN
    },
    Scenario {
        at: SPOOL_MADE,
        before: 0,
        ..PLAIN
    },
    PLAIN,
    Scenario {
        at: APPENDED,
        kills_target: false,
        ..PLAIN
    },
    // In the middle of a transaction.
    Scenario {
        at: APPENDED,
        before: 3,
        provoke: large,
        leaves: true,
        kills_target: false,
    },
    Scenario {
        at: RECOVERED,
        before: 0,
        provoke: nothing,
        ..PLAIN
    },
    Scenario {
        at: SPOOL_TOLD,
        before: 3,
        ..PLAIN
    },
    Scenario {
        at: SEGMENT_MADE,
        before: 0,
        provoke: large,
        ..PLAIN
    },
    Scenario {
        at: SEGMENT_DURABLE,
        before: 0,
        provoke: large,
        ..PLAIN
    },
    Scenario {
        at: SEGMENT_REMOVED,
        before: 1,
        provoke: large,
        ..PLAIN
    },
    Scenario {
        at: CUT,
        before: 0,
        provoke: large_and_lost,
        leaves: true,
        ..PLAIN
    },
    Scenario {
        at: SPOOL_TOLD,
        before: 0,
        provoke: large,
        ..PLAIN
    },
];

fn nothing(_: &Scene) {}

fn write(scene: &Scene) {
    scene.write("");
}

/// Large transactions, one at a time.
fn large(scene: &Scene) {
    let newest = scene.written.borrow().last().map(|(before, _)| *before);
    if newest.is_none_or(|before| scene.confirmed() > before) {
        apply::large(scene);
    }
}

/// Bytes of the spool's files.
fn bytes(scene: &Scene) -> u64 {
    let folder = std::fs::read_dir(&scene.spool.as_ref().unwrap().folder).unwrap();
    let bytes = folder.map(|file| file.unwrap().metadata().map_or(0, |found| found.len()));
    bytes.sum()
}

/// The stream is lost while a large transaction arrives, if that is not too quick.
fn large_and_lost(scene: &Scene) {
    let is_there = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
    if values(&scene.source, is_there) != ["1"] {
        return;
    }
    let before = bytes(scene);
    scene.write(
        "INSERT INTO much SELECT n, repeat(md5(n::text), 5) FROM generate_series(1, 40000) n",
    );
    let end = scene.source.flush_lsn().unwrap();
    until("that some of it has arrived", || {
        bytes(scene) > before + (1 << 20) || scene.confirmed() >= end
    });
    let lost = "SELECT pg_terminate_backend(pid) FROM pg_stat_replication";
    scene.source.execute(lost).unwrap();
}

#[test]
fn a_spool_goes_on_from_every_failpoint() {
    let mut scene = Scene::new();
    scene.spool = Some(SpoolConfig {
        folder: scene.lab.folder().join("spool"),
        limit: 16 << 20,
    });
    for scenario in &SCENARIOS {
        let began = std::time::Instant::now();
        let death = Death::at(scenario.at, scenario.before);
        scene.dies(1, death, scenario.provoke);
        if scenario.kills_target {
            scene.target.kill().unwrap();
            scene.target.start().unwrap();
            scene.assert_prefix();
        }
        if !scenario.leaves {
            scene.goes_on(1);
        }
        eprintln!("{}: {:?}", scenario.at.name(), began.elapsed());
    }
    // What the spool has, and the source has not, reaches a target that was away.
    scene.goes_on(3);
    scene.target.kill().unwrap();
    let process = scene.start(Does::Follow, 1, None);
    let end = {
        scene.write("");
        scene.source.flush_lsn().unwrap()
    };
    let confirmed = format!(
        "SELECT count(*) FROM pg_replication_slots WHERE NOT temporary AND \
         confirmed_flush_lsn >= '{end}'"
    );
    until("that the source is told", || {
        values(&scene.source, &confirmed) == ["1"]
    });
    drop(process);
    scene.target.start().unwrap();
    scene.goes_on(1);
}
