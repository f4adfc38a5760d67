//! What `lockstep serve --history` keeps: over kill -9, beside damage, on a full disk, for one.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use lockstep_lab::assert_has;

use crate::serve_support::{Serve, until};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// A primary that does not answer, which is an incident.
fn args<'a>(nowhere: &'a str, folder: &'a Path) -> Vec<&'a str> {
    let folder = folder.to_str().unwrap();
    vec!["--primary", nowhere, "--history", folder]
}

fn nowhere(folder: &TempDir) -> String {
    format!("host={} port=1", folder.path().display())
}

fn saved(serve: &Serve) -> Value {
    until("it is saved", || {
        let history = serve.state()["history"].clone();
        history["saved_ms"].is_number().then_some(history)
    })
}

fn lost(serve: &Serve) -> Value {
    until("the loss is an incident", || {
        let told = serve.get("/api/incidents").json();
        let all = told["incidents"].as_array()?.clone();
        all.into_iter().find(|one| one["matter"] == "lost")
    })
}

/// The time of the first save after this one.
fn saved_after(serve: &Serve, at_ms: i64) -> i64 {
    until("it is saved again", || {
        let saved = serve.state()["history"]["saved_ms"].as_i64();
        saved.filter(|saved| *saved > at_ms)
    })
}

/// The incidents that are known now are in the file. Those that came before it was opened are
/// written with the first state after that.
fn incidents_saved(serve: &Serve) {
    let opened = saved_after(serve, 0);
    until("a state came after the file was opened", || {
        (serve.state()["at_ms"].as_i64() > Some(opened)).then_some(())
    });
    saved_after(serve, unix_ms());
}

fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_millis().try_into().unwrap()
}

#[test]
fn incidents_are_there_after_a_kill() {
    let folder = TempDir::new().unwrap();
    let nowhere = nowhere(&folder);
    let kept = folder.path().join("new/kept");
    let mut serve = Serve::start(&args(&nowhere, &kept));
    let first = lost(&serve);
    incidents_saved(&serve);
    serve.signal(Signal::SIGKILL);
    assert_eq!(serve.ended().code(), None);
    // One that is asked to end writes before it does.
    let mut asked = Serve::start(&args(&nowhere, &kept));
    saved(&asked);
    asked.signal(Signal::SIGTERM);
    assert_eq!(asked.ended().code(), Some(0));
    let serve = Serve::start(&args(&nowhere, &kept));
    until("the incident goes on", || {
        let told = serve.get("/api/incidents").json();
        let all = told["incidents"].as_array()?.clone();
        let is_it = |one: &Value| one["begin_ms"] == first["begin_ms"] && one["at"] == first["at"];
        (all.len() == 1 && is_it(&all[0]) && all[0]["end_ms"].is_null()).then_some(())
    });
    assert!(serve.logged("damaged").is_none());
    let text = serve.get("/metrics").body;
    assert!(
        text.contains("\nlockstep_history_failing 0")
            || text.contains("\nlockstep_history_failing{} 0"),
        "{text}"
    );
}

#[test]
fn a_damaged_file_is_named_and_left_beside_a_new_one() {
    let folder = TempDir::new().unwrap();
    let nowhere = nowhere(&folder);
    let path = folder.path().join("history.redb");
    let damage: Vec<u8> = (0..100_000u32).map(|at| at as u8).collect();
    fs::write(&path, &damage).unwrap();
    let serve = Serve::start(&args(&nowhere, folder.path()));
    let history = saved(&serve);
    let name = history["damaged"][0].as_str().unwrap();
    assert_eq!(fs::read(folder.path().join(name)).unwrap(), damage);
    let line = serve.logged("the file of the history is damaged").unwrap();
    assert_has!(line, name, "a new one begins");
    assert_ne!(fs::read(&path).unwrap(), damage);
    assert_eq!(history["trouble"], Value::Null);
}

#[test]
fn a_second_one_is_refused() {
    let folder = TempDir::new().unwrap();
    let nowhere = nowhere(&folder);
    let _first = Serve::start(&args(&nowhere, folder.path()));
    let output = Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .arg("serve")
        .args(args(&nowhere, folder.path()))
        .args(["--listen", "127.0.0.1:0"])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_has!(said, "another lockstep serve keeps its history in");
}

/// The page goes on, and says so.
#[test]
fn a_full_disk_is_said_and_stops_nothing() {
    let folder = TempDir::new().unwrap();
    let nowhere = nowhere(&folder);
    let small = folder.path().join("small");
    fs::create_dir(&small).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"])
        .arg(&small)
        .output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        println!("SKIP: this account may not mount a file system");
        return;
    }
    let serve = Serve::start(&args(&nowhere, &small));
    let trouble = until("it says so", || {
        let trouble = serve.state()["history"]["trouble"].clone();
        trouble.as_str().map(str::to_owned)
    });
    assert!(trouble.contains("No space left on device"), "{trouble}");
    assert!(serve.logged("No space left on device").is_some());
    let number = serve.state()["number"].as_u64().unwrap();
    until("states go on", || {
        (serve.state()["number"].as_u64()? > number).then_some(())
    });
    assert_eq!(serve.get("/api/history").status, 200);
    assert_has!(serve.get("/metrics").body, "lockstep_history_failing");
    lost(&serve);
    drop(serve);
    let _ = Command::new("umount").arg("--lazy").arg(&small).status();
}
