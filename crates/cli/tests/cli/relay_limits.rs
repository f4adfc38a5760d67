//! `lockstep relay` at its limits, and what it refuses.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};

use crate::relay_support::{
    Relay, disable, publisher, subscribe, table_on_both, until, until_answer, until_ready,
    until_same,
};
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::{SUPERUSER, Server};
use lockstep_wire::Lsn;

/// One table on both sides, published and subscribed to.
fn subscribed(lab: &Lab, args: &[&str]) -> (Server, Server, Relay) {
    let (primary, subscriber) = table_on_both(lab, "t (id int PRIMARY KEY, v text)");
    primary.run("INSERT INTO t VALUES (0, 'first')");
    let relay = Relay::start(lab, &primary.conninfo(SUPERUSER), args);
    subscribe(&subscriber, "s", &relay.conninfo(), "p");
    until_ready(&subscriber);
    primary.run("INSERT INTO t VALUES (-1, 'second')");
    until_same(&primary, &subscriber, "t");
    (primary, subscriber, relay)
}

/// About this many megabytes of changes, a transaction each.
fn write(primary: &Server, from: u32, megabytes: u32) {
    for transaction in from..from + megabytes {
        primary
            .run(&format!(
                "INSERT INTO t SELECT {transaction} * 1000 + i, repeat('x', 1000) FROM generate_series(1, 950) i"
            ));
    }
}

fn upstream_says(lab: &Lab, relay: &Relay, words: &str) {
    until(words, || {
        relay
            .console(lab, "SHOW UPSTREAM")
            .contains(words)
            .then_some(())
    });
}

#[test]
fn a_full_spool_makes_the_primary_wait_and_loses_nothing() {
    let lab = TestLab::with_extension().start().unwrap();
    let (primary, subscriber, relay) = subscribed(&lab, &["--spool-limit", "8MB"]);
    disable(&lab, &subscriber, "s", &relay);
    write(&primary, 1, 24);
    upstream_says(&lab, &relay, "waiting");
    // The primary itself goes on.
    primary.run("INSERT INTO t VALUES (-2, 'meanwhile')");
    subscriber.run("ALTER SUBSCRIPTION s ENABLE");
    until_same(&primary, &subscriber, "t");
    upstream_says(&lab, &relay, "streaming");
    drop((subscriber, relay, primary));
}

#[test]
fn the_slowest_slot_goes_where_the_operator_wants_that() {
    let lab = TestLab::with_extension().start().unwrap();
    let (primary, subscriber, relay) = subscribed(
        &lab,
        &["--spool-limit", "8MB", "--on-spool-limit", "drop-slowest"],
    );
    disable(&lab, &subscriber, "s", &relay);
    write(&primary, 1, 24);
    until("the slot is gone", || {
        let slots = "SELECT name FROM lockstep_stat_logical_wal_cache()";
        relay.console(&lab, slots).is_empty().then_some(())
    });
    assert!(relay.log().contains("dropping the slowest slot"));
    upstream_says(&lab, &relay, "streaming");
    drop((subscriber, relay, primary));
}

/// A file system of a few megabytes on a folder; None where we may not mount.
pub struct Small(std::path::PathBuf);

impl Small {
    pub fn on(folder: std::path::PathBuf, megabytes: u32) -> Option<Self> {
        std::fs::create_dir_all(&folder).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={megabytes}m"), "tmpfs"])
            .arg(&folder)
            .output()
            .is_ok_and(|output| output.status.success());
        mounted.then_some(Self(folder))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_waited_for() {
    let lab = TestLab::with_extension().start().unwrap();
    let folder = lab.folder().join("small");
    let Some(small) = Small::on(folder.clone(), 24) else {
        println!("SKIP: this account may not mount a file system");
        return;
    };
    let spool = folder.join("spool").display().to_string();
    let (primary, subscriber, relay) = subscribed(&lab, &["--spool", &spool]);
    disable(&lab, &subscriber, "s", &relay);
    write(&primary, 1, 40);
    upstream_says(&lab, &relay, "disk is full");
    subscriber.run("ALTER SUBSCRIPTION s ENABLE");
    until_same(&primary, &subscriber, "t");
    upstream_says(&lab, &relay, "streaming");
    drop((subscriber, relay, primary));
    drop(small);
}

/// PostgreSQL ends as well when it cannot know what its disk holds.
#[test]
fn a_spool_that_cannot_be_written_ends_the_relay() {
    let lab = TestLab::with_extension().start().unwrap();
    let (primary, subscriber, mut relay) = subscribed(&lab, &[]);
    // Not a full disk, which is waited for.
    let limited = Command::new("prlimit")
        .args(["--pid", &relay.pid().to_string(), "--fsize=4096"])
        .status()
        .unwrap();
    assert!(limited.success());
    write(&primary, 1, 2);
    assert_eq!(relay.ended(), Some(1));
    let last = until("its last line is read", || {
        let log = relay.log();
        let last = log.lines().last()?.to_owned();
        last.starts_with("lockstep: ").then_some(last)
    });
    assert_has!(last, "the relay has ended because the spool of group auto_");
    assert!(last.contains("cannot write spool file"), "{last}");
    // A service manager starts it again.
    relay.restart();
    until_same(&primary, &subscriber, "t");
    drop((subscriber, relay, primary));
}

/// What a disk refused to make durable is never confirmed to the primary.
/// strace comes to one thread after the other.
fn are_traced(relay: &Relay) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{}/task", relay.pid())).unwrap();
    threads.into_iter().all(|thread| {
        // A thread that has ended syncs nothing.
        let status = std::fs::read_to_string(thread.unwrap().path().join("status"));
        status.map_or(true, |status| {
            let tracer = status.lines().find(|line| line.starts_with("TracerPid:"));
            tracer.is_some_and(|line| !line.ends_with("\t0"))
        })
    })
}

#[test]
fn a_refused_sync_ends_the_relay_and_confirms_nothing() {
    let lab = TestLab::with_extension().start().unwrap();
    let (primary, subscriber, mut relay) = subscribed(&lab, &[]);
    let calls = "fsync,fdatasync";
    let strace = Command::new("strace")
        .args(["--follow-forks", "--quiet=all", "--output=/dev/null"])
        .args([format!("--attach={}", relay.pid())])
        .args([
            format!("--trace={calls}"),
            format!("--inject={calls}:error=EIO"),
        ])
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut strace) = strace else {
        println!("SKIP a refused sync: strace is not installed");
        return;
    };
    let traced = until("strace has attached to every thread", || {
        match are_traced(&relay) {
            true => Some(true),
            false => strace.try_wait().unwrap().map(|_| false),
        }
    });
    if !traced {
        println!("SKIP a refused sync: strace may not trace here");
        return;
    }
    primary.run("INSERT INTO t VALUES (-3, 'third')");
    assert_eq!(relay.ended(), Some(1));
    let _ = strace.wait();
    let log = relay.log();
    assert!(log.contains("Input/output error"), "{log}");
    let confirmed = "SELECT (confirmed_flush_lsn < pg_current_wal_lsn())::text \
         FROM pg_replication_slots WHERE slot_name LIKE 'lockstep_auto_%'";
    let missed = "SELECT count(*)::text FROM pg_logical_slot_peek_binary_changes((SELECT slot_name \
         FROM pg_replication_slots WHERE slot_name LIKE 'lockstep_auto_%'), NULL, NULL, \
         'proto_version', '1', 'publication_names', 'p')";
    until_answer(&primary, confirmed, "true");
    // The slot still has it.
    let left = primary.query_text(missed).unwrap().unwrap();
    assert_ne!(left, "0");
    relay.restart();
    until_same(&primary, &subscriber, "t");
    drop((subscriber, relay, primary));
}

#[test]
fn an_address_in_use_ends_the_relay() {
    let lab = TestLab::with_extension().start().unwrap();
    let primary = publisher(&lab);
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    let second = Command::new("timeout")
        .args(["60", env!("CARGO_BIN_EXE_lockstep"), "relay"])
        .args(["--primary", &primary.conninfo(SUPERUSER)])
        .args(["--listen", &format!("127.0.0.1:{}", relay.port)])
        .arg("--spool")
        .arg(lab.folder().join("second"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot listen on"), "{said}");
    drop((relay, primary));
}

/// The most memory that the relay has had, kB.
fn peak_kb(relay: &Relay) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", relay.pid())).unwrap();
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok())
        .unwrap()
}

#[test]
fn memory_does_not_grow_with_a_transaction() {
    let lab = TestLab::with_extension().start().unwrap();
    let (primary, subscriber, relay) = subscribed(&lab, &["--logical-wal-cache", "1MB"]);
    primary
        .run("INSERT INTO t SELECT 1000 + i, repeat('x', 1000) FROM generate_series(1, 150000) i");
    until_answer(&subscriber, "SELECT count(*)::text FROM t", "150002");
    let peak = peak_kb(&relay);
    // The issue's bound: the cache and 64 MB.
    assert!(peak < 65 * 1024, "{peak} kB");
    drop((subscriber, relay, primary));
}

#[test]
fn memory_holds_a_long_row_a_few_times() {
    const ROW_MB: u64 = 100;
    let lab = TestLab::with_extension().start().unwrap();
    let (primary, subscriber, relay) = subscribed(&lab, &["--logical-wal-cache", "1MB"]);
    primary.run(&format!(
        "INSERT INTO t VALUES (1000, repeat('x', {ROW_MB} << 20))"
    ));
    until_answer(&subscriber, "SELECT count(*)::text FROM t", "3");
    // docs/relay.md says four times. It is libpq's buffer (128 MB here), its copy and our own.
    let peak = peak_kb(&relay);
    assert!(peak < (65 + 4 * ROW_MB) * 1024, "{peak} kB");
    drop((subscriber, relay, primary));
}

#[test]
fn memory_does_not_grow_with_slots() {
    const SLOTS: usize = 64;
    let lab = TestLab::with_extension().start().unwrap();
    let mut primary = publisher(&lab);
    primary
        .set([
            ("max_replication_slots", "80"),
            ("max_wal_senders", "80"),
            ("max_connections", "200"),
        ])
        .unwrap();
    primary.restart().unwrap();
    primary.run("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t");
    let args = ["--logical-wal-cache", "1MB"];
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &args);
    let receive = |slot: usize| {
        Command::new(lab.package().program("pg_recvlogical"))
            .args(["--dbname", &relay.conninfo(), "--no-loop"])
            .args(["--slot", &format!("r{slot}"), "--plugin", "pgoutput"])
            .args(["--create-slot", "--start", "--file", "/dev/null"])
            .args(["--option", "proto_version=1"])
            .args(["--option", "publication_names=p"])
            .spawn()
            .unwrap()
    };
    let count = |holds: &dyn Fn(&[&str]) -> bool| {
        let slots = relay.console(&lab, "SHOW SLOTS");
        let rows = slots.lines().map(|row| row.split('|').collect::<Vec<_>>());
        rows.filter(|row| holds(row)).count()
    };
    let (active_pid, sent_lsn) = (3, 4);
    let streaming = || count(&|row| !row[active_pid].is_empty());
    // The group begins where its first slot is, and a slot that is older is passed through.
    let mut receivers = vec![receive(0)];
    until("the first streams", || (streaming() == 1).then_some(()));
    // A few at a time: where many log in at once and one takes more than a second, it has to go.
    while receivers.len() < SLOTS {
        let begun = receivers.len();
        receivers.extend((begun..SLOTS.min(begun + 8)).map(receive));
        until("these stream", || {
            (streaming() == receivers.len()).then_some(())
        });
    }
    primary.run("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 20000) i");
    let end = primary
        .query_text("SELECT pg_current_wal_lsn()::text")
        .unwrap();
    let end: Lsn = end.unwrap().parse().unwrap();
    until("all were sent all", || {
        let sent = count(&|row| row[sent_lsn].parse::<Lsn>().is_ok_and(|sent| sent >= end));
        (sent == SLOTS).then_some(())
    });
    assert!(peak_kb(&relay) < 65 * 1024, "{} kB", peak_kb(&relay));
    for receiver in &mut receivers {
        let _ = receiver.kill();
        let _ = receiver.wait();
    }
    drop((relay, primary));
}

#[test]
fn the_primary_decodes_in_the_memory_that_was_asked_for() {
    let lab = TestLab::with_extension().start().unwrap();
    let mut primary = publisher(&lab);
    primary
        .set([("logical_decoding_work_mem", "64kB")])
        .unwrap();
    primary.reload().unwrap();
    primary.run("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t");
    // One after the other: each spool is another relay's.
    for (asked, spills) in [("256MB", false), ("0", true)] {
        let spool = lab.folder().join(format!("spool-{asked}"));
        let args = [
            "--logical-decoding-work-mem",
            asked,
            "--spool",
            spool.to_str().unwrap(),
        ];
        let mut relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &args);
        let slot = format!("r{}", asked.to_lowercase());
        let create = ["--slot", &slot, "--create-slot", "--plugin", "pgoutput"];
        assert!(receive(&lab, &relay, &create).status.success());
        let mut receiver = Command::new(lab.package().program("pg_recvlogical"))
            .args(["--dbname", &relay.conninfo(), "--no-loop", "--slot", &slot])
            .args(["--start", "--file", "/dev/null"])
            .args(["--option", "proto_version=1"])
            .args(["--option", "publication_names=p"])
            .spawn()
            .unwrap();
        upstream_says(&lab, &relay, "streaming");
        primary.run("TRUNCATE t; INSERT INTO t SELECT i, 'x' FROM generate_series(1, 5000) i");
        // Told a while after it was decoded, or with the next one.
        let spilled = "SELECT coalesce(sum(spill_txns), 0)::text || ' ' || (sum(total_txns) > 1)::text \
             FROM pg_stat_replication_slots WHERE slot_name LIKE 'lockstep_auto_%'";
        let expected = if spills { "1 true" } else { "0 true" };
        until("decoding is told", || {
            primary.run("INSERT INTO t SELECT max(id) + 1, 'y' FROM t");
            let told = primary.query_text(spilled).unwrap()?;
            told.ends_with("true")
                .then(|| assert_eq!(told, expected, "{asked}"))
        });
        let _ = receiver.kill();
        let _ = receiver.wait();
        assert_eq!(relay.stop(), Some(0));
        until("the slot is free", || {
            primary
                .execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
                .ok()
        });
    }
}

/// What pg_recvlogical says.
fn receive(lab: &Lab, relay: &Relay, args: &[&str]) -> Output {
    Command::new(lab.package().program("pg_recvlogical"))
        .args([
            "--dbname",
            &relay.conninfo(),
            "--no-loop",
            "--file",
            "/dev/null",
        ])
        .args(args)
        .output()
        .unwrap()
}

/// A publication that does not exist is noticed with the first change, as by a server: an
/// error, or later a warning in the server's log.
fn a_publication_that_is_not_there_is_noticed(lab: &Lab, primary: &Server, relay: &Relay) {
    let mut waiting = Command::new(lab.package().program("pg_recvlogical"))
        .args(["--dbname", &relay.conninfo(), "--no-loop"])
        .args(["--file", "/dev/null", "--slot", "r", "--start"])
        .args(["--option", "proto_version=1", "--option"])
        .arg("publication_names=\"not there; DROP TABLE t\"")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("the slot is taken", || {
        let slots = relay.console(lab, "SHOW SLOTS");
        slots
            .lines()
            .any(|line| line.starts_with("r|"))
            .then_some(())
    });
    primary.run("INSERT INTO t VALUES (-3, 'third')");
    let refused = until("the publication is refused or skipped", || {
        let log = std::fs::read_to_string(primary.log()).unwrap();
        match waiting.try_wait().unwrap() {
            Some(_) => Some(true),
            None => log.contains("skipped loading publication").then_some(false),
        }
    });
    let _ = waiting.kill();
    let output = waiting.wait_with_output().unwrap();
    if refused {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("does not exist"), "{said}");
    }
}

#[test]
fn what_a_server_refuses_is_refused_and_disturbs_nobody() {
    let lab = TestLab::with_extension().start().unwrap();
    let (primary, subscriber, relay) = subscribed(&lab, &[]);
    let create = ["--slot", "r", "--create-slot", "--plugin", "pgoutput"];
    assert!(receive(&lab, &relay, &create).status.success());
    let start = |options: &[&str]| {
        let mut args = vec!["--slot", "r", "--start"];
        for option in options {
            args.extend(["--option", option]);
        }
        let output = receive(&lab, &relay, &args);
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let good = "publication_names=p";
    for (said, expected) in [
        (start(&["proto_version=1"]), "publication_names"),
        (start(&["proto_version=99", good]), "proto_version=99"),
        (start(&["proto_version=1", good, "nonsense=1"]), "nonsense"),
    ] {
        assert!(said.contains(expected), "{said}");
    }
    let output = receive(
        &lab,
        &relay,
        &["--slot", "missing", "--start", "--option", good],
    );
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("\"missing\" does not exist"), "{said}");
    a_publication_that_is_not_there_is_noticed(&lab, &primary, &relay);

    // The others go on, and a slot in use has one user.
    let busy = receive(
        &lab,
        &relay,
        &[
            "--slot",
            "s",
            "--start",
            "--option",
            "proto_version=1",
            "--option",
            good,
        ],
    );
    let said = String::from_utf8_lossy(&busy.stderr).into_owned();
    assert!(said.contains("is active for PID"), "{said}");
    primary.run("INSERT INTO t VALUES (-4, 'fourth')");
    until_same(&primary, &subscriber, "t");
    drop((subscriber, relay, primary));
}

/// A client that speaks the protocol itself, in a replication session.
struct Client(TcpStream);

impl Client {
    fn connect(relay: &Relay) -> Self {
        let mut client = Self(TcpStream::connect(("127.0.0.1", relay.port)).unwrap());
        let mut startup = 196_608_u32.to_be_bytes().to_vec();
        for text in [
            "user",
            SUPERUSER,
            "database",
            "postgres",
            "replication",
            "database",
            "",
        ] {
            startup.extend([text.as_bytes(), &[0]].concat());
        }
        client.send(&[], &startup);
        client.skip_to(b'Z');
        client
    }

    fn send(&mut self, tag: &[u8], body: &[u8]) {
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        self.0.write_all(&[tag, &length, body].concat()).unwrap();
    }

    /// The next message's tag and the length of its body.
    fn head(&mut self) -> (u8, usize) {
        let mut head = [0; 5];
        self.0.read_exact(&mut head).unwrap();
        let length = u32::from_be_bytes(head[1..].try_into().unwrap());
        (head[0], length as usize - 4)
    }

    fn skip_to(&mut self, tag: u8) {
        loop {
            let (found, length) = self.head();
            std::io::copy(&mut (&mut self.0).take(length as u64), &mut std::io::sink()).unwrap();
            if found == tag {
                return;
            }
        }
    }
}

/// An error after a part of a row would be read as more of that row.
#[test]
fn an_end_within_a_row_says_nothing_more() {
    const ROW: usize = 60_000_000;
    let lab = TestLab::with_extension().start().unwrap();
    let (primary, subscriber, mut relay) = subscribed(&lab, &["--logical-wal-cache", "1MB"]);
    let create = ["--slot", "r", "--create-slot", "--plugin", "pgoutput"];
    assert!(receive(&lab, &relay, &create).status.success());
    let mut client = Client::connect(&relay);
    client.send(
        b"Q",
        b"START_REPLICATION SLOT r LOGICAL 0/0 (proto_version '1', publication_names 'p')\0",
    );
    client.skip_to(b'W');
    primary.run(&format!("INSERT INTO t VALUES (7, repeat('x', {ROW}))"));
    until_same(&primary, &subscriber, "t");

    let row = loop {
        match client.head() {
            (b'd', length) if length > ROW => break length,
            (b'd', length) => {
                std::io::copy(
                    &mut (&mut client.0).take(length as u64),
                    &mut std::io::sink(),
                )
                .unwrap();
            }
            other => panic!("{other:?}"),
        }
    };
    // What comes before the long value: the message's head, the other column.
    let mut head = vec![0; 1000];
    client.0.read_exact(&mut head).unwrap();
    let address = client.0.peer_addr().unwrap();
    // It waits for this client now, and notices its own end with the next piece.
    let stopped = std::thread::scope(|scope| {
        let stopping = scope.spawn(|| relay.stop());
        until("new connections are refused", || {
            TcpStream::connect(address).is_err().then_some(())
        });
        let mut rest = Vec::new();
        client.0.read_to_end(&mut rest).unwrap();
        assert!(rest.len() + head.len() < row, "the row was sent whole");
        assert!(rest.iter().all(|&byte| byte == b'x'));
        stopping.join().unwrap()
    });
    assert_eq!(stopped, Some(0));
    drop((subscriber, primary));
}

#[test]
fn two_relays_do_not_share_what_is_one_relays() {
    let lab = TestLab::with_extension().start().unwrap();
    let (primary, subscriber, relay) = subscribed(&lab, &[]);
    // The same spool.
    let output = Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .args([
            "relay",
            "--listen",
            "127.0.0.1:0",
            "--primary",
            &primary.conninfo(SUPERUSER),
        ])
        .arg("--spool")
        .arg(&relay.spool)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("in use by another relay"), "{said}");
    // The same subscription through another relay: that one does not have the slot.
    let other = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    subscriber.run(&format!(
        "ALTER SUBSCRIPTION s CONNECTION '{}'",
        other.conninfo()
    ));
    until("the subscriber is told", || {
        let log = std::fs::read_to_string(subscriber.log()).unwrap();
        log.contains("replication slot \"s\" does not exist")
            .then_some(())
    });
    subscriber.run(&format!(
        "ALTER SUBSCRIPTION s CONNECTION '{}'",
        relay.conninfo()
    ));
    primary.run("INSERT INTO t VALUES (-5, 'fifth')");
    until_same(&primary, &subscriber, "t");
    drop((subscriber, relay, other, primary));
}
