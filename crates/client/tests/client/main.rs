//! Against real servers: each test has its own.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod connecting;
mod copy;
mod pipeline;
mod slots;
mod standby_names;
mod statements;
mod streaming;

use lockstep_client::{Connection, Conninfo, Purpose};
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{SUPERUSER, Server, Settings, settings_of};

lockstep_lab::reaper_entry!();

fn settings() -> Settings {
    settings_of([
        ("wal_level", "logical"),
        ("shared_buffers", "16MB"),
        ("max_connections", "20"),
        ("max_replication_slots", "10"),
        ("autovacuum", "off"),
    ])
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

fn assert_line(error: &impl std::fmt::Display, words: &[&str]) {
    let line = error.to_string();
    assert!(!line.contains('\n'), "{line}");
    for word in words {
        assert!(line.contains(word), "no \"{word}\" in: {line}");
    }
}
