//! Sessions that are ended: one whose client takes nothing, one whose query runs, one whose role
//! has lost its right.

use std::process::{Child, Command, Stdio};

use crate::relay_support::raw::{Raw, packet};
use crate::relay_support::{Relay, publisher, until, until_answer};
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::TestLab;
use lockstep_lab::server::SUPERUSER;
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

/// Column of `SHOW SPOOL`.
const SPOOL_BYTES: usize = 4;

/// A `pg_recvlogical` that streams from a slot of its own, as a role.
struct Receiver(Child);

impl Receiver {
    fn start(lab: &Lab, relay: &Relay, role: &str, slot: &str) -> Self {
        let conninfo = format!(
            "host=127.0.0.1 port={} user={role} dbname=postgres",
            relay.port
        );
        let child = Command::new(lab.package().program("pg_recvlogical"))
            .args(["--dbname", &conninfo, "--no-loop", "--slot", slot])
            .args(["--create-slot", "--plugin", "pgoutput", "--start"])
            .args([
                "--option",
                "proto_version=1",
                "--option",
                "publication_names=p",
            ])
            .args(["--file", "/dev/null"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).unwrap());
        signal::kill(pid, signal).unwrap();
    }

    /// What it has said once it has ended.
    fn said(mut self) -> String {
        use std::io::Read;
        let mut said = String::new();
        let mut stderr = self.0.stderr.take().unwrap();
        stderr.read_to_string(&mut said).unwrap();
        assert!(!self.0.wait().unwrap().success());
        said
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The numbers of sessions that stream from a slot.
fn sessions(lab: &Lab, relay: &Relay, slot: &str) -> Option<String> {
    let clients = relay.console(lab, "SHOW CLIENTS");
    let row = clients
        .lines()
        .find(|row| row.split('|').any(|value| value == slot))?;
    row.split('|').next().map(str::to_owned)
}

#[test]
fn sessions_end_by_the_console_and_with_their_roles_rights() {
    let lab = TestLab::with_extension().start().unwrap();
    let primary = publisher(&lab);
    primary.run(
        "CREATE TABLE t (id int, v text); CREATE PUBLICATION p FOR TABLE t; \
             CREATE ROLE reader LOGIN REPLICATION",
    );
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);

    // It takes nothing: what is sent to it fills the buffers between the two.
    let stalled = Receiver::start(&lab, &relay, SUPERUSER, "stalled");
    let id = until("it streams", || sessions(&lab, &relay, "stalled"));
    stalled.signal(Signal::SIGSTOP);
    primary.run("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 40000) i");
    until("more is in the spool than fits between the two", || {
        let row = relay.console(&lab, "SHOW SPOOL");
        let bytes = row.split('|').nth(SPOOL_BYTES)?.parse::<u64>().ok()?;
        (bytes > 30 << 20).then_some(())
    });
    let refused = relay.try_console(&lab, "DROP SLOT stalled").unwrap_err();
    assert!(refused.contains("is active for PID"), "{refused}");
    assert_eq!(relay.console(&lab, &format!("TERMINATE {id}")), "TERMINATE");
    until("its session is over", || {
        sessions(&lab, &relay, "stalled").is_none().then_some(())
    });
    relay.console(&lab, "DROP SLOT stalled");
    let gone = relay
        .try_console(&lab, &format!("TERMINATE {id}"))
        .unwrap_err();
    assert!(gone.contains("there is no session"), "{gone}");
    stalled.signal(Signal::SIGCONT);
    stalled.said();

    // The connection to the primary that its role had is closed: nobody else would notice.
    let reader = Receiver::start(&lab, &relay, "reader", "r");
    until("it streams", || sessions(&lab, &relay, "r"));
    primary.run("ALTER ROLE reader NOREPLICATION");
    // Another session that begins has the relay look sooner than in a minute.
    let _other = Receiver::start(&lab, &relay, SUPERUSER, "o");
    let said = reader.said();
    assert_has!(said, "role \"reader\" may not replicate any more");
}

#[test]
fn a_session_that_is_ended_leaves_no_query_behind() {
    let lab = TestLab::with_extension().start().unwrap();
    let primary = publisher(&lab);
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    let mut client = Raw::tcp(relay.port)
        .log_in(&packet(&[
            ("user", SUPERUSER),
            ("database", "postgres"),
            ("application_name", "sleeper"),
        ]))
        .ok()
        .unwrap();
    client.send_query("SELECT pg_sleep(100000)");
    let sleepers = "SELECT count(*)::text FROM pg_stat_activity \
                    WHERE application_name = 'sleeper' AND state = 'active'";
    until_answer(&primary, sleepers, "1");
    let id = until("it is listed", || sessions(&lab, &relay, "sleeper"));
    relay.console(&lab, &format!("TERMINATE {id}"));
    until_answer(&primary, sleepers, "0");
    drop((client, relay, primary));
}

/// A role is what its OID says, whatever it is called.
#[test]
fn a_stream_is_of_the_role_that_began_it() {
    let lab = TestLab::with_extension().start().unwrap();
    let primary = publisher(&lab);
    primary.run(
        "CREATE TABLE t (id int, v text); CREATE PUBLICATION p FOR TABLE t; \
             CREATE ROLE renamed LOGIN REPLICATION; CREATE ROLE replaced LOGIN REPLICATION",
    );
    let relay = Relay::start(&lab, &primary.conninfo(SUPERUSER), &[]);
    // One after the other: a slot that is behind the group's beginning is not the relay's.
    let _renamed = Receiver::start(&lab, &relay, "renamed", "a");
    until("a streams", || sessions(&lab, &relay, "a"));
    let replaced = Receiver::start(&lab, &relay, "replaced", "b");
    until("b streams", || sessions(&lab, &relay, "b"));
    primary.run(
        "ALTER ROLE renamed RENAME TO other; \
             DROP ROLE replaced; CREATE ROLE replaced LOGIN REPLICATION",
    );
    // Another session that begins has the relay look sooner than in a minute.
    let _new = Receiver::start(&lab, &relay, SUPERUSER, "c");
    let said = replaced.said();
    assert_has!(said, "role \"replaced\" may not replicate any more");
    // Both were looked at together.
    assert!(sessions(&lab, &relay, "a").is_some(), "{}", relay.log());
}
