//! Server and relay read the same bytes alike: random start packets, replication commands and
//! options go to a server, to a relay in front of it, and to the relay's parsers.
//!
//! Who reads a packet otherwise than the server lets a client in for something else than what
//! the server has checked. `SEED` repeats a run; `LOCKSTEP_FUZZ_SECONDS` makes it long.

mod options;

use std::time::{Duration, Instant};

use crate::relay_support::raw::{Message, Raw, error, framed, packet};
use crate::relay_support::{Relay, publisher, until};
use fastrand::Rng;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::{self, TestLab};
use lockstep_lab::server::{SUPERUSER, Server};
use lockstep_wire::backend::{Backend, Report};
use lockstep_wire::command::Command;
use lockstep_wire::frame::Frame;
use lockstep_wire::startup::Startup;

/// How long each of the parts goes on, unless `LOCKSTEP_FUZZ_SECONDS` says so for all of them.
const TIME: Duration = Duration::from_secs(1);

const PARTS: u32 = 4;

/// Rounds of each part at least, however slow the machine is.
const LEAST: u32 = 50;

/// How long slots are kept in use before they are taken anew: nobody answers for them.
const HELD: Duration = Duration::from_secs(15);

/// Asks for a stream in vain, and without consequences: in the slot's database pgoutput refuses
/// the option.
const IN_VAIN: &str = "(nonsense 'x')";

/// A server, a relay before it, and slots on both sides that nobody can tell apart by anything
/// but their names.
struct Twins {
    server: Server,
    relay: Relay,
    major: u32,
}

/// One side of the twins.
#[derive(Clone, Copy)]
enum Side {
    Server,
    Relay,
}

impl Side {
    /// The side's name in the place of `%` .
    fn text(self, template: &str) -> String {
        template.replace('%', self.name())
    }

    /// What slots of this side begin with.
    fn name(self) -> &'static str {
        match self {
            Self::Server => "twin",
            Self::Relay => "mine",
        }
    }
}

const SIDES: [Side; 2] = [Side::Server, Side::Relay];

impl Twins {
    fn new(lab: &Lab) -> Self {
        let server = publisher(lab);
        server.run(
            "CREATE ROLE plain LOGIN; CREATE ROLE copier LOGIN REPLICATION; CREATE TABLE t ()",
        );
        server.run("CREATE DATABASE other");
        let relay = Relay::start(lab, &server.conninfo(SUPERUSER), &[]);
        let version = "SELECT (current_setting('server_version_num')::int / 10000)::text";
        let major = server.query_text(version).unwrap().unwrap();
        let twins = Self {
            server,
            relay,
            major: major.parse().unwrap(),
        };
        for side in SIDES {
            let mut client = twins.log_in(side);
            for kind in ["idle", "held"] {
                let create = format!(
                    "CREATE_REPLICATION_SLOT {}_{kind} LOGICAL pgoutput",
                    side.name()
                );
                assert_eq!(client.refusal(&create), None);
            }
            drop(client);
            // The relay takes its slots over when they are first asked for.
            for kind in ["idle", "held"] {
                drop(twins.hold(side, kind));
            }
        }
        until("the relay has its slots", || {
            let slots =
                "SELECT count(*)::text FROM pg_replication_slots WHERE slot_name LIKE 'mine%'";
            let left = twins.server.query_text(slots).unwrap().unwrap();
            (left == "0").then_some(())
        });
        twins
    }

    fn connect(&self, side: Side) -> Raw {
        match side {
            Side::Server => Raw::socket(self.server.sockets(), self.server.port()),
            Side::Relay => Raw::tcp(self.relay.port),
        }
    }

    fn log_in(&self, side: Side) -> Raw {
        let parameters = [
            ("user", "copier"),
            ("database", "postgres"),
            ("replication", "database"),
        ];
        self.connect(side).log_in(&packet(&parameters)).unwrap()
    }

    /// Streams a slot as soon as it is free.
    fn hold(&self, side: Side, kind: &str) -> Raw {
        until("the slot is streamed", || {
            let mut client = self.log_in(side);
            let answer = client.query(&format!(
                "START_REPLICATION SLOT {}_{kind} LOGICAL 0/0 (proto_version '1', publication_names 'p')",
                side.name()
            ));
            answer.iter().any(|(tag, _)| *tag == b'W').then_some(client)
        })
    }
}

fn seed() -> u64 {
    for_tests::number("SEED").unwrap_or_else(|| fastrand::u64(..))
}

fn time() -> Duration {
    match std::env::var("LOCKSTEP_FUZZ_SECONDS") {
        Ok(text) => Duration::from_secs(text.parse().unwrap()) / PARTS,
        Err(_) => TIME,
    }
}

/// Runs rounds for the time of one part; how many.
fn rounds(mut round: impl FnMut()) -> u32 {
    let (began, time) = (Instant::now(), time());
    let mut done = 0;
    while done < LEAST || began.elapsed() < time {
        round();
        done += 1;
    }
    done
}

fn pick<'a>(rng: &mut Rng, from: &[&'a str]) -> &'a str {
    from[rng.usize(..from.len())]
}

/// Changes a few characters.
fn mutated(rng: &mut Rng, text: &str, pieces: &[&str]) -> String {
    let mut chars: Vec<String> = text.chars().map(String::from).collect();
    for _ in 0..rng.usize(1..4) {
        let place = rng.usize(..=chars.len());
        match rng.u8(..4) {
            0 if place < chars.len() => drop(chars.remove(place)),
            1 if place < chars.len() => chars[place] = pick(rng, pieces).to_owned(),
            2 if place < chars.len() => {
                let other = match chars[place].chars().next() {
                    Some(c) if c.is_uppercase() => chars[place].to_lowercase(),
                    _ => chars[place].to_uppercase(),
                };
                chars[place] = other;
            }
            _ => chars.insert(place, pick(rng, pieces).to_owned()),
        }
    }
    chars.concat()
}

// ---- Start packets ---------------------------------------------------------

/// What became of a start packet.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Closed,
    Refused(String),
    /// Let in as this role, with this answer to `IDENTIFY_SYSTEM`, and to a stream in vain.
    In(Option<String>, Result<Option<String>, String>, String),
}

/// Values of parameter `replication`.
const REPLICATION: [&str; 18] = [
    "database", "Database", "databas", "true", "T", "yes", "on", "o", "1", "false", "F", "n", "of",
    "off", "0", "", "2", " on",
];

/// Parameters beside those of [`start_body`] that decide whom a session is of.
const MORE_NAMES: [&str; 19] = [
    "options",
    "options",
    "client_encoding",
    "DateStyle",
    "datestyle",
    "application_name",
    "extra_float_digits",
    "_pq_.x",
    "_pq_.y",
    "User",
    "DATABASE",
    "Replication",
    "role",
    "session_authorization",
    "search_path",
    "nonsense",
    "user",
    "database",
    "replication",
];

const MORE_VALUES: [&str; 26] = [
    "UTF8",
    "LATIN1",
    "German",
    "ISO",
    "3",
    "-5",
    "copier",
    "plain",
    "postgres",
    "other",
    "database",
    "false",
    "true",
    "",
    "é",
    "-c role=plain",
    "-c datestyle=German",
    "--client-encoding=LATIN1",
    "-c session_authorization=plain",
    "-c search_path=a\\ b",
    "-c",
    "-d 5",
    "-D /tmp",
    "--database=other",
    "postgres",
    "-c replication=database",
];

fn start_body(rng: &mut Rng) -> Vec<u8> {
    let long = "x".repeat(70);
    let mut body = match rng.u8(..20) {
        0 => vec![0, 3, rng.u8(..2), rng.u8(..5)],
        1 => vec![0, rng.u8(..5), 0, 0],
        _ => vec![0, 3, 0, 0],
    };
    let mut put = |name: &str, value: &str| {
        for text in [name, value] {
            body.extend(text.as_bytes());
            body.push(0);
        }
    };
    let mut parameters = vec![];
    // Most random packets are refused early, so half of them begin well.
    for (name, good, all) in [
        (
            "user",
            &["copier", SUPERUSER][..],
            &["plain", "copier", "nobody", ""][..],
        ),
        (
            "database",
            &["postgres", "other"],
            &["postgres", "other", "", "nowhere", &long],
        ),
        ("replication", &["database", "on", "F"], &REPLICATION),
    ] {
        match rng.u8(..16) {
            0..10 => parameters.push((name, pick(rng, good))),
            10..15 => parameters.push((name, pick(rng, all))),
            _ => {}
        }
    }
    for _ in 0..rng.usize(..3) {
        parameters.push((pick(rng, &MORE_NAMES), pick(rng, &MORE_VALUES)));
    }
    rng.shuffle(&mut parameters);
    for (name, value) in parameters {
        put(name, value);
    }
    body.push(0);
    if rng.u8(..6) == 0 {
        damage(&mut body, rng);
    }
    body
}

fn damage(body: &mut Vec<u8>, rng: &mut Rng) {
    let place = rng.usize(4..body.len());
    match rng.u8(..5) {
        0 => body[place] = rng.u8(..),
        1 => body[place] = 0,
        2 => body.insert(place, 0),
        3 => body.truncate(place),
        _ => body.push(rng.u8(..2)),
    }
}

/// Whether the packet is for another test: the console, or no session.
fn is_elsewhere(body: &[u8]) -> bool {
    match Startup::parse(body) {
        Ok(Startup::Session(session)) => session.database() == b"lockstep",
        Ok(_) => true,
        Err(_) => false,
    }
}

fn outcome(twins: &Twins, side: Side, body: &[u8]) -> Outcome {
    let mut client = twins.connect(side);
    client.send(&framed(body));
    let answer = client.answer();
    if let Some(report) = answer.iter().cloned().find_map(error) {
        return Outcome::Refused(report.sqlstate);
    }
    if !matches!(answer.last(), Some((b'Z', _))) {
        return Outcome::Closed;
    }
    let role =
        answer.iter().find_map(
            |(tag, body)| match Backend::parse(Frame { tag: *tag, body }) {
                Ok(Backend::ParameterStatus {
                    name: "session_authorization",
                    value,
                }) => Some(value.to_owned()),
                _ => None,
            },
        );
    let answer = client.query("IDENTIFY_SYSTEM");
    let identity = match answer.iter().cloned().find_map(error) {
        Some(report) => Err(report.sqlstate),
        None => Ok(database(&answer)),
    };
    let stream = format!(
        "START_REPLICATION SLOT {}_idle LOGICAL 0/0 {IN_VAIN}",
        side.name()
    );
    let refused = client.refusal(&stream).unwrap();
    Outcome::In(role, identity, refused.sqlstate)
}

/// The fourth column of the answer to `IDENTIFY_SYSTEM`.
fn database(answer: &[Message]) -> Option<String> {
    let row = answer.iter().find(|(tag, _)| *tag == b'D').unwrap();
    let Ok(Backend::DataRow(row)) = Backend::parse(Frame {
        tag: row.0,
        body: &row.1,
    }) else {
        panic!("{answer:?}");
    };
    row[3].map(|name| String::from_utf8_lossy(name).into_owned())
}

fn packets_are_read_alike(twins: &Twins, rng: &mut Rng) {
    let (mut let_in, mut twice) = (0, 0);
    let done = rounds(|| {
        let body = start_body(rng);
        if is_elsewhere(&body) {
            return;
        }
        let shown = String::from_utf8_lossy(&body).into_owned();
        let theirs = outcome(twins, Side::Server, &body);
        let ours = outcome(twins, Side::Relay, &body);
        match Startup::parse(&body) {
            Err(error) if error.to_string().contains("given twice") => {
                twice += 1;
                assert_eq!(ours, Outcome::Refused("08P01".to_owned()), "{shown:?}");
            }
            // A server may find something wrong with a value first, or say nothing. It takes
            // any last byte for the end of the packet, which no client relies on.
            Err(_) => {
                let refused = !matches!(theirs, Outcome::In(..)) || body.last() != Some(&0);
                assert!(
                    matches!(ours, Outcome::Refused(_)) && refused,
                    "{shown:?}: {theirs:?}, {ours:?}"
                );
            }
            Ok(_) => {
                assert_eq!(ours, theirs, "{shown:?}");
                let_in += u32::from(matches!(theirs, Outcome::In(..)));
            }
        }
    });
    println!("reads alike: {done} start packets, {let_in} let in, {twice} with a parameter twice");
    assert!(let_in > 0 && twice > 0);
}

// ---- Commands --------------------------------------------------------------

/// Pieces that mean something to somebody.
const PIECES: [&str; 34] = [
    " ", "  ", "\t", "\n", "\r", "\x0b", "\x0c", "\"", "'", "\"\"", "''", ";", "--", "/*", "*/",
    ",", ")", "(", ".", "/", "\\", "$", "0", "9", "f", "A", "_", "é", "\u{a0}", "\u{3000}", "-",
    "SLOT", "WAIT", "E'",
];

fn slot_name(rng: &mut Rng) -> String {
    let long = format!("\"{}é\"", "x".repeat(62));
    let names = [
        "%_held",
        "%_held",
        "%_held",
        "\"%_held\"",
        "\"%_held\"",
        "%_Held",
        "\"%_Held\"",
        "\"%_held \"",
        "\"%\"\"_held\"",
        "%_held$",
        "nothing",
        "\"\"",
        "WAIT",
        "slot",
        "1x",
        "é",
        "\"SLOT\"",
        "%.held",
        "'%_held'",
        &long,
    ];
    pick(rng, &names).to_owned()
}

fn options(rng: &mut Rng, names: &[&str]) -> String {
    let values = [
        "",
        "'1'",
        "'on'",
        "'Off'",
        "'parallel'",
        "'any'",
        "'p'",
        "'\"p\"'",
        "1",
        "0",
        "true",
        "nothing",
        "'nothing'",
        "'use'",
        "'it''s'",
        "\"x\"",
    ];
    let list: Vec<String> = (0..rng.usize(..4))
        .map(|_| format!("{} {}", pick(rng, names), pick(rng, &values)))
        .collect();
    match (list.is_empty(), rng.u8(..4)) {
        (true, 0..3) => String::new(),
        _ => format!("({})", list.join(", ")),
    }
}

fn command(rng: &mut Rng) -> String {
    let text = match rng.u8(..12) {
        0..4 => start_command(rng),
        4..7 => drop_command(rng),
        7..9 => create_command(rng),
        9 => format!("READ_REPLICATION_SLOT {}", slot_name(rng)),
        // Without a slot it would stream.
        10 => format!("START_REPLICATION SLOT {} PHYSICAL 0/0", slot_name(rng)),
        _ => pick(rng, &OTHER_COMMANDS).to_owned(),
    };
    match rng.u8(..3) {
        0 if !text.starts_with("CREATE") => mutated(rng, &text, &PIECES),
        _ => text,
    }
}

const OTHER_COMMANDS: [&str; 6] = [
    "IDENTIFY_SYSTEM",
    "SHOW datestyle",
    "TIMELINE_HISTORY 9",
    "",
    ";",
    "SELECT 1",
];

fn start_command(rng: &mut Rng) -> String {
    let slot = slot_name(rng);
    let positions = [
        "0/0",
        "0/0",
        "A/b",
        "0/12345678",
        "123456789/0",
        "0 / 0",
        "0/",
        "/0",
        "g/0",
        "1/2/3",
        "0/0x",
    ];
    let position = pick(rng, &positions);
    let names = [
        "proto_version",
        "publication_names",
        "Binary",
        "\"streaming\"",
        "two_phase",
        "TWO_PHASE",
    ];
    let options = options(rng, &names);
    format!("START_REPLICATION SLOT {slot} LOGICAL {position} {options}")
}

fn drop_command(rng: &mut Rng) -> String {
    let slot = slot_name(rng);
    let ends = [
        "",
        "",
        ";",
        " ;",
        " WAIT",
        " wait",
        ";;",
        "; SELECT 1",
        " -- x",
        " x",
    ];
    let end = pick(rng, &ends);
    format!("DROP_REPLICATION_SLOT {slot}{end}")
}

fn create_command(rng: &mut Rng) -> String {
    let names = [
        "SNAPSHOT",
        "TWO_PHASE",
        "two_phase",
        "RESERVE_WAL",
        "\"snapshot\"",
        "nonsense",
    ];
    let words = [
        "",
        "NOEXPORT_SNAPSHOT",
        "USE_SNAPSHOT TWO_PHASE",
        "RESERVE_WAL",
        "export_snapshot",
    ];
    let end = match rng.bool() {
        true => options(rng, &names),
        false => pick(rng, &words).to_owned(),
    };
    let kinds = [
        "LOGICAL pgoutput",
        "LOGICAL \"pgoutput\"",
        "PHYSICAL",
        "TEMPORARY LOGICAL x",
        "LOGICAL",
    ];
    let kind = pick(rng, &kinds);
    // Any other name would become a slot.
    format!("CREATE_REPLICATION_SLOT %_held {kind} {end}")
}

/// What an answer says, whichever side's slot it was about.
fn gist(side: Side, answer: &[Message]) -> Result<Vec<u8>, Report> {
    let Some(report) = answer.iter().cloned().find_map(error) else {
        return Ok(answer.iter().map(|(tag, _)| *tag).collect());
    };
    let message = report.message.replace(side.name(), "%");
    let active = message.split(" for PID ").next().unwrap_or_default();
    Err(Report {
        message: active.to_owned(),
        detail: None,
        hint: None,
        ..report
    })
}

/// Whether the command would do something that cannot be compared: wait for ever, stream, make
/// something, or what the relay's slots are known not to answer alike.
fn is_left_out(text: &str) -> bool {
    let held = |slot: &str| slot == "twin_held";
    // Until 2026 servers took two quotes for the end of a name and the beginning of another.
    if text.contains("\"\"") {
        return true;
    }
    match Command::parse(text) {
        Ok(Command::DropReplicationSlot { slot, wait }) => wait && held(&slot),
        Ok(Command::CreateLogicalSlot { slot, .. } | Command::CreatePhysicalSlot { slot, .. }) => {
            !held(&slot)
        }
        Ok(Command::StartReplication { slot, .. }) => !slot.is_some_and(|slot| held(&slot)),
        Ok(Command::AlterReplicationSlot { .. } | Command::Other(_)) => true,
        _ => false,
    }
}

/// The parser has understood what the server has.
fn is_understood(text: &str, answer: &[Message]) {
    let error = answer.iter().cloned().find_map(error);
    let state = error.as_ref().map_or("", |report| &*report.sqlstate);
    let named = |slot: &str, states: &[&str]| {
        let message = error.as_ref().map_or("", |report| &*report.message);
        assert!(
            states.contains(&state) && message.contains(&format!("slot name \"{slot}\""))
                || states.contains(&state) && message.contains(&format!("slot \"{slot}\"")),
            "{text:?}: {slot:?}, {error:?}"
        );
    };
    match Command::parse(text) {
        Ok(Command::DropReplicationSlot { slot, .. } | Command::StartLogical { slot, .. }) => {
            named(&slot, &["42704", "55006"]);
        }
        Ok(Command::CreateLogicalSlot { slot, .. } | Command::CreatePhysicalSlot { slot, .. }) => {
            named(&slot, &["42710"]);
        }
        Ok(Command::StartReplication {
            slot: Some(slot), ..
        }) => named(&slot, &["42704", "55006"]),
        Ok(Command::ReadReplicationSlot { .. }) => {
            assert!(["", "0A000"].contains(&state), "{text:?}: {error:?}");
        }
        // What is no replication command is none to the server.
        Ok(Command::Sql) => {
            let message = error.map_or_else(String::new, |report| report.message);
            assert!(!message.contains("replication slot"), "{text:?}: {message}");
        }
        Ok(_) => assert!(
            ["", "58P01", "42704"].contains(&state),
            "{text:?}: {error:?}"
        ),
        // From 16 on a vertical tab is a blank. The relay passes on what it does not understand.
        Err(_) => assert!(
            ["42601", "22023", "XX000"].contains(&state) || text.contains('\x0b'),
            "{text:?}: {error:?}"
        ),
    }
}

fn commands_are_read_alike(twins: &Twins, rng: &mut Rng) {
    let hold = || (SIDES.map(|side| twins.hold(side, "held")), Instant::now());
    let mut held = hold();
    let mut clients = SIDES.map(|side| twins.log_in(side));
    let mut understood = 0;
    let done = rounds(|| {
        if held.1.elapsed() > HELD {
            drop(std::mem::replace(
                &mut held.0,
                SIDES.map(|side| twins.log_in(side)),
            ));
            held = hold();
        }
        let template = command(rng);
        let theirs = Side::Server.text(&template);
        if is_left_out(&theirs) {
            return;
        }
        let [server, relay] = &mut clients;
        let answer = server.query(&theirs);
        is_understood(&theirs, &answer);
        let ours = Side::Relay.text(&template);
        let relayed = relay.query(&ours);
        assert_eq!(
            gist(Side::Relay, &relayed),
            gist(Side::Server, &answer),
            "{template:?}"
        );
        understood += u32::from(Command::parse(&theirs).is_ok_and(|parsed| parsed != Command::Sql));
    });
    println!("reads alike: {done} commands, {understood} understood");
    assert!(understood > 0);
}

#[test]
fn server_and_relay_read_the_same() {
    let seed = seed();
    println!("SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let lab = TestLab::with_extension().start().unwrap();
    let twins = Twins::new(&lab);
    packets_are_read_alike(&twins, &mut rng);
    commands_are_read_alike(&twins, &mut rng);
    options::options_are_read_alike(&twins, &mut rng);
    options::names_are_read_alike(&twins, &mut rng);
    drop((twins.relay, twins.server));
}
