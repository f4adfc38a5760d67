//! Lag of a private standby, as the samplers see it.

use lockstep_bench::sampler::LagWatch;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::{Settings, settings_of};
use lockstep_lab::workload::Workload;

fn small() -> Settings {
    settings_of([("shared_buffers", "16MB"), ("max_connections", "20")])
}

#[test]
fn lag_is_seen_when_replay_is_paused_and_gone_when_it_goes_on() {
    let lab = TestLab::stock().pinned().start().unwrap();
    let primary = lab.primary("primary", None, &small()).unwrap();
    let mut standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
    lab.create_app_role(&primary).unwrap();
    lab.load_data(&primary, 1).unwrap();
    standby.catch_up(&primary).unwrap();

    let watch = LagWatch::start(&primary, &mut standby, lab.pinning()).unwrap();
    let mut load = lab
        .start_load(&primary, Side::Primary, Workload::TpcB, 2, 1)
        .unwrap();
    standby.run("SELECT pg_wal_replay_pause()");
    let lag = || watch.newest().map_or(0.0, |point| point.ms);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(240);
    while lag() < 500.0 || load.newest_tps().is_none() {
        assert!(std::time::Instant::now() < deadline, "lag {}", lag());
        load.check().unwrap();
        std::thread::yield_now();
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    drop(load);
    standby.run("SELECT pg_wal_replay_resume()");
    standby.catch_up(&primary).unwrap();
    while lag() > 0.0 {
        assert!(std::time::Instant::now() < deadline, "lag {}", lag());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let (primary_samples, standby_samples) = watch.finish().unwrap();
    assert!(primary_samples.len() > 2 && standby_samples.len() > 2);
    assert!(primary_samples.windows(2).all(|pair| match pair {
        [a, b] => a.at < b.at && a.lsn <= b.lsn,
        _ => false,
    }));
}
