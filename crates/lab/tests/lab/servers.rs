//! Private clusters from the first start to the last: each test has its own lab.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use lockstep_lab::cluster::{Lab, LabOptions};
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::package::{Major, Package};
use lockstep_lab::pinning::Side;
use lockstep_lab::server::{Server, Settings, Stop, settings_of};
use lockstep_lab::workload::{APP_ROLE, Workload};
use lockstep_lab::{LabError, Role, sweep};
use lockstep_service::postgres::{PACKAGES, SUPPORTED};

fn small() -> Settings {
    settings_of([("shared_buffers", "16MB"), ("max_connections", "20")])
}

fn rows(server: &Server) -> String {
    server
        .query_text("SELECT count(*)::text FROM t")
        .unwrap()
        .unwrap()
}

/// The error is one line with these words.
fn assert_line(error: &LabError, words: &[&str]) {
    let line = error.to_string();
    assert!(!line.contains('\n'), "{line}");
    for word in words {
        assert!(line.contains(word), "no \"{word}\" in: {line}");
    }
}

#[test]
fn a_standby_survives_crashes_of_both_ends_and_its_promotion() {
    let lab = TestLab::stock().pinned().start().unwrap();
    let folder = lab.folder().to_path_buf();
    let mut primary = lab.primary("primary", None, &small()).unwrap();
    let mut standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();

    primary.run("CREATE TABLE t AS SELECT generate_series(1, 100)");
    standby.catch_up(&primary).unwrap();
    assert_eq!(rows(&standby), "100");
    let name = primary
        .query_text("SELECT application_name FROM pg_stat_replication")
        .unwrap();
    assert_eq!(name.as_deref(), Some("standby"));

    standby.kill().unwrap();
    assert!(standby.pid().is_none());
    primary.run("INSERT INTO t VALUES (0)");
    standby.start().unwrap();
    standby.catch_up(&primary).unwrap();
    assert_eq!(rows(&standby), "101");

    primary.stop(Stop::Immediate).unwrap();
    primary.start().unwrap();
    primary.run("INSERT INTO t VALUES (0)");
    standby.catch_up(&primary).unwrap();

    primary.set([("work_mem", "5MB")]).unwrap();
    primary.restart().unwrap();
    assert_eq!(
        primary.query_text("SHOW work_mem").unwrap().as_deref(),
        Some("5MB")
    );

    primary.stop(Stop::Fast).unwrap();
    assert_eq!(standby.id().role, Role::Standby);
    standby.promote().unwrap();
    standby.run("INSERT INTO t VALUES (0)");
    assert_eq!(rows(&standby), "103");
    // Nobody but the lab connects to it, and the lab not before it takes sessions.
    let log = standby.log_since(0).unwrap();
    assert!(!log.contains("client backend FATAL:"), "{log}");

    drop((primary, standby));
    drop(lab);
    assert!(!folder.exists());
}

#[test]
fn servers_are_private() {
    let lab = TestLab::stock().pinned().start().unwrap();
    let primary = lab.primary("primary", None, &small()).unwrap();
    assert_ne!(primary.port(), 5432);
    assert!(
        lab.folder()
            .join(format!(".s.PGSQL.{}", primary.port()))
            .exists()
    );
    let show = |name: &str| {
        primary
            .query_text(&format!("SHOW {name}"))
            .unwrap()
            .unwrap()
    };
    assert_eq!(show("listen_addresses"), "");
    assert_eq!(
        show("unix_socket_directories"),
        lab.folder().display().to_string()
    );
    assert_eq!(show("server_encoding"), "UTF8");
    assert_eq!(
        show("data_checksums"),
        checksums_default(lab.package().major())
    );
    let status = fs::read_to_string(format!("/proc/{}/status", primary.pid().unwrap())).unwrap();
    let uid = status
        .lines()
        .find(|line| line.starts_with("Uid:"))
        .unwrap();
    assert!(!uid.split_whitespace().any(|id| id == "0"), "{uid}");

    lab.create_app_role(&primary).unwrap();
    let exempt = primary
        .query_text(&format!(
            "SELECT (rolsuper OR rolreplication OR pg_has_role(oid, 'pg_monitor', 'USAGE'))::text \
             FROM pg_roles WHERE rolname = '{APP_ROLE}'"
        ))
        .unwrap();
    assert_eq!(exempt.as_deref(), Some("false"));
}

fn checksums_default(major: Major) -> &'static str {
    if major.get() >= 18 { "on" } else { "off" }
}

#[test]
fn what_is_left_running_ends_with_the_lab() {
    let lab = TestLab::stock().pinned().start().unwrap();
    let folder = lab.folder().to_path_buf();
    let primary = lab.primary("primary", None, &small()).unwrap();
    let pid = primary.pid().unwrap();
    // As when an error path forgets it.
    std::mem::forget(primary);
    // Any other program, which may go elsewhere.
    let mut other = lab.launcher().command("/usr/bin/sleep");
    other.arg("600").current_dir("/");
    let mut other = lab.launcher().spawn(other, Side::Both).unwrap();
    let pids = [pid, i32::try_from(other.id()).unwrap()];
    let found = sweep::processes(&folder);
    assert!(
        pids.iter().all(|pid| found.contains(pid)),
        "{pids:?} {found:?}"
    );
    drop(lab);
    assert!(sweep::processes(&folder).is_empty());
    assert!(!folder.exists());
    assert!(!other.wait().unwrap().success());
}

#[test]
fn a_data_folder_that_is_not_empty_is_left_alone() {
    let lab = TestLab::stock().pinned().start().unwrap();
    let data = lab.folder().join("primary");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("precious"), "x").unwrap();
    let error = lab.primary("primary", None, &small()).unwrap_err();
    assert!(matches!(error, LabError::DataFolderInUse(_)));
    assert_line(&error, &["primary", "not empty", "remove it"]);
    assert_eq!(fs::read(data.join("precious")).unwrap(), b"x");
    assert_eq!(fs::read_dir(&data).unwrap().count(), 1);
}

#[test]
fn a_port_in_use_is_refused() {
    let lab = TestLab::stock().pinned().start().unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let taken = listener.local_addr().unwrap().port();
    let error = lab.primary("one", Some(taken), &small()).unwrap_err();
    assert_line(&error, &[&taken.to_string(), "in use", "another port"]);
    assert!(!lab.folder().join("one").exists());

    let running = lab.primary("two", None, &small()).unwrap();
    let error = lab
        .primary("three", Some(running.port()), &small())
        .unwrap_err();
    assert!(matches!(error, LabError::PortInUse(_)));
    assert_eq!(rows_of_one(&running), "1");
}

fn rows_of_one(server: &Server) -> String {
    server.query_text("SELECT '1'").unwrap().unwrap()
}

#[test]
fn a_start_that_fails_says_why_in_one_line() {
    let lab = TestLab::stock().pinned().start().unwrap();
    let mut server = lab.primary("primary", None, &small()).unwrap();
    let garbage = lab.folder().join("garbage.so");
    fs::write(&garbage, "not a library").unwrap();
    make_readable(&garbage);
    let cases: [(&str, &str, &[&str]); 4] = [
        (
            "shared_preload_libraries",
            "no_such_library",
            &["no_such_library", "build and install"],
        ),
        (
            "shared_preload_libraries",
            garbage.to_str().unwrap(),
            &["could not load library", "rebuild"],
        ),
        ("no_such_setting", "1", &["no_such_setting", "correct"]),
        ("shared_buffers", "lots", &["shared_buffers", "correct"]),
    ];
    server.stop(Stop::Fast).unwrap();
    for (name, value, words) in cases {
        server.set([(name, value)]).unwrap();
        let error = server.start().unwrap_err();
        assert!(matches!(error, LabError::Start { .. }), "{error}");
        assert_eq!(error.role(), Some(Role::Primary));
        assert_line(&error, words);
        assert!(server.pid().is_none());
        server.unset(name).unwrap();
    }
    server.start().unwrap();
}

#[test]
fn a_socket_in_use_says_so_in_one_line() {
    let lab = TestLab::stock().pinned().start().unwrap();
    let running = lab.primary("running", None, &small()).unwrap();
    let mut other = lab.primary("other", None, &small()).unwrap();
    other.stop(Stop::Fast).unwrap();
    // Later lines win, so this stands for a program that took the port in between.
    let conf = other.data().join("postgresql.conf");
    let text = fs::read_to_string(&conf).unwrap();
    fs::write(&conf, format!("{text}\nport = {}\n", running.port())).unwrap();
    let error = other.start().unwrap_err();
    assert_line(&error, &["port is in use", "choose another port"]);
    assert_eq!(rows_of_one(&running), "1");
}

fn make_readable(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_missing_server_package_is_named() {
    let missing = SUPPORTED
        .map(|major| major.to_string().parse::<Major>().unwrap())
        .find(|major| !Path::new(PACKAGES).join(major.to_string()).exists());
    let Some(major) = missing else {
        println!("ELSEWHERE: every supported major is installed here");
        return;
    };
    let error = Package::find(major).unwrap_err();
    assert_line(
        &error,
        &[&format!("install the package postgresql-{major}")],
    );
    let wanted = LabOptions {
        major,
        ..TestLab::stock().options().unwrap()
    };
    assert!(matches!(
        Lab::new(&wanted),
        Err(LabError::MissingPackage { .. })
    ));
}

#[test]
fn a_missing_stage_is_named_and_nothing_is_left() {
    let wanted = LabOptions {
        stage: Some("/nonexistent/stage".into()),
        ..TestLab::stock().options().unwrap()
    };
    let error = Lab::new(&wanted).unwrap_err();
    assert_line(&error, &["/nonexistent/stage", "make build"]);
}

#[test]
fn a_folder_that_is_too_small_is_refused() {
    let wanted = LabOptions {
        space_mb: 1_000_000_000,
        ..TestLab::stock().options().unwrap()
    };
    assert_line(&Lab::new(&wanted).unwrap_err(), &["MB free", "TMPDIR"]);
}

#[test]
fn load_that_cannot_run_says_why() {
    let lab = TestLab::stock().pinned().start().unwrap();
    let primary = lab.primary("primary", None, &small()).unwrap();
    lab.create_app_role(&primary).unwrap();
    // No data loaded.
    let mut load = lab
        .start_load(&primary, Side::Primary, Workload::TpcB, 2, 1)
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    let error = loop {
        match load.check() {
            Err(error) => break error,
            Ok(()) => assert!(Instant::now() < deadline),
        }
        thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(error.role(), Some(Role::Primary));
    assert_line(&error, &["write load", "pgbench_branches"]);
}

#[test]
fn clusters_of_a_lab_are_different_ones() {
    let lab = Lab::for_tests().unwrap();
    let [one, other] = ["one", "other"].map(|name| {
        let server = lab.primary(name, None, &small()).unwrap();
        assert_eq!(server.query_text("SHOW fsync").unwrap().unwrap(), "off");
        server
            .query_text("SELECT system_identifier::text FROM pg_control_system()")
            .unwrap()
            .unwrap()
    });
    assert_ne!(one, other);
}

/// What labs of a process share goes with the process, after all of them.
#[test]
fn nothing_shared_is_left() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    // The servers' account must get inside.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "servers::servers_are_private"])
        .env("TMPDIR", folder.path())
        .status()
        .unwrap();
    assert!(status.success());
    let deadline = Instant::now() + Duration::from_secs(120);
    while fs::read_dir(folder.path()).unwrap().next().is_some() {
        assert!(Instant::now() < deadline, "something is left");
        thread::sleep(Duration::from_millis(5));
    }
}
