//! `lockstep relay status` against the console of a relay that only pretends to relay.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::Arc;

use lockstep_lab::for_tests::free_port;
use lockstep_relay::console::{Console, Rights};
use lockstep_relay::stats::{GroupStat, GroupState, Reset, SlotStat, Snapshot, Source};
use lockstep_wire::backend::{Backend, Column, TEXT};
use lockstep_wire::frame;
use lockstep_wire::frontend::Frontend;
use lockstep_wire::startup::{self, Startup};

/// A relay with what a test gives it.
struct Relay(Snapshot);

impl Source for Relay {
    fn snapshot(&self) -> Snapshot {
        self.0.clone()
    }
    fn config(&self) -> Vec<(String, String, String)> {
        Vec::new()
    }
    fn reset(&self, _: Option<&str>) -> Reset {
        Reset::NoSuchSlot
    }
    fn drop_slot(&self, _: &str) -> Result<(), (&'static str, String)> {
        Ok(())
    }
    fn terminate(&self, _: u64) -> Result<(), String> {
        Ok(())
    }
    fn reload(&self) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }
    fn admin_role(&self) -> Option<String> {
        None
    }
}

fn snapshot(state: GroupState) -> Snapshot {
    let group = |name: &str, state, reason: &str| GroupStat {
        name: name.to_owned(),
        upstream_slot: format!("lockstep_{name}"),
        database: "app".to_owned(),
        state,
        reason: reason.to_owned(),
        primary: "db1:5432".to_owned(),
        received: 0x40.into(),
        committed: 0x38.into(),
        durable: 0x30.into(),
        transactions: 12,
        ..GroupStat::default()
    };
    let slot = SlotStat {
        name: "sub".to_owned(),
        group: "orders".to_owned(),
        active_pid: Some(4711),
        sent: 0x38.into(),
        written: 0x34.into(),
        applied: 0x2c.into(),
        confirmed: 0x28.into(),
        behind_bytes: 99,
        cache_hit: 3,
        cache_miss: 1,
        ..SlotStat::default()
    };
    Snapshot {
        groups: vec![
            group("orders", GroupState::Streaming, ""),
            group("other", state, "the spool is full"),
        ],
        slots: vec![
            slot.clone(),
            SlotStat {
                name: "idle".to_owned(),
                active_pid: None,
                cache_hit: 0,
                cache_miss: 0,
                ..slot
            },
        ],
        clients: Vec::new(),
    }
}

/// What answers a query.
type Answer = Box<dyn Fn(&str) -> Vec<u8> + Send>;

fn console(snapshot: Snapshot, monitor: bool) -> Answer {
    let console = Console::new(Arc::new(Relay(snapshot)));
    let rights = Rights {
        user: "joe".to_owned(),
        superuser: false,
        monitor,
        admin: false,
    };
    Box::new(move |query| console.answer(&rights, query))
}

fn take(stream: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// Serves one session, and says how it began.
fn serve(stream: &mut TcpStream, answer: &Answer) -> startup::Session {
    let session = loop {
        let header = take(stream, startup::HEADER).try_into().unwrap();
        let body = take(stream, startup::length(header).unwrap());
        match Startup::parse(&body).unwrap() {
            Startup::Session(session) => break session,
            _ => stream.write_all(b"N").unwrap(),
        }
    };
    let mut out = Vec::new();
    Backend::AuthenticationOk.encode(&mut out);
    loop {
        Backend::ReadyForQuery(b'I').encode(&mut out);
        stream.write_all(&out).unwrap();
        out.clear();
        let header = take(stream, frame::HEADER).try_into().unwrap();
        let (tag, length) = frame::header(header, frame::FRONTEND_LIMIT).unwrap();
        let body = take(stream, length);
        match Frontend::parse(frame::Frame { tag, body: &body }).unwrap() {
            Frontend::Query(query) => out.extend(answer(query)),
            Frontend::Terminate => return session,
            other => panic!("{other:?}"),
        }
    }
}

/// Runs `lockstep relay status` against an answer.
fn status(answer: Answer, more: &[&str]) -> Output {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        serve(&mut stream, &answer)
    });
    let output = lockstep(&format!("port={port} user=joe dbname=other"), more);
    let session = serving.join().unwrap();
    assert_eq!(session.get("database"), Some(&b"lockstep"[..]));
    assert_eq!(session.get("user"), Some(&b"joe"[..]));
    assert_eq!(
        session.text("application_name").as_deref(),
        Some("lockstep status")
    );
    output
}

fn lockstep(connect: &str, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    command.args(["relay", "status", "--connect", connect]);
    command.args(more);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("PG")) {
            command.env_remove(name);
        }
    }
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn tables_show_groups_slots_and_hit_rates() {
    let output = status(console(snapshot(GroupState::Streaming), true), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(
        text(&output.stdout),
        "\
group        state   database              slot    primary   received lsn   durable lsn   transactions
orders   streaming        app   lockstep_orders   db1:5432           0/40          0/30             12
other    streaming        app    lockstep_other   db1:5432           0/40          0/30             12

name    group   active pid   sent lsn   confirmed lsn   behind bytes   cache hit   cache miss   hit rate
sub    orders         4711       0/38            0/28             99           3            1     75.00%
idle   orders            -       0/38            0/28             99           0            0          -
"
    );
}

#[test]
fn json_has_everything_with_numbers_as_numbers() {
    let output = status(
        console(snapshot(GroupState::Streaming), true),
        &["--output", "json"],
    );
    assert_eq!(output.status.code(), Some(0));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["upstream"][0]["transactions"], 12);
    assert_eq!(found["upstream"][0]["reason"], serde_json::Value::Null);
    assert_eq!(found["upstream"][1]["group"], "other");
    assert_eq!(
        found["slots"],
        serde_json::json!([
            {
                "name": "sub", "database": "", "group": "orders", "active_pid": 4711,
                "sent_lsn": "0/38", "confirmed_lsn": "0/28", "behind_bytes": 99,
                "cache_hit": 3, "cache_miss": 1, "hit_rate": "75.00%",
                "written_lsn": "0/34", "applied_lsn": "0/2C", "reason": null,
            },
            {
                "name": "idle", "database": "", "group": "orders", "active_pid": null,
                "sent_lsn": "0/38", "confirmed_lsn": "0/28", "behind_bytes": 99,
                "cache_hit": 0, "cache_miss": 0, "hit_rate": null,
                "written_lsn": "0/34", "applied_lsn": "0/2C", "reason": null,
            },
        ])
    );
}

#[test]
fn a_group_that_does_not_stream_is_exit_code_6() {
    for more in [&[][..], &["--output", "json"]] {
        let output = status(console(snapshot(GroupState::Waiting), true), more);
        assert_eq!(output.status.code(), Some(6));
        // What was found is shown all the same.
        assert!(text(&output.stdout).contains("lockstep_other"));
        assert_eq!(
            text(&output.stderr),
            "lockstep: group other does not stream, it is waiting: the spool is full\n"
        );
    }
}

#[test]
fn refusals_and_strangers_are_exit_code_3() {
    let refused = status(console(snapshot(GroupState::Streaming), false), &[]);
    let stranger = status(
        Box::new(|_| {
            let mut out = Vec::new();
            Backend::RowDescription(vec![Column {
                name: "x",
                kind: TEXT,
            }])
            .encode(&mut out);
            Backend::DataRow(vec![Some(b"1")]).encode(&mut out);
            Backend::CommandComplete("SHOW").encode(&mut out);
            out
        }),
        &[],
    );
    let nobody = lockstep(&format!("port={} user=joe", free_port().unwrap()), &[]);
    for (output, words) in [
        (
            refused,
            "the relay refuses: permission denied: SHOW needs the rights of pg_monitor (On the primary: GRANT pg_monitor TO joe)",
        ),
        (stranger, "of another version"),
        (nobody, "127.0.0.1"),
    ] {
        let line = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{line}");
        assert!(line.contains(words), "{line}");
        assert!(output.stdout.is_empty());
    }
}
