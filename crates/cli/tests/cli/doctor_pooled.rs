//! Doctor through PgBouncer in transaction mode, which gives one session of a server to all clients in
//! turn. Nothing may be left on it.

use std::process::{Child, Stdio};

use crate::doctor_support::{brief, doctor, once_right, untroubled};
use crate::relay_support::until;
use lockstep_client::{Connection, Conninfo, Purpose};
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::pinning::Side;
use lockstep_lab::server::{SUPERUSER, Server, Settings};
use serde_json::Value;

/// Where Debian's package puts it.
pub const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// What a session has that it had not when it began.
const LEFT: &str = "SELECT (SELECT coalesce(string_agg(name, ' '), '') FROM pg_prepared_statements) || ';' || \
     (SELECT coalesce(string_agg(name, ' '), '') FROM pg_settings WHERE source = 'session' \
      AND name NOT IN ('application_name', 'client_encoding', 'DateStyle', 'TimeZone', \
      'standard_conforming_strings')) || ';' || current_setting('client_encoding')";

/// A PgBouncer in transaction mode in front of a server.
pub struct Bouncer {
    process: Child,
    pub conninfo: String,
}

impl Bouncer {
    /// Starts one with a single session to the server.
    pub fn start(lab: &Lab, server: &Server, name: &str) -> Self {
        let port = server.port();
        let sockets = server.sockets().display();
        let folder = lab.folder().join(name);
        std::fs::create_dir(&folder).unwrap();
        lab.account().own(&folder).unwrap();
        let shown = folder.display();
        let text = format!(
            "[databases]\n* = host={sockets} port={port} user={SUPERUSER}\n[pgbouncer]\n\
             unix_socket_dir = {shown}\nlisten_port = 6543\nauth_type = any\npool_mode = transaction\n\
             default_pool_size = 1\n"
        );
        let config = lab.write_file(&format!("{name}.ini"), &text).unwrap();
        let mut command = lab.launcher().command(PROGRAM);
        command.arg("-q").arg(config).stderr(Stdio::null());
        let process = lab.launcher().spawn(command, Side::Both).unwrap();
        let conninfo = format!("host={shown} port=6543 user={SUPERUSER} dbname=postgres");
        let bouncer = Self { process, conninfo };
        until("PgBouncer answers", || bouncer.connect());
        bouncer
    }

    fn connect(&self) -> Option<Connection> {
        let conninfo = Conninfo::parse(&self.conninfo).unwrap();
        Connection::connect(&conninfo, Purpose::Sql, "test").ok()
    }

    /// The server's process that all clients get, and what is left on it.
    fn session(&self) -> (String, String) {
        let mut session = self.connect().unwrap();
        let mut text = |sql: &str| session.query(sql).unwrap()[0][0].clone().unwrap();
        (text("SELECT pg_backend_pid()"), text(LEFT))
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn nothing_is_left_on_a_pooled_connection() {
    if !std::path::Path::new(PROGRAM).exists() {
        println!("SKIP: there is no pgbouncer (Debian's pgbouncer)");
        return;
    }
    let lab = TestLab::stock().start().unwrap();
    let primary = lab.primary("primary", None, &Settings::new()).unwrap();
    let mut standby = lab.standby(&primary, "standby", &Settings::new()).unwrap();
    standby.catch_up(&primary).unwrap();
    let bouncers = [(&primary, "to-primary"), (&standby, "to-standby")]
        .map(|(server, name)| Bouncer::start(&lab, server, name));
    let before = bouncers.each_ref().map(Bouncer::session);

    // Both ask through the one session of each server, now and at the same time.
    let [to_primary, to_standby] = bouncers.each_ref().map(|bouncer| bouncer.conninfo.as_str());
    let ask_once = || {
        let said = doctor(&[
            "--primary",
            to_primary,
            "--standby",
            to_standby,
            "--seconds",
            "2",
            "--output",
            "json",
        ]);
        let json: Value = serde_json::from_str(&said.text).unwrap();
        (said.code, json)
    };
    let ask = || {
        let is_well = |(code, json): &(i32, Value)| *code == 0 && untroubled(json);
        let (code, json) = once_right(ask_once, is_well);
        assert!(untroubled(&json), "{}", json["nodes"]);
        assert_eq!(code, 0, "{}", brief(&json));
    };
    std::thread::scope(|scope| {
        scope.spawn(ask);
        ask();
    });
    assert_eq!(bouncers.each_ref().map(Bouncer::session), before);
}
