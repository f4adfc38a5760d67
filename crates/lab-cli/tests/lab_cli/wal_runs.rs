//! `lockstep-lab wal record` and `play` as people run them, against private servers.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{SUPERUSER, Stop, settings_of};
use lockstep_player::{Address, Recording};
use lockstep_wire::Lsn;
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(120);

/// Starts ours with the usual answer to Ctrl-C, and waits until it says `words` on
/// standard error.
fn start(args: &[&str], words: &str) -> Child {
    let mut child = Command::new("env")
        .arg("--default-signal")
        .arg(env!("CARGO_BIN_EXE_lockstep-lab"))
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let said = lines.by_ref().map_while(Result::ok).find(|line| {
        println!("{line}");
        line.contains(words)
    });
    assert!(said.is_some(), "{args:?} never said {words}");
    // Who writes there shall not find the pipe closed.
    std::thread::spawn(move || lines.for_each(drop));
    child
}

/// Exit code and result.
fn end(child: Child) -> (Option<i32>, Value) {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (
        output.status.code(),
        serde_json::from_str(&text).unwrap_or(Value::String(text)),
    )
}

fn interrupt(child: &Child) {
    let pid = Pid::from_raw(child.id().try_into().unwrap());
    signal::kill(pid, Signal::SIGINT).unwrap();
}

fn lsn(text: &str) -> Lsn {
    text.parse().unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn what_is_recorded_until_ctrl_c_is_played_to_a_standby() {
    let lab = Lab::for_tests().unwrap();
    let settings = settings_of([("shared_buffers", "16MB")]);
    let mut primary = lab.primary("primary", None, &settings).unwrap();
    let folder = tempfile::tempdir_in(lab.folder()).unwrap();
    let to = folder.path().join("recording");
    let source = primary.conninfo(SUPERUSER);
    let record = ["wal", "record", text(&to), "--source", &source];
    let child = start(
        &[&record[..], &["--output", "json"]].concat(),
        "the base backup is complete",
    );
    for n in 0..20 {
        primary.run(&format!(
            "CREATE TABLE t{n} AS SELECT generate_series(1, 9) g"
        ));
    }
    // The source need not keep what was received.
    primary.run("SELECT pg_switch_wal()");
    primary.run("CREATE TABLE later ()");
    let written = primary.flush_lsn().unwrap();
    let segment = u64::from(written) & !0xFF_FFFF;
    let slot = "SELECT restart_lsn::text FROM pg_replication_slots";
    let started = Instant::now();
    while u64::from(lsn(&primary.query_text(slot).unwrap().unwrap())) < segment {
        assert!(started.elapsed() < PATIENCE, "the slot does not advance");
        std::thread::sleep(Duration::from_millis(50));
    }
    interrupt(&child);
    let (code, said) = end(child);
    assert_eq!(code, Some(0), "{said}");
    let recording = Recording::open(&to).unwrap();
    assert!(recording.end() >= written);
    assert_eq!(said["end_lsn"], recording.end().to_string());
    assert_eq!(said["timeline"], 1);
    let slots = "SELECT count(*)::text FROM pg_replication_slots";
    // The slot is temporary: its session drops it when it ends, which is after the client has.
    while primary.query_text(slots).unwrap().as_deref() != Some("0") {
        assert!(started.elapsed() < PATIENCE, "the slot stays");
        std::thread::sleep(Duration::from_millis(50));
    }

    // A second time into the same folder.
    let again = Command::new(env!("CARGO_BIN_EXE_lockstep-lab"))
        .args(record)
        .output()
        .unwrap();
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("not empty"));
    primary.stop(Stop::Fast).unwrap();

    let Address::Socket {
        folder: sockets,
        port,
    } = Address::free_socket(lab.folder()).unwrap()
    else {
        panic!("no socket");
    };
    let port = port.to_string();
    let play = ["wal", "play", text(&to), "--socket-folder", text(&sockets)];
    let play = [&play[..], &["--port", &port, "--output", "json"]].concat();
    let child = start(&play, "waiting for a standby");
    let player = format!("host={} port={port} user=replicator", sockets.display());
    let standby =
        lockstep_player::standby_of(&lab, &recording, "standby", &player, &settings).unwrap();
    let (code, said) = end(child);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(said["done"], true);
    assert_eq!(said["standbys"][0]["standby"], "standby");
    assert_eq!(
        said["standbys"][0]["apply_lsn"],
        recording.end().to_string()
    );
    let tables = "SELECT count(*)::text FROM pg_class WHERE relname ~ '^t[0-9]+$'";
    assert_eq!(standby.query_text(tables).unwrap().as_deref(), Some("20"));

    // With --stay only Ctrl-C ends it.
    let child = start(&[&play[..], &["--stay"]].concat(), "published");
    interrupt(&child);
    let (code, said) = end(child);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(said["standbys"][0]["standby"], "standby", "{said}");
}
