//! Crashes of every kind: the server comes back, and catches up.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{SUPERUSER, Server, Settings, settings_of};
use lockstep_lab::sweep;
use lockstep_verify::VerifyError;
use lockstep_verify::crash::{
    Crash, CrashError, Moment, PowerDisk, Process, Victim, process_of, standby_on_disk,
};
use lockstep_wire::Lsn;

/// Megabytes of a disk; its file is sparse.
const DISK_MB: u64 = 1500;

fn small() -> Settings {
    settings_of([
        // As on servers whose crashes count.
        ("fsync", "on"),
        ("shared_buffers", "16MB"),
        ("max_connections", "20"),
        ("log_checkpoints", "on"),
        ("wal_retrieve_retry_interval", "100ms"),
    ])
}

fn rows(server: &Server) -> String {
    server
        .query_text("SELECT count(*) || ' ' || coalesce(sum(i), 0) FROM t")
        .unwrap()
        .unwrap()
}

fn insert(primary: &Server) {
    primary.run("INSERT INTO t SELECT generate_series(1, 1000)");
}

fn caught_up(primary: &Server, standby: &mut Server) {
    standby.catch_up(primary).unwrap();
    assert_eq!(rows(standby), rows(primary));
}

fn crash(victim: Victim, moment: Moment) -> Crash {
    Crash { victim, moment }
}

#[test]
fn a_standby_comes_back_from_the_end_of_any_process() {
    let lab = Lab::for_tests().unwrap();
    let primary = lab.primary("primary", None, &small()).unwrap();
    let mut standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
    primary.run("CREATE TABLE t (i int)");
    for victim in [
        Victim::Server,
        Victim::Recovery,
        Victim::Postmaster,
        Victim::Process(Process::Startup),
        Victim::Process(Process::WalReceiver),
        Victim::Process(Process::Checkpointer),
        Victim::Process(Process::BackgroundWriter),
        Victim::Process(Process::ClientBackend),
    ] {
        insert(&primary);
        caught_up(&primary, &mut standby);
        let mut session = standby.connect(SUPERUSER, "bystander").unwrap();
        let old = process_of(&standby, Process::Checkpointer).unwrap();
        crash(victim, Moment::Now)
            .run(&primary, &mut standby, None)
            .unwrap_or_else(|error| panic!("{victim}: {error}"));
        assert!(
            session.execute("SELECT 1").is_err(),
            "{victim}: the server has not crashed"
        );
        assert_ne!(process_of(&standby, Process::Checkpointer), Some(old));
        insert(&primary);
        caught_up(&primary, &mut standby);
    }
}

#[test]
fn a_primary_loses_any_process_as_well() {
    let lab = Lab::for_tests().unwrap();
    let primary_settings = small();
    let mut primary = lab.primary("primary", None, &primary_settings).unwrap();
    let mut standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
    primary.run("CREATE TABLE t (i int)");
    for victim in [
        Victim::Process(Process::WalWriter),
        Victim::Process(Process::ClientBackend),
        Victim::Postmaster,
    ] {
        let mut session = primary.connect(SUPERUSER, "bystander").unwrap();
        victim.strike(&mut primary, None).unwrap();
        assert!(session.execute("SELECT 1").is_err(), "{victim}");
        insert(&primary);
        caught_up(&primary, &mut standby);
    }
}

#[test]
fn what_cannot_be_killed_is_named() {
    let lab = Lab::for_tests().unwrap();
    let primary = lab.primary("primary", None, &small()).unwrap();
    let mut standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
    let error = Victim::Process(Process::WalWriter)
        .strike(&mut standby, None)
        .unwrap_err();
    assert_eq!(error.to_string(), "server \"standby\" has no walwriter");
    let error = Victim::Power.strike(&mut standby, None).unwrap_err();
    assert!(matches!(error, VerifyError::Crash(CrashError::NoDisk(_))));
    standby.check_alive().unwrap();
}

/// Kills the standby at the moment; where replay was, and what the standby logged.
fn killed_at(moment: Moment, primary: &Server, standby: &mut Server) -> (Lsn, String) {
    let name = moment.to_string();
    let seen = fs::metadata(standby.log()).unwrap().len();
    let replayed = crash(Victim::Server, moment)
        .run(primary, standby, None)
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    caught_up(primary, standby);
    let log = fs::read(standby.log()).unwrap();
    let new = log.get(usize::try_from(seen).unwrap()..).unwrap();
    (replayed.unwrap(), String::from_utf8_lossy(new).into_owned())
}

#[test]
fn named_moments_are_met() {
    let lab = Lab::for_tests().unwrap();
    let primary = lab.primary("primary", None, &small()).unwrap();
    let mut standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
    primary.run("CREATE TABLE t (i int)");
    insert(&primary);

    let (_, log) = killed_at(Moment::Restartpoint, &primary, &mut standby);
    let start = log.find("restartpoint starting").unwrap();
    let crash = log.find("was interrupted").unwrap();
    assert!(start < crash, "{log}");

    insert(&primary);
    let wanted = primary.flush_lsn().unwrap();
    let (replayed, _) = killed_at(Moment::Replayed(wanted), &primary, &mut standby);
    assert!(replayed >= wanted);

    let before = u64::from(primary.flush_lsn().unwrap());
    let sql = "CREATE TABLE big AS SELECT generate_series(1, 400000) AS i; CREATE INDEX ON big (i)";
    let (replayed, _) = killed_at(Moment::Replaying(sql.to_owned()), &primary, &mut standby);
    let after = u64::from(primary.flush_lsn().unwrap());
    assert!(after - before > 5_000_000, "too little for a middle");
    assert!(u64::from(replayed) > before + (after - before) / 4);

    let mut client = standby.connect(SUPERUSER, "reloader").unwrap();
    thread::scope(|scope| {
        // Until the crash ends its session.
        scope.spawn(move || {
            while client.execute("SELECT pg_reload_conf()").is_ok() {
                thread::sleep(Duration::from_millis(20));
            }
        });
        let words = "received SIGHUP".to_owned();
        let (_, log) = killed_at(Moment::Logged(words.clone()), &primary, &mut standby);
        assert!(log.find(&words) < log.find("was interrupted"), "{log}");
    });
}

/// Prints why and returns true where power cannot be cut.
fn skipped(test: &str) -> bool {
    match PowerDisk::unavailable() {
        Some(reason) => {
            println!("SKIP {test}: {reason}");
            true
        }
        None => false,
    }
}

#[test]
fn a_power_cut_takes_what_was_not_synced() {
    if skipped("a_power_cut_takes_what_was_not_synced") {
        return;
    }
    let lab = Lab::for_tests().unwrap();
    let primary = lab.primary("primary", None, &small()).unwrap();
    let (mut standby, disk) =
        standby_on_disk(&lab, &primary, "standby", &Settings::new(), DISK_MB).unwrap();
    primary.run("CREATE TABLE t (i int)");
    insert(&primary);
    caught_up(&primary, &mut standby);
    let file = |name: &str| disk.folder().join(name);
    let write = |name: &str| {
        let mut made = File::create(file(name)).unwrap();
        made.write_all(&[b'x'; 100_000]).unwrap();
        made
    };
    write("synced").sync_all().unwrap();
    write("written");
    // A file that was there, changed in place.
    let mut changed = File::options().write(true).open(file("synced")).unwrap();
    changed.write_all(b"changed").unwrap();
    assert!(fs::read(file("synced")).unwrap().starts_with(b"changed"));
    drop(changed);

    Victim::Power.strike(&mut standby, Some(&disk)).unwrap();
    assert_eq!(fs::read(file("synced")).unwrap(), [b'x'; 100_000]);
    let written = fs::read(file("written")).unwrap_or_default();
    assert!(written.is_empty(), "{} bytes survived", written.len());
    fs::remove_file(file("synced")).unwrap();
    let _ = fs::remove_file(file("written"));

    insert(&primary);
    caught_up(&primary, &mut standby);
    drop((standby, primary));
    let folder = lab.folder().to_path_buf();
    drop(lab);
    assert_nothing_left(&folder);
}

#[test]
fn another_mount_namespace_does_not_keep_the_dead_disk() {
    let test = "another_mount_namespace_does_not_keep_the_dead_disk";
    if skipped(test) {
        return;
    }
    let lab = Lab::for_tests().unwrap();
    let primary = lab.primary("primary", None, &small()).unwrap();
    let (mut standby, disk) =
        standby_on_disk(&lab, &primary, "standby", &Settings::new(), DISK_MB).unwrap();
    primary.run("CREATE TABLE t (i int)");
    // As a container that starts meanwhile: it has a copy of every mount.
    let mut other = Command::new("/usr/bin/unshare")
        .args(["--mount", "--", "/bin/sh", "-c", "echo; exec cat"])
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(other.stdout.take().unwrap())
        .read_line(&mut ready)
        .unwrap();
    if ready.is_empty() {
        other.wait().unwrap();
        println!("SKIP {test}: no mount namespace can be made here");
    } else {
        for _ in 0..2 {
            Victim::Power.strike(&mut standby, Some(&disk)).unwrap();
            insert(&primary);
            caught_up(&primary, &mut standby);
        }
    }
    drop(other.stdin.take());
    other.wait().unwrap();
    drop((standby, primary));
    let folder = lab.folder().to_path_buf();
    drop(lab);
    assert_nothing_left(&folder);
}

fn assert_nothing_left(folder: &Path) {
    assert!(!folder.exists());
    assert!(sweep::processes(folder).is_empty());
    let name = folder.to_str().unwrap();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(name), "{mounts}");
    let loops = Command::new("/usr/sbin/losetup")
        .args(["--list", "--noheadings", "--output", "BACK-FILE"])
        .output()
        .unwrap();
    assert!(!String::from_utf8_lossy(&loops.stdout).contains(name));
}

/// What [`a_kill_leaves_no_mount_behind`] runs in a process of its own and kills.
#[test]
fn killed_entry() {
    if std::env::var_os("LOCKSTEP_KILLED_ENTRY").is_none() {
        return;
    }
    let lab = Lab::for_tests().unwrap();
    let primary = lab.primary("primary", None, &small()).unwrap();
    let _on_disk = standby_on_disk(&lab, &primary, "standby", &Settings::new(), DISK_MB).unwrap();
    println!("\nfolder {}", lab.folder().display());
    loop {
        thread::park();
    }
}

#[test]
fn a_kill_leaves_no_mount_behind() {
    if skipped("a_kill_leaves_no_mount_behind") {
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crashes::killed_entry", "--nocapture"])
        .env("LOCKSTEP_KILLED_ENTRY", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let folder = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .find_map(|line| Some(line.unwrap().strip_prefix("folder ")?.to_owned()))
        .unwrap();
    let folder = Path::new(&folder);
    assert!(folder.join("standby/postmaster.pid").exists());
    child.kill().unwrap();
    child.wait().unwrap();
    let killed = Instant::now();
    while folder.exists() {
        assert!(killed.elapsed() < Duration::from_secs(60), "still there");
        thread::sleep(Duration::from_millis(20));
    }
    assert_nothing_left(folder);
}
