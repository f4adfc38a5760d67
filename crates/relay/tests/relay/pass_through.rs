//! Clients of a real server through the relay: what they see must be what the server says.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, chown};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use crate::serve_lab::{
    Options, Relay, certificate, complaint, primary, printed, program, psql, rules, run,
};
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::pause;
use lockstep_lab::server::{Server, Stop};
use lockstep_relay::serve::{Tls, TlsToPrimary, Verify};
use lockstep_service::tls::TlsFiles;

/// Roles that log in with passwords.
fn roles(server: &Server) {
    server.run("CREATE ROLE app LOGIN PASSWORD 'secret'; CREATE ROLE old LOGIN");
    server.run("SET password_encryption = md5; ALTER ROLE old PASSWORD 'older'");
    rules(
        server,
        "local all app scram-sha-256\n\
         local all old md5\n\
         hostssl all app 127.0.0.1/32 scram-sha-256\n\
         hostssl all postgres 127.0.0.1/32 trust",
    );
}

#[test]
fn sessions_are_those_of_the_primary() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab, &[]);
    roles(&server);
    server.run("CREATE TABLE t (a int, v text)");
    let relay = Relay::start(Options::of(&server));
    let us = relay.conninfo("postgres", "");

    let version = server.query_text("SHOW server_version").unwrap().unwrap();
    assert_eq!(
        printed(psql(&us, &["SHOW server_version", "SELECT 1", "SELECT 2"])),
        format!("{version}\n1\n2")
    );
    let app = relay.conninfo("app", "password=secret");
    assert_eq!(printed(psql(&app, &["SELECT current_user"])), "app");
    let wrong = relay.conninfo("app", "password=wrong");
    assert!(complaint(psql(&wrong, &["SELECT 1"])).contains("password authentication failed"));
    let missing = us.replace("dbname=postgres", "dbname=nowhere");
    assert!(complaint(psql(&missing, &["SELECT 1"])).contains("\"nowhere\" does not exist"));
    let strange = relay.conninfo("postgres", "options='-c nonsense=1'");
    assert!(complaint(psql(&strange, &["SELECT 1"])).contains("nonsense"));

    // Both ways, a few MB.
    let mut rows = String::new();
    for number in 0..200_000 {
        rows.push_str(&format!("{number}\tthe row number {number}\n"));
    }
    assert!(
        run(psql(&us, &["COPY t FROM STDIN"]), rows.as_bytes())
            .status
            .success()
    );
    assert!(printed(psql(&us, &["COPY t TO STDOUT"])) == rows.trim_end());

    // Far beyond what is ever collected.
    let long = "x".repeat(20 * 1024 * 1024);
    let query = format!("SELECT length('{long}');");
    let output = run(psql(&us, &[]), query.as_bytes());
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        long.len().to_string()
    );
    let seen = relay.mock.seen.lock().unwrap().clone();
    assert_eq!(
        seen.iter()
            .filter(|what| what.starts_with("opened"))
            .count(),
        5
    );
    drop(relay);
    // The roles' logins failed, or their sessions ended, and nothing else was noted.
    assert!(seen.iter().all(|what| what.contains("ed ")), "{seen:?}");
}

#[test]
fn both_kinds_of_passwords_pass() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab, &[]);
    roles(&server);
    let relay = Relay::start(Options::of(&server));
    for (user, password) in [("app", "secret"), ("old", "older")] {
        let right = relay.conninfo(user, &format!("password={password}"));
        assert_eq!(printed(psql(&right, &["SELECT current_user"])), user);
        let wrong = relay.conninfo(user, "password=wrong");
        assert!(complaint(psql(&wrong, &["SELECT 1"])).contains("password authentication failed"));
    }
}

/// Does what Ctrl-C does.
fn interrupt(child: &Child) {
    let pid = child.id().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status();
    assert!(sent.unwrap().success());
}

#[test]
fn a_cancel_request_reaches_the_primary() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab, &[]);
    let relay = Relay::start(Options::of(&server));
    let us = relay.conninfo("postgres", "");
    let mut sleeper = psql(&us, &["SELECT 'asleep'", "SELECT pg_sleep(600)"]);
    let mut child = sleeper
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let active = "SELECT query FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%sleep(600)' \
        AND pid <> pg_backend_pid()";
    while server.query_text(active).unwrap().is_none() {
        pause();
    }
    interrupt(&child);
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(!child.wait().unwrap().success());
    assert_has!(said, "canceling statement due to user request");
}

#[test]
fn replication_sessions_are_shared_between_primary_and_owner() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab, &[]);
    let relay = Relay::start(Options::of(&server));
    let us = relay.conninfo("postgres", "replication=database");

    let system = server
        .query_text("SELECT system_identifier::text FROM pg_control_system()")
        .unwrap()
        .unwrap();
    let row = printed(psql(&us, &["IDENTIFY_SYSTEM"]));
    assert!(
        row.starts_with(&format!("{system}|1|")) && row.ends_with("|postgres"),
        "{row}"
    );
    assert_eq!(
        printed(psql(
            &us,
            &[
                "READ_REPLICATION_SLOT ours",
                "SHOW wal_level",
                "DROP_REPLICATION_SLOT ours"
            ]
        )),
        "ours\nlogical"
    );
    assert_has!(
        complaint(psql(&us, &["DROP_REPLICATION_SLOT theirs"])),
        "\"theirs\" does not exist"
    );
    assert_eq!(
        relay
            .mock
            .seen
            .lock()
            .unwrap()
            .iter()
            .filter(|what| what.contains("IDENTIFY_SYSTEM"))
            .count(),
        1
    );
}

#[test]
fn slots_of_the_primary_and_of_the_relay_are_streamed() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab, &[]);
    let relay = Relay::start(Options::of(&server));
    // A slot of the primary passes through.
    server.run("SELECT pg_create_logical_replication_slot('theirs', 'test_decoding')");
    server.run("CREATE TABLE t AS SELECT 1 AS a");
    let end = server.flush_lsn().unwrap().to_string();
    let receive = |slot: &str, more: &[&str]| {
        let mut receiver = program("pg_recvlogical");
        receiver.args(["--dbname", &relay.conninfo("postgres", "")]);
        receiver.args(["--slot", slot, "--start", "--no-loop", "--file", "-"]);
        receiver.args(more);
        receiver
    };
    let decoded = printed(receive("theirs", &["--endpos", &end]));
    assert_has!(decoded, "table public.t: INSERT: a[integer]:1");

    // Ours is streamed by the relay, and costs the primary no walsender meanwhile.
    let mut streaming = receive("ours", &["--status-interval", "1"]);
    let mut child = streaming
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut lines = String::new();
    while lines.lines().count() < 3 {
        assert!(stdout.read_line(&mut lines).unwrap() > 0);
    }
    assert_eq!(lines, "one\ntwo\nthree\n");
    let walsenders = "SELECT pid::text FROM pg_stat_activity WHERE backend_type = 'walsender'";
    while server.query_text(walsenders).unwrap().is_some() {
        pause();
    }
    interrupt(&child);
    assert!(child.wait().unwrap().success());
}

#[test]
fn physical_replication_passes() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab, &[]);
    let relay = Relay::start(Options::of(&server));
    let folder = tempfile::tempdir().unwrap();
    let mut backup = program("pg_basebackup");
    backup.args(["--dbname", &relay.conninfo("postgres", "")]);
    backup.args([
        "--wal-method",
        "stream",
        "--checkpoint",
        "fast",
        "--no-sync",
        "--pgdata",
    ]);
    backup.arg(folder.path().join("copy"));
    printed(backup);
    let mut verify = program("pg_verifybackup");
    verify.arg(folder.path().join("copy"));
    printed(verify);
}

#[test]
fn the_console_asks_the_primary_who_it_is() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab, &[]);
    server.run(
        "CREATE ROLE watcher LOGIN IN ROLE pg_monitor; CREATE ROLE keeper; \
             CREATE ROLE helper LOGIN NOINHERIT IN ROLE keeper; CREATE ROLE nobody LOGIN; \
             CREATE ROLE app LOGIN PASSWORD 'secret'; \
             CREATE SCHEMA trap AUTHORIZATION nobody",
    );
    // Names that would lie, found first.
    server
        .run(
            "CREATE FUNCTION trap.yes(name, name) RETURNS bool LANGUAGE sql AS 'SELECT true'; \
             CREATE OPERATOR trap.= (LEFTARG = name, RIGHTARG = name, FUNCTION = trap.yes); \
             CREATE FUNCTION trap.pg_has_role(oid, text, text) RETURNS bool LANGUAGE sql AS 'SELECT true'; \
             CREATE VIEW trap.pg_roles AS SELECT 'nobody'::name AS rolname, true AS rolsuper, 10::oid AS oid; \
             GRANT SELECT ON trap.pg_roles TO PUBLIC; \
             ALTER ROLE nobody SET search_path = trap, pg_catalog",
        );
    rules(&server, "local all app scram-sha-256");
    let relay = Relay::start(Options::of(&server));
    let console = |user: &str, more: &str| {
        relay
            .conninfo(user, more)
            .replace("dbname=postgres", "dbname=lockstep")
    };
    for (user, rights) in [
        ("postgres", "true true true"),
        ("watcher", "false true false"),
        ("helper", "false false true"),
        ("nobody", "false false false"),
    ] {
        assert_eq!(
            printed(psql(&console(user, ""), &["SHOW SLOTS", "RELOAD;"])),
            format!("{user} {rights}: SHOW SLOTS\n{user} {rights}: RELOAD;")
        );
    }
    let app = console("app", "password=secret");
    assert_eq!(printed(psql(&app, &["x"])), "app false false false: x");
    let wrong = console("app", "password=wrong");
    assert!(complaint(psql(&wrong, &["x"])).contains("password authentication failed"));
    // The extended protocol, which psql 15 has only for \gdesc.
    let output = run(psql(&app, &[]), b"SELECT 1 \\gdesc\n");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("said"), "{said}");
    // The question has left no session behind.
    while server
        .query_text("SELECT pid::text FROM pg_stat_activity WHERE application_name = 'psql'")
        .unwrap()
        .is_some()
    {}
}

#[test]
fn a_primary_that_goes_away_is_missed_as_it_would_be() {
    let lab = Lab::for_tests().unwrap();
    let mut server = primary(&lab, &[]);
    let relay = Relay::start(Options::of(&server));
    let us = relay.conninfo("postgres", "");
    let mut sleeper = psql(&us, &["SELECT 'asleep'", "SELECT pg_sleep(600)"]);
    let mut child = sleeper
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    server.stop(Stop::Fast).unwrap();
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(!child.wait().unwrap().success());
    assert_has!(said, "terminating connection due to administrator command");

    let said = complaint(psql(&us, &["SELECT 1"]));
    assert_has!(said, "FATAL:  the relay cannot reach the primary");
    server.start().unwrap();
    assert_eq!(printed(psql(&us, &["SELECT 1"])), "1");
}

#[test]
fn tls_on_either_leg_and_on_both() {
    let folder = tempfile::tempdir().unwrap();
    let Some((certificate_file, key)) = certificate(folder.path(), true) else {
        return;
    };
    let lab = Lab::for_tests().unwrap();
    let mut server = primary(&lab, &[]);
    let owner = std::fs::metadata(server.data()).unwrap();
    for (from, name) in [(&certificate_file, "server.crt"), (&key, "server.key")] {
        let to = server.data().join(name);
        std::fs::copy(from, &to).unwrap();
        chown(&to, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
    server
        .set([("listen_addresses", "127.0.0.1"), ("ssl", "on")])
        .unwrap();
    server.restart().unwrap();
    roles(&server);

    let tls = || {
        Some(Arc::new(
            Tls::load(TlsFiles {
                certificate: certificate_file.clone(),
                key: key.clone(),
            })
            .unwrap(),
        ))
    };
    let to_primary = |verify| {
        Some(TlsToPrimary {
            verify,
            root_certificates: Some(certificate_file.clone()),
            server_name: None,
            required: true,
        })
    };
    let root = certificate_file.display();
    let verified = format!("sslmode=verify-full sslrootcert={root} password=secret");
    let is_tls = "SELECT ssl::text FROM pg_stat_ssl WHERE pid = pg_backend_pid()";

    // Towards the client only.
    let mut options = Options::of(&server);
    options.tls = tls();
    options.tls_required = true;
    let relay = Relay::start(options);
    let app = relay.conninfo("app", &verified);
    assert_eq!(
        printed(psql(&app, &["SELECT current_user", is_tls])),
        "app\nfalse"
    );
    let plain = relay.conninfo("app", "sslmode=disable password=secret");
    let said = complaint(psql(&plain, &["SELECT 1"]));
    assert_has!(said, "only takes connections that are encrypted");
    assert!(said.contains("sslmode=require"), "{said}");
    let bound = relay.conninfo("app", &format!("{verified} channel_binding=require"));
    assert!(complaint(psql(&bound, &["SELECT 1"])).contains("channel binding"));
    drop(relay);

    // Towards the primary only, and on both sides.
    for verify in [Verify::None, Verify::Ca, Verify::Full] {
        let mut options = Options::of(&server);
        options.tls = tls();
        options.address.host = "127.0.0.1".to_owned();
        options.address.tls = to_primary(verify);
        let relay = Relay::start(options);
        let plain = relay.conninfo("app", "sslmode=disable password=secret");
        assert_eq!(
            printed(psql(&plain, &["SELECT current_user", is_tls])),
            "app\ntrue"
        );
        let superuser = relay.conninfo("postgres", &verified);
        assert_eq!(printed(psql(&superuser, &[is_tls])), "true");
        let unbound = relay.conninfo("app", &format!("{verified} channel_binding=disable"));
        assert_eq!(
            printed(psql(&unbound, &["SELECT current_user", is_tls])),
            "app\ntrue"
        );
        let could_bind = relay.conninfo("app", &verified);
        let said = complaint(psql(&could_bind, &["SELECT 1"]));
        assert!(said.contains("channel_binding=disable"), "{said}");
    }

    // A name that the certificate has not.
    for (verify, fits) in [(Verify::Ca, true), (Verify::Full, false)] {
        let mut options = Options::of(&server);
        options.address.host = "elsewhere".to_owned();
        options.address.hostaddr = Some("127.0.0.1".to_owned());
        options.address.tls = to_primary(verify);
        let relay = Relay::start(options);
        let superuser = psql(&relay.conninfo("postgres", ""), &[is_tls]);
        match fits {
            true => assert_eq!(printed(superuser), "true"),
            false => assert!(complaint(superuser).contains("certificate")),
        }
    }
    // A certificate of somebody else.
    let other = tempfile::tempdir().unwrap();
    let (other, _) = certificate(other.path(), true).unwrap();
    let mut options = Options::of(&server);
    options.address.host = "127.0.0.1".to_owned();
    options.address.tls = to_primary(Verify::Ca).map(|tls| TlsToPrimary {
        root_certificates: Some(other),
        ..tls
    });
    let relay = Relay::start(options);
    let said = complaint(psql(&relay.conninfo("postgres", ""), &[is_tls]));
    assert!(said.contains("certificate"), "{said}");
}
