//! Situations in which nothing is wrong, however they look: doctor must find no cause and no lag.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::doctor_pooled::{Bouncer, PROGRAM};
use lockstep_bench::fault::stage::Which;
use lockstep_bench::fault::{Stage, Writer};
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{DATABASE, PATIENCE, SUPERUSER, Server, Settings};

/// What lasts until a situation is over.
#[derive(Default)]
pub struct Lasting {
    writers: Vec<Writer>,
    undo: Vec<(Which, &'static str)>,
    cascaded: Option<Server>,
    receiver: Option<Receiver>,
    /// One before each server.
    bouncers: Vec<Bouncer>,
    /// The standby's clock is another one.
    is_faked: bool,
}

/// The situation in which the standby's clock is wrong, and the library that makes it so.
const CLOCK: &str = "clock of the standby 5 minutes ahead";
const CLOCK_LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

/// The situation in which all servers are asked through a pooler.
const POOLED: &str = "through PgBouncer";

/// Why a situation cannot be made on this machine, if it cannot.
pub fn missing(situation: &str) -> Option<&'static str> {
    let lacks = |file: &str| !std::path::Path::new(file).exists();
    match situation {
        CLOCK if lacks(CLOCK_LIBRARY) => Some("Debian's package libfaketime is not installed"),
        POOLED if lacks(PROGRAM) => Some("Debian's package pgbouncer is not installed"),
        _ => None,
    }
}

/// What begins a situation.
type Begin = fn(&Lab, &mut Stage) -> Lasting;

/// A situation by its name.
type Situation = (&'static str, Begin);

/// Situations in which nothing is wrong.
pub const SITUATIONS: [Situation; 15] = [
    ("idle", |_, _| Lasting::default()),
    ("some load", |_, stage| trickled(stage)),
    ("bulk load", |_, stage| {
        let rows = "INSERT INTO busy (v) SELECT repeat('x', 100) FROM generate_series(1, 10000)";
        writing(stage, rows)
    }),
    ("index builds", |_, stage| {
        writing(stage, "CREATE INDEX built ON busy (v); DROP INDEX built")
    }),
    ("freeze", |_, stage| {
        writing(stage, "VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) busy")
    }),
    ("after catching up", |_, stage| {
        let rows = "INSERT INTO t (v) SELECT repeat('x', 100) FROM generate_series(1, 50000)";
        stage.primary.execute(rows).unwrap();
        for which in [Which::Standby, Which::Second] {
            stage.restart(which).unwrap();
        }
        stage.calm().unwrap();
        trickled(stage)
    }),
    ("initial copy", |_, stage| copying(stage)),
    ("cascade", cascaded),
    ("pg_receivewal", received),
    ("other time zones", |_, stage| {
        zones(stage, "'Asia/Kathmandu'", "'America/St_Johns'");
        let mut lasting = trickled(stage);
        let back = "ALTER SYSTEM RESET timezone";
        lasting.undo = vec![(Which::Primary, back), (Which::Standby, back)];
        lasting
    }),
    (CLOCK, |_, stage| {
        let fake = [
            ("LD_PRELOAD", CLOCK_LIBRARY),
            ("FAKETIME", "+300s"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ];
        for (name, value) in fake {
            stage.standby.set_environment(name, value);
        }
        stage.restart(Which::Standby).unwrap();
        stage.calm().unwrap();
        Lasting {
            is_faked: true,
            ..trickled(stage)
        }
    }),
    ("synchronous standby", |_, stage| {
        let sql = "ALTER SYSTEM SET synchronous_standby_names = 'standby'";
        stage.primary.execute(sql).unwrap();
        stage.primary.reload().unwrap();
        let mut lasting = trickled(stage);
        let back = "ALTER SYSTEM RESET synchronous_standby_names";
        lasting.undo = vec![(Which::Primary, back)];
        lasting
    }),
    (POOLED, |lab, stage| {
        let servers = [&stage.primary, &stage.standby, &stage.first, &stage.second];
        let bouncers = servers.map(|server| {
            let name = format!("pooled-{}", server.id().name);
            Bouncer::start(lab, server, &name)
        });
        Lasting {
            bouncers: bouncers.into(),
            ..trickled(stage)
        }
    }),
    ("WAL flushed inside a record", |_, stage| {
        half_flushed(stage)
    }),
    ("segments switched after a checkpoint", |_, stage| {
        switched(stage)
    }),
];

/// The primary has flushed a part of a record, as its WAL writer does with what no commit waits for. Each
/// standby has that part, and cannot replay it.
fn half_flushed(stage: &mut Stage) -> Lasting {
    // What the servers' background processes write next flushes the rest.
    let half = "SELECT (pg_current_wal_flush_lsn() - '0/0') % 8192 = 0 \
                AND pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn()";
    let begin = format!(
        "DO $$ BEGIN LOOP \
           PERFORM pg_logical_emit_message(false, 'half', repeat('x', 20000)); \
           FOR tenth IN 1..100 LOOP \
             IF ({half}) THEN RETURN; END IF; PERFORM pg_sleep(0.1); \
           END LOOP; \
         END LOOP; END $$"
    );
    stage.primary.execute(&begin).unwrap();
    Lasting::default()
}

/// Rows are changed for the first time since a checkpoint, so that WAL has whole pages, and segments end
/// early.
fn switched(stage: &mut Stage) -> Lasting {
    let rows = "INSERT INTO busy (v) SELECT repeat('x', 100) FROM generate_series(1, 20000)";
    stage.primary.execute(rows).unwrap();
    stage.primary.execute("CHECKPOINT").unwrap();
    stage.calm().unwrap();
    let change = "UPDATE busy SET v = v || 'y' WHERE id IN \
                  (SELECT (random() * 20000)::int FROM generate_series(1, 20))";
    let mut lasting = writing(stage, change);
    let pause = Duration::from_secs(1);
    let switch = "SELECT pg_switch_wal()";
    let writer = Writer::start(&stage.primary, DATABASE, switch, pause);
    lasting.writers.push(writer.unwrap());
    lasting
}

fn trickled(stage: &Stage) -> Lasting {
    Lasting {
        writers: stage.trickle().unwrap().into(),
        ..Lasting::default()
    }
}

/// Somebody executes this on the primary again and again.
fn writing(stage: &Stage, sql: &str) -> Lasting {
    let mut lasting = trickled(stage);
    let pause = Duration::from_millis(500);
    let writer = Writer::start(&stage.primary, DATABASE, sql, pause);
    lasting.writers.push(writer.unwrap());
    lasting
}

fn zones(stage: &Stage, primary: &str, standby: &str) {
    for (server, zone) in [(&stage.primary, primary), (&stage.standby, standby)] {
        let sql = format!("ALTER SYSTEM SET timezone = {zone}");
        server.execute(&sql).unwrap();
        server.reload().unwrap();
    }
}

/// A table is copied for a new subscription, which takes longer than doctor looks.
fn copying(stage: &mut Stage) -> Lasting {
    stage
        .primary
        .execute(
            "CREATE TABLE copied (id int PRIMARY KEY); \
             INSERT INTO copied SELECT generate_series(1, 5000); \
             CREATE PUBLICATION extra FOR TABLE copied",
        )
        .unwrap();
    stage
        .second
        .execute(
            "CREATE TABLE copied (id int PRIMARY KEY); \
             CREATE FUNCTION dawdle_copying() RETURNS trigger LANGUAGE plpgsql AS \
               $$ BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END $$; \
             CREATE TRIGGER dawdle BEFORE INSERT ON copied \
               FOR EACH ROW EXECUTE FUNCTION dawdle_copying(); \
             ALTER TABLE copied ENABLE ALWAYS TRIGGER dawdle",
        )
        .unwrap();
    let subscribe = format!(
        "CREATE SUBSCRIPTION extra CONNECTION 'host={} port={} user={SUPERUSER} dbname={DATABASE}' \
         PUBLICATION extra",
        stage.primary.sockets().display(),
        stage.primary.port()
    );
    stage.second.execute(&subscribe).unwrap();
    let copies = "SELECT (count(*) > 0)::text FROM pg_stat_progress_copy";
    stage
        .second
        .await_event("copy a table", PATIENCE, |second| {
            Ok(second.query_text(copies)?.as_deref() == Some("true"))
        })
        .unwrap();
    Lasting {
        undo: vec![
            (Which::Second, "DROP SUBSCRIPTION extra"),
            (
                Which::Second,
                "DROP TABLE copied; DROP FUNCTION dawdle_copying()",
            ),
            (Which::Primary, "DROP PUBLICATION extra; DROP TABLE copied"),
        ],
        ..Lasting::default()
    }
}

/// A standby that streams from the standby.
fn cascaded(lab: &Lab, stage: &mut Stage) -> Lasting {
    let mut server = lab
        .standby(&stage.standby, "cascaded", &Settings::new())
        .unwrap();
    server.catch_up(&stage.primary).unwrap();
    Lasting {
        cascaded: Some(server),
        ..trickled(stage)
    }
}

/// A program that only receives WAL; killed when this is dropped.
struct Receiver(Child);

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Such a program without `--synchronous`, which has told that it has all there is.
fn received(lab: &Lab, stage: &mut Stage) -> Lasting {
    let folder = lab.folder().join("received");
    std::fs::create_dir_all(&folder).unwrap();
    let slot = "SELECT pg_create_physical_replication_slot('received', true)";
    stage.primary.execute(slot).unwrap();
    let child = Command::new(lab.package().program("pg_receivewal"))
        .args(["-d", &stage.primary.conninfo(SUPERUSER)])
        .arg("-D")
        .arg(&folder)
        .args(["--slot", "received", "--status-interval", "1"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let all = "SELECT (write_lsn = pg_current_wal_flush_lsn() AND flush_lsn < write_lsn)::text \
               FROM pg_stat_replication WHERE application_name = 'pg_receivewal'";
    stage
        .primary
        .await_event("have a receiver", PATIENCE, |primary| {
            Ok(primary.query_text(all)?.as_deref() == Some("true"))
        })
        .unwrap();
    Lasting {
        receiver: Some(Receiver(child)),
        undo: vec![(
            Which::Primary,
            "DO $$ BEGIN FOR tenth IN 1..600 LOOP \
               EXIT WHEN NOT (SELECT active FROM pg_replication_slots WHERE slot_name = 'received'); \
               PERFORM pg_sleep(0.1); \
             END LOOP; PERFORM pg_drop_replication_slot('received'); END $$",
        )],
        ..Lasting::default()
    }
}

impl Lasting {
    /// Further nodes that doctor is told of.
    pub fn others(&self) -> Vec<[String; 2]> {
        let conninfo = |server: &Server| ["--standby".to_owned(), server.conninfo(SUPERUSER)];
        self.cascaded.iter().map(conninfo).collect()
    }

    /// Conninfos by which doctor is to ask the stage's servers, if these are others than usual.
    pub fn conninfos(&self) -> Option<[String; 4]> {
        let all: Vec<String> = self.bouncers.iter().map(|it| it.conninfo.clone()).collect();
        all.try_into().ok()
    }

    pub fn end(self, stage: &mut Stage) {
        drop(self.writers);
        drop(self.bouncers);
        drop(self.receiver);
        for (which, sql) in self.undo {
            let server = stage.server(which);
            server.execute(sql).unwrap();
            server.reload().unwrap();
        }
        if self.is_faked {
            let file = stage.standby.data().join("postmaster.pid");
            let pid = std::fs::read_to_string(file).unwrap();
            let pid = pid.lines().next().unwrap();
            stage.standby.set_environment("LD_PRELOAD", "");
            stage.restart(Which::Standby).unwrap();
            // The library leaves what its processes share.
            for name in ["faketime_shm", "sem.faketime_sem"] {
                std::fs::remove_file(format!("/dev/shm/{name}_{pid}")).unwrap();
            }
        }
        if let Some(server) = self.cascaded {
            server.discard(&stage.standby).unwrap();
        }
        stage.calm().unwrap();
    }
}
