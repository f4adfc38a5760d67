//! Apply dies at each failpoint, and goes on.

use lockstep_apply::failpoint::{
    APPLY_AHEAD, APPLY_BLOCKED, APPLY_COMMITTED, APPLY_ENDING, APPLY_MOVED, APPLY_OPENED,
    APPLY_PART, APPLY_PAUSED, APPLY_REFUSED, APPLY_RESUMED, APPLY_TAKES_OVER, APPLY_TOLD,
    APPLY_TRUNCATED, APPLY_UNTOLD, APPLY_WRITTEN,
};
use lockstep_client::Connection;
use lockstep_replica::state::failpoint::FOLLOW_TAKEN;
use lockstep_spool::failpoint::Failpoint;

use super::Scene;
use super::process::{Death, Does};
use crate::apply_lab::until;
use crate::{on, sql, state_of, values};

/// How apply comes to a failpoint.
pub struct Scenario {
    pub at: Failpoint,
    before: u32,
    writers: usize,
    /// Happens again and again until it has died.
    provoke: fn(&Scene),
    /// What has to be done before it can go on.
    mend: fn(&Scene),
    /// The target is killed after it, which may lose commits that are not on disk.
    kills_target: bool,
}

/// A scenario with one writer, and nothing to mend.
const PLAIN: Scenario = Scenario {
    at: APPLY_WRITTEN,
    before: 0,
    writers: 1,
    provoke: write,
    mend: nothing,
    kills_target: false,
};

/// In this order: each finds what the one before has left.
pub const SCENARIOS: [Scenario; 19] = [
    Scenario {
        at: FOLLOW_TAKEN,
        ..PLAIN
    },
    Scenario {
        at: APPLY_OPENED,
        ..PLAIN
    },
    PLAIN,
    Scenario {
        before: 3,
        writers: 3,
        provoke: burst,
        ..PLAIN
    },
    Scenario {
        at: APPLY_PART,
        provoke: large,
        ..PLAIN
    },
    Scenario {
        at: APPLY_COMMITTED,
        kills_target: true,
        ..PLAIN
    },
    Scenario {
        at: APPLY_AHEAD,
        writers: 3,
        provoke: burst,
        ..PLAIN
    },
    Scenario {
        at: APPLY_COMMITTED,
        before: 4,
        writers: 3,
        provoke: burst,
        kills_target: true,
        ..PLAIN
    },
    // There are origins of three.
    Scenario {
        at: APPLY_TAKES_OVER,
        provoke: nothing,
        ..PLAIN
    },
    Scenario {
        at: APPLY_TRUNCATED,
        provoke: truncate,
        ..PLAIN
    },
    Scenario {
        at: APPLY_MOVED,
        provoke: write_nothing,
        kills_target: true,
        ..PLAIN
    },
    Scenario {
        at: APPLY_UNTOLD,
        before: 2,
        ..PLAIN
    },
    Scenario {
        at: APPLY_TOLD,
        before: 2,
        kills_target: true,
        ..PLAIN
    },
    Scenario {
        at: APPLY_REFUSED,
        provoke: misfit,
        mend: fit,
        ..PLAIN
    },
    Scenario {
        at: APPLY_BLOCKED,
        provoke: misfit,
        mend: fit,
        ..PLAIN
    },
    Scenario {
        at: APPLY_ENDING,
        provoke: pause,
        mend: resume,
        ..PLAIN
    },
    Scenario {
        at: APPLY_PAUSED,
        provoke: pause,
        mend: resume,
        ..PLAIN
    },
    Scenario {
        at: APPLY_RESUMED,
        provoke: pause_and_resume,
        ..PLAIN
    },
    Scenario {
        at: APPLY_WRITTEN,
        writers: 2,
        provoke: burst,
        kills_target: true,
        ..PLAIN
    },
];

fn nothing(_: &Scene) {}

fn write(scene: &Scene) {
    scene.write("");
}

/// WAL that has nothing for the replica.
fn write_nothing(scene: &Scene) {
    let sql = "SELECT pg_logical_emit_message(false, 'of', 'nobody')";
    scene.source.execute(sql).unwrap();
}

/// Transactions that are worth a writer each.
fn burst(scene: &Scene) {
    for _ in 0..6 {
        scene.write("INSERT INTO much SELECT n, 'v' FROM generate_series(1, 600) n");
    }
}

/// More than the process may keep in memory.
pub fn large(scene: &Scene) {
    scene.write(
        "INSERT INTO much SELECT n, repeat(md5(n::text), 5) FROM generate_series(1, 8000) n",
    );
}

fn truncate(scene: &Scene) {
    scene.write("TRUNCATE emptied; INSERT INTO emptied SELECT generate_series(1, 3)");
}

/// What comes next finds its key taken.
fn misfit(scene: &Scene) {
    let taken = format!("INSERT INTO k (id, c) VALUES ({}, -1)", scene.next());
    on(&scene.target, &taken);
    scene.write("");
}

fn fit(scene: &Scene) {
    let free = "DELETE FROM k WHERE c = -1";
    on(&scene.target, free);
}

fn set_paused(scene: &Scene, paused: bool) {
    let mut state = state_of(&scene.target);
    assert!(state.set_paused("r", paused).unwrap());
}

fn pause(scene: &Scene) {
    scene.write("");
    if scene.is_applied_to() {
        set_paused(scene, true);
    }
}

fn resume(scene: &Scene) {
    set_paused(scene, false);
}

fn pause_and_resume(scene: &Scene) {
    let is_paused = "SELECT paused AND apply_state = 'paused' FROM lockstep.replica";
    if scene.is_applied_to() {
        pause(scene);
    } else if values(&scene.target, is_paused) == ["t"] {
        resume(scene);
    }
}

#[test]
fn apply_goes_on_from_every_failpoint() {
    let mut scene = Scene::new();
    for scenario in &SCENARIOS {
        let began = std::time::Instant::now();
        let death = Death::at(scenario.at, scenario.before);
        scene.dies(scenario.writers, death, scenario.provoke);
        if scenario.kills_target {
            scene.target.kill().unwrap();
            scene.target.start().unwrap();
            scene.assert_prefix();
        }
        (scenario.mend)(&scene);
        scene.goes_on(scenario.writers);
        eprintln!("{}: {:?}", scenario.at.name(), began.elapsed());
    }
}

/// Keeps commits of the log waiting.
const KEEPS: &str = "CREATE FUNCTION keeps() RETURNS trigger LANGUAGE plpgsql AS \
      'BEGIN PERFORM pg_catalog.pg_advisory_xact_lock(77); RETURN NULL; END'; \
    CREATE CONSTRAINT TRIGGER keeps AFTER INSERT ON log DEFERRABLE INITIALLY DEFERRED \
      FOR EACH ROW EXECUTE FUNCTION keeps(); ALTER TABLE log ENABLE ALWAYS TRIGGER keeps";

#[test]
fn a_commit_that_ends_after_its_process_is_not_made_again() {
    for writers in [1, 3] {
        let mut scene = Scene::new();
        on(&scene.target, KEEPS);
        let mut keeper: Connection = sql(&scene.target);
        keeper.execute("SELECT pg_advisory_lock(77)").unwrap();
        let death = Death {
            while_waiting: true,
            ..Death::at(APPLY_WRITTEN, 0)
        };
        scene.dies(writers, death, burst);
        assert_eq!(values(&scene.target, "SELECT count(*) FROM log"), ["0"]);
        let _process = scene.start(Does::Follow, writers, None);
        until("that its origin is in use", || {
            let error = "SELECT apply_error FROM lockstep.replica";
            values(&scene.target, error)[0].contains("is already active")
        });
        assert_eq!(values(&scene.target, "SELECT count(*) FROM log"), ["0"]);
        drop(keeper);
        scene.write("");
        scene.assert_applied();
    }
}
