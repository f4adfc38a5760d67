//! Creations and drops that are killed at random failpoints, and their servers at random moments.

use std::time::Duration;

use fastrand::Rng;
use lockstep_lab::for_tests::number;
use lockstep_lab::server::Server;
use lockstep_replica::state::failpoint;

use super::Scene;
use super::process::{Death, Does};
use crate::values;

/// Does something to its end: the same again after each kill, and at last without any.
fn done_somehow(rng: &mut Rng, scene: &mut Scene, does: Does, reached: &[&str]) -> u32 {
    let is_reached = |name: &str| reached.iter().any(|begin| name.starts_with(begin));
    let all: Vec<_> = (failpoint::all())
        .filter(|at| is_reached(at.name()))
        .collect();
    let mut killed = 0;
    for _ in 0..rng.u32(1..6) {
        let death = Death::at(all[rng.usize(0..all.len())], 0);
        let mut process = scene.start(does, 1, (rng.u8(0..4) > 0).then_some(death));
        let whom: Option<&mut Server> = match rng.u8(0..4) {
            0 => Some(&mut scene.source),
            1 => Some(&mut scene.target),
            _ => None,
        };
        if let Some(server) = whom {
            std::thread::sleep(Duration::from_millis(rng.u64(0..1000)));
            server.kill().unwrap();
            server.start().unwrap();
            killed += 1;
        }
        if process.succeeds() {
            return killed;
        }
        killed += u32::from(process.died_at() == death.at.name());
        if does == Does::Create {
            scene.write("");
        }
    }
    let done = scene.start(does, 1, None).succeeds();
    assert!(done, "{}", scene.said());
    killed
}

#[test]
fn a_creation_and_a_drop_end_whoever_is_killed() {
    let seed = number("SEED").unwrap_or(1);
    let rounds = number("LOCKSTEP_REPLICA_ROUNDS").unwrap_or(1);
    let mut rng = Rng::with_seed(seed);
    let mut scene = Scene::bare();
    let mut killed = 0;
    for round in 0..rounds {
        killed += done_somehow(&mut rng, &mut scene, Does::Create, &["create-", "copy-"]);
        let constraints = "SELECT count(*) FROM pg_constraint WHERE contype IN ('p', 'u')
            AND connamespace = 'public'::regnamespace";
        assert_eq!(
            values(&scene.target, constraints),
            values(&scene.source, constraints)
        );
        scene.goes_on(1);
        killed += done_somehow(&mut rng, &mut scene, Does::Drop, &["drop-"]);
        for (server, what) in [
            (&scene.source, "pg_replication_slots"),
            (&scene.source, "pg_publication"),
            (&scene.target, "pg_replication_origin"),
        ] {
            let count = format!("SELECT count(*) FROM {what}");
            assert_eq!(values(server, &count), ["0"], "{what} {}", scene.said());
        }
        scene
            .target
            .execute("DROP DATABASE copy WITH (FORCE)")
            .unwrap();
        scene.target.execute("CREATE DATABASE copy").unwrap();
        eprintln!("seed {seed}, round {round}: killed {killed} times so far");
    }
}
