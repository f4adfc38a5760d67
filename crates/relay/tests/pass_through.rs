//! Clients of a real server through the relay: what they see must be what the server says.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod serve_lab;

use serve_lab::{Options, Relay, complaint, lab, primary, printed, psql, rules, run};

/// See [`serve_lab::reaper`].
#[test]
fn reaper_entry() {
    serve_lab::reaper();
}

#[test]
fn sessions_are_those_of_the_primary() {
    let lab = lab();
    let server = primary(&lab, &[]);
    server
        .execute("CREATE ROLE app LOGIN PASSWORD 'secret'; CREATE ROLE old LOGIN; CREATE TABLE t (a int, v text)")
        .unwrap();
    server
        .execute("SET password_encryption = md5; ALTER ROLE old PASSWORD 'older'")
        .unwrap();
    rules(&server, "local all app scram-sha-256\nlocal all old md5");
    let relay = Relay::start(Options::of(&server));
    let us = relay.conninfo("postgres", "");

    assert_eq!(
        printed(psql(&us, &["SHOW server_version", "SELECT 1", "SELECT 2"])),
        format!(
            "{}\n1\n2",
            server.query_text("SHOW server_version").unwrap().unwrap()
        )
    );

    let app = relay.conninfo("app", "password=secret");
    assert_eq!(printed(psql(&app, &["SELECT current_user"])), "app");
    let wrong = relay.conninfo("app", "password=wrong");
    assert!(complaint(psql(&wrong, &["SELECT 1"])).contains("password authentication failed"));
    let old = relay.conninfo("old", "password=older");
    assert_eq!(printed(psql(&old, &["SELECT current_user"])), "old");

    // Both ways, a few MB.
    let mut rows = String::new();
    for number in 0..200_000 {
        rows.push_str(&format!("{number}\tthe row number {number}\n"));
    }
    let copied = run(psql(&us, &["COPY t FROM STDIN"]), rows.as_bytes());
    assert!(copied.status.success());
    assert!(printed(psql(&us, &["COPY t TO STDOUT"])) == rows.trim_end());

    // Far beyond what is ever collected.
    let long = "x".repeat(20 * 1024 * 1024);
    let query = format!("SELECT length('{long}');");
    let output = run(psql(&us, &[]), query.as_bytes());
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        long.len().to_string()
    );
}
