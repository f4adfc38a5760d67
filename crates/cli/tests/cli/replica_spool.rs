//! `lockstep replica run --spool-dir` as a process that is killed at any moment.

use std::process::Child;

use lockstep_client::{Connection, SlotState};
use lockstep_lab::assert_has;
use lockstep_lab::cluster::Lab;
use lockstep_lab::for_tests::pause;
use lockstep_lab::server::{Server, Stop};

use crate::relay_limits::Small;
use crate::replica::{
    Running, create_args, in_app, lockstep, on, output, server, sql, text, value,
};

/// Longer than anything here takes.
const LONG: std::time::Duration = std::time::Duration::from_secs(120);

/// Transactions that are spooled between two kills, and rows of each.
const BETWEEN_KILLS: u32 = 80;
const ROWS: u32 = 100;

/// Kills while transactions are spooled, also in the long test.
const KILLS: u32 = 3;
const MANY_KILLS: u32 = 10;

struct Spooling {
    source: Server,
    target: Server,
    folder: String,
    to: String,
    // Last: it ends what still runs.
    lab: Lab,
}

impl Spooling {
    /// Table t has no key, so that a row that comes twice is there twice.
    fn new() -> Self {
        let lab = Lab::for_tests().unwrap();
        let (source, target) = (server(&lab, "source"), server(&lab, "target"));
        let table = "CREATE TABLE t (id int, v text); ALTER TABLE t REPLICA IDENTITY FULL";
        on(&source, table);
        let from = in_app(&source);
        let to = in_app(&target);
        let created = output(&create_args(&from, &to));
        assert!(created.status.success(), "{created:?}");
        let folder = lab.folder().join("spool").to_str().unwrap().to_owned();
        Self {
            source,
            target,
            folder,
            to,
            lab,
        }
    }

    /// Runs the replica with little memory, so that a drain has many commits.
    fn run(&self) -> Running {
        let mut command = lockstep(&["run", "r", "--target", &self.to, "--memory", "1MB"]);
        command.args(["--spool-dir", &self.folder, "--spool-limit", "1GB"]);
        let log = self.lab.folder().join("log");
        let log = std::fs::File::options().create(true).append(true).open(log);
        Running(command.stderr(log.unwrap()).spawn().unwrap())
    }

    fn until(&self, what: &str, child: &mut Child, mut reached: impl FnMut() -> bool) {
        let started = std::time::Instant::now();
        while !reached() {
            let log = std::fs::read_to_string(self.lab.folder().join("log")).unwrap_or_default();
            assert!(started.elapsed() < LONG, "{what}: {log}");
            assert_eq!(child.try_wait().unwrap(), None, "{what}: {log}");
            pause();
        }
    }

    fn slot(&self) -> SlotState {
        let name = value(&self.source, "SELECT slot_name FROM pg_replication_slots");
        sql(&self.source).slot(&name).unwrap().unwrap()
    }

    fn rows(&self) -> u32 {
        value(&self.target, "SELECT count(*) FROM t")
            .parse()
            .unwrap()
    }
}

fn write(source: &mut Connection, transaction: u32) {
    let first = transaction * ROWS;
    let insert = format!(
        "INSERT INTO t SELECT n, md5(n::text) FROM generate_series({first}, {}) n",
        first + ROWS - 1
    );
    source.execute(&insert).unwrap();
}

/// The failpoints of crate `replica` and the simulation of the spool say where a process may die; here the
/// program does, wherever it is.
#[test]
fn a_process_that_is_killed_keeps_what_it_has_spooled() {
    killed(KILLS);
}

#[test]
#[ignore = "long: make test-bed"]
fn a_process_that_is_killed_again_and_again_keeps_what_it_has_spooled() {
    killed(MANY_KILLS);
}

fn killed(kills_spooling: u32) {
    let transactions = kills_spooling * BETWEEN_KILLS;
    let mut spooling = Spooling::new();
    let mut process = spooling.run();
    on(&spooling.source, "INSERT INTO t VALUES (-1)");
    // Now the spool knows whose it is.
    spooling.until("the first row", &mut process.0, || spooling.rows() == 1);
    spooling.target.stop(Stop::Immediate).unwrap();
    // Killed while transactions come, at whatever it does then.
    let mut source = sql(&spooling.source);
    for transaction in 0..transactions {
        write(&mut source, transaction);
        if (transaction + 1) % BETWEEN_KILLS == 0 {
            let before = spooling.slot().confirmed;
            spooling.until("that it spools", &mut process.0, || {
                spooling.slot().confirmed > before
            });
            (0..20).for_each(|_| source.execute("INSERT INTO t VALUES (-1)").unwrap());
            process = {
                drop(process);
                spooling.run()
            };
        }
    }
    let end = spooling.source.flush_lsn().unwrap();
    spooling.until("that all is spooled", &mut process.0, || {
        spooling.slot().confirmed >= end
    });
    drop(process);
    // What is applied now comes from the spool alone.
    spooling.source.stop(Stop::Fast).unwrap();
    spooling.target.start().unwrap();
    let all = 1 + transactions * ROWS + kills_spooling * 20;
    let (mut kills, mut seen) = (0, 1);
    while seen < all {
        let mut process = spooling.run();
        let from = seen;
        // In the middle of it, as long as there is more.
        spooling.until("that it drains", &mut process.0, || {
            seen = spooling.rows();
            seen > from
        });
        kills += 1;
    }
    assert!(kills > 1, "it was never killed in the middle");
    // Killed within a transaction of the target, too.
    spooling.source.start().unwrap();
    let mut locker = sql(&spooling.target);
    locker.execute("BEGIN; LOCK TABLE t").unwrap();
    let mut process = spooling.run();
    write(&mut sql(&spooling.source), transactions);
    let waits = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted";
    spooling.until("that it waits for the lock", &mut process.0, || {
        value(&spooling.target, waits) == "t"
    });
    drop(process);
    locker.execute("ROLLBACK").unwrap();
    let mut process = spooling.run();
    spooling.until("the last rows", &mut process.0, || {
        spooling.rows() >= all + ROWS
    });
    let same = "SELECT count(*) || ' ' || sum(hashtext(t::text)) FROM t";
    assert_eq!(value(&spooling.source, same), value(&spooling.target, same));
}

#[test]
fn status_says_what_the_spool_holds() {
    let spooling = Spooling::new();
    let mut process = spooling.run();
    let mut locker = sql(&spooling.target);
    locker.execute("BEGIN; LOCK TABLE t").unwrap();
    write(&mut sql(&spooling.source), 0);
    let status = |json: bool| {
        let mut args = vec!["status", "r", "--target", &spooling.to];
        if json {
            args.extend(["--output", "json"]);
        }
        let shown = output(&args);
        assert!(shown.status.success(), "{shown:?}");
        text(&shown.stdout)
    };
    let held = || {
        let json: serde_json::Value = serde_json::from_str(&status(true)).unwrap();
        json["replicas"][0]["spool"].clone()
    };
    let lsn =
        |value: &serde_json::Value| -> Option<lockstep_wire::Lsn> { value.as_str()?.parse().ok() };
    spooling.until("that status knows", &mut process.0, || {
        let spool = held();
        lsn(&spool["from_lsn"]) < lsn(&spool["to_lsn"]) && lsn(&spool["to_lsn"]).is_some()
    });
    let spool = held();
    assert_eq!(spool["limit_bytes"], 1 << 30);
    assert!(spool["bytes"].as_u64().unwrap() > 4_000, "{spool}");
    let shown = status(false);
    assert_has!(shown, "its spool takes", "holds changes from");
    locker.execute("ROLLBACK").unwrap();
    spooling.until("that the target has all", &mut process.0, || {
        status(false).contains("holds no whole transaction that the target lacks")
    });
    drop(process);
    assert_eq!(held(), serde_json::Value::Null, "nobody says so now");
}

/// A disk that is full before the spool is: status says so, nothing is lost, and the replica goes on once
/// there is room.
#[test]
fn a_full_disk_is_waited_for() {
    let spooling = Spooling::new();
    let folder = std::path::PathBuf::from(&spooling.folder);
    let Some(small) = Small::on(folder, 8) else {
        println!("SKIP: this account may not mount a file system");
        return;
    };
    let mut process = spooling.run();
    let mut locker = sql(&spooling.target);
    locker.execute("BEGIN; LOCK TABLE t").unwrap();
    let mut source = sql(&spooling.source);
    (0..1500).for_each(|transaction| write(&mut source, transaction));
    let status = || {
        let shown = output(&["status", "r", "--target", &spooling.to]);
        // Notes are wrapped.
        let words: Vec<_> = text(&shown.stdout)
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        words.join(" ")
    };
    spooling.until("that the disk is full", &mut process.0, || {
        status().contains("before its limit is reached")
    });
    assert!(!status().contains("the target has all"), "{}", status());
    // More comes meanwhile, which the source keeps.
    (1500..1600).for_each(|transaction| write(&mut source, transaction));
    locker.execute("ROLLBACK").unwrap();
    spooling.until("that all has arrived", &mut process.0, || {
        spooling.rows() == 1600 * ROWS
    });
    spooling.until("that it is full no more", &mut process.0, || {
        !status().contains("is full")
    });
    let same = "SELECT count(*) || ' ' || sum(hashtext(t::text)) FROM t";
    assert_eq!(value(&spooling.source, same), value(&spooling.target, same));
    drop((process, spooling, small));
}
