//! Commands that the relay itself executes: cancel requests end them, and waiters get what is
//! left.

use std::thread;
use std::time::Duration;

use crate::relay_support::raw::{Key, Message, Raw, error, packet};
use crate::relay_support::{Relay, publisher, until};
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{SUPERUSER, Server};
use lockstep_wire::backend::Report;

const CANCELED: &str = "57014";

struct Stage {
    primary: Server,
    relay: Relay,
}

impl Stage {
    fn new(lab: &Lab) -> Self {
        let primary = publisher(lab);
        primary.run("CREATE TABLE t (id int); CREATE PUBLICATION p FOR TABLE t");
        let relay = Relay::start(lab, &primary.conninfo(SUPERUSER), &[]);
        Self { primary, relay }
    }

    fn connect(&self, directly: bool) -> Raw {
        match directly {
            true => Raw::socket(self.primary.sockets(), self.primary.port()),
            false => Raw::tcp(self.relay.port),
        }
    }

    fn log_in(&self, directly: bool) -> (Raw, Key) {
        let parameters = [
            ("user", SUPERUSER),
            ("database", "postgres"),
            ("replication", "database"),
        ];
        let client = self.connect(directly);
        client.log_in_with_key(&packet(&parameters)).ok().unwrap()
    }

    /// A session that streams from a new slot.
    fn stream(&self, directly: bool, slot: &str) -> (Raw, Key) {
        let (mut client, key) = self.log_in(directly);
        let create = format!("CREATE_REPLICATION_SLOT {slot} LOGICAL pgoutput");
        assert_eq!(client.refusal(&create), None);
        begin(&mut client, slot);
        (client, key)
    }

    /// Has `wait` done while its cancel request is sent again and again: one that comes before
    /// the command means nothing.
    fn canceled<T: Send>(&self, directly: bool, key: &Key, wait: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let waiting = scope.spawn(wait);
            while !waiting.is_finished() {
                self.connect(directly).cancel(key);
                thread::sleep(Duration::from_millis(20));
            }
            waiting.join().unwrap()
        })
    }
}

fn begin(client: &mut Raw, slot: &str) {
    let start = format!(
        "START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1', publication_names 'p')"
    );
    let answer = client.query(&start);
    assert_eq!(answer.last().unwrap().0, b'W', "{answer:?}");
}

/// What an answer says is wrong, and whether the session goes on.
fn refused(answer: Vec<Message>) -> (Report, bool) {
    let goes_on = answer.last().is_some_and(|(tag, _)| *tag == b'Z');
    (answer.into_iter().find_map(error).unwrap(), goes_on)
}

#[test]
fn cancel_requests_end_what_the_relay_executes() {
    let lab = TestLab::with_extension().start().unwrap();
    let stage = Stage::new(&lab);
    let (mut streaming, streaming_key) = stage.stream(false, "s");
    let (mut waiter, waiter_key) = stage.log_in(false);

    waiter.send_query("DROP_REPLICATION_SLOT s WAIT");
    let answer = stage.canceled(false, &waiter_key, || waiter.answer());
    let (report, goes_on) = refused(answer);
    assert_eq!((&*report.sqlstate, goes_on), (CANCELED, true), "{report:?}");
    assert_eq!(waiter.refusal("IDENTIFY_SYSTEM"), None);

    let wrong = Key {
        secret: streaming_key.secret.iter().map(|byte| !byte).collect(),
        ..streaming_key.clone()
    };
    stage.connect(false).cancel(&wrong);
    let refused_still = waiter.refusal("DROP_REPLICATION_SLOT s").unwrap();
    assert_eq!(refused_still.sqlstate, "55006", "{refused_still:?}");

    // As a walsender's, with an error that the session survives.
    let (mut direct, direct_key) = stage.stream(true, "direct");
    let of_server = refused(stage.canceled(true, &direct_key, || direct.answer()));
    let of_relay = refused(stage.canceled(false, &streaming_key, || streaming.answer()));
    assert_eq!(of_relay.0.sqlstate, CANCELED);
    let said = |(report, goes_on): (Report, bool)| {
        (report.severity, report.sqlstate, report.message, goes_on)
    };
    assert_eq!(said(of_relay), said(of_server));
    begin(&mut streaming, "s");
    drop((streaming, waiter, direct, stage.relay, stage.primary));
}

#[test]
fn one_of_those_who_wait_drops_the_slot() {
    let lab = TestLab::with_extension().start().unwrap();
    let stage = Stage::new(&lab);
    for round in 0..4 {
        let slot = format!("s{round}");
        let (streaming, _) = stage.stream(false, &slot);
        let mut waiters: Vec<_> = (0..8).map(|_| stage.log_in(false).0).collect();
        for waiter in &mut waiters {
            waiter.send_query(&format!("DROP_REPLICATION_SLOT {slot} WAIT"));
        }
        drop(streaming);
        let answers = waiters.iter_mut().map(Raw::answer);
        let codes: Vec<_> = answers
            .map(|answer| answer.into_iter().find_map(error))
            .map(|refused| refused.map(|report| report.sqlstate))
            .collect();
        let dropped = codes.iter().filter(|code| code.is_none()).count();
        assert_eq!(dropped, 1, "{codes:?}");
        let others = codes.iter().flatten();
        assert!(others.clone().all(|code| code == "42704"), "{codes:?}");
    }
    until("the sessions are over", || {
        let streaming = stage.relay.console(&lab, "SHOW SLOTS");
        streaming.is_empty().then_some(())
    });
    drop((stage.relay, stage.primary));
}
