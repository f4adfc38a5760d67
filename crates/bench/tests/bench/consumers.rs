//! Sinks and subscriptions on a real primary.

use std::thread;
use std::time::{Duration, Instant};

use lockstep_bench::relay::beat::Beat;
use lockstep_bench::relay::subscriber::{Cores, Subscriber};
use lockstep_bench::relay::walsenders::Walsenders;
use lockstep_bench::relay::{Sink, publisher};
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::progress::Micros;
use lockstep_lab::server::Server;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(120);

fn primary(lab: &Lab) -> Server {
    let mut settings = publisher::settings(4);
    settings.insert("shared_buffers".to_owned(), "32MB".to_owned());
    let mut primary = lab.primary("primary", None, &settings).unwrap();
    publisher::prepare(lab, &mut primary).unwrap();
    publisher::refresh(lab, &primary, 1).unwrap();
    primary
}

/// The only walsender, once that of the session which has made the slot has ended.
fn only_walsender(primary: &Server) -> Walsenders {
    let end = Instant::now() + LONG;
    loop {
        let found = Walsenders::of(primary);
        if found.count() == 1 {
            return found;
        }
        assert!(Instant::now() < end, "{} walsenders", found.count());
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_sink_gets_everything_and_goes_on_where_it_stopped() {
    let lab = TestLab::stock().pinned().start().unwrap();
    let primary = primary(&lab);
    let endpoint = publisher::endpoint(&primary);
    let publication = publisher::PUBLICATION;
    let start = |slot, goal| Sink::start(&endpoint, slot, publication, goal, lab.pinning());

    endpoint.create_slot("a").unwrap();
    let sink = start("a", None).unwrap();
    let began = only_walsender(&primary);
    let transactions = publisher::run_transactions(&lab, &primary, 2, 101).unwrap();
    assert_eq!(transactions, 102);
    // Longer than a read, and a row longer than the buffer.
    primary.run(
        "INSERT INTO large SELECT n, 1, repeat('x', 500) FROM generate_series(1, 5000) AS n; \
             ALTER TABLE large ALTER v SET STORAGE EXTERNAL; \
             INSERT INTO large VALUES (0, 1, repeat('x', 3000000))",
    );
    sink.set_goal(publisher::mark(&primary).unwrap());
    sink.await_goal(LONG).unwrap();
    let delays = sink.delays();
    assert_eq!(delays.len(), transactions + 2);
    // Of this machine's clock: neither before its commit nor days after.
    assert!(delays.percentile_ms(100.0).unwrap() < LONG.as_secs_f64() * 1e3);
    let cost = Walsenders::of(&primary).since(&began);
    assert!(cost.read_calls_bytes > 3_000_000, "{cost:?}");
    let counts = sink.stop().unwrap();
    assert_eq!(counts.rows, transactions * 4 + 5_001 + 1);
    assert_eq!(counts.commits, transactions + 2);
    assert!(counts.bytes > 5_500_000);

    // A backlog while it is stopped.
    primary.run("INSERT INTO large SELECT n, 1, 'x' FROM generate_series(10001, 10100) AS n");
    let goal = publisher::mark(&primary).unwrap();
    let sink = start("a", Some(goal)).unwrap();
    sink.await_goal(LONG).unwrap();
    assert!(sink.position() > goal);
    assert_eq!(sink.counts().rows, 101);
    // The goal may be behind it already.
    sink.set_goal(goal);
    sink.await_goal(Duration::ZERO).unwrap();
    drop(sink);

    let error = start("nothing", None).unwrap_err().to_string();
    assert!(error.contains("\"nothing\" does not exist"), "{error}");
    publisher::drop_slots(&primary).unwrap();
    assert!(endpoint.drop_slot("a").is_err());
}

#[test]
fn a_sink_tells_that_its_server_has_gone() {
    let lab = TestLab::stock().pinned().start().unwrap();
    let mut primary = primary(&lab);
    let endpoint = publisher::endpoint(&primary);
    endpoint.create_slot("a").unwrap();
    let sink = Sink::start(&endpoint, "a", publisher::PUBLICATION, None, lab.pinning()).unwrap();
    sink.check().unwrap();
    primary.kill().unwrap();
    let error = sink.await_goal(LONG).unwrap_err().to_string();
    assert!(error.contains("slot \"a\""), "{error}");
    assert!(sink.check().is_err());
    assert!(sink.stop().is_err());
}

#[test]
fn subscriptions_are_as_late_as_their_rows_say() {
    let lab = TestLab::stock().pinned().start().unwrap();
    let primary = primary(&lab);
    let subscriber = Subscriber::start(&lab, 2, 1, Cores::Standbys).unwrap();
    subscriber
        .subscribe(&publisher::endpoint(&primary))
        .unwrap();
    let from = Micros::now();
    let beat = Beat::start(&primary, lab.pinning());
    let transactions = publisher::run_transactions(&lab, &primary, 2, 100).unwrap();
    beat.stop().unwrap();
    publisher::mark(&primary).unwrap();
    subscriber.await_mark(&primary).unwrap();
    let delays = subscriber.delays(&primary, from, Micros::now()).unwrap();
    // Both subscriptions, and the mark at least.
    assert!(delays.len() >= 2 && delays.len() % 2 == 0);
    assert!(delays.percentile_ms(100.0).unwrap() < LONG.as_secs_f64() * 1e3);
    assert_eq!(subscriber.rows("pgbench_history").unwrap(), transactions);

    // What a stopped one lacks counts as late.
    subscriber.disable().unwrap();
    let from = Micros::now();
    publisher::mark(&primary).unwrap();
    let late = subscriber.delays(&primary, from, Micros::now()).unwrap();
    assert_eq!(late.len(), 2);
    subscriber.enable().unwrap();
    subscriber.await_mark(&primary).unwrap();
    assert!(subscriber.apply_cpu_s().unwrap() >= 0.0);
    subscriber.remove().unwrap();
    publisher::drop_slots(&primary).unwrap();
}
