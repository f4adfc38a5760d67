//! Against real servers: each test has its own.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod connecting;
mod slots;
mod statements;
mod streaming;

use lockstep_client::{Connection, Conninfo, Purpose};
use lockstep_lab::cluster::{Lab, LabOptions};
use lockstep_lab::guard::{self, ReaperProgram};
use lockstep_lab::server::{SUPERUSER, Server, Settings};

/// The reaper of the labs below, which start this program under the reaper's name and
/// with this test's. As one test among others it has nothing to do.
#[test]
fn reaper_entry() {
    if std::env::args().next().as_deref() == Some(guard::REAPER_NAME) {
        guard::run_reaper().unwrap();
    }
}

fn lab() -> Lab {
    let major = std::env::var("PG").unwrap_or_else(|_| "15".to_owned());
    Lab::new(&LabOptions {
        major: major.parse().unwrap(),
        stage: None,
        reaper: ReaperProgram {
            program: std::env::current_exe().unwrap(),
            args: ["--exact", "reaper_entry", "--nocapture"]
                .map(str::to_owned)
                .to_vec(),
        },
        space_mb: 500,
        pinned: false,
    })
    .unwrap()
}

fn settings() -> Settings {
    [
        ("wal_level", "logical"),
        ("shared_buffers", "16MB"),
        ("max_connections", "20"),
        ("max_replication_slots", "10"),
        ("autovacuum", "off"),
        ("fsync", "off"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

fn primary(lab: &Lab) -> Server {
    lab.primary("primary", None, &settings()).unwrap()
}

fn conninfo(server: &Server) -> Conninfo {
    Conninfo::parse(&server.conninfo(SUPERUSER)).unwrap()
}

fn replication(server: &Server) -> Connection {
    Connection::connect(&conninfo(server), Purpose::Replication, "lockstep test").unwrap()
}

fn sql(server: &Server) -> Connection {
    Connection::connect(&conninfo(server), Purpose::Sql, "lockstep test").unwrap()
}

/// The first column of the first row.
fn value(upstream: &mut Connection, sql: &str) -> String {
    upstream.query(sql).unwrap()[0][0].clone().unwrap()
}

/// One line with these words.
fn assert_line(error: &impl std::fmt::Display, words: &[&str]) {
    let line = error.to_string();
    assert!(!line.contains('\n'), "{line}");
    for word in words {
        assert!(line.contains(word), "no \"{word}\" in: {line}");
    }
}
