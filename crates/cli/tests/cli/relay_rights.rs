//! What a client may do through `lockstep relay`: what the primary let it in for, and nothing
//! that it only says.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::relay_support::raw::{Raw, packet};
use crate::relay_support::{
    Relay, disable, logical, publisher, subscribe, table_on_both, until, until_answer, until_same,
};
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{SUPERUSER, Server};
use lockstep_wire::backend::Report;

/// A subscription through a relay, and a role with LOGIN alone.
struct Stage {
    primary: Server,
    subscriber: Server,
    relay: Relay,
}

impl Stage {
    fn new(lab: &Lab) -> Self {
        let (primary, subscriber) = table_on_both(lab, "t (id int PRIMARY KEY, v text)");
        primary.run(
            "INSERT INTO t VALUES (0, 'first'); \
                 CREATE ROLE plain LOGIN; CREATE ROLE copier LOGIN REPLICATION",
        );
        primary.run("CREATE DATABASE other");
        let relay = Relay::start(lab, &primary.conninfo(SUPERUSER), &[]);
        subscribe(&subscriber, "s", &relay.conninfo(), "p");
        until_same(&primary, &subscriber, "t");
        until("the slot is the relay's", || {
            let slots = "SELECT count(*)::text FROM pg_replication_slots WHERE slot_name = 's'";
            let at_primary = primary.query_text(slots).unwrap().unwrap();
            (at_primary == "0").then_some(())
        });
        Self {
            primary,
            subscriber,
            relay,
        }
    }

    /// Takes the subscriber away until its slot is free.
    fn free_the_slot(&self, lab: &Lab) {
        disable(lab, &self.subscriber, "s", &self.relay);
    }

    /// The slot is still the subscriber's, and nothing was lost.
    fn goes_on(self) {
        self.subscriber.run("ALTER SUBSCRIPTION s ENABLE");
        self.primary.run("INSERT INTO t VALUES (1, 'second')");
        until_same(&self.primary, &self.subscriber, "t");
        drop((self.subscriber, self.relay, self.primary));
    }
}

const START: &str =
    "START_REPLICATION SLOT s LOGICAL 0/0 (proto_version '1', publication_names 'p')";

#[test]
fn a_role_that_may_not_replicate_gets_no_slot() {
    let lab = TestLab::with_extension().start().unwrap();
    let stage = Stage::new(&lab);
    stage.free_the_slot(&lab);
    let port = stage.relay.port;

    // A server takes the last value of a parameter.
    for parameters in [
        &[
            ("user", "plain"),
            ("database", "postgres"),
            ("replication", "database"),
            ("replication", "false"),
        ][..],
        &[
            ("user", SUPERUSER),
            ("user", "plain"),
            ("database", "postgres"),
        ],
        &[("user", "plain"), ("a.b", "1"), ("a.b", "2")],
    ] {
        match Raw::tcp(port).log_in(&packet(parameters)) {
            Err(report) => assert_eq!(
                (&*report.severity, &*report.sqlstate),
                ("FATAL", "08P01"),
                "{parameters:?}: {report:?}"
            ),
            Ok(mut client) => {
                let dropped = client.refusal("DROP_REPLICATION_SLOT s");
                panic!("{parameters:?}: let in; DROP_REPLICATION_SLOT: {dropped:?}");
            }
        }
    }
    // No session of replication: a server takes the commands for SQL.
    for more in [
        &[][..],
        &[("replication", "false")],
        &[("replication", "n")],
    ] {
        let mut parameters = vec![("user", "plain"), ("database", "postgres")];
        parameters.extend(more);
        let mut client = Raw::tcp(port).log_in(&packet(&parameters)).ok().unwrap();
        for command in [START, "DROP_REPLICATION_SLOT s", "IDENTIFY_SYSTEM"] {
            let report = client.refusal(command).unwrap();
            assert_eq!(report.sqlstate, "42601", "{command}: {report:?}");
        }
    }
    for replication in ["database", "true"] {
        let parameters = [
            ("user", "plain"),
            ("database", "postgres"),
            ("replication", replication),
        ];
        let refused = Raw::tcp(port).log_in(&packet(&parameters)).err().unwrap();
        assert_eq!(refused.sqlstate, "42501", "{refused:?}");
    }
    stage.goes_on();
}

#[test]
fn a_slot_is_streamed_in_its_own_database_only() {
    let lab = TestLab::with_extension().start().unwrap();
    let stage = Stage::new(&lab);
    stage.free_the_slot(&lab);
    let port = stage.relay.port;
    let log_in = |parameters: &[(&str, &str)]| {
        Raw::tcp(port)
            .log_in(&packet(parameters))
            .unwrap_or_else(|report| panic!("{parameters:?}: {report:?}"))
    };
    let mut other = log_in(&[
        ("user", "copier"),
        ("database", "other"),
        ("replication", "database"),
    ]);
    assert_eq!(other.refusal(START).unwrap().sqlstate, "55000");
    // The database defaults to the role's name, and is cut like a name.
    stage.primary.run("CREATE DATABASE copier");
    let mut by_default = log_in(&[("user", "copier"), ("replication", "database")]);
    assert_eq!(by_default.refusal(START).unwrap().sqlstate, "55000");
    let mut physical = log_in(&[("user", "copier"), ("replication", "on")]);
    assert_eq!(physical.refusal(START).unwrap().sqlstate, "55000");

    // A command is one only if the server takes it for one.
    let mut right = log_in(&[
        ("user", "copier"),
        ("database", "postgres"),
        ("replication", "database"),
    ]);
    for command in [
        "drop_replication_slot s",
        "DROP_REPLICATION_SLOT SLOT",
        "DROP_REPLICATION_SLOT s; SELECT 1",
        "DROP_REPLICATION_SLOT s WAIT WAIT",
        "/**/ DROP_REPLICATION_SLOT s",
        "START_REPLICATION SLOT s LOGICAL 0 / 0 (proto_version '1', publication_names 'p')",
    ] {
        let report = right.refusal(command).unwrap();
        assert_eq!(report.sqlstate, "42601", "{command}: {report:?}");
    }
    let streamed = right.query(START);
    assert_eq!(streamed.last().unwrap().0, b'W', "{streamed:?}");
    drop((other, by_default, physical, right));
    until("the slot is free", || {
        let pids = "SELECT active_pid FROM lockstep_stat_logical_wal_cache()";
        stage.relay.console(&lab, pids).is_empty().then_some(())
    });
    stage.goes_on();
}

/// To a session of physical replication the relay's slots are what a server's own are.
#[test]
fn sessions_of_physical_replication_meet_the_relays_slots() {
    let lab = TestLab::with_extension().start().unwrap();
    let stage = Stage::new(&lab);
    stage
        .primary
        .run("SELECT pg_create_logical_replication_slot('own', 'pgoutput')");
    let parameters = packet(&[("user", "copier"), ("replication", "true")]);
    let folder = stage.primary.sockets();
    let mut direct = Raw::socket(folder, stage.primary.port())
        .log_in(&parameters)
        .ok()
        .unwrap();
    let mut relayed = Raw::tcp(stage.relay.port).log_in(&parameters).ok().unwrap();
    let in_use = relayed.refusal("DROP_REPLICATION_SLOT s").unwrap();
    assert_eq!(in_use.sqlstate, "55006", "{in_use:?}");
    stage.free_the_slot(&lab);

    let said = |refused: Option<Report>| refused.map(|report| (report.sqlstate, report.message));
    for command in [
        "CREATE_REPLICATION_SLOT NAME PHYSICAL",
        "CREATE_REPLICATION_SLOT NAME LOGICAL pgoutput",
        "READ_REPLICATION_SLOT NAME",
        "START_REPLICATION SLOT NAME PHYSICAL 0/0",
        "START_REPLICATION SLOT NAME LOGICAL 0/0",
        "DROP_REPLICATION_SLOT NAME",
        "DROP_REPLICATION_SLOT NAME",
    ] {
        let of_server = said(direct.refusal(&command.replace("NAME", "own")));
        let of_relay = said(relayed.refusal(&command.replace("NAME", "s")));
        let of_relay = of_relay.map(|(code, words)| (code, words.replace("\"s\"", "\"own\"")));
        assert_eq!(of_relay, of_server, "{command}");
    }
    assert_eq!(stage.relay.console(&lab, "SHOW SLOTS"), "");
    drop((
        direct,
        relayed,
        stage.subscriber,
        stage.relay,
        stage.primary,
    ));
}

/// What a session's values look like is asked anew at each start.
#[test]
fn settings_of_a_session_count_when_its_stream_begins() {
    let lab = TestLab::with_extension().start().unwrap();
    let stage = Stage::new(&lab);
    let log_in = || {
        Raw::tcp(stage.relay.port)
            .log_in(&packet(&[
                ("user", "copier"),
                ("database", "postgres"),
                ("replication", "database"),
            ]))
            .ok()
            .unwrap()
    };
    let streams = |number: usize, settings: &[&str]| {
        let mut client = log_in();
        let slot = format!("CREATE_REPLICATION_SLOT n{number} LOGICAL pgoutput");
        assert_eq!(client.refusal(&slot), None);
        for setting in settings {
            assert_eq!(client.refusal(setting), None, "{setting}");
        }
        let answer = client.query(&START.replace("SLOT s", &format!("SLOT n{number}")));
        assert_eq!(answer.last().unwrap().0, b'W', "{answer:?}");
        let listed = stage.relay.console(&lab, "SHOW SLOTS");
        let row = listed
            .lines()
            .find(|row| row.starts_with(&format!("n{number}|")))
            .map(str::to_owned);
        // Until it is looked at: a slot that is streamed elsewhere is not the relay's.
        let at_primary = format!(
            "SELECT count(*)::text FROM pg_replication_slots WHERE slot_name = 'n{number}' AND active"
        );
        let passed = stage.primary.query_text(&at_primary).unwrap().unwrap() == "1";
        assert_eq!(row.is_none(), passed, "{settings:?}: {listed}");
        drop(client);
        row.map(|row| row.split('|').nth(2).unwrap_or_default().to_owned())
    };
    let usual = streams(0, &[]).unwrap();
    for (number, setting) in [
        (1, "SET datestyle = 'German'"),
        (2, "SET intervalstyle = 'postgres_verbose'"),
        (3, "SET intervalstyle = 'iso_8601'"),
        (4, "SET extra_float_digits = 0"),
        (5, "SET extra_float_digits = -5"),
    ] {
        assert_eq!(streams(number, &[setting]), None, "{setting}");
    }
    for (number, setting) in [
        (6, "SET datestyle = 'ISO, DMY'"),
        (7, "SET extra_float_digits = 3"),
    ] {
        let group = streams(number, &[setting]);
        assert_eq!(group.as_ref(), Some(&usual), "{setting}");
    }
    // Another encoding is another stream.
    let latin = streams(8, &["SET client_encoding = 'LATIN1'"]).unwrap();
    assert_ne!(latin, usual);
    let reset = ["SET datestyle = 'German'", "RESET datestyle"];
    assert_eq!(streams(9, &reset), Some(usual));
    drop((stage.subscriber, stage.relay, stage.primary));
}

/// Whoever cannot log in keeps nobody out, and who can not everybody.
#[test]
fn places_are_kept_for_subscribers_and_the_console() {
    let lab = TestLab::with_extension().start().unwrap();
    let primary = publisher(&lab);
    let relay = Relay::start(
        &lab,
        &primary.conninfo(SUPERUSER),
        &["--max-connections", "4"],
    );
    let log_in = |more: &[(&str, &str)]| {
        let mut parameters = vec![("user", SUPERUSER), ("database", "postgres")];
        parameters.extend(more);
        Raw::tcp(relay.port).log_in(&packet(&parameters))
    };
    let too_many = |refused: Result<Raw, Report>| {
        let report = refused.err().unwrap();
        assert_eq!(
            (&*report.severity, &*report.sqlstate),
            ("FATAL", "53300"),
            "{report:?}"
        );
    };
    primary.run("CREATE ROLE plain LOGIN");
    let nobody: Vec<_> = (0..300).map(|_| Raw::tcp(relay.port)).collect();
    let three: Vec<_> = (0..3).map(|_| log_in(&[]).ok().unwrap()).collect();
    too_many(log_in(&[]));
    let subscriber = log_in(&[("replication", "database")]).ok().unwrap();
    too_many(log_in(&[("replication", "database")]));
    relay.console(&lab, "SHOW CLIENTS");
    // A role that may see nothing there has no claim on the console's places.
    too_many(Raw::tcp(relay.port).log_in(&packet(&[("user", "plain"), ("database", "lockstep")])));
    drop((three, subscriber, nobody, relay, primary));
}

/// What a relay logs until it listens.
fn said_at_start(lab: &Lab, primary: &str, listen: &str) -> String {
    let spool = lab.folder().join(listen.replace([':', '.', '/'], "_"));
    let mut relay = Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .args(["relay", "--listen", listen, "--primary", primary, "--spool"])
        .arg(spool)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(relay.stderr.take().unwrap()).lines();
    let mut said = String::new();
    for line in lines.by_ref().map_while(Result::ok) {
        said.push_str(&line);
        said.push('\n');
        if line.contains("listening") {
            break;
        }
    }
    let _ = relay.kill();
    let _ = relay.wait();
    said
}

#[test]
fn logins_without_a_password_from_elsewhere_are_warned_of() {
    const WARNING: &str = "without a password";
    let lab = TestLab::stock().start().unwrap();
    let mut settings = logical();
    settings.insert("listen_addresses".to_owned(), "127.0.0.1".to_owned());
    let primary = lab.primary("primary", None, &settings).unwrap();
    primary.run("CREATE ROLE relay LOGIN REPLICATION");
    let hba = |rules: &str| {
        std::fs::write(primary.data().join("pg_hba.conf"), rules).unwrap();
        primary.reload().unwrap();
        let wanted = rules.lines().count().to_string();
        let count = "SELECT count(*)::text FROM pg_hba_file_rules";
        until_answer(&primary, count, &wanted);
    };
    let socket = primary.conninfo(SUPERUSER);
    let tcp = format!(
        "host=127.0.0.1 port={} user={SUPERUSER} dbname=postgres",
        primary.port()
    );
    hba("local all all trust\nhost all all 10.0.0.0/8 trust\nhost all all 127.0.0.1/32 trust");
    let said = said_at_start(&lab, &socket, "0.0.0.0:0");
    assert!(said.contains("line 1 (trust for all)"), "{said}");
    assert!(!said.contains("line 2"), "{said}");
    let said = said_at_start(&lab, &tcp, "0.0.0.0:0");
    assert!(said.contains("line 3 (trust for all)"), "{said}");
    assert!(
        !said.contains("line 1") && !said.contains("line 2"),
        "{said}"
    );
    // Only who is on this machine reaches the relay.
    let said = said_at_start(&lab, &socket, "127.0.0.1:0");
    assert!(!said.contains(WARNING), "{said}");
    // A role that may not look.
    let said = said_at_start(&lab, &primary.conninfo("relay"), "0.0.0.0:0");
    assert!(said.contains("may not read pg_hba_file_rules"), "{said}");
    drop(primary);
}

/// Logins that never end take a few connections of the primary, and others soon get theirs.
#[test]
fn logins_that_never_end_keep_nobody_out() {
    let lab = TestLab::with_extension().start().unwrap();
    let mut settings = logical();
    settings.insert("max_connections".to_owned(), "30".to_owned());
    let primary = lab.primary("primary", None, &settings).unwrap();
    primary.run("SET password_encryption = 'scram-sha-256'; CREATE ROLE plain LOGIN PASSWORD 'x'");
    let rules = "local all plain scram-sha-256\nlocal all,replication all trust\n";
    std::fs::write(primary.data().join("pg_hba.conf"), rules).unwrap();
    primary.reload().unwrap();
    let count = "SELECT count(*)::text FROM pg_hba_file_rules";
    until_answer(&primary, count, "2");
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    let endless: Vec<_> = (0..200)
        .map(|_| {
            let mut client = Raw::tcp(relay.port);
            client.send(&packet(&[("user", "plain"), ("database", "postgres")]));
            client
        })
        .collect();
    for more in [&[][..], &[("replication", "database")]] {
        let mut parameters = vec![("user", SUPERUSER), ("database", "postgres")];
        parameters.extend(more);
        let mut client = Raw::tcp(relay.port)
            .log_in(&packet(&parameters))
            .unwrap_or_else(|report| panic!("{report:?}"));
        assert_eq!(client.refusal("SELECT 1"), None);
    }
    relay.console(&lab, "SHOW CLIENTS");
    drop((endless, relay, primary));
}
