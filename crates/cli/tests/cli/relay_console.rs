//! The console, status and metrics of `lockstep relay` on a real primary: real roles, real
//! psql, a real consumer.

use std::process::{Child, Command, Stdio};

use crate::relay_clients::{execute, message, parse, rows, sync};
use crate::relay_support::raw::{Message, Raw, error, packet};
use crate::relay_support::{Relay, page, publisher, until};
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::{TestLab, free_port};
use lockstep_lab::server::{SUPERUSER, Server};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

/// Runs a command in the console as a role; rows, or the error with its SQLSTATE.
fn ask(lab: &Lab, relay: &Relay, user: &str, command: &str) -> Result<String, String> {
    let output = Command::new(lab.package().program("psql"))
        .args(["-X", "-A", "-t", "-v", "ON_ERROR_STOP=1"])
        .args(["-v", "VERBOSITY=verbose", "-c", command])
        .arg(format!(
            "host=127.0.0.1 port={} user={user} dbname=lockstep",
            relay.port
        ))
        .output()
        .unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap().trim().to_owned()),
        false => Err(String::from_utf8(output.stderr).unwrap()),
    }
}

/// A consumer that throws everything away; killed when dropped.
struct Consumer(Child);

impl Consumer {
    fn command(lab: &Lab, relay: &Relay, args: &[&str]) -> Command {
        let mut command = Command::new(lab.package().program("pg_recvlogical"));
        command
            .args(["-d", &relay.conninfo(), "--slot", "s"])
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    fn start(lab: &Lab, relay: &Relay) -> Self {
        let create = ["--create-slot", "-P", "pgoutput"];
        until("a slot is made through the relay", || {
            let status = Self::command(lab, relay, &create).status().unwrap();
            status.success().then_some(())
        });
        let options = ["-o", "proto_version=1", "-o", "publication_names=p"];
        let child = Self::command(lab, relay, &["--start", "-f", "/dev/null", "-s", "1"])
            .args(options)
            .spawn()
            .unwrap();
        Self(child)
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn set_up(primary: &Server) {
    primary.run(
        "CREATE TABLE t (id int); CREATE PUBLICATION p FOR TABLE t; \
             CREATE ROLE nobody LOGIN; \
             CREATE ROLE watcher LOGIN; GRANT pg_monitor TO watcher; \
             CREATE ROLE relay_admin; CREATE ROLE boss LOGIN IN ROLE relay_admin",
    );
}

#[test]
fn a_relay_says_and_does_what_its_users_may_ask() {
    let lab = TestLab::with_extension().start().unwrap();
    let primary = publisher(&lab);
    set_up(&primary);
    let file = lab.folder().join("relay.toml");
    std::fs::write(
        &file,
        "admin_role = 'relay_admin'\nlogical_wal_cache = '1MB'\n",
    )
    .unwrap();
    let metrics = free_port().unwrap();
    let mut relay = Relay::start(
        &lab,
        &primary.conninfo(SUPERUSER),
        &[
            "--config",
            file.to_str().unwrap(),
            "--metrics",
            &format!("127.0.0.1:{metrics}"),
        ],
    );
    let ask = |relay: &Relay, user: &str, command: &str| ask(&lab, relay, user, command);
    let consumer = Consumer::start(&lab, &relay);
    until("the slot is in use", || {
        let rows = ask(&relay, "watcher", "SHOW SLOTS").unwrap();
        let cells: Vec<&str> = rows.split('|').collect();
        (cells[0] == "s" && !cells[3].is_empty()).then_some(())
    });

    // What is served is counted, in blocks.
    primary.run("INSERT INTO t SELECT generate_series(1, 10000)");
    let read = "SELECT name, blks_read FROM lockstep_stat_logical_wal_cache() WHERE name = 's'";
    until("blocks are counted", || {
        let rows = ask(&relay, "watcher", read).unwrap();
        let (name, blocks) = rows.split_once('|').unwrap();
        (name == "s" && blocks.parse::<u64>().unwrap() > 20).then_some(())
    });
    let oldest = ask(&relay, "watcher", "SELECT get_oldest_wal_cache_ptr()").unwrap();
    assert!(oldest.contains('/'), "{oldest:?}");

    rights(&relay, &ask);
    surroundings(&relay, metrics);

    // A reset is a new beginning, once all is sent.
    until("all is sent", || {
        let rows = ask(&relay, "watcher", "SHOW SLOTS").unwrap();
        (rows.split('|').nth(6) == Some("0")).then_some(())
    });
    let reset = "SELECT lockstep_stat_reset_wal_cache('s')";
    let said = ask(&relay, SUPERUSER, reset).unwrap();
    assert_eq!(
        said,
        "Cache statistics of slot \"s\" start again from zero."
    );
    assert_eq!(ask(&relay, "watcher", read).unwrap(), "s|0");

    // The configuration is read again, by command and by signal.
    let config = |relay: &Relay| {
        let rows = ask(relay, "watcher", "SHOW CONFIG").unwrap();
        let row = rows
            .lines()
            .find(|row| row.starts_with("logical_wal_cache|"));
        row.unwrap().to_owned()
    };
    assert_eq!(config(&relay), "logical_wal_cache|1MB|file");
    let text = "admin_role = 'relay_admin'\nlogical_wal_cache = '2MB'\n";
    std::fs::write(&file, text).unwrap();
    let changes = ask(&relay, "boss", "RELOAD").unwrap();
    assert_eq!(changes, "logical_wal_cache: 1MB -> 2MB");
    assert_eq!(config(&relay), "logical_wal_cache|2MB|file");
    std::fs::write(&file, "logical_wal_cache = 2").unwrap();
    let error = ask(&relay, "boss", "RELOAD").unwrap_err();
    assert_has!(error, "F0000", "line 1");
    std::fs::write(&file, text.replace("2MB", "3MB")).unwrap();
    hang_up(&relay);
    until("the signal is obeyed", || {
        (config(&relay) == "logical_wal_cache|3MB|file").then_some(())
    });

    // A slot in use cannot be dropped, an idle one can.
    let error = ask(&relay, "boss", "DROP SLOT s").unwrap_err();
    assert!(error.contains("55006"), "{error}");
    drop(consumer);
    until("the slot is dropped", || {
        ask(&relay, "boss", "DROP SLOT s").ok()
    });
    assert_eq!(ask(&relay, "watcher", "SHOW SLOTS").unwrap(), "");
    let error = ask(&relay, "boss", "DROP SLOT s").unwrap_err();
    assert!(error.contains("42704"), "{error}");

    assert_eq!(relay.stop(), Some(0));
}

/// Has the relay read its configuration again.
fn hang_up(relay: &Relay) {
    let pid = Pid::from_raw(i32::try_from(relay.pid()).unwrap());
    signal::kill(pid, Signal::SIGHUP).unwrap();
}

/// Roles of the primary decide.
fn rights(relay: &Relay, ask: &impl Fn(&Relay, &str, &str) -> Result<String, String>) {
    let reset = "SELECT lockstep_stat_reset_wal_cache(NULL)";
    for (command, allowed) in [
        (
            "SHOW VERSION",
            &["nobody", "watcher", "boss", SUPERUSER][..],
        ),
        ("SHOW UPSTREAM", &["watcher", SUPERUSER]),
        ("SHOW CLIENTS", &["watcher", SUPERUSER]),
        (reset, &["boss", SUPERUSER]),
        ("RELOAD", &["boss", SUPERUSER]),
    ] {
        for user in ["nobody", "watcher", "boss", SUPERUSER] {
            match ask(relay, user, command) {
                Ok(_) => assert!(allowed.contains(&user), "{user}: {command}"),
                Err(error) => {
                    assert!(error.contains("42501"), "{user}: {command}: {error}");
                    assert!(!allowed.contains(&user), "{user}: {command}: {error}");
                }
            }
        }
    }
    // What psql sends by itself.
    let error = ask(relay, SUPERUSER, "\\l").unwrap_err();
    assert_has!(error, "0A000", "SHOW HELP");
}

/// `lockstep relay status`, metrics and the health check.
fn surroundings(relay: &Relay, metrics: u16) {
    let status = |user: &str| {
        Command::new(env!("CARGO_BIN_EXE_lockstep"))
            .args(["relay", "status", "--output", "json", "--connect"])
            .arg(format!("port={} user={user}", relay.port))
            .output()
            .unwrap()
    };
    let found = status("watcher");
    assert_eq!(found.status.code(), Some(0), "{found:?}");
    let found: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(found["upstream"][0]["state"], "streaming");
    assert_eq!(found["slots"][0]["name"], "s");
    assert_eq!(status("nobody").status.code(), Some(3));

    let health = page(metrics, "/healthz");
    assert!(health.starts_with("HTTP/1.1 200 "), "{health}");
    let text = page(metrics, "/metrics");
    let group = found["slots"][0]["group"].as_str().unwrap();
    let series = format!("lockstep_relay_slot_active{{group=\"{group}\",slot=\"s\"}} 1\n");
    assert!(text.contains(&series), "{text}");
}

/// Drivers such as psycopg 3 and asyncpg prepare statements; these are their messages.
#[test]
fn the_console_speaks_the_extended_protocol() {
    let lab = TestLab::with_extension().start().unwrap();
    let primary = publisher(&lab);
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    let parameters = [("user", SUPERUSER), ("database", "lockstep")];
    let mut client = Raw::tcp(relay.port).log_in(&packet(&parameters)).unwrap();
    let tags =
        |answer: &[Message]| -> String { answer.iter().map(|(tag, _)| char::from(*tag)).collect() };

    // psycopg 3, from the sixth call on: prepared once, then bound and described each time.
    let version = format!("lockstep relay {}", env!("CARGO_PKG_VERSION"));
    client.send(&[parse("_pg3_0", "SHOW VERSION"), sync()].concat());
    assert_eq!(tags(&client.answer()), "1Z");
    for _ in 0..3 {
        client.send(&[execute("_pg3_0", &[]), sync()].concat());
        let rows = rows(client.answer()).unwrap();
        assert_eq!(rows, [[("version".to_owned(), Some(version.clone()))]]);
    }

    // asyncpg: described as a statement, then all columns in binary.
    let describe = message(b'D', b"Sask\0");
    client.send(&[parse("ask", "SHOW CLIENTS"), describe, sync()].concat());
    let described = client.answer();
    assert_eq!(tags(&described), "1tTZ");
    assert_eq!(described[1].1, [0, 0]);
    let bind = message(b'B', b"p\0ask\0\0\0\0\0\0\x01\0\x01");
    let one = message(b'E', b"p\0\0\0\0\x01");
    let portal = message(b'D', b"Pp\0");
    client.send(&[bind, portal, one.clone(), one, sync()].concat());
    let answer = client.answer();
    assert_eq!(tags(&answer), "2TDCCZ", "{answer:?}");
    // The last field of the last column says that it is binary.
    assert_eq!(answer[1].1.last(), Some(&1));
    // Nine columns, of which the first is an int8.
    assert_eq!(answer[2].1[..6], [0, 9, 0, 0, 0, 8]);

    // After an error all is thrown away up to Sync, also what would change something.
    for (wrong, sqlstate) in [
        (parse("x", "SELECT nonsense"), "0A000"),
        (parse("x", "RELOAD; RELOAD"), "42601"),
        (parse("ask", "SHOW HELP"), "42P05"),
        (execute("gone", &[]), "26000"),
        (execute("_pg3_0", &["1"]), "08P01"),
        (message(b'E', b"gone\0\0\0\0\0"), "34000"),
        (message(b'D', b"Sgone\0"), "26000"),
        (message(b'B', b"x"), "08P01"),
        (
            [parse("", "DROP SLOT gone"), execute("", &[])].concat(),
            "42704",
        ),
    ] {
        let more = [parse("after", "SHOW HELP"), message(b'H', &[])].concat();
        client.send(&[wrong, more, sync()].concat());
        let answer = client.answer();
        let said = tags(&answer);
        assert!(said.ends_with("EZ"), "{said}");
        let report = answer.into_iter().find_map(error).unwrap();
        assert_eq!(report.sqlstate, sqlstate, "{report:?}");
    }
    client.send(&[execute("after", &[]), sync()].concat());
    assert_eq!(tags(&client.answer()), "EZ");
    // Portals end with Sync, statements when they are closed.
    client.send(&[message(b'E', b"p\0\0\0\0\0"), sync()].concat());
    assert_eq!(tags(&client.answer()), "EZ");
    client.send(&[message(b'C', b"Sask\0"), message(b'D', b"Sask\0"), sync()].concat());
    assert_eq!(tags(&client.answer()), "3EZ");
    client.send(&[parse("", ""), execute("", &[]), sync()].concat());
    assert_eq!(tags(&client.answer()), "12nIZ");
    assert_eq!(rows(client.query("SHOW VERSION")).unwrap().len(), 1);
}
