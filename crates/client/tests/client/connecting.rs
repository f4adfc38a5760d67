//! All the ways to a server, and all the ways not to get there.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lockstep_client::{ClientError, Connection, Conninfo, Purpose, Result};
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{SUPERUSER, Server};

use super::{assert_line, conninfo, primary, replication, sql, value};

fn connect(text: &str) -> Result<Connection> {
    Connection::connect(&Conninfo::parse(text).unwrap(), Purpose::Sql, "by name")
}

/// Set in the child that [`variables_are_used`] starts.
const ENTRY: &str = "LOCKSTEP_TEST_CONNINFO";

/// Connects with nothing but variables, in a process of its own.
#[test]
fn variables_entry() {
    let Ok(text) = std::env::var(ENTRY) else {
        return;
    };
    let parsed = Conninfo::parse(&text).unwrap();
    let effective = |name| parsed.effective(name).unwrap_or_default();
    println!(
        "effective {} {} {}",
        effective("port"),
        effective("sslmode"),
        effective("connect_timeout")
    );
    let mut upstream = connect(&text).unwrap();
    let sql = "SELECT current_user || ' ' || current_setting('application_name')";
    println!("connected {}", value(&mut upstream, sql));
    println!(
        "timeout {}",
        upstream.option("connect_timeout").unwrap_or_default()
    );
}

fn in_child(text: &str, variables: &[(&str, &str)]) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "connecting::variables_entry", "--nocapture"])
        .env(ENTRY, text)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let cried = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{cried}");
    said
}

#[test]
fn variables_and_service_files_are_used() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    let (folder, port) = (server.sockets().display().to_string(), server.port());
    let said = in_child(
        "",
        &[
            ("PGHOST", &folder),
            ("PGPORT", &port.to_string()),
            ("PGUSER", SUPERUSER),
            ("PGDATABASE", "postgres"),
            ("PGSSLMODE", "allow"),
            ("PGAPPNAME", "by variable"),
        ],
    );
    assert_line(
        &said.replace('\n', " "),
        &[&format!("effective {port} allow ")],
    );
    assert!(said.contains("connected postgres by variable"), "{said}");
    assert!(said.contains("timeout 10"), "{said}");

    let file = lab.folder().join("services");
    fs::write(
        &file,
        format!(
            "[primary]\nhost={folder}\nport={port}\nuser={SUPERUSER}\ndbname=postgres\n\
             sslmode=disable\nconnect_timeout=7\n"
        ),
    )
    .unwrap();
    let said = in_child(
        "service=primary",
        &[("PGSERVICEFILE", &file.display().to_string())],
    );
    assert_has!(said, &format!("effective {port} disable 7"));
    assert!(said.contains("connected postgres by name"), "{said}");
    assert!(said.contains("timeout 7"), "{said}");
}

#[test]
fn sockets_addresses_and_uris_lead_to_the_server() {
    let lab = Lab::for_tests().unwrap();
    let mut server = primary(&lab);
    server.set([("listen_addresses", "127.0.0.1")]).unwrap();
    server.restart().unwrap();
    let (folder, port) = (server.sockets().display().to_string(), server.port());
    let escaped = folder.replace('/', "%2F");
    for (text, host, hostaddr) in [
        (
            format!("host={folder} port={port} user=postgres dbname=postgres"),
            folder.as_str(),
            None,
        ),
        (
            format!("postgresql://postgres@{escaped}:{port}/postgres"),
            &folder,
            None,
        ),
        (
            format!("postgres://postgres@127.0.0.1:{port}/postgres?sslmode=prefer"),
            "127.0.0.1",
            Some("127.0.0.1"),
        ),
        // The first of two is not there.
        (
            format!(
                "host=/nowhere,localhost port={port},{port} hostaddr=,127.0.0.1 user=postgres dbname=postgres target_session_attrs=read-write"
            ),
            "localhost",
            Some("127.0.0.1"),
        ),
    ] {
        let mut upstream = connect(&text).unwrap();
        let there = upstream.server().unwrap();
        assert_eq!(there.host, host, "{text}");
        assert_eq!(there.hostaddr.as_deref(), hostaddr, "{text}");
        assert_eq!(there.port, port);
        assert_eq!(
            (there.user.as_str(), there.database.as_str()),
            ("postgres", "postgres")
        );
        assert_eq!((there.tls, there.sslmode.as_str()), (false, "prefer"));
        assert_eq!(value(&mut upstream, "SHOW application_name"), "by name");
        assert_eq!(value(&mut upstream, "SHOW client_encoding"), "UTF8");
        assert!(upstream.server_version() >= 150_000);
        assert!(upstream.parameter("server_version").is_some());
        assert_eq!(
            value(&mut upstream, "SELECT pg_backend_pid()"),
            upstream.backend_pid().to_string()
        );
    }
}

/// Puts a line before all others of pg_hba.conf.
fn permit_first(server: &Server, line: &str) {
    let path = server.data().join("pg_hba.conf");
    let rest = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{line}\n{rest}")).unwrap();
    server.reload().unwrap();
}

/// Reloading is over some time later.
fn until_refused(text: &str) -> ClientError {
    loop {
        match connect(text) {
            Ok(_) => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => return error,
        }
    }
}

#[test]
fn passwords_are_found_and_not_told() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    server
        .execute("CREATE ROLE alice LOGIN REPLICATION PASSWORD 'correct horse'")
        .unwrap();
    permit_first(&server, "local all alice scram-sha-256");
    let plain = server.conninfo("alice");
    // No other password may be found by chance.
    let nothing = lab.folder().join("nothing");
    let none = format!("{plain} passfile={}", nothing.display());

    let error = until_refused(&none);
    assert_line(&error, &["password"]);
    assert!(matches!(error, ClientError::Connect(_)), "{error:?}");
    assert!(error.may_pass());

    let error = connect(&format!("{none} password='wrong horse'")).unwrap_err();
    assert_line(&error, &["alice", "password authentication failed"]);
    assert!(!format!("{error} {error:?}").contains("horse"));

    let mut upstream = connect(&format!("{none} password='correct horse'")).unwrap();
    assert_eq!(value(&mut upstream, "SELECT current_user"), "alice");
    assert_eq!(upstream.option("password"), None);
    assert!(!format!("{upstream:?} {:?}", upstream.server()).contains("horse"));

    let file = lab.folder().join("passwords");
    fs::write(&file, "*:*:*:alice:correct horse\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    connect(&format!("{plain} passfile={}", file.display())).unwrap();
}

#[test]
fn what_cannot_be_connected_to_is_named() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    for (text, words) in [
        (
            "host=/nowhere port=1 user=u dbname=d".to_owned(),
            &["/nowhere/.s.PGSQL.1", "No such file"][..],
        ),
        (
            format!("{} dbname=nothing", server.conninfo(SUPERUSER)),
            &["database \"nothing\" does not exist"],
        ),
        (
            format!("{} sslmode=nonsense", server.conninfo(SUPERUSER)),
            &["sslmode", "nonsense"],
        ),
        ("service=nothing".to_owned(), &["service", "nothing"]),
    ] {
        assert_line(&connect(&text).unwrap_err(), words);
    }
    // Takes connections, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let text = format!("host=127.0.0.1 port={port} user=u dbname=d connect_timeout=2");
    assert_line(&connect(&text).unwrap_err(), &["127.0.0.1", "timeout"]);
}

#[test]
fn queries_are_bounded_and_errors_are_whole() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    let mut upstream = sql(&server);

    let rows = upstream.query("SELECT 1, NULL, ''; SELECT 'é'").unwrap();
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(rows, [vec![text("1"), None, text("")], vec![text("é")]]);
    assert!(upstream.query("").unwrap().is_empty());
    assert!(upstream.query("CREATE TABLE t ()").unwrap().is_empty());

    let sql = "DO $$ BEGIN RAISE EXCEPTION 'one\n two' \
               USING DETAIL = 'three', HINT = 'four.', ERRCODE = 'XX123'; END $$";
    let error = upstream.query(sql).unwrap_err();
    assert_line(&error, &["run a query: one two (three) (four)"]);
    assert_eq!(error.refusal().unwrap().sqlstate, "XX123");
    // Notices are not printed, and do not disturb.
    upstream
        .query("DO $$ BEGIN RAISE WARNING 'not to be seen'; END $$")
        .unwrap();
    assert_eq!(value(&mut upstream, "SELECT 1"), "1");

    // What takes too long is cancelled, and the connection is good for the next.
    upstream.set_patience(Duration::from_millis(50));
    let error = upstream.query("SELECT pg_sleep(1000)").unwrap_err();
    assert!(matches!(error, ClientError::TimedOut { .. }), "{error:?}");
    upstream.set_patience(Duration::from_secs(60));
    assert_eq!(value(&mut upstream, "SELECT 1"), "1");

    let error = upstream.query("COPY t TO STDOUT").unwrap_err();
    assert!(matches!(error, ClientError::Protocol(_)), "{error:?}");
    assert!(matches!(
        upstream.query("SELECT 1"),
        Err(ClientError::Lost(_))
    ));

    let mut upstream = super::sql(&server);
    let error = upstream
        .query("SELECT repeat('x', 1000000) FROM generate_series(1, 100)")
        .unwrap_err();
    assert_line(&error, &["64 MB"]);

    let mut upstream = super::sql(&server);
    let pid = upstream.backend_pid();
    server
        .execute(&format!("SELECT pg_terminate_backend({pid}, 60000)"))
        .unwrap();
    let error = upstream.query("SELECT 1").unwrap_err();
    assert!(error.may_pass(), "{error:?}");
    assert!(matches!(
        upstream.query("SELECT 1"),
        Err(ClientError::Lost(_))
    ));
}

#[test]
fn sessions_of_replication_are_as_a_subscriber_has_them() {
    let lab = Lab::for_tests().unwrap();
    let server = primary(&lab);
    server
        .execute("ALTER ROLE postgres SET datestyle = 'SQL, DMY'; ALTER ROLE postgres SET search_path = 'x'")
        .unwrap();
    let mut upstream = replication(&server);
    assert_eq!(upstream.purpose(), Purpose::Replication);
    assert_eq!(value(&mut upstream, "SHOW datestyle"), "ISO, DMY");
    assert_eq!(value(&mut upstream, "SHOW search_path"), "");
    assert_eq!(value(&mut upstream, "SHOW extra_float_digits"), "3");
    let sql = "SELECT application_name FROM pg_catalog.pg_stat_replication";
    assert_eq!(value(&mut upstream, sql), "lockstep test");

    let other = conninfo(&server).with_database("template1").unwrap();
    let mut upstream = Connection::connect(&other, Purpose::Replication, "x").unwrap();
    assert_eq!(
        upstream.identify().unwrap().database.as_deref(),
        Some("template1")
    );
}

/// A certificate of its own for a server, which it then uses; returns the certificate.
pub fn use_tls(folder: &Path, server: &mut Server) -> PathBuf {
    let (key, certificate) = (folder.join("server.key"), folder.join("server.crt"));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
        ])
        .args(["-nodes", "-days", "2", "-subj", "/CN=localhost"])
        .args(["-addext", "subjectAltName=DNS:localhost"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .expect("needs the program openssl");
    assert!(made.status.success(), "{made:?}");
    // The server's account reads it through its data folder, where it owns what is there.
    for (from, name) in [(&key, "server.key"), (&certificate, "server.crt")] {
        let to = server.data().join(name);
        fs::copy(server.data().join("PG_VERSION"), &to).unwrap();
        fs::write(&to, fs::read(from).unwrap()).unwrap();
        let owner = fs::metadata(server.data()).unwrap();
        use std::os::unix::fs::MetadataExt;
        std::os::unix::fs::chown(&to, Some(owner.uid()), Some(owner.gid())).unwrap();
        fs::set_permissions(&to, fs::Permissions::from_mode(0o600)).unwrap();
    }
    server
        .set([("ssl", "on"), ("listen_addresses", "127.0.0.1")])
        .unwrap();
    server.restart().unwrap();
    certificate
}

#[test]
fn tls_is_used_and_told() {
    let lab = Lab::for_tests().unwrap();
    let mut server = primary(&lab);
    let certificate = use_tls(lab.folder(), &mut server);
    let at = |more: &str| {
        format!(
            "host=localhost hostaddr=127.0.0.1 port={} user=postgres dbname=postgres {more}",
            server.port()
        )
    };
    let there = connect(&at("")).unwrap().server().unwrap();
    assert!(there.tls);
    let verified = at(&format!(
        "sslmode=verify-full sslrootcert={}",
        certificate.display()
    ));
    let mut upstream = connect(&verified).unwrap();
    let there = upstream.server().unwrap();
    assert!(there.tls && there.sslsni);
    assert_eq!(there.sslmode, "verify-full");
    assert_eq!(there.sslrootcert.as_deref(), certificate.to_str());
    assert_eq!(there.ssl_min_protocol_version.as_deref(), Some("TLSv1.2"));
    // Larger than libpq's buffer and than a record.
    let sql = "SELECT length(repeat('x', n)::text)::text || ' ' || repeat('x', n) \
               FROM generate_series(1, 200000, 33333) AS n";
    for row in upstream.query(sql).unwrap() {
        let text = row[0].clone().unwrap();
        let (length, rest) = text.split_once(' ').unwrap();
        assert_eq!(length, rest.len().to_string());
    }
    let other = at("sslmode=verify-full sslrootcert=/nothing");
    assert_line(&connect(&other).unwrap_err(), &["/nothing"]);
    assert!(
        !connect(&at("sslmode=disable"))
            .unwrap()
            .server()
            .unwrap()
            .tls
    );
}
